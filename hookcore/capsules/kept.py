"""A model whose newest call is kept, and which of its buffers are copied."""

from __future__ import annotations

import weakref
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor, nn

from hookcore.capsules.call import Call, Members, bytes_of, state_of
from hookcore.capsules.held import Held
from hookcore.capsules.numbers import Counters

_SMALL_BYTES: Final = 1 << 16  # of a buffer: the operator of BatchNorm changes its own without counting versions


@dataclass(slots=True)
class KeptModel:
    """A model that is called itself. Between its calls, no tensor is kept alive."""

    ref: weakref.ref[nn.Module]
    path: str
    below: str  # what the paths of the modules inside begin with
    members: Members
    counters: Counters
    moving: set[str] = field(default_factory=set)  # buffers that were seen to change
    still: dict[str, tuple[int, int]] = field(default_factory=dict)  # the states of large ones
    call: Call | None = None
    runs: bool = False
    held: Held | None = None  # the call of an uncaptured step
    _noted: dict[str, tuple[int, int]] = field(default_factory=dict)  # the states of all buffers, when seen last

    def __post_init__(self) -> None:
        self._noted = {name: state_of(buffer) for name, buffer in self.members.buffers()}

    def held_call(self, model: nn.Module, updates: int) -> Call:
        """Return the held call of an uncaptured step as one that can be saved, after so many updates of any weights."""
        assert self.held is not None
        return self.held.as_call(model, self.held.updates != updates, self._moved_buffers)

    def _moved_buffers(self, others: Container[str]) -> list[str]:
        """Return the buffers that have changed since they were seen last, perhaps in the running step."""
        moved = [name for name, each in self.members.buffers() if self._noted.get(name) != state_of(each)]
        return [f"the value of buffer {name} when the call began" for name in moved if name not in others]

    def contains(self, path: str) -> bool:
        """Return whether a module is a part of it."""
        return not self.path or path == self.path or path.startswith((f"{self.path}.", f"{self.path}/"))

    def copies_of_buffers(self) -> dict[str, Tensor]:
        """Return copies of small buffers, and of buffers that were seen to change."""
        copies = {}
        for name, buffer in self.members.buffers():
            self._noted[name] = state_of(buffer)
            small = bytes_of((buffer,)) <= _SMALL_BYTES
            known = name in self.still
            if not small and self._moved(name, buffer) and known:
                self.moving.add(name)
            if small or name in self.moving:
                copies[name] = buffer.detach().clone()
        return copies

    def changed(self, call: Call) -> list[str]:
        """Return the buffers that changed since the call began and were not copied."""
        others = ((name, buffer) for name, buffer in self.members.buffers() if name not in call.buffers)
        return [f"buffer {name}" for name, buffer in others if self._moved(name, buffer)]

    def _moved(self, name: str, buffer: Tensor) -> bool:
        state = state_of(buffer)
        moved = self.still.get(name) != state
        self.still[name] = state
        return moved
