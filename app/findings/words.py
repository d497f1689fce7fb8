"""The kinds of taps in sentences."""

from __future__ import annotations

from typing import Final

from hookcore.records import Kind

_KINDS: Final[dict[Kind, str]] = {
    "output": "output",
    "output_grad": "output gradient",
    "input": "input",
    "input_grad": "input gradient",
    "param": "parameter",
    "param_grad": "parameter gradient",
    "update": "update",
}


def kind_word(kind: Kind) -> str:
    """Return the name of a kind for a sentence."""
    return _KINDS[kind]
