"""The setting `rules`: thresholds of rules, and rules that are off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

RulesGiven = Mapping[str, Mapping[str, float] | bool | None] | None

_EXAMPLE: Final = " Write, for example, {'loss-spike': {'factor': 20}, 'dead-relu': False}."
_WORDS: Final = {"off": False, "on": True}


@dataclass(frozen=True, slots=True)
class GivenRules:
    """What was given: thresholds or False by rule, whose names the rules check."""

    thresholds: Mapping[str, Any] = field(default_factory=dict)


def read_rules(given: object) -> GivenRules:
    """Read a mapping, or None."""
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(_EXAMPLE)
    thresholds: dict[str, Any] = {}
    for name, what in (given or {}).items():
        if not isinstance(name, str) or not (what is None or isinstance(what, bool | Mapping)):
            raise ValueError(_EXAMPLE)
        thresholds[name] = dict(what) if isinstance(what, Mapping) else what
    return GivenRules(thresholds)


def rules_of_text(text: str) -> object:
    """Parse `spike.factor=20,dead=off`, with "none" as None."""
    if text.lower() == "none":
        return None
    found: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        rule, dot, threshold = name.strip().partition(".")
        if dot:
            found[rule] = {**(found[rule] if isinstance(found.get(rule), dict) else {}), threshold: float(value)}
        elif value.strip().lower() in _WORDS:
            found[rule] = _WORDS[value.strip().lower()]
        else:
            raise ValueError(part)
    return found
