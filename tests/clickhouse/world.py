"""Helpers for ClickHouse tests: a shared server, a database for each test, and checks of what it contains."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from hookcore.delivery.http import Address, HttpSink
from hookcore.records import STATS, Frame, SketchBlock, Tap
from hookcore.records.wire import Batch, DeliveryCounters, EndItem, RunInfo, decode_answer, encode, frame_item
from hookcore_app.clickhouse.client import ClusterAddress
from hookcore_app.clickhouse.schema import (
    LANES,
    LEVELS,
    RUNS,
    SKETCH_LEVELS,
    Inlet,
    Table,
    connect,
    day_of,
    number_of_run,
)
from hookcore_app.clickhouse.writing import Names, Piece, Sign, blocks_of, names_block, signs_block
from hookcore_app.collector.sending import Inserter
from hookcore_app.collector.service import create_collector
from hookcore_app.settings import CollectorSettings, ServerSettings
from tests.build import frame
from tests.clickhouse.nodes import Node
from tests.receiver import a_run
from tests.serving import BATCH, TOKEN
from tests.waiting import wait_for
from tests.warm import python


def some_taps(count: int) -> tuple[Tap, ...]:
    return tuple(Tap(f"layers.{number}", "output") for number in range(count))


TAPS = some_taps(5)
NEVER_S = float("inf")
_databases = itertools.count()


def new_database(url: str) -> str:
    """Return the address of a database that no other test uses."""
    return f"{url.rpartition('/')[0]}/test_{next(_databases)}_{secrets.token_hex(4)}"


def database_of(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


def a_frame(step: int, new_taps: tuple[Tap, ...] = (), value: float | None = None, taps: int = len(TAPS)) -> Frame:
    """Return a frame of all taps with sketches. Its means are its step."""
    stats = np.full((taps, len(STATS)), float(step) if value is None else value)
    stats[:, :4] = 8, 0, 0, 0
    start = np.arange(taps + 1, dtype=np.uint32)
    block = SketchBlock(start, np.full(taps, 100 + step % 7, np.uint16), np.full(taps, 8, np.uint32))
    return frame(step, stats, new_taps, sketches=block, scalars={"loss": 1.0 / (step + 1)})


def count_once(nodes: Sequence[Node], database: str, frames: Mapping[str, int]) -> None:
    """Assert that each frame of each run is stored once on some node: in rows and sketches, and on every level."""
    found = miscounts(nodes, database, frames)
    assert not found, "\n".join(found)


def miscounts(nodes: Sequence[Node], database: str, frames: Mapping[str, int], taps: int = len(TAPS)) -> list[str]:
    """Return the counts that don't show each frame exactly once: in items, rows, and sketches, on every level."""
    wrong = []
    for run_id, count in frames.items():
        run, rows = number_of_run(run_id), count * taps
        of_run, of_taps = f"WHERE run = {run}", f"WHERE run = {run} AND lane < {taps}"
        expected = {
            f"SELECT count() FROM items {of_run} AND kind = 0": count,
            f"SELECT uniqExact(number) FROM items {of_run} AND kind = 0": count,
            f"SELECT count() FROM rows {of_taps}": rows,
            f"SELECT uniqExact(lane, step) FROM rows {of_taps}": rows,
            f"SELECT sum(arraySum(counts)) FROM sketches {of_run}": rows * 8,
        }
        for level in LEVELS:
            expected[f"SELECT sum(present) FROM rollups {of_taps} AND level = {level}"] = rows
            expected[f"SELECT sum(rms_n) FROM rollups {of_taps} AND level = {level}"] = rows
        for level in SKETCH_LEVELS:
            sums = f"SELECT sum(arraySum(`sumsMap.count`)) FROM sketch_rollups {of_taps} AND level = {level}"
            expected[sums] = rows * 8
        for sql, number in expected.items():
            # Only one shard has the run, and a replica may lag.
            found = max(_numbers(node, database, sql)[0] for node in nodes)
            wrong += [] if found == number else [f"{sql}: {found} instead of {number}"]
    return wrong


def _numbers(node: Node, database: str, sql: str) -> list[int]:
    return [int(each) for each in node.ask(sql, database).split()]


