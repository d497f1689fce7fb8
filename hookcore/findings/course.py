"""The course of a training in one word and one sentence: learning, flat, diverging, broken, or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import Finding
from hookcore.findings.losses import HIGH, Losses, main_losses
from hookcore.findings.rules import RuleName
from hookcore.records.vocabulary import counted
from hookcore.store import Series, Store

Word = Literal["learning", "flat", "diverging", "broken", "unknown"]

MIN_LOGGED: Final = 16  # values of a loss that show its course
_NOW: Final = 8  # newest values, and first ones
_LEAST: Final = 0.02  # of the first losses: smaller changes say nothing
_ROSE: Final = 1.2  # times the first losses
_AGAIN: Final = 0.5  # of what it had fallen, by which a loss has risen again
_ERRORS: Final = 3.0  # standard errors that a change must exceed
_MEDIAN: Final = 1.2533  # standard error of a median, in those of a mean
_DEVIATION: Final = 1.0484  # standard deviations of normal noise in the median of its absolute differences
_DIVERGED: Final[tuple[RuleName, ...]] = (HIGH, "loss")
_BROKEN: Final[tuple[RuleName, ...]] = ("nonfinite", "no-gradient")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Course:
    """Where a training goes, why, and the numbers: NaN and None if unknown."""

    word: Word
    reason: str
    loss: str = ""  # the scalar that shows it
    first: float = float("nan")
    newest: float = float("nan")
    lowest: float = float("nan")
    since_step: int | None = None  # the step in which what the word says began

    @property
    def sentence(self) -> str:
        """Return the word and the reason."""
        return f"{self.word.capitalize()}: {self.reason}."


def course_of(store: Store, found: Sequence[Finding]) -> Course:
    """Return the course of a training, given what the rules found in it."""
    losses = Losses(store)
    main = main_losses(losses.series or losses.opposed)
    known = [_of(losses, each) for each in main]
    diverged = next((each for rule in _DIVERGED for each in found if each.rule == rule and _is_lasting(each)), None)
    worst = next((each for each in known if each.word == "broken"), None)
    if worst is not None and diverged is not None and diverged.rule == HIGH:
        return replace(worst, reason=f"the learning rate is too high: {diverged.message}; {worst.reason}")
    if worst is not None:
        return worst
    broken = next((each for each in found if each.rule in _BROKEN and _is_lasting(each)), None)
    if broken is not None:
        what = "values are NaN or infinite" if broken.rule == "nonfinite" else "most layers get no gradient"
        return Course("broken", f"{what} since step {broken.since_step:,}", since_step=broken.since_step)
    if diverged is not None:
        numbers = diverged.usual, diverged.value, diverged.usual
        why = "the learning rate is too high: " if diverged.rule == HIGH else ""
        return Course(
            "diverging", f"{why}{diverged.message}", main[0].name if main else "", *numbers, diverged.since_step
        )
    if not losses.series and losses.opposed:
        names = " and ".join(each.name for each in losses.opposed[:2])
        return Course("unknown", f"several optimizers have a loss of their own ({names}), which may oppose each other")
    if not known:
        return Course("unknown", 'no loss was found; log one with a name that contains "loss"')
    if len({each.word for each in known}) > 1:
        names = " and ".join(each.name for each in main[:2])
        return Course("unknown", f"{names} go different ways, as those of opponents do")
    return known[0]


def _is_lasting(finding: Finding) -> bool:
    return finding.severity == "error" and finding.until_step is None


def _of(losses: Losses, series: Series) -> Course:
    name, since = series.name, losses.store.nonfinite_since(series.name)
    if since is not None:
        fine = series.mean[np.isfinite(series.mean)]
        newest = float(fine[-1]) if len(fine) else float("nan")
        return Course("broken", f"{name} has been NaN or infinite since step {since:,}", name, newest, since_step=since)
    values = series.mean[np.isfinite(series.mean)]
    logged = int(series.present.sum())
    if logged < MIN_LOGGED or len(values) < MIN_LOGGED:
        return Course("unknown", f"{counted(logged, 'value')} of {name}, {MIN_LOGGED} needed", name)
    if values.min() < 0 < values.max():
        return Course("unknown", f"{name} changes its sign, so its size doesn't show what is learned", name)
    course = _by_values(series, values)
    if course.word == "diverging" and values.min() < 0:
        reason = f"{course.reason}, which may be normal for a loss below zero"
        return replace(course, word="unknown", reason=reason)
    return course


def _by_values(series: Series, values: Floats) -> Course:
    """Compare the first values, the newest, and the lowest ones."""
    parts = [float(np.median(part)) for part in np.array_split(values, min(24, len(values) // _NOW))]
    first, early, newest = float(values[0]), float(np.median(values[:_NOW])), float(np.median(values[-_NOW:]))
    lowest, at = min(parts), int(np.argmin(parts))
    noise = _ERRORS * _DEVIATION * float(np.median(np.abs(np.diff(values))))
    least = max(noise * _MEDIAN * np.sqrt(2 / _NOW), _LEAST * abs(early))
    begun = int(series.first_step[min(len(series.first_step) - 1, at * len(values) // len(parts))])
    from_step, to_step = int(series.first_step[0]), int(series.last_step[-1])
    about = series.name, first, newest, lowest
    steps = counted(to_step - from_step + 1, "step")
    if newest - max(first, early) > max(least, (_ROSE - 1) * abs(early)):
        return Course("diverging", f"{series.name} rose from {first:.3g} to {newest:.3g} in {steps}", *about, from_step)
    if first - lowest > least and newest - lowest > max(_AGAIN * (first - lowest), least):
        reason = (
            f"{series.name} fell from {first:.3g} to {lowest:.3g} until about step {begun:,}, and rose to {newest:.3g}"
        )
        return Course("diverging", reason, *about, begun)
    if first - newest > noise or (early - newest > least and first - newest > _LEAST * abs(first)):
        return Course("learning", f"{series.name} fell from {first:.3g} to {newest:.3g} in {steps}", *about, from_step)
    return Course(
        "flat", f"{series.name} was {first:.3g} at first, and is {newest:.3g} after {steps}", *about, from_step
    )
