"""A planning model of many ranks: measured on this machine, then compared with 500 ranks, and only then used.

python -m benchmarks.plan                # calibrate, validate, and print sizes if the model holds: about 20 minutes
python -m benchmarks.plan --quick        # small numbers: checks that it works
python -m benchmarks.plan --model FILE   # keep the measured model in a file, or use the one that is there
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil

from benchmarks import traffic
from benchmarks.demand import (
    BINS,
    Costs,
    Demand,
    Layout,
    Model,
    Sizes,
    Sum,
    Work,
    doublings_of,
    fit,
    frame_bytes,
    least_memory_bytes,
    period_s,
    waiting,
    waits_s,
    work_of,
)
from benchmarks.ranks import Ranks
from hookcore_app.clickhouse.schema import ITEMS, LEVELS, ROLLUPS, ROWS, SKETCH_LEVELS, SKETCH_ROLLUPS, SKETCHES
from hookcore_app.collector.sending import LOOK_S
from tests.clickhouse.nodes import DATABASE, Cluster, Node, running

TOLERANCE: Final = 0.20
LOOKS_S: Final = 0.5  # between two looks at the spools
OF_COLLECTOR: Final = ("frames", "rows", "rollups", "sketches", "sketch_rollups", "pieces", "runs")
OF_DATABASE: Final = ("rows", "rollups", "sketches", "segments", "runs")
OF_MEMORY: Final = ("frames", "rows", "sketches", "runs")
TABLES: Final = {"row": ROWS, "rollup": ROLLUPS, "sketch": SKETCHES, "sketch_rollup": SKETCH_ROLLUPS, "item": ITEMS}
ROLLED: Final = {"rollup": LEVELS, "sketch_rollup": SKETCH_LEVELS}
PATIENCE_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Size:
    """The size of every part."""

    seconds: float  # of each measurement
    shrink: int  # ranks are divided by this


FULL: Final = Size(60.0, 1)
QUICK: Final = Size(5.0, 10)
# Few and many ranks, narrow and wide models, with and without histograms, and more and fewer segments.
CALIBRATED: Final = (
    (Demand(50, 5, 2, 1.0, 0.0), 5.0),
    (Demand(4, 500, 2, 0.5, 0.0), 5.0),
    (Demand(4, 250, 2, 2.0, 0.0), 5.0),
    (Demand(50, 20, 2, 0.25, 0.0), 2.0),
    (Demand(4, 100, 2, 1.0), 5.0),
    (Demand(60, 5, 2, 0.2), 5.0),
    (Demand(150, 5, 2, 0.1, 0.0), 5.0),
    (Demand(100, 5, 2, 0.1), 10.0),
)
REMEMBERED: Final = (
    Demand(100, 5, 2, 1.0, 0.0),
    Demand(8, 250, 2, 2.0, 0.0),
    Demand(8, 50, 2, 2.0),
    Demand(50, 5, 2, 1.0),
    Demand(8, 250, 2, 0.5, 0.0),
)
# Comes first to new servers and isn't measured: Java compiles what ZooKeeper runs often, which takes long.
WARMING: Final = Demand(100, 5, 2, 1.0)
VALIDATED: Final = Demand(500, 5, 2, 0.1), Layout(2, 2, insert_s=10.0)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured while ranks sent."""

    seconds: float
    collector_cores: float
    database_cores: float
    keeper_cores: float
    frames_per_s: float
    rows_per_s: float
    bytes_per_s: float
    segments_per_s: float
    insert_s: float  # of one segment
    waiting: float  # frames in the spools
    acknowledged_s: float
    lost: int
    doubled: int
    tables: dict[str, tuple[int, int]]  # rows and bytes of one replica of each shard, all merged
    disk_bytes: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrate, validate, and print sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers")
    parser.add_argument("--model", type=Path, help="file of the measured model")
    chosen = parser.parse_args(arguments)
    size = QUICK if chosen.quick else FULL
    if chosen.model and chosen.model.exists():
        model = msgspec.json.decode(chosen.model.read_bytes(), type=Model)
    else:
        model = calibrate(size)
        if chosen.model:
            chosen.model.write_bytes(msgspec.json.encode(model))
    if validate(model, size):
        print_sizes(model)
    else:
        print("\nthe model doesn't hold within 20 %, so it is not used")


