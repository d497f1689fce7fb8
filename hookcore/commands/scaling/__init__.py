"""`hookcore coordcheck` and `hookcore lr-sweep`: what goes with the size of a model: layers, and rates."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from hookcore.commands.scaling.trainings import (
    FACTOR,
    NO_SIZE,
    OF_WATCHER,
    Axis,
    Made,
    RatesOf,
    Trained,
    Tried,
    page_of,
    train,
    try_rate,
    watched,
)
from hookcore.errors import ArgumentError
from hookcore.records import ROOT
from hookcore.records.vocabulary import COORDCHECK, EXPONENTS
from hookcore.watcher.media import Squares

# Exponents, and what they say.

TOLERANCE: Final = 0.25  # halfway to the exponent of the mildest fault
MIN_SIZES: Final = 3
T95: Final = (12.71, 4.30, 3.18, 2.78, 2.57)  # of Student, for 1 to 5 degrees of freedom
LEAST_CHANGE: Final = 1e-6  # of an output: smaller changes are rounding
Verdict = Literal["flat", "grows", "shrinks", "unknown"]


@dataclass(frozen=True, slots=True)
class Fit:
    """The exponent of a size, with half of its 95 % interval."""

    exponent: float
    error: float
    points: int

    @classmethod
    def of(cls, points: Sequence[tuple[int, int, float]]) -> Fit | None:
        """Fit log values (the last numbers) to sizes, with a level for each seed. None if there are too few."""
        given = np.array([(math.log(size), seed, value) for size, seed, value in points if math.isfinite(value)])
        if len(given) == 0 or len(set(given[:, 0].tolist())) < MIN_SIZES:
            return None
        seeds = given[:, 1] == np.unique(given[:, 1])[:, None]
        x, y = ((each - (seeds @ each / seeds.sum(1)) @ seeds) for each in given.T[[0, 2]])
        free = len(x) - 1 - len(seeds)
        if free < 1:  # trainings that diverged have no values
            return None
        slope = float(x @ y / (x @ x))
        spread = math.sqrt(float(np.square(y - slope * x).sum()) / free / float(x @ x))
        t = T95[free - 1] if free <= len(T95) else 1.96 + 2.37 / free + 2.82 / free**2
        return cls(slope, t * spread, len(x))

    def verdict(self, least: float = 0.0, most: float = 0.0) -> Verdict:
        """Return whether the exponent is within this range."""
        low, high = self.exponent - self.error, self.exponent + self.error
        if low > most + TOLERANCE:
            return "grows"
        if high < least - TOLERANCE:
            return "shrinks"
        return "flat" if low > least - TOLERANCE and high < most + TOLERANCE else "unknown"

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ± {self.error:.2f}"


Quantity = Callable[[Trained, int], float]


def _log(value: float) -> float:
    return math.log(value) if 0 < value < math.inf else math.nan


SENTENCES: Final = {  # of what is judged, if its exponent is too large, and if it is too small
    ("change", "grows"): (
        "what training {part} changes in its output grows as {power}. With the learning rate that is best at {axis} "
        "{small}, training at {large} may diverge: divide the learning rate of {part} by {factor}"
    ),
    ("readout", "grows"): (
        "what training {part} changes in its output grows as {power}. With the learning rate that is best at {axis} "
        "{small}, training at {large} may diverge: multiply its output by 1/{axis}, or divide its rate by {factor}"
    ),
    ("change", "shrinks"): (
        "what training {part} changes in its output shrinks as {power}, so it hardly learns in large models: multiply "
        "the learning rate of {part} by {factor}"
    ),
    ("start", "grows"): (
        "before the first step, its output grows as {power}, compared with its input: divide the standard deviation of "
        "its weights at the start, or its output, by {factor}"
    ),
    ("start", "shrinks"): (
        "before the first step, its output shrinks as {power}, compared with its input, so the signal is lost in large "
        "models: multiply the standard deviation of its weights at the start by {factor}"
    ),
    ("gradient", "grows"): (
        "the gradient that it passes down is too large by {power}, and this optimizer's steps follow gradients: start "
        "its weights smaller by {factor}, or multiply its output by 1/{axis}"
    ),
    ("scores", "grows"): (
        "the scores of its attention can grow as {power} once queries and keys line up: scale them by 1/d, not by "
        "1/sqrt(d), where d is the size of a head"
    ),
    ("branch", "grows"): (
        "what it adds to the residual stream goes as {power} before the first step, and should be depth^-0.5 or less, "
        "because all blocks add up: multiply its output by 1/sqrt(depth)"
    ),
    ("branch change", "grows"): (
        "what training changes in what it adds to the residual stream goes as {power}, and should be 1/depth, because "
        "the changes of all blocks add up: multiply its output, and its learning rate (Adam), by 1/sqrt(depth)"
    ),
    ("size", "grows"): (
        "its output grows as {power} from step {step} on, although the weights of all layers train alike: look at what "
        "multiplies or adds its inputs"
    ),
}


UNKNOWN: Final = {
    **dict.fromkeys(("change", "readout"), "what training {part} changes in its output"),
    "start": "its output before the first step",
    "gradient": "the gradient that it passes down",
    "scores": "the largest score of its attention",
    "branch": "what it adds to the residual stream",
    "branch change": "what training changes in what it adds to the residual stream",
    "size": "its output",
}
MORE: Final = "Repair what isn't flat first, or use more seeds, or larger models"


@dataclass(frozen=True, slots=True)
class Judged:
    """One exponent of a layer, and whether it is as it should be."""

    what: str  # a key of SENTENCES
    layer: str
    parameter: str | None
    step: int
    fit: Fit | None
    verdict: Verdict


class Judge:
    """Fits what was measured in trainings of several sizes. `stronger`: the first one with a larger loss."""

    def __init__(self, axis: Axis, runs: Sequence[Trained], stronger: Trained) -> None:
        star = _starred([*runs, stronger])
        self._runs, self._stronger = [_merged(run, star) for run in runs], _merged(stronger, star)
        self._axis = axis
        self._steps = len(runs[0].losses)
        self._layers = list(
            dict.fromkeys(layer for run in self._runs for what, layer in run.values if what == "outputs")
        )
        self._small, self._large = (choose(self._runs, key=lambda run: run.size) for choose in (min, max))
        # Parameters whose training changes nothing, such as a bias of keys, which a softmax ignores.
        self.still = self._still()
        self.unseen = sorted({name for run in self._runs for name in run.unseen})

    def judge(self) -> list[Judged]:
        """Return all exponents that say something about a layer."""
        found = list[Judged]()
        for layer in self._layers:
            weights = [each for each in self._large.shapes if each.rpartition(" ")[0] == layer]
            found += filter(None, (self._change(layer, each) for each in weights))
            if any(self._large.shapes[each] > 1 for each in weights):
                found += filter(None, (self._gain(layer), self._gradient(layer)))
            found += filter(None, (self._branch(layer), self._branch_change(layer)))
        bad = {each.layer for each in found if each.verdict in ("grows", "shrinks")}
        found += filter(None, (self._scores(layer) for layer in self._layers if not _holds_any(layer, bad)))
        if not any(each.verdict in ("grows", "shrinks") for each in found):
            found += self._growing()
        return sorted(found, key=lambda each: self._layers.index(each.layer))

    def _still(self) -> list[str]:
        changes = {
            name: [self._value("change", name)(run, step) for run in self._runs for step in range(self._steps)]
            for name in self._large.shapes
        }
        return [name for name, found in changes.items() if not any(each > math.log(LEAST_CHANGE) for each in found)]

    def diverged(self) -> list[str]:
        """Return the trainings whose loss became non-finite."""
        return [
            f"{self._axis} {run.size}, seed {run.seed}" for run in self._runs if not all(map(math.isfinite, run.losses))
        ]

    def sizes(self) -> dict[str, list[Fit | None]]:
        """Return the exponent of each layer's output in each step."""
        return {
            layer: [self._fit(self._value("output", layer), step) for step in range(self._steps)]
            for layer in self._layers
        }

    # Parts of a quantity

    def _fit(self, quantity: Quantity, step: int) -> Fit | None:
        return Fit.of([(run.size, run.seed, quantity(run, step)) for run in self._runs])

    def _first(
        self, what: str, name: str, quantity: Quantity, least: float = 0.0, most: float = 0.0, known: bool = False
    ) -> Judged | None:
        """Judge the first step in which there is something to fit. `known`: unless that exists, it's unknown."""
        layer, _, parameter = name.partition(" ")
        for step in range(self._steps):
            fit = self._fit(quantity, step)
            if fit is not None:
                return Judged(what, layer, parameter or None, step, fit, fit.verdict(least, most))
        return Judged(what, layer, parameter or None, 0, None, "unknown") if known else None

    def _value(self, what: str, layer: str) -> Quantity:
        def value(run: Trained, step: int) -> float:
            values = run.values.get((what, layer), [])
            return _log(values[step]) if step < len(values) else math.nan

        return value

    def _count(self, what: str, layer: str, run: Trained) -> float:
        return run.values.get((what, layer), [0.0])[0]

    def _is_readout(self, layer: str) -> bool:
        """Return whether a layer gets more with the width, and returns as much as before."""
        (a, b), (c, d) = (
            [self._count(what, layer, run) for run in (self._small, self._large)] for what in ("inputs", "outputs")
        )
        return self._axis == "width" and b > a and c == d

    def _degree(self, name: str) -> float:
        """Return the power of the gradients' size with which a weight's changes go: about 1 for SGD, 0 for Adam."""
        base = next(run for run in self._runs if (run.size, run.seed) == (self._stronger.size, self._stronger.seed))
        for step in range(self._steps):
            weak, strong = (self._value("change", name)(run, step) for run in (base, self._stronger))
            if math.isfinite(weak) and math.isfinite(strong):
                return min(1.0, max(0.0, (strong - weak) / math.log(FACTOR)))
        return 0.0

    def _input(self, layer: str) -> Quantity:
        """Return the size of what a layer gets; for a readout, before a multiplier, which is a part of it."""
        before = self._before(layer) if self._is_readout(layer) else None
        size = self._value("input", layer) if before is None else self._value("output", before)
        return lambda run, step: size(run, step) if self._count("inputs", layer, run) else 0.0

    def _before(self, layer: str) -> str | None:
        """Return the last layer before this one that returns as many values as this one gets."""
        for each in reversed(self._layers[: self._layers.index(layer)]):
            if all(self._count("outputs", each, run) == self._count("inputs", layer, run) for run in self._runs):
                return each
        return None

    # What is judged

    def _change(self, layer: str, name: str) -> Judged | None:
        """Judge how a weight's change goes with the size, apart from what other layers have to do with it."""
        degree, readout, is_matrix = self._degree(name), self._is_readout(layer), self._large.shapes[name] > 1
        if name in self.still:
            return Judged("change", layer, name.rpartition(" ")[2], 0, None, "unknown") if is_matrix else None
        change, of_weight = self._value("change", name), self._value("param_grad", name.replace(" ", ".").lstrip("."))
        of_output, given, raw = self._value("output_grad", layer), self._input(layer), self._value("input", layer)

        def own(run: Trained, step: int) -> float:
            value = change(run, step) - ((1 + degree * readout) * given(run, step) if is_matrix else 0.0)
            if readout:  # multipliers before it and after it are a part of it
                value += of_output(run, step)
            if degree < 0.05:
                return value
            size = raw(run, step) if is_matrix else 0.0
            expected = size + of_output(run, step) if readout else -_log(self._count("outputs", layer, run))
            return value - degree * (of_weight(run, step) - expected)

        # Changes of weights don't line up with what a layer gets, if that has fewer values than the batch has samples.
        aligned = is_matrix and self._count("inputs", layer, self._large) > self._count("inputs", layer, self._small)
        least = -math.inf if "*" in layer else -0.5 if aligned else 0.0
        return self._first("readout" if readout else "change", name, own, least, known=True)

    def _gain(self, layer: str) -> Judged | None:
        """Judge how much larger a layer's output is than its input before the first step."""
        size, given, gradient = self._value("output", layer), self._input(layer), self._value("output_grad", layer)
        readout = self._is_readout(layer)

        def gain(run: Trained, step: int) -> float:
            return size(run, 0) - given(run, 0) + (gradient(run, 0) if readout else 0.0)

        fit = self._fit(gain, 0)
        least = -math.inf if readout or "*" in layer else 0.0
        return None if fit is None else Judged("start", layer, None, 0, fit, fit.verdict(least))

    def _gradient(self, layer: str) -> Judged | None:
        """Judge the gradient that a readout passes down, if steps follow the size of gradients."""
        others = [each for each in self._large.shapes if each.rpartition(" ")[0] != layer]
        if not self._is_readout(layer) or not any(self._degree(each) > 0.5 for each in others):
            return None
        before = self._before(layer)
        if before is None:
            return None
        passed = self._value("output_grad", before)
        return self._first(
            "gradient", layer, lambda run, step: passed(run, step) + _log(self._count("inputs", layer, run)), -math.inf
        )

    def _scores(self, layer: str) -> Judged | None:
        return self._first("scores", layer, self._value("scores", layer), -math.inf)

    def _branch(self, layer: str) -> Judged | None:
        fit = self._fit(self._value("branch", layer), 0) if "*" in layer else None
        return None if fit is None else Judged("branch", layer, None, 0, fit, fit.verdict(-math.inf, -0.5))

    def _branch_change(self, layer: str) -> Judged | None:
        if "*" not in layer:
            return None
        return self._first("branch change", layer, self._value("branch change", layer), -math.inf, -1.0)

    def _growing(self) -> list[Judged]:
        """Return the first layer whose output grows in any step, although nothing else is wrong."""
        unknown = list[Judged]()
        for layer, fits in self.sizes().items():
            for step, fit in enumerate(fits):
                verdict = "flat" if fit is None or self._is_readout(layer) else fit.verdict(-math.inf)
                if verdict == "grows":
                    return [Judged("size", layer, None, step, fit, verdict)]
                if verdict == "unknown":
                    unknown.append(Judged("size", layer, None, step, fit, verdict))
        return unknown[:1]


