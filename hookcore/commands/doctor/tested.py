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


_QUICK: Final = (
    "the quick tests pass, a few of them at a second run, and so does the comparison of watched with unwatched "
    "trainings"
)
_IN_2_6: Final = (
    '`compiled="inside"` captures boundaries only, a watched compiled model may get more graphs, and the inventory '
    "does not list pairs of saved-tensors hooks"
)
TESTED: Final = (
    Tested("3.11", "2.13", "2026-11-27", "the full test suite passes"),
    Tested(
        "3.11",
        "2.6",
        "2026-11-22",
        "the tests of eager training pass; " + _IN_2_6,
    ),
    Tested(
        "3.10",
        "2.6",
        "2026-11-27",
        "7,879 quick tests and the comparison of watched with unwatched trainings pass; " + _IN_2_6,
    ),
    Tested("3.10", "2.8", "2026-11-22", _QUICK + '; `compiled="inside"` captures boundaries only'),
    Tested("3.12", "2.10", "2026-11-22", _QUICK + '; `compiled="inside"` captures boundaries only'),
    Tested("3.13", "2.13", "2026-11-22", _QUICK),
    Tested(
        "3.14",
        "2.15",
        "2026-11-22",
        "the comparison of watched with unwatched trainings and 5,501 quick tests pass; one of mlflow and one of "
        "TorchScript fail at deprecations; one of a message in the docs failed and was not run again; those that need "
        "Node or a browser were not run",
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
    others = ", ".join(f"Python {each.python} with torch {each.torch}" for each in TESTED)
    words = f"the tests were not run with {pair}, only with {others}; `make matrix` in a checkout runs them"
    return Finding("note", "tested", words)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
