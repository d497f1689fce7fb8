"""Statistics by torch's operators, as far as test_kernels.py doesn't cover them, and their arena on other devices."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from hookcore.observe import copies, cpu, device, layout, reference
from hookcore.observe.arena import CpuArena, Harvest, join, unpack
from hookcore.observe.device import KEPT_HOST_BUFFERS, SEGMENT_PLACES, DeviceArena, HostBuffers
from hookcore.observe.plain import make_plain, unseen
from hookcore.records.sketch import BINS, bins_of
from tests.inside import module_of
from tests.kernels import check_stats, floats32
from tests.lanes import examples

CPU = torch.device("cpu")


def check(values: np.ndarray, tensor: torch.Tensor) -> None:
    check_stats(values, reference.measure(tensor).numpy())
    in_bins = np.bincount(bins_of(values.astype(np.float64).reshape(-1)), minlength=BINS)
    np.testing.assert_array_equal(reference.bins(tensor).numpy(), in_bins)


@settings(deadline=None, max_examples=examples(30))
@given(floats32, st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2]))
def test_a_float8_is_measured_by_its_own_values(values: np.ndarray, dtype: torch.dtype) -> None:
    tensor = torch.from_numpy(values).to(dtype)
    plain = make_plain(tensor)
    assert isinstance(plain, torch.Tensor)
    check(tensor.float().numpy(), plain)


def test_pieces_of_a_long_tensor_merge_to_the_stats_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).normal(size=10_001).astype(np.float32) + 1000
    values[:4000] = np.nan  # some pieces have no finite value
    values[[5000, 7000, 10_000]] = [np.inf, 0.0, -np.inf]
    monkeypatch.setattr(reference, "PIECE", 512)
    check(values, torch.from_numpy(values))


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda: torch.tensor([3 + 4j, 0, -5j]), [5, 0, 5]),
        (lambda: torch.tensor([3 + 4j]).conj().imag, [-4]),
        (lambda: torch.tensor([[0.0, 2.0], [-3.0, 0.0]]).to_sparse(), [2, -3]),
        (lambda: torch.sparse_coo_tensor([[1, 1]], [2.0, 5.0], (3,), check_invariants=True), [7]),
        (lambda: torch.tensor([[0.0, 2.0], [-3.0, 0.0]]).to_sparse_csr(), [2, -3]),
        (lambda: torch.tensor([1.0, -2.0]).to_mkldnn(), [1, -2]),
        (lambda: torch.nested.nested_tensor([torch.ones(2), -torch.ones(1)]), [1, 1, -1]),
        (lambda: torch.tensor([1, 2**16 - 1], dtype=torch.uint16), [1, 2**16 - 1]),
    ],
    ids=["complex", "negative-bit", "sparse", "sparse-duplicates", "csr", "mkldnn", "nested", "uint16"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_unusual_tensor_is_measured_by_the_values_it_represents(make, values: list[float]) -> None:  # type: ignore[no-untyped-def]
    plain = make_plain(make())
    assert isinstance(plain, torch.Tensor)
    check(np.array(values, np.float64), plain)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 5000), st.integers(0, 700), st.integers(0, 2**30))
def test_the_sampled_values_are_those_of_the_cpu_kernel(number: int, limit: int, offset: int) -> None:
    tensor = torch.arange(1, number + 1, dtype=torch.float64) ** 3
    arena = CpuArena(1, limit)
    arena.controls[cpu.JITTER] = offset
    arena.observe(tensor, arena.row(0))
    (harvest,) = unpack([arena.pack(1)])
    dense = np.zeros(BINS, np.int64)
    dense[harvest.bins] = harvest.counts
    np.testing.assert_array_equal(reference.bins(tensor, limit, offset).numpy(), dense)
    assert reference.sample(tensor, limit, offset).numel() >= min(number, limit)


def test_rows_without_values_add_nothing_to_a_merge() -> None:
    row = reference.measure(torch.tensor([5.0, 7.0]))
    merged = reference.combine(torch.stack([torch.zeros_like(row), row, torch.zeros_like(row)]))
    assert torch.equal(merged, row)


# -- the arena --------------------------------------------------------------------------------------------------------


def dense_of(harvest: Harvest, row: int) -> np.ndarray:
    dense = np.zeros(BINS, np.int64)
    part = slice(harvest.start[row], harvest.start[row + 1])
    dense[harvest.bins[part]] = harvest.counts[part]
    return dense


def end_step(arena: DeviceArena) -> Harvest:
    return join([transfer.finish() for transfer in arena.begin_transfers()])


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(floats32, min_size=1, max_size=4))
def test_micro_batches_merge_in_a_slot(parts: list[np.ndarray]) -> None:
    arena = DeviceArena(CPU, 1000, None)
    for part in parts:
        assert arena.observe(torch.from_numpy(part), 130) is None
    harvest = end_step(arena)
    whole = np.concatenate(parts)
    assert harvest.slots.tolist() == [130]
    check_stats(whole, harvest.cells[0])
    assert harvest.cells[0, layout.PARTS] == len(parts)
    assert harvest.cells[0, layout.SKETCHED] == whole.size
    np.testing.assert_array_equal(dense_of(harvest, 0), np.bincount(bins_of(whole), minlength=BINS))


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), floats32), min_size=1, max_size=6))
def test_rows_of_one_tap_on_several_streams_are_one_row(parts: list[tuple[int, int, np.ndarray]]) -> None:
    arenas = [DeviceArena(CPU, 1000, None) for _ in range(3)]
    for arena, slot, values in parts:
        arenas[arena].observe(torch.from_numpy(values), slot)
    harvest = join([transfer.finish() for arena in arenas for transfer in arena.begin_transfers()])
    assert sorted(harvest.slots.tolist()) == sorted({slot for _, slot, _ in parts})
    for row, slot in enumerate(harvest.slots.tolist()):
        whole = np.concatenate([values for _, of, values in parts if of == slot])
        check_stats(whole, harvest.cells[row])
        assert harvest.cells[row, layout.PARTS] == sum(of == slot for _, of, _ in parts)
        np.testing.assert_array_equal(dense_of(harvest, row), np.bincount(bins_of(whole), minlength=BINS))


@settings(deadline=None, max_examples=examples(20))
@given(st.lists(st.integers(0, 5), min_size=6, max_size=40), st.lists(st.integers(0, 5), max_size=2), st.data())
def test_slots_that_leave_because_all_places_are_taken_have_their_numbers_at_the_end(
    slots: list[int], dropped: list[int], data: st.DataObject
) -> None:
    """With two places, taps leave, come back, and get places of their own. Some are dropped halfway."""
    drop_after = data.draw(st.integers(0, len(slots)))
    with pytest.MonkeyPatch.context() as few:
        few.setattr(device, "SEGMENT_PLACES", 2)
        arena = DeviceArena(CPU, 1000, None)
        for _ in range(3):
            kept: dict[int, list[int]] = {}
            for at, slot in enumerate(slots):
                if at == drop_after:
                    arena.clear(dropped)
                    kept = {each: values for each, values in kept.items() if each not in dropped}
                arena.observe(torch.full((slot + 1,), float(at)), slot)
                kept.setdefault(slot, []).append(at)
            harvest = end_step(arena)
            rows = {slot: row for row, slot in enumerate(harvest.slots.tolist())}
            assert rows.keys() == kept.keys()
            for slot, row in rows.items():
                whole = np.repeat(np.float32(kept[slot]), slot + 1)
                check_stats(whole, harvest.cells[row])
                assert harvest.cells[row, layout.PARTS] == len(kept[slot])
                np.testing.assert_array_equal(dense_of(harvest, row), np.bincount(bins_of(whole), minlength=BINS))


def test_taps_that_are_measured_once_a_step_need_no_more_memory_than_a_few() -> None:
    arena = DeviceArena(CPU, 1 << 16, None)
    assert arena.nbytes == 0
    for _ in range(2):
        for slot in range(60_000, 60_000 - 500, -1):
            arena.observe(torch.full((3,), float(slot)), slot)
        assert end_step(arena).cells[:, layout.MEAN].tolist() == list(range(60_000, 60_000 - 500, -1))
        assert 0 < arena.nbytes < SEGMENT_PLACES * layout.ROW_BYTES * 2


def test_taps_of_micro_batches_leave_at_most_once_a_step() -> None:
    arena, slots = DeviceArena(CPU, 1000, None), range(SEGMENT_PLACES + 10)
    for _ in range(3):
        for _ in range(50):
            for slot in slots:
                arena.observe(torch.full((2,), float(slot)), slot)
        transfers = arena.begin_transfers()
        assert len(transfers) <= 3
        assert sum(transfer.nbytes for transfer in transfers) <= 3 * SEGMENT_PLACES * layout.ROW_BYTES * 2
        harvest = join([transfer.finish() for transfer in transfers])
        assert sorted(harvest.cells[:, layout.MAX].tolist()) == list(slots)
        assert set(harvest.cells[:, layout.PARTS]) == {50}


def test_a_slot_is_empty_after_its_step_and_steps_are_returned_in_order() -> None:
    arena = DeviceArena(CPU, 10, None)
    transfers: list[device.Transfer] = []
    for step in range(3):
        arena.observe(torch.full((4,), float(step)), step)
        transfers += arena.begin_transfers()
    assert arena.begin_transfers() == []
    harvests = [transfer.finish() for transfer in transfers]
    assert [harvest.slots.tolist() for harvest in harvests] == [[0], [1], [2]]
    assert [harvest.cells[0, layout.MAX] for harvest in harvests] == [0, 1, 2]


def test_another_thread_can_finish_a_transfer_during_training() -> None:
    arena = DeviceArena(CPU, 10, None)
    arena.observe(torch.ones(4), 1)
    (transfer,) = arena.begin_transfers()
    arena.observe(torch.zeros(4), 1)
    harvests: list[Harvest] = []
    thread = threading.Thread(target=lambda: harvests.append(transfer.finish()))
    thread.start()
    thread.join()
    assert harvests[0].cells[0, layout.MEAN] == 1


def test_a_slot_beyond_the_capacity_is_refused_with_a_reason() -> None:
    arena = DeviceArena(CPU, 10, None)
    reason = arena.observe(torch.ones(3), 10)
    assert reason is not None
    assert "room" in reason
    assert arena.nbytes == 0


def test_numbers_leave_in_inference_mode_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "SEGMENT_PLACES", 2)
    arena = DeviceArena(CPU, 1000, None)
    for mode in (True, False) * 2:
        with torch.inference_mode(mode):
            for slot in range(7):
                assert arena.observe(torch.full((2,), float(slot)), slot) is None
            assert end_step(arena).cells[:, layout.MAX].tolist() == list(range(7))


def test_a_failing_kernel_is_replaced_and_no_value_is_lost() -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("no compiler here")

    arena = DeviceArena(CPU, 10, None)
    arena.kernel = arena.kernel._replace(add=broken)
    arena.observe(torch.tensor([1.0, 3.0]), 0)
    arena.observe(torch.tensor([5.0]), 0)
    harvest = end_step(arena)
    assert harvest.cells[0, layout.MEAN] == 3
    assert harvest.cells[0, layout.PARTS] == 2
    assert "no compiler here" in arena.fallback_reason


def no_memory(*arguments: object, **named: object) -> NoReturn:
    raise torch.OutOfMemoryError("no memory left")


def test_refused_memory_is_requested_again_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, asked = DeviceArena(CPU, 1000, None), []
    arena.begin_step(None)
    with monkeypatch.context() as full:
        full.setattr(device.Segment, "on", lambda *_: (asked.append(1), no_memory()))
        for slot in (500, 501):
            with pytest.raises(torch.OutOfMemoryError):
                arena.observe(torch.ones(3), slot)
        with pytest.raises(torch.OutOfMemoryError):
            arena.observe(torch.ones(4, 6)[:, ::2], 1)  # needs a copy, which was not tried
        assert len(asked) == 1
    with pytest.raises(torch.OutOfMemoryError):
        arena.observe(torch.ones(3), 500)  # still the same step
    assert arena.begin_transfers() == []
    arena.begin_step(None)
    arena.observe(torch.ones(3), 500)
    assert end_step(arena).slots.tolist() == [500]


def test_taps_with_a_place_are_measured_when_there_is_no_memory_for_more_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "SEGMENT_PLACES", 2)
    arena = DeviceArena(CPU, 1000, None)
    arena.begin_step(None)
    for slot in (0, 1, 2, 0):  # the last one comes back
        arena.observe(torch.ones(3), slot)
    with monkeypatch.context() as full:
        full.setattr(device.Segment, "on", no_memory)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                arena.observe(torch.ones(3), 3)
            arena.observe(torch.ones(3), 2)
    harvest = end_step(arena)
    assert harvest.slots.tolist() == [0, 1, 2]
    assert harvest.cells[:, layout.PARTS].tolist() == [2, 1, 3]


@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_step_that_cannot_be_read_out_leaves_nothing_for_the_next_one(
    at_the_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "SEGMENT_PLACES", 2)
    arena = DeviceArena(CPU, 1000, None)
    arena.observe(torch.tensor([5.0, 7.0]), 0)
    arena.observe(torch.ones(3), 200)
    kernel, arena.kernel = arena.kernel, arena.kernel._replace(merge=no_memory)
    leave = arena.begin_transfers if at_the_end else lambda: arena.observe(torch.ones(3), 300)
    with pytest.raises(
        RuntimeError, match="the numbers of 2 tensors were lost on their way to the host: no memory left"
    ):
        leave()
    arena.kernel = kernel
    assert arena.begin_transfers() == []
    arena.observe(torch.tensor([1.0]), 0)
    harvest = end_step(arena)
    assert harvest.slots.tolist() == [0]
    assert (harvest.cells[0, layout.FINITE], harvest.cells[0, layout.MAX]) == (1, 1)
    assert dense_of(harvest, 0).sum() == 1


def test_the_sketch_of_a_long_tensor_is_sampled_differently_in_each_step() -> None:
    arena = DeviceArena(CPU, 10, 1024)
    values = torch.zeros(100_000)
    values[::2] = 1.0
    seen = set()
    for _ in range(20):
        arena.begin_step(1024)
        arena.observe(values, 0)
        harvest = end_step(arena)
        assert 1024 <= harvest.cells[0, layout.SKETCHED] == harvest.counts.sum() < 1100
        seen.add(tuple(harvest.counts.tolist()))
    assert len(seen) > 1


def test_a_step_without_histograms_on_a_device_has_all_other_stats() -> None:
    arena, values = DeviceArena(CPU, 10, 1024), torch.randn(5000)
    rows = []
    for limit in (0, 1024):
        arena.begin_step(limit)
        arena.observe(values, 0)
        rows.append(end_step(arena))
    without, with_one = rows
    assert (without.counts.sum(), with_one.counts.sum()) == (0, with_one.cells[0, layout.SKETCHED])
    with_one.cells[0, layout.SKETCHED] = 0
    np.testing.assert_array_equal(without.cells, with_one.cells)


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return function(*args, **(kwargs or {}))


def test_a_users_mode_sees_nothing_and_no_random_number_is_drawn() -> None:
    arena = DeviceArena(CPU, 10, 1024)
    tensor = torch.randn(3000, requires_grad=True)
    with_gaps = torch.randn(30, 100).T[:, ::2]
    before = torch.get_rng_state()
    with _Counting() as mode:
        arena.begin_step(1024)
        arena.observe(tensor, 0)
        arena.observe(with_gaps, 1)
        end_step(arena)
    assert mode.calls == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_an_arena_created_in_inference_mode_works_outside_of_it() -> None:
    arena = DeviceArena(CPU, 10, None)
    with torch.inference_mode():
        arena.observe(torch.ones(3), 0)
    arena.observe(torch.ones(3), 0)
    assert end_step(arena).cells[0, layout.PARTS] == 2


def test_a_thread_that_reads_a_number_does_not_affect_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def exchange(mode: Any) -> int:
        seen.append(mode._obj.value)
        mode._obj.value = 0  # what the driver had used before
        return 0

    class Later:
        def resolve(self) -> float:
            seen.append("read")
            return 2.5

    monkeypatch.setattr(copies, "_exchange", lambda: exchange)
    assert module_of("FoundLoss").number_of(Later()) == 2.5
    assert seen == [1, "read", 0]


def test_host_memory_is_reused() -> None:
    buffers = HostBuffers()
    first = buffers.take(10, torch.float64)
    assert [tuple(each.shape) for each in first] == [(10, layout.CELLS), (10, BINS)]
    buffers.give_back(*first)
    again = buffers.take(SEGMENT_PLACES, torch.float64)
    assert again[0].data_ptr() == first[0].data_ptr()
    assert tuple(again[1].shape) == (SEGMENT_PLACES, BINS)
    assert buffers.take(1, torch.float64)[0].data_ptr() != first[0].data_ptr()


def test_host_memory_is_not_kept_without_bound() -> None:
    buffers = HostBuffers()
    taken = [buffers.take(4, torch.float64) for _ in range(KEPT_HOST_BUFFERS + 3)]
    for each in taken:
        buffers.give_back(*each)
    assert len(buffers.free) == KEPT_HOST_BUFFERS


class Operators(TorchDispatchMode):
    """A user's mode that sees every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [None, Operators, lambda: torch.device("meta"), lambda: torch.autocast("cpu")])
def test_unseen_operations_are_hidden_from_autograd_and_from_all_modes(mode: Any) -> None:
    left = torch.randn(3, 3, requires_grad=True)
    with contextlib.nullcontext() if mode is None else mode() as user:
        with unseen():
            product = left @ left
            made = torch.ones(2)
        seen = list(getattr(user, "seen", []))
    assert (product.dtype, product.requires_grad, made.device.type, seen) == (torch.float32, False, "cpu", [])
    assert torch.is_grad_enabled()
