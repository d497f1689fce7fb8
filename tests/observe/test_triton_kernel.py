"""The CUDA kernel: its samples and programs in Triton's interpreter, its compilation, and runs on a GPU if available.

The first test starts the process of the interpreter, which runs the tests marked `interpreted`, and before a release
test_kernels.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore.observe import device, layout, reference, triton_kernel
from hookcore.observe.arena import ALIGNMENT, CODES, DeviceSlot, join
from hookcore.observe.device import (
    FREED,
    MAX_TOGETHER,
    OUTPUT,
    SEGMENT_PLACES,
    DeviceArena,
    GraphArena,
    Kernel,
    cell_of,
    write,
)
from hookcore.records.sketch import BINS
from tests.inside import class_of
from tests.kernels import BLOCK, IN_INTERPRETER, PROGRAMS, check_stats, expect, floats64, interpret
from tests.lanes import examples, runs_all

interpreted = pytest.mark.skipif(not IN_INTERPRETER, reason="runs in the process that the first test starts")
compiled = pytest.mark.skipif(IN_INTERPRETER, reason="the interpreter compiles nothing")
on_gpu = pytest.mark.skipif(IN_INTERPRETER or not torch.cuda.is_available(), reason="needs a GPU")

CPU = torch.device("cpu")
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
    triton_kernel.add(torch.ones(BLOCK * 10), DeviceSlot.of(rows[:2], histogram), 1, 0, BLOCK)
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
                triton_kernel.add(torch.from_numpy(part), DeviceSlot.of(program[None], histogram), 1, 0, BLOCK)
    merged = torch.full((len(slots), layout.CELLS), torch.nan, dtype=torch.float64)
    triton_kernel.merge(rows, merged)
    for row, parts in zip(merged.numpy(), slots, strict=True):
        check_stats(np.concatenate([np.zeros(0), *parts]), row)
        assert row[layout.PARTS] == len(parts)
    assert not rows.any()


# Several tensors by one launch.


@st.composite
def some_tensors(draw: st.DrawFn) -> torch.Tensor:
    """Return a tensor of any type and size, perhaps at an odd address, with far, non-finite, or equal values."""
    dtype = draw(st.sampled_from(DTYPES))
    size = draw(st.sampled_from([0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 7]) | st.integers(0, 3 * BLOCK))
    start = draw(st.sampled_from([0, 0, 0, 1, 3]))
    scale = draw(st.sampled_from([0.0, 1.0, 30.0, 2.0**500, 2.0**-500]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randn(size + start, generator=random, dtype=torch.float64).mul(scale)
    if dtype.is_floating_point and size:
        odd = draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf, 0.0]), max_size=3))
        values[start : start + len(odd)] = torch.tensor(odd[:size], dtype=torch.float64)[: size + start]
    elif scale > 30:
        values.zero_()  # beyond what whole numbers hold
    return values.to(dtype)[start:]


@interpreted
@settings(deadline=None, max_examples=examples(20))
@given(st.lists(some_tensors(), min_size=1, max_size=2), st.sampled_from([None, 0, 100, 5 * BLOCK]), st.booleans())
def test_a_table_leads_to_the_rows_of_single_launches_if_its_gate_is_open(
    tensors: list[torch.Tensor], limit: int | None, is_open: bool
) -> None:
    programs = triton_kernel.programs_on(CPU)
    rows, alone = torch.zeros((2, programs, layout.CELLS), dtype=torch.float64)
    histogram, sketch = torch.zeros((2, BINS), dtype=torch.int32)
    gate = torch.tensor([int(is_open), 3, -1 if limit is None else limit, 12345])
    table = torch.tensor([0, gate.data_ptr(), 0, 0, rows.data_ptr(), histogram.data_ptr()])
    with np.errstate(invalid="ignore", over="ignore"):
        for tensor in tensors:
            triton_kernel.write(tensor, table, 2, BLOCK)  # a tensor without rows
            triton_kernel.write(tensor, table, 4, BLOCK)
            if is_open:
                stride = reference.stride_of(tensor.numel(), limit)
                triton_kernel.add(tensor, DeviceSlot.of(alone, sketch), stride, 12345, BLOCK)
    begun = rows[:, layout.STEP].clone()
    rows[:, layout.STEP] = 0
    assert torch.equal(rows, alone)
    assert torch.equal(histogram, sketch)
    assert float(begun[0]) == (3 if is_open else 0)
    rows[:, layout.STEP] = begun
    merged = torch.zeros((1, layout.CELLS), dtype=torch.float64)
    triton_kernel.merge(rows[None], merged)
    assert float(merged[0, layout.STEP]) == float(begun[0])


def interpreted_arena(launches: list[int], limit: int | None, together: bool) -> DeviceArena:
    """Return an arena whose kernels run in the interpreter. `launches`: how many tensors each launch has had."""

    def add(*given: Any) -> None:
        launches.append(1)
        triton_kernel.add(*given, block=BLOCK)

    def add_all(given: Sequence[Any], offset: int) -> None:
        launches.append(len(given))
        triton_kernel.add_all(given, offset, BLOCK)

    arena = DeviceArena(CPU, 1000, limit)
    arena.begin_step(limit)
    arena.offset = 12345
    arena.kernel = Kernel(add, triton_kernel.merge, PROGRAMS, add_all if together else None)
    return arena


def devices_with(arena: DeviceArena, errors: list[Any]) -> Any:
    """Return the devices of a watcher that has only this one."""
    host = SimpleNamespace(capacity=arena.capacity, sketch_values=arena.sketch_values)
    devices = class_of("Devices")(host, SimpleNamespace(record=lambda *error: errors.append(error)))
    devices.arenas[CPU, 0] = arena
    return devices


PLAN: Final = SimpleNamespace(note_reason=lambda reason: pytest.fail(reason))


def harvest_together(
    given: Sequence[tuple[torch.Tensor, int]], limit: int | None, together: bool
) -> tuple[list[bytes], list[int]]:
    """Return all numbers of a step, as bytes, and how many tensors each launch had."""
    launches: list[int] = []
    errors: list[Any] = []
    arena = interpreted_arena(launches, limit, together)
    devices = devices_with(arena, errors)
    with np.errstate(invalid="ignore", over="ignore"), devices.together():
        for tensor, slot in given:
            devices.observe(PLAN, tensor, slot, stays=True)
    assert errors == []
    harvest = join([transfer.finish() for transfer in devices.begin_transfers()])
    order = np.argsort(harvest.slots)
    counts = np.split(harvest.counts, harvest.start[1:-1])
    bins = np.split(harvest.bins, harvest.start[1:-1])
    whole = [harvest.slots[order], harvest.cells[order], *(part[row] for part in (bins, counts) for row in order)]
    return [part.tobytes() for part in whole], launches


@interpreted
@settings(deadline=None, max_examples=examples(30))
@given(st.lists(st.tuples(some_tensors(), st.sampled_from([3, 4, 5, 200])), min_size=1, max_size=6), st.booleans())
def test_tensors_measured_together_have_the_numbers_of_each_alone(
    given: list[tuple[torch.Tensor, int]], sketched: bool
) -> None:
    limit = None if sketched else 0
    alone, launches = harvest_together(given, limit, together=False)
    assert launches == [1] * len(given)
    together, launches = harvest_together(given, limit, together=True)
    assert together == alone or len({slot for _, slot in given}) < len(given), "to the bit, if each has its own slot"
    assert [len(part) for part in together] == [len(part) for part in alone]
    assert sum(launches) == len(given)


@interpreted
def test_one_launch_for_each_type_measures_what_is_small_and_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcore.observe.device.MAX_TOGETHER", 500)
    given = [(torch.randn(n), n) for n in (1, 50, 300)] + [(torch.ones(n, dtype=torch.bfloat16), n) for n in (2, 40)]
    odd = [(torch.randn(9)[1:], 500), (torch.randn(501), 501), (torch.randn(8, 8)[:, ::2], 502)]
    _, launches = harvest_together(given + odd, 1024, together=True)
    assert launches == [1, 1, 1, 3, 2]


@interpreted
def test_a_slot_that_gets_two_tensors_gets_them_one_after_the_other() -> None:
    given = [(torch.full((100,), 1.0), 7), (torch.full((50,), 2.0), 8), (torch.full((300,), 4.0), 7)]
    together, launches = harvest_together(given, 1024, together=True)
    assert launches == [2, 1]
    assert together == harvest_together(given, 1024, together=False)[0]


@pytest.mark.skipif(IN_INTERPRETER, reason="fakes the launch")
@pytest.mark.parametrize("error", [RuntimeError("doesn't compile"), torch.OutOfMemoryError("no memory")])
def test_if_several_tensors_cannot_be_launched_together_each_is_measured_alone(error: Exception) -> None:
    def broken(*given: Any) -> None:
        raise error

    errors: list[Any] = []
    arena = DeviceArena(CPU, 1000, 1024)
    arena.kernel = arena.kernel._replace(add_all=broken)
    devices = devices_with(arena, errors)
    for _ in range(2):
        with devices.together():
            for slot in range(3):
                devices.observe(PLAN, torch.full((10,), float(slot)), slot, stays=True)
            devices.observe(PLAN, torch.full((10,), 3, dtype=torch.int32), 3, stays=True)
    (transfer,) = devices.begin_transfers()
    cells = transfer.finish().cells
    assert cells[:, layout.MEAN].tolist() == [0, 1, 2, 3]
    assert cells[:, layout.PARTS].tolist() == [2, 2, 2, 2]
    assert len(errors) == (4 if isinstance(error, torch.OutOfMemoryError) else 1)  # memory may be there again


@pytest.mark.skipif(IN_INTERPRETER, reason="fakes the launch")
def test_another_thread_measures_at_once_what_it_adds_meanwhile() -> None:
    import threading

    arena = DeviceArena(CPU, 1000, 1024)
    arena.kernel = arena.kernel._replace(add_all=lambda given, offset: seen.append([len(each[0]) for each in given]))
    devices, seen = devices_with(arena, []), list[list[int]]()
    with devices.together():
        devices.observe(PLAN, torch.ones(5), 0, stays=True)
        other = threading.Thread(target=lambda: devices.observe(PLAN, torch.ones(6), 1, stays=True))
        other.start()
        other.join()
        devices.observe(PLAN, torch.ones(7), 2, stays=False)  # a temporary one
    assert seen == [[5]]
    (transfer,) = devices.begin_transfers()
    assert transfer.finish().cells[:, layout.FINITE].tolist() == [6, 7]


@pytest.mark.skipif(IN_INTERPRETER, reason="fakes the launch")
def test_several_tensors_are_launched_on_their_device_and_stream_also_the_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, seen = torch.device("cuda", 1), list[str]()

    @contextmanager
    def stream(chosen: str) -> Iterator[None]:
        seen.append(chosen)
        yield
        seen.append("before")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(device, "is_stream_capturing", lambda: False)
    on = device.Segment.on
    monkeypatch.setattr(device.Segment, "on", lambda _, programs: on(CPU, programs))
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    arena = DeviceArena(gpu, 1000, 1024)
    arena.kernel = arena.kernel._replace(add_all=lambda given, offset: seen.append(f"{len(given)} tensors"))
    for _ in range(2):
        arena.observe_all([(torch.ones(5), 3), (torch.ones(6), 4)])
    assert seen == ["stream of cuda:1", "2 tensors", "before"] * 2


@pytest.mark.skipif(IN_INTERPRETER, reason="fakes the device")
def test_numbers_leave_a_gpu_on_its_stream_without_a_wait_and_are_read_after_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, gpu = list[str](), torch.device("cuda", 0)

    class Event:
        def record(self) -> None:
            seen.append("record")

        def synchronize(self) -> None:
            seen.append("wait")

    @contextmanager
    def stream(chosen: str) -> Iterator[None]:
        seen.append(chosen)
        yield
        seen.append("before")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "its stream")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(device, "is_stream_capturing", lambda: False)
    monkeypatch.setattr(device, "current_gpu", lambda: 0)
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    monkeypatch.setattr(device, "SEGMENT_PLACES", 2)
    on, empty = device.Segment.on, torch.empty
    monkeypatch.setattr(device.Segment, "on", lambda _, programs: on(CPU, programs))
    monkeypatch.setattr(torch, "empty", lambda *given, **named: empty(*given, **named | {"device": "cpu"}))
    arena = DeviceArena(gpu, 1000, None)
    for step in range(2):
        seen.clear()
        with torch.inference_mode(step == 0):  # in which host memory is allocated that later steps use, too
            for slot in range(3):
                assert arena.observe(torch.full((slot + 1,), float(slot + step)), slot) is None
            transfers = arena.begin_transfers()
        assert seen == ["its stream", "record", "before"] * 2
        harvests = [transfer.finish() for transfer in transfers]
        assert seen[6:] == ["wait"] * 2
        assert [harvest.slots.tolist() for harvest in harvests] == [[0, 1], [2]]
        assert [harvest.cells[:, layout.MAX].tolist() for harvest in harvests] == [[step, 1 + step], [2 + step]]
        assert [harvest.counts.sum() for harvest in harvests] == [3, 3]
        assert len(arena._buffers.free) == 2, "host memory is used again"


def test_a_tensor_whose_memory_was_freed_is_not_read() -> None:
    arena = DeviceArena(CPU, 1000, 1024)
    arena.kernel = arena.kernel._replace(add_all=lambda given, offset: pytest.fail("read"))
    for tensor in (torch.ones(100), torch.ones(100)[10:]):
        tensor.untyped_storage().resize_(0)
        assert arena.observe(tensor, 0) == FREED
        assert not arena.can_wait(tensor, 0)
    assert arena.observe(torch.ones(0), 0) is None


@pytest.mark.skipif(IN_INTERPRETER, reason="needs no kernel")
def test_rows_of_graphs_have_the_numbers_of_one_step_and_those_of_another_are_left_out_and_counted() -> None:
    stale = list[int]()
    arena = GraphArena(CPU, None, stale.append)
    table = arena.table(0)
    first, second = (arena.want(table, cell) for cell in (cell_of(0, OUTPUT), cell_of(1, OUTPUT)))
    arena.name(first, 7)
    tensor = torch.ones(5)
    write(tensor, table, cell_of(0, OUTPUT))  # before the first step
    for _ in range(2):  # a pause in between
        arena.begin_step(None)
        write(tensor, table, cell_of(0, OUTPUT))
        write(tensor, table, cell_of(1, OUTPUT))  # which nothing has named
    arena.off()
    write(tensor, table, cell_of(0, OUTPUT))
    (transfer,) = arena.begin_transfers()
    late = replace(transfer, step=2)
    harvest = transfer.finish()
    assert harvest.slots.tolist() == [7]
    assert harvest.cells[:, layout.FINITE].tolist() == [10]
    assert stale == [1]
    assert not late.finish().slots.size
    assert stale == [1, 2]
    arena.name(second, 8)
    arena.begin_step(0)
    write(tensor, table, cell_of(0, OUTPUT))
    arena.clear([7])
    (transfer,) = arena.begin_transfers()
    assert transfer.finish().slots.size == 0


# Launches, by Triton's code and a driver that only notes them.


class Driver:
    """A driver of Triton's without a GPU: kernels are compiled for an H100, and their launches are noted."""

    def __init__(self) -> None:
        from triton.backends.nvidia.driver import CudaLauncher

        self.launches: list[tuple[list[Any], list[int]]] = []  # what a launcher gets, and the kernel's own arguments
        self.streams = {0: 7}
        self.get_current_stream = self.streams.get  # as torch's, it is not a function in Python
        self.launcher_cls = CudaLauncher
        self.utils = SimpleNamespace(
            load_binary=self._load,
            launch=self._launch,
            get_device_properties=lambda device: {"max_shared_mem": 232448},
            build_signature_metadata=tuple,
        )
        self._loaded = 1000

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def _load(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        assert kernel.startswith(b"\x7fELF")
        self._loaded += 1
        return 0, self._loaded, 64, 0, 1024

    def _launch(self, *given: Any) -> None:
        *grid, stream, function, one, two, packed, metadata, enter, _, first, second, kinds, types, own = given
        if enter is not None:
            enter(metadata)
        where = [*grid, stream, function, one, two, packed, first, second, types]
        taken = [each for each, kind in zip(own, kinds, strict=True) if kind == "argument"]
        self.launches.append((where, [each if isinstance(each, int) else each.data_ptr() for each in taken]))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Let Triton launch on this driver."""
    import triton
    from triton.backends.nvidia import driver as nvidia

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))
    for name, value in {"ARG_CONSTEXPR": "constant", "ARG_KERNEL": "argument", "ARG_TUPLE": "tuple"}.items():
        monkeypatch.setattr(nvidia, name, value)
    monkeypatch.setattr(nvidia, "PyKernelArg", lambda nested_tuple, type: type)
    found = Driver()
    triton.runtime.driver.set_active(found)
    kernels = triton_kernel.observe, triton_kernel.observe_all, triton_kernel.merge_rows, triton_kernel.observe_gated
    yield found
    triton.runtime.driver.set_active(None)
    triton_kernel.AGAIN.clear()
    for kernel in kernels:
        kernel.device_caches.clear()


def driven_arena(programs: int = 264) -> DeviceArena:
    """Return an arena whose launches Triton passes to its active driver."""
    arena = DeviceArena(CPU, 1000, 65_536)
    arena.begin_step(65_536)
    arena.kernel = Kernel(triton_kernel.add, triton_kernel.merge, programs, triton_kernel.add_all)
    return arena


@compiled
@pytest.mark.slow
def test_a_repeated_launch_is_the_one_that_triton_would_make(driver: Driver) -> None:
    arena = driven_arena()
    tensors = [torch.randn(n)[start:] for n in (800, 90_000, 0) for start in (0, 1)]
    for known in (False, True):  # by Triton the first time of each kind, then again
        for tensor in tensors:
            if not known:
                triton_kernel.AGAIN.clear()
            arena.observe(tensor, 5)
        for _ in range(2):
            arena.observe_all([(tensor, 10 + place) for place, tensor in enumerate(tensors) if place % 2 == 0])
            rows = torch.zeros(3, 264, layout.CELLS, dtype=torch.float64)
            merged = torch.zeros(3, layout.CELLS, dtype=torch.float64)
            triton_kernel.merge(rows, merged)
    first, again = driver.launches[: len(driver.launches) // 2], driver.launches[len(driver.launches) // 2 :]
    assert first[:6] == again[:6]
    assert [where for where, _ in first] == [where for where, _ in again]
    functions = [where[4] for where, _ in first]
    assert functions[0] != functions[1], "a tensor at an odd address has a kernel of its own"
    assert len(set(functions)) == 4
    grids = [where[0] for where, _ in first[:6]]
    assert grids == [4, 4, 264, 264, 1, 1]
    assert first[6][0][0] == 4 + 264 + 1


@compiled
@pytest.mark.slow
def test_what_writes_by_a_table_compiles_for_an_h100_and_is_launched_again_with_the_same_addresses(
    driver: Driver,
) -> None:
    tensors, table = [torch.randn(90_000)[start:] for start in (0, 1)], torch.zeros(50, dtype=torch.int64)
    assert not triton_kernel.write(tensors[0], table, 6, compiles=False)
    for compiles in (True, False):
        for tensor in tensors:
            assert triton_kernel.write(tensor, table, 6, compiles=compiles)
    first, again = driver.launches[:2], driver.launches[2:]
    assert [given for _, given in first] == [given for _, given in again]
    assert [given for _, given in first] == [[each.data_ptr(), each.numel(), table.data_ptr(), 6] for each in tensors]
    assert first[0][0][4] != first[1][0][4]


@compiled
@pytest.mark.slow
def test_a_launch_is_on_the_stream_that_is_current_and_calls_the_hooks_of_a_profiler(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton import knobs

    arena, tensor, seen = driven_arena(), torch.randn(800), list[str]()
    hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
    arena.observe(tensor, 0)
    for stream in (7, 8):
        driver.streams[0] = stream
        arena.observe(tensor, 0)
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        arena.observe(tensor, 0)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    for alone in (None, hook):  # as in older releases
        monkeypatch.setattr(knobs.runtime, "launch_enter_hook", alone)
        arena.observe(tensor, 0)
    assert [where[3] for where, _ in driver.launches] == [7, 7, 8, 8, 8, 8]
    assert len({str(given) for _, given in driver.launches}) == 1
    assert seen == ["observe", "observe"]


ALLOCATIONS: Final = {"empty", "zeros", "cat", "to", "contiguous", "clone"}


def count(work: Callable[[], object]) -> tuple[Counter[str], int]:
    """Return the calls of C functions by name, and how many of functions in other Python files."""
    by_name: Counter[str] = Counter()
    calls = 0

    def saw(frame: Any, event: str, what: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename != __file__
        if event == "c_call":
            by_name[what.__name__] += 1

    sys.setprofile(saw)
    try:
        work()
    finally:
        sys.setprofile(None)
    return by_name, calls


@compiled
@pytest.mark.slow
def test_an_observation_is_one_launch_and_few_calls_and_several_tensors_take_one_copy(driver: Driver) -> None:
    arena = driven_arena()
    tensors = [(torch.randn(768), slot) for slot in range(300)]
    for _ in range(2):
        arena.observe(*tensors[0])
        arena.observe_all(tensors[:SEGMENT_PLACES])
        arena.begin_transfers()
    driver.launches.clear()
    by_name, calls = count(lambda: arena.observe(*tensors[0]))
    assert len(driver.launches) == 1
    assert calls <= 11
    assert not ALLOCATIONS & set(by_name)
    several = tensors[:SEGMENT_PLACES]
    driver.launches.clear()
    by_name, calls = count(lambda: arena.observe_all(several))
    assert len(driver.launches) == 1
    assert calls <= 4 * len(several)
    assert (by_name["empty"], by_name["to"]) == (1, 1)
    driver.launches.clear()
    by_name, calls = count(arena.begin_transfers)
    assert len(driver.launches) == 1
    assert calls <= 60
    assert (by_name["empty"], by_name["clone"], by_name["zeros"]) == (0, 2, 0)
    arena.begin_step(65_536)
    driver.launches.clear()
    by_name, calls = count(lambda: [arena.observe(*each) for each in tensors])
    assert len(driver.launches) == len(tensors) + 4, "64 taps leave together, and need no more memory on the device"
    assert calls <= 13 * len(tensors)
    assert (by_name["empty"], by_name["zeros"]) == (0, 0)
    assert arena.nbytes <= 8192 * 400


def test_every_slot_of_a_device_is_where_the_kernels_expect_it() -> None:
    for programs in (1, PROGRAMS, 264):
        rows = torch.zeros((64, programs, layout.CELLS), dtype=torch.float64)
        histograms = torch.zeros((64, BINS), dtype=torch.int32)
        for slot in map(DeviceSlot.of, rows, histograms):
            assert slot.rows_at % ALIGNMENT == slot.histogram_at % ALIGNMENT == 0
            assert slot.programs == programs


def signature_of(kernel: str, kind: str) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """Return a kernel with the types of its arguments and its constants, for tensors of a type."""
    constants: dict[str, Any] = {
        "WIDE": kind in ("fp64", "i64"),
        "FAR": kind == "fp64",
        "BLOCK": triton_kernel.BLOCK,
        "SKETCH_BLOCK": triton_kernel.SKETCH_BLOCK,
    }
    if kernel == "observe":
        types = {
            "values": f"*{kind}",
            "n": "i32",
            "rows": "*fp64",
            "histogram": "*i32",
            "stride": "i32",
            "offset": "i32",
        }
        return triton_kernel.observe, types, constants
    import triton.language as tl

    constants["TYPE"] = {"fp32": tl.float32, "bf16": tl.bfloat16, "fp64": tl.float64, "i64": tl.int64}[kind]
    return triton_kernel.observe_all, {"table": "*i64", "many": "i32", "offset": "i32"}, constants


@compiled
@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp64", "i64"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile_without_a_gpu_and_read_alike(
    capability: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    options = {
        "num_warps": triton_kernel.WARPS,
        "maxnreg": triton_kernel.MAX_REGISTERS,
        "enable_fp_fusion": True,
    }
    loads = []
    for kernel in ("observe", "observe_all"):
        function, types, constants = signature_of(kernel, kind)
        aligned = {
            (place,): [["tt.divisibility", ALIGNMENT]] for place, each in enumerate(types.values()) if "*" in each
        }
        source = ASTSource(
            fn=function,
            signature=types | dict.fromkeys(constants, "constexpr"),
            constexprs=constants,
            attrs=aligned,
        )
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert built.asm["cubin"]
        loads.append(Counter(line.split()[-2] for line in built.asm["ptx"].splitlines() if "ld.global.v" in line))
    assert loads[0] == loads[1] != Counter(), "whole blocks are read several values at once"


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
    (transfer,) = arena.begin_transfers()
    harvest = transfer.finish()
    check_stats(np.tile(values.double().numpy(), 2), harvest.cells[0])
    expected = 2 * reference.bins(values, limit, arena.offset).numpy()
    assert dict(zip(harvest.bins.tolist(), harvest.counts.tolist(), strict=True)) == {
        int(bin_number): int(expected[bin_number]) for bin_number in np.flatnonzero(expected)
    }


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("limit", [0, 65_536])
def test_a_gpu_measures_tensors_together_as_each_alone_and_waits_for_neither(limit: int) -> None:
    gpu, harvests = torch.device("cuda", 0), []
    random = torch.Generator().manual_seed(3)
    sizes = [0, 1, 7, 768, 2047, 2048, 2049, 100_000, MAX_TOGETHER]
    given = [torch.randn(size, generator=random).mul(20).to(dtype) for dtype in DTYPES for size in sizes]
    for values in given[3:]:
        if values.is_floating_point() and values.numel() > 2:
            values[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    on_device = [(values.to(gpu), slot) for slot, values in enumerate(given)]
    for together in (False, True):
        arena = DeviceArena(gpu, 1000, limit)
        for step in range(2):  # the first one compiles
            arena.begin_step(limit)
            arena.offset = 12345
            torch.cuda.set_sync_debug_mode("error" if step else "default")
            try:
                for dtype in DTYPES:
                    alike = [(values, slot) for values, slot in on_device if values.dtype is dtype]
                    if together:
                        arena.kernel = arena.kernel._replace(add_all=triton_kernel.add_all)
                        assert all(arena.can_wait(*each) for each in alike)
                        arena.observe_all(alike)
                    else:
                        assert [arena.observe(*each) for each in alike] == [None] * len(alike)
                transfers = arena.begin_transfers()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        harvests.append(join([transfer.finish() for transfer in transfers]))
    assert [part.tobytes() for part in harvests[0]] == [part.tobytes() for part in harvests[1]]


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_observing_on_a_gpu_never_waits_for_it() -> None:
    arena = DeviceArena(torch.device("cuda", 0), 10, None)
    values = torch.randn(1000, 1000, device="cuda")
    arena.observe(values, 0)  # compiles
    arena.begin_transfers()
    torch.cuda.set_sync_debug_mode("error")
    try:
        arena.observe(values, 0)
        arena.observe(values.t()[::2], 1)
        for slot in range(2, 2 * SEGMENT_PLACES):
            arena.observe(values[0], slot)
        second = arena.begin_transfers()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(second) == 2
    assert second[0].finish().cells[0, layout.FINITE] == expect(values.cpu().numpy())["count"]
