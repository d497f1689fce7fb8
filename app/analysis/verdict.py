"""The verdict on two runs: where they first differ, and how much was compared; and on many: the best one. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.reading.answers import Apart, ComparedLayer, ComparedScalar
from hookcore.records.vocabulary import KIND_WORDS, OWN, counted, titled
from hookcore.store import Series, Store
from hookcore.store.incidents import Rank, rank_of
from hookcore.store.rows import Rows

from .comparison import Compared, ComparisonQuery, Pairs, chunks, layers_of
from .numerals import shown

MAX_NAMED: Final = 5  # logged values of one sentence
_EVERY_POINT: Final = 1 << 40

Outcome = Literal["different", "no difference", "unknown"]


@dataclass(frozen=True, slots=True)
class Extent:
    """The number of compared steps, and of those that couldn't be compared."""

    compared: int  # captured by both runs
    captured: tuple[int, int]
    not_comparable: int  # the other steps from the first to the newest of either run


@dataclass(frozen=True, slots=True)
class Verdict:
    """A comparison of two runs: layers, logged values, how much was compared, and the conclusion."""

    pairs: Pairs
    layers: list[ComparedLayer]
    logged: list[ComparedScalar]
    extent: Extent
    tolerance: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """The outcome; "unknown" if no step of a layer was compared."""
        if self.parting is not None or any(each.parts_at is not None for each in self.logged):
            return "different"
        return "no difference" if self.extent.compared else "unknown"

    def order(self, sort: str) -> list[int]:
        """Return the places of the layers: the largest difference first ("share"), the earliest ("step"), or as is."""
        key = {"share": _share_key, "step": _parting_key}.get(sort)
        places = range(len(self.layers))
        return list(places) if key is None else sorted(places, key=lambda place: key(self.layers[place]))

    @property
    def parting(self) -> ComparedLayer | None:
        """The layer that differs first; among several in a step, the one that can have caused the others."""
        first = min(self.layers, key=_parting_key, default=None)
        return None if first is None or first.parts_at is None else first

    @property
    def logged_first(self) -> ComparedScalar | None:
        """The logged value that differs in the earliest step."""
        apart = [each for each in self.logged if each.parts_at is not None]
        return min(apart, key=lambda each: each.parts_at or 0, default=None)

    def say(self) -> list[str]:
        """Return the verdict in sentences, the most important one first."""
        about = self._tolerated(), self._layers(), self._rest(), *self._values(), self._nonfinite(), self._left_out()
        return [self._headline(), *filter(None, about)]

    def _headline(self) -> str:
        layer, logged = self.parting, self.logged_first
        if layer is not None and (logged is None or layer.parts_at <= logged.parts_at):  # type: ignore[operator]
            where = f"the {KIND_WORDS[layer.tap.kind]} of {layer.tap.name}"
            return f"The runs first differ {parting_words(layer)}, in {where}."
        if logged is not None:
            return f"The runs first differ {parting_words(logged)}, in the logged value {titled(logged.name)}."
        if self.outcome == "no difference":
            return f"No difference in the {counted(self.extent.compared, 'step')} that both runs captured."
        return "Nothing was compared: " + ("no step was captured by both runs." if self.pairs.taps else _NO_PAIR)

    def _tolerated(self) -> str:
        """Say what doesn't count as a difference."""
        if not self.tolerance or self.outcome == "unknown":
            return ""
        return f"Differences of up to {100 * self.tolerance:.3g}% of the larger value don't count."

    def _layers(self) -> str:
        """Describe the layers, unless the headline does."""
        if not self.pairs.taps or self.outcome != "different":
            return ""
        steps = f"the {counted(self.extent.compared, 'step')} that both runs captured"
        differing = sum(layer.parts_at is not None for layer in self.layers)
        if differing:
            verb = "differs" if differing == 1 else "differ"
            return f"{differing:,} of {counted(len(self.layers), 'layer')} {verb} in {steps}.{self._ties()}"
        if self.extent.compared:
            return f"The layers do not differ in {steps}."
        return "No layer was compared: no step was captured by both runs."

    def _ties(self) -> str:
        """Describe the layers that start to differ in the same merged steps."""
        first = self.parting
        if first is None or first.parts_at == first.parts_by:
            return ""
        tied = sum(layer.parts_at == first.parts_at for layer in self.layers)
        if tied == 1:
            return ""
        return f" {tied:,} of them start to differ in the same merged steps: it is unknown which of these was first."

    def _rest(self) -> str:
        many = self.extent.not_comparable
        if not many or not self.pairs.taps:
            return ""
        one, two = self.extent.captured
        both = self.extent.compared
        why = f"run A captured {counted(one, 'step')}, run B captured {two:,}, and both captured {both:,}"
        return f"{counted(many, 'step')} could not be compared: {why}."

    def _values(self) -> list[str]:
        compared = [each for each in self.logged if each.points]
        apart = sorted((each for each in compared if each.parts_at is not None), key=lambda each: each.parts_at or 0)
        equal = [each for each in compared if each.parts_at is None]
        said = [f"{titled(each.name)} {_differs(each)}." for each in apart[:MAX_NAMED]]
        if len(apart) > MAX_NAMED:
            more = len(apart) - MAX_NAMED
            said.append(f"{counted(more, 'more logged value')} {'differs' if more == 1 else 'differ'}.")
        if equal:
            steps = min(each.steps for each in equal)
            least = "" if len({each.steps for each in equal}) == 1 else "at least "
            verb = "is" if len(equal) == 1 else "are"
            said.append(f"{_names(equal)} {verb} the same in {least}{counted(steps, 'step')} that both runs logged.")
        return said or ["Neither loss nor any other logged value was compared: the runs share none."]

    def _nonfinite(self) -> str:
        bad: list[Apart] = [layer for layer in self.layers if layer.nonfinite]
        bad_logged = [each for each in self.logged if each.nonfinite]
        if not bad and not bad_logged:
            return ""
        first = min((each.nonfinite_at or 0, each.nonfinite_by or 0) for each in (*bad, *bad_logged))
        what = [counted(len(bad), "layer")] * bool(bad) + [_names(bad_logged)] * bool(bad_logged)
        verb = "is" if len(bad) + len(bad_logged) == 1 else "are"
        return f"{' and '.join(what)} {verb} NaN or infinite in both runs, first {_when(*first)}."

    def _left_out(self) -> str:
        without = sum(not layer.points for layer in self.layers)
        if not without or not self.extent.compared:
            return ""
        return f"{counted(without, 'layer')} {'was' if without == 1 else 'were'} not compared: no step in common."


