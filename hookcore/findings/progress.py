"""Rules about the course of a training: whether the loss falls, and whether that of the validation follows."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import Finding
from hookcore.findings.loss import Losses, of_training
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import limits_of
from hookcore.records.vocabulary import loss_rank
from hookcore.store import Series, TapList

_NOW: Final = 5  # newest values
_VALIDATION: Final = re.compile(r"(^|[^a-z])(val|valid|validation|eval|evaluation|test|dev)([^a-z]|$)")


def find_progress(losses: Losses, taps: TapList) -> list[Finding]:
    """Return a finding if a loss never fell, and one if the validation gets worse while the training gets better."""
    if not len(taps.taps):
        return []
    trained = [each for each in losses.series if not is_validation(each.name)]
    validated = [each for each in losses.series if is_validation(each.name)]
    main = min(trained, key=lambda each: loss_rank(each.name), default=None)
    found = (
        []
        if main is None
        else [_never_fell(losses, main, taps), *(_overfit(losses, each, main, taps) for each in validated[:1])]
    )
    return [each for each in found if each is not None]


def is_validation(name: str) -> bool:
    """Return whether a loss is that of a validation, by its name."""
    return _VALIDATION.search(name.casefold()) is not None


def _never_fell(losses: Losses, series: Series, taps: TapList) -> Finding | None:
    limits, values = limits_of(losses.store, "loss-not-decreasing"), series.mean
    if series.present.sum() < limits["least_logged"] or not np.isfinite(values).all():
        return None
    parts = np.array([np.median(part) for part in np.array_split(values, min(20, len(values)))])
    if parts[0] <= 0 or (parts[1:] < limits["falls"] * parts[0]).any():
        return None
    text = f"has not fallen since step {int(series.first_step[0]):,}: {parts[0]:.3g} at first, {parts[-1]:.3g} last"
    return _finding("loss-not-decreasing", series, taps, (parts[-1], parts[0]), int(series.first_step[0]), text)


def _overfit(losses: Losses, series: Series, train: Series, taps: TapList) -> Finding | None:
    limits = limits_of(losses.store, "overfit")
    values, at = _smooth(series.mean), series.last_step
    if series.present.sum() < limits["least_logged"] or len(values) < 2 * _NOW or not np.isfinite(series.mean).all():
        return None
    best, low = int(values.argmin()), float(values.min())
    now = float(np.median(series.mean[-_NOW:]))
    if low <= 0 or len(values) - best <= limits["since_best"] or now < limits["factor"] * low:
        return None
    before, after = train.mean[train.last_step <= at[best]][-2 * _NOW :], train.mean[-2 * _NOW :]
    if not len(before) or not np.median(after) < limits["falls"] * np.median(before):
        return None
    rose = f"was lowest at step {int(at[best])}, at {low:.3g}, and rose to {now:.3g} by step {int(at[-1])}"
    text = f"{rose}, while {train.name} kept falling"
    return _finding("overfit", series, taps, (now, low), int(at[best]), text)


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each value and its neighbors."""
    wide = np.pad(values, 1, mode="edge")
    return np.median(np.stack([wide[:-2], wide[1:-1], wide[2:]]), axis=0)


def _finding(
    rule: RuleName, series: Series, taps: TapList, sizes: tuple[float, float], since: int, text: str
) -> Finding:
    return of_training(rule, taps, series, sizes, since, f"{series.name} {text}")
