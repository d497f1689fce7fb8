"""Rules about logged losses: whether they are finite, whether training diverged, and whether growth did harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hookcore.findings.finding import SPARK, Finding
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import window_first
from hookcore.records import Severity
from hookcore.records.vocabulary import is_found_loss, is_loss, loss_rank
from hookcore.store import Series, Store, TapList
from hookcore.store.incidents import since_words

_NOW = 8  # newest logged values
_BEFORE = 64  # steps before an onset
_POINTS = 1000
_SOLVED = 1e-9
_SMALL = 1e-2
_FELL = 0.7


@dataclass(frozen=True)
class Losses:
    """The scalars with "loss" in their name, except hookcore's own."""

    store: Store

    @cached_property
    def series(self) -> tuple[Series, ...]:
        """The losses over the whole run; values of old steps are merged."""
        opposed = {series.name for series in self.opposed}
        names = (name for name in self.store.scalar_names() if is_loss(name) and name not in opposed)
        return tuple(self.store.scalars(name, points=_POINTS) for name in names)

    @cached_property
    def opposed(self) -> tuple[Series, ...]:
        """The found losses of several optimizers, which may work against each other, so that no course is expected."""
        found = [name for name in self.store.scalar_names() if is_found_loss(name)]
        return tuple(self.store.scalars(name, points=_POINTS) for name in found) if len(found) > 1 else ()

    @cached_property
    def are_solved(self) -> bool:
        """Whether every loss is tiny compared with its start: little is left to learn, so there is no gradient."""
        known = [series for series in self.series if len(series.mean) > _NOW]
        return bool(known) and all(map(_is_solved, known))

    @cached_property
    def fell(self) -> bool | None:
        """Whether every loss is well below its first values; None if none is logged often enough."""
        known = [series for series in self.series if len(series.mean) > _NOW]
        return all(np.median(each.mean[-_NOW:]) < _FELL * self.first_of(each) for each in known) if known else None

    def jumped(self, step: int) -> bool | None:
        """Return whether a loss around a step was above its first values; None if no loss shows it."""
        known = []
        for series in self.series:
            near = self.store.scalars(series.name, step - 1, step + 1)
            if len(near.max) and len(series.mean) > _NOW:
                known.append(not near.max.max() <= self.first_of(series))
        return any(known) if known else None

    def worsened(self, since: int) -> bool | None:
        """Return whether every loss is worse now than before a step; None if no loss shows it."""
        worse = limits_of(self.store, "exploding")["worse"]
        known = [answer for each in self.series if (answer := _worsened(each, since, worse)) is not None]
        return all(known) if known else None

    @staticmethod
    def first_of(series: Series) -> float:
        """Return the largest of the first values, which may be merged by now."""
        return float(np.abs(series.max[:_NOW]).max())

    def now(self, series: Series) -> Series:
        """Return the newest steps of a loss, unmerged if the store still has them."""
        return self.store.scalars(series.name, window_first(self.store), points=_POINTS)


def _is_solved(series: Series) -> bool:
    """Return whether a loss fell to next to nothing. One that is suddenly zero is masked, not solved."""
    sizes, first = np.abs(series.mean), Losses.first_of(series)
    fell = (sizes > 0) & (sizes < _SMALL * first)
    return bool(np.median(sizes[-_NOW:]) < _SOLVED * first and fell.any())


