"""The rules of the user by name: given to a watch, registered by the decorator, or in a file."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hookcore.errors import ArgumentError
from hookcore.findings.ownrules.views import FrameView
from hookcore.records.vocabulary import OWN_OVER, OWN_RULE, OWN_RULE_EVENTS

MAX_RULES: Final = 50
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

Look = Callable[[FrameView], Any]


@dataclass(frozen=True, slots=True)
class OwnRule:
    """A function that looks at frames, with its name."""

    name: str
    function: Look

    def __call__(self, frame: FrameView) -> Any:
        return self.function(frame)


_registered: list[OwnRule] = []


def rule(function: Look | None = None, *, name: str = "") -> Any:
    """Make a function a rule of every watch that begins after it, or of the server that reads its file.

    The function gets a `FrameView` and returns None, a `Problem`, or several. The name is that of the function, with
    hyphens.
    """
    if function is None:
        return lambda given: rule(given, name=name)
    made = own_rule_of(function, name)
    _registered[:] = [each for each in _registered if each.name != made.name] + [made]  # a cell that runs again
    return made


def own_rule_of(given: Any, name: str = "") -> OwnRule:
    """Return a function as a rule. Raises ArgumentError if it isn't a function or its name is invalid."""
    if isinstance(given, OwnRule):
        return given
    if not callable(given):
        raise ArgumentError(f"{given!r} is not a rule: give a function that takes a frame")
    named = name or str(getattr(given, "__name__", type(given).__name__)).strip("_").lower().replace("_", "-")
    if not _NAME.fullmatch(named) or named.endswith(OWN_OVER) or f"{OWN_RULE}{named}" in OWN_RULE_EVENTS:
        raise ArgumentError(
            f"{named!r} is not a valid rule name: use up to 64 lowercase letters, digits, and hyphens, as in "
            '@hookcore.rule(name="flat-loss")'
        )
    return OwnRule(named, given)


def own_rules(given: Iterable[Any]) -> tuple[OwnRule, ...]:
    """Return these rules and the registered ones. Raises ArgumentError for two of one name, or too many."""
    found: dict[str, OwnRule] = {}
    for each in (*_registered, *map(own_rule_of, given)):
        known = found.setdefault(each.name, each)
        if known is not each and known.function is not each.function:
            raise ArgumentError(
                f"two rules have the name {each.name!r}: give one of them another name, with @hookcore.rule(name=...)"
            )
    if len(found) > MAX_RULES:
        raise ArgumentError(f"there are {len(found)} rules of your own; at most {MAX_RULES} are allowed")
    return tuple(found.values())


def rules_in(path: str | Path) -> tuple[OwnRule, ...]:
    """Run a file and return the rules that it defines. Raises ArgumentError if that fails or there are none."""
    try:
        made = runpy.run_path(str(path))
    except Exception as error:
        raise ArgumentError(f"the rules of {str(path)!r} can't be read: {type(error).__name__}: {error}") from error
    rules = [each for each in made.values() if isinstance(each, OwnRule)]
    if not rules:
        raise ArgumentError(f"{str(path)!r} contains no rule: put @hookcore.rule before a function that takes a frame")
    _registered[:] = [each for each in _registered if each not in rules]  # they are this server's, not of a watch
    if len(rules) > MAX_RULES:
        raise ArgumentError(f"{str(path)!r} contains {len(rules)} rules; at most {MAX_RULES} are allowed")
    return tuple(rules)