# -- calibration -------------------------------------------------------------------------------------------------------


def calibrate(size: Size) -> Model:
    """Measure the costs with one collector before one shard."""
    layout = Layout(1, 1)
    demands = [(replace(demand, ranks=max(2, demand.ranks // size.shrink)), s) for demand, s in CALIBRATED]
    layouts = [replace(layout, insert_s=insert_s) for _, insert_s in demands]
    with _warm(layout, size) as nodes:
        idle = observe(nodes, Demand(0, 1, 1, 1.0), layout, size.seconds)
        _say_idle(idle)
        seen = []
        for (demand, _), each in zip(demands, layouts, strict=True):
            seen.append(observe(nodes, demand, each, size.seconds))
            _say(demand, each, seen[-1])
    works = [_work_seen(demand, each) for (demand, _), each in zip(demands, seen, strict=True)]
    servers = layout.shards * layout.replicas
    collector = fit(works, [each.collector_cores for each in seen], OF_COLLECTOR, idle.collector_cores, 1)
    database = fit(works, [each.database_cores for each in seen], OF_DATABASE, idle.database_cores / servers, servers)
    keeper = fit(works, [each.keeper_cores for each in seen], ("segments",), idle.keeper_cores / servers, servers)
    model = Model(collector, database, keeper, _sizes(demands, seen), calibrate_memory(size), layout.replicas)
    print("\n  costs: " + msgspec.json.format(msgspec.json.encode(model), indent=1).decode(), flush=True)
    return model


def _work_seen(demand: Demand, seen: Seen) -> Work:
    """Return the work at the rate of segments that was measured."""
    layout = Layout(1, 1)
    late_s = period_s(demand, layout) - layout.insert_s
    return work_of(demand, replace(layout, insert_s=1 / seen.segments_per_s - late_s))


def _sizes(demands: Sequence[tuple[Demand, float]], seen: Sequence[Seen]) -> Sizes:
    fixed = [
        each.bytes_per_s / each.frames_per_s - frame_bytes(demand, 0.0)
        for (demand, _), each in zip(demands, seen, strict=True)
    ]
    stored = [(demand, each) for (demand, _), each in zip(demands, seen, strict=True) if each.tables]
    found: dict[str, Any] = {}
    for name in TABLES:
        sizes = [each.tables[name] for _, each in stored]
        if levels := ROLLED.get(name):
            steps = [each.tables["item"][0] / demand.ranks for demand, each in stored]
            found[name] = Sum.fit(
                [(doublings_of(count, levels), *size) for count, size in zip(steps, sizes, strict=True)]
            )
        else:
            rows, nbytes = np.sum(sizes, axis=0)
            found[name] = float(nbytes / max(1, rows))
    return Sizes(frame=float(np.median(fixed)), **found)


def calibrate_memory(size: Size) -> Costs:
    """Measure the resident memory of a server for the frames that it keeps."""
    found = []
    for demand in REMEMBERED:
        demand = replace(demand, ranks=max(2, demand.ranks // size.shrink))
        empty, total, frames = remember(demand, size.seconds / 2)
        work, seconds = work_of(demand, Layout(1, 1)), frames / demand.frames_per_s
        totals = {name: getattr(work, name) * seconds for name in OF_MEMORY if name != "runs"}
        found.append((replace(work, **totals), total, empty))
        print(f"  {demand}: a server takes {total / 1e6:.0f} MB, and {empty / 1e6:.0f} MB when it is empty", flush=True)
    empty = float(np.mean([each for *_, each in found]))
    return fit([work for work, *_ in found], [total for _, total, _ in found], OF_MEMORY, empty, 1)


def remember(demand: Demand, seconds: float) -> tuple[float, float, int]:
    """Let ranks send to a server; return its resident bytes before and after, and the frames that it has."""
    with traffic.server_process("--memory", "12GB", "--max-runs", "1000", "--keep", "none") as server:
        empty = server.rss_mib * 2**20
        ranks = Ranks(demand, [server.url])

        async def send() -> None:
            sending = asyncio.create_task(ranks.run())
            await asyncio.sleep(seconds)
            ranks.stop()
            await sending

        asyncio.run(send())
        if ranks.sent.failures:
            raise RuntimeError(f"{len(ranks.sent.failures)} ranks failed: {ranks.sent.failures[0]}")
        return empty, server.rss_mib * 2**20, ranks.sent.frames


def _say_idle(seen: Seen) -> None:
    print(
        f"\n  idle: a collector takes {seen.collector_cores:.4f} of a core, two servers of ClickHouse "
        f"{seen.database_cores:.4f}, ZooKeeper {seen.keeper_cores:.4f}",
        flush=True,
    )


def _say(demand: Demand, layout: Layout, seen: Seen) -> None:
    print(
        f"  {demand.ranks:4} ranks x {demand.layers} layers x {demand.kinds} kinds x {demand.steps_per_s:g}/s, "
        f"{demand.bins:g} bins, --insert {layout.insert_s:g}: collectors {seen.collector_cores:.3f} cores, ClickHouse "
        f"{seen.database_cores:.3f}, ZooKeeper {seen.keeper_cores:.3f}, {seen.segments_per_s:.2f} segments/s "
        f"of {seen.insert_s * 1000:.0f} ms, {seen.waiting:.0f} frames wait, acknowledged in "
        f"{seen.acknowledged_s * 1000:.1f} ms, {seen.lost} lost, {seen.doubled} doubled",
        flush=True,
    )


# -- validation --------------------------------------------------------------------------------------------------------


def validate(model: Model, size: Size) -> bool:
    """Compare the model with ranks that send to two collectors before two shards with two replicas each."""
    demand, layout = VALIDATED
    demand = replace(demand, ranks=max(20, demand.ranks // size.shrink))
    with _warm(layout, size) as nodes:
        seen = observe(nodes, demand, layout, size.seconds)
    print("\nvalidation: what, model, measured, difference")
    _say(demand, layout, seen)
    layout = model.settled(demand, layout)
    work, insert_s = work_of(demand, layout), model.insert_s(demand, layout)
    frames, _ = seen.tables["item"]
    pairs = {
        "frames per second": (demand.frames_per_s, seen.frames_per_s),
        "rows per second": (demand.frames_per_s * demand.taps, seen.rows_per_s),
        "bytes per second on the wire": (
            demand.frames_per_s * frame_bytes(demand, model.sizes.frame),
            seen.bytes_per_s,
        ),
        "segments per second": (work.segments, seen.segments_per_s),
        "cores of both collectors": (model.collector_cores(demand, layout), seen.collector_cores),
        "cores of ClickHouse and ZooKeeper": (
            model.database_cores(demand, layout) + model.keeper.cores(work, layout.shards * layout.replicas),
            seen.database_cores + seen.keeper_cores,
        ),
        "frames in the spools": (waiting(demand, waits_s(demand, layout, insert_s)), seen.waiting),
        "bytes on one replica's disk for a frame": (
            model.sizes.disk_bytes(demand, frames / demand.frames_per_s) / frames,
            seen.disk_bytes / frames,
        ),
    }
    _, remembered, kept = remember(demand, size.seconds)
    pairs["megabytes of a server that has the same"] = (
        model.memory_bytes(demand, kept / demand.frames_per_s) / 1e6,
        remembered / 1e6,
    )
    steps = frames / demand.ranks
    for name, table in seen.tables.items():
        print(
            f"  of this, {name}: {table[0]:,} rows of {table[1] / max(1, table[0]):.0f} bytes, {steps:.1f} steps a run"
        )
    holds = True
    for name, (expected, measured) in pairs.items():
        error = expected / measured - 1
        holds &= abs(error) <= TOLERANCE
        print(f"  {name:45} {expected:14,.4g} {measured:14,.4g}   {error:+7.1%}", flush=True)
    traffic.judge("frames lost or doubled", seen.lost + seen.doubled, 0, "")
    return holds and not seen.lost + seen.doubled


# -- measuring ---------------------------------------------------------------------------------------------------------


def observe(nodes: Cluster, demand: Demand, layout: Layout, seconds: float) -> Seen:
    """Let ranks send to collectors before ClickHouse, for so many seconds in whole periods of segments."""
    for node in nodes.nodes:
        node.ask(f"DROP DATABASE IF EXISTS {DATABASE}", "default")
    with _collectors(nodes, layout) as collectors:
        return asyncio.run(_observe(demand, layout, seconds, nodes, collectors))


@contextmanager
def _warm(layout: Layout, size: Size) -> Iterator[Cluster]:
    """Run ClickHouse that has worked for a while."""
    with running(layout.shards, layout.replicas) as nodes:
        observe(nodes, replace(WARMING, ranks=WARMING.ranks // size.shrink), layout, size.seconds / 2)
        yield nodes


@contextmanager
def _collectors(nodes: Cluster, layout: Layout) -> Iterator[list[traffic.ServerProcess]]:
    with ExitStack() as stack:
        started = []
        for _ in range(layout.collectors):
            spool = stack.enter_context(tempfile.TemporaryDirectory())
            flags = "--to", nodes.url, "--spool", spool, "--insert", f"{layout.insert_s:g}"
            started.append(stack.enter_context(traffic.server_process(*flags, name="collect")))
        yield started


async def _observe(
    demand: Demand, layout: Layout, seconds: float, nodes: Cluster, collectors: list[traffic.ServerProcess]
) -> Seen:
    period = period_s(demand, layout) if demand.ranks else layout.insert_s
    ranks = Ranks(demand, [each.url for each in collectors])
    sending = asyncio.create_task(ranks.run())
    await asyncio.sleep(period + 2)  # all ranks are there, and their names are inserted
    pairs = layout.collectors * layout.shards
    if demand.ranks:
        await _segments(collectors, pairs)
    begin, waits = _Counts.now(nodes, collectors, ranks), []
    if demand.ranks:
        waits = await _segments(collectors, pairs * max(1, round(seconds / period)))
    else:
        await asyncio.sleep(seconds)
    counts = _Counts.now(nodes, collectors, ranks).since(begin)
    acknowledged = ranks.sent.acknowledged_s[-int(counts.frames) :] if counts.frames else [0.0]
    ranks.stop()
    await sending
    if ranks.sent.failures:
        raise RuntimeError(f"{len(ranks.sent.failures)} ranks failed: {ranks.sent.failures[0]}")
    await asyncio.to_thread(_wait_until_empty, collectors)
    lost, doubled = _check(nodes, ranks.sent.runs)
    tables, disk_bytes = await asyncio.to_thread(_merged, nodes) if demand.bins and demand.ranks else ({}, 0)
    seconds = counts.at
    return Seen(
        seconds,
        counts.collector_s / seconds,
        counts.database_s / seconds,
        counts.keeper_s / seconds,
        counts.frames / seconds,
        counts.rows / seconds,
        counts.nbytes / seconds,
        counts.segments / seconds,
        counts.insert_s / max(1.0, counts.segments),
        float(np.mean(waits)) if waits else 0.0,
        float(np.mean(acknowledged)),
        lost,
        doubled,
        tables,
        disk_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counters at one moment, or their differences."""

    at: float
    collector_s: float
    database_s: float
    keeper_s: float
    frames: float
    nbytes: float
    rows: float
    segments: float
    insert_s: float

    @classmethod
    def now(cls, nodes: Cluster, collectors: Sequence[traffic.ServerProcess], ranks: Ranks) -> _Counts:
        processes = [psutil.Process(each.process.pid) for each in nodes.nodes if each.process]
        keeper = nodes.zookeeper.process if nodes.zookeeper else None
        return cls(
            time.monotonic(),
            sum(each.cpu_s for each in collectors),
            sum(map(traffic.cpu_s, processes)),
            traffic.cpu_s(psutil.Process(keeper.pid)) if keeper else 0.0,
            ranks.sent.frames,
            ranks.sent.nbytes,
            _sum_of(collectors, "hookcore_inserted_rows_total"),
            _sum_of(collectors, "hookcore_inserted_segments_total"),
            _sum_of(collectors, "hookcore_insert_seconds_total"),
        )

    def since(self, begin: _Counts) -> _Counts:
        """Return the differences."""
        return _Counts(*(getattr(self, name) - getattr(begin, name) for name in self.__dataclass_fields__))


async def _segments(collectors: Sequence[traffic.ServerProcess], count: int) -> list[float]:
    """Wait for so many more segments, so that whole periods are measured; return how many frames waited meanwhile."""
    waits: list[float] = []
    goal = count + await asyncio.to_thread(_sum_of, collectors, "hookcore_inserted_segments_total")
    while await asyncio.to_thread(_sum_of, collectors, "hookcore_inserted_segments_total") < goal:
        waits.append(await asyncio.to_thread(_sum_of, collectors, "hookcore_waiting_items"))
        await asyncio.sleep(LOOKS_S)
    return waits


def _sum_of(collectors: Sequence[traffic.ServerProcess], name: str) -> float:
    return sum(traffic.metric(each, name) for each in collectors)


def _wait_until_empty(collectors: Sequence[traffic.ServerProcess]) -> None:
    end = time.monotonic() + PATIENCE_S
    while _sum_of(collectors, "hookcore_waiting_items"):
        if time.monotonic() > end:
            raise RuntimeError(f"not everything was inserted after {PATIENCE_S:g} s")
        time.sleep(LOOK_S)


def _check(nodes: Cluster, runs: dict[int, int]) -> tuple[int, int]:
    """Return how many frames are missing, and how many are there twice."""
    lost = doubled = 0
    for shard in nodes.shards if runs else ():
        for each in shard:
            each.ask("SYSTEM SYNC REPLICA items")
        lines = (
            shard[0].ask("SELECT run, count(), uniqExact(number) FROM items WHERE kind = 0 GROUP BY run").split("\n")
        )
        for line in filter(None, lines):
            run, stored, different = map(int, line.split())
            if run in runs:
                lost += runs.pop(run) - different
                doubled += stored - different
    return lost + sum(runs.values()), doubled


def _merged(nodes: Cluster) -> tuple[dict[str, tuple[int, int]], int]:
    """Merge the tables of one replica of each shard, and return their rows and bytes, and the bytes of all tables."""
    found, total = {}, 0
    for name, table in TABLES.items():
        pairs = [_merge(shard[0], table.name) for shard in nodes.shards]
        found[name] = sum(rows for rows, _ in pairs), sum(nbytes for _, nbytes in pairs)
        total += found[name][1]
    return found, total


def _merge(node: Node, table: str) -> tuple[int, int]:
    """Return the rows and bytes of a table, once it has one part for each day."""
    of_table = f"FROM system.parts WHERE active AND database = '{DATABASE}' AND table = '{table}'"
    while node.number(f"SELECT count() > uniqExact(partition) {of_table}"):
        with suppress(RuntimeError):  # ClickHouse 18 has no good answer if it has just merged the parts by itself
            node.ask(f"OPTIMIZE TABLE {table} FINAL")
    rows, nbytes = node.ask(f"SELECT sum(rows), sum(bytes_on_disk) {of_table}").split()
    return int(rows), int(nbytes)


# -- sizes -------------------------------------------------------------------------------------------------------------


def print_sizes(model: Model) -> None:
    """Print what a few installations need."""
    print(
        "\n  ranks x layers, steps/s | rows/s | Mbit/s | collectors | shards | GB a day and replica | frames wait "
        "| a server's GB"
    )
    rows = [(ranks, layers, rate) for rate in (0.1, 1.0) for ranks in (8, 64, 256, 1024) for layers in (100, 500, 2000)]
    for ranks, layers, rate in [*rows, (10_000, 100, 0.1)]:
        demand = Demand(ranks, layers, 3, rate, BINS)
        layout = model.settled(demand, model.size(demand, cores=8))
        wait_s = waits_s(demand, layout, model.insert_s(demand, layout))
        print(
            f"  {ranks:6,} x {layers:5,}, {rate:g} | {demand.rows_per_s:12,.0f} | "
            f"{8e-6 * demand.frames_per_s * frame_bytes(demand, model.sizes.frame):10,.0f} | {layout.collectors:4} | "
            f"{layout.shards:4} | {1e-9 * model.sizes.disk_bytes(demand, 86_400):10,.0f} | "
            f"{waiting(demand, wait_s):10,.0f} | {1e-9 * least_memory_bytes(demand, jobs=1):8,.1f}"
        )


if __name__ == "__main__":
    main()
