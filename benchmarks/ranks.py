"""Virtual ranks: tasks of one event loop, each with its own pace and connection, that send frames to collectors."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import traffic
from benchmarks.demand import Demand
from hookcore.records import STAT_COLUMN, STATS, Frame, SketchBlock, Tap, wire
from hookcore_app.clickhouse.schema import number_of_run
from tests.sketches import block_of, sketch_of

VALUES: Final = 65_536  # of every tensor
POOL_ROWS: Final = 20_000
SKETCHES: Final = 64
SAMPLED: Final = 20_000  # values of a histogram, which make about as many bins as those of a real layer


@dataclass(slots=True)
class Sent:
    """What all ranks have sent, and what was acknowledged."""

    frames: int = 0
    nbytes: int = 0
    acknowledged_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    runs: dict[int, int] = field(default_factory=dict)  # how many frames of each were acknowledged, by number


class Frames:
    """Makes frames that don't repeat, so that no disk compresses them better than those of a training."""

    def __init__(self, taps: int, bins: float) -> None:
        rng = np.random.default_rng(1)
        self.taps = taps
        self._random = random.Random(1)
        self._numbers = np.arange(taps, dtype=np.uint32)
        self._pool = _rows(rng, POOL_ROWS + taps)
        self._blocks = [_sketches(rng, taps) for _ in range(8)] if bins else []
        self._noise = rng.integers(0, 200, 2 * max((len(each.bins) for each in self._blocks), default=1)).astype("<u4")

    def make(self, step: int) -> wire.FrameItem:
        """Return the item of a step."""
        begin = self._random.randrange(POOL_ROWS)
        stats = self._pool[begin : begin + self.taps]
        return wire.frame_item(
            step,
            Frame(step, time.time(), self._numbers, stats, self._block(), scalars={"loss": 1.0}, elapsed_s=0.05),
        )

    def _block(self) -> SketchBlock:
        if not self._blocks:
            return SketchBlock(np.zeros(self.taps + 1, np.uint32), np.empty(0, np.uint16), np.empty(0, np.uint32))
        block = self._random.choice(self._blocks)
        begin = self._random.randrange(len(self._noise) - len(block.bins) + 1)
        return SketchBlock(block.start, block.bins, block.counts + self._noise[begin : begin + len(block.bins)])

    @property
    def bins(self) -> float:
        """The mean number of bins of a histogram."""
        return float(np.mean([len(each.bins) / self.taps for each in self._blocks])) if self._blocks else 0.0


def _rows(rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    stats = rng.lognormal(0, 1, (rows, len(STATS)))
    for name in ("min", "max"):  # which are values of the tensor itself, in single precision
        stats[:, STAT_COLUMN[name]] = stats[:, STAT_COLUMN[name]].astype(np.float32)
    stats[:, [STAT_COLUMN[name] for name in ("nan", "inf")]] = 0
    stats[:, STAT_COLUMN["zero"]] = rng.integers(0, VALUES // 2, rows)
    stats[:, [STAT_COLUMN[name] for name in ("count", "sketched")]] = VALUES
    stats[:, STAT_COLUMN["parts"]] = 1
    stats[:, STAT_COLUMN["ratio"]] = np.nan
    return stats


def _sketches(rng: np.random.Generator, taps: int) -> SketchBlock:
    """Return histograms of which each is about as wide in every step, as those of a layer are."""
    kinds = [sketch_of(rng.normal(0, scale, SAMPLED)) for scale in np.geomspace(1e-6, 10, min(taps, SKETCHES))]
    return block_of([kinds[tap % len(kinds)] for tap in range(taps)])


class Ranks:
    """The ranks of a demand, in jobs of 50, sent to collectors in turn until they are stopped."""

    def __init__(self, demand: Demand, urls: Sequence[str]) -> None:
        self.demand, self.sent = demand, Sent()
        self.frames = Frames(demand.taps, demand.bins)
        self._urls = [urllib.parse.urlsplit(url).netloc for url in urls]
        self._names = tuple(
            Tap(f"layers.{number // demand.kinds}", kind)
            for number, kind in zip(range(demand.taps), _kinds(demand.kinds), strict=False)
        )
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Send until `stop`, then end the runs."""
        jobs = [secrets.token_hex(4) for _ in range(math.ceil(self.demand.ranks / 50))]
        await asyncio.gather(*(self._rank(number, jobs[number // 50]) for number in range(self.demand.ranks)))

    def stop(self) -> None:
        """End all runs."""
        self._stopping.set()

    async def _rank(self, number: int, job: str) -> None:
        place = wire.Place(job=job, rank=number % 50, world=min(50, self.demand.ranks))
        info = wire.RunInfo(
            id=f"{job}-{number}", key=secrets.token_hex(16), name=f"{job} {number}", started_s=time.time(), place=place
        )
        every_s = 1 / self.demand.steps_per_s
        due = time.perf_counter() + random.random() * every_s
        try:
            connection = await _Connection.open(self._urls[number % len(self._urls)])
            step = 0
            while not await self._wait_until(due):
                batch = wire.Batch(
                    run=info,
                    taps_from=0 if step == 0 else self.demand.taps,
                    taps=self._names if step == 0 else (),
                    items=(self.frames.make(step),),
                )
                await self._post(connection, wire.encode(batch))
                step, due = step + 1, due + every_s
                self.sent.runs[number_of_run(info.id)] = step
            end = wire.EndItem(step, step - 1)
            await connection.post(wire.encode(wire.Batch(run=info, taps_from=self.demand.taps, items=(end,))))
            connection.close()
        except (OSError, asyncio.IncompleteReadError, RuntimeError) as error:
            self.sent.failures.append(f"{type(error).__name__}: {error}")

    async def _post(self, connection: _Connection, body: bytes) -> None:
        began = time.perf_counter()
        await connection.post(body)
        self.sent.acknowledged_s.append(time.perf_counter() - began)
        self.sent.frames += 1
        self.sent.nbytes += len(body)

    async def _wait_until(self, due: float) -> bool:
        """Return whether the ranks were stopped before."""
        try:
            await asyncio.wait_for(self._stopping.wait(), max(0.0, due - time.perf_counter()))
        except TimeoutError:
            return False
        return True


def _kinds(count: int) -> Any:
    while True:
        yield from ("output", "output_grad", "param_grad", "param", "update")[:count]


@dataclass(slots=True)
class _Connection:
    """One connection, with one request at a time."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: str

    @classmethod
    async def open(cls, address: str) -> _Connection:
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /api/v1/ingest HTTP/1.1\r\nHost: {address}\r\nContent-Type: {wire.CONTENT_TYPE}\r\n"
        return cls(reader, writer, head + "".join(f"{name}: {value}\r\n" for name, value in traffic.AUTHORIZED.items()))

    async def post(self, body: bytes) -> None:
        """Send a body and wait for the answer. Raises RuntimeError if it isn't 200."""
        self.writer.write(f"{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await self.writer.drain()
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next((line for line in head.split("\r\n") if line.startswith("content-length:")), ":0")
        answer = await self.reader.readexactly(int(length.partition(":")[2]))
        if " 200 " not in head.partition("\r\n")[0]:
            raise RuntimeError(f"{head.partition(chr(13))[0]}: {answer[:200]!r}")

    def close(self) -> None:
        self.writer.close()