@contextmanager
def collecting(url: str, spool: Path, port: int, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Run `hookcore collect` with ClickHouse as its target until the block ends. The block may kill it."""
    command = [python(), "-m", "hookcore_app.cli", "collect", "--to", url, "--spool", str(spool)]
    environment = {**os.environ, "HOOKCORE_TOKEN": TOKEN}
    with (
        tempfile.TemporaryDirectory() as home,
        subprocess.Popen(
            [*command, "--port", str(port), *flags],
            env={**environment, "HOOKCORE_HOME": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


class Collector:
    """A collector that cuts and inserts segments only when the test asks for it."""

    def __init__(self, folder: Path, url: str, insert: float = 0.0) -> None:
        given = CollectorSettings(url, spool=str(folder / "spool"), sync=NEVER_S, insert=insert)
        self.app = create_collector(ServerSettings(), given)
        self.client = TestClient(self.app, base_url="http://127.0.0.1:8643", raise_server_exceptions=False)
        inserter = self.app.state.forwarder
        assert isinstance(inserter, Inserter)
        self.inserter, self.lanes = inserter, self.app.state.lanes

    def post(self, batch: Batch) -> int:
        response = self.client.post("/api/v1/ingest", content=encode(batch), headers=BATCH)
        assert response.status_code == 200, response.text
        return decode_answer(response.content).acknowledged

    def send(self, steps: range, run: str = "run", **others: object) -> None:
        items = tuple(frame_item(step, a_frame(step)) for step in steps)
        taps = {"taps": TAPS} if steps.start == 0 else {"taps_from": len(TAPS)}
        self.post(Batch(run=a_run(run), items=items, **taps, **others))  # type: ignore[arg-type]

    def end(self, step: int, run: str = "run") -> None:
        self.post(Batch(run=a_run(run), taps_from=len(TAPS), items=(EndItem(step, step),)))

    def wait(self) -> None:
        """Insert everything that is complete."""
        wait_for(lambda: not any(lane.records() for lane in self.lanes.all()), "the last insert")

    def stop(self) -> None:
        self.inserter.close()
        self.lanes.close()


def store_frames(
    url: str,
    info: RunInfo,
    steps: range,
    damage: Mapping[Table | Inlet, int] | None = None,
    stored: int | None = None,
    sent: int | None = None,
) -> None:
    """Store frames of a run, and a sign of life, without a collector. `damage` is how often to insert a table's blocks.

    The sign of life claims that items up to `sent` exist, and that items up to `stored` are stored.
    """
    cluster = connect(ClusterAddress.of(url), "a test")
    shard, number = cluster.shards[0], number_of_run(info.id)
    day = day_of(info.started_s)
    items = [frame_item(step, a_frame(step)) for step in steps]
    shard.insert(LANES.name, names_block([Names(number, day, dict(enumerate(TAPS)), ["loss"])]))
    rank = 0 if info.place is None else info.place.rank
    piece = Piece(number, day, rank, 0, len(TAPS), steps.start - 1, items)
    for table, block in blocks_of("spool", steps.start, [piece]).items():
        for _ in range((damage or {}).get(table, 1)):
            shard.insert(table.name, block)
    last = steps.stop - 1
    known = last if stored is None else stored
    numbers = last if sent is None else sent, known, -1
    sign = Sign(info, DeliveryCounters(), "spool", 0.0, *numbers, False, None, 0, last, steps.stop)
    shard.insert(RUNS.name, signs_block([(number, day, time.time_ns() // 1_000_000, sign)]))
    cluster.close()


class Trainers:
    """Trainers that send frames to a collector from threads, until the end of a block."""

    def __init__(
        self,
        port: int,
        count: int = 3,
        infos: Sequence[RunInfo] = (),
        taps: tuple[Tap, ...] = TAPS,
        every_s: float = 0.02,
    ) -> None:
        """Start trainers for the given runs, with clocks that differ like their start times, or for new runs."""
        self.taps, self.every_s = taps, every_s
        infos = infos or [a_run(f"{secrets.token_hex(5)}-{number}") for number in range(count)]
        self.port = port
        self.infos = {info.id: info for info in infos}
        self.sinks = {info.id: HttpSink(info, close_s=60) for info in infos}
        for sink in self.sinks.values():
            sink.start(Address(f"http://127.0.0.1:{port}", TOKEN))
        self.frames = dict.fromkeys(self.sinks, 0)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(run,)) for run in self.sinks]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Trainers:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for sink in self.sinks.values():  # `finish` has closed them, unless the test failed
            sink.limit_close_time(0.0)
            sink.close()

    def _send(self, run: str) -> None:
        while not self._stopping.wait(self.every_s):
            step = self.frames[run]
            made = a_frame(step, self.taps if step == 0 else (), taps=len(self.taps))
            self.sinks[run].send(replace(made, time_s=self.infos[run].started_s + step * self.every_s))
            self.frames[run] += 1

    def finish(self, patience_s: float = 60.0) -> dict[str, int]:
        """End the trainings, wait until everything is acknowledged, and return the number of frames of each run."""
        self._stopping.set()
        for run, sink in self.sinks.items():
            assert sink.flush(patience_s), (run, sink.counters)
            sink.close()
            assert not sink.counters.dropped, sink.counters
        return self.frames


def wait_until_stored(nodes: Sequence[Node], database: str, frames: Mapping[str, int]) -> None:
    """Wait until all acknowledged frames are stored."""

    def is_stored() -> bool:
        with suppress(OSError, RuntimeError):
            runs = ", ".join(str(number_of_run(run)) for run in frames)
            sql = f"SELECT count() FROM items WHERE rows > 0 AND run IN ({runs})"
            counts = (_numbers(node, database, sql)[0] for node in nodes)
            return sum(counts) >= sum(frames.values())
        return False

    wait_for(is_stored, "the last insert")
