"""Which tests run for a change, and which ones only with `--all`: cross products, and what is run before a release.

A test marked `all` runs only with `--all`. A test marked `rota` is one of several ways to test the same case: its own
parameters are ways, except for the named ones, which are cases, and tests with the same `of` have the same cases. Per
change, each case runs in one of its ways, chosen by a hash of the case and the commit. The summary says how many tests
were left out. Tests of properties try a third of their examples per change: `@settings(max_examples=examples(60))`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

NO_COMMIT: Final = "no commit"
_HERE: Final = Path(__file__).parent
_SHARE: Final = 3  # of the examples of a property, one in so many is tried per change
_ALL: Final = "TESTS_ALL"  # a variable, so that processes that tests start have it, too


def runs_all() -> bool:
    """Return whether pytest was started with --all."""
    return bool(os.environ.get(_ALL))


def examples(number: int) -> int:
    """Return how many examples of a property are tried."""
    return number if runs_all() else max(number // _SHARE, 1)


def commit() -> str:
    """Return the commit that is checked out, or a fixed text if this isn't a checkout."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_HERE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return NO_COMMIT
    return found.stdout.strip()


def chosen(case: str, ways: list[str], change: str) -> str:
    """Return the way in which a case runs in a change."""
    return min(ways, key=lambda way: hashlib.sha256(f"{change} {case} {way}".encode()).digest())


def _case_of(item: Any) -> tuple[str, ...] | None:
    """Return the rota of a test and its case, or None."""
    mark = item.get_closest_marker("rota")
    if mark is None:
        return None
    values = [item.callspec.params[parameter] for parameter in mark.args]
    rota = mark.kwargs.get("of") or item.nodeid.partition("[")[0]
    return rota, *(str(getattr(value, "name", value)) for value in values)


def _out_of_turn(items: list[pytest.Item], change: str) -> Iterator[str]:
    """Yield the IDs of the tests whose turn it isn't in a change."""
    ways: dict[Hashable, list[str]] = {}
    for item in items:
        case = _case_of(item)
        if case is not None:
            ways.setdefault(case, []).append(item.nodeid)
    for case, ids in ways.items():
        turn = chosen(str(case), ids, change)
        yield from (each for each in ids if each != turn)


class Lanes:
    """Leaves out tests, and says how many."""

    def __init__(self, config: pytest.Config) -> None:
        os.environ[_ALL] = "1" if config.getoption("all") else ""
        self.left_out: dict[str, int] = {}

    @pytest.hookimpl(trylast=True)  # after -m and -k: a case has a turn among the tests that were asked for
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if runs_all():
            return
        of_releases = {item.nodeid for item in items if item.get_closest_marker("all")}
        others = [item for item in items if item.nodeid not in of_releases]
        out_of_turn = set(_out_of_turn(others, commit()))
        self.left_out = {"all": len(of_releases), "rota": len(out_of_turn)}
        left_out = of_releases | out_of_turn
        if left_out:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
            items[:] = [item for item in items if item.nodeid not in left_out]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that hands out the tests what this one left out."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left_out"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left_out = getattr(node, "workeroutput", {}).get("left_out") or self.left_out

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if any(self.left_out.values()):
            terminalreporter.write_line(
                f"Left out {self.left_out['rota']} tests of cases that ran in another way, drawn by commit"
                f" {commit()[:12]}, and {self.left_out['all']} marked `all`. Run them with --all."
            )