def _holds_any(layer: str, others: set[str]) -> bool:
    return any(each == layer or not layer or each.startswith(f"{layer}.") for each in others)


def _starred(runs: Sequence[Trained]) -> Callable[[str], str]:
    """Return what writes * for the number of a layer of which larger models have more."""
    most: dict[str, dict[int, int]] = {}
    for run in runs:
        for path in {layer for what, layer in run.values if what == "outputs"}:
            for found in re.finditer(r"(?<![^.])\d+(?![^.])", path):
                sizes = most.setdefault(path[: found.start()], {})
                sizes[run.size] = max(sizes.get(run.size, 0), int(found[0]))
    deep = sorted((prefix for prefix, sizes in most.items() if len(set(sizes.values())) > 1), key=len, reverse=True)

    def star(name: str) -> str:
        for prefix in deep:
            if name.startswith(prefix):
                name = prefix + re.sub(r"^\d+", "*", name.removeprefix(prefix))
        return name

    return star


def _merged(run: Trained, star: Callable[[str], str]) -> Trained:
    """Return a training in which the layers with the same name are one, with the root mean square of their values."""
    groups: dict[tuple[str, str], list[list[float]]] = {}
    for (what, layer), values in run.values.items():
        groups.setdefault((what, star(layer)), []).append(values)
    merged = {key: np.sqrt(np.square(np.array(many)).mean(0)).tolist() for key, many in groups.items()}
    shapes = {star(name): dims for name, dims in run.shapes.items()}
    return Trained(run.size, run.seed, merged, shapes, run.losses, [star(name) for name in run.unseen])


