"""The rules of a run with their thresholds, and changes of them."""

from __future__ import annotations

from fastapi import APIRouter, Response

from hookcore.reading import answers

from ..formats import StrictJson
from ..runs.rules import rules_of
from .bodies import RuleChanges
from .params import ReplyParam, RunParam, RunsParam, answered, described, run_named, version_of

router = APIRouter()


@router.get("/rules", summary="Rules and thresholds", responses=described(answers.RunRules))
def rules(run: RunParam, reply: ReplyParam) -> Response:
    """Return all rules, whether each is on for this run, and its thresholds with their ranges and meanings."""
    return reply.json([version_of(run)], lambda: rules_of(run))


@router.post("/rules", summary="Change thresholds", responses=answered(answers.RunRules))
def change_rules(runs: RunsParam, changes: RuleChanges) -> Response:
    """Change thresholds, or switch rules off and on; rules and thresholds that are left out stay as they are.

    A change applies to the steps to come: incidents that were found stay. It is an event, and is kept with the run.
    """
    run = run_named(runs, changes.run)
    run.change_rules(changes.rules)
    return StrictJson(rules_of(run))
