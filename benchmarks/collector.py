"""A collector between trainers and a server: what it adds to an acknowledgement, and how many values it takes.

python -m benchmarks.collector             # every part: about three minutes
python -m benchmarks.collector --quick     # small numbers: checks that it works
python -m benchmarks.collector --only acknowledgements values clickhouse
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import psutil

from benchmarks import traffic
from benchmarks.parts import run_parts
from hookcore.records import STATS
from hookcore_app.clickhouse.schema import number_of_run
from tests.clickhouse.nodes import running

ADDED_MS: Final = 20.0  # by the collector, to the slowest hundredth of the acknowledgements
VALUES_PER_S: Final = 2e6
SENDERS: Final = 8
HZ: Final = 2.0
TAPS: Final = 500
SYNCS: Final = ("1", "0")  # the default, and a sync of the disk before each acknowledgement
PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """The size of every part."""

    paced: int  # frames of each sender, paced
    fast: int  # frames of each sender, as fast as possible


FULL: Final = Size(120, 400)
QUICK: Final = Size(10, 30)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and print their figures."""
    parts: dict[str, Callable[[Size], None]] = {
        "acknowledgements": acknowledge,
        "values": forward,
        "clickhouse": insert,
    }
    run_parts(__doc__, parts, FULL, QUICK, arguments)


def acknowledge(size: Size) -> None:
    """Send each frame to a server and to a collector in turn, and compare the times until they acknowledge it."""
    for sync in SYNCS:
        print(f"\n{SENDERS} senders, {TAPS} taps, {HZ:g} steps a second each; --sync {sync}", flush=True)
        with traffic.server_process() as direct, _collected("--sync", sync) as (_, collector):
            pairs = [(traffic.Sender(direct.url, TAPS), traffic.Sender(collector.url, TAPS)) for _ in range(SENDERS)]
            with ThreadPoolExecutor(SENDERS) as pool:
                times = pool.map(_alternate, pairs, [size.paced] * SENDERS)
                seconds = np.array([pair for some in times for pair in some])
            server = traffic.describe("acknowledged by a server", seconds[:, 0].tolist())
            spool = traffic.describe("acknowledged by a collector", seconds[:, 1].tolist())
        traffic.judge("added at p99", spool["p99"] - server["p99"], ADDED_MS, "ms")


def _alternate(pair: tuple[traffic.Sender, traffic.Sender], frames: int) -> list[tuple[float, float]]:
    found = []
    for number in traffic.pace(HZ, frames):
        times = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            begun = time.perf_counter()
            pair[which].send()
            times[which] = time.perf_counter() - begun
        if number:  # the first request connects, and brings the taps
            found.append((times[0], times[1]))
    return found


def forward(size: Size) -> None:
    """Send as fast as possible, and wait until the server has all of it; the collector's processor time counts."""
    print(f"\n{SENDERS} senders, {size.fast} frames of {TAPS} taps each, as fast as possible", flush=True)
    with _collected() as (server, collector):
        senders = [traffic.Sender(collector.url, TAPS) for _ in range(SENDERS)]
        before, began = collector.cpu_s, time.perf_counter()
        with ThreadPoolExecutor(SENDERS) as pool:
            list(pool.map(_send_all, senders, [size.fast] * SENDERS))
        taken_s, taken_cpu_s = time.perf_counter() - began, collector.cpu_s - before
        _wait_until_empty(collector)
        cpu_s = collector.cpu_s - before
        arrived = traffic.metric(server, "hookcore_run_frames_total")
    values = SENDERS * size.fast * TAPS * len(STATS)
    print(f"  {values / taken_s:,.0f} stat values a second of wall time into the spool, all on these cores", flush=True)
    print(f"  {values / taken_cpu_s:,.0f} a second of its processor time until the last was in the spool", flush=True)
    traffic.judge("values a second of one core, to the server", values / cpu_s, VALUES_PER_S, "", at_least=True)
    traffic.judge("frames lost or doubled", abs(arrived - SENDERS * size.fast), 0, "")


def insert(size: Size) -> None:
    """Send as fast as possible to a collector before ClickHouse. The collector's processor time counts."""
    print(f"\n{SENDERS} senders, {size.fast} frames of {TAPS} taps each, to ClickHouse", flush=True)
    with running() as nodes, tempfile.TemporaryDirectory() as folder:
        flags = "--to", nodes.url, "--spool", folder
        with traffic.server_process(*flags, name="collect") as collector:
            database = psutil.Process(nodes.nodes[0].process.pid) if nodes.nodes[0].process else None
            assert database is not None
            senders = [traffic.Sender(collector.url, TAPS) for _ in range(SENDERS)]
            before, began = (collector.cpu_s, traffic.cpu_s(database)), time.perf_counter()
            with ThreadPoolExecutor(SENDERS) as pool:
                list(pool.map(_send_all, senders, [size.fast] * SENDERS))
            into_spool_s = time.perf_counter() - began
            for sender in senders:
                sender.end()
            _wait_until_empty(collector)
            wall_s = time.perf_counter() - began
            cpu_s, of_database_s = collector.cpu_s - before[0], traffic.cpu_s(database) - before[1]
        runs = ", ".join(str(number_of_run(sender.info.id)) for sender in senders)
        sql = f"SELECT count(), uniqExact(run, number) FROM items WHERE kind = 0 AND run IN ({runs})"
        found = nodes.nodes[0].ask(sql).split()
    frames, values = SENDERS * size.fast, SENDERS * size.fast * TAPS * len(STATS)
    print(f"  {values / into_spool_s:,.0f} stat values a second of wall time into the spool", flush=True)
    print(f"  {values / wall_s:,.0f} until the last was inserted, all on these cores", flush=True)
    print(f"  {values / of_database_s:,.0f} a second of ClickHouse's processor time", flush=True)
    traffic.judge("values a second of one core, to ClickHouse", values / cpu_s, VALUES_PER_S, "", at_least=True)
    traffic.judge("frames lost", frames - int(found[1]), 0, "")
    traffic.judge("frames doubled", int(found[0]) - int(found[1]), 0, "")


def _send_all(sender: traffic.Sender, frames: int) -> None:
    while sender.step < frames:
        sender.send(min(5, frames - sender.step))


def _wait_until_empty(collector: traffic.ServerProcess) -> None:
    end = time.monotonic() + PATIENCE_S
    while traffic.metric(collector, "hookcore_waiting_items"):
        if time.monotonic() > end:
            raise RuntimeError(f"the server didn't have everything after {PATIENCE_S:g} s")
        time.sleep(0.2)


@contextmanager
def _collected(*flags: str) -> Iterator[tuple[traffic.ServerProcess, traffic.ServerProcess]]:
    """Run a server, and a collector that sends to it."""
    os.environ["HOOKCORE_TO_TOKEN"] = traffic.TOKEN
    with (
        tempfile.TemporaryDirectory() as folder,
        traffic.server_process() as server,
        traffic.server_process("--to", server.url, "--spool", folder, *flags, name="collect") as collector,
    ):
        yield server, collector


if __name__ == "__main__":
    main()
