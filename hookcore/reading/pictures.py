"""Pictures and slices of tensors, with NumPy and zlib only."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from types import EllipsisType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.reading.answers import Heatmap
from hookcore.records.vocabulary import EMPTY_COLOR, INFINITE_COLOR, NAN_COLOR, rgb_of

# Pictures with NumPy and zlib only: a PNG of pixels, and a color map of values.

# Dark violet to yellow, as Plotly's Viridis: bright is large.
_COLORS: Final = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)
_NAN, _INFINITE, _EMPTY = map(rgb_of, (NAN_COLOR, INFINITE_COLOR, EMPTY_COLOR))
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_TRUE_COLOR: Final = 2


def image_of(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an RGB array [row, column, 3] as PNG."""
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line starts with its filter: none
    lines[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, _TRUE_COLOR, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b"")
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def map_of(heatmap: Heatmap) -> NDArray[np.uint8]:
    """Return the pixels of a heatmap: colors for log magnitudes and non-finite values."""
    with np.errstate(divide="ignore"):
        logs = np.log10(np.abs(heatmap.worst))
    finite = logs[np.isfinite(logs)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    share = np.clip(np.nan_to_num((logs - low) / ((high - low) or 1.0), neginf=0.0), 0.0, 1.0)
    at = share * (len(_COLORS) - 1)
    below = np.minimum(at.astype(int), len(_COLORS) - 2)
    part = (at - below)[..., None]
    mixed: NDArray[np.float64] = _COLORS[below] * (1 - part) + _COLORS[below + 1] * part
    pixels = np.rint(mixed).astype(np.uint8)
    for state, color in ((0, _EMPTY), (2, _NAN), (3, _INFINITE)):
        pixels[heatmap.state == state] = color
    return pixels


def address_of(image: bytes) -> str:
    """Return the image as a data URL."""
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


# Slices of a tensor in addresses, such as `0,:,3:7`, with NumPy's meaning.

Part = int | slice | EllipsisType
_NUMBER: Final = r"\s*(-?\d{1,18})?\s*"
_SLICE: Final = re.compile(f"{_NUMBER}:{_NUMBER}(?::{_NUMBER})?")


def cells_of(values: NDArray[Any]) -> int:
    """Return the number of items in the array's text form: an empty array of a million rows has a million."""
    return math.prod(max(1, size) for size in values.shape)


def read_slice(text: str) -> tuple[Part, ...]:
    """Parse a slice, or raise ArgumentError."""
    return tuple(_part(piece) for piece in text.split(",")) if text.strip() else ()


def cut(values: NDArray[Any], text: str) -> NDArray[Any]:
    """Return a slice of an array; always an array, without dimensions if it is one value."""
    parts = read_slice(text)
    if parts.count(...) > 1:
        raise ArgumentError(f"slice={text!r} holds ... more than once: use it only once")
    whole = parts if ... in parts else (*parts, ...)
    try:
        return values[whole]
    except (IndexError, ValueError, OverflowError) as error:
        shape = " x ".join(map(str, values.shape)) or "of no dimension"
        raise ArgumentError(f"slice={text!r} does not fit a tensor {shape}: {error}") from None


def _part(piece: str) -> Part:
    bare = piece.strip()
    if bare == "...":
        return ...
    if re.fullmatch(r"-?\d{1,18}", bare):
        return int(bare)
    match = _SLICE.fullmatch(piece)
    if match is None:
        raise ArgumentError(
            f"{piece[:50]!r} is not a part of a slice: write 3, 3:7, ::2, : or ..., separated by commas"
        )
    start, stop, step = (None if number is None else int(number) for number in match.groups())
    return slice(start, stop, step)
