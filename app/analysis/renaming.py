"""Mapping the module names of one run to those of another."""

from __future__ import annotations

import re
from collections.abc import Callable

import re2  # type: ignore[import-untyped]

from hookcore.config.patterns.matching import expression
from hookcore.errors import ArgumentError, PatternError


def renamer(rule: str) -> Callable[[str], str]:
    """Return the mapping of module paths that "expression -> replacement" describes; groups are \\1, \\2, ..."""
    if not rule.strip():
        return lambda module: module
    pattern, arrow, replacement = (part.strip() for part in rule.partition("->"))
    if not arrow or not pattern:
        raise ArgumentError(f"rename={rule[:80]!r} is not a rule: write an expression, ->, and its replacement")
    expression(pattern)  # raises if it is invalid or too large
    compiled = re2.compile(pattern)
    for sign in re.findall(r"\\(.?)", replacement):
        if sign != "\\" and not (sign.isascii() and sign.isdigit() and 1 <= int(sign) <= compiled.groups):
            raise PatternError(
                f"{replacement[:80]!r} is not a valid replacement: \\{sign} is not one of the {compiled.groups} groups"
            )

    def rename(module: str) -> str:
        try:
            return str(compiled.sub(replacement, module))
        except UnicodeEncodeError:  # half a surrogate pair, which no expression can match
            return module

    return rename
