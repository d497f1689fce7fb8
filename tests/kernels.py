"""Shared parts of the tests of the three kernels: float64 NumPy on the same values, and tensors of any values."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from hookcore.observe.arena import CpuArena
from hookcore.observe.harvest import unpack
from hookcore.recorder.frames import stats_of
from hookcore.records import STATS
from hookcore.records.sketch import BINS, bins_of

ARENA = CpuArena(64, None)
SAMPLED = CpuArena(64, 65536)


def measure(*tensors: torch.Tensor, arena: CpuArena = ARENA) -> tuple[dict[str, float], np.ndarray]:
    """Return the stats and the dense sketch of tensors that were added to one row."""
    for tensor in tensors:
        arena.observe(tensor, arena.row(7))
    (harvest,) = unpack([arena.pack(8)])
    assert harvest.slots.tolist() == [7]
    dense = np.zeros(BINS, np.int64)
    dense[harvest.bins] = harvest.counts
    return dict(zip(STATS, stats_of(harvest.cells)[0].tolist(), strict=True)), dense


def expect(values: np.ndarray) -> dict[str, float]:
    """Return the same by float64 NumPy, in two passes."""
    x = values.astype(np.float64).reshape(-1)
    finite = x[np.isfinite(x)]
    answer = {
        "count": x.size,
        "nan": np.isnan(x).sum(),
        "inf": np.isinf(x).sum(),
        "zero": (x == 0).sum(),
    }
    if finite.size:
        unit = np.ldexp(1.0, np.frexp(np.abs(finite).max())[1] - 1)  # squares of the others neither overflow nor vanish
        near = finite / unit
        mean = math.fsum(near) / near.size
        answer |= {
            "mean": mean * unit,
            "std": math.sqrt(math.fsum((near - mean) ** 2) / near.size) * unit,
            "min": finite.min(),
            "max": finite.max(),
            "rms": math.sqrt(math.fsum(near**2) / near.size) * unit,
            "norm": math.sqrt(math.fsum(near**2)) * unit,
        }
    return {name: float(value) for name, value in answer.items()}


def check(values: np.ndarray, *tensors: torch.Tensor) -> None:
    stats, dense = measure(*tensors)
    require_stats(values, stats)
    np.testing.assert_array_equal(dense, np.bincount(bins_of(values.astype(np.float64).reshape(-1)), minlength=BINS))
    assert stats["sketched"] == values.size
    assert stats["parts"] == len(tensors)


floats32 = hnp.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True),
)
floats64 = hnp.arrays(
    np.float64, st.integers(1, 40), elements=st.floats(-1e307, 1e307) | st.sampled_from([math.nan, math.inf, -math.inf])
)


def check_stats(values: np.ndarray, row: np.ndarray) -> None:
    """Compare a row of cells with float64 NumPy on the same values."""
    require_stats(values, dict(zip(STATS, stats_of(row[None])[0].tolist(), strict=True)))


def require_stats(values: np.ndarray, stats: dict[str, float]) -> None:
    expected = expect(values)
    scale = max(abs(expected.get("min", 0.0)), abs(expected.get("max", 0.0)))
    for name, value in expected.items():
        # A mean of canceling values is only as exact as its largest summand; everything else is compared relatively.
        tolerance = 1e-12 * scale if name in ("mean", "std") else 0.0
        assert stats[name] == pytest.approx(value, rel=1e-9, abs=tolerance), name
    assert math.isnan(stats["mean"]) == ("mean" not in expected)
