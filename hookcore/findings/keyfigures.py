"""The key figures of a run, and its course in one word: learning, plateau, flat, diverging, broken, or unknown."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import Finding, RuleName
from hookcore.findings.losses import HIGH, Losses, by_steps, main_losses, never_fell, not_fallen
from hookcore.findings.times import rates_of, recent
from hookcore.records import Kind, Tap
from hookcore.records.vocabulary import OWN, RAW_NORM, counted, loss_rank, losses_among, titled
from hookcore.store import Latest, Series, Store, of_all_values

# The key figures of a run.

MAX_SCALARS: Final = 50
_NEAR_STEPS: Final = 200  # newest steps, among which the newest value of a scalar usually is
NORM_KINDS: Final[tuple[Kind, ...]] = ("param_grad", "output_grad")  # the norm is of the first that is captured


@dataclass(frozen=True, slots=True)
class Reading:
    """A value and its source (a scalar or a tap). If its step is merged with earlier ones, it is a mean."""

    name: str
    value: float
    step: int
    number: int | None = None
    tap: Tap | None = None
    first_step: int = -1  # the first of the steps of which it is the mean

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean of several steps."""
        return 0 <= self.first_step < self.step


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """The key figures of a run, or of some of its steps; None for unknown ones."""

    first_step: int | None
    newest_step: int | None
    steps: int
    steps_per_s: float | None
    loss: Reading | None
    scalars: tuple[Reading, ...]  # the user's, including the loss
    gradient_kind: Kind | None  # the kind of the gradients below: of parameters, else of outputs
    gradient_norm: Reading | None  # as the optimizer used them
    smallest_gradient: Reading | None  # by root mean square, so that a large layer doesn't count as a large gradient
    largest_gradient: Reading | None
    nonfinite_modules: tuple[str, ...]  # in the newest captured values of each
    modules_captured: int
    modules: int
    taps: int
    loss_name: str = ""  # of the scalar that is, or would be, the loss
    merged: tuple[int, int] | None = None  # the gradients' steps, if they are merged: then their norm is unknown
    seen: int = 0  # taps with values
    losses: tuple[Reading, ...] = ()  # the loss, and those of further optimizers
    raw_norm: Reading | None = None  # of the same gradients before clipping, if something changes them


def key_figures_of(
    store: Store, first: int | None = None, last: int | None = None, *, is_live: bool = True
) -> KeyFigures:
    """Return the key figures of a run: the newest ones, or the newest in these steps.

    The rate is that of these steps; without any, of the newest ones if the run is live, else of all.
    """
    steps, coverage = store.steps(), store.coverage()
    names = _names_of(store)
    losses = losses_among(names)
    read = (newest_of(store, name, last, first) for name in names[:MAX_SCALARS])
    scalars = tuple(reading for reading in read if reading is not None)
    latest = store.latest(first=first, last=last, merged=True)
    kind, norm, smallest, largest = _gradients(latest)
    seen = {tap.module for tap in latest.taps}
    is_whole = (first, last) == (None, None)
    captured = len(seen) if not is_whole else sum(each.captured for each in coverage)
    return KeyFigures(
        first_step=steps.first,
        newest_step=steps.newest,
        steps=steps.count,
        steps_per_s=rates_of(store, recent(store) if is_whole and is_live else first, last).steps,
        loss=next((scalar for scalar in scalars if scalar.name == names[0]), None),
        scalars=scalars,
        gradient_kind=kind,
        gradient_norm=norm,
        smallest_gradient=smallest,
        largest_gradient=largest,
        nonfinite_modules=_nonfinite_modules(latest, store.masks()),
        modules_captured=captured if coverage else len(seen),
        modules=len(coverage) or len(seen),
        taps=store.taps_announced,
        loss_name=next(iter(names), ""),
        merged=_merged_of(latest, kind),
        seen=len(latest.taps),
        losses=tuple(scalar for scalar in scalars if scalar.name in losses),
        raw_norm=newest_of(store, RAW_NORM, norm.step, norm.step) if norm is not None else None,
    )


