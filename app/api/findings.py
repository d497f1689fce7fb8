"""What happened: the run at a glance, events and notes, incidents, saved steps, rules, mutes, and notifications."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

from fastapi import Depends, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from hookcore.delivery.notify import Notifier
from hookcore.errors import ArgumentError
from hookcore.findings import RULES, Rule, key_figures_of, limits_of
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.records import SEVERITIES, Severity
from hookcore.records.vocabulary import OWN_RULE

from ..analysis.cost import cost_of
from ..analysis.modules import losses_of
from ..analysis.timeline import COLUMNS, timeline_of
from ..formats import StrictJson
from ..runs import Run
from ..runs.alerts import BusyError, Explainer
from ..runs.answering import course_of, findings_of, reading_of, samples_of, scope_of
from ..runs.edits import add_mute, annotate, mutes_of, remove_annotation, remove_mute, rules_of
from .params import (
    MAX_STEP,
    Acknowledgement,
    Annotation,
    Limit,
    MuteRequest,
    RuleChanges,
    RunParam,
    RunsParam,
    SpanParam,
    run_named,
)
from .routing import answered, described, router
from .runs import accepted, require_live

# The run at a glance: findings and key figures.

MAX_FINDINGS: Final = 1000
_MAX_MODULES: Final = 100


@router.reads("/findings", "What is wrong in the run")
def findings(
    run: RunParam,
    limit: Annotated[int, Query(ge=1, le=MAX_FINDINGS, description="maximum number of findings in this answer")] = 50,
) -> answers.Findings:
    """Return the findings, the worst first, with how much they are based on, and the rules they come from."""
    diagnosis = run.findings.diagnosis()
    found = diagnosis.findings
    return answers.Findings(
        run=run.id,
        total=len(found),
        newest_step=run.store.steps().newest,
        scope=scope_of(diagnosis.scope),
        course=course_of(diagnosis.course),
        findings=findings_of(run, found[:limit]),
        rules=tuple(_rule_of(run, rule) for rule in RULES.values()),
    )


def _rule_of(run: Run, rule: Rule) -> answers.Rule:
    texts = rule.name, rule.severity, rule.title, rule.help
    return answers.Rule(*texts, dict(limits_of(run.store, rule.name)), rule.causes, rule.tries, rule.known_as)


@router.reads("/overview", "The key figures")
def overview(run: RunParam, span: SpanParam) -> answers.Overview:
    """Return the key figures of a run: step, rate, loss, gradients, number of watched modules, and cost.

    With `from` and `to`, the loss, the other scalars, the gradients, and the non-finite and captured modules are the
    newest of these steps.
    """
    figures = key_figures_of(run.store, span.first, span.last, is_live=run.state == "live")
    found = findings_of(run, [each for each in run.findings.current() if not each.is_part])
    unseen = Counter(each.severity for each in found if not each.acknowledged and not each.muted)
    cost = cost_of(run)
    return answers.Overview(
        run=run.id,
        state=run.state,
        first_step=figures.first_step,
        newest_step=figures.newest_step,
        steps=figures.steps,
        steps_per_s=_number(figures.steps_per_s),
        course=course_of(run.findings.course()),
        loss=reading_of(figures.loss),
        scalars=tuple(reading for scalar in figures.scalars if (reading := reading_of(scalar)) is not None),
        gradient_kind=figures.gradient_kind,
        gradient_norm=reading_of(figures.gradient_norm),
        gradient_norm_before=reading_of(figures.raw_norm),
        smallest_gradient=reading_of(figures.smallest_gradient),
        largest_gradient=reading_of(figures.largest_gradient),
        nonfinite=len(figures.nonfinite_modules),
        nonfinite_modules=figures.nonfinite_modules[:_MAX_MODULES],
        modules_captured=figures.modules_captured,
        modules=figures.modules,
        taps=figures.taps,
        hook_cost=_number(cost.added),
        every=cost.stride,
        budget=cost.budget,
        steps_left_out=cost.left_out,
        cost=cost.sentence,
        dropped=losses_of(run),
        findings={severity: unseen[severity] for severity in SEVERITIES},
        muted=sum(each.muted for each in found),
    )


def _number(value: float | None) -> Number | None:
    return None if value is None else Number(value)


# Over the steps: what was captured, the events, and what readers noted.


@router.reads("/timeline", "A run at a glance")
def timeline(
    run: RunParam,
    span: SpanParam,
    columns: Annotated[int, Query(ge=1, le=2000, description="maximum number of points of the line")] = COLUMNS,
) -> answers.Timeline:
    """Return the loss over the steps (or what comes nearest), what happened, and which steps were captured.

    However long the run is, the answer has at most `columns` points, 200 marks, and twice as many captured steps as
    `columns`. With `from` and `to`, the answer is about a part of the run, which has more detail.
    """
    return timeline_of(run, span.first, span.last, columns)


@router.reads("/nearest", "What was captured of a step")
def nearest(
    run: RunParam, step: Annotated[int, Query(ge=0, le=MAX_STEP, description="a step, captured or not")]
) -> answers.Nearest:
    """Return whether tensors were captured in a step, and the captured steps before and after it."""
    return run.reader.nearest(step)


@router.reads("/samples", "Which samples a step had")
def samples(
    run: RunParam, step: Annotated[int, Query(ge=0, le=MAX_STEP, description="a step, captured or not")]
) -> answers.Samples:
    """Return the samples of the batches that were loaded in a step, or why they aren't known."""
    return samples_of(run, step)


