"""Findings about tensors that are not finite: what the store's incidents, and its ledger of each tensor, say today."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf, isnan
from typing import Final, NamedTuple

import numpy as np

from hookcore.findings.finding import Finding, Since
from hookcore.records import GRADIENT_KINDS, Severity
from hookcore.records.vocabulary import KIND_WORDS, counted
from hookcore.store import NonfiniteTaps, Store
from hookcore.store.incidents import Incident

MAX_PAST: Final = 10  # the newest past episodes to show
STAT: Final = "rms"

Spark = Callable[[int], tuple[float, ...]]  # the newest finite values of a tap, by its number


class _Record(NamedTuple):
    """The ledger's record of an incident's culprit."""

    first_step: int
    last_step: int
    streaks: int
    steps: int
    nan: int
    inf: int
    is_over: bool

    @classmethod
    def of(cls, known: NonfiniteTaps, number: int) -> _Record:
        place = int(np.searchsorted(known.numbers, number))
        return cls(*(getattr(known, name)[place].item() for name in cls._fields))


def find_nonfinite(store: Store, window_first: int, spark: Spark) -> list[Finding]:
    """Return one finding for each incident; of those with the same culprit, or an unknown one, for the newest one.

    An incident that was over before the window is a note: its step is known, but it doesn't affect the present.
    """
    incidents, masks = [incident for incident in store.incidents() if incident.rule == "nonfinite"], store.masks()
    past = [incident for incident in incidents if incident.is_over][-MAX_PAST:]
    known = store.nonfinite_taps()  # read last: frames may arrive meanwhile, and it must know all of the others
    found: dict[str, Finding] = {}
    for each in reversed([*past, *(incident for incident in incidents if not incident.is_over)]):
        number, is_captured = each.culprit.number, each.culprit_known and each.source == "capture"
        if each.key not in found:
            record = _Record.of(known, number) if is_captured else None
            found[each.key] = _finding(store, each, record, window_first, spark(number) if number >= 0 else ())
    return [*found.values(), *_find_masks(store, masks, known, spark)]


def _find_masks(store: Store, masks: Mapping[int, int], known: NonfiniteTaps, spark: Spark) -> list[Finding]:
    """Return a note about infinities that do no harm: for the first tensor that has them."""
    if not masks:
        return []
    taps = store.taps().taps
    number, modules = min(masks), {taps[mask].module for mask in masks}
    first, record, others = taps[number], _Record.of(known, number), len(modules) - 1
    more = f"; the same in {counted(others, 'other module')}" if others else ""
    message = (
        f"harmless infinities in the {KIND_WORDS[first.kind]} since step {masks[number]:,}, like those of a mask: "
        f"in the first such step, all other captured values were finite{more}"
    )
    until = record.last_step if record.is_over else None
    about = STAT, float("inf"), float("nan"), masks[number], until, message, spark(number), others
    return [Finding("nonfinite", "info", number, first, *about)]


def _finding(
    store: Store, incident: Incident, record: _Record | None, window_first: int, spark: tuple[float, ...]
) -> Finding:
    until, culprit = incident.last_step if incident.is_over else None, incident.culprit
    skipped = incident.is_over and incident.skipped and culprit.tap.kind in GRADIENT_KINDS
    is_note = skipped or (incident.is_over and incident.last_step < window_first)
    severity: Severity = "info" if is_note else "warning" if incident.is_over else "error"
    infinite = isinf(incident.value) if record is None else _is_infinite(store, incident, record)
    return Finding(
        "nonfinite",
        severity,
        culprit.number,
        culprit.tap,
        STAT,
        float("inf") if infinite else float("nan"),
        float("nan"),
        incident.first_step,
        until,
        _verdict(incident) if record is None else _message(incident, record, infinite, skipped),
        spark,
        incident.modules,
        record.last_step if record is not None and record.is_over else None,
        incident.unseen,
        culprit_known=incident.culprit_known,
    )


def _verdict(incident: Incident) -> str:
    """Return what is known of an incident whose culprit wasn't captured in the first step."""
    words = incident.headline if isnan(incident.value) else f"{incident.headline[0].lower()}{incident.headline[1:]}"
    return f"{words}; finite again" if incident.is_over else words


def _is_infinite(store: Store, incident: Incident, record: _Record) -> bool:
    """Return whether the culprit had infinities and no NaN."""
    if not record.nan or not record.inf:
        return not record.nan
    seen = store.series(incident.culprit.number, "nan", incident.first_step, incident.last_step, 1)  # it had both
    return not (len(seen.max) and seen.max[0] > 0)


def _message(incident: Incident, record: _Record, infinite: bool, skipped: bool) -> str | Since:
    what = "an infinity" if infinite else "NaN" if isnan(incident.value) else "an infinity, then NaN"
    begin, name = incident.first_step, KIND_WORDS[incident.culprit.tap.kind]
    if incident.is_over:
        when = f"at step {begin}" if incident.last_step <= begin else f"between steps {begin} and {incident.last_step}"
        tail = "; the gradient scaler skipped the step" if skipped else "; finite again"
    elif record.is_over and record.first_step >= begin:
        last = record.last_step
        when = f"at step {begin}" if last <= begin else f"between steps {begin} and {last}"
        tail = "; finite again there, but not in the layers that it spread to"
    else:
        when = tail = ""
    often = f"non-finite in {record.steps:,} captured steps since step {record.first_step:,}"
    more = f"{tail}; {often}" if record.streaks > 1 else tail
    return f"{what} in the {name} {when}{more}" if when else Since(f"{what} in the {name}", more)
