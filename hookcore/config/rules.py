"""The setting `rules`: thresholds of rules, rules that are off, and functions that are rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

OwnRule = Callable[..., Any]
RulesGiven = Mapping[str, Mapping[str, float] | bool | None] | OwnRule | Iterable[Any] | None

_EXAMPLE: Final = " Write, for example, {'loss-spike': {'factor': 20}, 'dead-relu': False}."
_WORDS: Final = {"off": False, "on": True}


@dataclass(frozen=True, slots=True)
class GivenRules:
    """The value of the setting: thresholds or False by rule, whose names the rules check, and functions."""

    thresholds: Mapping[str, Any] = field(default_factory=dict)
    functions: tuple[OwnRule, ...] = ()


def read_rules(given: object) -> GivenRules:
    """Read a mapping, a function, or several of them."""
    items: list[object] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    thresholds: dict[str, Any] = {}
    functions: list[OwnRule] = []
    for item in items:
        if isinstance(item, Mapping):
            for name, what in item.items():
                if not isinstance(name, str) or not (what is None or isinstance(what, bool | Mapping)):
                    raise ValueError(_EXAMPLE)
                thresholds[name] = dict(what) if isinstance(what, Mapping) else what
        elif callable(item) and not isinstance(item, type):
            functions.append(item)
        else:
            raise ValueError(_EXAMPLE)
    return GivenRules(thresholds, tuple(functions))


def rules_of_text(text: str) -> object:
    """Parse `spike.factor=20,dead=off`."""
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
