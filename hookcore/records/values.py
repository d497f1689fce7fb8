"""How much of a configuration, and of the facts about a run, a description holds: it goes with each message."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from hookcore.records import Value

MAX_VALUES: Final = 400
MAX_BYTES: Final = 131_072  # encoded
_ENTRY: Final = 16  # bytes of a name and a value without their texts, at most


def first_values(values: Mapping[str, Value]) -> tuple[dict[str, Value], int]:
    """Return the first values, as many as fit into a description, and how many were left out."""
    kept: dict[str, Value] = {}
    room = MAX_BYTES - _ENTRY
    for name, value in islice(values.items(), MAX_VALUES):
        room -= _ENTRY + sum(len(text.encode("utf-8", "replace")) for text in (name, value) if isinstance(text, str))
        if room < 0:
            break
        kept[name] = value
    return kept, len(values) - len(kept)
