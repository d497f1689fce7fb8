"""Shared parts of the server's benchmarks: a server process, senders of frames, and readers of the stream."""

from __future__ import annotations

import http.client
import json
import math
import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import numpy as np
import psutil

from hookcore.records import STAT_COLUMN, STATS, Frame, SketchBlock, Tap, wire
from tests.sketches import block_of, sketch_of

VARIANTS: Final = 8  # different steps in turn, so that merging meets changing bins
COUNT: Final = 65_536  # of every tap in every frame: a frame that was stored twice would double it
COMMAND: Final = [sys.executable, "-m", "hookcore_app.cli"]
# For this benchmark's servers, and known to all processes that it starts.
TOKEN: Final = os.environ.setdefault("HOOKCORE_TOKEN", secrets.token_urlsafe(32))
AUTHORIZED: Final = {"Authorization": f"Bearer {TOKEN}"}
spawn: Final = multiprocessing.get_context("spawn")


class ServerProcess:
    """A separate server, started as a user would."""

    def __init__(self, url: str, process: psutil.Process) -> None:
        self.url, self.process = url, process

    @property
    def rss_mib(self) -> float:
        """Return its resident memory, including its children's."""
        family = [self.process, *self.process.children(recursive=True)]
        return sum(each.memory_info().rss for each in family) / 2**20

    @property
    def cpu_s(self) -> float:
        """Return its processor time so far."""
        return cpu_s(self.process)

    def rest(self) -> None:
        """Wait until it has prepared its pages, as the first server of a new folder does once, and does nothing."""
        time.sleep(5.0)
        before = -1.0
        while (now := self.cpu_s) - before > 0.05:
            before = now
            time.sleep(2.0)

    def get(self, path: str, timeout_s: float = 60) -> bytes:
        """Return the answer to a query."""
        with open_url(self.url + path, timeout_s) as answer:
            found: bytes = answer.read()
        return found


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def open_url(url: str, timeout_s: float = 60) -> Any:
    """Open an answer for reading."""
    return urllib.request.urlopen(urllib.request.Request(url, headers=AUTHORIZED), timeout=timeout_s)


