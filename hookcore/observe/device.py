"""The memory that kernels write to on devices other than the CPU, and its transfer to the host."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookcore.hooks.internals import current_gpu, is_stream_capturing, zero_all
from hookcore.observe import layout, reference
from hookcore.observe.arena import ALIGNMENT, FREED, DeviceSlot, Harvest, _is_dense, is_freed
from hookcore.observe.copies import wait_for
from hookcore.observe.plain import unseen
from hookcore.records import sketch

# The numbers of a step on their way from a device to the host, and the pinned memory that they travel through.

ROOM: Final = 64  # buffers have room for a multiple of this many slots
KEPT_HOST_BUFFERS: Final = 2  # one is read while the next one is filled


@dataclass(slots=True)
class Transfer:
    """The numbers of a step on their way to the host."""

    slots: NDArray[np.int64]
    rows: Tensor
    histograms: Tensor
    done: Any  # the event after the copy; None if the numbers are still on the device
    buffers: HostBuffers
    step: int = 0  # if the rows say which step they are of: the one that they must be of
    count_stale: Callable[[int], None] | None = None

    @property
    def nbytes(self) -> int:
        """The memory that it holds on the host."""
        return self.rows.nbytes + self.histograms.nbytes

    def finish(self) -> Harvest:
        """Wait for the copy, in this thread only. Call this once."""
        wait_for(self.done)
        with unseen():
            rows = self.rows.cpu().numpy().astype(np.float64)
            if self.step and self.count_stale is not None:
                stale = (rows[:, layout.PARTS] > 0) & ((rows[:, layout.STEP] != self.step) | (self.slots < 0))
                rows[stale] = 0
                self.count_stale(int(stale.sum()))
            harvest = harvest_of(self.slots, rows, self.histograms.cpu().numpy())
        if self.done is not None:
            self.buffers.give_back(self.rows, self.histograms)
        return harvest


@dataclass(slots=True)
class HostBuffers:
    """Pinned memory that is reused, because allocating it would stop the device."""

    free: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, slots: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return room for this many slots, from the first buffers that are large enough."""
        with self.lock:
            for i, (rows, _) in enumerate(self.free):
                whole = rows.untyped_storage().nbytes() // (layout.CELLS * rows.itemsize)
                if whole >= slots and rows.dtype is dtype:
                    return self._cut(*self.free.pop(i), slots)
        room = -(-slots // ROOM) * ROOM * 2
        pinned: Any = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        rows = torch.empty((room, layout.CELLS), dtype=dtype, **pinned)
        histograms = torch.empty((room, sketch.BINS), dtype=torch.int32, **pinned)
        return self._cut(rows, histograms, slots)

    @staticmethod
    def _cut(rows: Tensor, histograms: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        return (
            rows.as_strided((slots, layout.CELLS), (layout.CELLS, 1)),
            histograms.as_strided((slots, sketch.BINS), (sketch.BINS, 1)),
        )

    def give_back(self, rows: Tensor, histograms: Tensor) -> None:
        """Keep the newest buffers, which are the largest."""
        with self.lock:
            self.free.append((rows, histograms))
            del self.free[:-KEPT_HOST_BUFFERS]


def harvest_of(slots: NDArray[np.int64], rows: NDArray[np.float64], histograms: NDArray[np.int32]) -> Harvest:
    """Return rows and dense sketches in the form of frames, without empty slots."""
    filled = rows[:, layout.PARTS] > 0
    dense = histograms[filled].reshape(-1)
    # Millions of counts, most of them zero: torch lets the training's thread run meanwhile.
    places = torch.nonzero(torch.from_numpy(dense)).numpy()[:, 0]
    start = np.searchsorted(places, np.arange(filled.sum() + 1) * sketch.BINS).astype(np.uint32)
    bins, counts = (places % sketch.BINS).astype(np.uint16), dense[places].view(np.uint32)
    return Harvest(slots[filled].astype(np.uint32), rows[filled], start, bins, counts)


# Nothing on the training thread waits for the device. Observing launches a kernel, and the end of a step launches a
# copy. The recorder's thread waits for that copy when it needs the numbers.

SLOTS_PER_SEGMENT: Final = 64  # memory is allocated for this many slots when the first of them is used
IN_CAPTURE: Final = "inside the capture of a CUDA graph: a replay would add to steps that are over"

TOGETHER: Final = "HOOKCORE_GPU_TOGETHER"  # switches on what no GPU has run yet: see docs/architecture.md
MAX_TOGETHER: Final = 1 << 20  # values: of more, reading them takes longer than launching a kernel

AddToSlot = Callable[[Tensor, DeviceSlot, int, int], None]
AddAll = Callable[[Sequence[tuple[Tensor, DeviceSlot, int]], int], None]
MergeSlots = Callable[[Tensor, Tensor], None]


class Kernel(NamedTuple):
    """What measures the tensors of a device."""

    add: AddToSlot
    merge: MergeSlots
    programs: int  # the most of a launch, each with a row of its own in a slot
    add_all: AddAll | None = None  # of several tensors, if it can


class DeviceArena:
    """Rows and sketches of taps on one stream of a device. A slot has one row for each program of the kernel.

    Another stream may run at the same time, so it has an arena of its own: no stream ever waits for another one.
    """

    def __init__(self, device: torch.device, capacity: int, sketch_values: int | None) -> None:
        self.device = device
        self.capacity = capacity
        self.sketch_values = sketch_values
        self.fallback_reason = ""  # why torch's operators are used instead of the kernel, or empty
        self.kernel = self._find_kernel()
        self._is_cuda = device.type == "cuda"
        self._has_addresses = device.type in ("cuda", "cpu")
        self._segments: dict[int, Segment] = {}
        self._random = random.Random()  # a separate generator, because the global ones belong to the training
        self.offset = 0
        self._buffers = HostBuffers()
        self._stream: Any = None  # the one that was current when the first tensor was observed
        self._copying: Any = None  # the stream that copies to the host
        self._refused = ""  # what the allocator said when it had no memory; it isn't asked again in the same step
        self._lock = threading.RLock()  # of threads that use one stream: nothing may be added while a step is taken out

    def _find_kernel(self) -> Kernel:
        if self.device.type != "cuda":
            return self._without_kernel(f"hookcore has no kernel for {self.device.type}")
        if find_spec("triton") is None:
            return self._without_kernel("Triton is not installed; run `pip install triton`")
        try:
            from hookcore.observe import triton_kernel
        except Exception as error:
            return self._without_kernel(f"Triton cannot be imported ({error}); reinstall it with `pip install triton`")
        together = triton_kernel.add_all if os.environ.get(TOGETHER, "") == "1" else None
        return Kernel(triton_kernel.add, triton_kernel.merge, triton_kernel.programs_on(self.device), together)

    def _without_kernel(self, reason: str) -> Kernel:
        self.fallback_reason = reason
        return Kernel(add_by_operators, merge_by_operators, 1)

    @property
    def nbytes(self) -> int:
        """The memory taken on the device."""
        return sum(segment.nbytes for segment in self._segments.values())

    def begin_step(self, sketch_values: int | None) -> None:
        """Move the sampling stride to another place, or count no histograms (0)."""
        self.sketch_values = sketch_values
        self.offset = self._random.getrandbits(30)
        self._refused = ""

    def observe(self, tensor: Tensor, slot: int) -> str | None:
        """Add a plain tensor of this device to a slot, on the current stream, or return the reason why not."""
        if not 0 <= slot < self.capacity:
            return "no room for one more tap"
        if self._is_cuda and is_stream_capturing():
            return IN_CAPTURE
        if self._has_addresses and is_freed(tensor):
            return FREED
        if not (tensor.is_contiguous() or _is_dense(tensor)):
            with self._asking():
                tensor = tensor.contiguous()
        with self._lock:
            segment, place = self._segments.get(slot // SLOTS_PER_SEGMENT), slot % SLOTS_PER_SEGMENT
            if segment is None:
                segment = self._segment_of(slot)
            self._add(tensor, segment.slots[place])
            if place >= segment.used:
                segment.used = place + 1
        return None

    def can_wait(self, tensor: Tensor, slot: int) -> bool:
        """Return whether a tensor that stays as it is can be added later, together with others of its type."""
        return (
            self.kernel.add_all is not None
            and tensor.numel() <= MAX_TOGETHER
            and tensor.data_ptr() % ALIGNMENT == 0
            and (tensor.is_contiguous() or _is_dense(tensor))
            and 0 <= slot < self.capacity
            and not self._is_capturing()
            and not is_freed(tensor)
        )

    def observe_all(self, given: Sequence[tuple[Tensor, int]]) -> None:
        """Add tensors that can wait, of one type and to different slots, by one launch, or raise before it.

        On this arena's stream, whichever is current now.
        """
        added, filled = [], []
        with self._lock:
            for tensor, slot in given:
                segment, place = self._segment_of(slot), slot % SLOTS_PER_SEGMENT
                stride = reference.stride_of(tensor.numel(), self.sketch_values)
                added.append((tensor, segment.slots[place], stride))
                filled.append((segment, place))
            add_all = self.kernel.add_all
            try:
                assert add_all is not None
                with self._on_stream():  # known from the first segment on; it also chooses the device
                    add_all(added, self.offset)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                self.kernel = self.kernel._replace(add_all=None)
                raise
            for segment, place in filled:
                segment.used = max(segment.used, place + 1)

    def _segment_of(self, slot: int) -> Segment:
        """Return the memory of a slot, which is allocated when its first slot is used."""
        found = self._segments.get(slot // SLOTS_PER_SEGMENT)
        if found is None:
            # Tensors created in inference mode can't be written to outside of it.
            with self._asking(), torch.inference_mode(False):
                if self._stream is None and self._is_cuda:
                    self._stream = torch.cuda.current_stream(self.device)
                found = self._segments[slot // SLOTS_PER_SEGMENT] = Segment.on(self.device, self.kernel.programs)
        return found

    def clear(self, slots: list[int]) -> None:
        """Drop what was added to these slots in this step."""
        places = [(self._segments.get(slot // SLOTS_PER_SEGMENT), slot % SLOTS_PER_SEGMENT) for slot in slots]
        filled = [part for segment, place in places if segment is not None for part in segment.slots[place][:2]]
        if filled and not self._is_capturing():
            with self._lock, self._on_stream():
                zero_all(filled)

    def _add(self, tensor: Tensor, slot: DeviceSlot) -> None:
        stride = reference.stride_of(tensor.numel(), self.sketch_values)
        try:
            # Launches go to the current device, which may be another one.
            if self._is_cuda and self.device.index != current_gpu():
                with torch.cuda.device(self.device):
                    self.kernel.add(tensor, slot, stride, self.offset)
            else:
                self.kernel.add(tensor, slot, stride, self.offset)
        except Exception as error:
            if self.kernel.add is add_by_operators:
                raise
            # Triton compiles when it is first used, and needs a system compiler for that.
            self.kernel = self._without_kernel(f"the kernel failed ({error}); Triton needs a C compiler")
            self.kernel.add(tensor, slot, stride, self.offset)

    def _is_capturing(self) -> bool:
        return self._is_cuda and is_stream_capturing()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Ask for memory of the device. Asking when there is none makes the allocator wait and empty its cache."""
        if self._refused:
            raise torch.OutOfMemoryError(self._refused)
        try:
            with unseen():
                yield
        except torch.OutOfMemoryError as error:
            self._refused = str(error)
            raise

    # -- to the host ------------------------------------------------------------------------------------------------

    def begin_transfer(self) -> Transfer | None:
        """Take out the numbers of a step at its end and empty the slots. Return None if there are none."""
        if self._is_capturing():
            return None
        with self._lock:
            try:
                return self._take()
            except Exception:
                self._empty()  # or a later step would have this one's numbers, too
                raise

    def _take(self) -> Transfer | None:
        used = [(number, segment) for number, segment in sorted(self._segments.items()) if segment.used]
        if not used:
            return None
        slots = np.concatenate([number * SLOTS_PER_SEGMENT + np.arange(segment.used) for number, segment in used])
        with self._on_stream():
            histograms = [segment.histograms[: segment.used] for _, segment in used]
            rows = torch.empty((len(slots), layout.CELLS), dtype=used[0][1].rows.dtype, device=self.device)
            taken = torch.cat(histograms)
            first = 0
            for _, segment in used:
                self.kernel.merge(segment.rows[: segment.used], rows[first : first + segment.used])
                first += segment.used
                segment.used = 0
            zero_all(histograms)
            return self._start_copy(slots, rows, taken)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        with unseen(), nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            yield

    def _empty(self) -> None:
        """Drop the numbers of a step."""
        with self._on_stream():
            zero_all([part for segment in self._segments.values() for part in (segment.rows, segment.histograms)])
        for segment in self._segments.values():
            segment.used = 0

    def _start_copy(self, slots: NDArray[np.int64], rows: Tensor, histograms: Tensor) -> Transfer:
        if self.device.type != "cuda":
            return Transfer(slots, rows, histograms, None, self._buffers)
        if self._copying is None:
            self._copying = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        copying = self._copying
        copying.wait_stream(self._stream)
        with torch.cuda.stream(copying):
            host_rows, host_histograms = self._buffers.take(len(slots), rows.dtype)
            host_rows.copy_(rows, non_blocking=True)
            host_histograms.copy_(histograms, non_blocking=True)
            # The allocator must not reuse their memory before the copy is done.
            rows.record_stream(copying)
            histograms.record_stream(copying)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(copying)
        return Transfer(slots, host_rows, host_histograms, done, self._buffers)


@dataclass(slots=True)
class Segment:
    """The memory of some slots."""

    rows: Tensor  # [slots, programs, CELLS]
    histograms: Tensor  # int32 [slots, BINS]
    slots: list[DeviceSlot]  # views, made in advance: later, a mode of the user would see it
    used: int = 0  # slots from the first to the last one used in this step

    @classmethod
    def on(cls, device: torch.device, programs: int) -> Segment:
        shape = (SLOTS_PER_SEGMENT, programs, layout.CELLS)
        rows = torch.zeros(shape, dtype=reference.wide_type(device), device=device)
        histograms = torch.zeros((SLOTS_PER_SEGMENT, sketch.BINS), dtype=torch.int32, device=device)
        return cls(rows, histograms, list(map(DeviceSlot.of, rows.unbind(), histograms.unbind())))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.histograms.nbytes


def add_by_operators(tensor: Tensor, slot: DeviceSlot, stride: int, offset: int) -> None:
    """Do the kernel's work with torch's operators."""
    with unseen():
        values = reference.flat(tensor)
        row = reference.measure(values)
        if stride:
            taken = values[offset % stride :: stride]
            row[layout.SKETCHED] = taken.numel()
            slot.histogram.add_(reference.bins(taken).to(slot.histogram.dtype))
        slot.rows[0] = reference.combine(torch.stack([slot.rows[0], row]))


def merge_by_operators(rows: Tensor, merged: Tensor) -> None:
    """Move the rows of slots, [slots, programs, CELLS], to one row each, [slots, CELLS], with torch's operators."""
    with unseen():
        merged.copy_(reference.combine(rows))
        merged[:, layout.STEP] = rows[..., layout.STEP].amax(-1)
        rows.zero_()


# What operators in compiled graphs write. A replay of a CUDA graph runs no code of the host: the kernel finds on its
# device whether to measure, how, and where to. A module has a table there, of addresses: of its rows and of the gate.

PLACES: Final = 8  # tensors of a nested output that have a row in a table
OUTPUT, GRADIENT, EVALUATED = range(3)  # what a place has two addresses for: of its rows, and of its histogram
NOT_LOADED: Final = "no kernel for it was loaded before a CUDA graph was captured, and loading one would break that"
ELSEWHERE: Final = "in compiled graphs, only tensors on the device that its model was on at first are captured"


def cell_of(place: int, what: int) -> int:
    """Return where in a table the two addresses of a tensor are."""
    return layout.HEAD + 2 * (3 * place + what)


class GraphArena:
    """Rows on one device that operators in compiled graphs find by themselves. It takes the place of a `DeviceArena`.

    All memory is allocated between the steps, because torch lets graphs share a pool that nothing else may use. It is
    never freed, because a graph may be replayed after the watch.
    """

    def __init__(self, device: torch.device, sketch_values: int | None, count_stale: Callable[[int], None]) -> None:
        self._arena = DeviceArena(device, 1 << 16, sketch_values)
        self.device, self.kernel = device, self._arena.kernel._replace(add_all=None)
        self.fallback_reason = "" if device.type == "cpu" else self._arena.fallback_reason
        self.step = 0  # the number of captured steps, on the host and on the device
        self._count_stale = count_stale  # rows that are left out, because they aren't of the step that has ended
        self._slots: list[int] = []  # of the rows in use; -1 as long as it isn't known
        self._rows: dict[int, int] = {}  # by slot
        self._wanted: list[tuple[Tensor, int, int]] = []
        self._is_filled = False  # whether rows may have the numbers of a step
        self._gate = self._zeros(4)
        _AT[self._gate.data_ptr()] = self._gate
        self._arena._segment_of(0)

    @property
    def can_write(self) -> bool:
        """Whether operators can write to it without the host."""
        return self.device.type in ("cpu", "cuda") and not self.fallback_reason

    @property
    def nbytes(self) -> int:
        """The memory taken on the device."""
        return self._arena.nbytes

    def _zeros(self, number: int) -> Tensor:
        with unseen(), torch.inference_mode(False):
            return torch.zeros(number, dtype=torch.int64, device=self.device)

    def table(self, number: int) -> Tensor:
        """Return a new table without rows. `number`: what the host knows its module by."""
        table = self._zeros(cell_of(PLACES, OUTPUT))
        with unseen():
            table[layout.NUMBER].fill_(number)
            table[layout.GATE_AT].fill_(self._gate.data_ptr())
        return table

    def want(self, table: Tensor, cell: int) -> int:
        """Return the number of a row that operators may use: from the next captured step on; on the CPU, at once."""
        self._slots.append(-1)
        self._wanted.append((table, cell, len(self._slots) - 1))
        if self.device.type == "cpu":
            self._give()
        return len(self._slots) - 1

    def name(self, row: int, slot: int) -> None:
        """Say which slot a row is for, and no other one."""
        before = self._rows.setdefault(slot, row)
        if before != row:
            self._slots[before], self._rows[slot] = -1, row
        self._slots[row] = slot

    def _give(self) -> None:
        wanted, self._wanted = self._wanted, []
        for table, cell, number in wanted:
            row = self._arena._segment_of(number).slots[number % SLOTS_PER_SEGMENT]
            _AT[row.rows_at] = row
            # Not by the table itself, which autograd may have saved: it would find another version.
            with unseen():
                table.data[cell + 1].fill_(row.histogram_at)
                table.data[cell].fill_(row.rows_at)

    def begin_step(self, sketch_values: int | None) -> None:
        """Begin a captured step: let operators write from here on."""
        if self._arena._is_capturing():
            return
        self._give()
        self._arena.begin_step(sketch_values)
        if not self._is_filled:  # else the step goes on after a pause
            self.step += 1
        self._is_filled = True
        self._set(1, self.step, -1 if sketch_values is None else sketch_values, self._arena.offset)

    def off(self) -> None:
        """Let operators write nothing until the next captured step."""
        if not self._arena._is_capturing():
            self._set(0)

    def _set(self, *cells: int) -> None:
        with unseen():  # by kernels, because a copy of pageable memory would wait
            for cell, value in enumerate(cells):
                self._gate[cell].fill_(value)

    def begin_transfer(self) -> Transfer | None:
        """Take out the numbers of a step at its end and empty the rows."""
        arena = self._arena
        if not self._is_filled or arena._is_capturing():
            return None
        if arena._is_cuda:
            arena._stream = torch.cuda.current_stream(self.device)  # graphs are replayed on it, too
        for number, segment in arena._segments.items():
            segment.used = min(max(len(self._slots) - number * SLOTS_PER_SEGMENT, 0), SLOTS_PER_SEGMENT)
        self._is_filled = False
        taken = arena.begin_transfer()
        if taken is None:
            return None
        slots = np.array(self._slots)[taken.slots]
        return replace(taken, slots=slots, step=self.step, count_stale=self._count_stale)

    def clear(self, slots: list[int]) -> None:
        """Drop what was written to these slots in this step."""
        self._arena.clear([self._rows[slot] for slot in slots if slot in self._rows])


_AT: Final[dict[int, Any]] = {}  # rows and gates by their address


def write(tensor: Tensor, table: Tensor, cell: int) -> str:
    """Add a plain tensor to the row that a table on its device names, if its gate is open; or return why it can't."""
    if not (tensor.is_contiguous() or _is_dense(tensor)):
        tensor = tensor.contiguous()
    if not tensor.is_cuda:
        _write_by_operators(tensor, table, cell)
        return ""
    from hookcore.observe import triton_kernel

    with nullcontext() if tensor.device.index == current_gpu() else torch.cuda.device(tensor.device):
        return "" if triton_kernel.write(tensor, table, cell, compiles=not is_stream_capturing()) else NOT_LOADED


def _write_by_operators(tensor: Tensor, table: Tensor, cell: int) -> None:
    with unseen():
        numbers = table.tolist()
        captured, step, limit, offset = _AT[numbers[layout.GATE_AT]].tolist()
        if not captured or not numbers[cell]:
            return
        row = _AT[numbers[cell]]
        begun = float(row.rows[0, layout.STEP])
        add_by_operators(tensor, row, reference.stride_of(tensor.numel(), None if limit < 0 else limit), offset)
        row.rows[0, layout.STEP] = begun or step
