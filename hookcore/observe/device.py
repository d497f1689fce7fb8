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

SEGMENT_PLACES: Final = 64  # whose memory is allocated at once; a place has rows and a histogram, 49 KiB on an H100
KEPT_HOST_BUFFERS: Final = 64  # of 1 MiB each


@dataclass(slots=True)
class Transfer:
    """Numbers of a step on their way to the host."""

    slots: NDArray[np.int64]  # of each row; -1 for a row that is left out
    rows: Tensor
    histograms: Tensor
    done: Any  # the event after the copy; None if the numbers are still on the device
    buffers: HostBuffers
    step: int = 0  # if the rows say which step they are of: the one that they must be of
    count_stale: Callable[[int], None] | None = None

    @property
    def nbytes(self) -> int:
        """The memory that it holds on the host: whole buffers."""
        return self.rows.untyped_storage().nbytes() + self.histograms.untyped_storage().nbytes()

    def finish(self) -> Harvest:
        """Wait for the copy, in this thread only. Call this once."""
        wait_for(self.done)
        with unseen():
            rows = self.rows.cpu().numpy().astype(np.float64)
            left_out = self.slots < 0
            if self.step and self.count_stale is not None:
                left_out |= rows[:, layout.STEP] != self.step
                self.count_stale(int((left_out & (rows[:, layout.PARTS] > 0)).sum()))
            rows[left_out] = 0
            harvest = harvest_of(self.slots, rows, self.histograms.cpu().numpy())
        if self.done is not None:
            self.buffers.give_back(self.rows, self.histograms)
        return harvest


