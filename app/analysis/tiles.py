"""Tensors as pictures: tiles of limited size, the names of their dimensions, and a PNG of a matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.reading.pictures import image_of
from hookcore.records import Names, Snapshot
from hookcore.records.vocabulary import NAN_COLOR, counted, rgb_of

from .attention import looks_like_attention

Pool = Literal["worst", "mean", "min", "max"]
Floats = NDArray[np.float64]

MAX_VALUES: Final = 2_000_000  # of a tensor in JSON, CSV, PNG, or tiles; npy and safetensors have no limit
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


# The dimensions of a tensor that have the names of its batch's tokens and samples.


@dataclass(frozen=True, slots=True)
class Named:
    """The names that fit a tensor, and why others don't."""

    axes: tuple[int, ...] = ()  # the dimensions that are positions
    tokens: tuple[tuple[str, ...], ...] = ()  # of each sample; one row of all of them if `shared`
    shared: bool = False
    labels: tuple[str, ...] = ()
    why: str = ""
    origin: str = ""  # of the tokens, if the script didn't give them

    def tokens_of(self, sample: int) -> tuple[str, ...]:
        """Return the names of the positions of a sample, if there are any."""
        row = 0 if self.shared else sample
        return self.tokens[row] if row < len(self.tokens) else ()


def named(snapshot: Snapshot) -> Named:
    """Return what fits. A dimension has names only if its size is their number, and no other one may be meant."""
    names, shape = snapshot.names, snapshot.values.shape
    if names is None:
        return Named()
    if shape[1:] != snapshot.shape[1:] or len(shape) < 2:
        return Named(why="Names are shown only for tensors with a sample dimension, and not for parts of a sample.")
    axes, problems = _axes(names, snapshot)
    if names.origin:
        problems = []  # nobody expects these tokens
    labels, samples = names.labels, snapshot.shape[0]
    if labels and len(labels) != samples:
        problems.append(f"{counted(len(labels), 'label')} for {counted(samples, 'sample')}: give one for each sample.")
        labels = ()
    tokens, origin = (names.tokens, names.origin) if axes else ((), "")
    return Named(axes, tokens, names.shared, labels, " ".join(problems), origin)


def _axes(names: Names, snapshot: Snapshot) -> tuple[tuple[int, ...], list[str]]:
    shape = snapshot.values.shape
    sizes = {len(row) for row in names.tokens}
    if not sizes:
        return (), []
    if len(sizes) > 1:
        return (), ["The samples have different numbers of tokens: name the padding, too."]
    if not names.shared and len(names.tokens) > snapshot.shape[0]:
        return (), [f"Tokens of {counted(len(names.tokens), 'sample')} were given for {snapshot.shape[0]}."]
    (size,) = sizes
    fits = tuple(axis for axis in range(1, len(shape)) if shape[axis] == size)
    last = (len(shape) - 2, len(shape) - 1)
    if fits[-2:] == last and looks_like_attention(snapshot):
        return last, []
    if len(fits) == 1:
        return fits, []
    return (), [
        f"{size} tokens were given, and several dimensions have this size."
        if fits
        else f"{size} tokens were given, but no dimension has this size."
    ]


# A PNG of a matrix, gray where no value is negative, else blue below zero and red above it.


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
