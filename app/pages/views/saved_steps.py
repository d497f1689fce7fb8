"""Saved steps, next to the findings that they explain."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent
from typing import Final

from fastapi import Request

from hookcore.reading.answers import Capsule, SourceLine
from hookcore.store.incidents import NONFINITE, Incident

from ...runs import Run
from ...runs.explaining import Explainer
from .event_list import Line

# Rules that a replay explains. A loss is often logged a step later.
_BEFORE: Final[dict[str, int]] = {NONFINITE: 0, "loss": 1}
_EVENTS = frozenset({"capsule", "explained", "explanation-failed", "crashed"})


def capsules_of(request: Request, run: Run) -> list[Capsule]:
    """Return the steps that a run saved on this machine."""
    explainer: Explainer = request.app.state.explainer
    return explainer.capsules_of(run)


def capsule_for(line: Line, capsules: Sequence[Capsule]) -> Capsule | None:
    """Return the saved step of a line: that of an event, or the first one while a finding lasted."""
    if line.is_event:
        known = line.name in _EVENTS
        return next((each for each in capsules if known and each.step == line.step), None)
    return _capsule_between(line.name, line.step, line.until, capsules)


def capsule_of(incident: Incident, capsules: Sequence[Capsule]) -> Capsule | None:
    """Return the step that was asked for after an incident, or the first that was saved while it lasted."""
    last = incident.last_step if incident.is_over else None
    return next(
        (each for each in capsules if each.incident == incident.id),
        _capsule_between(incident.rule, incident.first_step, last, capsules),
    )


def _capsule_between(rule: str, first: int, last: int | None, capsules: Sequence[Capsule]) -> Capsule | None:
    before = _BEFORE.get(rule)
    if before is None:
        return None
    end = float("inf") if last is None else last
    return next((each for each in capsules if first - before <= each.step <= end), None)


def source_of(line: SourceLine) -> list[tuple[int, str]]:
    """Return lines of source code with their numbers, without the indentation that they share."""
    return list(enumerate(dedent("\n".join(line.source)).split("\n"), line.first))


def cause_of(line: Line, capsules: Sequence[Capsule]) -> str:
    """Return what a replay found out about a finding of bad tensors, if there was a replay."""
    is_about_tensors = not line.is_event and line.name == NONFINITE and line.earliest == line.step
    found = capsule_for(line, capsules) if is_about_tensors else None
    return found.explanation.sentence if found is not None and found.explanation is not None else ""