# `hookcore coordcheck`.

CODES: Final = {"flat": 0, "not flat": 1, "unknown": 3}
MAX_ROWS: Final = 60


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of several sizes found."""

    axis: Axis
    sizes: tuple[int, ...]
    seeds: int
    steps: int
    group: str
    place: str | None  # the page of the runs
    judged: tuple[Judged, ...]
    outputs: dict[str, list[Fit | None]]
    still: list[str]  # parameters whose training changes nothing
    unseen: list[str]  # parameters of layers that weren't called
    diverged: list[str]  # trainings whose loss became non-finite

    @property
    def verdict(self) -> str:
        """Whether all is flat, something isn't, or that isn't known."""
        verdicts = {each.verdict for each in self.judged}
        if verdicts & {"grows", "shrinks"} or self.diverged:
            return "not flat"
        return "flat" if verdicts == {"flat"} and not self.unseen else "unknown"

    def sentence(self, each: Judged) -> str:
        """Return what an exponent says about its layer."""
        name = f"`{each.layer or ROOT}`"
        if each.fit is None:
            return f"{name}: unknown whether what training its {each.parameter} changes goes with the {self.axis}"
        power, part = f"{self.axis}^{each.fit}", f"its {each.parameter}" if each.parameter else "it"
        if each.verdict == "unknown":
            which = UNKNOWN[each.what].format(part=part)
            return f"{name}: unknown: {which} goes as {power}, which can be right or wrong. {MORE}"
        what = "change" if each.verdict == "shrinks" and each.what == "readout" else each.what
        words = SENTENCES[what, each.verdict].format(
            part=part, power=power, axis=self.axis, step=each.step, small=self.sizes[0], large=self.sizes[-1],
            factor=self._factor(each.fit),
        )  # fmt: skip
        return f"{name}: {words}"

    def _factor(self, fit: Fit) -> str:
        power = max(0.5, round(abs(fit.exponent) * 2) / 2)
        return self.axis if power == 1 else f"{self.axis}^{power:g}"

    @property
    def as_dict(self) -> dict[str, Any]:
        """The same as JSON has it."""
        judged = [
            {**asdict(each), "sentence": self.sentence(each) if each.verdict != "flat" else ""} for each in self.judged
        ]
        outputs = {layer: [fit and asdict(fit) for fit in fits] for layer, fits in self.outputs.items()}
        return {**asdict(self), "verdict": self.verdict, "judged": judged, "outputs": outputs}

    @property
    def picture(self) -> Squares:
        """The exponents of outputs by layer and step, from -1 (blue) to 1 (red)."""
        shown = list(self.outputs.items())[:MAX_ROWS]
        values = np.array([[math.nan if fit is None else fit.exponent for fit in fits] for _, fits in shown])
        steps = [f"step {step}" for step in range(self.steps)]
        title = f"Exponents of outputs ({self.axis}^x)"
        return Squares(values, [layer or ROOT for layer, _ in shown], steps, title, (-1.0, 1.0))

    @property
    def text(self) -> str:
        """The same in sentences."""
        many, sizes = len(self.sizes) * self.seeds, ", ".join(map(str, self.sizes))
        verdict = {
            "flat": f"Flat: all layers start and train alike at every {self.axis}, so a learning rate should transfer.",
            "not flat": f"Not flat: a learning rate that is best at one {self.axis} is wrong at another one.",
            "unknown": "Unknown: nothing is clearly wrong, but not everything is clearly right, either.",
        }[self.verdict]
        lines = [f"{verdict} ({many} trainings of {self.steps} steps, {self.axis}s {sizes})", ""]
        for words in (("grows", "shrinks"), ("unknown",)):
            lines += [f"- {self.sentence(each)}" for each in self.judged if each.verdict in words]
        flat = sum(each.verdict == "flat" for each in self.judged)
        lines += [f"- {flat} of {len(self.judged)} exponents are as they should be"]
        lines += [f"- not judged, because training hardly changes them: {', '.join(self.still)}"] if self.still else []
        lines += [f"- unknown, because no layer with them is called: {', '.join(self.unseen)}"] if self.unseen else []
        lines += [f"- the loss became non-finite: {'; '.join(self.diverged)}"] if self.diverged else []
        lines.append("")
        lines += [f"Exponents of the size of outputs by step ({self.axis}^x; a readout may shrink):"]
        for layer, fits in list(self.outputs.items())[:MAX_ROWS]:
            lines.append(f"  {layer or ROOT:40} " + "  ".join(f"{fit or 'unknown'!s:>13}" for fit in fits))
        left = len(self.outputs) - MAX_ROWS
        lines += [f"  and {left} more, with --json"] if left > 0 else []
        return "\n".join([*lines, "", _where(self.group, self.place)])


def check(name: str, axis: Axis, sizes: Sequence[int], steps: int, seeds: Sequence[int], group: str) -> Checked:
    """Train a model in several sizes, and say which layers don't go with the size as they should."""
    if len(set(sizes)) < MIN_SIZES or min(sizes) < 1:
        raise ArgumentError(f"{len(set(sizes))} {axis}s are too few: give at least {MIN_SIZES}, such as 64,128,256")
    sizes, runs = sorted(set(sizes)), list[Trained]()
    stronger = train(Made.of(name, seeds[0], {axis: sizes[0]}), axis, sizes[0], seeds[0], steps, None, FACTOR)
    for seed, size in itertools.product(seeds, sizes):
        made, about = Made.of(name, seed, {axis: size}), {axis: size, "seed": seed}
        with watched(made.model, kinds=OF_WATCHER, **_about(group, COORDCHECK, about)) as watcher:
            runs.append(train(made, axis, size, seed, steps, watcher))
            if len(runs) < len(seeds) * len(sizes):
                continue
            judge = Judge(axis, runs, stronger)
            found = tuple(judge.judge()), judge.sizes(), judge.still, judge.unseen, judge.diverged()
            checked = Checked(axis, tuple(sizes), len(seeds), steps, group, page_of(watcher), *found)
            watcher.log_figure(EXPONENTS, checked.picture)
    return checked


