"""Conversions between sketches and blocks, and counts between other edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.records import SketchBlock
from hookcore.records.sketch import (
    BINS,
    CENTRES,
    NEG_OVER,
    NEG_UNDER,
    POS_INF,
    POS_UNDER,
    RELATIVE_ERROR,
    Sketch,
    bins_of,
    shifted_rows,
)


def sketch_of(values: ArrayLike) -> Sketch:
    """Return the sketch of all given values."""
    return Sketch(np.bincount(bins_of(values).ravel(), minlength=BINS).astype(np.uint64))


def merged(*sketches: Sketch) -> Sketch:
    """Return the sketch of all their values."""
    return Sketch(np.sum([sketch.counts for sketch in sketches], axis=0, dtype=np.uint64, initial=0))


def block_of(sketches: Sequence[Sketch]) -> SketchBlock:
    """Return the sparse block whose row i is sketches[i]."""
    dense = np.array([sketch.counts for sketch in sketches], np.uint64).reshape(len(sketches), BINS)
    row, bins = np.nonzero(dense)
    start = np.searchsorted(row, np.arange(len(sketches) + 1)).astype(np.uint32)
    return SketchBlock(start, bins.astype(np.uint16), dense[row, bins].astype(np.uint32))


def sketch_of_row(block: SketchBlock, row: int) -> Sketch:
    """Return the sketch in one row of a block."""
    part = slice(int(block.start[row]), int(block.start[row + 1]))
    return Sketch.of_bins(block.bins[part], block.counts[part])


def rebin(sketch: Sketch, edges: ArrayLike) -> NDArray[np.uint64]:
    """Count the finite values between other edges: each bin counts where its center lies."""
    given = np.asarray(edges, dtype=np.float64)
    finite = slice(NEG_OVER, POS_INF)
    points = CENTRES[finite].copy()
    points[[NEG_UNDER - 1, POS_UNDER - 1]] /= 2  # these four are represented by an edge, but their values lie beyond it
    points[[0, -1]] *= 1 + RELATIVE_ERROR
    place = np.searchsorted(given, points, side="right") - 1
    place[points == given[-1]] = given.size - 2
    inside = (place >= 0) & (place < given.size - 1)
    counts = np.zeros(given.size - 1, np.uint64)
    np.add.at(counts, place[inside], sketch.counts[finite][inside])
    return counts


def shifted(sketch: Sketch, steps: int) -> Sketch:
    """Move every magnitude by a number of bins."""
    return sketch_of_row(shifted_rows(block_of([sketch]), np.array([True]), steps), 0)
