"""The mutes of a run: which ones there are, and what each covers now."""

from __future__ import annotations

from collections import Counter

from hookcore.errors import ArgumentError
from hookcore.findings import RULES
from hookcore.reading import Mute, answers
from hookcore.store.checks import require

from .run import Run


def add_mute(run: Run, rule: str, match: str) -> None:
    """Mute a rule, or events with a name. Raises ArgumentError for a name that doesn't exist."""
    require("rule or event", rule, names_of(run))
    run.mute(Mute(rule, match.strip()))


def remove_mute(run: Run, rule: str, match: str) -> None:
    """Remove a mute. Raises ArgumentError if there is none."""
    given = Mute(rule, match.strip())
    if given not in run.edits.quiet.mutes:
        known = ", ".join(map(_words_of, run.edits.quiet.mutes)) or "none"
        raise ArgumentError(f"{_words_of(given)} is not muted: give an existing mute ({known})")
    run.mute(given, False)


def _words_of(mute: Mute) -> str:
    return f"{mute.rule!r} in {repr(mute.match) if mute.match else 'all modules'}"


def names_of(run: Run) -> list[str]:
    """Return the names that can be muted: those of rules, and of the run's incidents and events."""
    store = run.store
    seen = [each.rule for each in store.incidents()] + [each.name for each in store.events()]
    return list(dict.fromkeys([*RULES, *seen]))


def mutes_of(run: Run) -> answers.Mutes:
    """Return the mutes of a run, each with what it covers now. If several cover the same, the first one counts."""
    store, muting = run.store, run.edits.quiet.muting(run.store)
    findings = Counter(muting(each.rule, each.module) for each in run.findings.current())
    incidents = Counter(muting(each.rule, each.culprit.tap.module) for each in store.incidents())
    events = Counter(muting(each.name, each.module) for each in store.events())
    return answers.Mutes(
        run.id,
        tuple(
            answers.Mute(each.rule, each.match, findings[each], incidents[each], events[each])
            for each in run.edits.quiet.mutes
        ),
    )
