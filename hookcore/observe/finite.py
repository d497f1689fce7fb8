"""Looks at a few tensors for non-finite values: at once if they are in this process's memory, later if on a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, strided

from hookcore.hooks.internals import is_wrapped
from hookcore.observe import cpu, layout
from hookcore.observe.arena import CODES, LOW, CpuArena, is_freed
from hookcore.observe.copies import start_copy, wait_for
from hookcore.observe.plain import make_plain, unseen

_float32: Final = torch.float32
_is_finite: Final = cpu.is_finite
MAX_VALUES: Final = cpu.MAX_VALUES
NonFinite = Literal["nan", "inf", "-inf"]
_WORDS: Final[tuple[tuple[int, NonFinite], ...]] = (
    (layout.NAN_COUNT, "nan"),
    (layout.POS_INF_COUNT, "inf"),
    (layout.NEG_INF_COUNT, "-inf"),
)


def word_of(number: float) -> NonFinite | None:
    """Return what a number is if it isn't finite."""
    if number - number == 0:
        return None
    return "nan" if number != number else "inf" if number > 0 else "-inf"


def all_finite(numbers: Iterable[Any]) -> bool:
    """Return whether all of these are floats that are finite."""
    # Without a generator, which would be a call of its own.
    return not [None for number in numbers if type(number) is not float or number - number != 0]


def is_finite(tensor: Tensor) -> bool:
    """Return whether the first values of a plain float32 tensor in memory are finite; False for any other tensor."""
    if (
        type(tensor) is not Tensor
        or tensor.dtype is not _float32
        or not tensor.is_cpu
        or tensor.layout is not strided
        or not tensor.is_contiguous()
        or is_wrapped(tensor)
    ):
        return False
    size, address = tensor.numel(), tensor.data_ptr()
    if address < LOW and is_freed(tensor):
        return False
    return bool(_is_finite(address, size if size < MAX_VALUES else MAX_VALUES))


class Tally:
    """Counts non-finite values in memory, which is read by address: no mode, profiler, or autograd sees it."""

    def __init__(self) -> None:
        self._arena = CpuArena(1, 0)
        self._row, self._control = self._arena.row(0), self._arena.control
        self._cells = self._arena.cells_of(0)

    def sees(self, tensor: Tensor) -> bool:
        """Count those among the first values of a plain CPU tensor. Return False if it isn't one."""
        if (
            type(tensor) is not Tensor
            or not tensor.is_cpu
            or tensor.layout is not strided
            or not tensor.is_contiguous()
            or is_wrapped(tensor)
        ):
            return False
        code, address = CODES.get(tensor.dtype), tensor.data_ptr()
        if code is None or (address < LOW and is_freed(tensor)):
            return False
        size = tensor.numel()
        size = size if size < MAX_VALUES else MAX_VALUES
        cpu.observe_other(address, size, code, self._row, self._control)
        return True

    @property
    def has_any(self) -> bool:
        """Whether one was counted since the last `take`."""
        cells = self._cells
        return bool(cells[layout.NAN_COUNT] or cells[layout.POS_INF_COUNT] or cells[layout.NEG_INF_COUNT])

    def take(self) -> NonFinite | None:
        """Return the worst that was counted, and forget it."""
        found = next((word for cell, word in _WORDS if self._cells[cell]), None)
        self._arena.clear([0])
        return found

    def look(self, tensor: Tensor) -> NonFinite | None:
        """Return the worst of all values of any CPU tensor. Nothing must have been counted before."""
        with unseen():
            plain = make_plain(tensor)
            if isinstance(plain, Tensor) and plain.is_cpu:
                self._arena.observe(plain, self._row)
        return self.take()


@dataclass(slots=True)
class SumsUnderway:
    """Sums of the magnitudes of some tensors on a device, on their way to the host."""

    _values: Tensor
    _done: Any  # the event after the copy

    @property
    def is_done(self) -> bool:
        """Whether `finish` returns at once."""
        return bool(self._done.query())

    def finish(self) -> list[float]:
        """Return a number for each tensor, which is finite if all of its values are. Waits, in this thread only."""
        wait_for(self._done)
        found: list[float] = self._values.tolist()
        return found


def local_part(tensor: Tensor) -> Tensor | None:
    """Return the part of a tensor that this process can read where it lies: of a distributed one, its own shard."""
    if type(tensor).__name__ == "DTensor":
        tensor = tensor._local_tensor  # type: ignore[attr-defined]
    is_plain = type(tensor) is Tensor and tensor.layout is strided and not is_wrapped(tensor)
    return tensor if is_plain and tensor.is_floating_point() else None


def is_elsewhere(tensor: Tensor) -> bool:
    """Return whether `start_reading` can read a plain tensor."""
    return tensor.is_cuda


def start_reading(tensors: Sequence[Tensor]) -> SumsUnderway | None:
    """Start to look at plain tensors of one CUDA device and one type. None while a CUDA graph is captured."""
    with torch.cuda.device(tensors[0].device):
        if torch.cuda.is_current_stream_capturing():
            return None
        with unseen():
            dtype = torch.float32 if tensors[0].dtype.itemsize < torch.float32.itemsize else tensors[0].dtype
            # The sum of magnitudes: unlike a maximum, it is NaN if any value is, and it overflows later than a square.
            sums = [torch.linalg.vector_norm(tensor.detach(), 1, dtype=dtype) for tensor in tensors]
            return SumsUnderway(*start_copy(torch.stack(sums), dtype))
