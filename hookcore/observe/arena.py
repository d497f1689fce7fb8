"""The memory that kernels write to: one row per tap, and the two halves of taking a step's numbers out of it."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hookcore.observe import cpu, layout, reference
from hookcore.records import STATS
from hookcore.records.sketch import BINS

# The two halves of taking a step's numbers out of an arena.
#
# `CpuArena.pack` runs on the training thread and does as little as possible: it copies the written rows, packed, and
# empties them. `unpack` runs on the recorder's thread, for many steps at once.
#
# Packed steps are bytes. NumPy would let go of the interpreter for every copy of more than 500 values, and to get it
# back takes longer than to copy a small step: the training and the recorder would wait for each other.

_CELLS = layout.CELLS
# A packed row: slot and number of filled bins (int64), the cells, then (bin << 32 | count) for each filled bin.
_WORDS_BEFORE_BINS = 2 + _CELLS


class Harvest(NamedTuple):
    """Rows of one or more steps: slot numbers, cells, and sketches in the form of `hookcore.records.SketchBlock`."""

    slots: NDArray[np.uint32]
    cells: NDArray[np.float64]
    start: NDArray[np.uint32]
    bins: NDArray[np.uint16]
    counts: NDArray[np.uint32]


def unpack(packed: list[bytes]) -> list[Harvest]:
    """Return the rows of each packed step. Their cells share one array; the others are arrays of bytes."""
    cells = np.empty((sum(map(len, packed)) // (8 * _WORDS_BEFORE_BINS), _CELLS))
    harvests, first = [], 0
    for slots, start, bins, counts in cpu.unpack(packed, cells.ctypes.data):
        last = first + len(slots) // 4
        ends = np.frombuffer(slots, np.uint32), cells[first:last], np.frombuffer(start, np.uint32)
        harvests.append(Harvest(*ends, np.frombuffer(bins, np.uint16), np.frombuffer(counts, np.uint32)))
        first = last
    return harvests


def join(harvests: Sequence[Harvest]) -> Harvest:
    """Merge several harvests of one step. A tap may be in more than one: its tensors can be on several devices."""
    if len(harvests) == 1:
        return harvests[0]
    lengths = np.concatenate([np.diff(harvest.start) for harvest in harvests])
    start = np.zeros(len(lengths) + 1, np.uint32)
    np.cumsum(lengths, out=start[1:])
    joined = Harvest(
        np.concatenate([harvest.slots for harvest in harvests]),
        np.concatenate([harvest.cells for harvest in harvests]),
        start,
        np.concatenate([harvest.bins for harvest in harvests]),
        np.concatenate([harvest.counts for harvest in harvests]),
    )
    slots, rows = np.unique(joined.slots, return_inverse=True)
    return joined if slots.size == joined.slots.size else _add_up(joined, slots, rows)


def _add_up(harvest: Harvest, slots: NDArray[np.uint32], rows: NDArray[np.intp]) -> Harvest:
    """Return one row for each slot. `rows` says which one each row of the harvest is a part of."""
    order = np.argsort(rows, kind="stable")
    part = np.empty_like(order)
    part[order] = np.arange(order.size) - np.searchsorted(rows[order], rows[order])
    cells = np.zeros((slots.size, int(part.max()) + 1, _CELLS))
    cells[rows, part] = harvest.cells
    places = np.repeat(rows, np.diff(harvest.start)) * BINS + harvest.bins
    filled, index = np.unique(places, return_inverse=True)
    return Harvest(
        slots,
        reference.combine(torch.from_numpy(cells)).numpy(),
        np.searchsorted(filled, np.arange(slots.size + 1) * BINS).astype(np.uint32),
        (filled % BINS).astype(np.uint16),
        np.bincount(index, weights=harvest.counts).astype(np.uint32),
    )


ALIGNMENT: Final = 16  # bytes: from addresses that are multiples of it, kernels of GPUs read several values at once


class DeviceSlot(NamedTuple):
    """A tap's place in the memory of a device other than the CPU, and where it is."""

    rows: torch.Tensor  # [programs, CELLS]
    histogram: torch.Tensor  # int32 [BINS]
    rows_at: int
    histogram_at: int
    programs: int

    @classmethod
    def of(cls, rows: torch.Tensor, histogram: torch.Tensor) -> DeviceSlot:
        """Return these views with their addresses, which are read only once; 0 where no kernel needs them."""
        places = (rows.data_ptr(), histogram.data_ptr()) if rows.is_cuda or rows.is_cpu else (0, 0)
        return cls(rows, histogram, *places, len(rows))


