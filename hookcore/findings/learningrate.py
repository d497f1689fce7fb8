"""Whether the learning rate is too high or too low, by the course of the loss and by the updates of the weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import WARM_UP, Finding
from hookcore.findings.loss import Losses, of_training
from hookcore.findings.progress import is_validation
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import limits_of
from hookcore.records import Severity
from hookcore.records.vocabulary import counted, is_rate, loss_rank
from hookcore.store import Series, Store, TapList

HIGH: Final[RuleName] = "learning-rate-too-high"
LOW: Final[RuleName] = "learning-rate-too-low"
_BEFORE: Final = 64  # logged values before a peak, and the steps in which a rate rises
_FIRST: Final = 8  # of these values, which show the usual one
_USUAL: Final = 0.5  # decades above the usual value at which a growth begins
_JUMP: Final = 1.0  # decades from one step to the next that growth by itself doesn't begin with
_ROSE: Final = 1.05  # times an earlier rate
_RISING: Final = 2.0  # times the update before; noise changes it by less, a warm-up by more
_MEASURED: Final = 2  # newest steps with updates

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Growth:
    """A loss that grew by itself: from its last usual value to its peak."""

    first_step: int
    last_step: int
    low: float
    peak: float
    from_start: bool
    lasts: bool  # it did not come back, or is not finite any more

    @property
    def decades(self) -> float:
        """By how many powers of ten."""
        return float(np.log10(self.peak / self.low))

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step

    @property
    def words(self) -> str:
        """Say it in words."""
        grew = f"grew from {self.low:.3g} to {self.peak:.3g}, {self.decades:.0f} powers of ten"
        return f"{grew}, in {counted(self.steps, 'step')}"


@dataclass(frozen=True, slots=True)
class Updates:
    """The steps in which the updates of weights were measured, and the update of all of them as a share of them."""

    steps: Steps
    share: Floats

    @classmethod
    def of(cls, store: Store, taps: TapList) -> Updates:
        """Read the newest ones."""
        updates = taps.of_kind("update")
        first = store.captured_step(_READ)
        if not len(updates.taps):
            return cls(np.empty(0, np.int64), np.empty(0))
        norm, ratio = (store.rows(updates.numbers, stat, first) for stat in ("norm", "ratio"))
        if len(norm.first) != len(ratio.first):  # a frame arrived in between
            return cls(np.empty(0, np.int64), np.empty(0))
        known, moved = np.isfinite(ratio.mean) & np.isfinite(norm.mean), ratio.mean > 0
        weight = np.where(known & moved, norm.mean / np.where(moved, ratio.mean, 1.0), 0.0)
        size = np.where(known, norm.mean, 0.0)
        there = known.any(axis=1)  # weights that didn't move at all don't say how large they are
        whole = np.hypot.reduce(weight[there], axis=1)
        share = np.hypot.reduce(size[there], axis=1) / np.where(whole > 0, whole, 1.0)
        return cls(norm.first[there], share)


_READ: Final = 512  # captured steps


def find_rate(losses: Losses, taps: TapList, diverged: bool) -> list[Finding]:
    """Return a finding if the learning rate is too high, or else if it is too low.

    If the loss `diverged`, what was found when it did stays true after these steps have left the window.
    """
    main = main_loss(losses)
    if main is None or not len(taps.taps):
        return []
    growth = growth_of(losses, main)
    if growth is not None:
        text = f"{main.name} {growth.words}"
        severity: Severity = "error" if growth.lasts else "warning"
        if not growth.lasts:
            text += ", and never fell below its first values"
        text += _rate_words(losses.store, growth.first_step)
        sizes = growth.peak, growth.low
        return [of_training(HIGH, taps, main, sizes, growth.first_step, text, severity=severity)]
    if diverged:
        lasting = (each for each in losses.store.incident_heads() if each.rule == HIGH and not each.is_over)
        return [
            of_training(HIGH, taps, main, (each.value, each.usual), each.first_step, each.message, severity=each.level)
            for each in lasting
        ][:1]
    return _of_updates(losses, main, taps) if losses.fell is False else []


def main_loss(losses: Losses) -> Series | None:
    """Return the training loss; None if there is none, or if several may be it."""
    found = main_losses(losses.series)
    return found[0] if len(found) == 1 else None


def main_losses(series: Iterable[Series]) -> list[Series]:
    """Return the training losses of the best rank, without those of validations."""
    trained = [each for each in series if not is_validation(each.name)]
    best = min((loss_rank(each.name) for each in trained), default=0)
    return [each for each in trained if loss_rank(each.name) == best]


def growth_of(losses: Losses, main: Series) -> Growth | None:
    """Return how the loss grew by itself, as with too high a rate; None if it didn't, or if something else began it."""
    limits = limits_of(losses.store, HIGH)
    now = losses.now(main)
    values, at = now.mean[np.isfinite(now.mean)], now.last_step[np.isfinite(now.mean)]
    if len(values) < 2 or values.min() < 0:
        return None
    with np.errstate(divide="ignore"):
        logs = np.log10(values)  # a zero compares as lower than all
    peak = int(logs.argmax())
    before = logs[max(0, peak - _BEFORE) : peak]
    if not len(before):
        return None
    starts = bool(now.first_step[0] <= (losses.store.steps().first or 0) + WARM_UP)
    usual = (np.min if starts and len(before) == peak else np.median)(before[:_FIRST])
    below = np.flatnonzero(logs[:peak] <= usual + _USUAL)
    onset = int(below[-1]) if len(below) else 0
    if not np.isfinite(logs[onset]):
        return None
    found = Growth(
        int(at[onset]),
        int(at[peak]),
        float(values[onset]),
        float(values[peak]),
        starts and int(at[onset]) - int(now.first_step[0]) <= WARM_UP,
        not np.isfinite(now.mean[-1]) or bool(np.median(logs[peak:][-_FIRST:]) > logs[onset] + _USUAL),
    )
    if found.decades < limits["decades"] or found.decades < limits["per_step"] * found.steps:
        return None
    if found.from_start:
        return found if found.lasts or np.median(values[-_FIRST:]) >= limits["falls"] * found.low else None
    begins_at_once = logs[onset + 1] - logs[onset] > _JUMP or at[onset + 1] - at[onset] > 1
    return found if found.lasts and (not begins_at_once or _rate_rose(losses.store, found.first_step)) else None


