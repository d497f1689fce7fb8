"""What many ranks demand of collectors, ClickHouse, disks, and servers, in closed formulas. Nothing is measured here.

A *piece* is what a segment has of one run. A rank sends a frame for each step that it captures.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STATS
from hookcore.store.ladder import Ladder
from hookcore.store.parts import SHARES
from hookcore.store.segments import STAT_SCHEMA
from hookcore_app.clickhouse.cluster.shared import FULL
from hookcore_app.clickhouse.schema import LEVELS, SKETCH_LEVELS
from hookcore_app.collector.cutter import MAX_BYTES, MIN_ROWS
from hookcore_app.collector.sending import LOOK_S

Floats = NDArray[np.float64]
SCALARS: Final = 3  # of a frame: the loss, its time, and its duration
BINS: Final = 196.0  # of the histogram of a tensor with 20,000 normal values
TAP_BYTES: Final = 8 * len(STATS) + 8  # of a frame: its stats, its number, and where its histogram begins
BIN_BYTES: Final = 6
_MEMORY: Final = 2**29
_MAX_TAPS: Final = Ladder(STAT_SCHEMA, int(_MEMORY * SHARES["stats"]), threading.Lock()).max_lanes
PLACE_BYTES: Final = _MEMORY / _MAX_TAPS  # of a store, for each tensor that it has at all
BUSY: Final = 0.6  # of a core or a thread: beyond that, queues grow fast


@dataclass(frozen=True, slots=True)
class Demand:
    """What the ranks of all jobs send."""

    ranks: int
    layers: int
    kinds: int
    steps_per_s: float  # captured by each rank
    bins: float = BINS

    @property
    def taps(self) -> int:
        """The tensors of a frame."""
        return self.layers * self.kinds

    @property
    def lanes(self) -> int:
        """The tensors and scalars of all ranks."""
        return self.ranks * (self.taps + SCALARS)

    @property
    def frames_per_s(self) -> float:
        """The frames of all ranks."""
        return self.ranks * self.steps_per_s

    @property
    def rows_per_s(self) -> float:
        """The rows of all ranks: one for each tensor and scalar of a frame."""
        return self.lanes * self.steps_per_s


@dataclass(frozen=True, slots=True)
class Layout:
    """What the ranks send to."""

    collectors: int
    shards: int
    replicas: int = 2
    insert_s: float = 5.0
    cut_s: float = 0.0  # in which a collector makes the blocks of a segment


@dataclass(frozen=True, slots=True)
class Work:
    """What happens in a second: in all collectors, or in all shards. The names are those of the costs."""

    frames: float
    rows: float
    rollups: float
    sketches: float
    sketch_rollups: float
    pieces: float
    segments: float
    runs: float


NAMES: Final = tuple(Work.__dataclass_fields__)


def period_s(demand: Demand, layout: Layout) -> float:
    """Return the time from one segment of a collector for a shard to the next one.

    It is inserted once it has enough rows or takes enough memory, or else some time after a rank's next step has
    completed an earlier one. Ranks begin their steps at random moments.
    """
    pairs = layout.collectors * layout.shards
    rows = demand.rows_per_s / pairs
    nbytes = demand.frames_per_s * demand.taps * (8 * len(STATS) + BIN_BYTES * demand.bins) / pairs
    full_s = min(MIN_ROWS / max(rows, 1e-9), MAX_BYTES / max(nbytes, 1e-9))
    next_s = 1 / (demand.steps_per_s * (demand.ranks / pairs + 1))
    return max(min(next_s + layout.insert_s, full_s), LOOK_S) + LOOK_S + layout.cut_s


def work_of(demand: Demand, layout: Layout) -> Work:
    """Return the work that a demand makes."""
    period = period_s(demand, layout)
    pieces = demand.ranks * min(1 / period, demand.steps_per_s)
    steps = demand.steps_per_s * demand.ranks / pieces  # of a piece
    return Work(
        frames=demand.frames_per_s,
        rows=demand.rows_per_s,
        rollups=pieces * (demand.taps + SCALARS) * buckets_of(steps, LEVELS),
        sketches=demand.frames_per_s * demand.taps * (demand.bins > 0),
        sketch_rollups=pieces * demand.taps * buckets_of(steps, SKETCH_LEVELS) * (demand.bins > 0),
        pieces=pieces,
        segments=min(layout.collectors * layout.shards / period, pieces),
        runs=demand.ranks,
    )


def buckets_of(steps: float, levels: Sequence[int]) -> float:
    """Return how many buckets on all levels so many successive steps touch on average, wherever they begin."""
    return sum((1 + (steps - 1) / float(2**level) for level in levels), 0.0)


def doublings_of(steps: float, levels: Sequence[int]) -> float:
    """Return the mean of log2 of how many steps a bucket has, over the buckets that so many successive steps touch."""
    touched = [buckets_of(steps, [level]) for level in levels]
    return sum(each * math.log2(max(1.0, steps / each)) for each in touched) / sum(touched)


def frame_bytes(demand: Demand, fixed_bytes: float) -> float:
    """Return the size of a frame on the wire."""
    return fixed_bytes + demand.taps * (TAP_BYTES + BIN_BYTES * demand.bins)


# -- processor time ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """The processor time of one unit of each kind of work, in seconds, and what a process takes without any work."""

    each: dict[str, float]
    idle: float = 0.0  # cores

    def cores(self, work: Work, processes: int = 1) -> float:
        """Return how many cores all processes together keep busy: the utilization law."""
        return self.idle * processes + sum((cost * float(getattr(work, name)) for name, cost in self.each.items()), 0.0)


def fit(works: Sequence[Work], cores: Sequence[float], names: Sequence[str], idle: float, processes: int) -> Costs:
    """Return the costs, none of them negative, with the smallest relative errors.

    `idle` was measured without any work. `cores` of several processes together belong to each of `works`.
    """
    measured = np.asarray(cores)
    matrix = np.array([[getattr(work, name) for name in names] for work in works]) / measured[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12)
    found = _nonnegative(matrix / scale, 1 - idle * processes / measured) / scale
    return Costs(dict(zip(names, found.tolist(), strict=True)), idle)


def _nonnegative(matrix: Floats, goal: Floats) -> Floats:
    """Return x >= 0 for which matrix @ x comes closest to a goal, by coordinate descent."""
    gram, aim = matrix.T @ matrix, matrix.T @ goal
    found = np.zeros(len(aim))
    for _ in range(2000):
        for place in range(len(aim)):
            if gram[place, place]:
                step = (aim[place] - gram[place] @ found) / gram[place, place]
                found[place] = max(0.0, found[place] + step)
    return found


# -- queues ------------------------------------------------------------------------------------------------------------


def acknowledged_s(service_s: float, busy: float) -> float:
    """Return the mean time until a frame is acknowledged by a collector that is busy for such a share of its time.

    One queue, arrivals at random moments, and one at a time is served (M/M/1).
    """
    return math.inf if busy >= 1 else service_s / (1 - busy)


def waits_s(demand: Demand, layout: Layout, insert_s: float) -> float:
    """Return the mean time of a frame in the spool: until the next step, until its segment is made, and the insert."""
    return 1 / demand.steps_per_s + period_s(demand, layout) / 2 + layout.cut_s + insert_s


def waiting(demand: Demand, wait_s: float) -> float:
    """Return how many frames wait in all spools: Little's law."""
    return demand.frames_per_s * wait_s


