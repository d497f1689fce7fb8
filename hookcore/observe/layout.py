"""The layout of a tap's row in an arena: sixteen float64 cells, then the sketch.

Plain constants and a NumPy dtype. Compiled kernels and Python read the same names.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hookcore.records.sketch import BINS

# Cells of a row. Moments, minimum, and maximum are over the finite values only.
FINITE: Final = 0  # how many finite values
MEAN: Final = 1
DEVIATION: Final = 2  # sum of squared deviations from the mean
MIN: Final = 3
MAX: Final = 4
NAN_COUNT: Final = 5
POS_INF_COUNT: Final = 6
NEG_INF_COUNT: Final = 7
ZERO_COUNT: Final = 8
PARTS: Final = 9  # number of merged tensors; 0 means an empty row
SKETCHED: Final = 10  # number of values in the sketch
RATIO: Final = 11  # always zero here; the column of the stats that the recorder computes, |update| / |parameter|
SCALE: Final = 12  # 0, or the power of two that is the unit of MEAN; DEVIATION is in units of its square
TOUCHED: Final = 13  # bits that say which of 64 stretches of the sketch are not empty; for the extension only
STEP: Final = 14  # of a row that operators in compiled graphs write: the captured step that it was begun in
CELLS: Final = 16

# Cells of a gate, by which kernels in compiled graphs know whether and how to measure (see `GraphArena`).
CAPTURED: Final = 0
NOW: Final = 1  # the number of captured steps
LIMIT: Final = 2  # of values in a histogram; -1: every value
OFFSET: Final = 3

# Cells of a module's table, before the addresses of its rows and histograms.
NUMBER: Final = 0
GATE_AT: Final = 1
HEAD: Final = 2

HIST_OFFSET: Final = CELLS * 8
ROW_BYTES: Final = -(-(HIST_OFFSET + BINS * 4) // 64) * 64  # whole cache lines: 16448

# Squares of float64s beyond these magnitudes overflow or vanish, so their moments are kept in another unit.
HUGE: Final = 2.0**480
TINY: Final = 2.0**-450
FAR_EXPONENT: Final = 600

ROW_USE: Final = ROW_BYTES // 3  # what a row takes, roughly: values fill few bins, and untouched pages cost nothing

ROW_DTYPE: Final = np.dtype(
    {
        "names": ["cells", "bins"],
        "formats": [(np.float64, (CELLS,)), (np.uint32, (BINS,))],
        "offsets": [0, HIST_OFFSET],
        "itemsize": ROW_BYTES,
    }
)


def scale_of(magnitude: float) -> int:
    """Return the SCALE for finite values with this largest magnitude."""
    if magnitude > HUGE:
        return FAR_EXPONENT
    return -FAR_EXPONENT if 0 < magnitude < TINY else 0
