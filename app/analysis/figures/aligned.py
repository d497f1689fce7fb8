"""Maps of two runs with the same rows and columns."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from hookcore.errors import ArgumentError
from hookcore.reading import Reader
from hookcore.reading.answers import Heatmap
from hookcore.records import Kind, Tap

Bounds = tuple[int | None, int | None]


def same_maps(
    one: Reader, two: Reader, kind: Kind, stat: str, match: str | None, bounds: Bounds, columns: int, rows: int
) -> tuple[Heatmap, Heatmap]:
    """Return maps of at most `rows` taps that both have, over the steps that both have, in the same cells."""
    taps = [[tap.record for tap in reader.taps(match, kind).taps] for reader in (one, two)]
    others = set(taps[1])
    shared = [tap for tap in taps[0] if tap in others][:rows]
    steps = [reader.steps() for reader in (one, two)]
    first = max(bounds[0] or 0, *(each.first or 0 for each in steps))
    last = min(each.newest if each.newest is not None else -1 for each in steps)
    last = last if bounds[1] is None else min(bounds[1], last)
    if not shared or last < first:
        raise ArgumentError("the two runs have no layer in common in these steps: choose others, or another kind=")
    maps = (
        _rows(reader.heatmap(kind, stat, match, first, last, columns, len(own)), shared)
        for reader, own in zip((one, two), taps, strict=True)
    )
    return _at_same_steps(*maps)


def _rows(found: Heatmap, taps: list[Tap]) -> Heatmap:
    known = {row.record: place for place, row in enumerate(found.rows)}
    places = [known[tap] for tap in taps if tap in known]
    rows = tuple(found.rows[place] for place in places)
    return replace(found, rows=rows, worst=found.worst[places], state=found.state[places])


def _at_same_steps(one: Heatmap, two: Heatmap) -> tuple[Heatmap, Heatmap]:
    """Return the columns that cover the same steps in both."""
    _, in_one, in_two = np.intersect1d(one.first_step, two.first_step, return_indices=True)
    same = one.last_step[in_one] == two.last_step[in_two]
    first, second = (
        replace(
            found,
            first_step=found.first_step[places],
            last_step=found.last_step[places],
            worst=found.worst[:, places],
            state=found.state[:, places],
        )
        for found, places in ((one, in_one[same]), (two, in_two[same]))
    )
    return first, second
