"""What readers edit of a run: notes, mutes, and rules; also by several servers at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeGuard

import msgspec

from hookcore.errors import ArgumentError
from hookcore.findings import FOLLOWED, RULES, THRESHOLDS, Choices, Rule, ScopeOfRule, reach_of
from hookcore.reading import Mute, answers
from hookcore.reading.answers import Number
from hookcore.records.vocabulary import OWN_RULE_LABEL
from hookcore.store.checks import require

from .run import Run

# What readers noted at steps of a run. Kept with the run, and shown on its timeline and in its charts.

MAX_ANNOTATED: Final = 200  # steps of a run
MAX_TEXT: Final = 500


def annotate(run: Run, step: int, text: str) -> None:
    """Annotate a step; an earlier annotation is replaced. Raises ArgumentError if there is no room."""
    with run.lock:
        kept = run.edits.annotations
        if step not in kept and len(kept) >= MAX_ANNOTATED:
            raise ArgumentError(f"this run has {MAX_ANNOTATED} annotated steps already: remove an annotation")
        run.edits.annotations = dict(sorted({**kept, step: text}.items()))
    run.edited()


def remove_annotation(run: Run, step: int) -> bool:
    """Remove the annotation of a step. Return whether there was one."""
    with run.lock:
        was_there = step in run.edits.annotations
        run.edits.annotations = {other: text for other, text in run.edits.annotations.items() if other != step}
    if was_there:
        run.edited()
    return was_there


def annotations_in(saved: object) -> dict[int, str]:
    """Return annotations from a JSON file, whose keys are words, without what isn't one."""
    if not isinstance(saved, Mapping):
        return {}
    annotations = {
        int(step): text[:MAX_TEXT] for step, text in saved.items() if _is_step(step) and isinstance(text, str)
    }
    return dict(sorted(annotations.items())[:MAX_ANNOTATED])


def _is_step(word: object) -> bool:
    return isinstance(word, str) and word.isascii() and word.isdigit() and len(word) < 16


# The mutes of a run: which ones there are, and what each covers now.


def add_mute(run: Run, rule: str, match: str) -> None:
    """Mute a rule, or events with a name. Raises ArgumentError for a name that doesn't exist."""
    require("rule or event", rule, names_of(run))
    run.mute(Mute(rule, match.strip()))


def remove_mute(run: Run, rule: str, match: str) -> None:
    """Remove a mute. Raises ArgumentError if there is none."""
    mute = Mute(rule, match.strip())
    if mute not in run.edits.quiet.mutes:
        existing = ", ".join(map(_words_of, run.edits.quiet.mutes)) or "none"
        raise ArgumentError(f"{_words_of(mute)} is not muted: give an existing mute ({existing})")
    run.mute(mute, False)


def _words_of(mute: Mute) -> str:
    return f"{mute.rule!r} in {repr(mute.match) if mute.match else 'all modules'}"


def names_of(run: Run) -> list[str]:
    """Return the names that can be muted: those of rules, and of the run's incidents and events."""
    store = run.store
    seen = [incident.rule for incident in store.incidents()] + [event.name for event in store.events()]
    return list(dict.fromkeys([*RULES, *seen]))


def mutes_of(run: Run) -> answers.Mutes:
    """Return the mutes of a run, each with what it covers now. If several cover the same, the first one counts."""
    store, muting = run.store, run.edits.quiet.muting(run.store)
    findings = Counter(muting(finding.rule, finding.module) for finding in run.findings.current())
    incidents = Counter(muting(incident.rule, incident.culprit.tap.module) for incident in store.incidents())
    events = Counter(muting(event.name, event.module) for event in store.events())
    return answers.Mutes(
        run.id,
        tuple(
            answers.Mute(mute.rule, mute.match, findings[mute], incidents[mute], events[mute])
            for mute in run.edits.quiet.mutes
        ),
    )


# Edits of several servers at once: only what one of them changed is put into what the others wrote.


def merged(
    before: Mapping[str, Any], mine: Mapping[str, Any], newest: Mapping[str, Any], yields: bool = False
) -> dict[str, Any]:
    """Return the newest content with only the changes made here since `before`.

    `yields`: keep what others changed of the same things in the meantime, because their changes may be the later ones.
    """
    content = dict(newest)
    for name in {**before, **mine}:
        old, new, theirs = (version.get(name) for version in (before, mine, newest))
        if new == old and (name in mine) == (name in before):
            continue
        # A version of somebody who had never seen a name has it empty, and not for want of it.
        if isinstance(new, dict) and (isinstance(theirs, dict) or name not in newest):
            content[name] = merged(old if isinstance(old, dict) else {}, new, theirs or {}, yields)
        elif _is_set(new) and (_is_set(theirs) or name not in newest):
            content[name] = _merged_sets(old if isinstance(old, list) else [], new, theirs or [])
        elif yields and (theirs != old or (name in newest) != (name in before)):
            continue
        elif name in mine:
            content[name] = new
        else:
            content.pop(name, None)
    return content


def _is_set(value: object) -> TypeGuard[list[Any]]:
    """Return whether a list is one of equals, such as tags. A list of lists is a history, whose order counts."""
    return isinstance(value, list) and not any(isinstance(part, list) for part in value)


def _merged_sets(old: list[Any], new: list[Any], theirs: list[Any]) -> list[Any]:
    kept = [value for value in theirs if value in new or value not in old]
    return kept + [value for value in new if value not in old and value not in kept]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both contents without what they have in common, for `merged`."""
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    for name in {**before, **after}:
        if isinstance(before.get(name), dict) and isinstance(after.get(name), dict):
            first, second = changes(before[name], after[name])
            if first or second:
                old[name], new[name] = first, second
        elif before.get(name) != after.get(name) or (name in before) != (name in after):
            old |= {name: before[name]} if name in before else {}
            new |= {name: after[name]} if name in after else {}
    return old, new


# The rules of a run: which are on, and their thresholds.


class OwnReport(msgspec.Struct):
    """The report about a user's rule from the process that runs it."""

    where: str
    off: str
    calls: int
    faults: int
    mean_ms: float
    worst_ms: float


def rules_of(run: Run, later: Choices = MappingProxyType({})) -> answers.RunRules:
    """Return the rules of a run, and which thresholds are kept for later runs."""
    own = tuple(own_rule for name, text in run.store.labels().items() if (own_rule := _own_of(name, text)) is not None)
    reach = reach_of(run.store)
    return answers.RunRules(
        run.id, tuple(_rule_of(run, rule, reach[rule.name]) for rule in RULES.values()), own, _plain(later)
    )


def _plain(chosen: Choices) -> dict[str, dict[str, float] | bool]:
    return {name: dict(what) if isinstance(what, Mapping) else what for name, what in chosen.items()}


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


def _rule_of(run: Run, rule: Rule, reach: ScopeOfRule) -> answers.RunRule:
    chosen = run.rules.get(rule.name, {})
    numbers = chosen if isinstance(chosen, Mapping) else {}
    thresholds = tuple(
        answers.Threshold(
            threshold.name,
            Number(numbers.get(threshold.name, threshold.default)),
            Number(threshold.default),
            Number(threshold.least),
            Number(threshold.most),
            threshold.whole,
            threshold.help,
        )
        for threshold in THRESHOLDS.get(rule.name, ())
    )
    about = rule.name, rule.title, rule.severity, rule.known_as
    state = chosen is not False, rule.name != FOLLOWED
    return answers.RunRule(*about, *state, thresholds, reach.looks_at, reach.needs)