_NO_PAIR: Final = "no layer was captured in both runs."


def parting_words(apart: Apart) -> str:
    """Return when two runs start to differ, as precisely as possible."""
    return _when(apart.parts_at, apart.parts_by)


def _differs(apart: Apart) -> str:
    merged = apart.parts_at != apart.parts_by
    return f"first differs {parting_words(apart)}" if merged else f"differs from step {apart.parts_at:,} on"


def _when(first: int | None, last: int | None) -> str:
    return f"at step {first:,}" if first == last else f"between steps {first:,} and {last:,}"


def _names(values: Sequence[ComparedScalar]) -> str:
    names = [titled(each.name) for each in values]
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _parting_key(layer: ComparedLayer) -> tuple[bool, int, bool, Rank]:
    """Sort the earliest difference first, then what can have caused the others; layers without one come last."""
    tap, step = layer.tap.record, layer.parts_at or 0
    # A weight is read just before the optimizer changes it: it is what the model computed with.
    return layer.parts_at is None, step, tap.kind != "param", rank_of(step, layer.numbers[0], tap, frozenset())


def _share_key(layer: ComparedLayer) -> tuple[bool, float, bool, int, bool, Rank]:
    """Sort the largest difference first; layers that were not compared come last."""
    return not layer.points, -layer.share if layer.points else 0.0, *_parting_key(layer)


def compare_runs(one: Store, two: Store, asked: ComparisonQuery) -> Verdict:
    """Compare the layers that fit and all logged values of two runs."""
    pairs = Pairs.of(one, two, asked)
    layers: list[ComparedLayer] = []
    compared, captured = _Steps(), (_Steps(), _Steps())
    for some, rows, chunk in chunks(one, two, pairs, asked, list(range(len(pairs.taps)))):
        layers += layers_of(some, chunk, pairs, asked, 0)
        compared.add(chunk.first_step, chunk.steps)
        for side in (0, 1):
            captured[side].add(rows[side].first, rows[side].present)
    both, either = compared.count(), (captured[0].count(), captured[1].count())
    extent = Extent(both, either, max(0, _span(one, two, asked) - both))
    return Verdict(pairs, layers, _compare_logged(one, two, asked), extent, asked.tolerance)


