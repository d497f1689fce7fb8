"""What Dynamo has compiled in this process."""

from __future__ import annotations

import sys

import torch


def has_compiled() -> bool:
    """Whether Dynamo has compiled anything in this process."""
    codes = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None)
    count_entries = torch._C._dynamo.eval_frame._get_total_cache_entry_count
    found = [code for reference in list(codes.seen) if (code := reference()) is not None] if codes is not None else []
    return any(count_entries(code) > 0 for code in found)
