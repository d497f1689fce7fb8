"""Reentrant checkpoints: matching the calls of a recompute with the original ones.

Such a checkpoint is an autograd function. Its forward runs the modules without gradients, and its backward runs them
again, with gradients, in the same order. Both get the same `ctx`, which connects the calls of one segment. In an outer
checkpoint, the inner one repeats its forward with another `ctx` before its own backward runs.

Other autograd functions do so in another order, such as that of an ODE, which is solved backward. Of several calls of a
module, it is therefore unknown which one they repeat.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

from torch.utils import checkpoint

_CHECKPOINT: Final = checkpoint.__file__
IN_ANY_ORDER: Final = (
    "an autograd function called it several times and calls it again in its backward pass, in an unknown order: these "
    "gradients are left out"
)

Pending = list[tuple[int, int]]  # segment and number of the call


def forward_segment() -> int:
    """Return the outermost autograd function whose forward runs, within the innermost backward; 0 if there is none."""
    segment, frame = 0, sys._getframe(1)
    while frame is not None and not _is_method(frame, "backward"):
        if _is_method(frame, "forward"):
            segment = id(frame.f_locals.get("ctx"))
        frame = frame.f_back  # type: ignore[assignment]
    return segment


def _running_backward() -> Any:
    """Return the `ctx` of the innermost autograd function whose backward runs; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_method(frame, "backward"):
            return frame.f_locals.get("ctx")
        frame = frame.f_back
    return None


def why_unknown(pending: Pending) -> str:
    """Return why it is unknown which of several waiting calls runs again now, or ""."""
    if len(pending) < 2:
        return ""
    running = _running_backward()
    is_ordered = "Checkpoint" in type(running).__name__ or sum(known == id(running) for known, _ in pending) < 2
    return "" if is_ordered else IN_ANY_ORDER


def take_call(pending: Pending, tensors: list[tuple[str, Any]], grad_enabled: bool) -> int | None:
    """Return the waiting call that runs again now. None if it is unknown, or if it will run once more."""
    if why_unknown(pending):
        return None
    running = _running_backward()
    segment = 0 if running is None else id(running)
    place = next((place for place, (known, _) in enumerate(pending) if known == segment), None)
    if place is None:
        if segment or not pending:
            return None
        place = len(pending) - 1
    if not grad_enabled and not any(tensor.requires_grad for _, tensor in tensors):
        inner = forward_segment()
        if inner:  # a nested checkpoint, whose own backward will run it again
            if not _is_unpacking():
                pending.append((inner, pending.pop(place)[1]))
            return None
    return pending.pop(place)[1]


def _is_unpacking() -> bool:
    """Return whether the innermost backward is still fetching what it saved, before it runs its calls again.

    Then a checkpoint that isn't reentrant, around this one, repeats its whole forward, only to find that.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_method(frame, "backward"):
        if frame.f_code.co_name == "unpack_hook" and frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def _is_method(frame: FrameType, name: str) -> bool:
    code = frame.f_code
    return code.co_name == name and code.co_argcount > 0 and code.co_varnames[0] == "ctx"
