"""Tensors as pictures: tiles of limited size, and the exact statistics of a part. Arithmetic only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Pool = Literal["worst", "mean", "min", "max"]
Floats = NDArray[np.float64]

QUANTILES: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def real_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return real numbers: magnitudes of complex ones; float32 if that loses nothing, else float64."""
    if values.dtype.kind == "c":
        values = np.abs(values)
    return values.astype(np.float32 if np.can_cast(values.dtype, np.float32) else np.float64)


def tiles_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return a tensor as [tile, row, column]: the last two dimensions are a tile."""
    shape = (1, 1, *values.shape)[-2:] if values.ndim < 2 else values.shape[-2:]
    return values.reshape(-1, *shape) if values.size else values.reshape(0, *shape)


def factors_of(shape: tuple[int, ...], rows: int, columns: int) -> tuple[int, int]:
    """Return the number of rows and columns of a tile per cell, so that it has at most `rows` and `columns` cells."""
    return max(1, -(-shape[-2] // rows)), max(1, -(-shape[-1] // columns))


def pool(tiles: NDArray[Any], rows: int, columns: int, how: Pool = "worst") -> NDArray[Any]:
    """Reduce tiles to at most `rows` and `columns`. The worst of a cell is a NaN, else the largest magnitude."""
    down, across = factors_of(tiles.shape, rows, columns)
    if (down, across) == (1, 1) or not tiles.size:
        return tiles
    starts = np.arange(0, tiles.shape[1], down), np.arange(0, tiles.shape[2], across)
    return _POOLS[how](tiles, *starts)


def _reduced(ufunc: Any, tiles: NDArray[Any], down: NDArray[Any], across: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = ufunc.reduceat(ufunc.reduceat(tiles, down, axis=1), across, axis=2)
    return found


def _worst(tiles: NDArray[Any], down: NDArray[Any], across: NDArray[Any]) -> NDArray[Any]:
    # Minimum and maximum both return NaN if there is one.
    low, high = (_reduced(each, tiles, down, across) for each in (np.minimum, np.maximum))
    return np.where(-low > high, low, high)


def _mean(tiles: NDArray[Any], down: NDArray[Any], across: NDArray[Any]) -> NDArray[Any]:
    heights = np.diff(np.append(down, tiles.shape[1]))[:, None]
    widths = np.diff(np.append(across, tiles.shape[2]))
    with np.errstate(invalid="ignore", over="ignore"):
        sums = _reduced(np.add, tiles.astype(np.float64), down, across)
        means: NDArray[Any] = (sums / (heights * widths)).astype(tiles.dtype)
    return means


_POOLS: Final[dict[Pool, Callable[..., NDArray[Any]]]] = {
    "worst": _worst,
    "mean": _mean,
    "min": lambda tiles, down, across: _reduced(np.minimum, tiles, down, across),
    "max": lambda tiles, down, across: _reduced(np.maximum, tiles, down, across),
}


def statistics_of(values: NDArray[Any]) -> dict[str, float]:
    """Return exact statistics in float64: moments and quantiles cover the finite values; NaN if there are none."""
    numbers: Floats = (np.abs(values) if values.dtype.kind == "c" else values).astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    counts = {
        "count": numbers.size,
        "nan": int(np.isnan(numbers).sum()),
        "inf": int(np.isinf(numbers).sum()),
        "zero": int((numbers == 0).sum()),
    }
    return {**counts, **_moments(finite), **_quantiles(finite)}


def _moments(finite: Floats) -> dict[str, float]:
    names = ("mean", "std", "min", "max", "rms")
    if not finite.size:
        return dict.fromkeys(names, np.nan)
    scale = float(np.abs(finite).max()) or 1.0  # squares of large numbers would overflow, those of small ones vanish
    scaled = finite / scale
    mean = float(scaled.mean())
    spread = float(np.sqrt(np.square(scaled - mean).mean()))
    rms = float(np.sqrt(np.square(scaled).mean()))
    found = mean * scale, spread * scale, float(finite.min()), float(finite.max()), rms * scale
    return dict(zip(names, found, strict=True))


def _quantiles(finite: Floats) -> dict[str, float]:
    names = [f"p{100 * q:g}" for q in QUANTILES]
    if not finite.size:
        return dict.fromkeys(names, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        return dict(zip(names, np.quantile(finite, QUANTILES).tolist(), strict=True))