@dataclass(slots=True)
class _Steps:
    """The steps of some spans, collected over all chunks of lanes."""

    firsts: list[NDArray[np.int64]] = field(default_factory=list)
    counts: list[NDArray[np.integer[Any]]] = field(default_factory=list)

    def add(self, first: NDArray[np.int64], steps: NDArray[np.integer[Any]]) -> None:
        """Add spans, and the number of steps in each that the lanes have [span, lane]."""
        if steps.size:
            self.firsts.append(first)
            self.counts.append(steps.max(axis=1))

    def count(self) -> int:
        """Return the number of steps that at least one lane has."""
        if not self.firsts:
            return 0
        first, counts = np.concatenate(self.firsts), np.concatenate(self.counts)
        order = np.argsort(first, kind="stable")
        starts = np.flatnonzero(np.diff(first[order], prepend=first[order][0] - 1))
        return int(np.maximum.reduceat(counts[order], starts).sum(dtype=np.int64))


def _span(one: Store, two: Store, asked: ComparisonQuery) -> int:
    """Return the number of steps from the first to the newest of either run."""
    ranges = [each for each in (one.steps(), two.steps()) if each.newest is not None]
    if not ranges:
        return 0
    first = max(min(steps.first or 0 for steps in ranges), asked.first or 0)
    last = max(steps.newest or 0 for steps in ranges)
    last = last if asked.last is None else min(last, asked.last)
    return max(0, last - first + 1)


def _compare_logged(one: Store, two: Store, asked: ComparisonQuery) -> list[ComparedScalar]:
    """Compare every value that both runs logged, except hookcore's own."""
    there = set(two.scalar_names())
    names = [name for name in one.scalar_names() if name in there and not name.startswith(OWN)]
    found = []
    for name in names:
        lanes = [_lane(store.scalars(name, asked.first, asked.last, _EVERY_POINT)) for store in (one, two)]
        found.append(ComparedScalar(**Compared.of(*lanes).apart(0, asked.tolerance), name=name))
    return found


def _lane(series: Series) -> Rows:
    """Return a logged value as rows of one lane."""
    mean, low, high = (each[:, None] for each in (series.mean, series.min, series.max))
    present, bad = series.present[:, None], series.nonfinite[:, None]
    return Rows(series.first_step, series.last_step, mean, low, high, present - bad, present, bad)


# The best of several runs, and which settings matter.

_MORE_IS_BETTER: Final = re.compile(r"acc|score|metric|f1|auc|bleu|reward|return|precision|recall", re.IGNORECASE)
_FAR: Final = 1000.0  # times the median, from which on a result counts as diverged
_GROUPS: Final = 3  # of a number with another value in almost each run
_SHUFFLES: Final = 500
MIN_RUNS: Final = 4  # fewer say nothing about settings


@dataclass(frozen=True, slots=True)
class Weight:
    """How much a setting matters: the share of the differences in rank between runs that its values explain.

    `by_chance` is how often shuffled results explain as much.
    """

    name: str
    share: float
    by_chance: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """The best of several runs by one result."""

    result: str
    lower: bool  # whether a lower result is better
    best: str  # the run; "" if none has a finite result
    value: float
    runs: int  # that have the result
    diverged: tuple[str, ...]
    weights: tuple[Weight, ...]  # the settings, those that matter most first
    sentence: str


def lower_is_better(result: str, better: str) -> bool:
    """Return whether a lower result is better: as chosen, or else by the result's name."""
    return better == "low" if better in ("low", "high") else not _MORE_IS_BETTER.search(result)


def sweep_of(
    result: str,
    reached: Mapping[str, float],
    settings: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    began: Mapping[str, int],
    better: str = "",
    crashed: Collection[str] = (),
) -> Sweep | None:
    """Return the verdict on runs by their result; None with fewer than two.

    `settings` are the values that differ, by run; `began` is the step at which a run became bad, as far as it is known.
    A run that crashed is best of none.
    """
    if len(reached) < 2:
        return None
    lower = lower_is_better(result, better)
    diverged = _diverged(reached, lower)
    kept = {run: value for run, value in reached.items() if run not in diverged}
    whole = [run for run in kept if run not in crashed]
    best = (min if lower else max)(whole, key=lambda run: kept[run]) if whole else ""
    order = [run for run in reached if run not in diverged]
    order.sort(key=lambda run: kept[run], reverse=not lower)
    worst = len(order) + (len(diverged) - 1) / 2  # they share the last ranks
    ranks = {run: float(place) for place, run in enumerate(order)} | dict.fromkeys(diverged, worst)
    weights = [_weight_of(name, values, ranks) for name, values in settings.items()]
    found = tuple(sorted((each for each in weights if each is not None), key=lambda each: -each.share))
    leading = found[0].name if found else next(iter(settings), "")
    words = _sentence(result, best, kept, leading, settings.get(leading, {}), names, diverged, began, len(reached))
    if ended := len(kept) - len(whole):
        words += f" {counted(ended, 'run')} crashed, and can't be the best."
    value = kept[best] if best else math.nan
    return Sweep(result, lower, best, value, len(reached), tuple(diverged), found, words)


