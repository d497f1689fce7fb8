"""The optimizers' steps that are running, because one optimizer may call another one's step."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

from torch.optim import Optimizer

from hookcore.hooks.handle import STEP_LOOP

_LOOPS: Final = frozenset(code.co_name for code in STEP_LOOP)  # code is hashed with all its constants


class Nesting:
    """The running steps of each thread. Only the outermost one can end a step of the training."""

    def __init__(self) -> None:
        self._stacks: dict[int, list[tuple[int, int]]] = {}  # by thread: id(optimizer) and that of its call's frame

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside an optimizer's step."""
        return bool(self._stacks) and bool(self._stacks.get(threading.get_ident()))

    @property
    def outermost(self) -> int:
        """The id of the optimizer whose step this thread runs, the outermost one if they are nested; 0 if none."""
        stack = self._stacks.get(threading.get_ident())
        return stack[0][0] if stack else 0

    def enter(self, optimizer: Optimizer) -> bool:
        """Start a step. Return whether it is the outermost one."""
        stack = self._stacks.setdefault(threading.get_ident(), [])
        frames = _step_frames(all_of_them=bool(stack))
        if stack:
            stack[:] = [entry for entry in stack if entry[1] in frames[1:]]  # others raised and never ended
        stack.append((id(optimizer), frames[0] if frames else 0))
        return len(stack) == 1

    def leave(self, optimizer: Optimizer) -> bool:
        """End a step. Return whether it is the innermost that was started, and the outermost."""
        ident = threading.get_ident()
        stack = self._stacks.get(ident)
        if not stack or stack[-1][0] != id(optimizer):
            return False
        stack.pop()
        if stack:
            return False
        del self._stacks[ident]
        return True


def runs_step() -> bool:
    """Return whether this thread is inside an optimizer's step. Its closure may run its model for the first time."""
    return bool(_step_frames(all_of_them=False))


def _step_frames(all_of_them: bool) -> list[int]:
    """Return the running calls of `Optimizer.step`, innermost first; only that one unless all are requested."""
    found: list[int] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _LOOPS and frame.f_code in STEP_LOOP:
            found.append(id(frame))
            if not all_of_them:
                break
        frame = frame.f_back
    return found
