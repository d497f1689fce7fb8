"""Sums over ranks in the form in which a store reads them. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import HookcoreError
from hookcore.records.sketch import places_of
from hookcore.store import STAT_NAMES
from hookcore.store.heatmap import Cells
from hookcore.store.rows import Rows, down_sample
from hookcore.store.schemas import STAT_SCHEMA
from hookcore.store.segments import Floats, Steps
from hookcore.store.sketches import SketchRows, narrow

from .native import Answer
from .rankrows import Sums


def nbytes_of(found: Rows | Cells | list[SketchRows] | HookcoreError) -> int:
    """Return the memory of an answer, or about that of the reason why there is none."""
    if isinstance(found, HookcoreError):
        rest = getattr(found, "rest", None)
        return sys.getsizeof(str(found)) + (0 if rest is None else nbytes_of(rest))
    if isinstance(found, list):
        return sum(each.nbytes for each in found)
    return sum(getattr(found, each.name).nbytes for each in fields(found))


def placed(rows: Rows, places: NDArray[np.int64], lanes: int, shift: int) -> Rows:
    """Return rows of some lanes as those of all, at later steps."""
    shape = len(rows.first), lanes
    floats = [np.full(shape, np.nan) for _ in range(3)]
    counts = [np.zeros(shape, np.uint32) for _ in range(3)]
    for into, values in zip(floats, (rows.mean, rows.low, rows.high), strict=True):
        into[:, places] = values
    for into, numbers in zip(counts, (rows.finite, rows.present, rows.nonfinite), strict=True):
        into[:, places] = numbers
    return Rows(rows.first + shift, rows.last + shift, *floats, *counts)


def add_cells(cells: Cells, found: Cells, places: NDArray[np.int64]) -> None:
    cells.low[:, places] = np.fmin(cells.low[:, places], found.low)
    cells.high[:, places] = np.fmax(cells.high[:, places], found.high)
    cells.nonfinite[:, places] += found.nonfinite
    cells.present[:, places] += found.present


def moved(entry: SketchRows, taps: NDArray[np.uint32], shift: int) -> SketchRows:
    """Return a rank's sketches as those of a tap of all ranks, at later steps."""
    return replace(entry, first=entry.first + shift, last=entry.last + shift, taps=taps)


def sketches_over(
    found: Answer, newest: NDArray[np.intp], taps: Mapping[int, int], ends: Sequence[int], shift: int
) -> list[SketchRows]:
    """Return rows of stored sums as sketches of taps, which are given by lane. The last buckets end at their ends."""
    level, bucket, steps = (found.numbers(name)[newest].astype(np.int64) for name in ("level", "bucket", "present"))
    known = np.array(sorted(taps), np.uint64)
    of_lane = np.array([taps[lane] for lane in known.tolist()], np.uint32)
    tap = of_lane[np.searchsorted(known, found.numbers("lane")[newest])]
    bins, first = found.lists("bins"), bucket << level
    order = np.lexsort((tap, first))
    last_ends, made = np.sort(np.array(ends, np.int64)), []
    for rows in np.split(order, np.flatnonzero(np.diff(first[order])) + 1) if len(order) else ():
        start, places = places_of(bins.starts, newest[rows])
        begin, at = int(first[rows[0]]), int(level[rows[0]])
        last = min(begin + (1 << at) - 1, int(last_ends[np.searchsorted(last_ends, begin)]))
        # Taps may be captured in different steps; there are at least as many as of one of them.
        about = begin + shift, last + shift, int(steps[rows].max()), tap[rows], start.astype(np.uint32)
        made.append(SketchRows(*about, bins.values[places], narrow(found.lists("counts").values[places])))
    return made


def sketches_in(sums: Sums, taps: NDArray[np.uint32]) -> Iterator[SketchRows]:
    """Yield the sketches of each step."""
    begins = sums.block.start.astype(np.int64)
    has = np.flatnonzero(np.diff(begins))
    for rows in np.split(has, np.flatnonzero(np.diff(sums.step[has])) + 1) if len(has) else ():
        start, places = places_of(begins, rows)
        step = int(sums.step[rows[0]])
        values = sums.block.bins[places], sums.block.counts[places]
        yield SketchRows(step, step, 1, taps[sums.lane[rows]], start.astype(np.uint32), *values)


def rows_in(sums: Sums, stat: str, lanes: int) -> Rows:
    """Return one stat of sums [row, lane]."""
    steps, row = np.unique(sums.step, return_inverse=True)
    at, shape = (row, sums.lane), (len(steps), lanes)
    values = np.full(shape, np.nan)
    present, nonfinite = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)

    def stored(column: int) -> Floats:
        return sums.stats[:, column]

    values[at], present[at] = STAT_SCHEMA.read(STAT_NAMES.index(stat), stored), 1
    nonfinite[at] = STAT_SCHEMA.count_nonfinite(stored)
    return Rows(steps, steps, values, values, values, (~np.isnan(values)).astype(np.uint32), present, nonfinite)


def rows_over(rows: Rows, width: int) -> Rows:
    """Return rows that each stand for about so many steps, with every extreme and count."""
    if width <= 1 or not len(rows.first):
        return rows
    return down_sample(rows, -(-int(rows.last[-1] - rows.first[0] + 1) // width))


def in_time(parts: Sequence[Rows], lanes: int) -> Rows:
    """Return rows of parts in the order of their steps."""
    if not parts:
        return Rows.empty(lanes)
    rows = Rows.stack(parts)
    order = np.argsort(rows.first, kind="stable")
    return Rows(*(getattr(rows, each.name)[order] for each in fields(rows)))


def rows_of_scalar(step: Steps, value: Floats) -> Rows:
    """Return the values of a scalar as rows."""
    finite = np.isfinite(value)[:, None]
    values = np.where(finite, value[:, None], np.nan)
    counts = finite.astype(np.uint32), np.ones(finite.shape, np.uint32), (~finite).astype(np.uint32)
    return Rows(step, step, values, values, values, *counts)
