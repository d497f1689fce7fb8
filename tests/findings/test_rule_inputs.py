"""Inputs of the rules: columns extended step by step equal a full reading, and lead to the same incidents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hookcore.findings import Finding, findings_of, follow
from hookcore.records import Frame, Tap
from hookcore.store import Store, TapList
from tests import build
from tests.inside import class_of, module_of
from tests.lanes import examples

Columns, MagnitudeWindow = (class_of(name, "findings") for name in ("Columns", "MagnitudeWindow"))

TAPS = tuple(Tap(f"layers.{number}", kind) for number in range(3) for kind in ("output", "param_grad", "update"))
some = settings(deadline=None, derandomize=True, max_examples=examples(25), suppress_health_check=list(HealthCheck))
few = settings(some, max_examples=examples(8))


@dataclass(frozen=True)
class Plan:
    """A random run."""

    seed: int
    steps: int
    gap: int  # between captured steps, at most
    odd: float  # share of non-finite values
    zeros: float
    absent: float
    late: int  # the step from which the last taps exist
    event: str
    scale: float = 0.1

    def frames(self) -> list[Frame]:
        random, found, step = np.random.default_rng(self.seed), [], 0
        known = 0
        for place in range(self.steps):
            taps = len(TAPS) if place >= self.late else len(TAPS) - 3
            sizes = 10.0 ** np.arange(-2, len(TAPS) - 2) * np.exp(self.scale * random.standard_normal(len(TAPS)))
            begun = place >= self.steps // 2
            if self.event == "change" and begun:
                sizes[2:] *= 1e4
            if self.event == "spikes" and place % 90 == 70:
                sizes[place % 4 :] *= 1e5
            if self.event == "waves":
                sizes **= 6.0 * (place // 20 % 2)
            if self.event == "fades" and begun:
                sizes[1::3] = 0.0
            if self.event == "NaN" and self.steps // 2 <= place < self.steps // 2 + 9:
                sizes[3:] = np.nan
            sizes[random.random(len(TAPS)) < self.zeros] = 0.0
            odd = random.random(len(TAPS)) < self.odd
            sizes[odd] = random.choice([np.nan, np.inf], odd.sum())
            numbers = np.flatnonzero(random.random(taps) >= self.absent)
            stats = build.stats_of_magnitudes(
                sizes[numbers].tolist(), "rms", "norm", "max", "std", count=10, ratio=1e-3
            )
            loss = {"loss": 1.0 + 0.01 * random.standard_normal() + begun * (self.event == "change")}
            found.append(build.frame(step, stats, TAPS[known:taps], numbers=numbers, scalars=loss))
            known = max(known, taps)
            step += int(random.integers(1, self.gap + 1))
        return found


def plans(steps: int) -> Any:
    """Return random runs of at most this number of captured steps."""
    share = st.sampled_from([0.0, 0.0, 0.02, 0.3])
    events = st.sampled_from(["none", "change", "spikes", "waves", "fades", "NaN"])
    counts = st.integers(30, steps)
    return st.builds(Plan, st.integers(0, 99), counts, st.integers(1, 12), share, share, share, counts, events)


def plain(store: Store, taps: TapList, stat: str, width: int, first: int, last: int) -> Any:
    """Return the columns by their definition, one after the other, from all rows."""
    rows = store.rows(taps.numbers, stat, first, last)
    places = rows.last // width
    at = np.unique(places)
    size = np.full((len(at), len(taps.taps)), np.nan)
    bad = np.zeros(size.shape, bool)
    for column, place in enumerate(at.tolist()):
        mine = places == place
        bad[column] = (rows.nonfinite[mine] > 0).any(axis=0)
        size[column] = np.where(bad[column], np.nan, np.fmax.reduce(rows.high[mine], axis=0))
    with np.errstate(divide="ignore"):
        logs = np.log10(size).astype(np.float32)
    return Columns(width, at, size, np.where(np.isinf(logs), np.float32(np.nan), logs), bad)


def require_same(one: Any, two: Any) -> None:
    assert one.width == two.width
    for name in ("at", "size", "logs", "bad"):
        left, right = getattr(one, name), getattr(two, name)
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, name)


@some
@given(plan=plans(300), memory=st.sampled_from([2**20, 2**26]), width=st.sampled_from([1, 2, 8, 64]), data=st.data())
def test_peaks_are_the_largest_values_of_all_rows(plan: Plan, memory: int, width: int, data: st.DataObject) -> None:
    store = Store(memory)
    for frame in plan.frames():
        store.append(frame)
    newest = store.steps().newest
    assert newest is not None
    first = data.draw(st.integers(0, newest)) // width * width
    taps = store.taps()
    chosen = taps.at(sorted(data.draw(st.sets(st.sampled_from(range(len(taps.taps))), min_size=1))))
    for stat in ("rms", "zero_fraction"):
        read = Columns.of(store.peaks(chosen.numbers, stat, width, first, newest))
        require_same(read, plain(store, chosen, stat, width, first, newest))


def test_peaks_of_a_run_are_also_read_from_merged_rows() -> None:
    plan = Plan(seed=1, steps=300, gap=3, odd=0.02, zeros=0.02, absent=0.3, late=100, event="none")
    store = Store(2**20)
    for frame in plan.frames():
        store.append(frame)
    assert store.usage().merged["stats"]
    newest = store.steps().newest or 0
    read = Columns.of(store.peaks(store.taps().numbers, "rms", 4, 0, newest))
    require_same(read, plain(store, store.taps(), "rms", 4, 0, newest))


@few
@given(plan=plans(1200), every=st.integers(1, 70), releases=st.booleans())
def test_reading_only_new_data_gives_the_same_result_as_a_full_read(plan: Plan, every: int, releases: bool) -> None:
    store, before, looks = Store(2**26), None, 0
    for place, frame in enumerate(plan.frames()):
        store.append(frame)
        if place % every:
            continue
        taps = store.taps()
        before = MagnitudeWindow.of(store, taps, "rms", before)
        assert before is not None
        looks += 1
        if looks > 100 and looks % 9:  # a wrong reading stays, so comparing later looks isn't necessary
            before = before.outline() if releases else before
            continue
        full = MagnitudeWindow.of(store, taps, "rms")
        assert full is not None
        first = int(before.columns.at[0]) * before.columns.width
        require_same(before.columns, plain(store, taps, "rms", before.columns.width, first, frame.step))
        require_same(before.columns, full.columns)
        np.testing.assert_array_equal(before.early, full.early)
        if releases:
            before = before.outline()


@few
@example(plan=Plan(seed=3, steps=700, gap=1, odd=0.0, zeros=0.0, absent=0.0, late=100, event="spikes"))
@given(plan=plans(700))
def test_incremental_checks_find_the_same_incidents_as_full_ones(plan: Plan) -> None:
    """Plain looks remember nothing, and find all spikes each time."""

    def plainly(store: Store, inputs: Any, _: int) -> tuple[Finding, ...]:
        inputs.shrink()
        return findings_of(store, inputs)

    def fresh(*given: Any) -> TapList:
        known = taps(*given)
        return TapList(known.numbers, known.taps)

    told, taps = _incidents_of(plan), Store.taps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_of("Follower", "findings"), "findings_of", plainly)
        patch.setattr(Store, "taps", fresh)
        assert told == _incidents_of(plan)
    assert told == _incidents_of(plan)  # as after a restart, which reads the frames again
    assert told or plan.event != "NaN" or plan.absent


def _incidents_of(plan: Plan) -> list[object]:
    store = follow(Store(2**26))
    for frame in plan.frames():
        store.append(frame)
    store.settle()
    return [
        (each.rule, each.culprit.tap, each.first_step, each.last_step, each.message, each.severity, each.is_over)
        for each in store.incidents()
    ]
