"""Rules about losses: finite, falling, spiking, diverging; and the learning rate that they tell of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, WARM_UP, Finding, RuleName, spark_around
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import window_first
from hookcore.records import Severity
from hookcore.records.vocabulary import counted, is_found_loss, is_loss, is_rate, loss_rank, titled
from hookcore.store import Series, Store, TapList
from hookcore.store.incidents import UNCAPTURED, WHOLE, since_words

# Rules about logged losses: whether they are finite, whether training diverged, and whether growth did harm.

_NEWEST = 8  # newest logged values
_STEPS_BEFORE = 64  # steps before an onset
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
        """The found losses of several optimizers, which may work against each other, so that no course is expected.

        If each optimizer took over from the one before, as after a first phase with a part frozen, the newest
        has one when it has twice as many steps, because phases may also alternate.
        """
        names = [name for name in self.store.scalar_names() if is_found_loss(name)]
        found = [self.store.scalars(name, points=_POINTS) for name in names] if len(names) > 1 else []
        in_order = sorted((each for each in found if len(each.mean)), key=lambda each: int(each.first_step[0]))
        # The last steps of one and the first steps of the next may be merged.
        took_over = len(in_order) > 1 and all(
            one.first_step[-1] <= other.first_step[0] for one, other in pairwise(in_order)
        )
        spans = [int(each.last_step[-1]) - int(each.first_step[0]) + 1 for each in in_order[-2:]]
        going_on = in_order[-1:] if took_over and spans[1] >= 2 * spans[0] else []
        return tuple(each for each in found if all(each is not other for other in going_on))

    @cached_property
    def are_solved(self) -> bool:
        """Whether every loss is tiny compared with its start: little is left to learn, so there is no gradient."""
        known = [series for series in self.series if len(series.mean) > _NEWEST]
        return bool(known) and all(map(_is_solved, known))

    @cached_property
    def fell(self) -> bool | None:
        """Whether every loss is well below its first value; None if none is logged often enough."""
        known = [series for series in self.series if len(series.mean) > _NEWEST]
        return all(np.median(each.mean[-_NEWEST:]) < _FELL * self._start_of(each) for each in known) if known else None

    def jumped(self, step: int) -> bool | None:
        """Return whether a loss around a step was above its first values; None if no loss shows it."""
        known = []
        for series in self.series:
            near = self.store.scalars(series.name, step - 1, step + 1)
            if len(near.max) and len(series.mean) > _NEWEST:
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
        return float(np.abs(series.max[:_NEWEST]).max())

    def _start_of(self, series: Series) -> float:
        """Return the first value: a loss that rises at once and comes back hasn't fallen. If unknown, the largest."""
        first = self.store.first_scalar(series.name)
        return self.first_of(series) if first is None else abs(first[1])

    def now(self, series: Series) -> Series:
        """Return the newest steps of a loss, unmerged if the store still has them."""
        return self.store.scalars(series.name, window_first(self.store), points=_POINTS)


def _is_solved(series: Series) -> bool:
    """Return whether a loss fell to next to nothing. One that is suddenly zero is masked, not solved."""
    sizes, first = np.abs(series.mean), Losses.first_of(series)
    fell = (sizes > 0) & (sizes < _SMALL * first)
    return bool(np.median(sizes[-_NEWEST:]) < _SOLVED * first and fell.any())


