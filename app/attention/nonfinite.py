"""The first tensor that was not finite, and how many went bad behind it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import GRADIENT_KINDS, Severity

from .findings import Finding
from .order import around, rank_of
from .readings import Places, Readings

MOST: Final = 10  # that are over and are still told, the newest

First = tuple[int, int]  # a tap's number, and the step


@dataclass(frozen=True, slots=True)
class Episode:
    """Neighbouring columns, in each of which something was not finite."""

    begin: int
    end: int  # the column behind the last one
    places: Places


def find_nonfinite(readings: Readings, known: First | None = None) -> list[Finding]:
    """One finding for each episode's first tap; a tap that leads several is told once, of its newest.

    `known` is what was found to be the first before, of an episode that was not over then.
    """
    if not readings.columns.bad.any():
        return []
    found: dict[int, Finding] = {}
    for episode in _episodes(readings):
        finding = _told(readings, episode, _first_of(readings, episode, known))
        found.setdefault(finding.number, finding)
    return list(found.values())


def _episodes(readings: Readings) -> list[Episode]:
    """The newest first."""
    touched = readings.columns.bad.any(axis=1).astype(np.int8)
    borders = np.flatnonzero(np.diff(touched, prepend=0, append=0)).tolist()
    spans = list(pairwise(borders))[::2][-MOST:]
    return [
        Episode(begin, end, np.flatnonzero(readings.columns.bad[begin:end].any(axis=0)))
        for begin, end in reversed(spans)
    ]


def _first_of(readings: Readings, episode: Episode, known: First | None) -> First:
    """The tap that was bad first, and in which step."""
    older = episode.begin == 0 and not readings.starts_run  # it may have begun before what we look at
    if older and known is not None:
        return known
    steps, places = _first_ones(readings, episode.begin, older)
    taps, numbers = readings.taps.taps, readings.taps.numbers
    holders = around({taps[place].module for place in places})
    step, place = min(
        zip(steps, places, strict=True),
        key=lambda each: rank_of(each[0], int(numbers[each[1]]), taps[each[1]], holders),
    )
    return int(numbers[place]), step


def _first_ones(readings: Readings, column: int, older: bool) -> tuple[list[int], list[int]]:
    """The taps that were bad in a column, each with the very step in which it began."""
    places = np.flatnonzero(readings.columns.bad[column])
    first = None if older else readings.first_step(column)
    rows = readings.store.rows(readings.taps.numbers[places], "nan", first, readings.last_step(column))
    if not len(rows.first):  # they were merged into older ones in this moment
        return [readings.first_step(column)] * len(places), places.tolist()
    begun = _streak_begins(rows.nonfinite, rows.present) if older else (rows.nonfinite > 0).argmax(axis=0)
    return rows.first[begun].tolist(), places.tolist()


def _streak_begins(nonfinite: NDArray[np.uint32], present: NDArray[np.uint32]) -> Places:
    """For each lane, the row in which its last stretch of bad rows begins; where it was absent the stretch goes on."""
    place = np.arange(len(nonfinite))[:, None]
    last_bad = np.where(nonfinite > 0, place, -1).max(axis=0)
    fine_before = (present > 0) & (nonfinite == 0) & (place < last_bad)
    last_fine = np.where(fine_before, place, -1).max(axis=0)
    begins: Places = ((nonfinite > 0) & (place > last_fine)).argmax(axis=0)
    return begins


def _told(readings: Readings, episode: Episode, first: First) -> Finding:
    number, step = first
    place = int(np.searchsorted(readings.taps.numbers, number))
    tap, taps = readings.taps.taps[place], readings.taps.taps
    is_over = episode.end < readings.number
    until = readings.last_step(episode.end - 1) if is_over else None
    seen = readings.store.series(number, "nan", step, until, 1)
    infinite = not (len(seen.max) and seen.max[0] > 0)
    skipped = is_over and tap.kind in GRADIENT_KINDS and _was_skipped(readings, step, until)
    severity: Severity = ("info" if skipped else "warning") if is_over else "error"
    value = float("inf") if infinite else float("nan")
    message = _sentence("an infinity" if infinite else "NaN", tap.kind, step, until, skipped)
    modules = {taps[each].module for each in episode.places.tolist()} - {tap.module}
    about = number, tap, readings.stat, value, float("nan"), step, until, message
    return Finding("nonfinite", severity, *about, readings.spark(place), len(modules))


def _sentence(what: str, kind: str, step: int, until: int | None, skipped: bool) -> str:
    name = kind.replace("_", " ")
    if until is None:
        return f"{what} in the {name} since step {step}"
    when = f"at step {step}" if until <= step else f"between steps {step} and {until}"
    return f"{what} in the {name} {when}" + ("; the gradient scaler skipped the step" if skipped else "; finite again")


def _was_skipped(readings: Readings, step: int, until: int | None) -> bool:
    """Whether a gradient scaler skipped a step there: then infinite gradients are how it finds its scale."""
    last = step if until is None else until
    return bool(readings.store.events(max(0, step - 1), last + 1, "skipped-step", limit=1))
