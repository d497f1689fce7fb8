"""The rules of a run: which are on, and their thresholds."""

from __future__ import annotations

from collections.abc import Mapping

from hookcore import answers
from hookcore.answers import Number
from hookcore.findings import FOLLOWED, RULES, THRESHOLDS, Rule

from .run import Run


def rules_of(run: Run) -> answers.RunRules:
    """Return the rules of a run."""
    return answers.RunRules(run.id, tuple(_rule_of(run, rule) for rule in RULES.values()))


def _rule_of(run: Run, rule: Rule) -> answers.RunRule:
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
    return answers.RunRule(*about, chosen is not False, rule.name != FOLLOWED, thresholds)