@dataclass(slots=True)
class HostBuffers:
    """Pinned memory that is reused, because allocating it would stop the device."""

    free: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, number: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return room for the rows and histograms of this number of places. All buffers have one size."""
        with self.lock:
            found = self.free.pop() if self.free else None
        if found is None:
            pinned: Any = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
            rows = torch.empty((SEGMENT_PLACES, layout.CELLS), dtype=dtype, **pinned)
            found = rows, torch.empty((SEGMENT_PLACES, sketch.BINS), dtype=torch.int32, **pinned)
        rows, histograms = found
        return (
            rows.as_strided((number, layout.CELLS), (layout.CELLS, 1)),
            histograms.as_strided((number, sketch.BINS), (sketch.BINS, 1)),
        )

    def give_back(self, rows: Tensor, histograms: Tensor) -> None:
        """Keep buffers for later steps, up to a limit."""
        with self.lock:
            if len(self.free) < KEPT_HOST_BUFFERS:
                self.free.append((rows, histograms))


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
# copy, as does a tap that finds all places taken. The recorder's thread waits for copies when it needs the numbers.
# They are on the stream of the kernels, so places can be given again at once, and need no more memory meanwhile.

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
    """Rows and sketches of taps on one stream of a device. A place has one row for each program of the kernel.

    A tap has a place until the end of the step, or until all places are taken: then they leave for the host, and are
    given again, so many taps need no more memory than a few. A tap that is measured again after it has left, as in
    micro-batches, would leave with each of them. So from then on, places are added, and all stay until the end.

    Another stream may run at the same time, so it has an arena of its own: no stream ever waits for another one.
    """

    at_once = SEGMENT_PLACES  # the most tensors that one launch adds

    def __init__(self, device: torch.device, capacity: int, sketch_values: int | None) -> None:
        self.device = device
        self.capacity = capacity
        self.sketch_values = sketch_values
        self.fallback_reason = ""  # why torch's operators are used instead of the kernel, or empty
        self.kernel = self._find_kernel()
        self._is_cuda = device.type == "cuda"
        self._has_addresses = device.type in ("cuda", "cpu")
        self.places: list[DeviceSlot] = []
        self._segments: list[Segment] = []
        self._taken: dict[int, int] = {}  # the places of slots, in their order
        self._left: list[Transfer] = []  # of this step, before its end
        self._gone: set[int] = set()  # slots in them
        self._all_stay = False
        self._random = random.Random()  # a separate generator, because the global ones belong to the training
        self.offset = 0
        self._buffers = HostBuffers()
        self._stream: Any = None  # the one that was current when the first tensor was observed
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
        return sum(part.nbytes for segment in self._segments for part in segment)

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
            place = self._taken.get(slot)
            if place is None:
                place = self._take_place(slot)
            self._add(tensor, self.places[place])
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
        """Add at most `at_once` tensors that can wait, of one type and to different slots, by one launch.

        On this arena's stream, whichever is current now. If it fails, this raises before any tensor is added.
        """
        with self._lock:
            if not self._all_stay and len(self._taken.keys() | {slot for _, slot in given}) > SEGMENT_PLACES:
                self._leave()  # now, because all of these must have places at once
            added = []
            for tensor, slot in given:
                stride = reference.stride_of(tensor.numel(), self.sketch_values)
                added.append((tensor, self.places[self._take_place(slot)], stride))
            add_all = self.kernel.add_all
            try:
                assert add_all is not None
                with self._on_stream():  # known from the first places on; it also chooses the device
                    add_all(added, self.offset)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                self.kernel = self.kernel._replace(add_all=None)
                raise

    def _take_place(self, slot: int) -> int:
        place = self._taken.get(slot)
        if place is None:
            self._all_stay = self._all_stay or slot in self._gone
            if len(self._taken) == len(self.places):
                if self._taken and not self._all_stay:
                    self._leave()
                else:
                    self.add_places()
            place = self._taken[slot] = len(self._taken)
        return place

    def add_places(self) -> None:
        """Allocate memory for more of them. The first time, the stream that is current is the arena's from then on."""
        # Tensors created in inference mode can't be written to outside of it.
        with self._asking(), torch.inference_mode(False):
            if self._stream is None and self._is_cuda:
                self._stream = torch.cuda.current_stream(self.device)
            segment = Segment.on(self.device, self.kernel.programs)
            new = list(map(DeviceSlot.of, segment.rows.unbind(), segment.histograms.unbind()))
            self._segments.append(segment)  # first: places without memory would lose what they are given
            self.places += new

    def clear(self, slots: list[int]) -> None:
        """Drop what was added to these slots in this step."""
        with self._lock:
            for transfer in self._left:
                transfer.slots[np.isin(transfer.slots, slots)] = -1
            self.zero([self._taken[slot] for slot in slots if slot in self._taken])

    def zero(self, places: list[int]) -> None:
        """Empty these places."""
        if places and not self._is_capturing():
            with self._lock, self._on_stream():
                zero_all([part for place in places for part in self.places[place][:2]])

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

    def begin_transfers(self) -> list[Transfer]:
        """Take out the numbers of a step at its end and empty the places."""
        if self._is_capturing():
            return []
        with self._lock:
            try:
                if self._taken:
                    self._leave()
                return self._left
            finally:
                self._left, self._gone = [], set()

    def _leave(self) -> None:
        """Let all places leave for the host."""
        slots, self._taken = list(self._taken), {}
        self._gone.update(slots)
        try:
            self._left += self.take(slots)
        except Exception as error:
            raise RuntimeError(
                f"the numbers of {len(slots)} tensors were lost on their way to the host: {error}"
            ) from error

    def take(self, slots: list[int]) -> list[Transfer]:
        """Take out the numbers of these slots, which have the first places, and empty those, even if that fails."""
        firsts = range(0, len(slots), SEGMENT_PLACES)
        parts = [np.array(slots[first : first + SEGMENT_PLACES], np.int64) for first in firsts]
        with self._lock, self._on_stream():
            try:
                return [self._start_copy(*each) for each in zip(self._segments, parts, strict=False)]
            except Exception:  # or a later step would have this one's numbers, too
                zero_all([part for segment in self._segments for part in segment])
                raise

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        on_it = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with unseen(), torch.inference_mode(False), on_it:  # tensors made in inference mode could never be written to
            yield

    def _start_copy(self, segment: Segment, slots: NDArray[np.int64]) -> Transfer:
        histograms = segment.histograms[: len(slots)]
        rows = segment.merged[: len(slots)]
        self.kernel.merge(segment.rows[: len(slots)], rows)
        if not self._is_cuda:
            transfer = Transfer(slots, rows.clone(), histograms.clone(), None, self._buffers)
        else:
            host_rows, host_histograms = self._buffers.take(len(slots), rows.dtype)
            host_rows.copy_(rows, non_blocking=True)
            host_histograms.copy_(histograms, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            transfer = Transfer(slots, host_rows, host_histograms, done, self._buffers)
        histograms.zero_()
        return transfer


class Segment(NamedTuple):
    """The memory of some places."""

    rows: Tensor  # [places, programs, CELLS]
    histograms: Tensor  # int32 [places, BINS]
    merged: Tensor  # [places, CELLS]: what leaves, because a device without memory must not refuse that

    @classmethod
    def on(cls, device: torch.device, programs: int) -> Segment:
        rows = torch.zeros((SEGMENT_PLACES, programs, layout.CELLS), dtype=reference.wide_type(device), device=device)
        histograms = torch.zeros((SEGMENT_PLACES, sketch.BINS), dtype=torch.int32, device=device)
        return cls(rows, histograms, torch.zeros_like(rows[:, 0]))


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
        self._arena.add_places()

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
            while number >= len(self._arena.places):
                self._arena.add_places()
            row = self._arena.places[number]
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

    def begin_transfers(self) -> list[Transfer]:
        """Take out the numbers of a step at its end and empty the rows."""
        arena = self._arena
        if not self._is_filled or arena._is_capturing():
            return []
        if arena._is_cuda:
            arena._stream = torch.cuda.current_stream(self.device)  # graphs are replayed on it, too
        self._is_filled = False
        taken = arena.take(self._slots)
        return [replace(each, step=self.step, count_stale=self._count_stale) for each in taken]

    def clear(self, slots: list[int]) -> None:
        """Drop what was written to these slots in this step."""
        self._arena.zero([self._rows[slot] for slot in slots if slot in self._rows])


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
