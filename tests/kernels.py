"""The four kernels under one name each, and what float64 NumPy says about the same values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from hookcore.observe import cpu, layout, portable, reference
from hookcore.observe.arena import CpuArena, DeviceSlot, stats_of, unpack
from hookcore.observe.device import add_by_operators
from hookcore.records import STATS
from hookcore.records.sketch import BINS, bins_of

# Triton decides on import whether to interpret, so its kernel is tested in a separate process.
IN_INTERPRETER: Final = os.environ.get("TRITON_INTERPRET") == "1"
COMPILED, _ = cpu.load_kernel()
ARENA = CpuArena(64, None)
BLOCK: Final = 64  # small, so that short tensors also have several blocks
PROGRAMS: Final = 3
NEWEST: Final = 4  # of the extension's instruction sets

Measured = tuple[dict[str, float], np.ndarray]  # the stats, and the dense sketch


def measure(*tensors: torch.Tensor, arena: CpuArena = ARENA) -> Measured:
    """Return the stats and the sketch of tensors that were added to one row."""
    for tensor in tensors:
        arena.observe(tensor, arena.row(7))
    (harvest,) = unpack([arena.pack(8)])
    assert harvest.slots.tolist() == [7]
    dense = np.zeros(BINS, np.int64)
    dense[harvest.bins] = harvest.counts
    return dict(zip(STATS, stats_of(harvest.cells)[0].tolist(), strict=True)), dense


def _measure_at(level: int) -> Callable[..., Measured]:
    def run(*tensors: torch.Tensor) -> Measured:
        COMPILED.limit_instructions(level)  # a processor without these instructions uses the next older ones
        try:
            return measure(*tensors)
        finally:
            COMPILED.limit_instructions(NEWEST)

    return run


def use_numpy(patch: pytest.MonkeyPatch) -> None:
    """Use NumPy instead of the extension."""
    for name in ("observe", "observe_other", "observe_strided", "pack", "unpack"):
        patch.setattr(cpu, name, getattr(portable, name))


def _measure_by_numpy(*tensors: torch.Tensor) -> Measured:
    with pytest.MonkeyPatch.context() as patch:
        use_numpy(patch)
        return measure(*tensors)


def _measure_by_torch(*tensors: torch.Tensor) -> Measured:
    rows, histogram = torch.zeros((1, layout.CELLS), dtype=torch.float64), torch.zeros(BINS, dtype=torch.int32)
    for tensor in tensors:
        add_by_operators(tensor, DeviceSlot.of(rows, histogram), 1, 0)
    return dict(zip(STATS, stats_of(rows.numpy())[0].tolist(), strict=True)), histogram.numpy()


def interpret(*tensors: torch.Tensor, limit: int | None = None, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the merged row and the sketch of tensors that Triton's kernel added to one slot."""
    from hookcore.observe import triton_kernel  # Triton prints its leaks when a process ends

    rows = torch.zeros((PROGRAMS, layout.CELLS), dtype=torch.float64)
    histogram = torch.zeros(BINS, dtype=torch.int32)
    with np.errstate(invalid="ignore"):  # the first pass also adds non-finite values, and is then repeated
        for tensor in tensors:
            stride = reference.stride_of(tensor.numel(), limit)
            triton_kernel.add(tensor, DeviceSlot.of(rows, histogram), stride, offset, BLOCK)
    return reference.combine(rows).numpy(), histogram.numpy()


def _measure_by_triton(*tensors: torch.Tensor) -> Measured:
    row, histogram = interpret(*tensors)
    return dict(zip(STATS, stats_of(row[None])[0].tolist(), strict=True)), histogram


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to measure tensors."""

    name: str
    measure: Callable[..., Measured]

    def check(self, values: np.ndarray, *tensors: torch.Tensor) -> None:
        """Compare the stats and the bins of tensors, added to one row, with NumPy's of their values."""
        stats, dense = self.measure(*tensors)
        require_stats(values, stats)
        expected = np.bincount(bins_of(values.astype(np.float64).reshape(-1)), minlength=BINS)
        np.testing.assert_array_equal(dense, expected)
        assert stats["sketched"] == values.size
        assert stats["parts"] == len(tensors)


EXTENSION: Final = Kernel("extension", _measure_at(NEWEST))
OLDER: Final = [Kernel(f"extension, instructions {level}", _measure_at(level)) for level in (1, 3)]
NUMPY: Final = Kernel("NumPy", _measure_by_numpy)
TORCH: Final = Kernel("PyTorch", _measure_by_torch)
TRITON: Final = Kernel("Triton", _measure_by_triton)
KERNELS: Final = [TRITON] if IN_INTERPRETER else [EXTENSION, NUMPY, TORCH]
ALL: Final = [TRITON] if IN_INTERPRETER else [EXTENSION, *OLDER, NUMPY, TORCH]


def expect(values: np.ndarray) -> dict[str, float]:
    """Return the expected result, computed by NumPy in float64 in two passes."""
    x = values.astype(np.float64).reshape(-1)
    finite = x[np.isfinite(x)]
    answer = {
        "count": x.size,
        "nan": np.isnan(x).sum(),
        "inf": np.isinf(x).sum(),
        "zero": (x == 0).sum(),
    }
    if finite.size:
        unit = np.ldexp(1.0, np.frexp(np.abs(finite).max())[1] - 1)  # other squares neither overflow nor underflow
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
        # If values cancel, their mean is only as exact as the largest summand. Everything else is compared relatively.
        tolerance = 1e-12 * scale if name in ("mean", "std") else 0.0
        assert stats[name] == pytest.approx(value, rel=1e-9, abs=tolerance), name
    assert math.isnan(stats["mean"]) == ("mean" not in expected)
