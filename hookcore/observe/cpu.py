"""The CPU kernel: adds the values at an address to a row of an arena, and takes the rows out again.

The work is done by the compiled extension (`_kernel.c`). Without it, NumPy computes the same numbers, more slowly:
`hookcore.observe.portable`. Functions take addresses, because boxing an array costs more than a small tensor's values,
and because memory that is read by address stays invisible to dispatch modes, autograd, and the profiler.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, Final

from hookcore.observe import portable

INTERFACE: Final = 7  # raised with every change of the extension's functions or memory layout

# The control block that every call gets by address: int64 cells.
LIMIT: Final = 0  # values that a sketch takes at least; -1: every value; 0: no sketch
JITTER: Final = 1  # where the sampling stride begins, which changes in every step
SCRATCH: Final = 2  # address of the scratch memory, one part per thread
THREADS: Final = 3
FORK_CALL: Final = 4  # an address in torch's OpenMP runtime
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


_kernel: Any
_kernel, FALLBACK_REASON = load_kernel()
# Shown as an event of the run and by `hookcore doctor`.
SLOW_KERNEL: Final = (
    f"{FALLBACK_REASON}, so CPU tensors are measured with NumPy, about ten times slower: "
    "reinstall hookcore with `pip install --force-reinstall --no-deps hookcore`"
)
INSTRUCTIONS: Final[str] = _kernel.INSTRUCTIONS  # the instruction set in use
MAX_THREADS: Final[int] = _kernel.MAX_THREADS
SCRATCH_BYTES: Final[int] = _kernel.SCRATCH_BYTES
MAX_VALUES: Final[int] = _kernel.MAX_VALUES  # of a tensor that is looked at in every step

observe = _kernel.observe  # (address, n, row, control): n float32s without gaps
observe_other = _kernel.observe_other  # (address, n, code, row, control): n values of any type without gaps
Track: Any = _kernel.Track  # the short way through uncaptured steps; see hookcore.recorder.clock.steady
Hold: Any = _kernel.Hold  # holds calls in such steps; see hookcore.recorder.calls.keeping
is_finite = _kernel.is_finite  # (address, n) -> whether all of n float32s without gaps are
observe_strided = _kernel.observe_strided  # (address, n, code, shape, row, control); shape: axes, sizes, strides
pack = _kernel.pack  # (base, used, target) -> words; see hookcore.observe.arena
stats = _kernel.stats  # (cells, rows, stats): the columns of a frame from rows of cells
unpack = _kernel.unpack  # (words, size, slots, cells, start, bins, counts) -> rows
