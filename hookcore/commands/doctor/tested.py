"""The pairs of Python and torch with which hookcore's tests were run. README.md shows the same table."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from hookcore.commands.doctor.findings import Finding


@dataclass(frozen=True, slots=True)
class Tested:
    """A pair of releases, without the patch level, and the result of its last run."""

    python: str
    torch: str
    date: str
    result: str


TESTED: Final = (
    Tested("3.11", "2.13", "2026-11-22", "the full test suite passes"),
    Tested(
        "3.11",
        "2.6",
        "2026-11-22",
        'the tests of eager training pass; `compiled="inside"` captures boundaries only, a watched compiled model '
        "may get more graphs, and the inventory does not list pairs of saved-tensors hooks",
    ),
)


def examine() -> Finding:
    """Say whether the tests were run with the installed pair."""
    try:
        torch = _minor(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Finding("ok", "tested", "torch is not installed, so nothing can be trained here")
    python = _minor(platform.python_version())
    pair = f"Python {python} with torch {torch}"
    for each in TESTED:
        if (each.python, each.torch) == (python, torch):
            return Finding("ok" if each is TESTED[0] else "note", "tested", f"{pair}, {each.date}: {each.result}")
    others = " and ".join(f"Python {each.python} with torch {each.torch}" for each in TESTED)
    told = f"the tests were not run with {pair}, only with {others}; `make matrix` in a checkout runs them"
    return Finding("note", "tested", told)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
