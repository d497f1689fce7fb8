"""Selection of modules by patterns, with a reason for each unselected module, and names of root modules.

Imports no torch: a module is a path and an object. Only the object's class is inspected, never the object itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from hookcore import patterns
from hookcore.config import Pattern, nearest
from hookcore.errors import PatternError

Matches = Callable[[str, object], bool]
Leaves = Container[str] | Callable[[str], bool]

_FLAGS: Final = ("leaf", "root")
_SHOWN_NAMES: Final = 5


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
    matches: Matches


def select(
    modules: Mapping[str, object],
    leaves: Leaves,
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
    *,
    strict: bool = True,
) -> Selection:
    """Select among `modules` (dotted path to module; "" is the root): everything in `include` that isn't in `exclude`.

    No `include` means every module. `leaves` contains the paths without child modules, or is a function that tests a
    path. A malformed pattern raises PatternError. A pattern without a match also does, unless `strict` is off, for
    models that are not all known yet.
    """
    is_leaf = leaves if callable(leaves) else leaves.__contains__
    wanted = [_matcher_of(pattern, is_leaf) for pattern in include]
    unwanted = [_matcher_of(pattern, is_leaf) for pattern in exclude]
    unmatched = [matcher for matcher in wanted + unwanted if not _matches_any(matcher, modules)]
    if strict and unmatched:
        raise PatternError(" ".join(_describe_unmatched(matcher, modules) for matcher in unmatched))
    reasons = {path: _reason(path, module, wanted, unwanted) for path, module in modules.items()}
    return Selection(reasons, tuple(matcher.label for matcher in unmatched))


def unique_root_name(type_name: str, taken: Container[str]) -> str:
    """Return `type_name`, with "#2", "#3", ... appended if it is taken."""
    if type_name not in taken:
        return type_name
    return next(name for number in count(2) if (name := f"{type_name}#{number}") not in taken)


def _matches_any(matcher: _Matcher, modules: Mapping[str, object]) -> bool:
    return any(matcher.matches(path, module) for path, module in modules.items())


def _reason(path: str, module: object, wanted: Sequence[_Matcher], unwanted: Sequence[_Matcher]) -> str:
    if wanted and not any(matcher.matches(path, module) for matcher in wanted):
        return "not matched by include"
    for matcher in unwanted:
        if matcher.matches(path, module):
            return f"excluded by {matcher.label}"
    return ""


def _matcher_of(pattern: Pattern, is_leaf: Callable[[str], bool]) -> _Matcher:
    if isinstance(pattern, type):
        return _Matcher(_class_label(pattern), pattern, _class_matcher(pattern))
    prefix, colon, rest = pattern.partition(":")
    if not colon:
        return _Matcher(repr(pattern), pattern, _glob_matcher(pattern))
    if prefix == "re":
        return _Matcher(repr(pattern), pattern, _expression_matcher(pattern))
    if prefix == "type":
        return _Matcher(repr(pattern), pattern, _type_name_matcher(rest))
    if prefix == "is":
        return _Matcher(repr(pattern), pattern, _flag_matcher(pattern, rest, is_leaf))
    return _Matcher(repr(pattern), pattern, _glob_matcher(pattern))  # a module's name can contain a colon


def _glob_matcher(glob: str) -> Matches:
    fits = patterns.glob(glob)
    return lambda path, _module: fits(path)


def _expression_matcher(pattern: str) -> Matches:
    fits = patterns.expression(pattern)
    return lambda path, _module: fits(path)


def _type_name_matcher(glob: str) -> Matches:
    fits = patterns.glob(glob)
    return lambda _path, module: any(fits(base.__name__) for base in type(module).__mro__)


def _class_matcher(wanted: type) -> Matches:
    # issubclass of the type, not isinstance, which can run the module's own code for __class__.
    return lambda _path, module: issubclass(type(module), wanted)


def _flag_matcher(pattern: str, flag: str, is_leaf: Callable[[str], bool]) -> Matches:
    if flag == "leaf":
        return lambda path, _module: is_leaf(path)
    if flag == "root":
        return lambda path, _module: path == ""
    near = nearest(flag, _FLAGS, limit=1)
    hint = f" Did you mean 'is:{near[0]}'?" if near else ""
    raise PatternError(f"{pattern!r} is not a pattern: use 'is:leaf' or 'is:root'.{hint}")


def _class_label(pattern: type) -> str:
    return f"{pattern.__module__}.{pattern.__qualname__}"


def _describe_unmatched(matcher: _Matcher, modules: Mapping[str, object]) -> str:
    near = _near_names(matcher.pattern, modules)
    if near:
        return f"{matcher.label} matches no module. Did you mean {' or '.join(map(repr, near))}?"
    return f"{matcher.label} matches no module. {_describe_modules(matcher.pattern, modules)}"


def _near_names(pattern: Pattern, modules: Mapping[str, object]) -> list[str]:
    if isinstance(pattern, type):
        return [f"type:{name}" for name in nearest(pattern.__name__, _type_names(modules))]
    prefix, _, rest = pattern.partition(":")
    if prefix == "type":
        return [f"type:{name}" for name in nearest(rest.strip("*"), _type_names(modules))]
    if prefix == "re":
        # An expression without its special characters resembles the intended path.
        return nearest(re.sub(r"[\\^$*+?()\[\]{}|]", "", rest), filter(None, modules))
    return _near_globs(pattern, modules) or _near_prefix(prefix, rest) or _near_types(pattern, modules)


def _near_globs(pattern: str, modules: Mapping[str, object]) -> list[str]:
    if "*" not in pattern:
        return nearest(pattern, filter(None, modules))
    # Numbers become stars, as a user would write them: blocks.*.attn stands for every block's attn.
    return nearest(pattern, dict.fromkeys(re.sub(r"\b\d+\b", "*", path) for path in modules if path))


def _near_prefix(prefix: str, rest: str) -> list[str]:
    return [f"{near}:{rest}" for near in nearest(prefix, ("re", "type", "is"), limit=1)] if rest else []


def _near_types(pattern: str, modules: Mapping[str, object]) -> list[str]:
    return [f"type:{name}" for name in nearest(pattern, _type_names(modules))]


def _describe_modules(pattern: Pattern, modules: Mapping[str, object]) -> str:
    of_types = isinstance(pattern, type) or pattern.startswith("type:")
    names = _type_names(modules) if of_types else [path for path in modules if path]
    noun = "module types" if of_types else "modules below the root"
    if not names:
        return f"The model has no {noun}."
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    return f"The model has {len(names)} {noun}: {', '.join(names[:_SHOWN_NAMES])}{more}."


def _type_names(modules: Mapping[str, object]) -> list[str]:
    return list(dict.fromkeys(type(module).__name__ for module in modules.values()))