def newest_of(store: Store, name: str, last: int | None = None, first: int | None = None) -> Reading | None:
    """Return the newest value of a scalar in these steps, or None."""
    newest = store.steps().newest if last is None else last
    if newest is None or name not in store.scalar_names():
        return None
    # It is usually among the newest steps; for a scalar that is rarely logged, search all of them.
    near = max(first or 0, newest - _NEAR_STEPS)
    for begin in (near, first):
        row = store.scalars(name, begin, last, _NEAR_STEPS + 1)
        if len(row.mean):
            end = int(row.last_step[-1])
            if begin != near:  # the points of many steps are down-sampled
                row = store.scalars(name, end, last, 1)
            value = float("nan") if row.nonfinite[-1] else float(row.mean[-1])
            return Reading(name, value, end, first_step=int(row.first_step[-1]))
    return None


def _names_of(store: Store) -> list[str]:
    """Return the names of the user's scalars; the loss is never among those that are left out."""
    return sorted((name for name in store.scalar_names() if not name.startswith(OWN)), key=loss_rank)


def _gradients(latest: Latest) -> tuple[Kind | None, Reading | None, Reading | None, Reading | None]:
    """Return the norm over all gradients of the newest step that has any, the smallest, and the largest."""
    column = {stat: place for place, stat in enumerate(latest.stats)}
    for kind in NORM_KINDS:
        places = _places_of(latest, kind)
        if not len(places):
            continue
        step = int(latest.steps[places].max())
        places = places[latest.steps[places] == step]
        if (latest.first_steps[places] != step).any():
            return kind, None, None, None  # the norm of means is not the mean of norms
        values = of_all_values(latest.values[places])
        bad = bool((values[:, column["nonfinite"]] > 0).any())
        norm = math.nan if bad else math.hypot(*values[:, column["norm"]].tolist())
        sizes = values[:, column["rms"]]
        ends = _ends(latest, places, sizes, step)
        return kind, Reading("gradient norm", norm, step), *ends
    return None, None, None, None


def _places_of(latest: Latest, kind: Kind | None) -> NDArray[np.intp]:
    return np.array([place for place, tap in enumerate(latest.taps) if tap.kind == kind], np.intp)


def _merged_of(latest: Latest, kind: Kind | None) -> tuple[int, int] | None:
    """Return the steps of the newest gradients if they are merged."""
    places = _places_of(latest, kind)
    if not len(places):
        return None
    newest = places[latest.steps[places].argmax()]
    first, last = int(latest.first_steps[newest]), int(latest.steps[newest])
    return (first, last) if first != last else None


def _ends(
    latest: Latest, places: NDArray[np.intp], sizes: NDArray[np.float64], step: int
) -> tuple[Reading | None, Reading | None]:
    """Return the smallest and the largest finite value."""
    known = np.flatnonzero(np.isfinite(sizes))
    if not len(known):
        return None, None

    def reading(at: np.intp) -> Reading:
        place = int(places[at])
        return Reading("rms", float(sizes[at]), step, int(latest.numbers[place]), latest.taps[place])

    return reading(known[sizes[known].argmin()]), reading(known[sizes[known].argmax()])


def _nonfinite_modules(latest: Latest, masks: Collection[int]) -> tuple[str, ...]:
    """Return the modules whose newest tensors had NaN, or infinities that aren't a mask's, in the order of capture."""
    nan, bad = (latest.values[:, latest.stats.index(name)] > 0 for name in ("nan", "nonfinite"))
    found = np.flatnonzero(nan | (bad & ~np.isin(latest.numbers, list(masks))))
    return tuple(dict.fromkeys(latest.taps[place].module for place in found.tolist()))


# The course of a training in one word and one sentence.

Word = Literal["learning", "plateau", "flat", "diverging", "broken", "unknown"]

