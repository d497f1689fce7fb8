"""Whether a training went on where a saved one was: its first steps against what the earlier run says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hookcore.reading import answers
from hookcore.reading.answers.series import PartOutcome, ResumeOutcome
from hookcore.records import ROOT
from hookcore.records.moments import BUFFER, COUNTER, HASHED, WEIGHT, Moment, Noted
from hookcore.records.vocabulary import KIND_TITLES, counted, is_rate, loss_among
from hookcore.store import Store

from .numerals import shown

SHOWN: Final = 3  # names in a sentence
FIRST: Final = 4  # steps whose learning rates are compared
BEFORE: Final = 16  # steps before the saved one, whose losses are the usual ones
JUMP: Final = 6.0  # standard deviations of these
RATE: Final = 0.2  # by how much a learning rate may move in one step
STEP: Final = "step"  # the state of an optimizer that counts its updates
_TORCH: Final = "cpu"
_GENERATORS: Final = {_TORCH: "torch's", "cuda": "CUDA's", "python": "Python's", "numpy": "NumPy's"}
_SAME: Final = "same"
_DIFFERS: Final = "differs"
_UNKNOWN: Final = "unknown"

Key = tuple[int, str, str]  # of an optimizer, a tensor, and what it is
Tensors = Mapping[Key, Noted]


@dataclass(frozen=True, slots=True)
class Point:
    """What a run had at one time, of all its optimizers."""

    step: int
    moments: dict[int, Moment] = field(default_factory=dict)  # by optimizer

    def held(self, fits: Callable[[str], bool]) -> dict[Key, Noted]:
        """Return the tensors that are of some sort."""
        return {
            (number, *name): each
            for number, moment in self.moments.items()
            for name, each in moment.by_name.items()
            if fits(each.what)
        }

    @property
    def weights(self) -> Tensors:
        return self.held(lambda what: what == WEIGHT)

    @property
    def states(self) -> Tensors:
        return self.held(lambda what: what not in (WEIGHT, BUFFER, COUNTER))


def points_of(store: Store) -> tuple[Point | None, list[Point]]:
    """Return how a run began, and what it had whenever its state was saved, and at its end, oldest first."""
    begun: Point | None = None
    saved: dict[int, Point] = {}
    for step, moment in store.moments():
        if moment.when == "begun":
            begun = begun or Point(step)
            begun.moments.setdefault(moment.optimizer, moment)
        else:
            saved.setdefault(step, Point(step)).moments[moment.optimizer] = moment
    return begun, [saved[step] for step in sorted(saved)]


def alike(store: Store, earlier: Store) -> int:
    """Return how many tensors of a run's beginning are as the earlier run saved them, or had them at its end."""
    begun, (_, saved) = points_of(store)[0], points_of(earlier)
    if begun is None:
        return 0
    weights, states = begun.weights, begun.states
    return max((_equal(weights, each.weights) + _equal(states, each.states) for each in saved), default=0)


def check_resume(store: Store, earlier: Store) -> tuple[int | None, list[answers.ResumedPart]]:
    """Return the saved step from which a run went on, as far as it is known, and each part that a restart brings back.

    `store` is of the run that went on, and `earlier` of the one that was saved.
    """
    begun, (origin, saved) = points_of(store)[0], points_of(earlier)
    if begun is None:
        return None, [_part("weights", _UNKNOWN, "The run doesn't say how it began: no optimizer has stepped yet.")]
    checked = _Check(store, earlier, begun, origin, saved)
    return checked.step, checked.parts()


def verdict_of(parts: Sequence[answers.ResumedPart]) -> tuple[ResumeOutcome, str]:
    """Return whether a training went on where it was saved, and a sentence that says so."""
    broken = [each for each in parts if each.outcome == _DIFFERS]
    if broken:
        return "broken", f"{_listed([each.name for each in broken])} did not go on as saved."
    known = {each.name for each in parts if each.outcome == _SAME}
    if not {"weights", "optimizer"} <= known:
        return "unknown", "It isn't known whether the training went on as saved."
    unknown = [each.name for each in parts if each.outcome == _UNKNOWN]
    rest = f" Not known: {', '.join(unknown)}." if unknown else ""
    return "resumed", f"As far as it could be compared, the training went on as it was saved.{rest}"