@contextmanager
def server_process(*flags: str, name: str = "serve", port: int = 0) -> Iterator[ServerProcess]:
    """Run a server, or the command called `name`, on a port, or on a free one, until the end of the block."""
    port = port or free_port()
    command = [*COMMAND, name, "--host", "127.0.0.1", "--port", str(port), *flags]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,  # its runs are not those of the user
        subprocess.Popen(
            command,
            env={**os.environ, "HOOKCORE_HOME": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as started,
    ):
        try:
            server = ServerProcess(f"http://127.0.0.1:{port}", psutil.Process(started.pid))
            _wait_for(server, started)
            yield server
        finally:
            started.terminate()
            try:
                started.wait(15)
            except subprocess.TimeoutExpired:
                started.kill()


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_for(server: ServerProcess, started: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if started.poll() is not None:
            said = started.stderr.read() if started.stderr else ""
            raise RuntimeError(f"the server did not start:\n{said}")
        try:
            server.get("/healthz")
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server did not answer within a minute")


class Sender:
    """Sends frames of one run like a trainer: one request after another on one connection."""

    def __init__(
        self,
        url: str,
        taps: int | tuple[Tap, ...],
        sketch_every: int = 10,
        name: str = "",
        memory: int = 0,
        description: wire.Description | None = None,
        place: wire.Place | None = None,
    ) -> None:
        run_id = name or secrets.token_hex(6)
        self.info = wire.RunInfo(
            id=run_id, key=secrets.token_hex(16), name=run_id, started_s=time.time(), memory=memory, place=place
        )
        self.names = tuple(Tap(f"layers.{tap}", "output") for tap in range(taps)) if isinstance(taps, int) else taps
        self.taps, self.acknowledged, self.step = len(self.names), -1, 0
        self._description = description
        self._every, self._last = sketch_every, b""
        self._address = urllib.parse.urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=60)
        self._items = {sketched: _items(self.taps, sketched) for sketched in (False, True)}

    def send(self, frames: int = 1) -> float:
        """Send more steps in one request, and return when the last one ended."""
        items, ended = [], time.time()
        for step in range(self.step, self.step + frames):
            variants = self._items[self._every > 0 and step % self._every == 0]
            item = variants[step % VARIANTS]
            items.append(msgspec.structs.replace(item, number=step, step=step, time_s=ended))
        first = self.step == 0
        batch = wire.Batch(
            run=self.info,
            taps_from=0 if first else self.taps,
            taps=self.names if first else (),
            description=self._description if first else None,
            items=tuple(items),
        )
        self._last = wire.encode(batch)
        answer = self.post(self._last)
        self.step += frames
        self.acknowledged = answer.acknowledged
        return ended

    def end(self) -> None:
        """End the run."""
        end = wire.EndItem(self.step, self.step - 1)
        self.post(wire.encode(wire.Batch(run=self.info, taps_from=self.taps, items=(end,))))

    def repeat(self) -> None:
        """Repeat the last request, as after a lost answer."""
        answer = self.post(self._last)
        if answer.acknowledged != self.acknowledged:
            raise RuntimeError(f"item {answer.acknowledged} was acknowledged after item {self.acknowledged}")

    def post(self, body: bytes) -> wire.Receipt:
        try:
            response = self._exchange(body)
        except ConnectionError:  # the server closes a connection that nobody used for half a minute
            self._connection.close()
            response = self._exchange(body)
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {data[:300]!r}")
        return wire.decode_answer(data)

    def _exchange(self, body: bytes) -> http.client.HTTPResponse:
        self._connection.request("POST", "/api/v1/ingest", body, {"Content-Type": wire.CONTENT_TYPE, **AUTHORIZED})
        return self._connection.getresponse()


def _items(taps: int, sketched: bool) -> list[wire.FrameItem]:
    random = np.random.default_rng(1)
    made = []
    for _ in range(VARIANTS):
        stats = random.random((taps, len(STATS)))
        stats[:, STAT_COLUMN["count"]] = COUNT
        stats[:, [STAT_COLUMN["nan"], STAT_COLUMN["inf"]]] = 0
        stats[:, STAT_COLUMN["ratio"]] = np.nan
        block = _sketches(taps, random) if sketched else _no_sketches(taps)
        frame = Frame(0, 0.0, np.arange(taps, dtype=np.uint32), stats, block, scalars={"loss": 1.0}, elapsed_s=0.05)
        made.append(wire.frame_item(0, frame))
    return made


def _sketches(taps: int, random: np.random.Generator) -> SketchBlock:
    kinds = [sketch_of(random.normal(0, scale, 4096)) for scale in np.geomspace(1e-6, 10, 20)]
    return block_of([kinds[tap % len(kinds)] for tap in range(taps)])


def _no_sketches(taps: int) -> SketchBlock:
    return SketchBlock(np.zeros(taps + 1, np.uint32), np.empty(0, np.uint16), np.empty(0, np.uint32))


def read_frames(url: str, query: str, seconds: float = math.inf) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the newest values of a stream and their arrival times, until the time, the stream, or the run has ended."""
    end = time.monotonic() + seconds
    with open_url(f"{url}/api/v1/live?{query}") as answer:
        for line in answer:  # also the comments that keep a silent stream open
            if time.monotonic() > end:
                return
            arrived = time.time()
            if line.startswith(b"data: ") and "latest" in (news := json.loads(line[6:])):
                yield arrived, news["latest"]


def pace(hz: float, times: int) -> Iterator[int]:
    """Yield numbers at a steady rate. A late caller catches up."""
    begun = time.perf_counter()
    for number in range(times):
        delay = begun + number / hz - time.perf_counter()
        if delay > 0:
            time.sleep(delay)
        yield number


def metric(process: ServerProcess, name: str) -> float:
    """Return the sum of a metric over its labels."""
    return sum_of(process.get("/metrics"), name)


def sum_of(metrics: bytes, name: str) -> float:
    """Return the sum of a metric over its labels, of what a server or a collector says."""
    lines = metrics.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def describe(name: str, seconds: Sequence[float], unit: str = "ms") -> dict[str, float]:
    """Print the quantiles of some times, and return them."""
    quantiles = np.quantile(seconds, [0.5, 0.95, 0.99, 1.0]) * 1000
    figures = dict(zip(("p50", "p95", "p99", "max"), quantiles.tolist(), strict=True))
    said = "   ".join(f"{each} {value:8.1f} {unit}" for each, value in figures.items())
    print(f"  {name:48} {said}   ({len(seconds)})", flush=True)
    return figures


def judge(name: str, figure: float, target: float, unit: str, *, at_least: bool = False) -> None:
    """Print a figure next to its target."""
    met = figure >= target if at_least else figure <= target
    sign = ">=" if at_least else "<="
    print(f"  {name:48} {figure:12,.3g} {unit}   target {sign} {target:,.3g}: {'met' if met else 'MISSED'}", flush=True)
