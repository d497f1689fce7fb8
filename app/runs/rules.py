"""The rules of a run: which are on, and their thresholds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hookcore.findings import FOLLOWED, RULES, THRESHOLDS, Reach, Rule, reach_of
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.records.vocabulary import OWN_RULE_LABEL

from .run import Run


class OwnReport(msgspec.Struct):
    """The report about a user's rule from the process that runs it."""

    where: str
    off: str
    calls: int
    faults: int
    mean_ms: float
    worst_ms: float


def rules_of(run: Run) -> answers.RunRules:
    own = tuple(each for name, text in run.store.labels().items() if (each := _own_of(name, text)) is not None)
    reach = reach_of(run.store)
    return answers.RunRules(run.id, tuple(_rule_of(run, rule, reach[rule.name]) for rule in RULES.values()), own)


def _own_of(name: str, text: str) -> answers.OwnRule | None:
    """Return a rule of the user, as its last report describes it; None for another label."""
    if not name.startswith(OWN_RULE_LABEL):
        return None
    try:
        report = msgspec.json.decode(text, type=OwnReport)
    except msgspec.MsgspecError:
        return None
    times = Number(report.mean_ms), Number(report.worst_ms)
    about = report.where, report.off, report.calls, report.faults
    return answers.OwnRule(name.removeprefix(OWN_RULE_LABEL), *about, *times)


def _rule_of(run: Run, rule: Rule, reach: Reach) -> answers.RunRule:
    chosen = run.rules.get(rule.name, {})
    numbers = chosen if isinstance(chosen, Mapping) else {}
    thresholds = tuple(
        answers.Threshold(
            each.name,
            Number(numbers.get(each.name, each.default)),
            Number(each.default),
            Number(each.least),
            Number(each.most),
            each.whole,
            each.help,
        )
        for each in THRESHOLDS.get(rule.name, ())
    )
    about = rule.name, rule.title, rule.severity, rule.known_as
    state = chosen is not False, rule.name != FOLLOWED
    return answers.RunRule(*about, *state, thresholds, reach.looks_at, reach.needs)
