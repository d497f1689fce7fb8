"""Long runs in ClickHouse, and how long their questions take: of the store's past alone, and of a server over it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import psutil

import hookcore
from benchmarks import traffic
from hookcore.records import STAT_COLUMN, STATS, Tap, wire
from hookcore.store import StepRange
from hookcore.store.past import Wanted, rows_together
from hookcore.store.rows import Columns
from hookcore_app.clickhouse.adder import Adder
from hookcore_app.clickhouse.attempts import Attempt, RankRun
from hookcore_app.clickhouse.client import ClusterAddress, Shard
from hookcore_app.clickhouse.rankspast import RanksPast
from hookcore_app.clickhouse.runpast import RunPast
from hookcore_app.clickhouse.schema import (
    ITEMS,
    LANES,
    ROLLUPS,
    ROWS,
    RUNS,
    SKETCH_ROLLUPS,
    SKETCHES,
    connect,
    day_of,
    number_of_run,
)
from hookcore_app.clickhouse.writing import Names, Piece, Sign, blocks_of, names_block, signs_block, without_key
from tests.clickhouse.nodes import running

SERIES_MS: Final = 50.0
HEATMAP_MS: Final = 500.0
POINTS: Final = 1000
COLUMNS: Final = 500
SEGMENT_ROWS: Final = 200_000
ASKED: Final = ("rms", "mean", "std", "max", "norm")
OPENED_S: Final = 300.0  # in which a run is read at last, also on a busy machine
STARTED_S: Final = time.time() - 86_400.0
JOB: Final = "long"
JOINT: Final = f"ranks-{JOB}"
_SPAN: Final = None, None


@dataclass(frozen=True, slots=True)
class History:
    """How much there is, and how often it is asked for."""

    ranks: int
    steps: int  # of each rank, with one tap and one scalar
    taps: int  # of the wide run
    wide_steps: int
    times: int


@dataclass(frozen=True, slots=True)
class Wide:
    """A training with many tensors, whose ranks are added up."""

    ranks: int
    taps: int
    steps: int
    bins: int  # of each histogram; 0 for none


def add_up_wide_runs(sizes: Sequence[Wide]) -> None:
    """Add up all ranks as a server does, without any rest, and ask for all tensors."""
    for wide in sizes:
        with running() as nodes:
            cluster = connect(ClusterAddress.of(nodes.url), hookcore.__version__)
            shard = cluster.shards[0]
            shard.prepare()
            places = [wire.Place(job=JOB, rank=rank, world=wide.ranks) for rank in range(wide.ranks)]
            infos = [_info(f"rank-{place.rank}", place) for place in places]
            _insert(shard, infos[0], wide.taps, wide.steps, wide.bins)
            for info in infos[1:]:
                _copy(shard, infos[0], info)
            while shard.read("SELECT count() AS count FROM system.merges").one("count"):
                time.sleep(0.5)
            server = nodes.nodes[0].process
            assert server is not None
            _add_up_wide(shard, psutil.Process(server.pid), wide, [each.id for each in infos])
            cluster.close()


def _add_up_wide(shard: Shard, database: psutil.Process, wide: Wide, ranks: Sequence[str]) -> None:
    rows = wide.ranks * wide.taps * wide.steps
    what = f"rows, each with a histogram of {wide.bins} bins" if wide.bins else "rows"
    print(f"\n{rows:,} {what}: {wide.ranks} ranks, {wide.taps} tensors, {wide.steps:,} steps", flush=True)
    numbers = {Tap(f"layers.{number}", "output"): number for number in range(wide.taps)}
    past = _past_of(shard, ranks, numbers)
    added, began = Adder(past._attempts, past, settled_s=0.0), time.perf_counter()
    cpu, of_database = time.process_time(), traffic.cpu_s(database)
    while added.advance():
        pass
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    of_database = traffic.cpu_s(database) - of_database
    print(
        f"  added up in {took:.1f} s, processor time: {cpu:.1f} s here, {of_database:.1f} s of ClickHouse", flush=True
    )
    past, taps, last = _past_of(shard, ranks, numbers), [*range(wide.taps)], wide.steps - 1
    past.stored_until()

    def heatmap(turn: int) -> None:
        found = past.cells(ASKED[turn % len(ASKED)], taps, Columns(0, last, 100), (None, None))
        assert found is not None, past.trouble
        assert found.present.sum() == wide.taps * wide.steps

    def histograms(turn: int) -> None:
        found = past.all_sketches(wide.taps, (None, None))
        assert found is not None, past.trouble
        assert sum(each.steps for each in found) == wide.steps

    _time(f"heatmap of {wide.taps} x 100", heatmap, len(ASKED))
    if wide.bins:
        _time(f"histograms of {wide.taps} tensors over all steps", histograms, len(ASKED))


def _past_of(shard: Shard, ranks: Sequence[str], numbers: Mapping[Tap, int]) -> RanksPast:
    """Return the past of all ranks of a training that is over."""
    of_ranks = [
        RankRun(shard, rank, place, lambda: numbers, is_over=True, is_settled=True) for place, rank in enumerate(ranks)
    ]
    attempts = [Attempt(0, None, len(ranks), of_ranks)]
    return RanksPast(lambda: attempts, lambda: [*numbers])


def ask_long_runs(history: History) -> None:
    """Insert runs, then ask for a tap of all ranks, and for a heatmap."""
    print(
        f"\n{history.ranks} ranks with {history.steps:,} steps, and a run of {history.taps:,} taps with "
        f"{history.wide_steps:,} steps in ClickHouse",
        flush=True,
    )
    with running() as nodes:
        cluster = connect(ClusterAddress.of(nodes.url), hookcore.__version__)
        shard, began = cluster.shards[0], time.perf_counter()
        shard.prepare()
        ranks = [
            _info(f"rank-{rank}", wire.Place(job=JOB, rank=rank, world=history.ranks)) for rank in range(history.ranks)
        ]
        wide = _info("wide", None)
        for info, taps, steps in ((ranks[0], 1, history.steps), (wide, history.taps, history.wide_steps)):
            _insert(shard, info, taps, steps)
        for info in ranks[1:]:
            _copy(shard, ranks[0], info)
        for info in ranks:
            _announce(shard, info, 1, history.steps)
        _announce(shard, wide, history.taps, history.wide_steps)
        while shard.read("SELECT count() AS count FROM system.merges").one("count"):
            time.sleep(0.5)
        rows = shard.read("SELECT count() AS count FROM rows").one("count")
        print(f"  {rows:,} rows, inserted and copied in {time.perf_counter() - began:.0f} s", flush=True)
        _ask_past(shard, [each.id for each in ranks], history)
        _ask_sums(shard, [each.id for each in ranks], history)
        with traffic.server_process("--store", nodes.url, "--memory", "2GB") as server:
            _ask_server(server, [each.id for each in ranks], history)
        cluster.close()


# -- filling -----------------------------------------------------------------------------------------------------------


def _info(run: str, place: wire.Place | None) -> wire.RunInfo:
    return wire.RunInfo(id=run, key="key of the benchmark", name=run, started_s=STARTED_S, place=place)


def _insert(shard: Shard, info: wire.RunInfo, taps: int, steps: int, bins: int = 0) -> None:
    """Insert a run as a collector does."""
    random = np.random.default_rng(taps)
    at_once = max(1, (SEGMENT_ROWS // 10 if bins else SEGMENT_ROWS) // (taps + 1))
    for segment, first in enumerate(range(0, steps, at_once)):
        items = list(_frames(random, range(first, min(steps, first + at_once)), taps, bins))
        piece = Piece(number_of_run(info.id), day_of(STARTED_S), 0, 0, taps, first - 1, items)
        for table, block in blocks_of(f"spool of {info.id}", segment, [piece]).items():
            shard.insert(table.name, block)


def _frames(random: np.random.Generator, steps: range, taps: int, bins: int) -> Iterator[wire.FrameItem]:
    stats = random.lognormal(0, 1, (len(steps), taps, len(STATS)))
    stats[:, :, [STAT_COLUMN[name] for name in ("nan", "inf", "zero")]] = 0
    stats[:, :, STAT_COLUMN["count"]] = traffic.COUNT
    numbers, start = np.arange(taps, dtype="<u4").tobytes(), (np.arange(taps + 1, dtype="<u4") * bins).tobytes()
    filled = np.tile(np.arange(2000, 2000 + bins, dtype="<u2"), taps).tobytes()
    for step, values in zip(steps, stats, strict=True):
        loss = {"loss": float(values[0, STAT_COLUMN["mean"]])}
        about, counts = (step, step, STARTED_S + step / 100), random.integers(1, 60, taps * bins).astype("<u4")
        yield wire.FrameItem(*about, numbers, values.tobytes(), start, filled, counts.tobytes(), (), loss)


def _copy(shard: Shard, one: wire.RunInfo, other: wire.RunInfo) -> None:
    """Copy a run inside of ClickHouse, which is faster."""
    assert other.place is not None
    rank = other.place.rank
    changed = {
        "run": f"toUInt64({number_of_run(other.id)})",
        "rank": f"toUInt32({rank})",
        "owner": f"toInt32({rank})",  # each rank has values of its own
    }
    for table in (ROWS, ROLLUPS, SKETCHES, SKETCH_ROLLUPS, ITEMS):
        columns = ", ".join(changed.get(name, f"`{name}`") for name in table.columns)
        where = f"run = {number_of_run(one.id)}"
        shard.do(f"INSERT INTO {table.name} SELECT {columns} FROM {table.name} WHERE {where}")


def _announce(shard: Shard, info: wire.RunInfo, taps: int, steps: int) -> None:
    """List a run that has ended, with the names of its taps."""
    run, day, end = number_of_run(info.id), day_of(STARTED_S), wire.EndItem(steps, steps - 1)
    for table, block in blocks_of(f"end of {info.id}", 0, [Piece(run, day, 0, 0, taps, steps - 1, [end])]).items():
        shard.insert(table.name, block)
    names = {number: Tap(f"layers.{number}", "output") for number in range(taps)}
    shard.insert(LANES.name, names_block([Names(run, day, names, ["loss"])]))
    sign = Sign(
        without_key(info), wire.DeliveryCounters(), "spool", 0.0, steps, steps, -1, True, end, 0, steps - 1, steps
    )
    shard.insert(RUNS.name, signs_block([(run, day, 1, sign)]))


# -- asking ------------------------------------------------------------------------------------------------------------


def _ask_past(shard: Shard, ranks: Sequence[str], history: History) -> None:
    whole = StepRange(0, history.steps - 1, history.steps, history.steps)
    pasts = [RunPast(shard, rank, lambda: whole) for rank in ranks]
    wide_steps = StepRange(0, history.wide_steps - 1, history.wide_steps, history.wide_steps)
    wide = RunPast(shard, "wide", lambda: wide_steps)
    taps, columns = list(range(history.taps)), Columns(0, history.wide_steps - 1, COLUMNS)
    for past in (*pasts, wide):
        past.stored_until()

    def series(turn: int) -> None:
        wanted = [Wanted(past, ASKED[turn % len(ASKED)], [0], _SPAN, POINTS) for past in pasts]
        for found in rows_together(wanted):
            assert found is not None
            assert int(found.present.sum()) == history.steps

    def heatmap(turn: int) -> None:
        found = wide.cells(ASKED[turn % len(ASKED)], taps, columns, _SPAN)
        assert found is not None
        assert np.isfinite(found.low).all()

    one = _time(f"series of {POINTS:,} points, {len(ranks)} ranks", series, history.times)
    traffic.judge("series of all ranks from ClickHouse, p50", one["p50"], SERIES_MS, "ms")
    other = _time(f"heatmap of {history.taps:,} x {COLUMNS}", heatmap, history.times)
    traffic.judge("heatmap from ClickHouse, p50", other["p50"], HEATMAP_MS, "ms")


def _ask_sums(shard: Shard, ranks: Sequence[str], history: History) -> None:
    """Let a server add up all ranks, then ask for what they have together."""
    past = _past_of(shard, ranks, {Tap("layers.0", "output"): 0})
    added, began, cpu = Adder(past._attempts, past, settled_s=0.0), time.perf_counter(), time.process_time()
    parts = 0
    while added.advance():
        parts += 1
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    past.stored_until()
    rows = shard.read("SELECT count() AS count FROM rank_rollups").one("count")
    print(
        f"  all ranks added up in {took:.0f} s, {cpu:.0f} s of processor time here, in {parts} parts: {rows:,} rows",
        flush=True,
    )

    def series(turn: int) -> None:
        found = past.rows(ASKED[turn % len(ASKED)], [0], _SPAN, POINTS)  # up to now, so no answer is remembered
        assert found is not None, past.trouble
        assert int(found.present.sum()) == history.steps

    one = _time(f"series of {POINTS:,} points of all {len(ranks)} ranks together", series, history.times)
    traffic.judge("series of the sum of all ranks, p50", one["p50"], SERIES_MS, "ms")


def _ask_server(server: traffic.ServerProcess, ranks: Sequence[str], history: History) -> None:
    """Ask a server that has the newest part in memory: the first question opens the run."""

    def opened(path: str) -> float:
        began = time.perf_counter()
        server.get(path, OPENED_S)
        return time.perf_counter() - began

    firsts = [opened(f"/api/v1/series?run={rank}&tap=0&stat=rms&points=1") for rank in ranks]
    wide, joint = opened("/runs/wide"), opened(f"/api/v1/series?run={JOINT}&tap=0&stat=rms&points=1")
    took = f"{max(firsts):.1f} s at most for a rank, {wide:.1f} s for the wide run, {joint:.1f} s for that of all ranks"
    print(f"  opened in {took}", flush=True)

    def series(turn: int) -> None:
        stat = ASKED[turn % len(ASKED)]
        found = json.loads(server.get(f"/api/v1/ranks/map?run={JOINT}&tap=0&stat={stat}&columns={COLUMNS}"))
        assert len(found["values"]) == len(ranks)
        assert all(None not in values for values in found["values"])

    def heatmap(turn: int) -> None:
        stat = ASKED[turn % len(ASKED)]
        server.get(f"/api/v1/heatmap?run=wide&kind=output&stat={stat}&columns={COLUMNS}&rows={history.taps}")

    def sums(turn: int) -> None:
        stat = ASKED[turn % len(ASKED)]
        found = json.loads(server.get(f"/api/v1/series?run={JOINT}&tap=0&stat={stat}&points={POINTS}"))
        assert sum(found["series"][0]["present"]) == history.steps

    summed = []
    for turn in range(len(ASKED)):
        began = time.perf_counter()
        sums(turn)
        summed.append(time.perf_counter() - began)
    traffic.describe("series of all ranks together by REST, asked once", summed)
    _time("the same again", sums, history.times)
    _time("map of a tensor by rank and step by REST", series, history.times)
    _time("the same heatmap by REST", heatmap, history.times)
    _time("page Overview of a rank", lambda _: server.get(f"/runs/{ranks[0]}"), history.times)
    _time("page Overview of the wide run", lambda _: server.get("/runs/wide"), history.times)


def _time(name: str, ask: Callable[[int], object], times: int) -> dict[str, float]:
    ask(-1)
    seconds = []
    for turn in range(times):
        began = time.perf_counter()
        ask(turn)
        seconds.append(time.perf_counter() - began)
    return traffic.describe(name, seconds)
