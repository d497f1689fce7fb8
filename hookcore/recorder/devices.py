"""The arenas of devices other than the CPU: one for each stream, because streams run at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hookcore.hooks.internals import is_wrapped, stream_number
from hookcore.observe.arena import CpuArena
from hookcore.recorder.errorlog import ErrorLog

if TYPE_CHECKING:
    from hookcore.observe.device import DeviceArena
    from hookcore.observe.transfer import Transfer


class Devices:
    """The arenas in use. Each has the slots of the CPU's."""

    def __init__(self, host: CpuArena, errors: ErrorLog) -> None:
        self.arenas: dict[tuple[torch.device, int], DeviceArena] = {}  # by the number of the stream
        self._host = host
        self._errors = errors

    def begin_step(self) -> None:
        """Let each arena sample other values than in the last step."""
        for arena in list(self.arenas.values()):
            arena.begin_step()

    def begin_transfers(self) -> tuple[Transfer, ...]:
        """Start to copy the measurements to the host. If an arena fails, only its measurements are lost (reported)."""
        begun: list[Transfer] = []
        for arena in list(self.arenas.values()):
            try:
                if (transfer := arena.begin_transfer()) is not None:
                    begun.append(transfer)
            except Exception as error:
                self._errors.record("end of a step", error)
        return tuple(begun)

    def clear(self, slots: list[int]) -> None:
        """Drop what was added to these slots in this step."""
        for arena in list(self.arenas.values()):
            arena.clear(slots)

    def observe(self, tensor: Tensor, slot: int) -> str | None:
        """Add a plain tensor of another device to a slot, or return the reason why not."""
        key = tensor.device, stream_number(tensor.device)
        arena = self.arenas.get(key)
        if arena is None:
            from hookcore.observe.device import DeviceArena

            arena = DeviceArena(tensor.device, self._host.capacity, self._host.sketch_values)
            arena = self.arenas.setdefault(key, arena)  # another thread may have been faster
        return arena.observe(tensor, slot)


def is_readable_on_cuda(tensor: Tensor) -> bool:
    """Return whether the kernel of a GPU can read the values of a tensor without a class of its own where they are."""
    is_plain = tensor.is_cuda and tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_complex()
    return is_plain and not is_wrapped(tensor)