def _worsened(series: Series, since: int, worse: float) -> bool | None:
    before = series.mean[(series.last_step < since) & (series.last_step >= since - _STEPS_BEFORE)]
    if not np.isfinite(before).any():
        before = series.mean[: max(1, len(series.mean) // 8)]
    now, finite = series.mean[-_NEWEST:], np.isfinite(before)
    if not len(now) or not finite.any():
        return None
    if not np.isfinite(now).all():
        return True
    one, two = float(np.median(before[finite])), float(np.median(now))
    return two - one > (worse - 1) * abs(one)


def find_loss(losses: Losses, taps: TapList) -> list[Finding]:
    """Return a finding for the first loss that is non-finite or diverged; its tap is the model's last output."""
    main = min((loss_rank(series.name) for series in losses.series), default=0)
    for series in (*losses.series, *losses.opposed):
        now = losses.now(series)
        # A part of a loss may grow while the whole falls.
        may_diverge = loss_rank(series.name) == main and all(series is not each for each in losses.opposed)
        problem = _nonfinite(losses.store, now) or (
            _diverged(now, series, limits_of(losses.store, "loss")) if may_diverge else None
        )
        if problem is not None:
            value, usual, since, unseen, message = problem
            text = f"{titled(series.name)} {message}"
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
    number, tap = UNCAPTURED, WHOLE  # of a run with logged values alone
    if len(taps.taps):
        place = taps.fact(last_output)
        number, tap = int(taps.numbers[place]), taps.taps[place]
    spark = tuple(shown.mean[np.isfinite(shown.mean)][-SPARK:].tolist())
    value, usual = map(float, sizes)
    about = "rms", value, usual, since, until, message, spark, 0
    worst = RULES[rule].severity if severity is None else severity
    return Finding(rule, worst, number, tap, *about, unseen=unseen)


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
    value, best = float(np.median(now.mean[-_NEWEST:])), float(np.median(np.sort(finite)[: max(1, len(finite) // 4)]))
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


# Rules about the course of a training: whether the loss falls, and whether that of the validation follows.

_NOW: Final = 5  # newest values
_VALIDATION: Final = re.compile(r"(^|[^a-z])(val|valid|validation|eval|evaluation|test|dev)([^a-z]|$)")


def find_progress(losses: Losses, taps: TapList) -> list[Finding]:
    """Return a finding if a loss never fell, and one if the validation gets worse while the training gets better."""
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
    sizes = never_fell(losses.store, series)
    if sizes is None:
        return None
    first, last = sizes
    since = int(series.first_step[0])
    return _stalled("loss-not-decreasing", series, taps, (last, first), since, not_fallen(series, sizes))


def never_fell(store: Store, series: Series) -> tuple[float, float] | None:
    """Return the first and the last size of a loss that has never fallen below its first values; None if it has."""
    limits, values = limits_of(store, "loss-not-decreasing"), series.mean
    if series.present.sum() < limits["least_logged"] or not np.isfinite(values).all():
        return None
    parts = np.array([np.median(part) for _, part in by_steps(series, min(20, len(values)))])
    if parts[0] <= 0 or (parts[1:] < limits["falls"] * parts[0]).any():
        return None
    return float(parts[0]), float(parts[-1])


def by_steps(series: Series, many: int) -> list[tuple[int, Floats]]:
    """Split the finite values into spans of as many steps each, with their first steps: older values may be merged."""
    known = np.isfinite(series.mean)
    steps, values = series.first_step[known], series.mean[known]
    borders = np.linspace(steps[0], series.last_step[-1] + 1, many + 1)[1:-1] if len(steps) else np.empty(0)
    places = [0, *np.searchsorted(steps, borders).tolist(), len(steps)]
    return [(int(steps[begin]), values[begin:end]) for begin, end in pairwise(places) if end > begin]


def not_fallen(series: Series, sizes: tuple[float, float]) -> str:
    """Return what a loss that never fell did, in words after its name."""
    return f"has not fallen since step {int(series.first_step[0]):,}: {sizes[0]:.3g} at first, {sizes[1]:.3g} last"


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
    text = f"{rose}, while {titled(train.name)} kept falling"
    return _stalled("overfit", series, taps, (now, low), int(at[best]), text)


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each value and its neighbors."""
    wide = np.pad(values, 1, mode="edge")
    return np.median(np.stack([wide[:-2], wide[1:-1], wide[2:]]), axis=0)


def _stalled(
    rule: RuleName, series: Series, taps: TapList, sizes: tuple[float, float], since: int, text: str
) -> Finding:
    return of_training(rule, taps, series, sizes, since, f"{titled(series.name)} {text}")


RULE: Final[RuleName] = "loss-spike"
_LOGS_BEFORE_SPIKE: Final = 64  # logged values before a jump that show the usual value,
_MIN_VALUES: Final = 24  # and the fewest that do
_OPEN: Final = 16  # values after a jump, from which on it counts even if the loss didn't come back
_BEYOND: Final = 3.0  # times as far from the usual value as the largest one before
_DEVIATION: Final = 1.0484  # standard deviations of normal noise in the median of its absolute differences

Floats = NDArray[np.float64]


def find_loss_spikes(losses: Losses, taps: TapList) -> list[Finding]:
    """Return a finding for each jump of a main loss in the window."""
    trained = [each for each in losses.series if not is_validation(each.name)]
    main = min((loss_rank(each.name) for each in trained), default=0)
    return [found for each in trained if loss_rank(each.name) == main for found in _jumps(losses, each, taps)]


def _jumps(losses: Losses, series: Series, taps: TapList) -> list[Finding]:
    now, limits = losses.now(series), limits_of(losses.store, RULE)
    values, first = now.mean, losses.first_of(series)
    if len(values) <= _MIN_VALUES:
        return []
    usual, border = borders(values, limits)
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
            earlier = values[max(0, start - _LOGS_BEFORE_SPIKE) : start]
            has_size = not np.nanmin(earlier) < 0 < np.nanmax(earlier)
            severity: Severity = "warning" if peak > first and has_size else "info"
            found.append(_spike(now, (start, until), bool(len(back)), (peak, float(usual[start])), severity, taps))
    return found


def borders(values: Floats, limits: Mapping[str, float], newest: int = 0) -> tuple[Floats, Floats]:
    """Return the usual value before each one, and the value above which it is a jump; NaN if too little is known.

    `newest`: only of so many of the newest values; 0: of all.
    """
    usual, largest, noise = _before(values, newest)
    far = np.maximum((limits["factor"] - 1) * np.abs(usual), limits["spreads"] * noise)
    border = usual + np.maximum(far, _BEYOND * (largest - usual))
    if values.min() > 0:  # the noise of a positive loss is a share of it
        logs, _, noise = _before(np.log(values), newest)
        border = np.maximum(border, np.exp(logs + limits["spreads"] * noise))
    return usual, border


def jump_limit(values: Sequence[float], first: float) -> float:
    """Return above which value the next loss is a jump, after the newest losses; infinity if too little is known.

    `first`: the largest of the first losses.
    """
    if len(values) < _MIN_VALUES or not np.isfinite(values).all():
        return float("inf")
    # The value of the next loss doesn't matter for its border, but for its sign.
    border = float(borders(np.append(values, values[-1]), RULES[RULE].limits, 1)[1][0])
    return max(border, RULES[RULE].limits["share_of_first"] * first)


def _before(values: Floats, newest: int = 0) -> tuple[Floats, Floats, Floats]:
    """Return the median, the maximum, and the noise of the values before each one; NaN if too little is known."""
    wide = np.concatenate((np.full(_LOGS_BEFORE_SPIKE, np.nan), values))
    earlier = np.lib.stride_tricks.sliding_window_view(wide, _LOGS_BEFORE_SPIKE)[:-1][-newest:]
    ordered = np.sort(earlier, axis=1)  # NaN sorts last
    known, rows = (~np.isnan(ordered)).sum(axis=1), np.arange(len(earlier))
    last = np.maximum(known - 1, 0)
    usual, largest = ordered[rows, last // 2].copy(), ordered[rows, last]
    usual[known < _MIN_VALUES] = np.nan
    # From one value to the next, there is noise and hardly any trend.
    noise = _DEVIATION * np.sort(np.abs(np.diff(earlier, axis=1)), axis=1)[rows, np.maximum(last - 1, 0) // 2]
    return usual, largest, noise


def _spike(
    now: Series, places: tuple[int, int], is_back: bool, sizes: tuple[float, float], severity: Severity, taps: TapList
) -> Finding:
    peak, usual = sizes
    since, until = int(now.first_step[places[0]]), int(now.last_step[places[1]])
    times = f", {peak / usual:,.3g} times its usual {usual:.3g}" if usual > 0 else f" instead of its usual {usual:.3g}"
    when = f"at step {since}" if since == until else f"between steps {since} and {until}"
    end = "" if is_back else ", and hadn't recovered by then"
    text = f"{titled(now.name)} jumped to {peak:.3g} {when}{times}{end}"
    found = of_training(RULE, taps, now, sizes, since, text, severity=severity, until=until)
    return replace(found, spark=spark_around(now.mean, places[0]))


# Whether the learning rate is too high or too low, by the course of the loss and by the updates of the weights.

HIGH: Final[RuleName] = "learning-rate-too-high"
LOW: Final[RuleName] = "learning-rate-too-low"
_LOGS_BEFORE_PEAK: Final = 64  # logged values before a peak, and the steps in which a rate rises
_FIRST: Final = 8  # of these values, which show the usual one
_USUAL: Final = 0.5  # decades above the usual value at which a growth begins
_JUMP: Final = 1.0  # decades from one step to the next that growth by itself doesn't begin with
_ROSE: Final = 1.05  # times an earlier rate
_RISING: Final = 2.0  # times the update before; noise changes it by less, a warm-up by more
_MEASURED: Final = 2  # newest steps with updates

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
    if main is None:
        return []
    growth = growth_of(losses, main)
    if growth is not None:
        text = f"the learning rate is too high: {titled(main.name)} {growth.words}"
        severity: Severity = "error" if growth.lasts else "warning"
        if not growth.lasts:
            text += ", and never fell below its first values"
        text += _rate_words(losses.store, growth.first_step)
        sizes = growth.peak, growth.low
        return [of_training(HIGH, taps, main, sizes, growth.first_step, text, severity=severity)]
    if diverged:
        lasting = (head for head in losses.store.incident_heads() if head.rule == HIGH and not head.is_over)
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
    before = logs[max(0, peak - _LOGS_BEFORE_PEAK) : peak]
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
    before = np.flatnonzero(series.last_step <= step - _LOGS_BEFORE_PEAK)
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
    now = f"{Losses.first_of(main):.3g} at first, {newest:.3g} now"
    flat = f"{titled(main.name)} hasn't fallen since step {first:,} ({now})"
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