# -- disks and memory --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sum:
    """The bytes of a row for a bucket of steps.

    They grow with the steps: histograms have more bins, and the buckets of a short run on large levels are all alike,
    which compresses well. That was measured from `shortest` to `longest` doublings; elsewhere, they stay.
    """

    single: float = 0.0
    doubling: float = 0.0
    shortest: float = 0.0
    longest: float = 0.0

    def nbytes(self, steps: float, levels: Sequence[int]) -> float:
        """Return the bytes of all buckets that so many successive steps touch."""
        doublings = min(max(doublings_of(steps, levels), self.shortest), self.longest)
        return buckets_of(steps, levels) * (self.single + self.doubling * doublings)

    @classmethod
    def fit(cls, seen: Sequence[tuple[float, float, float]]) -> Sum:
        """Return what comes closest to doublings, rows, and bytes that were measured."""
        doublings, rows, nbytes = np.array(seen).T
        if np.ptp(doublings) < 1e-3:
            return cls(float(nbytes.sum() / max(1.0, rows.sum())))
        doubling, single = np.polyfit(doublings, nbytes / np.maximum(rows, 1), 1)
        return cls(float(single), float(doubling), float(doublings.min()), float(doublings.max()))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The bytes of one unit on the wire, on disk, and in memory."""

    frame: float = 0.0  # on the wire, besides its tensors
    row: float = 0.0  # on the disk of one replica, after all merges
    rollup: Sum = Sum()
    sketch: float = 0.0
    sketch_rollup: Sum = Sum()
    item: float = 0.0

    def disk_bytes(self, demand: Demand, seconds: float) -> float:
        """Return the size of runs of such a length on one replica of each shard, once all is merged."""
        steps, tensors = demand.steps_per_s * seconds, demand.ranks * demand.taps * (demand.bins > 0)
        return (
            demand.ranks * steps * self.item
            + demand.lanes * (steps * self.row + self.rollup.nbytes(steps, LEVELS))
            + tensors * (steps * self.sketch + self.sketch_rollup.nbytes(steps, SKETCH_LEVELS))
        )


def least_memory_bytes(demand: Demand, jobs: int) -> float:
    """Return the memory limit of a server in which each tensor of each rank, and of each job's sum, has its place."""
    lanes = demand.taps * (demand.ranks + jobs)
    return lanes * PLACE_BYTES / FULL


