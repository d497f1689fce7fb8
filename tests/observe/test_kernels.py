"""Every kernel compared with float64 NumPy: every stat and bin, whatever the values, the type, and the layout.

The extension with its newest instructions, NumPy, torch's operators, and, in a separate process (see
test_triton_kernel.py), Triton's interpreter all pass the same tests. Tests of single kernels follow at the end.
"""

from __future__ import annotations

import ctypes
import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore.observe import arena as arena_code
from hookcore.observe import cpu, portable
from hookcore.observe.arena import CODES, CpuArena, unpack
from hookcore.records import STAT_COLUMN, STATS
from hookcore.records.sketch import BINS, bins_of
from tests.kernels import (
    ALL,
    ARENA,
    BLOCK,
    IN_INTERPRETER,
    KERNELS,
    NUMPY,
    Kernel,
    expect,
    floats32,
    floats64,
    measure,
    use_numpy,
)
from tests.lanes import examples

by_each = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
by_all = pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
on_cpu = pytest.mark.skipif(IN_INTERPRETER, reason="only Triton's kernel is tested in this process")
SAMPLED = CpuArena(64, 65536)
LONGEST = 600 if IN_INTERPRETER else 300_001  # Triton's interpreter takes a second for 10,000 values; a block has 64
COMPLEX = [torch.complex64, torch.complex128]
REAL = [dtype for dtype in CODES if not dtype.is_complex]


def tries(number: int) -> settings:
    """Return the number of tries for a property."""
    return settings(deadline=None, max_examples=examples(number // 10 if IN_INTERPRETER else number))


def check_each(values: np.ndarray, *tensors: torch.Tensor) -> None:
    """Check every kernel with the same values, because making them takes longer than measuring them."""
    for kernel in KERNELS:
        try:
            kernel.check(values, *tensors)
        except AssertionError as error:
            raise AssertionError(f"{kernel.name}: {error}") from error


@tries(280)
@given(values=floats32)
def test_every_stat_of_any_float32_equals_float64(values: np.ndarray) -> None:
    check_each(values, torch.from_numpy(values))


@tries(280)
@given(values=floats64)
def test_every_stat_of_any_float64_equals_numpy(values: np.ndarray) -> None:
    check_each(values, torch.from_numpy(values))


@tries(100)
@given(values=hnp.arrays(np.float16, st.integers(1, 40), elements=st.floats(width=16)))
def test_every_stat_of_any_float16_equals_float64(values: np.ndarray) -> None:
    check_each(values, torch.from_numpy(values))


@tries(100)
@given(values=floats32)
def test_bfloat16_is_measured_by_its_own_values(values: np.ndarray) -> None:
    tensor = torch.from_numpy(values).to(torch.bfloat16)
    if IN_INTERPRETER:  # it converts subnormal bfloat16 values wrongly before the kernel sees them
        tensor[tensor.abs() < torch.finfo(torch.bfloat16).tiny] = 0
    check_each(tensor.float().numpy(), tensor)


@tries(180)
@given(parts=st.lists(floats64, min_size=2, max_size=4) | st.lists(floats32, min_size=2, max_size=5))
def test_parts_of_any_magnitude_merge_to_the_stats_of_the_whole(parts: list[np.ndarray]) -> None:
    check_each(np.concatenate(parts), *[torch.from_numpy(part) for part in parts])


@by_all
@pytest.mark.rota("kernel", "dtype")
@pytest.mark.parametrize("dtype", REAL if IN_INTERPRETER else list(CODES))
@pytest.mark.parametrize("size", [size for size in (1, 15, 16, 257, 2049, 70_001) if size <= LONGEST])
def test_every_type_is_measured_by_its_own_values(kernel: Kernel, dtype: torch.dtype, size: int) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size)).mul(30).to(dtype)
    exact = tensor.to(torch.complex128).abs() if dtype.is_complex else tensor.double()
    kernel.check(exact.numpy(), tensor)


@by_each
def test_a_large_integer_is_not_rounded_to_float32(kernel: Kernel) -> None:
    stats, _ = kernel.measure(torch.tensor([2**40 + 1, 2**40 + 3]))
    assert (stats["mean"], stats["std"]) == (2**40 + 2, 1)


@by_each
@pytest.mark.rota("kernel", "size")
@pytest.mark.parametrize(
    "size", [size for size in (1, 257, 2047, 2048, 2049, 8191, 40_000, 300_001) if size <= LONGEST]
)
@pytest.mark.parametrize("mean", [0.0, 1e4, -1e8])
def test_a_tiny_spread_survives_a_huge_mean(kernel: Kernel, size: int, mean: float) -> None:
    exact = np.random.default_rng(size).normal(size=size) * 1e-3 + mean
    for values in (exact, exact.astype(np.float32)):
        kernel.check(values, torch.from_numpy(values))


