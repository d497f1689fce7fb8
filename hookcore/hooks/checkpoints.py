"""Reentrant checkpoints: matching the calls of a recompute with the original ones.

Such a checkpoint is an autograd function. Its forward runs the modules without gradients, and its backward runs them
again, with gradients, in the same order. Both get the same `ctx`, which connects the calls of one segment. In an outer
checkpoint, the inner one repeats its forward with another `ctx` before its own backward runs.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

Pending = list[tuple[int, int]]  # segment and number of the call


def forward_segment() -> int:
    """Return the outermost autograd function whose forward runs, within the innermost backward; 0 if there is none."""
    segment, frame = 0, sys._getframe(1)
    while frame is not None and not _is_method(frame, "backward"):
        if _is_method(frame, "forward"):
            segment = id(frame.f_locals.get("ctx"))
        frame = frame.f_back  # type: ignore[assignment]
    return segment


def backward_segment() -> int:
    """Return the innermost autograd function whose backward runs; 0 if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_method(frame, "backward"):
            return id(frame.f_locals.get("ctx"))
        frame = frame.f_back
    return 0


def take_call(pending: Pending, tensors: list[tuple[str, Any]], grad_enabled: bool) -> int | None:
    """Return the waiting call that runs again now. None if there is none, or if it will run once more."""
    segment = backward_segment()
    place = next((place for place, (known, _) in enumerate(pending) if known == segment), None)
    if place is None:
        if segment or not pending:
            return None
        place = len(pending) - 1
    if not grad_enabled and not any(tensor.requires_grad for _, tensor in tensors):
        inner = forward_segment()
        if inner:  # a nested checkpoint, whose own backward will run it again
            pending.append((inner, pending.pop(place)[1]))
            return None
    return pending.pop(place)[1]


def _is_method(frame: FrameType, name: str) -> bool:
    code = frame.f_code
    return code.co_name == name and code.co_argcount > 0 and code.co_varnames[0] == "ctx"