def _about(group: str, tag: str, config: Mapping[str, float]) -> dict[str, Any]:
    """Return the settings of a run's watch: where it goes is given by variables."""
    name = " ".join([tag, *(f"{key} {value:g}" for key, value in config.items())])
    quiet = {"capsule": "never", "explain": "never", "notify": None, "bridge": None, "snapshot_every": None}
    return {"name": name, "group": group, "tags": (tag,), "config": dict(config), "every": 1, "budget": None, **quiet}


# `hookcore lr-sweep`.

HALVINGS: Final = 2  # of what is between the largest stable rate and the next one


@dataclass(frozen=True, slots=True)
class Swept:
    """Which learning rates are stable and best, and whether that depends on the size."""

    axis: Axis
    sizes: tuple[RatesOf, ...]
    steps: int
    group: str
    place: str | None

    @property
    def fit(self) -> Fit | None:
        """How the best rate goes with the size."""
        return Fit.of([(each.size, seed, _log(rate)) for each in self.sizes for seed, rate in each.best.items()])

    @property
    def verdict(self) -> str:
        """Whether the best rate is the same at all sizes, or known, if there is only one."""
        known = all(math.isfinite(rate) for each in self.sizes for rate in each.best.values())
        if len(self.sizes) == 1 or not known:
            return "flat" if known else "unknown"
        verdict = "unknown" if self.fit is None else self.fit.verdict()
        return verdict if verdict in ("flat", "unknown") else "not flat"

    @property
    def text(self) -> str:
        """The same in sentences."""
        lines = [f"- {each.sentence}" for each in self.sizes]
        if len(self.sizes) > 1:
            power = "" if self.fit is None else f": it goes as {self.axis}^{self.fit}"
            lines.insert(0, {
                "flat": f"The best learning rate transfers{power}.",
                "not flat": f"The best learning rate doesn't transfer{power}. `hookcore coordcheck` names the layers.",
                "unknown": f"It isn't known whether the best learning rate transfers{power}.",
            }[self.verdict])  # fmt: skip
        rates = ", ".join(f"{rate:.3g}" for rate in self.sizes[0].rates)
        more, seeds = "..." if len(self.sizes) > 1 else "", len(self.sizes[0].best)
        lines += [f"- tried, for {self.steps} steps and {seeds} seeds each: {rates}{more}", ""]
        return "\n".join([*lines, _where(self.group, self.place)])

    @property
    def as_dict(self) -> dict[str, Any]:
        """The same as JSON has it."""
        sizes = [
            {
                "size": None if each.size == NO_SIZE else each.size,
                "stable": each.stable[0],
                "unstable": each.stable[1],
                "best": [rate if math.isfinite(rate) else None for rate in each.best.values()],
                "sentence": each.sentence,
                "tried": [{"rate": of.rate, "seed": of.seed, "diverged": each.has_diverged(of)} for of in each.tried],
            }
            for each in self.sizes
        ]
        fit = None if self.fit is None else asdict(self.fit)
        told = {"verdict": self.verdict, "fit": fit, "axis": self.axis, "sizes": sizes}
        return {**told, "steps": self.steps, "group": self.group, "place": self.place}


