"""The CUDA kernel: its samples and programs in Triton's interpreter, its compilation, and runs on a GPU if available.

The first test starts the process of the interpreter, which runs the tests marked `interpreted`, and before a release
test_kernels.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore.observe import layout, reference, triton_kernel
from hookcore.observe.arena import CODES
from hookcore.observe.device import DeviceArena
from hookcore.records.sketch import BINS
from tests.kernels import BLOCK, IN_INTERPRETER, PROGRAMS, check_stats, expect, floats64, interpret
from tests.lanes import examples, runs_all

interpreted = pytest.mark.skipif(not IN_INTERPRETER, reason="runs in the process that the first test starts")
compiled = pytest.mark.skipif(IN_INTERPRETER, reason="the interpreter compiles nothing")
on_gpu = pytest.mark.skipif(IN_INTERPRETER or not torch.cuda.is_available(), reason="needs a GPU")

ROOT = Path(__file__).parents[2]
DTYPES = [dtype for dtype in CODES if not dtype.is_complex]


@compiled
@pytest.mark.slow
def test_the_kernel_is_correct_in_the_interpreter() -> None:
    files: list[str | Path] = [__file__]
    if runs_all():
        files += ["--all", ROOT / "tests" / "observe" / "test_kernels.py"]
    # The interpreter runs each operator by NumPy, which warns of what a GPU does without a word.
    quiet = ["-W", "ignore:All-NaN slice encountered:RuntimeWarning"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *quiet, *files]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@interpreted
@settings(deadline=None, max_examples=examples(25))
@given(st.integers(0, 700), st.integers(0, 300), st.integers(0, 2**30))
def test_the_sampled_values_are_those_of_the_reference(number: int, limit: int, offset: int) -> None:
    tensor = torch.arange(1, number + 1, dtype=torch.float32) ** 3
    row, histogram = interpret(tensor, limit=limit, offset=offset)
    np.testing.assert_array_equal(histogram, reference.bins(tensor, limit, offset).numpy())
    assert row[layout.SKETCHED] == histogram.sum()
    check_stats(tensor.numpy(), row)


@interpreted
def test_no_more_programs_run_than_a_slot_has_rows() -> None:
    rows = torch.zeros((PROGRAMS, layout.CELLS), dtype=torch.float64)
    histogram = torch.zeros(BINS, dtype=torch.int32)
    triton_kernel.add(torch.ones(BLOCK * 10), rows[:2], histogram, 1, 0, BLOCK)
    assert rows[:, layout.FINITE].tolist() == [5 * BLOCK, 5 * BLOCK, 0]


@interpreted
@settings(deadline=None, max_examples=examples(20))
@given(st.lists(st.lists(floats64, max_size=3), min_size=1, max_size=3))
def test_rows_are_merged_as_by_the_reference_and_emptied(slots: list[list[np.ndarray]]) -> None:
    rows = torch.zeros((len(slots), PROGRAMS, layout.CELLS), dtype=torch.float64)
    histogram = torch.zeros(BINS, dtype=torch.int32)
    for slot, parts in zip(rows, slots, strict=True):
        for program, part in zip(slot, parts, strict=False):
            with np.errstate(invalid="ignore"):
                triton_kernel.add(torch.from_numpy(part), program[None], histogram, 1, 0, BLOCK)
    merged = torch.full((len(slots), layout.CELLS), torch.nan, dtype=torch.float64)
    triton_kernel.merge(rows, merged)
    for row, parts in zip(merged.numpy(), slots, strict=True):
        check_stats(np.concatenate([np.zeros(0), *parts]), row)
        assert row[layout.PARTS] == len(parts)
    assert not rows.any()


@compiled
@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize(("kind", "wide"), [("*fp32", False), ("*bf16", False), ("*fp64", True), ("*i64", True)])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_without_a_gpu(
    capability: int, kind: str, wide: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {"values": kind, "n": "i32", "rows": "*fp64", "histogram": "*i32", "stride": "i32", "offset": "i32"}
    constants: dict[str, Any] = {
        "WIDE": wide,
        "FAR": kind == "*fp64",
        "BLOCK": triton_kernel.BLOCK,
        "SKETCH_BLOCK": triton_kernel.SKETCH_BLOCK,
    }
    source = ASTSource(
        fn=triton_kernel.observe, signature=signature | dict.fromkeys(constants, "constexpr"), constexprs=constants
    )
    options = {
        "num_warps": triton_kernel.WARPS,
        "maxnreg": triton_kernel.MAX_REGISTERS,
        "enable_fp_fusion": True,
    }
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert built.asm["cubin"]


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_computes_the_same_numbers_as_the_reference(dtype: torch.dtype) -> None:
    for limit in (None, 1000):
        for size in (0, 1, 1000, 3_000_001):
            check_on_gpu(dtype, limit, size)


def check_on_gpu(dtype: torch.dtype, limit: int | None, size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(2)).mul(20).to(dtype)
    arena = DeviceArena(torch.device("cuda", 0), 10, limit)
    arena.begin_step(limit)
    for _ in range(2):
        assert arena.observe(values.cuda(), 3) is None
    assert arena.fallback_reason == ""
    transfer = arena.begin_transfer()
    assert transfer is not None
    harvest = transfer.finish()
    check_stats(np.tile(values.double().numpy(), 2), harvest.cells[0])
    expected = 2 * reference.bins(values, limit, arena.offset).numpy()
    assert dict(zip(harvest.bins.tolist(), harvest.counts.tolist(), strict=True)) == {
        int(bin_number): int(expected[bin_number]) for bin_number in np.flatnonzero(expected)
    }


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_observing_on_a_gpu_never_waits_for_it() -> None:
    arena = DeviceArena(torch.device("cuda", 0), 10, None)
    values = torch.randn(1000, 1000, device="cuda")
    arena.observe(values, 0)  # compiles
    first = arena.begin_transfer()
    torch.cuda.set_sync_debug_mode("error")
    try:
        arena.observe(values, 0)
        arena.observe(values.t()[::2], 1)
        second = arena.begin_transfer()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert first is not None
    assert second is not None
    assert second.finish().cells[0, layout.FINITE] == expect(values.cpu().numpy())["count"]