def _listed(names: Sequence[str]) -> str:
    words = ", ".join(names)
    return f"{words[:1].upper()}{words[1:]}"


def _part(name: str, outcome: PartOutcome, message: str) -> answers.ResumedPart:
    return answers.ResumedPart(name, outcome, message)


def _equal(ours: Tensors, theirs: Tensors) -> int:
    return sum(key in theirs and _same(each, theirs[key]) for key, each in ours.items())


def _same(one: Noted, two: Noted) -> bool:
    return one.hash == two.hash and one.dtype == two.dtype and one.size == two.size


def _best(saved: Sequence[Point], tensors: Callable[[Point], Tensors], ours: Tensors) -> Point | None:
    """Return the newest of the saved points that have most of these tensors; None if none has any."""
    alike = [(_equal(ours, tensors(each)), each.step, each) for each in saved]
    most = max(alike, key=lambda each: each[:2], default=None)
    return None if most is None or not most[0] else most[2]


class _Check:
    """Compares the beginning of one run with another run."""

    def __init__(self, store: Store, earlier: Store, begun: Point, origin: Point | None, saved: list[Point]) -> None:
        if origin is not None and origin.states:  # it went on from a saved state itself, as this run may
            saved, origin = [origin, *saved], None
        self._store, self._earlier, self._begun, self._origin, self._saved = store, earlier, begun, origin, saved
        self._of_weights = _best(saved, lambda each: each.weights, begun.weights)
        self._of_states = _best(saved, lambda each: each.states, begun.states)
        newest = saved[-1] if saved else None
        self._point = self._of_states or self._of_weights or newest

    @property
    def step(self) -> int | None:
        return None if self._point is None else self._point.step

    def parts(self) -> list[answers.ResumedPart]:
        """Return all parts, beginning with the weights."""
        if self._point is None:
            return [self._without_saved()]
        found = [
            self._weights(self._point),
            self._buffers(self._of_weights or self._point),
            self._states(self._point),
            self._counter(self._point),
            self._rates(self._point),
            self._generators(self._point),
            self._scale(self._point),
            self._loss(self._point),
        ]
        return [each for each in found if each is not None]

    def _without_saved(self) -> answers.ResumedPart:
        ours = self._begun.weights
        if self._origin is not None and ours and _equal(ours, self._origin.weights) == len(ours):
            words = "All weights are those with which the earlier run began: no checkpoint was loaded."
            return _part("weights", _DIFFERS, words)
        words = (
            "The earlier run doesn't say what it saved or had at its end: it was killed, or no optimizer was stepped "
            "while it was watched."
        )
        return _part("weights", _UNKNOWN, words)

    def _limits(self, compared: Iterable[Key]) -> str:
        """Return what wasn't compared, as sentences."""
        begun = self._begun.held(lambda what: True)
        larger = sum(begun[key].size > HASHED for key in compared)
        without = sum(moment.left_out for moment in self._begun.moments.values())
        part = f" Of the {larger:,} with more values than {HASHED:,}, only the first ones are known." if larger else ""
        return part + (f" Not noted, so not compared: {counted(without, 'tensor')}." if without else "")

    def _weights(self, point: Point) -> answers.ResumedPart:
        ours, theirs = self._begun.weights, point.weights
        both = ours.keys() & theirs.keys()
        other = [key for key in ours if key in both and not _same(ours[key], theirs[key])]
        whole = counted(len(both), "weight")
        if not both:
            return _part("weights", _UNKNOWN, f"No weight has the name of one that was saved in step {point.step:,}.")
        if not other:
            words = f"{whole}: as saved after {counted(point.step, 'step')}.{self._limits(both)}"
            return _part("weights", _SAME, words)
        if self._origin is not None and len(other) == _equal({key: ours[key] for key in other}, self._origin.weights):
            much = "All weights" if len(other) == len(both) else f"{len(other):,} of {whole}"
            words = f"{much} are those with which the earlier run began, so they were not loaded: {_names(other)}."
            return _part("weights", _DIFFERS, words)
        source = self._of_weights
        if source is not None and source.step != point.step:
            words = (
                f"{_equal(ours, source.weights):,} of {whole} are those saved after {counted(source.step, 'step')}, "
                f"but the optimizer's state is that after {counted(point.step, 'step')}."
            )
            return _part("weights", _DIFFERS, words)
        sized = [key for key in other if ours[key].size != theirs[key].size]
        if len(sized) == len(other):
            words = f"{len(other):,} of {whole} have another size here, as after a change of ranks or of the model."
            return _part("weights", _UNKNOWN, words)
        cast = Counter((theirs[key].dtype, ours[key].dtype) for key in other if theirs[key].dtype != ours[key].dtype)
        types = "".join(f" {many:,} are {new} and were {old}." for (old, new), many in cast.most_common(1))
        if len(other) == len(both):
            known = counted(len(self._saved), "saved state")
            return _part("weights", _DIFFERS, f"All {whole} differ from those of the {known} that are known.{types}")
        words = (
            f"{len(other):,} of {whole} differ from those saved after {counted(point.step, 'step')}: {_names(other)}."
        )
        return _part("weights", _DIFFERS, words + types)

    def _buffers(self, point: Point) -> answers.ResumedPart | None:
        """Compare buffers: the step's forward pass has changed some before they are noted, and counted its batches."""
        ours, theirs = (each.held(lambda what: what in (BUFFER, COUNTER)) for each in (self._begun, point))
        both = [key for key in ours if key in theirs]
        if not both:
            return None
        lost = [key for key in both if key[2] == COUNTER and (ours[key].norm or 0.0) < (theirs[key].norm or 0.0)]
        if lost:
            now, then = shown(ours[lost[0]].norm or 0.0), shown(theirs[lost[0]].norm or 0.0)
            words = (
                f"{_names(lost)}: {now} batches are counted, and {then} were. What belongs to such counters was lost."
            )
            return _part("buffers", _DIFFERS, words)
        first = {} if self._origin is None else self._origin.held(lambda what: what == BUFFER)
        stale = [
            key for key in both if key in first and not _same(ours[key], theirs[key]) and _same(ours[key], first[key])
        ]
        if stale:
            words = f"Some are those with which the earlier run began: {_names(stale)}."
            return _part("buffers", _DIFFERS, words)
        counts = any(key[2] == COUNTER for key in both)
        if counts or all(_same(ours[key], theirs[key]) for key in both):
            return _part("buffers", _SAME, f"{counted(len(both), 'buffer')}, as far as the first batch leaves them.")
        words = "The first batch has changed them, so it isn't known what was loaded."
        return _part("buffers", _UNKNOWN, words)

    def _states(self, point: Point) -> answers.ResumedPart:
        ours, theirs = (_without(each.states, STEP) for each in (self._begun, point))
        kinds = ", ".join(sorted({moment.type for moment in point.moments.values()}))
        if not theirs:
            return _part("optimizer", _SAME, f"{kinds} kept nothing for its weights but counters.")
        missing = [key for key in theirs if key not in ours]
        if len(missing) == len(theirs):
            words = (
                f"The state of {kinds} is empty before the first step, and had {counted(len(theirs), 'tensor')} after "
                f"{counted(point.step, 'step')}: it was not loaded."
            )
            return _part("optimizer", _DIFFERS, words)
        other = [key for key in theirs if key in ours and not _same(ours[key], theirs[key])]
        if not other and not missing:
            words = f"{counted(len(theirs), 'tensor')} of {kinds}: as saved after {counted(point.step, 'step')}."
            return _part("optimizer", _SAME, words + self._limits(theirs))
        sentences = [
            f"{_title(what)} are zero in {many:,} of {sum(key[2] == what for key in theirs):,} tensors."
            for what, many in Counter(
                key[2] for key in other if ours[key].norm == 0.0 and theirs[key].norm != 0.0
            ).items()
        ]
        sentences += [f"{_title(what)} differ in {many:,} tensors." for what, many in self._apart(other, ours).items()]
        sentences += [f"{counted(len(missing), 'tensor')} missing: {_names(missing)}."] if missing else []
        return _part("optimizer", _DIFFERS, f"{kinds}: {' '.join(sentences)}")

    @staticmethod
    def _apart(keys: Iterable[Key], ours: Tensors) -> Counter[str]:
        return Counter(key[2] for key in keys if ours[key].norm != 0.0)

    def _counter(self, point: Point) -> answers.ResumedPart | None:
        ours, theirs = ({key: each for key, each in of.states.items() if key[2] == STEP} for of in (self._begun, point))
        both = [key for key in theirs if key in ours]
        if not both:
            return None
        other = [key for key in both if ours[key].norm != theirs[key].norm]
        name = "step counter"
        if not other:
            return _part(name, _SAME, f"The optimizer counts from step {shown(theirs[both[0]].norm or 0.0)} on.")
        now, then = shown(ours[other[0]].norm or 0.0), shown(theirs[other[0]].norm or 0.0)
        words = f"The optimizer's step counter is {now} for {len(other):,} of {len(both):,} weights, and was {then}."
        return _part(name, _DIFFERS, words)

    def _rates(self, point: Point) -> answers.ResumedPart:
        name = "learning rate"
        ours, theirs = _rates_of(self._begun), _rates_of(point)
        origin = _rates_of(self._origin) if self._origin is not None else {}
        known = [
            (now, then, origin.get(key))
            for key, then in theirs.items()
            if then is not None and (now := ours.get(key)) is not None
        ]
        if not known:
            return _part(name, _UNKNOWN, "It isn't known: its value is on a device, or the optimizer has other groups.")
        for now, then, first in known:
            if _near(now, then):
                continue
            words = f"It is {shown(now)} in the first step, and was {shown(then)} when the state was saved."
            again = " The schedule began again: the earlier run began with the same."
            return _part(name, _DIFFERS, words + (again if first is not None and _close(now, first) else ""))
        return self._schedule(point) or _part(name, _SAME, f"It goes on from {shown(known[0][0])}.")

    def _schedule(self, point: Point) -> answers.ResumedPart | None:
        """Return whether the learning rates of the following steps are those of the earlier run's first steps."""
        names = set(self._earlier.scalar_names())
        origin = [] if self._origin is None else [rate for rate in _rates_of(self._origin).values() if rate is not None]
        for name in (each for each in self._store.scalar_names() if is_rate(each) and each in names):
            ours = _first_values(self._store, name, self._begun.step + 1, FIRST)
            first = _first_values(self._earlier, name, 1, FIRST)
            follows = _first_values(self._earlier, name, max(0, point.step - 1), FIRST + 2)
            usual = [rate for rate in (*follows.values(), *_rates_of(point).values()) if rate is not None]
            for step, rate in ours.items():
                then = first.get(step - self._begun.step)
                again = any(_near(rate, each) for each in origin) if then is None else _close(rate, then)
                if again and not any(_near(rate, each) for each in usual):
                    words = (
                        f"{name} is {shown(rate)} in step {step:,}, as in the first steps of the earlier run, and was "
                        f"{shown(usual[-1])} when the state was saved. The schedule began again."
                    )
                    return _part("learning rate", _DIFFERS, words)
        return None

    def _generators(self, point: Point) -> answers.ResumedPart:
        name = "random generators"
        if self._origin is None:
            return _part(name, _UNKNOWN, "It isn't known how they were when the earlier run began.")
        ours, theirs, first = (
            next(iter(each.moments.values())).generators for each in (self._begun, point, self._origin)
        )
        used = [each for each in theirs if each in first and each in ours and theirs[each] != first[each]]
        again = [each for each in used if ours[each] == first[each]]
        if again:
            which = " and ".join(_GENERATORS.get(each, each) for each in again)
            words = (
                f"The state of {which} generator is the one before the first step of the earlier run: it was not "
                "restored, so random numbers, and an order of data that is drawn from them, repeat."
            )
            return _part(name, _DIFFERS, words)
        if not used:
            return _part(name, _SAME, "The earlier run drew nothing from them.")
        if all(ours[each] == theirs[each] for each in used):
            return _part(name, _SAME, "They are as they were saved.")
        words = (
            "They don't begin again. The first step has drawn from them, so it isn't known whether they were restored."
        )
        return _part(name, _UNKNOWN, words)

    def _scale(self, point: Point) -> answers.ResumedPart | None:
        name = "loss scale"
        pairs = [
            (self._begun.moments[number].scale, moment.scale, number)
            for number, moment in point.moments.items()
            if number in self._begun.moments and moment.scale is not None
        ]
        for now, then, number in pairs:
            if now is None:
                return _part(name, _UNKNOWN, "It isn't known in this run: no scaler, or its scale is on a device.")
            if now != then:
                first = None if self._origin is None else self._origin.moments.get(number)
                again = first is not None and first.scale == now
                words = f"It is {shown(now)}, and was {shown(then or 0.0)}: the scaler was not loaded."
                return _part(name, _DIFFERS, words + (" The earlier run began with the same." if again else ""))
        return _part(name, _SAME, f"It goes on from {shown(pairs[0][1] or 0.0)}.") if pairs else None

    def _loss(self, point: Point) -> answers.ResumedPart:
        name = loss_among(set(self._store.scalar_names()) & set(self._earlier.scalar_names()))
        if name is None:
            return _part("loss", _UNKNOWN, "The runs have no loss of the same name.")
        ours = _first_values(self._store, name, self._begun.step, FIRST)
        before = list(_first_values(self._earlier, name, max(0, point.step - BEFORE), BEFORE).values())
        after = _first_values(self._earlier, name, point.step, FIRST)
        usual = [each for each in before if math.isfinite(each)]
        if not ours or len(usual) < BEFORE // 2:
            return _part("loss", _UNKNOWN, "There are too few losses before the saved state or after the restart.")
        both = [(value, after.get(step - self._begun.step + point.step)) for step, value in ours.items()]
        if all(value == other for value, other in both):
            return _part(
                "loss",
                _SAME,
                f"The losses of the first {counted(len(both), 'step')} equal those of the earlier run exactly.",
            )
        first, mean, spread = next(iter(ours.values())), float(np.mean(usual)), float(np.std(usual))
        began = list(_first_values(self._earlier, name, 0, 1).values())
        nearer = bool(began) and first - mean > 0.3 * (began[0] - mean) > 0
        words = f"It is {shown(first)} in the first step, after {shown(mean)} in the steps before the saved one."
        if first - mean > JUMP * spread and nearer:
            return _part(
                "loss", _DIFFERS, f"{words} It jumps back towards {shown(began[0])}, where the earlier run began."
            )
        return _part("loss", _UNKNOWN, f"{words} It doesn't jump, which doesn't say that the data goes on.")


def _rates_of(point: Point) -> dict[tuple[int, int], float | None]:
    return {
        (number, group): rate for number, moment in point.moments.items() for group, rate in enumerate(moment.rates)
    }


def _first_values(store: Store, name: str, first: int, many: int) -> dict[int, float]:
    """Return the values of a scalar in some steps, as far as these aren't merged with others."""
    series = store.scalars(name, first, first + many - 1, many)
    rows = zip(series.first_step.tolist(), series.last_step.tolist(), series.mean.tolist(), strict=True)
    return {step: value for step, last, value in rows if step == last and not math.isnan(value)}


def _close(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=1e-6)


def _near(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=RATE)


def _without(tensors: Tensors, what: str) -> dict[Key, Noted]:
    return {key: each for key, each in tensors.items() if key[2] != what}


def _title(what: str) -> str:
    words = KIND_TITLES.get(what, f"`{what}`")
    return f"{words[0].upper()}{words[1:]}"


def _names(keys: Sequence[Key]) -> str:
    names = list(dict.fromkeys(key[1] or ROOT for key in keys))
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f", and {more:,} more" if more > 0 else "")
