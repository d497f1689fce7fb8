"""Selection of modules by what to include and exclude, with a reason for each unselected module.

Imports no torch: a module is a path and an object. Only the object's class is inspected, never the object itself.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.config import Pattern, nearest
from hookcore.config.patterns.grammar import STRUCTURE, Facts, Test, parse
from hookcore.errors import PatternError

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
