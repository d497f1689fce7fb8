"""The memory that kernels write to: one row per tap, emptied at the end of each step."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Final

import numpy as np
import torch

from hookcore.observe import cpu, layout
from hookcore.observe.harvest import Packer

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
_MAX_DIMENSIONS: Final = 64
_RUNTIMES: Final = ("libgomp", "libomp", "libiomp")


class CpuArena:
    """Rows for tensors in the memory of this process. The kernels are called with the interpreter lock held."""

    def __init__(self, capacity: int, sketch_values: int | None) -> None:
        self.capacity = capacity
        self.sketch_values = sketch_values
        # Untouched pages cost no memory, so the whole range is reserved at once and addresses never change.
        self._memory = np.zeros(capacity * layout.ROW_BYTES + 64, np.uint8)
        self.base: Final = -(-self._memory.ctypes.data // 64) * 64
        offset = self.base - self._memory.ctypes.data
        rows = self._memory[offset : offset + capacity * layout.ROW_BYTES].view(layout.ROW_DTYPE)
        self._cells, self._bins = rows["cells"], rows["bins"]
        self._bad = self._cells[:, layout.NAN_COUNT : layout.NEG_INF_COUNT + 1]
        self._control = np.zeros(cpu.CONTROL_CELLS, np.int64)
        self.control: Final = self._control.ctypes.data
        self._control[cpu.LIMIT] = -1 if sketch_values is None else sketch_values
        self._random = random.Random()  # a separate generator, because the global ones belong to the training
        self._packer = Packer()
        self._shape = np.zeros(1 + 2 * _MAX_DIMENSIONS, np.int64)
        self._use_threads()

    def _use_threads(self) -> None:
        threads = min(torch.get_num_threads(), cpu.MAX_THREADS)
        runtime = _openmp_calls() if threads > 1 else None
        threads = threads if runtime else 1
        self._scratch = np.zeros(threads * cpu.SCRATCH_BYTES + 64, np.uint8)
        self._control[cpu.SCRATCH] = -(-self._scratch.ctypes.data // 64) * 64
        self._control[cpu.THREADS] = threads
        if runtime:
            self._control[cpu.FORK_CALL], self._control[cpu.THREAD_NUM] = runtime
        self._threads_seen = torch.get_num_threads()

    def begin_step(self) -> None:
        """Move the sampling stride to another place, and adapt to a change of torch's number of threads."""
        self._control[cpu.JITTER] = self._random.getrandbits(30)
        if torch.get_num_threads() != self._threads_seen:
            self._use_threads()

    def row(self, slot: int) -> int:
        """Return the address of a slot's row."""
        return self.base + slot * layout.ROW_BYTES

    def cells_of(self, slot: int) -> memoryview:
        """Return the cells of a slot's row, as they are at any time."""
        return memoryview(self._cells[slot])

    def observe(self, tensor: torch.Tensor, row: int) -> None:
        """Add a dense CPU tensor whose type is in CODES to a row."""
        code = CODES[tensor.dtype]
        if tensor.is_contiguous() or _is_dense(tensor):
            address, size = tensor.data_ptr(), tensor.numel()
            if code == cpu.FLOAT32:
                cpu.observe(address, size, row, self.control)
            else:
                cpu.observe_other(address, size, code, row, self.control)
            return
        dims = tensor.dim()
        self._shape[0] = dims
        self._shape[1 : 1 + dims] = tensor.shape
        self._shape[1 + dims : 1 + 2 * dims] = tensor.stride()
        cpu.observe_strided(tensor.data_ptr(), tensor.numel(), code, self._shape.ctypes.data, row, self.control)

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
        bad: list[int] = np.flatnonzero((self._cells[:used, layout.PARTS] > 0) & ~self._bad[:used].any(axis=1)).tolist()
        return bad

    def clear(self, slots: list[int]) -> None:
        """Drop what was added to these slots in this step."""
        filled = [slot for slot in slots if self._cells[slot, layout.PARTS]]  # an unused row takes no memory
        self._cells[filled] = self._bins[filled] = 0

    def pack(self, used: int) -> bytes:
        """Take everything out of the first `used` rows; see `hookcore.observe.harvest.unpack`."""
        return self._packer.pack(self.base, used)


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


def _openmp_calls() -> tuple[int, int] | None:
    """Return the addresses of GOMP_parallel and omp_get_thread_num in the OpenMP runtime that torch has loaded.

    Both GNU's and LLVM's runtimes have them. None if torch's own runtime can't be identified: one thread then does the
    work.
    """
    torch_folder = str(Path(torch.__file__).parent)
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if any(name in line for name in _RUNTIMES)}
    except OSError:
        return None
    ours = [path for path in paths if path.startswith((torch_folder, torch_folder + ".libs"))] or list(paths)
    if len(ours) != 1:
        return None
    try:
        library = ctypes.CDLL(ours[0])
        calls = (library.GOMP_parallel, library.omp_get_thread_num)
    except (OSError, AttributeError):
        return None
    first, second = (ctypes.cast(call, ctypes.c_void_p).value for call in calls)
    return (first, second) if first and second else None