@router.reads("/annotations", "Annotated steps")
def list_annotations(run: RunParam) -> answers.Annotations:
    """Return what readers noted at steps of a run, by step."""
    return answers.Annotations(run.id, tuple(answers.Annotation(*each) for each in run.edits.annotations.items()))


@router.post("/annotations", summary="Annotate a step", responses=answered(answers.Annotations))
def add_annotation(runs: RunsParam, given: Annotation) -> Response:
    """Annotate a step; an earlier annotation of the step is replaced. Returns the annotations of the run.

    Annotations are saved with the run, and shown on the timeline and in the charts of its pages.
    """
    run = run_named(runs, given.run)
    annotate(run, given.step, given.text)
    return StrictJson(list_annotations(run))


@router.delete("/annotations", summary="Remove an annotation", responses=answered(answers.Annotations))
def delete_annotation(
    run: RunParam, step: Annotated[int, Query(ge=0, le=2**53, description="the annotated step", examples=[100])]
) -> Response:
    """Remove the annotation of a step. Returns the remaining annotations."""
    if not remove_annotation(run, step):
        raise HTTPException(404, f"step {step} of this run has no annotation; GET /api/v1/annotations lists them")
    return StrictJson(list_annotations(run))


@router.reads("/events", "Events")
def events(
    run: RunParam,
    span: SpanParam,
    name: Annotated[str | None, Query(max_length=1000, description="only events of this name")] = None,
    severity: Annotated[Severity | None, Query(description="only events of this severity")] = None,
    after: Annotated[
        int | None, Query(ge=0, le=MAX_STEP, description="only events after an answer's `next`, oldest first")
    ] = None,
    limit: Limit = 200,
) -> answers.Events:
    """Return the newest matching events; with `after`, the oldest later ones."""
    return run.reader.events(span.first, span.last, name, severity, after, limit)


# Incidents: what went wrong, as it was seen when it happened.


@router.reads("/incidents", "Incidents")
def incidents(
    run: RunParam,
    span: SpanParam,
    rule: Annotated[str | None, Query(max_length=100, description="only incidents of this rule")] = None,
) -> answers.Incidents:
    """Return what went wrong, oldest first: the culprit, the first step, and what followed.

    Culprit and first step were decided when the data arrived. They don't depend on when you ask.
    """
    return run.reader.incidents(span.first, span.last, rule)


@router.reads("/incidents/{incident}", "One incident")
def incident(
    run: RunParam, incident: Annotated[str, Path(max_length=200, description="its `id`", examples=["nonfinite-100"])]
) -> answers.Incident:
    """Return one incident with its evidence: exact values of the culprit and its neighbors around the onset."""
    try:
        return run.reader.incident(incident)
    except ArgumentError as error:
        raise HTTPException(404, str(error)) from None


