"""The rules of a run with their thresholds, and what no longer alerts: acknowledgements and mutes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from hookcore.errors import ArgumentError
from hookcore.findings import RULES
from hookcore.reading import answers
from hookcore.records.vocabulary import OWN_RULE

from ..formats import StrictJson
from ..runs.muting import add_mute, mutes_of, remove_mute
from ..runs.rules import rules_of
from .bodies import Acknowledgement, Mute, RuleChanges
from .params import RunParam, RunsParam, run_named
from .routing import answered, router


@router.reads("/rules", "Rules and thresholds")
def rules(run: RunParam) -> answers.RunRules:
    """Return all rules, whether each is on for this run, and its thresholds with their ranges and meanings."""
    return rules_of(run)


@router.post("/rules", summary="Change thresholds", responses=answered(answers.RunRules))
def change_rules(runs: RunsParam, changes: RuleChanges) -> Response:
    """Change thresholds, or switch rules off and on; rules and thresholds that are left out stay as they are.

    A change applies to the steps to come: incidents that were found stay. It is an event, and is kept with the run.
    """
    run = run_named(runs, changes.run)
    run.change_rules(changes.rules)
    return StrictJson(rules_of(run))


@router.post("/acknowledgements", summary="Acknowledge a finding or an event", responses=answered(answers.Acknowledged))
def acknowledge(runs: RunsParam, seen: Acknowledgement) -> Response:
    """Acknowledge a finding or an event by its `key`, or take that back.

    A finding that happens again is reported again. The server remembers acknowledgements as long as it shows the run.
    """
    run = run_named(runs, seen.run)
    _require_key(seen.key)
    run.acknowledge(seen.key, seen.acknowledged)
    return StrictJson(answers.Acknowledged(run.id, seen.key, seen.acknowledged))


def _require_key(key: str) -> None:
    name, _, rest = key.partition(":")
    if not rest or (name not in (*RULES, "event") and not name.startswith(OWN_RULE)):
        raise ArgumentError(f"key={key[:200]!r} belongs to no finding or event: give a key from /findings or /events")


@router.reads("/mutes", "Muted rules")
def mutes(run: RunParam) -> answers.Mutes:
    """Return the mutes of a run, each with the number of findings, incidents, and events that it covers now."""
    return mutes_of(run)


@router.post("/mutes", summary="Mute a rule", responses=answered(answers.Mutes))
def mute(runs: RunsParam, given: Mute) -> Response:
    """Mute a rule, or events with a name, in the modules that match.

    Muted findings are still found, counted, and listed, but raise no alert in the badge, notifications, or
    `hookcore check`. The mutes of a run are kept like acknowledgements.
    """
    run = run_named(runs, given.run)
    add_mute(run, given.rule, given.match)
    return StrictJson(mutes_of(run))


@router.delete("/mutes", summary="Take a mute back", responses=answered(answers.Mutes))
def unmute(
    run: RunParam,
    rule: Annotated[str, Query(min_length=1, max_length=200, description="as it was muted", examples=["dead"])],
    match: Annotated[str, Query(max_length=1000, description="as it was muted", examples=["layers.*"])] = "",
) -> Response:
    """Remove a mute, so that alerts come back. Returns the remaining mutes."""
    remove_mute(run, rule, match)
    return StrictJson(mutes_of(run))