def _rates_at(store: Store, step: int) -> tuple[float, float] | None:
    """Return the learning rate some steps before a step, and at the next one; None if it isn't known."""
    name = next((each for each in store.scalar_names() if is_rate(each)), None)
    if name is None:
        return None
    series = store.scalars(name, None, step + 1)
    if not len(series.mean):
        return None
    before = np.flatnonzero(series.last_step <= step - _BEFORE)
    return float(series.mean[before[-1] if len(before) else 0]), float(series.mean[-1])


def _rate_rose(store: Store, step: int) -> bool:
    rates = _rates_at(store, step)
    return rates is not None and rates[1] > _ROSE * rates[0]


def _rate_words(store: Store, step: int) -> str:
    rates = _rates_at(store, step)
    if rates is None:
        return ""
    rose = f", up from {rates[0]:.3g}" if rates[1] > _ROSE * rates[0] else ""
    return f"; the learning rate was {rates[1]:.3g}{rose}"


def _of_updates(losses: Losses, main: Series, taps: TapList) -> list[Finding]:
    """Judge a loss that hasn't fallen by how much the weights change."""
    store = losses.store
    updates, first, newest = Updates.of(store, taps), int(main.first_step[0]), float(np.median(main.mean[-8:]))
    flat = f"{main.name} hasn't fallen since step {first:,} ({Losses.first_of(main):.3g} at first, {newest:.3g} now)"
    shares = updates.share[-_MEASURED:]
    if len(shares) < _MEASURED:
        return []
    share, at = float(shares[-1]), int(updates.steps[-1])
    text = f"{flat}, and the update of all weights was {share:.2g} of them at step {at} (about 0.001 is common)"
    text += _rate_words(store, at)
    if shares.min() > limits_of(store, HIGH)["share"]:
        return [of_training(HIGH, taps, main, (share, 1e-3), first, text, severity="warning")]
    low = limits_of(store, LOW)
    if shares.max() < low["share"] and main.present.sum() >= low["least_logged"] and share <= _RISING * shares[0]:
        return [of_training(LOW, taps, main, (share, 1e-3), first, text)]
    return []
