"""Selecting modules: the grammar of patterns, and the selection by `include` and `exclude`."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import re2  # type: ignore[import-untyped]

from hookcore.config import Pattern, did_you_mean, nearest
from hookcore.errors import PatternError

# Globs and regular expressions for names. No pattern can hang: RE2's run time is linear in the length of the name.
#
# Lookaround and backreferences are not supported. This file knows neither modules nor taps.

MAX_LENGTH: Final = 1000  # characters of a pattern
MAX_BYTES: Final = 1 << 22  # memory of one compiled expression, including its automaton
MAX_SIZE: Final = 5000  # instructions of a compiled expression; matching takes at most the name's length times this

Fits = Callable[[str], bool]


def matcher(pattern: str) -> Fits:
    """Return a matcher of whole names for a glob or, after "re:", a regular expression."""
    return expression(pattern.removeprefix("re:")) if pattern.startswith("re:") else glob(pattern)


def glob(pattern: str, *, ignore_case: bool = False) -> Fits:
    """Return a matcher of whole names for a glob: `*` any text, dots included, `?` a character, `[a-z]`, `[!a-z]`."""
    require_length(pattern)
    try:
        return _compile(f"(?s{'i' * ignore_case})" + "".join(_translate(pattern)))
    except re2.error:
        raise PatternError(f"{pattern!r} is too large a pattern: use fewer ? and [...]") from None


def expression(text: str, *, ignore_case: bool = False) -> Fits:
    """Return a matcher of whole names for a regular expression."""
    require_length(text)
    try:
        return _compile("(?i)" * ignore_case + text)
    except re2.error as error:
        raise PatternError(
            f"{_shown(f're:{text}')} is not a regular expression: {_regex_error(error)} of {_shown(text)}. "
            f"{_hint(text)}For a glob, omit 're:'."
        ) from None


def literal_expression(text: str) -> str:
    """Return a regular expression that matches a text alone, and has no space."""
    return "".join(map(_escape, text))


def require_length(pattern: str) -> None:
    """Raise PatternError if a pattern is too long."""
    if len(pattern) > MAX_LENGTH:
        raise PatternError(
            f"a pattern of {len(pattern)} characters ({pattern[:40]!r}...) is too long: use at most {MAX_LENGTH}"
        )


def _compile(text: str) -> Fits:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # capturing groups would need a slower RE2 engine
    options.max_mem = MAX_BYTES
    compiled = re2.compile(_encode(text), options)
    re2.purge()  # its cache would keep a hundred automata
    if compiled.programsize > MAX_SIZE:
        raise re2.error("too many repetitions")
    return lambda name: compiled.fullmatch(_encode(name)) is not None


def _encode(text: str) -> bytes:
    # A name can contain half a surrogate pair, which has no UTF-8 encoding.
    return text.encode("utf-8", "replace")


def _regex_error(error: Exception) -> str:
    given = error.args[0] if error.args else ""
    return given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)


def _hint(text: str) -> str:
    if any(sign in text for sign in ("(?=", "(?!", "(?<=", "(?<!", "(?P=", "(?>")) or any(
        f"\\{digit}" in text for digit in range(1, 10)
    ):
        return "Lookaround and backreferences are not supported, so that no expression can hang. "
    return ""


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."


def _translate(pattern: str) -> Iterator[str]:
    place, was_star = 0, False
    while place < len(pattern):
        sign = pattern[place]
        end = _end_of_set(pattern, place) if sign == "[" else -1
        if sign == "*":
            yield "" if was_star else ".*"
        elif sign == "?":
            yield "."
        elif end > 0:
            yield _translate_set(pattern[place + 1 : end])
            place = end
        else:
            yield _escape(sign)
        was_star = sign == "*"
        place += 1


def _end_of_set(pattern: str, start: int) -> int:
    """Return where the set that starts here ends, or -1 if it doesn't: the bracket is then literal."""
    place = start + 1
    place += pattern.startswith("!", place)
    place += pattern.startswith("]", place)
    return pattern.find("]", place)


def _translate_set(inside: str) -> str:
    negated = inside.startswith("!")
    signs, parts = inside[negated:], []
    while signs:
        if len(signs) > 2 and signs[1] == "-":
            if signs[0] <= signs[2]:  # a reversed range is empty
                parts.append(f"{_escape(signs[0])}-{_escape(signs[2])}")
            signs = signs[3:]
        else:
            parts.append(_escape(signs[0]))
            signs = signs[1:]
    if not parts:
        return "." if negated else r"[^\x00-\x{10FFFF}]"
    return f"[{'^' * negated}{''.join(parts)}]"


def _escape(sign: str) -> str:
    return sign if sign.isalnum() or sign == "_" else f"\\x{{{ord(sign.encode('utf-8', 'replace').decode()):X}}}"


# The grammar for "which modules", used by settings, queries, find boxes, and rules. docs/patterns.md describes it.
#
# text := term (space term)*        a module must pass every term
# term := ["!"] test                "!" negates
# test := GLOB | re:EXPRESSION | type:GLOB | is:STATE | depth:[<|>]NUMBER

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
        return f"re:{literal_expression(path)}"
    return re.sub(r"[\[*?]", r"[\g<0>]", path)


def _parse(text: str, read: Callable[[str], Test]) -> Condition:
    require_length(text)
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
        return _on_paths(_part(term) if is_part else glob(term, ignore_case=is_search))
    prefix, value = found.groups()
    if prefix == "re":
        return _on_paths(expression(value, ignore_case=is_search))
    if prefix == "type":
        return _type_test(value, is_search)
    return _state_test(value, states) if prefix == "is" else _depth_test(value)


def _part(word: str) -> Fits:
    folded = word.lower()
    return lambda path: folded in path.lower()


