"""The store, compared with a model that keeps everything: counts and extremes are never lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookcore.findings import follow
from hookcore.records import NO_SKETCHES, NO_STATS, NO_TAPS, STAT_COLUMN, STATS, Event, Frame, Tap
from hookcore.records.sketch import NAN, NEG_INF, POS_INF, Sketch
from hookcore.records.vocabulary import SYSTEM
from hookcore.store import STAT_NAMES, Store
from hookcore.store.ladder import Ladder
from hookcore.store.segments import STAT_SCHEMA, later_wins
from hookcore.store.sketches import SketchLadder
from tests import build
from tests.archive_world import require_same
from tests.lanes import examples
from tests.sketches import block_of, merged, rebin, sketch_of

SLOW = settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**32 - 1)
ODD = (np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.0)


@dataclass
class World:
    """A random run: its data by step, and a random generator for more."""

    random: np.random.Generator
    odd: float  # the share of unusual numbers
    steps: dict[int, dict[int, np.ndarray]] = field(default_factory=dict)  # step -> tap -> stats
    sketches: dict[int, dict[int, Sketch]] = field(default_factory=dict)
    taps: int = 0
    step: int = -1

    def stats(self, rows: int) -> np.ndarray:
        values = self.random.normal(0, 1, (rows, len(STATS))) * 10.0 ** self.random.integers(-8, 8, (rows, 1))
        odd = np.less(self.random.random(values.shape), self.odd)
        values[odd] = self.random.choice(ODD, int(odd.sum()))
        values[:, STAT_COLUMN["count"]] = self.random.integers(1, 1000, rows)
        for name in ("nan", "inf"):
            values[:, STAT_COLUMN[name]] = self.random.integers(0, 2, rows) * (self.random.random(rows) < self.odd)
        return values

    def next_step(self, grow: int, sketched: bool) -> Iterator[Frame]:
        """Return the frames of one step: one part, or two with different taps."""
        self.step += int(self.random.integers(1, 4))
        new = tuple(Tap(f"m{self.taps + i}", "output") for i in range(grow))
        self.taps += grow
        present = np.flatnonzero(self.random.random(self.taps) < 0.8).astype(np.uint32)
        present = self.random.permutation(present) if self.random.random() < 0.3 else present
        cut = int(self.random.integers(0, len(present) + 1)) if self.random.random() < 0.3 else len(present)
        for part in (present[:cut], present[cut:]) if cut < len(present) else (present,):
            stats = self.stats(len(part))
            made = [sketch_of(self.random.normal(0, 10.0 ** int(tap % 5), 20)) for tap in part] if sketched else []
            self.steps.setdefault(self.step, {}).update(zip(part.tolist(), stats, strict=True))
            if sketched:
                self.sketches.setdefault(self.step, {}).update(zip(part.tolist(), made, strict=True))
            block = block_of(made) if sketched else None
            yield build.frame(self.step, stats, new, numbers=part, sketches=block, scalars={"x": float(self.step)})
            new = ()

    def column(self, tap: int, name: str) -> dict[int, float]:
        """Return one stat of a tap in every step that has it."""
        found = {step: taps[tap] for step, taps in self.steps.items() if tap in taps}
        count, zero = STAT_COLUMN["count"], STAT_COLUMN["zero"]
        nan, inf = STAT_COLUMN["nan"], STAT_COLUMN["inf"]
        with np.errstate(all="ignore"):
            if name == "zero_fraction":
                return {step: float(stats[zero] / stats[count]) for step, stats in found.items()}
            if name == "nonfinite":
                return {step: float(stats[nan] + stats[inf]) for step, stats in found.items()}
        return {step: float(stats[STAT_COLUMN[name]]) for step, stats in found.items()}


def check_series(world: World, store: Store, tap: int, name: str, points: int) -> None:
    series, column = store.series(tap, name, points=points), world.column(tap, name)
    bad = world.column(tap, "nonfinite")
    assert len(series.mean) <= points
    assert (series.first_step <= series.last_step).all()
    assert (series.last_step[:-1] < series.first_step[1:]).all()
    assert series.present.sum() == len(column)
    for point in range(len(series.mean)):
        steps = range(int(series.first_step[point]), int(series.last_step[point]) + 1)
        values = np.array([column[step] for step in steps if step in column])
        finite = values[np.isfinite(values)]
        assert series.present[point] == len(values)
        assert series.nonfinite[point] == sum(bad[step] > 0 for step in steps if step in bad)
        if len(finite):
            assert (series.min[point], series.max[point]) == (finite.min(), finite.max())
            scale = np.abs(finite).max()
            mean = (finite / len(finite)).sum()
            assert series.mean[point] == pytest.approx(mean, rel=1e-9, abs=scale * 1e-12 + 1e-320)
        else:
            assert np.isnan([series.min[point], series.max[point], series.mean[point]]).all()


@SLOW
@given(SEEDS, st.sampled_from([0.0, 0.02, 0.4]), st.integers(1, 20), st.integers(1, 1000))
def test_a_series_of_any_length_agrees_with_a_model_that_keeps_everything(
    seed: int, odd: float, taps: int, points: int
) -> None:
    world, store = World(np.random.default_rng(seed), odd), Store(2**20)
    for number in range(150):
        grow = taps if number == 0 else int(world.random.random() < 0.05)
        for frame in world.next_step(grow, sketched=False):
            store.append(frame)
            usage = store.usage()
            assert usage.nbytes <= usage.max_bytes
            assert all(part.nbytes <= part.limit for part in usage.parts.values())
    assert not any(store.usage().dropped.values())
    assert store.steps().count == len(world.steps)
    assert (store.steps().first, store.steps().newest) == (min(world.steps), max(world.steps))
    for tap in world.random.integers(0, world.taps, 3).tolist():
        for name in world.random.choice(STAT_NAMES, 4):
            check_series(world, store, int(tap), str(name), points)


def require_limits(ladder: Ladder | SketchLadder) -> None:
    """Check that each level of a ladder, the exact one first, takes no more bytes than it may."""
    used = [*ladder.level_bytes]
    used[0] += ladder.nbytes - sum(used)  # the newest values of the lanes belong to the exact rows that they came from
    assert all(nbytes <= most for nbytes, most in zip(used, ladder.level_limits, strict=True))


@SLOW
@given(SEEDS, st.integers(8, 64), st.sampled_from([12_000, 40_000, 200_000]))
def test_a_ladder_of_any_size_covers_every_step_once_within_its_limit(seed: int, lanes: int, limit: int) -> None:
    random = np.random.default_rng(seed)
    ladder = Ladder(STAT_SCHEMA, limit, threading.Lock())
    lanes = min(lanes, ladder.max_lanes)
    width, expected = max(1, lanes // 2), np.zeros(lanes, int)
    high = np.full(lanes, -np.inf)
    for step in range(300):
        width = min(lanes, width + int(random.random() < 0.05))
        ladder.grow(width)
        values = random.normal(0, 1, (len(STATS), width))
        values[0] = 1
        ladder.append([step], slice(0, width), values[:, None])
        expected[:width] += 1
        high[:width] = np.maximum(high[:width], values[5])
        assert ladder.nbytes <= limit
        require_limits(ladder)
    parts = ladder.gather(5, slice(0, lanes), None, None)
    first, last = np.concatenate([part.first for part in parts]), np.concatenate([part.last for part in parts])
    assert (first[0], last[-1]) == (0, 299)
    assert np.array_equal(first[1:], last[:-1] + 1)
    assert np.array_equal(sum(part.present.sum(axis=0) for part in parts), expected)
    assert np.array_equal(np.nanmax([np.nanmax(part.high, axis=0, initial=-np.inf) for part in parts], axis=0), high)


def test_a_ladder_with_many_rows_in_a_segment_stays_within_the_limit_of_every_level() -> None:
    ladder = Ladder(STAT_SCHEMA, 1_000_000, threading.Lock())
    ladder.grow(8)
    for step in range(4000):
        ladder.append([step], slice(0, 8), np.full((len(STATS), 1, 8), 1 / 3))
        require_limits(ladder)
    assert sum(int(part.present[:, 0].sum()) for part in ladder.gather(0, slice(0, 1), None, None)) == 4000
    assert all(ladder.level_bytes)


@SLOW
@given(SEEDS, st.integers(1, 12))
def test_values_of_ended_segments_come_back_to_the_bit(seed: int, lanes: int) -> None:
    rng, ladder = np.random.default_rng(seed), Ladder(STAT_SCHEMA, 2**23, threading.Lock())
    values = rng.standard_normal((len(STATS), 400, 12))
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e300, 2.0**24 + 1, 65504.0, 65505.0, 1 / 3, 6e-8]
    for column in range(len(STATS)):
        kind = rng.choice([np.float16, np.float32, np.float64])
        values[column] = values[column].astype(kind)
        some = rng.random((400, 12)) < rng.choice([0.0, 0.001, 0.3])
        values[column][some] = rng.choice(odd, some.sum())
    values[0] = rng.integers(1, 5000, (400, 12))
    values[:, rng.random((400, 12)) < 0.1] = np.nan  # absent lanes
    for step in range(400):
        width = min(12, lanes + step // 100)  # lanes are added
        ladder.grow(width)
        ladder.append([step], slice(0, width - 1), values[:, step : step + 1, : width - 1])
        if step % 130 == 129:
            ladder.shrink(ladder.max_bytes * 3 // 4)  # which ends the segment of the newest step
        ladder.merge_newest(slice(width - 1, width), values[:, step, width - 1 : width], later_wins)
        values[:, step, width:] = np.nan
    steps, found = ladder.exact(range(12), 0, 0)
    assert len(steps) == 400
    assert np.array_equal(found, values[:, steps], equal_nan=True)
    assert np.array_equal(np.signbit(found)[~np.isnan(found)], np.signbit(values[:, steps])[~np.isnan(found)])
    require_limits(ladder)


def test_steps_whose_values_need_fewer_bytes_take_fewer() -> None:
    sizes = []
    for value in (1.0, 1 / 3):
        ladder = Ladder(STAT_SCHEMA, 2**23, threading.Lock())
        ladder.grow(8)
        for step in range(2000):
            ladder.append([step], slice(0, 8), np.full((len(STATS), 1, 8), value))
        assert len(ladder.exact([0], 0, 0)[0]) == 2000
        sizes.append(ladder.nbytes)
    assert sizes[0] < sizes[1] / 3


@SLOW
@given(SEEDS)
def test_the_newest_steps_are_exact(seed: int) -> None:
    world, store = World(np.random.default_rng(seed), 0.0), Store(2**20)
    for number in range(200):
        for frame in world.next_step(20 if number == 0 else 0, sketched=False):
            store.append(frame)
    for tap in range(20):
        column = world.column(tap, "rms")
        series = store.series(tap, "rms", points=10_000)
        exact = [step for step in sorted(column)[-16:]]
        assert series.first_step[-16:].tolist() == exact
        assert series.mean[-16:].tolist() == [column[step] for step in exact]
        latest = store.latest(stat="rms")
        assert latest.steps[tap] == exact[-1]
        assert latest.values[tap, 0] == column[exact[-1]]


@SLOW
@given(SEEDS, st.integers(1, 60), st.sampled_from([0.0, 0.1]))
def test_a_heatmap_shows_the_worst_value_of_each_cell_and_every_nonfinite_step(
    seed: int, columns: int, odd: float
) -> None:
    world, store = World(np.random.default_rng(seed), odd), Store(8 * 2**20)
    for number in range(120):  # all stay exact, so that each cell can be computed
        for frame in world.next_step(6 if number == 0 else 0, sketched=False):
            store.append(frame)
    found = store.heatmap("output", "norm", columns=columns)
    assert found.worst.shape[1] <= columns
    assert (found.first_step[0], found.last_step[-1]) == (min(world.steps), max(world.steps))
    assert (found.first_step[1:] > found.last_step[:-1]).all()
    for first, last in zip(found.first_step.tolist(), found.last_step.tolist(), strict=True):
        inside = [step for step in world.steps if first <= step <= last]
        assert not inside or (first, last) == (inside[0], inside[-1])  # a column begins and ends with captured steps
    for row, tap in enumerate(found.numbers.tolist()):
        column, bad = world.column(tap, "norm"), world.column(tap, "nonfinite")
        for cell in range(found.worst.shape[1]):
            steps = [s for s in range(found.first_step[cell], found.last_step[cell] + 1) if s in column]
            finite = [column[s] for s in steps if np.isfinite(column[s])]
            has_values = finite or any(bad[s] > 0 for s in steps)  # a stat may have no value in a step
            assert found.present[row, cell] == (len(steps) if has_values else 0)
            assert found.nonfinite[row, cell] == sum(bad[s] > 0 for s in steps)
            if found.nonfinite[row, cell] or not finite:
                assert np.isnan(found.worst[row, cell])
            else:
                assert abs(found.worst[row, cell]) == max(map(abs, finite))
                assert found.worst[row, cell] in finite


@SLOW
@given(SEEDS, st.integers(1, 12), st.sampled_from([20_000, 40_000, 100_000]))
def test_sketches_are_summed_exactly_and_cover_every_step_once(seed: int, taps: int, bytes_a_tap: int) -> None:
    limit = 20_000 + taps * bytes_a_tap
    world, ladder = World(np.random.default_rng(seed), 0.0), SketchLadder(limit, threading.Lock())
    for number in range(50):
        for frame in world.next_step(taps if number == 0 else 0, sketched=True):
            order = np.argsort(frame.taps)
            rows = [world.sketches[frame.step][int(tap)] for tap in frame.taps[order]]
            ladder.append(frame.step, frame.taps[order], block_of(rows))
            assert ladder.nbytes <= limit
            require_limits(ladder)
    entries = ladder.entries(None, None)
    assert ladder.refused == 0
    assert all(one.last <= two.first for one, two in pairwise(entries))
    for tap in range(taps):
        total = merged(*(step[tap] for step in world.sketches.values() if tap in step))
        kept = [Sketch.of_bins(*row) for entry in entries if (row := entry.row(tap)) is not None]
        assert merged(*kept) == total


@SLOW
@given(SEEDS, st.integers(1, 40), st.integers(5, 300))
def test_histograms_and_quantiles_contain_every_value_of_the_run(seed: int, columns: int, bins: int) -> None:
    world, store = World(np.random.default_rng(seed), 0.0), Store(2**20)
    for number in range(60):
        for frame in world.next_step(8 if number == 0 else 0, sketched=True):
            store.append(frame)
    total = merged(*(step[3] for step in world.sketches.values() if 3 in step))
    shown = store.histograms(3, columns=columns, bins=bins)
    assert len(shown.first_step) <= columns
    assert shown.counts.shape[1] <= bins
    assert (np.diff(shown.edges) > 0).all()
    apart = shown.nan.sum() + shown.negative_infinity.sum() + shown.positive_infinity.sum()
    assert apart == total.counts[[NAN, NEG_INF, POS_INF]].sum()
    assert np.array_equal(shown.counts.sum(axis=0), rebin(total, shown.edges))
    assert shown.counts.sum() + apart == total.total
    one = store.quantiles(3, [0.1, 0.5], points=1)
    assert one.values.tolist() == [total.quantiles([0.1, 0.5]).tolist()]


def odd_training(seed: int) -> list[Frame]:
    """Return the frames of a training: mostly steps with nothing but a loss, and now and then anything else."""
    random, frames, step = np.random.default_rng(seed), list[Frame](), 0
    taps = tuple(Tap(f"m.{number}", "output") for number in range(3))
    numbers = np.arange(len(taps), dtype=np.uint32)
    numbers.setflags(write=False)  # shared by many frames, as those of a trainer
    for place in range(400):
        rows = len(taps) if place // 20 % 2 == 0 else 0
        stats = build.stats_of(rows, 1.0, count=8, mean=random.normal(), nan=0, inf=0, ratio=np.nan)
        rest: dict[str, object] = {"scalars": {"loss": float(1 + random.random())}, "elapsed_s": 0.01 * place}
        match int(random.integers(0, 80)):
            case 0:
                rest["scalars"] = {"loss": float(random.choice([np.nan, np.inf, 1e9]))}
            case 1:
                rest["scalars"] = {"loss": 1.0, f"{SYSTEM}cpu": float(place)}
            case 2:
                rest["scalars"] = dict.fromkeys(random.permutation(["loss", "other"]).tolist(), 1.0)
            case 3:
                rest["events"] = (Event(step, 0.0, "an-event", "a message", "warning"),)
            case 4 if rows:
                stats[0, STAT_COLUMN[str(random.choice(["nan", "inf"]))]] = 3
            case 5 if rows:
                stats[:, STAT_COLUMN["rms"]] *= 1e6
            case 6 if rows:
                stats[1] = np.nan
            case 7:
                rest["labels"] = {"name": f"text {place}"}
        block = block_of([sketch_of(random.normal(0, 1, 20)) for _ in range(rows)]) if rows else NO_SKETCHES
        new = taps if place == 0 else ()
        which = numbers if rows else NO_TAPS
        frames.append(Frame(step, float(place), which, stats if rows else NO_STATS, block, new, **rest))  # type: ignore[arg-type]
        step = max(0, step + int(random.choice([1, 1, 1, 1, 1, 2, 3, 0, 0, -1], p=[0.19] * 5 + [0.01] * 5)))
    return frames


@SLOW
@given(SEEDS)
def test_frames_that_waited_together_leave_the_same_store_as_one_after_the_other(seed: int) -> None:
    frames, random = odd_training(seed), np.random.default_rng(seed)
    alone, together = follow(Store(2**21, clock=float)), follow(Store(2**21, clock=float))
    for frame in frames:
        alone.append(frame)
    while frames:
        many = int(random.integers(1, 40))
        together.extend(frames[:many])
        frames = frames[many:]
    require_same(alone, together)
    assert repr(together.incidents()) == repr(alone.incidents())
    assert together.usage() == alone.usage()
    assert together.nonfinite_since("loss") == alone.nonfinite_since("loss")
    assert together.captured() == alone.captured()
