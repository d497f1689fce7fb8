"""Hooks of hookcore in copies and checkpoints of a model."""

from __future__ import annotations

import contextlib
from typing import Any


class InertInCopies:
    """A hook whose place in copies and checkpoints is taken by one that does nothing and loads without hookcore."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")

    inert = __reduce__
