"""A PNG of a matrix, gray where no value is negative, else blue below zero and red above it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookcore.reading.pictures import image_of
from hookcore.records.vocabulary import NAN_COLOR, rgb_of


def png_of(matrix: NDArray[Any]) -> bytes:
    """Encode one pixel per value as PNG, with the first row at the top."""
    return image_of(colors_of(matrix))


def colors_of(matrix: NDArray[Any]) -> NDArray[np.uint8]:
    """Return red, green, and blue of each value. An infinity has the color of the largest magnitude of its sign."""
    values = np.abs(matrix) if matrix.dtype.kind == "c" else matrix
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        pixels = _gray(values, low, high) if low >= 0 and not np.isneginf(values).any() else _diverging(values)
    pixels[np.isnan(values)] = rgb_of(NAN_COLOR)
    return pixels


def _gray(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.uint8]:
    """Map the smallest value to black and the largest to white."""
    share = (np.clip(values, low, high) - low) / (high - low) if high > low else np.where(values > high, 1.0, 0.0)
    level = _level(share)
    return np.stack([level, level, level], axis=-1)


def _diverging(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Map zero to white, and the largest magnitude to red above zero and to blue below it."""
    magnitudes = np.abs(values)
    most = float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0)) or 1.0
    share = np.clip(values, -most, most) / most
    full = np.full(values.shape, 255, np.uint8)
    weaker = 255 - _level(np.abs(share))
    red, blue = np.where(share < 0, weaker, full), np.where(share > 0, weaker, full)
    return np.stack([red, weaker, blue], axis=-1).astype(np.uint8)


def _level(share: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.rint(np.nan_to_num(share) * 255).astype(np.uint8)
