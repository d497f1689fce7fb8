"""The code that Dynamo has compiled in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType

from hookcore.hooks.internals import has_graphs


def seen_codes() -> Iterator[CodeType]:
    """Return all code that Dynamo has met and that still exists; none if Dynamo isn't fully imported."""
    codes = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None)
    for reference in list(codes.seen) if codes is not None else ():
        code = reference()
        if code is not None:
            yield code


def has_compiled() -> bool:
    """Return whether Dynamo has compiled anything in this process."""
    return any(map(has_graphs, seen_codes()))
