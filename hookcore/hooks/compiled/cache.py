"""The code that Dynamo has compiled in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType

import torch


def seen_codes() -> Iterator[CodeType]:
    """Return all code that Dynamo has met and that still exists; none if Dynamo isn't fully imported."""
    codes = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None)
    for reference in list(codes.seen) if codes is not None else ():
        code = reference()
        if code is not None:
            yield code


def has_graphs(code: CodeType) -> bool:
    """Return whether anything was compiled for this code."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "_get_total_cache_entry_count"):
        return frames._get_total_cache_entry_count(code) > 0
    return bool(frames._debug_get_cache_entry_list(code))  # torch 2.6 has no count


def has_compiled() -> bool:
    """Return whether Dynamo has compiled anything in this process."""
    return any(map(has_graphs, seen_codes()))
