"""The run at a glance: findings and key figures."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

from fastapi import Query

from hookcore.findings import RULES, Rule, key_figures_of, limits_of
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.records import SEVERITIES

from ..analysis.cost import cost_of
from ..analysis.coverage import losses_of
from ..runs import Run
from ..runs.answering import course_of, findings_of, reading_of, scope_of
from .params import RunParam, SpanParam
from .routing import router

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
    found = findings_of(run, run.findings.current())
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
        scalars=tuple(reading for each in figures.scalars if (reading := reading_of(each)) is not None),
        gradient_kind=figures.gradient_kind,
        gradient_norm=reading_of(figures.gradient_norm),
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
