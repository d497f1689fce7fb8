"""The run at a glance: what needs attention, the key figures, and what somebody has seen already."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from hookcore.errors import ArgumentError
from hookcore.records import Severity

from ..cost import cost_of
from ..findings import RULES, KeyFigures, Rule, key_figures_of
from ..formats import plain, word_of
from ..runs import Run
from ..schemas import StrictJson, finding_as_json, reading_as_json, scope_as_json
from . import examples
from .bodies import Acknowledgement
from .given import GivenReply, GivenRun, GivenRuns, described, problems, run_named, version_of
from .models import AcknowledgedAnswer, FindingsAnswer, OverviewAnswer

MAX_FINDINGS: Final = 1000
_MAX_MODULES: Final = 100
_SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")

router = APIRouter(prefix="/api/v1", default_response_class=StrictJson)


@router.get(
    "/findings",
    summary="What needs attention",
    response_model=FindingsAnswer,
    responses=described(examples.ATTENTION),
)
def findings(
    run: GivenRun,
    reply: GivenReply,
    limit: Annotated[int, Query(ge=1, le=MAX_FINDINGS, description="findings in this answer, at most 1,000")] = 50,
) -> Response:
    """Return the findings, the worst first, with how much they are based on, and the rules they come from."""

    def content() -> dict[str, Any]:
        diagnosis = run.findings.diagnosis()
        found = diagnosis.findings
        shown = found[:limit]
        wanted = {finding.module for finding in shown}
        types = {module.path: module.type for module in run.store.modules() if module.path in wanted}
        return {
            "run": run.id,
            "total": len(found),
            "newest_step": run.store.steps().newest,
            "scope": scope_as_json(diagnosis.scope),
            "findings": [finding_as_json(run, finding, types.get(finding.module, "")) for finding in shown],
            "rules": [_rule_as_json(rule) for rule in RULES.values()],
        }

    return reply.json([version_of(run)], content)


def _rule_as_json(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "severity": rule.severity,
        "title": rule.title,
        "help": rule.help,
        "limits": dict(rule.limits),
    }


@router.get(
    "/overview",
    summary="The key figures",
    response_model=OverviewAnswer,
    responses=described(examples.OVERVIEW),
)
def overview(run: GivenRun, reply: GivenReply) -> Response:
    """How a run is: its step and its rate, the loss, the gradients, what is watched, and what that costs."""
    return reply.json([version_of(run)], lambda: overview_as_json(run, key_figures_of(run.store)))


def overview_as_json(run: Run, figures: KeyFigures) -> dict[str, Any]:
    """The key figures of a run, with what was lost on the way to its store."""
    lost = Counter(figures.dropped)
    for reason, count in run.books.dropped.items():
        lost[f"sender {reason}"] += int(count)
    unseen = Counter(finding.severity for finding in run.findings.current() if not run.has_seen(finding))
    cost = cost_of(run)
    return {
        "run": run.id,
        "state": run.state,
        "first_step": figures.first_step,
        "newest_step": figures.newest_step,
        "steps": figures.steps,
        "steps_per_s": _number(figures.steps_per_s),
        "loss": reading_as_json(figures.loss),
        "scalars": [reading_as_json(each) for each in figures.scalars],
        "gradient_kind": figures.gradient_kind,
        "gradient_norm": reading_as_json(figures.gradient_norm),
        "smallest_gradient": reading_as_json(figures.smallest_gradient),
        "largest_gradient": reading_as_json(figures.largest_gradient),
        "nonfinite": len(figures.nonfinite_modules),
        "nonfinite_modules": list(figures.nonfinite_modules[:_MAX_MODULES]),
        "modules_captured": figures.modules_captured,
        "modules": figures.modules,
        "taps": figures.taps,
        "hook_cost": _number(cost.added),
        "every": cost.stride,
        "budget": cost.budget,
        "steps_left_out": cost.left_out,
        "cost": cost.sentence,
        "dropped": plain(dict(lost)),
        "findings": {severity: unseen[severity] for severity in _SEVERITIES},
    }


def _number(value: float | None) -> Any:
    return None if value is None else word_of(value)


@router.post(
    "/acknowledgements",
    summary="Acknowledge a finding or an event",
    response_model=AcknowledgedAnswer,
    responses={200: {"content": {"application/json": {"example": examples.ACKNOWLEDGED}}}, **problems()},
)
def acknowledge(runs: GivenRuns, seen: Acknowledgement) -> Response:
    """Notes that somebody saw it, by the `key` of the finding or the event, or takes that back.

    A finding that comes anew after that is told anew. The server remembers it for as long as it shows the run.
    """
    run = run_named(runs, seen.run)
    _require_key(seen.key)
    run.acknowledge(seen.key, seen.acknowledged)
    return StrictJson({"run": run.id, "key": seen.key, "acknowledged": seen.acknowledged})


def _require_key(key: str) -> None:
    name, _, rest = key.partition(":")
    if not rest or name not in (*RULES, "event"):
        raise ArgumentError(
            f"key={key[:200]!r} belongs to no finding and no event: give one that /findings or /events gave"
        )
