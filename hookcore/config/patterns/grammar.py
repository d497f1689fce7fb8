"""The grammar for "which modules", used by settings, queries, find boxes, and rules. docs/patterns.md describes it.

text := term (space term)*        a module must pass every term
term := ["!"] test                "!" negates
test := GLOB | re:EXPRESSION | type:GLOB | is:STATE | depth:[<|>]NUMBER
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cache
from typing import Final

from hookcore.config import did_you_mean
from hookcore.config.patterns import matching
from hookcore.errors import PatternError

_PREFIXED: Final = re.compile(r"(re|type|is|depth):(.*)", re.DOTALL)
_DEPTH: Final = re.compile(r"([<>]?)([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a module that a pattern can test."""

    path: str
    types: tuple[str, ...] = ()  # the names of its class and its base classes
    cls: type | None = None  # its class, in the trainer
    is_root: bool = False
    is_leaf: bool = False
    aliases: tuple[str, ...] = ()  # its other paths
    parameters: int = 0
    trainable: int = 0
    captured: bool | None = None
    nan: bool = False
    dead: bool = False

    @property
    def depth(self) -> int:
        """The number of modules above it."""
        return 0 if self.is_root else self.path.count(".") + 1


Test = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition that a pattern puts on a module."""

    fits: Test
    states: frozenset[str] = frozenset()  # those that it asks about


STATES: Final[dict[str, Test]] = {
    "leaf": lambda module: module.is_leaf,
    "root": lambda module: module.is_root,
    "nan": lambda module: module.nan,
    "dead": lambda module: module.dead,
    "frozen": lambda module: module.parameters > 0 and module.trainable == 0,
    "trainable": lambda module: module.trainable > 0,
    "captured": lambda module: module.captured is True,
    "uncaptured": lambda module: module.captured is False,
}
STRUCTURE: Final = frozenset(("leaf", "root"))  # the states that don't change while the training runs


def parse(text: str, states: Container[str] = frozenset(STATES)) -> Condition:
    """Return the condition of a pattern; only these `states` are allowed. A malformed pattern raises PatternError."""
    return _parse(text, lambda term: _test_of(term, states))


def parse_search(text: str) -> Condition:
    """Return the condition of a find box's text.

    The grammar is the same, with two allowances for typing: case is ignored, and a word without `*` and `?` can be any
    part of the path.
    """
    return _parse(text, lambda term: _test_of(term, STATES, is_search=True))


def literal(path: str) -> str:
    """Return a pattern that matches one path alone; "" is the root."""
    if path == "":
        return "is:root"
    if path.startswith("!") or _PREFIXED.fullmatch(path) or any(sign.isspace() for sign in path):
        return f"re:{matching.literal(path)}"
    return re.sub(r"[\[*?]", r"[\g<0>]", path)


def _parse(text: str, read: Callable[[str], Test]) -> Condition:
    matching.require_length(text)
    terms = text.split()
    tests = [_negated(read(term[1:])) if len(term) > 1 and term[0] == "!" else read(term) for term in terms]
    states = frozenset(state for state in STATES if {f"is:{state}", f"!is:{state}"} & set(terms))
    return Condition(tests[0] if len(tests) == 1 else lambda module: all(test(module) for test in tests), states)


def _negated(test: Test) -> Test:
    return lambda module: not test(module)


def _test_of(term: str, states: Container[str], *, is_search: bool = False) -> Test:
    found = _PREFIXED.fullmatch(term)
    if is_search and term.startswith("/"):  # the form of earlier releases
        raise PatternError(f"{term!r} matches no path: for a regular expression, use re:, such as re:.*(q|k)")
    if found is None:
        is_part = is_search and not set("*?") & set(term)
        return _on_paths(_part(term) if is_part else matching.glob(term, ignore_case=is_search))
    prefix, value = found.groups()
    if prefix == "re":
        return _on_paths(matching.expression(value, ignore_case=is_search))
    if prefix == "type":
        return _type_test(value, is_search)
    return _state_test(value, states) if prefix == "is" else _depth_test(value)


def _part(word: str) -> matching.Fits:
    folded = word.lower()
    return lambda path: folded in path.lower()


def _on_paths(fits: matching.Fits) -> Test:
    return lambda module: fits(module.path) or any(map(fits, module.aliases))


def _type_test(value: str, ignore_case: bool) -> Test:
    if not value:
        raise PatternError("'type:' is incomplete: add the name of a class, such as type:Linear or type:*Norm")
    fits = matching.glob(value, ignore_case=ignore_case)
    any_fits = cache(lambda types: any(map(fits, types)))  # a model has few classes
    return lambda module: any_fits(module.types)


def _state_test(value: str, states: Container[str]) -> Test:
    if value in STATES and value in states:
        return STATES[value]
    known = [f"is:{name}" for name in STATES if name in states]
    why = "can't be used here, because it changes during the training" if value in STATES else "is not a pattern"
    hint = did_you_mean(f"is:{value}", known)
    raise PatternError(f"'is:{value}' {why}: use {' or '.join(map(repr, known))}.{hint}")


def _depth_test(value: str) -> Test:
    found = _DEPTH.fullmatch(value)
    if found is None:
        raise PatternError(f"'depth:{value}' is not a pattern: use depth:2, depth:<3, or depth:>1")
    sign, depth = found[1], int(found[2])
    if sign == "<":
        return lambda module: module.depth < depth
    if sign == ">":
        return lambda module: module.depth > depth
    return lambda module: module.depth == depth
