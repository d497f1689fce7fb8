"""Lookup by name: patterns for module paths, and errors that list what exists."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from hookcore import patterns
from hookcore.errors import ArgumentError
from hookcore.records import KINDS

_SHOWN = 20


def require(what: str, given: object, allowed: Sequence[str]) -> None:
    """Raise ArgumentError unless `given` is one of `allowed`."""
    if given not in allowed:
        raise ArgumentError(unknown(what, str(given), allowed))


def unknown(what: str, given: str, allowed: Sequence[str]) -> str:
    """Return an error that names the value, what is allowed, and the nearest match."""
    near = difflib.get_close_matches(given, allowed, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    more = ", ..." if len(allowed) > _SHOWN else ""
    return f"unknown {what} {given!r}{hint} Allowed: {', '.join(allowed[:_SHOWN]) or 'none yet'}{more}"


def require_at_least(what: str, given: int, least: int) -> None:
    """Raise ArgumentError unless a number is large enough."""
    if given < least:
        raise ArgumentError(f"{what}={given} is too small: give at least {least}")


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a test of module paths for a glob (`*` also matches dots) or, after "re:", a regular expression."""
    if pattern is None:
        return lambda path: True
    return patterns.expression(pattern) if pattern.startswith("re:") else patterns.glob(pattern)


def require_kind(kind: str | None) -> None:
    """Raise ArgumentError for an unknown kind."""
    if kind is not None:
        require("kind", kind, KINDS)