def _where(group: str, place: str | None) -> str:
    return f"The runs are the group {group}" + (f": {place}" if place else "")


def sweep(
    name: str, rates: Sequence[float], axis: Axis, sizes: Sequence[int], steps: int, seeds: Sequence[int], group: str
) -> Swept:
    """Train with each learning rate, in each size; then with some between the last stable one and the next."""
    found, place = list[RatesOf](), None
    for size in sorted(set(sizes)) or [NO_SIZE]:
        tried = list[Tried]()
        given: dict[str, float] = {} if size == NO_SIZE else {axis: size}  # a size stays a whole number
        waiting = sorted(set(rates))
        for _ in range(HALVINGS + 1):
            for rate, seed in itertools.product(waiting, seeds):
                made, about = Made.of(name, seed, {**given, "lr": rate}), {**given, "lr": rate, "seed": seed}
                with watched(made.model, kinds="output", **_about(group, "lr-sweep", about)) as watcher:
                    tried.append(try_rate(made, rate, seed, steps))
                    place = page_of(watcher)
            stable, unstable = RatesOf(axis, size, tuple(tried)).stable
            if stable is None or unstable is None:
                break
            waiting = [math.sqrt(stable * unstable)]
        found.append(RatesOf(axis, size, tuple(tried)))
    return Swept(axis, tuple(found), steps, group, place)
