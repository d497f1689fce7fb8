"""Two runs brought to the same rows and columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.store import Heatmap, Store, TapList

Bounds = tuple[int | None, int | None]


def same_maps(
    one: Store, two: Store, kind: str, stat: str, match: str | None, bounds: Bounds, columns: int, rows: int
) -> tuple[Heatmap, Heatmap]:
    """The taps that both have, at most `rows`, over the steps that both have, in the same cells."""
    lists = [store.taps(match, kind) for store in (one, two)]
    numbers = [dict(zip(each.taps, each.numbers.tolist(), strict=True)) for each in lists]
    shared = [tap for tap in lists[0].taps if tap in numbers[1]][:rows]
    steps = [store.steps() for store in (one, two)]
    first = max(bounds[0] or 0, *(each.first or 0 for each in steps))
    last = min(each.newest if each.newest is not None else -1 for each in steps)
    last = last if bounds[1] is None else min(bounds[1], last)
    if not shared or last < first:
        raise ArgumentError("the two runs have no layer in common in these steps: choose others, or another kind=")
    maps = []
    for store, known in zip((one, two), numbers, strict=True):
        chosen = sorted(shared, key=known.__getitem__)
        wanted = TapList(np.array([known[tap] for tap in chosen], np.int64), tuple(chosen))
        found = store.heatmap(kind, stat, None, first, last, columns, len(chosen), wanted)
        places = {tap: place for place, tap in enumerate(found.taps)}
        maps.append(_rows(found, np.array([places[tap] for tap in shared if tap in places], np.intp)))
    return _at_same_steps(maps[0], maps[1])


def _at_same_steps(one: Heatmap, two: Heatmap) -> tuple[Heatmap, Heatmap]:
    """The columns that mean the same steps in both."""
    _, in_one, in_two = np.intersect1d(one.first_step, two.first_step, return_indices=True)
    same = one.last_step[in_one] == two.last_step[in_two]
    return _columns(one, in_one[same]), _columns(two, in_two[same])


def _rows(found: Heatmap, places: NDArray[np.intp]) -> Heatmap:
    taps = tuple(found.taps[place] for place in places)
    about = found.stat, found.numbers[places], taps, found.groups[places], found.first_step, found.last_step
    cells = found.worst[places], found.nonfinite[places], found.present[places], found.infinite[places]
    return Heatmap(*about, *cells)


def _columns(found: Heatmap, places: NDArray[np.intp]) -> Heatmap:
    about = found.stat, found.numbers, found.taps, found.groups, found.first_step[places], found.last_step[places]
    at = (slice(None), places)
    cells = found.worst[at], found.nonfinite[at], found.present[at], found.infinite[at]
    return Heatmap(*about, *cells)
