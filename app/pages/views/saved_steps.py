"""Saved steps beside the findings that they explain."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent

from fastapi import Request

from hookcore.answers import Capsule, SourceLine
from hookcore.incidents import NONFINITE

from ...runs import Run
from ...runs.explaining import Explainer
from .event_list import Line

_BEFORE = {NONFINITE: 0, "loss": 1}  # rules that a replay explains; a loss is often logged a step later
_EVENTS = frozenset({"capsule", "explained", "explanation-failed", "crashed"})


def capsules_of(request: Request, run: Run) -> list[Capsule]:
    """Return the steps that a run saved on this machine."""
    explainer: Explainer = request.app.state.explainer
    return explainer.capsules_of(run)


def capsule_for(line: Line, capsules: Sequence[Capsule]) -> Capsule | None:
    """Return the saved step of a line: that of an event, or the first one while a finding lasted."""
    if line.finding is None:
        known = line.name in _EVENTS
        return next((each for each in capsules if known and each.step == line.step), None)
    before = _BEFORE.get(line.finding.rule)
    if before is None:
        return None
    end = float("inf") if line.until is None else line.until
    return next((each for each in capsules if line.step - before <= each.step <= end), None)


def source_of(line: SourceLine) -> list[tuple[int, str]]:
    """Return lines of source code with their numbers, without the indentation that they share."""
    return list(enumerate(dedent("\n".join(line.source)).split("\n"), line.first))


def cause_of(line: Line, capsules: Sequence[Capsule]) -> str:
    """Return what a replay said about a finding of bad tensors, if there was one."""
    is_about_tensors = line.finding is not None and line.finding.rule == NONFINITE
    found = capsule_for(line, capsules) if is_about_tensors else None
    return found.explanation.sentence if found is not None and found.explanation is not None else ""