@by_all
@pytest.mark.rota("kernel", "special")
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 3.4e38])
@pytest.mark.parametrize("at", [0, 2048, -1])
def test_one_unusual_value_among_many_is_counted_and_the_rest_stays_exact(
    kernel: Kernel, special: float, at: int
) -> None:
    values = np.random.default_rng(1).normal(size=min(100_000, LONGEST)).astype(np.float32)
    values[at % values.size] = special
    kernel.check(values, torch.from_numpy(values))


@by_each
def test_an_outlying_or_non_finite_first_block_does_not_spoil_the_spread_of_others(kernel: Kernel) -> None:
    values = np.random.default_rng(2).normal(size=5003) + 1e8
    values[:BLOCK] = 0
    kernel.check(values, torch.from_numpy(values))
    values[:2100] = -np.inf
    kernel.check(values, torch.from_numpy(values))


@by_each
def test_a_tensor_without_finite_values_does_not_change_the_moments_of_others(kernel: Kernel) -> None:
    parts = [torch.full((100,), math.nan), torch.tensor([3.0, 5.0]), torch.full((70,), math.inf), torch.empty(0)]
    kernel.check(torch.cat(parts).numpy(), *parts)


@on_cpu
@by_each
@pytest.mark.parametrize("dtype", COMPLEX)
def test_a_finite_complex_value_is_finite(kernel: Kernel, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    tensor = torch.tensor([complex(largest, largest), complex(1, 0), complex(math.inf, math.nan)], dtype=dtype)
    stats, _ = kernel.measure(tensor)
    assert (stats["count"], stats["inf"], stats["nan"]) == (3, 1, 0)
    assert stats["max"] >= largest


@on_cpu
@by_each
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(0, 1),
        lambda t: t[:, ::3],
        lambda t: t[::2].flip(1),
        lambda t: t.unsqueeze(0).expand(4, -1, -1),
        lambda t: t[0, 0],
        lambda t: t[:0],
        lambda t: t.reshape(10, 10, 30, 1).to(memory_format=torch.channels_last),
        lambda t: t.as_strided((40, 5), (1, 1)),
        lambda t: t[5:9, 7:8].permute(1, 0),
    ],
)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int16, torch.bool, torch.complex64]
)
def test_a_view_is_measured_by_its_own_elements(kernel: Kernel, view, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    base = torch.randn(50, 60, generator=torch.Generator().manual_seed(3)).mul(3).to(dtype)
    tensor = view(base)
    exact = tensor.to(torch.complex128).abs() if dtype.is_complex else tensor.double()
    kernel.check(exact.numpy(), tensor)


# --- One kernel alone -----------------------------------------------------------------------------------------------


@on_cpu
def test_numpy_processes_long_tensors_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "_PIECE", 1000)
    values = np.random.default_rng(0).normal(size=10_001).astype(np.float32)
    values[5000] = math.nan
    NUMPY.check(values, torch.from_numpy(values))


@on_cpu
def test_a_sampled_sketch_takes_at_least_the_limit_and_covers_the_whole_tensor() -> None:
    values = torch.arange(1, 2_000_001, dtype=torch.float32)
    SAMPLED.begin_step()
    stats, dense = measure(values, arena=SAMPLED)
    assert 65536 <= stats["sketched"] < 75_000
    assert dense.sum() == stats["sketched"]
    share = np.bincount(bins_of(values.numpy()), minlength=BINS) / values.numel()
    np.testing.assert_allclose(dense / dense.sum(), share, atol=2e-4)
    assert stats["mean"] == pytest.approx(1_000_000.5, rel=1e-12)


@on_cpu
def test_the_sampled_values_change_from_step_to_step() -> None:
    values = torch.arange(1, 2_000_001, dtype=torch.float32)  # the smallest values are in separate bins
    sketches = set()
    for _ in range(20):
        SAMPLED.begin_step()
        sketches.add(measure(values, arena=SAMPLED)[1].tobytes())
    assert len(sketches) > 1


