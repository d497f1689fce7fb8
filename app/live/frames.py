"""The binary frames of the socket: a header of 32 bytes, values column by column, then facts about each column.

docs/live.md has the table of bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.reading.answers.live import ColorScale, Message

from ..formats import json_of

SNAPSHOT: Final = 1
DELTA: Final = 2
JSON: Final = 3
NO_VALUES: Final = 0
F4: Final = 1
U8: Final = 2
HEADER: Final = struct.Struct("<BBHIQIId")  # kind, dtype, subscription, sequence, first step, columns, rows, time
NOBODY: Final = 65535  # the subscription of an error that belongs to none
# "Not captured" in f4: a separate NaN, to be read as an integer. A tensor's NaN is 0x7FC00000.
ABSENT_BITS: Final = 0x7FC00001
NAN_COLOR, POSITIVE_COLOR, NEGATIVE_COLOR, ABSENT_COLOR = 255, 254, 253, 252
_COLORS: Final = 251
_MAX_F4: Final = float(np.finfo(np.float32).max)
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Body:
    """A frame without the part of its header that differs between readers."""

    kind: int
    dtype: int
    first_step: int
    columns: int
    rows: int
    data: bytes

    def frame(self, subscription: int, sequence: int, time_s: float) -> bytes:
        """Return the whole frame."""
        header = HEADER.pack(
            self.kind, self.dtype, subscription, sequence, self.first_step, self.columns, self.rows, time_s
        )
        return header + self.data


def json_body(content: Message, first_step: int = 0) -> Body:
    """Return a frame of JSON."""
    return Body(JSON, NO_VALUES, max(0, first_step), 0, 0, json_of(content))


def values_body(
    kind: int,
    values: NDArray[np.float32] | NDArray[np.uint8],
    first_steps: NDArray[np.int64],
    last_steps: NDArray[np.int64],
    nonfinite: NDArray[Any],
) -> Body:
    """Return a frame of values [column, row], with the steps of each column and its number of non-finite rows."""
    columns, rows = values.shape
    data = values.tobytes()
    padding = bytes(-len(data) % 8)
    about = first_steps.astype("<f8").tobytes() + last_steps.astype("<f8").tobytes() + nonfinite.astype("<u4").tobytes()
    first = int(first_steps[0]) if columns else 0
    return Body(kind, F4 if values.dtype == np.float32 else U8, first, columns, rows, data + padding + about)


def as_f4(values: Floats, absent: Flags) -> NDArray[np.float32]:
    """Return values as sent: finite ones stay finite, and uncaptured ones differ from NaN."""
    finite = np.isfinite(values)
    small = np.where(finite, np.clip(values, -_MAX_F4, _MAX_F4), values).astype("<f4")
    bits = small.view("<u4")
    bits[np.isnan(values)] = 0x7FC00000
    bits[absent] = ABSENT_BITS
    return small


def as_colors(values: Floats, absent: Flags, scale: ColorScale) -> NDArray[np.uint8]:
    with np.errstate(divide="ignore", invalid="ignore"):
        if scale.kind == "log":
            span = np.log10(scale.high) - np.log10(scale.low)
            place = (np.log10(np.abs(values)) - np.log10(scale.low)) / span
        else:
            place = values / 2 - scale.low / 2
            place /= scale.high / 2 - scale.low / 2
    colors: NDArray[np.uint8] = np.round(np.nan_to_num(np.clip(place, 0, 1)) * _COLORS).astype(np.uint8)
    colors[np.isnan(values)] = NAN_COLOR
    colors[values == np.inf] = POSITIVE_COLOR
    colors[values == -np.inf] = NEGATIVE_COLOR
    colors[absent] = ABSENT_COLOR
    return colors


def scale_for(kind: Any, values: Floats) -> ColorScale:
    """Return a scale over most of the values: from the 1st to the 99th percentile of the finite ones."""
    shown = values[np.isfinite(values)]
    if kind == "log":
        shown = np.abs(shown[shown != 0])
    low, high = (float(each) for each in np.quantile(shown, [0.01, 0.99])) if len(shown) else (1e-6, 1.0)
    if kind == "log":
        return ColorScale(kind, low, high) if low < high else ColorScale(kind, low / 10, min(high * 10, 1e308))
    return ColorScale(kind, low, high) if low < high else ColorScale(kind, low - 1, high + 1)
