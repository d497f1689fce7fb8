"""The parser of the find box, equal to js/find.js, for the first paint of a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hookcore import patterns
from hookcore.errors import PatternError

MAX_LETTERS: Final = 1000
_TERM: Final = re.compile(r"!?/(?:\\.|[^\\/])*/[a-z]*(?=\s|$)|\S+")
_DEPTH: Final = re.compile(r"([<>]?)([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a module that the find box can test."""

    path: str
    type: str = ""
    aliases: tuple[str, ...] = ()
    parameters: int = 0
    trainable: int = 0
    captured: bool | None = None
    nan: bool = False
    dead: bool = False


Test = Callable[[Facts], bool]

_STATES: Final[dict[str, Test]] = {
    "nan": lambda module: module.nan,
    "dead": lambda module: module.dead,
    "frozen": lambda module: module.parameters > 0 and module.trainable == 0,
    "trainable": lambda module: module.trainable > 0,
    "captured": lambda module: module.captured is True,
    "uncaptured": lambda module: module.captured is False,
}


@dataclass(frozen=True, slots=True)
class Found:
    """A test of modules; if the text is invalid, every module passes and `problem` gives the reason."""

    test: Test
    problem: str = ""


def everything(module: Facts) -> bool:
    """Let every module pass."""
    return True


def parse(text: str) -> Found:
    """Parse the text: all terms must hold; `!` negates a term."""
    if len(text) > MAX_LETTERS:
        return Found(everything, f"the search is longer than {MAX_LETTERS} characters: shorten it")
    try:
        tests = [_read(term) for term in _TERM.findall(text)]
    except PatternError as error:
        return Found(everything, str(error))
    return Found(lambda module: all(test(module) for test in tests))


def _read(term: str) -> Test:
    if term.startswith("!") and len(term) > 1:
        inner = _read(term[1:])
        return lambda module: not inner(module)
    if term.startswith("/"):
        return _read_expression(term)
    name, _, value = term.partition(":")
    reader = {"type": _read_type, "is": _read_state, "depth": _read_depth}.get(name)
    return reader(value) if reader is not None and ":" in term else _read_name(term)


def _read_name(term: str) -> Test:
    if "*" in term or "?" in term:
        return _on_names(patterns.glob(_plain(term).lower()), lower=True)
    part = term.lower()
    return _on_names(lambda name: part in name, lower=True)


def _plain(term: str) -> str:
    """Escape brackets, which are literal here."""
    return term.replace("[", "[[]")


def _read_expression(term: str) -> Test:
    end = term.rfind("/")
    if end == 0:
        raise PatternError("a regular expression also ends with a slash: /layers\\.[0-3]\\./")
    source, flags = term[1:end], "si" if "i" in term[end + 1 :] else "s"
    fits = patterns.expression(f"re:(?{flags}).*(?:{source}).*")
    return _on_names(fits)


def _on_names(fits: Callable[[str], bool], *, lower: bool = False) -> Test:
    def test(module: Facts) -> bool:
        return any(fits(name.lower() if lower else name) for name in (module.path, *module.aliases))

    return test


def _read_type(value: str) -> Test:
    if not value:
        raise PatternError("type: needs the name of a class: type:Linear, type:*Norm*")
    fits = patterns.glob(_plain(value).lower())
    return lambda module: fits(module.type.lower())


def _read_state(value: str) -> Test:
    if value not in _STATES:
        known = ", ".join(f"is:{name}" for name in _STATES)
        raise PatternError(f"is:{value} is unknown: use {known}")
    return _STATES[value]


def _read_depth(value: str) -> Test:
    found = _DEPTH.fullmatch(value)
    if found is None:
        raise PatternError(f"depth:{value} is not a depth: use depth:2, depth:<3, or depth:>1")
    sign, depth = found[1], int(found[2])
    if sign == "<":
        return lambda module: _depth_of(module.path) < depth
    if sign == ">":
        return lambda module: _depth_of(module.path) > depth
    return lambda module: _depth_of(module.path) == depth


def _depth_of(path: str) -> int:
    return path.count(".") + 1 if path else 0