@on_cpu
@pytest.mark.parametrize("is_portable", [False, True])
def test_without_a_histogram_all_other_stats_are_the_same(is_portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_portable:
        use_numpy(monkeypatch)
    for size in (0, 3, 5000, 100_003):
        tensor = torch.randn(size, generator=torch.Generator().manual_seed(3))
        found = []
        for sketched in (True, False):
            SAMPLED.begin_step(sketched)
            found.append(measure(tensor, arena=SAMPLED))
        (stats, dense), (others, none) = found
        assert dense.sum() == stats.pop("sketched") >= min(size, 65536)
        assert none.sum() == others.pop("sketched") == 0
        np.testing.assert_equal(others, stats)


@on_cpu
@pytest.mark.parametrize("is_portable", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_tensor_with_nan_or_infinities_has_its_histogram_in_every_step(
    bad: float, is_portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_portable:
        use_numpy(monkeypatch)
    for size in (3, 5000, 70_001):
        fine = torch.randn(size, 2, generator=torch.Generator().manual_seed(3))
        broken = fine.clone()
        broken[size // 2, 0] = bad
        for parts in ((broken,), (broken, fine), (broken[:, 0], broken.double()), (fine, broken)):
            found = []
            for sketched in (True, False):
                SAMPLED.begin_step(sketched)
                SAMPLED.controls[cpu.JITTER] = 7
                found.append(measure(*parts, arena=SAMPLED))
            (stats, dense), (others, counted) = found
            if parts[0] is fine:  # part of the values would be other values
                assert counted.sum() == others.pop("sketched") == 0
                del stats["sketched"]
            else:
                np.testing.assert_array_equal(counted, dense)
            np.testing.assert_equal(others, stats)


@on_cpu
@pytest.mark.parametrize("threads", [1, 2])
def test_the_result_does_not_depend_on_the_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        arena = CpuArena(16, None)
        tensor = torch.randn(1_000_003, generator=torch.Generator().manual_seed(5))
        tensor[12345] = math.nan
        stats, dense = measure(tensor, arena=arena)
    finally:
        torch.set_num_threads(before)
    expected = expect(tensor.numpy())
    assert stats["norm"] == pytest.approx(expected["norm"], rel=1e-12)
    assert stats["nan"] == 1
    np.testing.assert_array_equal(dense, np.bincount(bins_of(tensor.numpy()), minlength=BINS))


@on_cpu
def test_a_team_with_fewer_threads_than_requested_measures_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    # As OpenMP does under OMP_THREAD_LIMIT=1, one thread runs the function.
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    fork = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(
        lambda function, data, *_: work(function)(data)
    )
    monkeypatch.setattr(arena_code, "_fork_call", lambda: ctypes.cast(fork, ctypes.c_void_p).value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    tensor = torch.randn(100_000, generator=torch.Generator().manual_seed(5))
    stats, dense = measure(tensor, arena=CpuArena(16, None))
    assert stats["count"] == 100_000
    assert stats["norm"] == pytest.approx(expect(tensor.numpy())["norm"], rel=1e-12)
    np.testing.assert_array_equal(dense, np.bincount(bins_of(tensor.numpy()), minlength=BINS))


@on_cpu
def test_a_packed_row_is_empty_afterwards() -> None:
    measure(torch.randn(1000))
    assert ARENA.pack(64) == b""


@on_cpu
def test_the_unused_cells_of_the_stats_are_known() -> None:
    assert STAT_COLUMN["ratio"] == len(STATS) - 1
    assert cpu.CONTROL_CELLS * 8 <= 128


def any_tensor(pick: np.random.Generator) -> torch.Tensor:
    """Return a tensor of any size and magnitude, often with NaN, infinities, or zeros, sometimes with gaps."""
    size = int(pick.choice([0, 1, 7, 100, 2047, 2048, 2049, 5000, 40_000]))
    dtype = list(CODES)[int(pick.integers(4))]
    values = pick.normal(size=size) * (1 if dtype is torch.float16 else 10.0 ** pick.uniform(-30, 30))
    if size > 10 and pick.random() < 0.3:
        values[pick.integers(size, size=4)] = [math.nan, math.inf, -math.inf, 0.0]
    if pick.random() < 0.1:
        values[:] = math.nan
    tensor = torch.from_numpy(values).to(dtype)
    return torch.stack([tensor, tensor], 1)[:, 0] if pick.random() < 0.3 else tensor


@on_cpu
@pytest.mark.parametrize("threads", [1, 2])
def test_no_count_remains_in_a_row_or_in_what_threads_share(threads: int) -> None:
    before, pick = torch.get_num_threads(), np.random.default_rng(threads)
    torch.set_num_threads(threads)
    try:
        arena = CpuArena(8, None)
        for _ in range(80):
            expected = {}
            for slot in pick.permutation(8)[:4].tolist():
                tensors = [any_tensor(pick) for _ in range(int(pick.integers(1, 4)))]
                for tensor in tensors:
                    arena.observe(tensor, arena.row(slot))
                every = np.concatenate([tensor.double().numpy() for tensor in tensors])
                expected[slot] = np.bincount(bins_of(every), minlength=BINS)
            (harvest,) = unpack([arena.pack(8)])
            assert set(harvest.slots.tolist()) == set(expected)
            for row, slot in enumerate(harvest.slots.tolist()):
                part, dense = slice(harvest.start[row], harvest.start[row + 1]), np.zeros(BINS, np.int64)
                dense[harvest.bins[part]] = harvest.counts[part]
                np.testing.assert_array_equal(dense, expected[slot])
    finally:
        torch.set_num_threads(before)