MIN_LOGGED: Final = 16  # values of a loss that show its course
_NOW: Final = 8  # newest values, and first ones
_LEAST: Final = 0.02  # of the first losses: smaller changes say nothing
_ROSE: Final = 1.2  # times the first losses
_AGAIN: Final = 0.5  # of what it had fallen, by which a loss has risen again
_RISEN: Final = 16  # the newest of so many parts must have risen
_HIDDEN: Final = 0.1  # of the first losses: if noise hides such a change, it isn't known whether there is one
_MIN_STAYED: Final = 64  # values that show whether a loss has stopped falling
_MIN_SPANS: Final = 8  # parts of the steps that show it
_STAYED: Final = 0.01  # of a loss: smaller changes in the last half of the steps or longer are a plateau
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
    own = main_losses(losses.series)
    main = own or main_losses(losses.opposed)
    known = [_of(losses, each) for each in main]
    diverged = next((each for rule in _DIVERGED for each in found if each.rule == rule and _is_lasting(each)), None)
    worst = next((each for each in known if each.word == "broken"), None)
    if worst is not None and diverged is not None and diverged.rule == HIGH:
        return replace(worst, reason=f"{diverged.message}; {worst.reason}")
    if worst is not None:
        return worst
    broken = next((each for each in found if each.rule in _BROKEN and _is_lasting(each)), None)
    if broken is not None:
        what = "values are NaN or infinite" if broken.rule == "nonfinite" else "most layers get no gradient"
        return Course("broken", f"{what} since step {broken.since_step:,}", since_step=broken.since_step)
    if diverged is not None:
        numbers = diverged.usual, diverged.value, diverged.usual
        return Course("diverging", diverged.message, main[0].name if main else "", *numbers, diverged.since_step)
    if not own and losses.opposed:
        names = " and ".join(titled(each.name) for each in losses.opposed[:2])
        return Course("unknown", f"several optimizers have a loss of their own ({names}), which may oppose each other")
    if not known and store.steps().newest is None and not store.scalar_names():
        return Course("unknown", "no step has been captured")
    if not known:
        return Course("unknown", 'no loss was found; log one with a name that contains "loss"')
    if len({each.word for each in known}) > 1:
        names = " and ".join(titled(each.name) for each in main[:2])
        return Course("unknown", f"{names} go different ways, as those of opponents do")
    return known[0]


def _is_lasting(finding: Finding) -> bool:
    return finding.severity == "error" and finding.until_step is None


def _of(losses: Losses, series: Series) -> Course:
    name, since = series.name, losses.store.nonfinite_since(series.name)
    if since is not None:
        fine = series.mean[np.isfinite(series.mean)]
        newest = float(fine[-1]) if len(fine) else float("nan")
        return Course(
            "broken", f"{titled(name)} has been NaN or infinite since step {since:,}", name, newest, since_step=since
        )
    values = series.mean[np.isfinite(series.mean)]
    logged = int(series.present.sum())
    if logged < MIN_LOGGED or len(values) < MIN_LOGGED:
        return Course("unknown", f"{counted(logged, 'value')} of {titled(name)}, {MIN_LOGGED} needed", name)
    if values.min() < 0 < values.max():
        return Course("unknown", f"{titled(name)} changes its sign, so its size doesn't show what is learned", name)
    course = _by_values(series, values, losses.store.first_scalar(name))
    if course.word in ("learning", "plateau") and (sizes := never_fell(losses.store, series)) is not None:
        return replace(course, word="flat", reason=f"{titled(name)} {not_fallen(series, sizes)}")
    if course.word == "diverging" and values.min() < 0:
        reason = f"{course.reason}, which may be normal for a loss below zero"
        return replace(course, word="unknown", reason=reason)
    return course


def _smoothing(last: float, newest: float) -> str:
    """Say what the newest size is, if it doesn't read like the last value, which is shown next to it."""
    return "" if f"{last:.3g}" == f"{newest:.3g}" else f" (the median of its last {_NOW} values)"


