"""The two row schemas of the store, and the merging of two parts of a step."""

from __future__ import annotations

from typing import Final

import numpy as np

from hookcore.records import STAT_COLUMN, STATS
from hookcore.store.segments import Column, Floats, Schema

SKIPPED_STEP: Final = "skipped-step"  # the event for a step that a gradient scaler skipped

_ADDED: Final = tuple(STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero", "parts", "sketched"))
_COUNT, _NAN, _INF, _ZERO = (STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero"))
_MEAN, _STD, _RMS, _NORM = (STAT_COLUMN[name] for name in ("mean", "std", "rms", "norm"))
_MIN, _MAX, _RATIO = (STAT_COLUMN[name] for name in ("min", "max", "ratio"))


def _zero_fraction(stored: Column) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return stored(_ZERO) / stored(_COUNT)


def _nonfinite(stored: Column) -> Floats:
    return stored(_NAN) + stored(_INF)


STAT_SCHEMA: Final = Schema(STATS, (_NAN, _INF), {"zero_fraction": _zero_fraction, "nonfinite": _nonfinite})
SCALAR_SCHEMA: Final = Schema(("present", "bad", "value"), (1,))


def merge_stats(known: Floats, new: Floats) -> Floats:
    """Merge the stats [column, lane] of two parts; moments by Chan's formula, over the finite values."""
    merged = np.empty_like(known)
    merged[_ADDED, :] = known[_ADDED, :] + new[_ADDED, :]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        one = known[_COUNT] - known[_NAN] - known[_INF]
        two = new[_COUNT] - new[_NAN] - new[_INF]
        share = two / (one + two)  # NaN if neither part has a finite value, as are its moments
        delta = new[_MEAN] - known[_MEAN]
        own, other = np.sqrt(1 - share), np.sqrt(share)
        merged[_MEAN] = known[_MEAN] + delta * share
        within = np.hypot(known[_STD] * own, new[_STD] * other)  # hypot: squares of large values must not overflow
        merged[_STD] = np.hypot(within, delta * own * other)
        merged[_RMS] = np.hypot(known[_RMS] * own, new[_RMS] * other)
        merged[_NORM] = np.hypot(known[_NORM], new[_NORM])
    moments = [_MEAN, _STD, _RMS, _NORM]
    for empty, other in ((one == 0, new), (two == 0, known)):  # a part without finite values has no moments to add
        if np.count_nonzero(empty):
            merged[np.ix_(moments, empty)] = other[np.ix_(moments, empty)]
    merged[_MIN] = np.fmin(known[_MIN], new[_MIN])
    merged[_MAX] = np.fmax(known[_MAX], new[_MAX])
    merged[_RATIO] = np.fmax(known[_RATIO], new[_RATIO])  # of two updates of one parameter, the larger one
    return merged


def merge_ranks(known: Floats, new: Floats) -> Floats:
    """Merge the stats of parts of a step in which ranks have parts of weights: an update is relative to all of them."""
    merged = merge_stats(known, new)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weights = np.hypot(known[_NORM] / known[_RATIO], new[_NORM] / new[_RATIO])
        ratio = np.where(merged[_NORM] == 0, 0.0, merged[_NORM] / weights)
    merged[_RATIO] = np.where(np.isnan(known[_RATIO]) | np.isnan(new[_RATIO]), merged[_RATIO], ratio)
    return merged


def later_wins(known: Floats, new: Floats) -> Floats:
    """Merge scalars: the later value of a step wins."""
    return new