# Capsules: the steps that a training saved, what a replay found in each, and a new one.

CapsuleId = Annotated[str, Path(max_length=100, description="its `id`", examples=["step-000000100"])]


def explainer_of(request: Request) -> Explainer:
    """Return the server's explainer."""
    explainer: Explainer = request.app.state.explainer
    return explainer


@router.get("/capsules", summary="Saved steps", responses=described(("json",), answers.Capsules))
def capsules(run: RunParam, request: Request) -> Response:
    """Return the steps that the run saved on this machine, oldest first, with what a replay found."""
    found = tuple(explainer_of(request).capsules_of(run))
    return StrictJson(answers.Capsules(run.id, len(found), found))


@router.post("/capsules", summary="Save a step", status_code=202, responses=answered(answers.Accepted, 202, 409))
def save_step(run: RunParam) -> Response:
    """Ask the trainer to save its next step to a capsule, on the trainer's machine."""
    require_live(run)
    return accepted(run, run.ask("capsule").number, f"/api/v1/capsules?run={run.id}")


@router.post(
    "/capsules/{capsule}/explain",
    summary="Replay a saved step",
    status_code=202,
    responses=answered(answers.Capsule, 202, 409),
)
def explain(run: RunParam, request: Request, capsule: CapsuleId) -> Response:
    """Replay a saved step in a process of its own, which runs code from the capsule; `state` says when it is done."""
    try:
        found = explainer_of(request).explain(run, capsule)
    except BusyError as error:
        raise HTTPException(409, str(error)) from None
    if found is None:
        raise HTTPException(404, f"the run {run.id} has no capsule {capsule!r} on this machine")
    return StrictJson(found, 202, {"Location": f"/api/v1/capsules?run={run.id}"})


# The rules of a run with their thresholds, and what no longer alerts: acknowledgements and mutes.


@router.reads("/rules", "Rules and thresholds")
def rules(runs: RunsParam, run: RunParam) -> answers.RunRules:
    """Return all rules, whether each is on for this run, and its thresholds with their ranges and meanings."""
    return rules_of(run, runs.later_rules)


@router.post("/rules", summary="Change thresholds", responses=answered(answers.RunRules))
def change_rules(runs: RunsParam, changes: RuleChanges) -> Response:
    """Change thresholds, or switch rules off and on; rules and thresholds that are left out stay as they are.

    A change applies to the steps to come: incidents that were found stay. It is an event, and is kept with the run.
    With `later`, the run stays as it is, and runs that begin from now on have these thresholds, unless their scripts
    say something else about a rule.
    """
    run = run_named(runs, changes.run)
    if changes.later:
        runs.keep_rules(changes.rules)
    else:
        run.change_rules(changes.rules)
    return StrictJson(rules_of(run, runs.later_rules))


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
def mute(runs: RunsParam, given: MuteRequest) -> Response:
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


# Notifications: what was sent, and a test.


def notifier_of(request: Request) -> Notifier:
    notifier: Notifier = request.app.state.notifications.notifier
    return notifier


NotifierParam = Annotated[Notifier, Depends(notifier_of)]


def notifications_of(notifier: Notifier) -> answers.Notifications:
    """Return the counters of a notifier, without any address."""
    targets = tuple(
        answers.NotificationTarget(target.name, target.sent, target.failed, target.works) for target in notifier.targets
    )
    return answers.Notifications(targets, notifier.counters.waiting, notifier.counters.dropped)


@router.get("/notifications", summary="Notifications", responses=answered(answers.Notifications))
def notifications(notifier: NotifierParam) -> Response:
    """Return where this server sends notifications, and how many arrived."""
    return StrictJson(notifications_of(notifier))


@router.post(
    "/notifications/test", summary="Test the notifications", responses=answered(answers.Notifications, 200, 409)
)
def test_notifications(notifier: NotifierParam) -> Response:
    """Send a message to every target now, and return whether it arrived."""
    if not notifier.targets:
        raise HTTPException(409, "this server sends no notifications: start it with `hookcore serve --notify URL`")
    if not notifier.test():
        raise HTTPException(409, "another test is running: wait for it")
    return StrictJson(notifications_of(notifier))
