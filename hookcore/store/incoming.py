"""The rows of a frame that comes in: whether they fit together, and in which parts a store can take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.records import STATS, Frame, SketchBlock
from hookcore.records.sketch import rows_of
from hookcore.store.segments import Floats

Part = tuple[NDArray[np.uint32], Floats, SketchBlock]  # taps, and their stats and sketches


def require_shapes(frame: Frame) -> None:
    """Raise ArgumentError unless the arrays of a frame have a row for each of its taps."""
    rows = len(frame.taps)
    if frame.stats.shape != (rows, len(STATS)):
        raise ArgumentError(
            f"a frame of {rows} taps has stats of shape {frame.stats.shape}: they must be [{rows}, {len(STATS)}]"
        )
    if len(frame.sketches.start) != rows + 1:
        raise ArgumentError(
            f"a frame of {rows} taps has sketches with {len(frame.sketches.start)} starts: there must be {rows + 1}"
        )


def ascending_parts(frame: Frame) -> list[Part]:
    """Split the rows of a frame into parts with ascending, unique taps."""
    taps, stats, block = frame.taps, frame.stats, frame.sketches
    if len(taps) < 2 or bool((taps[1:] > taps[:-1]).all()):
        return [(taps, stats, block)]
    order = np.argsort(taps, kind="stable")
    ordered = taps[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] + 1))
    turn = np.arange(len(taps)) - np.repeat(starts, np.diff(np.append(starts, len(taps))))
    parts = [order[turn == number] for number in range(int(turn.max()) + 1)]
    return [(taps[rows], stats[rows], rows_of(block, rows)) for rows in parts]
