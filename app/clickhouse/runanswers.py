"""What ClickHouse answers about runs, in the form in which a store reads it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookcore.records.sketch import places_of
from hookcore.store.heatmap import Cells, Columns
from hookcore.store.rows import Rows
from hookcore.store.sketches import SketchRows, narrow

from .levels import EXACT
from .native import Answer

Places = NDArray[np.intp]


def of_run(found: Answer, run: int) -> Places:
    """Return the rows of an answer that are about a run."""
    return np.flatnonzero(found.numbers("run") == np.uint64(run))


def rows_of(found: Answer, mine: Places, lanes: Sequence[int]) -> Rows:
    """Return rows of some lanes in time.

    A bucket may be in several rows, which are its parts. A single step in several rows was stored again.
    """
    if not len(mine):
        return Rows.empty(len(lanes))

    def numbers(name: str) -> NDArray[Any]:
        return found.numbers(name)[mine]

    level, bucket = (numbers(name).astype(np.int64) for name in ("level", "bucket"))
    first, last = bucket << level, ((bucket + 1) << level) - 1
    begins, place, row = np.unique(first, return_index=True, return_inverse=True)
    order = np.argsort(np.array(lanes, np.uint64))
    lane = order[np.searchsorted(np.array(lanes, np.uint64)[order], numbers("lane"))]
    at, exact = row * len(lanes) + lane, level == EXACT
    known = numbers("finite") > 0

    def combined(add: np.ufunc, values: NDArray[Any], none: float) -> NDArray[Any]:
        found = np.full(len(begins) * len(lanes), none, values.dtype)
        found[at[exact]] = values[exact]
        add.at(found, at[~exact], values[~exact])
        return found.reshape(len(begins), len(lanes))

    finite, present, bad = (combined(np.add, numbers(name), 0) for name in ("finite", "present", "bad"))
    low, high = (
        combined(extreme, np.where(known, numbers(name), np.nan), np.nan)
        for name, extreme in (("low", np.fmin), ("high", np.fmax))
    )
    with np.errstate(invalid="ignore", over="ignore"):
        mean = combined(np.add, np.where(known, numbers("total"), 0.0), 0.0)
        mean[finite == 0] = np.nan
        mean /= np.maximum(finite, 1)
        np.clip(mean, low, high, out=mean)  # a sum of the largest numbers may be infinite, but not their mean
    return Rows(begins, last[place], mean, low, high, finite, present, bad)


def cells_of(found: Answer, taps: Sequence[int], columns: Columns) -> Cells:
    cells, many = Cells.make(columns.number, len(taps)), len(taps)
    places = np.zeros(max(taps) + 1, np.intp)
    places[np.array(taps, np.intp)] = np.arange(many)
    at = found.numbers("cell").astype(np.intp) * many + places[found.numbers("tap").astype(np.intp)]
    known = found.numbers("finite") > 0
    also = np.flatnonzero(found.numbers("more"))  # buckets that are in the next column, too
    for name, combine, into in (("low", np.fmin, cells.low), ("high", np.fmax, cells.high)):
        values = np.where(known, found.numbers(name), np.nan)
        combine.at(into.reshape(-1), at, values)
        combine.at(into.reshape(-1), at[also] + many, values[also])
    for name, counts in (("bad", cells.nonfinite), ("present", cells.present)):
        np.add.at(counts.reshape(-1), at, found.numbers(name).astype(np.uint32))
    return cells


def sketches_of(found: Answer, mine: Places, tap: int) -> list[SketchRows]:
    """Return the sketches of a tap, oldest first."""
    bins, counts = found.lists("bins"), found.lists("counts").values
    first, last, steps = (found.numbers(name).tolist() for name in ("first", "last", "steps"))
    taps = np.array([tap], np.uint32)
    made = []
    for place in sorted(mine.tolist(), key=lambda place: first[place]):
        part = slice(int(bins.starts[place]), int(bins.starts[place + 1]))
        start = np.array([0, part.stop - part.start], np.uint32)
        about = first[place], last[place], steps[place], taps, start
        made.append(SketchRows(*about, bins.values[part], narrow(counts[part])))
    return made


def all_sketches_of(found: Answer, taps: int) -> list[SketchRows]:
    """Return the sketches of the first taps, oldest first."""
    bins, counts = found.lists("bins"), found.lists("counts").values
    lanes, first, last, steps = (found.numbers(name).astype(np.int64) for name in ("lane", "first", "last", "steps"))
    order = np.lexsort((lanes, first))
    order = order[lanes[order] < taps]
    made = []
    for rows in np.split(order, np.flatnonzero(np.diff(first[order])) + 1) if len(order) else ():
        start, places = places_of(bins.starts, rows)
        # Taps may be captured in different steps; there are at least as many as of one of them.
        about = int(first[rows[0]]), int(last[rows[0]]), int(steps[rows].max()), lanes[rows].astype(np.uint32)
        made.append(SketchRows(*about, start.astype(np.uint32), bins.values[places], narrow(counts[places])))
    return made