def _worsened(series: Series, since: int, worse: float) -> bool | None:
    before = series.mean[(series.last_step < since) & (series.last_step >= since - _BEFORE)]
    if not np.isfinite(before).any():
        before = series.mean[: max(1, len(series.mean) // 8)]
    now, finite = series.mean[-_NOW:], np.isfinite(before)
    if not len(now) or not finite.any():
        return None
    if not np.isfinite(now).all():
        return True
    one, two = float(np.median(before[finite])), float(np.median(now))
    return two - one > (worse - 1) * abs(one)


def find_loss(losses: Losses, taps: TapList) -> list[Finding]:
    """Return a finding for the first loss that is non-finite or diverged; its tap is the model's last output."""
    main = min((loss_rank(series.name) for series in losses.series), default=0)
    if not len(taps.taps):
        return []
    for series in (*losses.series, *losses.opposed):
        now = losses.now(series)
        # A part of a loss may grow while the whole falls.
        may_diverge = loss_rank(series.name) == main and all(series is not each for each in losses.opposed)
        problem = _nonfinite(losses.store, now) or (
            _diverged(now, series, limits_of(losses.store, "loss")) if may_diverge else None
        )
        if problem is not None:
            value, usual, since, unseen, message = problem
            text = f"{series.name} {message}"
            return [of_training("loss", taps, series, (value, usual), since, text, unseen=unseen)]
    return []


def of_training(
    rule: RuleName,
    taps: TapList,
    shown: Series,
    sizes: tuple[float, float],
    since: int,
    message: str,
    *,
    severity: Severity | None = None,
    until: int | None = None,
    unseen: int = 0,
) -> Finding:
    """Return a finding about the training. The model's last output stands for it, and `shown` is drawn beside it.

    `sizes`: the value, and what is usual.
    """
    place = taps.fact(last_output)
    spark = tuple(shown.mean[np.isfinite(shown.mean)][-SPARK:].tolist())
    value, usual = map(float, sizes)
    about = "rms", value, usual, since, until, message, spark, 0
    worst = RULES[rule].severity if severity is None else severity
    return Finding(rule, worst, int(taps.numbers[place]), taps.taps[place], *about, unseen=unseen)


def last_output(taps: TapList) -> int:
    """Return the place of the model's last output, which is used in place of the loss."""
    outputs = [place for place, tap in enumerate(taps.taps) if tap.kind == "output" and tap.phase == "train"]
    roots = [place for place in outputs if not taps.taps[place].module]
    return roots[0] if roots else outputs[-1] if outputs else 0


Told = tuple[float, float, int, int, str]  # value, usual, since, steps right before it without a value, message


def _nonfinite(store: Store, series: Series) -> Told | None:
    since = store.nonfinite_since(series.name)
    if since is None:
        return None
    fine = series.mean[np.isfinite(series.mean)]
    usual = float(fine[-1]) if len(fine) else float("nan")
    unseen = _unseen_before(store, series.name, since)
    return float("nan"), usual, since, unseen, f"has been non-finite {since_words(since, unseen)}"


def _unseen_before(store: Store, name: str, step: int) -> int:
    """Return the number of steps right before one in which a loss has no value."""
    before = store.scalars(name, None, step - 1, _POINTS).last_step
    known = int(before[-1]) if len(before) else (store.steps().first or 0) - 1
    return max(0, step - 1 - known)


def _diverged(now: Series, run: Series, limits: Mapping[str, float]) -> Told | None:
    """Return the evidence that a positive loss is far above its lowest value and still near its peak."""
    finite = run.mean[np.isfinite(run.mean)]
    if len(now.mean) < limits["least_logged"] or not len(finite) or np.nanmin(run.min) <= 0:
        return None
    value, best = float(np.median(now.mean[-_NOW:])), float(np.median(np.sort(finite)[: max(1, len(finite) // 4)]))
    if not (value > limits["factor"] * best and value > finite.max() / 10):
        return None
    below = np.flatnonzero(run.mean < np.sqrt(best * value))
    begun = min(int(below[-1]) + 1, len(run.mean) - 1)
    since, until = int(run.first_step[begun]), int(run.last_step[begun])
    # Rows of several steps are merged by now.
    unseen = since - 1 - int(run.last_step[begun - 1]) if since == until and begun else 0
    begun_words = since_words(since, unseen) if since == until else f"since about step {since:,}"
    times = f"{value / best:,.0f}" if value < 1e6 * best else f"{value / best:.0e}"
    message = f"has been {value:.3g} {begun_words}, {times} times its low of {best:.3g}"
    return value, best, since, unseen, message
