"""The memory in which the outputs of one step's calls are. The references to it are weak."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from hookcore.hooks.internals import version_of

OUTSIDE: Final = -1  # the place of what doesn't come from a call, such as the batch


@dataclass(slots=True, eq=False)
class Memory:
    """A piece of memory. A call may return a part of its input, while others get all of it."""

    key: Any  # holds its address
    version: int
    place: int = OUTSIDE  # the newest call with an output in it
    parts: dict[object, int] = field(default_factory=dict)  # such calls, by the part that their output is

    def place_of(self, tensor: Tensor) -> int:
        """Return the call whose output a tensor is; if there is none, the newest in its memory."""
        return self.parts.get(_part_of(tensor), self.place)


class Memories:
    """All memory that is known, by its address."""

    def __init__(self) -> None:
        self._known: dict[int, Memory] = {}

    def get(self, key: Any) -> Memory | None:
        """Return the known facts about the memory that a weak reference points to."""
        return self._known.get(key.cdata)

    def remember(self, key: Any, tensor: Tensor, place: int) -> None:
        """Note that a tensor is the output of a call, or comes from outside."""
        version, known = version_of(tensor), self.get(key)
        if known is None or known.version != version:
            known = self._known[key.cdata] = Memory(key, version)
        known.place = known.parts[_part_of(tensor)] = place


def _part_of(tensor: Tensor) -> object:
    try:
        return tensor.storage_offset(), tensor.shape, tensor.stride()
    except (NotImplementedError, RuntimeError):  # a layout without these
        return None
