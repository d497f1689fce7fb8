"""Makes sums of what all ranks have in some neighboring leaves: of values, and of histograms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, Tap
from hookcore.records.sketch import places_of
from hookcore.records.vocabulary import ELAPSED, GRAD_SCALE, MICRO_BATCHES, TIME

from .asked import Asked, Part
from .attempts import Attempt, Progress, RankRun
from .groups import begins_of
from .levels import pieces_of
from .marks import Marks
from .names import lane_of_scalar, lane_of_sum
from .questions import OfRun, sketches_sql
from .rankrates import RATES
from .rankrows import Logged, Sums, merge_scalar
from .rankshares import RankShares, sums_of
from .steprows import StepRows
from .sums import Buckets, SketchBuckets, rollups_of
from .sumstore import MOST, count_frames, count_scalars, logged
from .tables import BOTH, LEAF, RANK_ROLLUPS, RANK_SKETCH_ROLLUPS, SKETCH_LEVELS, SUM_LEVELS, SumTable

WINDOW: Final = 16  # leaves for which a live training waits: ClickHouse reads 1,024 neighboring rows at least
_LEAF: Final = 1 << LEAF  # steps
_OF_LEAVES: Final = SUM_LEVELS[: SUM_LEVELS.index(LEAF) + 1]
_PER_LEAF: Final = sum(_LEAF >> level for level in _OF_LEAVES)  # rows that are stored of a lane
# Logged values that aren't simply the mean of the ranks, by lane. Names may be stored later than values.
_OTHERS: Final = {lane_of_scalar(name): name for name in (ELAPSED, GRAD_SCALE, MICRO_BATCHES, TIME, *RATES)}
_VALUES: Final = [STAT_COLUMN[name] for name in ("mean", "min", "max")]
_NEEDED: Final = ("count", "nan", "inf", "sketched")

Steps = tuple[int, int]


class LeafSums:
    """Makes them. `note` gets the reason if something is missing; `pause` is called now and then."""

    def __init__(
        self,
        progress_of: Callable[[RankRun], Progress],
        note: Callable[[Hashable, str], None],
        pause: Callable[[], None],
    ) -> None:
        self._progress_of, self._pause = progress_of, pause
        self._shares = RankShares(progress_of, note)
        self._marks = Marks()

    def most_leaves(self, table: SumTable, attempt: Attempt, taps: int, rows_of_tap: float) -> float:
        """Return how many leaves can be added up together, given the approximate number of rows of a tap in each."""
        most, ranks = MOST[table.name], len(attempt.ranks)
        if table is RANK_ROLLUPS:
            logged_values = _LEAF * ranks * count_scalars(attempt) / 4  # of which few columns are read
            read, stored = max(rows_of_tap, logged_values), _PER_LEAF * taps
        else:
            read, stored = ranks, taps
        return most / max(1, read, stored)

    def of(
        self, table: SumTable, attempt: Attempt, taps: Sequence[Tap], steps: Steps
    ) -> Sequence[Buckets] | Sequence[SketchBuckets]:
        """Return what a table has of leaves."""
        if table is RANK_SKETCH_ROLLUPS:
            return [self._histograms(attempt, taps, steps)]
        return [each for rows in self._values(attempt, taps, steps) for each in rollups_of(rows, _OF_LEAVES)]

    # -- values --------------------------------------------------------------------------------------------------------

    def _values(self, attempt: Attempt, taps: Sequence[Tap], steps: Steps) -> Iterator[StepRows]:
        """Yield the sums of each step."""
        yield self._of_scalars(attempt, steps)
        frames = max(1, count_frames(attempt, steps))
        for some in _parts(taps, MOST[RANK_ROLLUPS.name] / frames):
            yield self._of_taps(attempt, some, steps, frames * len(some))

    def _of_taps(self, attempt: Attempt, taps: Sequence[Tap], steps: Steps, rows: int) -> StepRows:
        found = []
        asked = Asked.of(attempt, steps, taps, rows=rows)
        self._shares.note_without_rows(asked)
        lanes = _lanes(taps)
        for sums in sums_of(asked, STATS, self._shares):
            found.append(_rows(lanes[sums.lane], sums.step, sums.stats.T))
        self._pause()
        return StepRows.join([_rows(lanes[:0], np.empty(0), np.empty((len(STATS), 0))), *found])

    def _of_scalars(self, attempt: Attempt, steps: Steps) -> StepRows:
        lane, said = logged(attempt, steps)
        self._shares.without_lost(attempt.ranks, steps, said)
        frames = np.unique(said.some(lane == lane_of_scalar(TIME)).step, return_counts=True)
        found = [_rows(lane[:0], np.empty(0), np.empty((len(STATS), 0)))]
        begins = begins_of(lane)
        for begin, end in zip(begins, np.append(begins[1:], len(lane)), strict=True):
            number, part = int(lane[begin]), slice(begin, end)
            name = _OTHERS.get(number, "")  # of all others, it doesn't matter
            if name not in RATES:  # they depend on the steps before
                step, value = merge_scalar(name, Logged(said.rank[part], said.step[part], said.value[part]), frames)
                stats = np.zeros((len(STATS), len(value)))
                stats[_VALUES] = np.where(np.isfinite(value), value, np.nan)
                stats[STAT_COLUMN["nan"]] = ~np.isfinite(value)
                found.append(_rows(np.full(len(step), number, np.uint64), step, stats))
        return StepRows.join(found)

    # -- histograms ----------------------------------------------------------------------------------------------------

    def _histograms(self, attempt: Attempt, taps: Sequence[Tap], steps: Steps) -> SketchBuckets:
        """Return the sums of leaves."""
        leaves, parts = ((steps[1] - steps[0]) >> LEAF) + 1, [_no_buckets()]
        if not count_frames(attempt, steps, "sketches"):
            return parts[0]
        self._shares.note_lost_histograms(attempt.ranks, steps)  # sums over the steps of ranks don't show it
        for some in _parts(taps, MOST[RANK_SKETCH_ROLLUPS.name] / (leaves * len(attempt.ranks))):
            asked = Asked.of(attempt, steps, some)
            self._shares.note_without_rows(asked)
            lanes = _lanes(some)
            if asked.held and self._marks.are_sure(attempt.ranks, self._progress_of):
                parts += [_of_ranks(part, asked.held, steps, lanes) for part in asked.held_parts()]
                asked = asked.others()
            if asked.parts and asked.rows:
                for sums in sums_of(asked, _NEEDED, self._shares, with_sketches=True):
                    parts.append(_of_steps(sums, lanes))
                    self._pause()
            self._pause()
        return SketchBuckets.join(parts)


def _of_ranks(part: Part, held: Mapping[int, frozenset[int]], steps: Steps, lanes: NDArray[np.uint64]) -> SketchBuckets:
    """Return the sums of what ranks have stored over their steps, which are the same steps of all ranks that count."""
    pieces = tuple(pieces_of(*steps, LEAF, SKETCH_LEVELS))
    found = part.shard.read(sketches_sql([OfRun(each.run, tuple(part.numbers), pieces) for each in part.ranks]))
    if not len(found.numbers("run")):
        return _no_buckets()
    place, counting = part.lanes_of(found), np.zeros(len(lanes), np.int64)
    counting[part.places] = [min(held[each]) for each in part.places.tolist()]  # the rank whose steps are counted
    captured = np.where(part.ranks_of(found) == counting[place], found.numbers("steps"), 0).astype(np.uint32)
    about = LEAF, lanes[place], found.numbers("first") >> np.uint64(LEAF), captured
    bins, counts = found.lists("bins"), found.lists("counts").values
    return SketchBuckets(*about, bins.starts, bins.values, counts.astype(np.uint64))


def _of_steps(sums: Sums, lanes: NDArray[np.uint64]) -> SketchBuckets:
    """Return the sums of what all ranks have in single steps."""
    begins = sums.block.start.astype(np.int64)
    has = np.flatnonzero(np.diff(begins))
    starts, places = places_of(begins, has)
    lane, bucket = lanes[sums.lane[has]], sums.step[has].astype(np.uint64) >> np.uint64(LEAF)
    values = sums.block.bins[places], sums.block.counts[places].astype(np.uint64)
    return SketchBuckets.join([SketchBuckets(LEAF, lane, bucket, np.ones(len(has), np.uint32), starts, *values)])


def _no_buckets() -> SketchBuckets:
    none = np.empty(0, np.uint64)
    return SketchBuckets(LEAF, none, none, none.astype(np.uint32), np.zeros(1, np.int64), none.astype(np.uint16), none)


def _parts(taps: Sequence[Tap], most: float) -> Iterator[Sequence[Tap]]:
    width = max(1, int(most))
    for first in range(0, len(taps), width):
        yield taps[first : first + width]


def _lanes(taps: Sequence[Tap]) -> NDArray[np.uint64]:
    return np.array([lane_of_sum(tap) for tap in taps], np.uint64)


def _rows(lane: NDArray[np.uint64], step: NDArray[Any], stats: NDArray[Any]) -> StepRows:
    many = len(lane)
    about = np.zeros(many, np.uint64), np.zeros(many, np.int32), np.full(many, BOTH, np.uint8)
    return StepRows(lane, step.astype(np.uint64), *about, stats)
