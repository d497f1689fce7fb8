"""The basis of the findings: "no problems" covers only the examined steps, and may be "unknown"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import MIN_PAST, RECENT, Finding
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import limits_of
from hookcore.findings.window import MagnitudeWindow, window_first
from hookcore.findings.zeros import zeros_of
from hookcore.records.vocabulary import counted, found_words
from hookcore.store import Store, TapList

Verdict = Literal["problems", "clear", "unknown"]

MIN_KNOWN: Final = 0.5  # of the layers: if fewer can be judged, nothing is said about the run
NEEDED: Final = RECENT + MIN_PAST  # columns
NO_EVALUATION: Final = "No evaluation was captured."  # as by default
_ABOUT: Final[dict[RuleName, str]] = {"exploding": "changes over time", "dead": "dead layers"}


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A rule that can't judge some layers yet: `captured` is the number of steps of the one captured most.

    A rule that groups steps counts spans of `span_steps` instead, in which a layer was captured at least once.
    """

    rule: RuleName
    layers: int
    of: int
    captured: int
    needed: int
    span_steps: int = 1

    @property
    def sentence(self) -> str:
        """Return it in words."""
        none = self.layers == self.of
        which = "any layer" if none else f"{self.layers:,} of {self.of:,} layers"
        most = "at most " if self.captured and not none else ""
        steps = f"{most}{counted(self.captured, 'captured step')}"
        if self.span_steps > 1:
            steps = f"captured in {most}{counted(self.captured, 'span')} of {self.span_steps:,} steps"
        return f"Not enough captured to judge {_ABOUT[self.rule]} in {which}: {steps}, {self.needed} needed."


@dataclass(frozen=True, slots=True)
class Scope:
    """The examined steps: from first to last, and how many of them were captured."""

    verdict: Verdict
    sentence: str
    first_step: int | None
    last_step: int | None
    steps: int
    captured: int
    captured_in_run: int
    layers: int
    uncaptured: int  # modules that the coverage lists as not captured
    problems: int  # findings that are warnings or errors
    notes: int  # the others
    evaluated: bool  # whether an evaluation was captured; otherwise, the sentence is about the training only
    unjudged: tuple[Unjudged, ...]


def scope_of(store: Store, taps: TapList, sizes: MagnitudeWindow | None, found: Sequence[Finding]) -> Scope:
    """Return how much was examined for these findings."""
    newest = store.steps().newest
    uncaptured = sum(not each.captured for each in store.coverage())
    if newest is None or not len(taps.taps) or sizes is None:
        nothing = "No step has been captured: there is nothing to judge."
        return Scope("unknown", nothing, None, newest, 0, 0, 0, 0, uncaptured, 0, 0, False, ())
    first = window_first(store)
    captured, steps = store.captured(first), newest - first + 1
    layers = taps.fact(_layers).number
    unjudged = tuple(each for each in (_growth(sizes), _dead(store, taps.of_kind("output"))) if each is not None)
    problems = sum(each.severity != "info" for each in found)
    notes = len(found) - problems
    too_little = any(each.layers > MIN_KNOWN * each.of for each in unjudged)
    verdict: Verdict = "problems" if problems else "unknown" if too_little else "clear"
    window = f"in the last {counted(steps, 'step')} ({captured:,} captured)"
    opening = [f"{found_words(problems, notes)} found {window}."]
    if verdict == "unknown":
        opening = [f"No NaN or infinity {window}.", *([f"{counted(notes, 'note')}."] if notes else [])]
    evaluated = taps.fact(_evaluated)
    opening += [] if evaluated or problems else [NO_EVALUATION]
    sentence = " ".join([*opening, *(each.sentence for each in unjudged)])
    about = (first, newest, steps, captured, store.captured(), layers, uncaptured, problems, notes, evaluated)
    return Scope(verdict, sentence, *about, unjudged)


def _evaluated(taps: TapList) -> bool:
    return any(tap.phase == "eval" for tap in taps.taps)


@dataclass(frozen=True, slots=True)
class _Layers:
    """How many layers some taps are of, and the number of each tap's layer."""

    number: int
    of_tap: NDArray[np.intp]


def _layers(taps: TapList) -> _Layers:
    numbers: dict[str, int] = {}
    of_tap = [numbers.setdefault(tap.module, len(numbers)) for tap in taps.taps]
    return _Layers(len(numbers), np.array(of_tap, np.intp))


def _growth(sizes: MagnitudeWindow) -> Unjudged | None:
    """Return the layers without any tensor whose past is known well enough."""
    layers = sizes.taps.fact(_layers)
    most = np.zeros(layers.number, np.intp)
    np.maximum.at(most, layers.of_tap, sizes.seen)
    return _unjudged("exploding", most[most < NEEDED], NEEDED, layers.number, sizes.columns.width)


def _dead(store: Store, outputs: TapList) -> Unjudged | None:
    zeros = zeros_of(store, outputs, "dead")
    layers = outputs.fact(_layers)
    known = layers.of_tap[zeros.judged]  # in training, perhaps not in evaluation
    places = zeros.unknown[~np.isin(layers.of_tap[zeros.unknown], known)]
    if not len(places):
        return None
    limits = limits_of(store, "dead")
    first = store.captured_step(int(limits["among"]) - 1)
    rows = store.rows(outputs.numbers[places], "zero_fraction", first)
    seen = np.zeros(layers.number, np.intp)
    seen[layers.of_tap[places]] = rows.present.sum(axis=0)
    return _unjudged("dead", seen[np.unique(layers.of_tap[places])], int(limits["captured_steps"]), layers.number)


def _unjudged(rule: RuleName, seen: NDArray[np.intp], needed: int, of: int, span_steps: int = 1) -> Unjudged | None:
    return Unjudged(rule, len(seen), of, int(seen.max()), needed, span_steps) if len(seen) else None