CODES: Final[dict[torch.dtype, int]] = {
    torch.float32: cpu.FLOAT32,
    torch.float64: cpu.FLOAT64,
    torch.bfloat16: cpu.BFLOAT16,
    torch.float16: cpu.FLOAT16,
    torch.uint8: cpu.UINT8,
    torch.int8: cpu.INT8,
    torch.int16: cpu.INT16,
    torch.int32: cpu.INT32,
    torch.int64: cpu.INT64,
    torch.bool: cpu.BOOL,
    torch.complex64: cpu.COMPLEX64,
    torch.complex128: cpu.COMPLEX128,
}
LOW: Final = 1 << 40  # addresses of memory are above it, or need a closer look
_MAX_DIMENSIONS: Final = 64
_RUNTIMES: Final = ("libgomp", "libomp", "libiomp")


class CpuArena:
    """Rows for tensors in the memory of this process. The kernels are called with the interpreter lock held."""

    def __init__(self, capacity: int, sketch_values: int | None) -> None:
        self.capacity = capacity
        self._most_sketched = sketch_values  # in steps with histograms
        self.sketch_values = sketch_values  # in this step
        # Untouched pages cost no memory, so the whole range is reserved at once and addresses never change.
        self._memory = np.zeros(capacity * layout.ROW_BYTES + 64, np.uint8)
        self.base: Final = -(-self._memory.ctypes.data // 64) * 64
        offset = self.base - self._memory.ctypes.data
        rows = self._memory[offset : offset + capacity * layout.ROW_BYTES].view(layout.ROW_DTYPE)
        self._cells, self._bins = rows["cells"], rows["bins"]
        self._bad = self._cells[:, layout.NAN_COUNT : layout.NEG_INF_COUNT + 1]
        self.controls = np.zeros(cpu.CONTROL_CELLS, np.int64)
        self.control: Final = self.controls.ctypes.data
        self.controls[cpu.LIMIT] = self.controls[cpu.BAD_LIMIT] = -1 if sketch_values is None else sketch_values
        self._random = random.Random()  # a separate generator, because the global ones belong to the training
        self._shape = np.zeros(1 + 2 * _MAX_DIMENSIONS, np.int64)
        self._use_threads()

    def _use_threads(self) -> None:
        threads = min(torch.get_num_threads(), cpu.MAX_THREADS)
        fork_call = _fork_call() if threads > 1 else 0
        threads = threads if fork_call else 1
        self._scratch = np.zeros(threads * cpu.SCRATCH_BYTES + 64, np.uint8)
        self.controls[cpu.SCRATCH] = -(-self._scratch.ctypes.data // 64) * 64
        self.controls[cpu.THREADS] = threads
        self.controls[cpu.FORK_CALL] = fork_call
        self._threads_seen = torch.get_num_threads()

    def begin_step(self, sketched: bool = True) -> None:
        """Move the sampling stride to another place, and adapt to a change of torch's number of threads.

        `sketched`: whether histograms are counted in the step, and not only of tensors with NaN or infinities. Then,
        `sketch_values` is as it was given, else 0.
        """
        self.sketch_values = limit = self._most_sketched if sketched else 0
        self.controls[cpu.LIMIT] = -1 if limit is None else limit
        self.controls[cpu.JITTER] = self._random.getrandbits(30)
        if torch.get_num_threads() != self._threads_seen:
            self._use_threads()

    def row(self, slot: int) -> int:
        """Return the address of a slot's row."""
        return self.base + slot * layout.ROW_BYTES

    def cells_of(self, slot: int) -> memoryview:
        """Return the cells of a slot's row, as they are at any time."""
        return memoryview(self._cells[slot])

    def observe(self, tensor: torch.Tensor, row: int) -> None:
        """Add a dense CPU tensor whose type is in CODES to a row. Raise RuntimeError if its memory was freed."""
        code, address = CODES[tensor.dtype], address_of(tensor)
        if tensor.is_contiguous() or _is_dense(tensor):
            size = tensor.numel()
            if code == cpu.FLOAT32:
                cpu.observe(address, size, row, self.control)
            else:
                cpu.observe_other(address, size, code, row, self.control)
            return
        dims = tensor.dim()
        self._shape[0] = dims
        self._shape[1 : 1 + dims] = tensor.shape
        self._shape[1 + dims : 1 + 2 * dims] = tensor.stride()
        cpu.observe_strided(address, tensor.numel(), code, self._shape.ctypes.data, row, self.control)

    def bad(self, used: int, large: float) -> dict[int, bool]:
        """Return which of the first `used` slots have non-finite values in this step.

        True stands for those that have NaN, or finite values that are `large`.
        """
        bad = self._bad[:used]
        if not bad.any():
            return {}
        slots = np.flatnonzero(bad.any(axis=1))
        cells = self._cells[slots]
        far = (cells[:, layout.FINITE] > 0) & ((cells[:, layout.MAX] > large) | (cells[:, layout.MIN] < -large))
        return dict(zip(slots.tolist(), ((bad[slots, 0] > 0) | far).tolist(), strict=True))

    def fine(self, used: int) -> list[int]:
        """Return which of the first `used` slots have been measured in this step and were finite."""
        fine: list[int] = np.flatnonzero(
            (self._cells[:used, layout.PARTS] > 0) & ~self._bad[:used].any(axis=1)
        ).tolist()
        return fine

    def clear(self, slots: list[int]) -> None:
        """Drop what was added to these slots in this step."""
        filled = [slot for slot in slots if self._cells[slot, layout.PARTS]]  # an unused row takes no memory
        self._cells[filled] = self._bins[filled] = 0

    def pack(self, used: int) -> bytes:
        """Take everything out of the first `used` rows; see `hookcore.observe.arena.unpack`."""
        packed: bytes = cpu.pack(self.base, used)
        return packed


FREED: Final = "its memory was freed, or it never had any: its storage is empty"


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has values, but no memory: nothing may read them.

    After `resize_(0)`, its storage is empty. That of torch's zero tensors and functional ones only says that it isn't.
    """
    return tensor.numel() > 0 and (
        not tensor.untyped_storage().nbytes()
        or tensor.data_ptr() == tensor.storage_offset() * tensor.element_size()  # the storage begins at 0
    )


def address_of(tensor: torch.Tensor) -> int:
    """Return where a tensor's first value is. Raise RuntimeError if nothing is there."""
    address = tensor.data_ptr()
    if address < LOW and is_freed(tensor):  # the address is then its offset in the storage
        raise RuntimeError(FREED)
    return address


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the values fill one stretch of memory, in any order (for example channels_last)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _fork_call() -> int:
    """Return the address of GOMP_parallel in the OpenMP runtime that torch has loaded, GNU's or LLVM's.

    0 if torch's own runtime can't be identified: one thread then does the work.
    """
    torch_folder = str(Path(torch.__file__).parent)
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if any(name in line for name in _RUNTIMES)}
    except OSError:
        return 0
    ours = [path for path in paths if path.startswith((torch_folder, torch_folder + ".libs"))] or list(paths)
    if len(ours) != 1:
        return 0
    try:
        return ctypes.cast(ctypes.CDLL(ours[0]).GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def stats_of(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the columns of `STATS` from rows of arena cells; computed without the interpreter lock."""
    rows = np.ascontiguousarray(cells)
    stats = np.empty((len(rows), len(STATS)))
    cpu.stats(rows.ctypes.data, len(rows), stats.ctypes.data)
    return stats
