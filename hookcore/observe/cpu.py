"""The CPU kernel: adds the values at an address to a row of an arena, and takes the rows out again.

The work is done by the compiled extension (`_kernel.c`). Without it, NumPy computes the same numbers, more slowly:
`hookcore.observe.portable`. Functions take addresses, because boxing an array costs more than a small tensor's values,
and because memory that is read by address stays invisible to dispatch modes, autograd, and the profiler.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.observe import layout, portable
from hookcore.records import STATS

INTERFACE: Final = 21  # raised with every change of the extension's functions or memory layout

# The control block that every call gets by address: int64 cells.
LIMIT: Final = 0  # values that a sketch takes at least; -1: every value; 0: no sketch
JITTER: Final = 1  # where the sampling stride begins, which changes in every step
SCRATCH: Final = 2  # address of the scratch memory, one part per thread
THREADS: Final = 3
FORK_CALL: Final = 4  # an address in torch's OpenMP runtime
BAD_LIMIT: Final = 5  # as LIMIT if that is 0, for tensors with NaN or infinities
CONTROL_CELLS: Final = 16

# Codes of the element types.
FLOAT32, FLOAT64, BFLOAT16, FLOAT16, UINT8, INT8, INT16, INT32, INT64, BOOL, COMPLEX64, COMPLEX128 = range(12)


def load_kernel(name: str = "hookcore.observe._kernel") -> tuple[ModuleType, str]:
    """Return the module that does the work, and why it isn't the compiled one (empty if it is)."""
    try:
        kernel = import_module(name)
    except ImportError as error:
        return portable, f"the compiled extension cannot be imported ({error})"
    if getattr(kernel, "INTERFACE", None) != INTERFACE:
        return portable, "the compiled extension belongs to another version of the source"
    return kernel, ""


KERNEL: Any
KERNEL, FALLBACK_REASON = load_kernel()
# Shown as an event of the run and by `hookcore doctor`.
SLOW_KERNEL: Final = (
    f"{FALLBACK_REASON}, so CPU tensors are measured with NumPy, about ten times slower: "
    "reinstall hookcore with `pip install --force-reinstall --no-deps hookcore`"
)
INSTRUCTIONS: Final[str] = KERNEL.INSTRUCTIONS  # the instruction set in use
MAX_THREADS: Final[int] = KERNEL.MAX_THREADS
SCRATCH_BYTES: Final[int] = KERNEL.SCRATCH_BYTES
MAX_VALUES: Final[int] = KERNEL.MAX_VALUES  # of a tensor that is looked at in every step

observe = KERNEL.observe  # (address, n, row, control): n float32s without gaps
observe_other = KERNEL.observe_other  # (address, n, code, row, control): n values of any type without gaps
Track: Any = KERNEL.Track  # the short way through steps; see hookcore.recorder.clock.steady
Hold: Any = KERNEL.Hold  # holds calls in such steps; see hookcore.recorder.calls.keeping
After: Any = KERNEL.After  # the hook on a module whose call is held; see hookcore.hooks.nextcalls
HeldCall: Any = KERNEL.HeldCall  # what is held; see hookcore.capsules.calls
Arrival: Any = KERNEL.Arrival  # what keeps the gradient of an output; likewise
know = KERNEL.know  # (tensor, function_modes, dispatch_modes, state_from): what the last two need of torch
if TYPE_CHECKING:
    from hookcore.observe.portable import CallHook as CallHook
    from hookcore.observe.portable import GradientHook as GradientHook
else:  # bases of hooks, which are what torch calls; see hookcore.recorder.calls.hooks
    CallHook, GradientHook = KERNEL.CallHook, KERNEL.GradientHook
know_torch = KERNEL.know_torch  # (facts): what these hooks know of torch, until they leave all calls to Python
leave_each = KERNEL.leave_each  # (n): for tests, they leave each n-th call to Python; 0: none that is usual
is_finite = KERNEL.is_finite  # (address, n) -> whether all of n float32s without gaps are
observe_strided = KERNEL.observe_strided  # (address, n, code, shape, row, control); shape: axes, sizes, strides
observe_tensor = KERNEL.observe_tensor  # (tensor, row, control) -> whether it is usual, and was added
pack = KERNEL.pack  # (base, used) -> bytes; see hookcore.observe.arena
stats = KERNEL.stats  # (cells, rows, stats): the columns of a frame from rows of cells
sum_sketches = KERNEL.sum_sketches  # (entries, rows) -> starts, bins, counts; see hookcore.store.sketches
split_counts = KERNEL.split_counts  # (counts, width) -> lower 16 bits, places of larger ones, what these have above
unpack = KERNEL.unpack  # (packed, cells) -> slots, starts, bins, counts of each step; see hookcore.observe.arena

Kind = TypeVar("Kind", bound=type)


def quick(kind: Kind) -> Kind:
    """Let torch call the extension's part of a class of hooks first, which leaves to `__call__` what isn't usual.

    Whoever asks for `__call__`, such as Dynamo, gets the function. A decorator.
    """
    if KERNEL is not portable:
        call = vars(kind)["__call__"]
        del kind.__call__
        KERNEL.name_call(kind, call)
    return kind


class Meter:
    """One row for arrays of NumPy, measured without torch, in this thread. Its sketches count every value."""

    def __init__(self) -> None:
        self._memory = np.zeros(layout.ROW_BYTES + SCRATCH_BYTES + 128, np.uint8)
        start = -self._memory.ctypes.data % 64
        self._row = self._memory.ctypes.data + start
        (self._found,) = self._memory[start : start + layout.ROW_BYTES].view(layout.ROW_DTYPE)
        control = self._control = np.zeros(CONTROL_CELLS, np.int64)
        control[LIMIT], control[THREADS] = -1, 1
        control[SCRATCH] = -(-(self._row + layout.ROW_BYTES) // 64) * 64

    def add(self, values: NDArray[Any], code: int) -> None:
        """Add the values of an array without gaps, whose elements have this code."""
        if values.size:
            observe_other(values.ctypes.data, values.size, code, self._row, self._control.ctypes.data)

    def take(self) -> tuple[NDArray[np.float64], NDArray[np.uint16], NDArray[np.uint32]]:
        """Return the columns of a frame for all values since the last call, as one tensor, and their sketch."""
        cells, counts = self._found["cells"], self._found["bins"]
        cells[layout.PARTS] = 1
        columns = np.empty(len(STATS))
        stats(cells.ctypes.data, 1, columns.ctypes.data)
        bins = np.flatnonzero(counts)
        taken = columns, bins.astype(np.uint16), counts[bins].copy()
        self._memory[:] = 0
        return taken