def _by_values(series: Series, values: Floats, logged_first: tuple[int, float] | None) -> Course:
    """Compare the first values, the newest, and the lowest ones. `logged_first`: the very first one, if it is known."""
    spans = by_steps(series, min(24, len(values) // _NOW))
    parts = [float(np.median(part)) for _, part in spans]
    first = float(values[0]) if logged_first is None or not math.isfinite(logged_first[1]) else logged_first[1]
    early, newest = float(np.median(values[:_NOW])), float(np.median(values[-_NOW:]))
    lowest, at = min(parts), int(np.argmin(parts))
    noise = _ERRORS * _DEVIATION * float(np.median(np.abs(np.diff(values))))
    least = max(noise * _MEDIAN * np.sqrt(2 / _NOW), _LEAST * abs(early))
    begun = spans[at][0]
    from_step, to_step = int(series.first_step[0]), int(series.last_step[-1])
    about = series.name, first, newest, lowest
    loss, steps = titled(series.name), counted(to_step - from_step + 1, "step") + _smoothing(float(values[-1]), newest)
    risen = min(newest, float(np.median(values[-max(_NOW, len(values) // _RISEN) :])))  # not for a moment only
    if risen - max(first, early) > max(least, (_ROSE - 1) * abs(early)):
        return Course("diverging", f"{loss} rose from {first:.3g} to {newest:.3g} in {steps}", *about, from_step)
    if first - lowest > least and risen - lowest > max(_AGAIN * (first - lowest), least):
        reason = (
            f"{loss} fell from {first:.3g} to {lowest:.3g} until about step {begun:,}, and rose to {newest:.3g}"
            f"{_smoothing(float(values[-1]), newest)}"
        )
        return Course("diverging", reason, *about, begun)
    if first - newest > noise or (early - newest > least and first - newest > _LEAST * abs(first)):
        if (stayed := _plateau(series, noise, first)) is not None:
            since, level = stayed
            fell = f"{loss} fell from {first:.3g} to about {level:.3g} by step {since:,}"
            return Course("plateau", f"{fell}, and that level has hardly changed since", *about, since)
        return Course("learning", f"{loss} fell from {first:.3g} to {newest:.3g} in {steps}", *about, from_step)
    # What the noise of few values hides, a quarter of all values may show.
    quarters = [part for _, part in by_steps(series, 4)]
    before, after = float(np.median(quarters[0])), float(np.median(quarters[-1]))
    error = noise * _MEDIAN * np.sqrt(1 / len(quarters[0]) + 1 / len(quarters[-1]))
    if before - first > noise + least:  # it rose at first, so that it must fall below its first value to have learned
        reason = f"{loss} was {first:.3g} at first, rose to about {max(parts):.3g}, and is {newest:.3g} after {steps}"
        return Course("unknown" if newest - first > noise + least else "flat", reason, *about, from_step)
    if before - after > max(error, _LEAST * abs(before)):
        reason = f"{loss} fell slowly, from about {before:.3g} to about {after:.3g} by step {to_step:,}"
        return Course("learning", reason, *about, from_step)
    if error > _HIDDEN * abs(before):
        reason = f"{loss} is too noisy to show whether it falls: {first:.3g} at first, {newest:.3g} after {steps}"
        return Course("unknown", reason, *about, from_step)
    return Course("flat", f"{loss} was {first:.3g} at first, and is {newest:.3g} after {steps}", *about, from_step)


def _plateau(series: Series, noise: float, first: float) -> tuple[int, float] | None:
    """Return since when a loss has stayed at a level, and the level, if it has for half of the steps or longer."""
    spans = by_steps(series, 24)
    middle, later = len(spans) // 2, len(spans) * 3 // 4
    if len(spans) < _MIN_SPANS or series.present.sum() < _MIN_STAYED:
        return None
    before, after = (np.concatenate([part for _, part in some]) for some in (spans[middle:later], spans[later:]))
    level, change = float(np.median(after)), float(abs(np.median(before) - np.median(after)))
    near, error = _STAYED * abs(level), noise * _MEDIAN * np.sqrt(1 / len(before) + 1 / len(after))
    if error > _HIDDEN * (first - level) or change > max(near, error):
        return None
    far = [abs(np.median(part) - level) > max(near, noise * _MEDIAN / np.sqrt(len(part))) for _, part in spans]
    begun = len(far) - far[::-1].index(True) if any(far) else 0
    return (spans[begun][0], level) if begun <= middle else None
