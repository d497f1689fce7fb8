"""A logged loss that suddenly jumps, for a step or for longer."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import Finding
from hookcore.findings.loss import Losses, of_training
from hookcore.findings.progress import is_validation
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import limits_of
from hookcore.records import Severity
from hookcore.records.vocabulary import loss_rank
from hookcore.store import Series, TapList

RULE: Final[RuleName] = "loss-spike"
_BEFORE: Final = 64  # logged values before a jump that show the usual value,
_MIN_VALUES: Final = 24  # and the fewest that do
_OPEN: Final = 16  # values after a jump, from which on it counts even if the loss didn't come back
_BEYOND: Final = 3.0  # times as far from the usual value as the largest one before
_DEVIATION: Final = 1.0484  # standard deviations of normal noise in the median of its absolute differences

Floats = NDArray[np.float64]


def find_loss_spikes(losses: Losses, taps: TapList) -> list[Finding]:
    """Return a finding for each jump of a main loss in the window."""
    trained = [each for each in losses.series if not is_validation(each.name)]
    main = min((loss_rank(each.name) for each in trained), default=0)
    if not len(taps.taps):
        return []
    return [found for each in trained if loss_rank(each.name) == main for found in _jumps(losses, each, taps)]


def _jumps(losses: Losses, series: Series, taps: TapList) -> list[Finding]:
    now, limits = losses.now(series), limits_of(losses.store, RULE)
    values, first = now.mean, losses.first_of(series)
    if len(values) <= _MIN_VALUES:
        return []
    usual, largest, noise = _before(values)
    far = np.maximum((limits["factor"] - 1) * np.abs(usual), limits["spreads"] * noise)
    border = usual + np.maximum(far, _BEYOND * (largest - usual))
    if values.min() > 0:  # the noise of a positive loss is a share of it
        logs, _, noise = _before(np.log(values))
        border = np.maximum(border, np.exp(logs + limits["spreads"] * noise))
    found, until = [], -1
    for start in np.flatnonzero(values > border).tolist():  # NaN compares as False
        if start <= until:
            continue
        back = np.flatnonzero(values[start:] < (values[start] + usual[start]) / 2)
        until = start + int(back[0]) - 1 if len(back) else len(values) - 1
        peak = float(np.nanmax(values[start : until + 1]))
        # Late in a training, a single hard sample is far above a tiny loss. It does no harm.
        if peak > limits["share_of_first"] * first and (len(back) or len(values) - start > _OPEN):
            # The size of a loss that changes its sign, such as that of a policy gradient, shows no harm.
            earlier = values[max(0, start - _BEFORE) : start]
            has_size = not np.nanmin(earlier) < 0 < np.nanmax(earlier)
            severity: Severity = "warning" if peak > first and has_size else "info"
            found.append(_finding(now, (start, until), bool(len(back)), (peak, float(usual[start])), severity, taps))
    return found


def _before(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the median, the maximum, and the noise of the values before each one; NaN if too little is known."""
    wide = np.concatenate((np.full(_BEFORE, np.nan), values))
    earlier = np.lib.stride_tricks.sliding_window_view(wide, _BEFORE)[:-1]
    ordered = np.sort(earlier, axis=1)  # NaN sorts last
    known, rows = (~np.isnan(ordered)).sum(axis=1), np.arange(len(values))
    newest = np.maximum(known - 1, 0)
    usual, largest = ordered[rows, newest // 2].copy(), ordered[rows, newest]
    usual[known < _MIN_VALUES] = np.nan
    # From one value to the next, there is noise and hardly any trend.
    noise = _DEVIATION * np.sort(np.abs(np.diff(earlier, axis=1)), axis=1)[rows, np.maximum(newest - 1, 0) // 2]
    return usual, largest, noise


def _finding(
    now: Series, places: tuple[int, int], is_back: bool, sizes: tuple[float, float], severity: Severity, taps: TapList
) -> Finding:
    peak, usual = sizes
    since, until = int(now.first_step[places[0]]), int(now.last_step[places[1]])
    times = f", {peak / usual:,.3g} times its usual {usual:.3g}" if usual > 0 else f" instead of its usual {usual:.3g}"
    when = f"at step {since}" if since == until else f"between steps {since} and {until}"
    end = "" if is_back else ", and hadn't recovered by then"
    text = f"{now.name} jumped to {peak:.3g} {when}{times}{end}"
    return of_training(RULE, taps, now, sizes, since, text, severity=severity, until=until)