def _diverged(reached: Mapping[str, float], lower: bool) -> list[str]:
    finite = sorted(value for value in reached.values() if math.isfinite(value))
    limit = finite[(len(finite) - 1) // 2] * _FAR if lower and finite and finite[0] > 0 else math.inf
    return [run for run, value in reached.items() if not math.isfinite(value) or value > limit]


def _weight_of(name: str, values: Mapping[str, Any], ranks: Mapping[str, float]) -> Weight | None:
    """Return how much of the spread of ranks the values of a setting explain; None if nothing can be said."""
    runs = [run for run in ranks if run in values]
    groups = _grouped([values[run] for run in runs])
    if len(runs) < MIN_RUNS or not 1 < len(set(groups)) < len(runs):
        return None
    of, place = np.array([ranks[run] for run in runs]), np.array(groups)
    share, dice = _explained(of, place), np.random.default_rng(0)
    chance = np.mean([_explained(dice.permutation(of), place) >= share - 1e-12 for _ in range(_SHUFFLES)])
    return Weight(name, share, float(chance))


def _grouped(values: Sequence[Any]) -> list[int]:
    """Return the group of each value: equal ones, or thirds of numbers that are nearly all different."""
    distinct = list(dict.fromkeys(map(repr, values)))
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if not is_number or len(distinct) * 2 <= len(values):
        return [distinct.index(repr(value)) for value in values]
    order = sorted(set(values))
    return [order.index(value) * _GROUPS // len(order) for value in values]


def _explained(ranks: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    def spread(some: NDArray[np.float64]) -> float:
        return float(((some - some.mean()) ** 2).sum())

    total = spread(ranks)
    inside = sum(spread(ranks[groups == each]) for each in np.unique(groups))
    return 1.0 - inside / total if total else 0.0


def _sentence(
    result: str,
    best: str,
    kept: Mapping[str, float],
    setting: str,
    values: Mapping[str, Any],
    names: Mapping[str, str],
    diverged: Sequence[str],
    began: Mapping[str, int],
    runs: int,
) -> str:
    if not best:
        return f"All {runs} runs diverged." if not kept else f"None of {runs} runs ended without a crash or divergence."
    who = f"{setting} {_word(values[best])}" if setting and best in values else names[best]
    first = f"{who} is best of {runs}, with {result.replace('_', ' ')} {shown(kept[best])}"
    if not diverged:
        return f"{first}."
    steps = [began[run] for run in diverged if run in began]
    by = f" by step {max(steps):,}" if steps else ""
    return f"{first}; {_who_diverged(values, diverged, kept)}{by}."


def _who_diverged(values: Mapping[str, Any], diverged: Sequence[str], kept: Mapping[str, float]) -> str:
    """Return the values of a setting from which on runs diverge, or how many runs did."""
    bad, good = (_numbers_of(values, runs) for runs in (diverged, list(kept)))
    if bad and good and min(bad) > max(good):
        return f"{_word(min(bad))} and above diverge" if len(bad) > 1 else f"{_word(bad[0])} diverges"
    if bad and good and max(bad) < min(good):
        return f"{_word(max(bad))} and below diverge" if len(bad) > 1 else f"{_word(bad[0])} diverges"
    return f"{counted(len(diverged), 'run')} diverged"


def _numbers_of(values: Mapping[str, Any], runs: Sequence[str]) -> list[float]:
    """Return the value of each run; none if one has no number."""
    found = [values.get(run) for run in runs]
    numbers = [value for value in found if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return numbers if len(numbers) == len(found) else []


def _word(value: Any) -> str:
    return shown(value) if isinstance(value, float) else str(value)
