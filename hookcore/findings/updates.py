"""What rounding swallows and float8 clips, states of optimizers, what moved first, parameters that nothing steps, and
the parts of micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, WARM_UP, Finding, RuleName, Since, after_last, listed
from hookcore.findings.rules import RULES, limits_of
from hookcore.records import PROBE, STATE_KINDS, Event, Kind, Severity, Tap
from hookcore.records.vocabulary import (
    ENDED,
    FLOAT8,
    FROZEN,
    GRAD_SCALE,
    KIND_WORDS,
    MICRO_COSINE,
    MICRO_NORM,
    NEVER_USED,
    STALLED,
    counted,
    is_bias,
)
from hookcore.store import RankStore, Store, TapList
from hookcore.store.rows import Rows

UNCHANGED: Final = "unchanged-tensor"
LOST: Final = "bf16-update-lost"

_AMONG: Final = 1023  # captured steps, in some of which states are measured
_SOME: Final = 0.1  # of the values, which must have gradients and be zero
_FEW: Final = 4  # captured steps that show that nothing is lost

Shares = NDArray[np.float64]  # [row, parameter]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The updates and the gradients of the same parameters."""

    updates: TapList
    gradients: TapList

    @classmethod
    def of(cls, taps: TapList) -> _Pairs:
        gradients = {(tap.module, tap.index): p for p, tap in enumerate(taps.taps) if tap.kind == "param_grad"}
        found = [
            (place, gradients[key])
            for place, tap in enumerate(taps.taps)
            # The gradient of a bias before a normalization is zero but for rounding.
            if tap.kind == "update" and (key := (tap.module, tap.index)) in gradients and not is_bias(tap.index)
        ]
        return cls(taps.at([each for each, _ in found]), taps.at([each for _, each in found]))

    def shares(self, store: Store, first: int | None, last: int | None) -> tuple[NDArray[np.int64], Shares]:
        """Return the steps, and the share of values that did not change although their gradient isn't zero, at least.

        NaN where a gradient is all zero, where only one of both was captured, and where a value was non-finite.
        """
        still, none = (
            store.rows(taps.numbers, "zero_fraction", first, last) for taps in (self.updates, self.gradients)
        )
        if len(still.first) != len(none.first):  # a frame arrived in between
            return still.first[:0], np.empty((0, len(self.updates.taps)))
        fed = 1 - none.high
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.where(fed > limits_of(store, LOST)["least_fed"], (still.low - none.high) / fed, np.nan)
        shares[(still.nonfinite > 0) | (none.nonfinite > 0)] = np.nan
        return still.first, shares

    def are_dense(self, store: Store, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the wanted parameters have dense gradients. A sparse one lists the rows that it changes."""
        places = np.flatnonzero(wanted).tolist()
        ends = (store.latest(stat="count", taps=taps.at(places)) for taps in (self.updates, self.gradients))
        updated, fed = (end.values[:, 0] for end in ends)
        dense = np.zeros(len(wanted), bool)
        dense[places] = fed >= updated
        return dense


def find_lost(store: Store, taps: TapList) -> list[Finding]:
    """Return one finding for the weights that never change, and one for those of which most values don't."""
    pairs, limits = taps.fact(_Pairs.of), limits_of(store, LOST)
    begin = store.captured_step(int(limits["among"]) - 1)
    if not len(pairs.updates.taps) or begin is None:
        return []
    newest = pairs.shares(store, store.captured_step(_FEW - 1), None)[1]
    if not ((newest >= limits["share"]).any(axis=0) & ~(newest < limits["share"]).any(axis=0)).any():
        return []  # most looks end here
    steps, shares = pairs.shares(store, begin, None)
    known = ~np.isnan(shares)
    lost = (~known | (shares >= limits["share"])).all(axis=0) & (known.sum(axis=0) >= limits["captured_steps"])
    lost &= pairs.are_dense(store, lost)
    if not lost.any():
        return []
    whole = (~known | (shares >= 1.0)).all(axis=0)
    start = store.steps().first or 0
    early = pairs.shares(store, start, start + WARM_UP - 1)[1]
    at_first = (np.isnan(early) | (early >= limits["share"])).all(axis=0)
    judged = known.sum(axis=0) >= limits["captured_steps"]
    rules: tuple[tuple[RuleName, NDArray[np.bool_]], ...] = (("unchanged-tensor", lost & whole), (LOST, lost & ~whole))
    found = []
    for rule, which in rules:
        places = np.flatnonzero(which & at_first)
        # If it came later, the learning rate fell. If no weight changes, it is zero, perhaps on purpose.
        severity: Severity = RULES[rule].severity
        if not len(places):
            places, severity = np.flatnonzero(which), "info"
        if rule == UNCHANGED and (which | ~judged).all():
            severity = "info"
        if len(places):
            since = start if (which & at_first).any() else int(steps[0])
            first = int(places[0])
            share = float(shares[known[:, first], first][-1])
            still = store.rows(pairs.updates.numbers[places[:1]], "zero_fraction", begin).low[:, 0]
            found.append(_swallowed(pairs.updates, rule, severity, places, share, still, since))
    return found


def _swallowed(
    updates: TapList,
    rule: RuleName,
    severity: Severity,
    places: NDArray[np.intp],
    share: float,
    still: NDArray[np.float64],
    since: int,
) -> Finding:
    place = int(places[0])
    zeros = still[np.isfinite(still)]
    which = f"{len(places):,} weights" if len(places) > 1 else "the weight"
    text = (
        Since(f"{which} did not change in any captured step", ", although the gradient is not zero")
        if rule == UNCHANGED
        else Since(
            f"rounding has swallowed {share:.0%} of the update",
            ": the values don't change, although they have gradients",
        )
    )
    more = len({updates.taps[each].module for each in places.tolist()}) - 1
    members = tuple((int(updates.numbers[each]), since) for each in places.tolist())
    about = "zero_fraction", float(zeros[-1]), float("nan"), since, None, text, tuple(zeros[-SPARK:].tolist()), more
    return Finding(rule, severity, int(updates.numbers[place]), updates.taps[place], *about, members=members)


_UNDERFLOW: Final = "gradient-underflow"
_SMALLEST: Final = 2.0**-24  # number of float16 that isn't zero


def find_underflow(store: Store, taps: TapList) -> list[Finding]:
    """Return a finding about gradients in float16 that are so near its smallest number that smaller values are zero."""
    flows, limits = store.flows(), limits_of(store, _UNDERFLOW)
    first = store.captured_step(int(limits["among"]) - 1)
    if first is None or not flows:
        return []
    halves = {
        (call.module, call.call, each.place)
        for call, size in zip(flows[-1].calls, flows[-1].sizes, strict=False)
        if call.phase == "train"
        for each in size.outputs
        if each.dtype == "float16"
    }
    every = taps.of_kind("output_grad") if halves else taps.at([])
    gradients = every.at([p for p, tap in enumerate(every.taps) if (tap.module, tap.call, tap.index) in halves])
    if not len(gradients.taps):
        return []
    sizes, zeros = (store.rows(gradients.numbers, stat, first) for stat in ("rms", "zero_fraction"))
    if sizes.mean.shape != zeros.mean.shape:  # a frame arrived in between
        return []
    scales = _scales_at(store, sizes.first)
    with np.errstate(invalid="ignore", divide="ignore"):
        times = sizes.mean / np.sqrt(1 - zeros.mean) * scales[:, None] / _SMALLEST
    known = np.isfinite(times)
    tiny = (times <= limits["factor"]) & (zeros.mean >= limits["share"])
    which = (tiny | ~known).all(axis=0) & (known.sum(axis=0) >= limits["captured_steps"])
    return _leading([_underflow(gradients, place, zeros, times, scales) for place in np.flatnonzero(which).tolist()])


def _scales_at(store: Store, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the loss scale at each of some steps; 1 without a scaler."""
    if GRAD_SCALE not in store.scalar_names():
        return np.ones(len(steps))
    known = store.scalar_rows(GRAD_SCALE)
    values = known.mean[:, 0]
    places = np.searchsorted(known.last, steps).clip(0, len(values) - 1)
    return np.asarray(np.nan_to_num(values[places], nan=1.0))


def _underflow(
    gradients: TapList, place: int, zeros: Rows, times: NDArray[np.float64], scales: NDArray[np.float64]
) -> Finding:
    rows = np.flatnonzero(np.isfinite(times[:, place]))
    shares, scale, since = zeros.mean[rows, place], float(scales[rows[-1]]), int(zeros.first[rows[0]])
    how = "without a loss scale" if scale == 1.0 else f"with a loss scale of {scale:,g}"
    rest = f"{times[rows[-1], place]:.2g} times the smallest number of float16"
    text = Since(
        f"{'more than 99%' if shares[-1] > 0.99 else f'{shares[-1]:.0%}'} of the gradient has been zero",
        f", and the rest is about {rest}, {how}: smaller values are lost",
    )
    about = "zero_fraction", float(shares[-1]), float("nan"), since, None, text, tuple(shares[-SPARK:].tolist()), 0
    number = int(gradients.numbers[place])
    severity = RULES[_UNDERFLOW].severity
    return Finding(_UNDERFLOW, severity, number, gradients.taps[place], *about, members=((number, since),))


_CLIPPED: Final = "float8-clipped"
_CAST_WORDS: Final = {"input": "the input", "weight": "the weight", "grad_output": "the gradient of the output"}


def _reaches_in(taps: TapList) -> list[int]:
    begin = f"{FLOAT8} reach "
    return [place for place, tap in enumerate(taps.taps) if tap.kind == PROBE and tap.index.startswith(begin)]


def find_float8(store: Store, taps: TapList) -> list[Finding]:
    """Return a finding about tensors whose largest values are beyond what float8 holds with their scale."""
    reaches = taps.at(taps.fact(_reaches_in))
    if not len(reaches.taps):
        return []
    rows = store.rows(reaches.numbers, "max", store.captured_step(_AMONG))
    numbers = {(tap.module, tap.index): number for number, tap in taps if tap.kind == PROBE}
    found = []
    for place, (number, tap) in enumerate(reaches):
        measured = np.flatnonzero((rows.present[:, place] > 0) & np.isfinite(rows.mean[:, place]))
        scale = numbers.get((tap.module, tap.index.replace(" reach ", " scale ")), -1)
        found += _clipped(store, tap, number, scale, rows.some(measured), place)
    return _leading(found)


def _clipped(store: Store, tap: Tap, number: int, scale: int, rows: Rows, place: int) -> list[Finding]:
    limits, values = limits_of(store, _CLIPPED), rows.mean[:, place]
    many = int(limits["measured"])
    is_bad = values >= limits["factor"]
    if len(values) < many or not is_bad[-many:].all():
        return []
    start = after_last(~is_bad)
    what = _CAST_WORDS.get(tap.index.rpartition(" ")[2], "a tensor")
    text = f"the largest value of {what} has been {values[-1]:.3g} times as large as float8 holds with its scale"
    ends = (
        [store.rows(np.array([scale]), stat, int(rows.first[-many])) for stat in ("min", "max")] if scale >= 0 else []
    )
    is_same = ends and all(len(set(each.mean[each.present[:, 0] > 0, 0].tolist())) == 1 for each in ends)
    why = ", and the scale hasn't changed" if is_same else ", although the scale changes"
    since, usual = int(rows.first[start]), float(np.median(values[:start])) if start else float("nan")
    about = "max", float(values[-1]), usual, since, None, Since(text, why), tuple(values[-SPARK:].tolist()), 0
    return [Finding(_CLIPPED, RULES[_CLIPPED].severity, number, tap, *about, members=((number, since),))]


_ZERO: Final = "state-stays-zero"
_MOMENTS: Final = "second-moments"


def find_states(store: Store, taps: TapList) -> list[Finding]:
    """Return findings about what optimizers keep for weights: zeros, or second moments that exploded."""
    places = [place for place, tap in enumerate(taps.taps) if tap.kind in STATE_KINDS]
    if not places:
        return []
    states = taps.at(places)
    gradients = {(tap.module, tap.index): number for number, tap in taps.of_kind("param_grad")}
    owners = [gradients.get((tap.module, tap.index.partition(".")[0]), -1) for tap in states.taps]
    found = []
    first = store.captured_step(_AMONG)
    zeros = store.rows(states.numbers, "zero_fraction", first)
    moments = taps.of_kind("exp_avg_sq")
    sizes, infinite = (store.rows(moments.numbers, stat, first) for stat in ("rms", "inf"))
    for place, (number, gradient) in enumerate(zip(states.numbers.tolist(), owners, strict=True)):
        measured = np.flatnonzero(zeros.present[:, place] > 0)
        if gradient >= 0 and len(measured):
            found += _zeros_of(store, states.taps[place], number, gradient, zeros, place, measured)
    for place, (number, tap) in enumerate(moments):
        found += _overflow_of(tap, number, infinite, place) or _explosion_of(store, tap, number, sizes, place)
    return _leading(found)


def _zeros_of(
    store: Store, tap: Tap, number: int, gradient: int, zeros: Rows, place: int, measured: NDArray[np.intp]
) -> list[Finding]:
    """Return a finding about values that are zero although the gradient of the weight isn't."""
    many = int(limits_of(store, _ZERO)["measured"])
    is_moment, limits = tap.kind == "exp_avg_sq", limits_of(store, _MOMENTS)
    newest = measured[-many:]
    shares = zeros.low[newest, place]
    if len(newest) < many or not (shares >= (limits["zero"] if is_moment else 1.0)).all():
        return []
    fed = store.rows(np.array([gradient]), "zero_fraction", int(zeros.first[newest[0]]), int(zeros.last[newest[-1]]))
    with_gradient = 1 - fed.high[fed.present[:, 0] > 0, 0]
    if not len(with_gradient) or float(with_gradient.min()) <= 1 - float(shares.min()) + _SOME:
        return []
    whole, since = bool((shares >= 1.0).all()), int(zeros.first[newest[0]])
    name = f"the {KIND_WORDS[tap.kind]}" if tap.kind != "state" else tap.index.partition(".")[2]
    what = "has been zero" if whole else f"has been zero in {shares.min():.0%} of its values"
    name += f" of {tap.index.partition('.')[0]}"
    text = f"{name} {what} in its newest {many} measurements, although the gradient isn't"
    about = "zero_fraction", float(shares[-1]), float("nan"), since, None, text, tuple(shares.tolist()), 0
    rule: RuleName = _MOMENTS if is_moment else _ZERO
    return [Finding(rule, RULES[rule].severity, number, tap, *about, members=((number, since),))]


def _overflow_of(tap: Tap, number: int, infinite: Rows, place: int) -> list[Finding]:
    """Return a finding about second moments that are infinite, so that their values no longer change."""
    measured = np.flatnonzero(infinite.present[:, place] > 0)
    if not len(measured) or not infinite.mean[measured[-1], place] > 0:
        return []
    since = int(infinite.first[measured[-1]])
    text = f"the second moment of {tap.index} was infinite at step {since}: squares of its gradients are too large"
    about = "inf", float(infinite.mean[measured[-1], place]), 0.0, since, None, text, (), 0
    return [Finding(_MOMENTS, RULES[_MOMENTS].severity, number, tap, *about, members=((number, since),))]


def _explosion_of(store: Store, tap: Tap, number: int, sizes: Rows, place: int) -> list[Finding]:
    """Return a finding about second moments that are far larger than before."""
    limits = limits_of(store, _MOMENTS)
    values = sizes.mean[sizes.present[:, place] > 0, place]
    steps = sizes.first[sizes.present[:, place] > 0]
    if len(values) < limits["measured"] + 1 or not np.isfinite(values).all():
        return []
    earlier = values[1:-1] if len(values) > limits["measured"] + 1 else values[:-1]  # the first one still grows
    usual = float(np.median(earlier))
    if not usual > 0 or values[-1] < limits["factor"] * usual:
        return []
    since = int(steps[np.flatnonzero(values > np.sqrt(usual * values[-1]))[0]])
    text = Since(f"the second moment of {tap.index} has been {values[-1] / usual:.0e} times as large as usual")
    about = "rms", float(values[-1]), usual, since, None, text, tuple(values[-SPARK:].tolist()), 0
    return [Finding(_MOMENTS, RULES[_MOMENTS].severity, number, tap, *about, members=((number, since),))]


def _leading(found: list[Finding]) -> list[Finding]:
    """Return one finding for each rule, which counts the modules of the others."""
    leading = []
    for rule in dict.fromkeys(each.rule for each in found):
        same = [each for each in found if each.rule == rule]
        first = min(same, key=lambda each: (each.since_step, each.number))
        members = tuple((each.number, each.since_step) for each in same)
        leading.append(replace(first, downstream=len({each.module for each in same}) - 1, members=members))
    return leading


_PRECURSOR: Final = "spike-precursor"
_LONG: Final = 64  # steps before those that may have moved first, which show what is usual


def find_precursors(store: Store, taps: TapList, spikes: Iterable[Finding]) -> list[Finding]:
    """Return, for each jump of the loss, the weight whose update was unusually large first."""
    watched = next((each for kind in _MOVES if len((each := taps.of_kind(kind)).taps)), None)
    if watched is None:
        return []
    jumps = [each for each in spikes if each.severity != "info"]
    found = (_precursor(store, watched, jump) for jump in jumps)
    return [each for each in found if each is not None]


_MOVES: Final[tuple[Kind, ...]] = ("update", "param_grad")


def _precursor(store: Store, watched: TapList, jump: Finding) -> Finding | None:
    """Return what moved first: of all that moved, those that moved about as far as the one that moved farthest."""
    limits = limits_of(store, _PRECURSOR)
    begin = jump.since_step - int(limits["before"])
    rows = store.rows(watched.numbers, "rms", max(0, begin - _LONG), jump.since_step - 1)
    exact = rows.first == rows.last
    steps, sizes = rows.first[exact], rows.mean[exact]
    place = max(int(np.searchsorted(steps, begin)), int(limits["least_steps"]))
    earlier, later = sizes[:place], sizes[place:]
    known = (~np.isnan(earlier)).sum(axis=0) >= limits["least_steps"]
    if not len(later) or not known.any():
        return None
    usual, largest = np.full((2, len(known)), np.nan)
    usual[known], largest[known] = np.nanmedian(earlier[:, known], axis=0), np.nanmax(earlier[:, known], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where((later > _BEYOND * largest) & (usual > 0), later / usual, 0.0)
    if times.max() <= limits["factor"]:
        return None
    row, first = np.argwhere(times > max(limits["factor"], float(np.sqrt(times.max()))))[0].tolist()
    first = int(times[row].argmax())
    sized = float(later[row, first]), float(usual[first])
    moved = {watched.taps[each].module for each in np.flatnonzero((times > limits["factor"]).any(axis=0)).tolist()}
    return _moved(watched, first, int(steps[place + row]), jump, sized, len(moved))


_BEYOND: Final = 1.5  # times the largest one before: steps of a noisy training differ, too


def _moved(watched: TapList, first: int, step: int, jump: Finding, sized: tuple[float, float], many: int) -> Finding:
    tap, ahead = watched.taps[first], jump.since_step - step
    loss, times = jump.message.partition(" jumped ")[0], sized[0] / sized[1]
    text = (
        f"the {KIND_WORDS[tap.kind]} of {tap.index} was {times:,.3g} times as large as usual at step {step}, "
        f"{counted(ahead, 'step')} before {loss} jumped"
    )
    about = "rms", *sized, step, step, text, (), many - 1
    return Finding(_PRECURSOR, RULES[_PRECURSOR].severity, int(watched.numbers[first]), tap, *about)


# What each micro-batch of a step adds to its gradient, as a probe measures it, of one rank or of all.

_DOMINANT: Final[RuleName] = "dominant-micro-batch"
_MEASURED: Final = 64  # newest measured steps
_COLUMNS: Final = 1024  # more than a store has
_MICRO: Final = 4096  # likewise
_FIRST: Final = 4  # measured steps, which show what is usual


@dataclass(frozen=True, slots=True)
class _Norms:
    """The micro-batches of one rank [micro-batch, step]: norms, NaN if there is none, and parts of the gradient."""

    of: RankStore
    steps: NDArray[np.int64]  # in the count of the run at hand
    norms: NDArray[np.float64]
    parts: NDArray[np.float64]

    @classmethod
    def read(cls, of: RankStore, tap: Tap) -> _Norms | None:
        """Read the measured steps that are known exactly; None if there are none."""
        name = tap.index.removesuffix(MICRO_NORM)
        known, taps = of.store.taps().taps, (tap, replace(tap, index=f"{name}{MICRO_COSINE}"))
        if any(each not in known for each in taps):
            return None
        sizes, cosines = (of.store.channels(each, columns=_COLUMNS, rows=_MICRO) for each in taps)
        exact = (sizes.first_step == sizes.last_step) & np.isin(sizes.first_step, cosines.first_step)
        exact &= ~np.isnan(sizes.values).any(axis=0)  # another rule says so
        same = np.isin(cosines.first_step, sizes.first_step[exact])
        if not exact.any() or len(sizes.values) != len(cosines.values):
            return None
        norms = np.where(sizes.values[:, exact] == 0, np.nan, sizes.values[:, exact])
        return cls(of, sizes.first_step[exact] + of.shift, norms, norms * cosines.values[:, same])

    def at(self, steps: NDArray[np.int64]) -> _Norms:
        """Return those of some steps."""
        which = np.isin(self.steps, steps)
        return replace(self, steps=steps, norms=self.norms[:, which], parts=self.parts[:, which])


def _norms_in(taps: TapList) -> list[int]:
    """Return the places of the norms of micro-batches."""
    return [p for p, tap in enumerate(taps.taps) if tap.kind == PROBE and tap.index.rpartition(" ")[2] == MICRO_NORM]


def find_dominant(store: Store, taps: TapList) -> list[Finding]:
    """Return a finding for a micro-batch that brought nearly all of a step's gradient."""
    found = []
    for place in taps.fact(_norms_in):
        ranks = store.ranks() if store.of_ranks else (RankStore(-1, store),)
        read = [each for rank in ranks if (each := _Norms.read(rank, taps.taps[place])) is not None]
        common = reduce(np.intersect1d, [each.steps for each in read]) if read else np.empty(0, np.int64)
        if len(common) >= _FIRST:
            every = [each.at(common) for each in read]
            found += _dominant(store, int(taps.numbers[place]), taps.taps[place], common, every)
    return found


def _dominant(store: Store, number: int, tap: Tap, steps: NDArray[np.int64], read: Sequence[_Norms]) -> list[Finding]:
    """Judge the micro-batches of these steps, of all ranks that were read."""
    limits = limits_of(store, _DOMINANT)
    norms, parts = np.concatenate([each.norms for each in read]), np.concatenate([each.parts for each in read])
    sizes = np.nan_to_num(norms, nan=-1.0)
    largest, every = sizes.argmax(axis=0), np.arange(len(steps))
    top, others = sizes[largest, every], norms.copy()
    others[largest, every] = np.nan
    usual = np.nanmedian(np.where(np.isnan(others).all(axis=0), np.inf, others), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = parts[largest, every] / np.nansum(parts, axis=0)
    newest = every[-_MEASURED:]
    bad = newest[((top >= limits["factor"] * usual) & (shares >= limits["share"]))[newest]]
    if not len(bad):
        return []
    first = _first_of(bad, largest, top, limits)
    if first is None:
        return []
    which = int(largest[first])
    size, other, step = float(top[first]), float(usual[first]), int(steps[first])
    text = f"{_micro_batch(read, which, first)} brought {shares[first]:.0%} of the gradient of step {step:,}: its norm "
    text += f"of {size:.3g} was {size / other:,.3g} times that of the usual other one"
    if (times := int((largest[bad] == which).sum())) > 1:
        text += f"; it did so in {times} of the newest {len(newest)} measured steps"
    text += _samples_of(read, which, first)
    about = "max", size, other, step, None, text, tuple(top[-SPARK:].tolist()), 0
    return [Finding(_DOMINANT, RULES[_DOMINANT].severity, number, tap, *about, placed=False)]


def _first_of(
    bad: NDArray[np.intp], largest: NDArray[np.intp], top: NDArray[np.float64], limits: Mapping[str, float]
) -> int | None:
    """Return where it began: with the micro-batch that is so in most steps since then, or with an unusual norm."""
    which = int(np.bincount(largest[bad]).argmax())
    same = bad[largest[bad] == which]
    if len(same) >= limits["often"] and 2 * len(same) >= len(top) - same[0]:
        return int(same[0])
    before = np.maximum.accumulate(top)
    unusual = (each for each in bad.tolist() if each >= _FIRST and top[each] >= limits["beyond"] * before[each - 1])
    return next(unusual, None)


def _whose(read: Sequence[_Norms], which: int) -> tuple[_Norms, int]:
    """Return a micro-batch's rank, and its number there."""
    for each in read:
        if which < len(each.norms):
            return each, which
        which -= len(each.norms)
    raise IndexError(which)


def _micro_batch(read: Sequence[_Norms], which: int, column: int) -> str:
    mine, number = _whose(read, which)
    of = f" of rank {mine.of.rank}" if mine.of.rank >= 0 else ""
    return f"micro-batch {number} of {int((~np.isnan(mine.norms[:, column])).sum())}{of}"


def _samples_of(read: Sequence[_Norms], which: int, column: int) -> str:
    """Name the samples of a micro-batch, if the ledger knows as many batches of its step as there were."""
    mine, number = _whose(read, which)
    found = mine.of.store.samples_of(int(mine.steps[column]) - mine.of.shift)
    many = int((~np.isnan(mine.norms[:, column])).sum())
    if found.why is not None or len(found.batches) != many or not (ids := found.batches[number].ids):
        return ""
    return f"; its samples: {listed(ids)}"


_RULES: Final[tuple[RuleName, ...]] = (
    "not-in-optimizer",
    "frozen-by-mistake",
    "duplicate-in-optimizers",
    NEVER_USED,
    STALLED,
)
_KINDS: Final = ("param_grad", "output")  # which tap stands for a module's parameters, if it has one


def find_ownership(store: Store, taps: TapList) -> list[Finding]:
    """Return a finding for each fact that the newest event about it states."""
    newest: dict[str, Event] = {}
    for each in store.events():
        newest[each.name] = each
    found = []
    for rule in _RULES:
        event, ended = newest.get(rule), newest.get(ENDED[rule])
        if event is not None and (ended is None or _time(ended) < _time(event)) and len(taps.taps):
            found.append(_unowned(store, taps, rule, event))
    return found


def _time(event: Event) -> tuple[int, float]:
    return event.step, event.time_s


def _since(store: Store, rule: RuleName, number: int, event: Event) -> int:
    """Return the first step of the problem, as far as the captured steps show it."""
    steps = store.steps()
    since = min(event.step, steps.newest or 0)
    if since <= RULES[rule].limits.get("first_report", -1):  # it was so from the start
        return steps.first or 0
    if rule != FROZEN:
        return since
    rows = store.rows(np.array([number]), "count", None, since)
    arrived = np.flatnonzero(rows.present[:, 0] > 0)
    later = rows.first[int(arrived[-1]) + 1 :] if len(arrived) else rows.first
    return int(later[0]) if len(later) else since


def _unowned(store: Store, taps: TapList, rule: RuleName, event: Event) -> Finding:
    of_module = [place for place, tap in enumerate(taps.taps) if tap.module == event.module] or [0]
    place = min(of_module, key=lambda each: taps.taps[each].kind not in _KINDS)
    number, tap = int(taps.numbers[place]), taps.taps[place]
    since = _since(store, rule, number, event)
    unknown = float("nan")
    about = "rms", unknown, unknown, since, None, event.message, (), 0
    severity: Severity = "warning" if event.about.get("alike") else RULES[rule].severity
    return Finding(rule, severity, number, tap, *about)