def _on_paths(fits: Fits) -> Test:
    return lambda module: fits(module.path) or any(map(fits, module.aliases))


def _type_test(value: str, ignore_case: bool) -> Test:
    if not value:
        raise PatternError("'type:' is incomplete: add the name of a class, such as type:Linear or type:*Norm")
    fits = glob(value, ignore_case=ignore_case)
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


# Selection of modules by what to include and exclude, with a reason for each unselected module.
#
# Imports no torch: a module is a path and an object. Only the object's class is inspected, never the object itself.

_SHOWN_NAMES: Final = 5
_NO_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which paths the patterns select: the reason is "" for selected paths."""

    reasons: Mapping[str, str]
    unmatched: tuple[str, ...] = ()  # the patterns that matched no module, as the user wrote them

    def reason(self, path: str) -> str:
        """Return why a path is not selected, or "" if it is."""
        return self.reasons[path]

    @property
    def chosen(self) -> tuple[str, ...]:
        """The selected paths, in the order of the modules."""
        return tuple(path for path, reason in self.reasons.items() if not reason)


@dataclass(frozen=True, slots=True)
class _Matcher:
    label: str  # the pattern as the user wrote it
    pattern: Pattern
    test: Test


def select(
    modules: Mapping[str, object],
    leaves: Container[str],
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
    *,
    strict: bool = True,
    aliases: Mapping[str, tuple[str, ...]] = _NO_ALIASES,
) -> Selection:
    """Select among `modules` (dotted path to module; "" is the root): everything in `include` that isn't in `exclude`.

    No `include` means every module. `leaves` contains the paths without child modules, and `aliases` the other paths of
    shared ones, which match like the first. A malformed pattern raises
    PatternError. A pattern without a match also does, unless `strict` is off, for models that are not all known yet.
    """
    types: dict[type, tuple[str, ...]] = {}
    facts = {}
    for path, module in modules.items():
        cls = type(module)
        names = types.setdefault(cls, tuple(base.__name__ for base in cls.__mro__))
        facts[path] = Facts(path, names, cls, path == "", path in leaves, aliases.get(path, ()))
    return select_among(facts, include, exclude, strict=strict)


def select_among(
    modules: Mapping[str, Facts],
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
    *,
    strict: bool = True,
) -> Selection:
    """Select among modules by their facts, as `select` does. The keys are the paths in the selection."""
    wanted, unwanted = ([_matcher_of(pattern) for pattern in given] for given in (include, exclude))
    facts = modules.values()
    unmatched = [matcher for matcher in [*wanted, *unwanted] if not any(map(matcher.test, facts))]
    if strict and unmatched:
        raise PatternError(" ".join(_describe_unmatched(matcher, facts) for matcher in unmatched))
    reasons = {path: _reason(module, wanted, unwanted) for path, module in modules.items()}
    return Selection(reasons, tuple(matcher.label for matcher in unmatched))


def _reason(module: Facts, wanted: Sequence[_Matcher], unwanted: Sequence[_Matcher]) -> str:
    if wanted and not any(matcher.test(module) for matcher in wanted):
        return "not matched by include"
    for matcher in unwanted:
        if matcher.test(module):
            return f"excluded by {matcher.label}"
    return ""


def _matcher_of(pattern: Pattern) -> _Matcher:
    if isinstance(pattern, str):
        return _Matcher(repr(pattern), pattern, parse(pattern, STRUCTURE).fits)
    # issubclass of the type, not isinstance, which can run the module's own code for __class__.
    label = f"{pattern.__module__}.{pattern.__qualname__}"
    return _Matcher(label, pattern, lambda module: module.cls is not None and issubclass(module.cls, pattern))


def _describe_unmatched(matcher: _Matcher, modules: Iterable[Facts]) -> str:
    paths = [module.path for module in modules if not module.is_root]
    types = list(dict.fromkeys(module.types[0] for module in modules if module.types))
    near = _near_names(matcher.pattern, paths, types)
    if near:
        return f"{matcher.label} matches no module. Did you mean {' or '.join(map(repr, near))}?"
    of_types = isinstance(matcher.pattern, type) or matcher.pattern.startswith("type:")
    names, noun = (types, "module types") if of_types else (paths, "modules below the root")
    if not names:
        return f"{matcher.label} matches no module. The model has no {noun}."
    shown = ", ".join(names[:_SHOWN_NAMES]) + ", ..." * (len(names) > _SHOWN_NAMES)
    return f"{matcher.label} matches no module. The model has {len(names)} {noun}: {shown}."


def _near_names(pattern: Pattern, paths: Sequence[str], types: Sequence[str]) -> list[str]:
    if isinstance(pattern, type):
        return _near_types(pattern.__name__, types)
    prefix, _, rest = pattern.partition(":")
    if prefix == "type":
        return _near_types(rest.strip("*"), types)
    if prefix == "re":
        # An expression without its special characters resembles the intended path.
        return nearest(re.sub(r"[\\^$*+?()\[\]{}|]", "", rest), paths)
    return _near_globs(pattern, paths) or _near_prefix(prefix, rest) or _near_types(pattern, types)


def _near_globs(pattern: str, paths: Sequence[str]) -> list[str]:
    if "*" not in pattern:
        return nearest(pattern, paths)
    # Numbers become stars, as a user would write them: blocks.*.attn stands for every block's attn.
    return nearest(pattern, dict.fromkeys(re.sub(r"\b\d+\b", "*", path) for path in paths))


def _near_prefix(prefix: str, rest: str) -> list[str]:
    return [f"{near}:{rest}" for near in nearest(prefix, ("re", "type", "is", "depth"), limit=1)] if rest else []


def _near_types(name: str, types: Sequence[str]) -> list[str]:
    return [f"type:{near}" for near in nearest(name, types)]
