"""Lookup by name, with errors that list what exists; and what patterns can test of modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from hookcore.config import nearest, patterns
from hookcore.config.patterns import Facts
from hookcore.errors import ArgumentError
from hookcore.records import KINDS, ROOT, ModuleRecord, Tap
from hookcore.store.segments import STAT_SCHEMA

_SHOWN = 20
_QUANTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d{1,6})?|100)")


def require(what: str, given: object, allowed: Sequence[str]) -> None:
    """Raise ArgumentError unless `given` is one of `allowed`."""
    if given not in allowed:
        raise ArgumentError(unknown(what, str(given), allowed))


def unknown(what: str, given: str, allowed: Sequence[str]) -> str:
    """Return an error that names the value, what is allowed, and the nearest match."""
    near = nearest(given, allowed, limit=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    more = ", ..." if len(allowed) > _SHOWN else ""
    return f"unknown {what} {given!r}{hint} Allowed: {', '.join(allowed[:_SHOWN]) or 'none yet'}{more}"


def require_at_least(what: str, given: int, least: int) -> None:
    """Raise ArgumentError unless a number is large enough."""
    if given < least:
        raise ArgumentError(f"{what}={given} is too small: give at least {least}")


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a test of names, such as those of scalars, for a glob or, after "re:", a regular expression."""
    return (lambda name: True) if pattern is None else patterns.matcher(pattern)


def require_kind(kind: str | None) -> None:
    """Raise ArgumentError for an unknown kind."""
    if kind is not None:
        require("kind", kind, KINDS)


def quantile_of(stat: str) -> float | None:
    """Return the share that "p99.9" means, or None for a stat. Raises ArgumentError for anything else."""
    match = _QUANTILE.fullmatch(stat)
    if match is not None:
        return float(match[1]) / 100
    require("stat", stat, STAT_SCHEMA.names)
    return None


def find_tap(taps: Iterable[tuple[int, Tap]], text: str) -> tuple[int, Tap]:
    """Return the tap that a label names, and its number. The kind may be left out if only one tap fits.

    Module paths and indices may contain anything, so a label isn't taken apart: labels are compared as a whole.
    """
    taps = list(taps)
    own = [numbered for numbered in taps if text.startswith(numbered[1].module or ROOT)]  # few, and labels take time
    fitting = [numbered for numbered in own if text in (numbered[1].label, numbered[1].words)] or [
        numbered for numbered in own if text == numbered[1].name
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        several = ", ".join(f"{tap.label!r} ({number})" for number, tap in fitting)
        raise ArgumentError(f"tap={text[:200]!r} names {len(fitting)} taps: give one of {several}")
    labels = [tap.label for _, tap in own or taps]
    raise ArgumentError(unknown("tap", text[:200], labels))


def facts_of(
    modules: Sequence[ModuleRecord],
    observed: Collection[str],
    captured: Mapping[str, bool],
    nonfinite: Collection[str],
    dead: Collection[str],
) -> dict[str, Facts]:
    """Return the facts about each module by path, then about other observed tensors."""
    # A module that stands in several places is a child in each of them.
    parents = {module.parent for module in modules}
    parents |= {_parent_of(alias) for module in modules for alias in module.aliases}
    facts = {
        module.path: Facts(
            module.path,
            (module.type, *module.bases, "Module", "object"),
            is_root=module.parent is None,
            is_leaf=module.path not in parents,
            aliases=module.aliases,
            parameters=module.parameters,
            trainable=module.trainable,
            captured=captured.get(module.path, module.path in observed),
            nan=module.path in nonfinite,
            dead=module.path in dead,
        )
        for module in modules
    }
    for path in observed:
        if path not in facts:
            facts[path] = Facts(path, captured=True, nan=path in nonfinite, dead=path in dead)
    return facts


def _parent_of(path: str) -> str | None:
    """Return the path above, where a root's name ends with a slash."""
    return path[: max(path.rfind("."), path.rfind("/"), 0)]