# -- sizes of an installation ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """All that was measured, with servers of ClickHouse of which `replicas` belong to a shard."""

    collector: Costs
    database: Costs  # of all replicas of a shard together
    keeper: Costs  # idle for each server of ClickHouse
    sizes: Sizes
    memory: Costs  # not cores, but the resident bytes of a server for what it keeps exactly
    replicas: int = 2

    def collector_cores(self, demand: Demand, layout: Layout) -> float:
        """Return the busy cores of all collectors together."""
        return self.collector.cores(work_of(demand, layout), layout.collectors)

    def database_cores(self, demand: Demand, layout: Layout) -> float:
        """Return the busy cores of all servers of ClickHouse together."""
        cores = self.database.cores(work_of(demand, layout), layout.shards * self.replicas)
        return cores * layout.replicas / self.replicas

    def settled(self, demand: Demand, layout: Layout) -> Layout:
        """Return a layout with the time that its collectors take to make a segment, all the work besides frames."""
        work = work_of(demand, layout)
        of_segments = replace(work, frames=0.0, runs=0.0)
        return replace(layout, cut_s=replace(self.collector, idle=0.0).cores(of_segments) / work.segments)

    def insert_s(self, demand: Demand, layout: Layout) -> float:
        """Return the time of an insert at a replica that has nothing else to do: its processor time."""
        work = work_of(demand, layout)
        return replace(self.database, idle=0.0).cores(work) / self.replicas / work.segments

    def inserting(self, demand: Demand, layout: Layout) -> float:
        """Return the share of time in which a collector inserts into a shard: one insert at a time."""
        work = work_of(demand, layout)
        return self.insert_s(demand, layout) * work.segments / (layout.collectors * layout.shards)

    def memory_bytes(self, demand: Demand, seconds: float) -> float:
        """Return the resident memory of a server that has followed all ranks for so long, before it merges steps."""
        work = work_of(demand, Layout(1, 1))
        totals = {name: getattr(work, name) * seconds for name in ("frames", "rows", "sketches")}
        return self.memory.cores(replace(work, **totals))

    def size(self, demand: Demand, cores: int, insert_s: float = 30.0) -> Layout:
        """Return the smallest layout that is not too busy, with shards whose replicas have so many cores each."""
        layout = Layout(1, 1, insert_s=insert_s)
        while True:
            wanted = replace(
                layout,
                collectors=max(layout.collectors, math.ceil(self.collector_cores(demand, layout) / BUSY)),
                shards=max(
                    layout.shards,
                    math.ceil(self.database_cores(demand, layout) / (BUSY * cores * layout.replicas)),
                ),
            )
            if wanted == layout and self.inserting(demand, layout) > BUSY:
                wanted = replace(layout, collectors=layout.collectors + 1)
            if wanted == layout:
                return layout
            layout = wanted
