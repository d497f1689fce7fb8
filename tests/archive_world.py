"""Fixtures for saved runs: random runs, sinks that save them, and a comparison of two stores."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from hookcore.delivery.archive import ArchiveSink
from hookcore.records import (
    KINDS,
    PROBE,
    STAT_COLUMN,
    STATS,
    TENSOR_KINDS,
    Coverage,
    Event,
    Frame,
    HookRecord,
    ModuleRecord,
    SketchBlock,
    Snapshot,
    Tap,
)
from hookcore.records.flow import Flow, FlowCall, How
from hookcore.records.wire import RunInfo
from hookcore.store import STAT_NAMES, Store
from tests.build import frame, stats_of, stats_of_magnitudes
from tests.sketches import block_of, sketch_of

ODD = (np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.0, -0.0)
TAKEN = (*TENSOR_KINDS, PROBE)
SECRET = "the-key-that-must-not-be-written"
STORE_BYTES = 64 * 2**20  # large enough to keep a small run exact
MODULES = (
    ModuleRecord("", "Model", None, 12, 12),
    ModuleRecord("a", "Linear", "", 8, 8, ("b.tied",)),
    ModuleRecord("<b>x</b>", "Names\u2028of'strangers", "", 0, 0),
)
COVERAGE = (Coverage("a", "Linear", True, ("output", "output_grad")), Coverage("b", "Scripted", False, (), "why not"))
HOOKS = (HookRecord("module", "a", "forward", "f", "x.py:1", False, 3, ("always_call",), True, "it lies"),)


def make_info(run: str = "one", **others: Any) -> RunInfo:
    return RunInfo(**{"id": run, "key": SECRET, "name": f"name of {run}", "started_s": 1.0, **others})


@dataclass
class Trainer:
    """Makes the frames of a random run."""

    random: np.random.Generator
    odd: float = 0.1  # the share of unusual numbers
    taps: list[Tap] = field(default_factory=list)
    step: int = -1

    def new_taps(self, count: int) -> tuple[Tap, ...]:
        first = len(self.taps)
        new = tuple(
            Tap(f"m.{n}", TAKEN[n % len(TAKEN)], "past.1" if n % 3 else "", n % 2, "eval" if n % 5 == 0 else "train")
            for n in range(first, first + count)
        )
        self.taps += new
        return new

    def stats(self, rows: int) -> np.ndarray:
        values = self.random.normal(0, 1, (rows, len(STATS))) * 10.0 ** self.random.integers(-8, 8, (rows, 1))
        odd = np.less(self.random.random(values.shape), self.odd)
        values[odd] = self.random.choice(ODD, int(odd.sum()))
        values[:, STAT_COLUMN["count"]] = self.random.integers(1, 1000, rows)
        for name in ("nan", "inf", "zero", "parts", "sketched"):  # counts are never unusual
            values[:, STAT_COLUMN[name]] = self.random.integers(0, 2, rows)
        return values

    def next_step(self, grow: int = 0, parts: int = 1, sketched: bool = True) -> list[Frame]:
        """Return the frames of one step. A tap may be in several of them, whose rows are then merged."""
        self.step += int(self.random.integers(1, 4))
        new, frames = self.new_taps(grow), []
        for part in range(parts):
            present = np.flatnonzero(self.random.random(len(self.taps)) < 0.8).astype(np.uint32)
            made = [sketch_of(self.random.normal(0, 10.0 ** int(tap % 5), 20)) for tap in present]
            frames.append(
                frame(
                    self.step,
                    self.stats(len(present)),
                    () if part else new,
                    numbers=present,
                    sketches=block_of(made) if sketched else None,
                    time_s=float(self.step) + 0.5,
                    events=tuple(self.event(n) for n in range(int(self.random.integers(0, 3)))),
                    scalars={"loss": float(self.random.choice([1.5, np.nan, np.inf])), "ü/ж": float(self.step)},
                    micro_batches=int(self.random.integers(0, 3)),
                    grad_scale=float(self.random.choice([1.0, 65536.0])) if self.step % 2 else None,
                    labels={"optimizer": f"Adam {self.step}"},
                    elapsed_s=float(self.random.choice([0.25, np.nan])),
                    flow=None if part or self.step % 3 else self.flow(),
                )
            )
        return frames

    def flow(self) -> Flow:
        """Return a flow through the modules known so far, which differs from step to step."""
        hows = itertools.cycle(get_args(How))
        calls = (
            FlowCall(f"m.{n}", n % 2, fed_by=(n - 1,) if n else (), returns=tuple(range(min(n, 2))), how=how)
            for n, how in zip(range(1 + self.step % 7), hows, strict=False)
        )
        return Flow(self.step, tuple(calls), 0.001 * self.step)

    def event(self, number: int) -> Event:
        return Event(self.step, self.step + 0.1, f"event-{number}", "a \u2028 <b> 'sentence'", "warning", "a", 3)

    def snapshot(self, dtype: str = "float32") -> Snapshot:
        values = self.random.integers(0, 2, (2, 3)).astype(dtype)
        if values.dtype.kind in "fc":
            values.flat[:2] = np.nan, np.inf
        return Snapshot(self.taps[0], self.step, self.step + 0.2, dtype, (2, 3), values, False, 7)


def plain_frame(step: int, taps: int = 4, first: bool | None = None) -> Frame:
    """Return a frame whose means are its step. The first frame announces its taps."""
    new = tuple(Tap(f"m.{n}", "output") for n in range(taps)) if (step == 0 if first is None else first) else ()
    return frame(step, stats_of(taps, 1.0, mean=step), new)


def keep(folder: Path, info: RunInfo | None = None) -> tuple[ArchiveSink, Store]:
    """Return a sink that saves a run in a folder, and its store."""
    store = Store(STORE_BYTES)
    return ArchiveSink(store, str(folder), info or make_info()), store


def kept_in(folder: Path) -> Path:
    """Return the only saved run of a folder."""
    (found,) = folder.glob("*.hookcore")
    return found


def require_same(expected: Store, found: Store) -> None:
    """Assert that both stores give the same answer to every query."""
    assert found.steps() == expected.steps()
    assert found.taps().taps == expected.taps().taps
    for number in range(len(expected.taps().taps)):
        for stat in STAT_NAMES:
            _require_equal(expected.series(number, stat), found.series(number, stat))
        _require_equal(expected.histograms(number), found.histograms(number))
    for kind in KINDS:
        _require_equal(expected.heatmap(kind, "norm"), found.heatmap(kind, "norm"))
    assert found.scalar_names() == expected.scalar_names()
    for name in expected.scalar_names():
        _require_equal(expected.scalars(name), found.scalars(name))
    _require_equal(expected.latest(), found.latest())
    assert found.events() == expected.events()
    assert found.flows() == expected.flows()
    assert found.labels() == expected.labels()
    assert (found.modules(), found.coverage(), found.hooks()) == (
        expected.modules(),
        expected.coverage(),
        expected.hooks(),
    )
    ours, theirs = expected.snapshots(), found.snapshots()
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        _require_equal(one, other)


def _require_equal(expected: Any, found: Any) -> None:
    for name in type(expected).__dataclass_fields__:
        one, other = getattr(expected, name), getattr(found, name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, name
            np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            assert one == other, name


INFO = RunInfo(id="20261121-1", key="secret", name="a run", host="box", settings={"every": 1}, memory=50_000_000)
TAPS = (Tap("a", "output"), Tap("a.b", "output_grad", "0", 1), Tap("c", "param", "weight", 0, "eval"))


def make_frame(step: int, seed: int = 0, taps: int = len(TAPS)) -> Frame:
    """Return a frame with random numbers, including NaN and infinities, and sketches of various lengths."""
    rng = np.random.default_rng([seed, step])
    stats = rng.standard_normal((taps, len(STATS)))
    stats[rng.random(stats.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    for counted in ("count", "nan", "inf", "zero", "parts", "sketched"):
        stats[:, STATS.index(counted)] = rng.integers(1, 100, taps)
    bins = [np.sort(rng.choice(900, rng.integers(0, 9), replace=False)) for _ in range(taps)]
    flat = np.concatenate(bins).astype(np.uint16)
    start = np.cumsum([0, *map(len, bins)]).astype(np.uint32)
    block = SketchBlock(start, flat, rng.integers(1, 9, len(flat)).astype(np.uint32))
    scalars = {"loss": float(rng.standard_normal()), "bad": float("nan")}
    return frame(step, stats, sketches=block, time_s=1.5 * step, scalars=scalars, micro_batches=2, elapsed_s=0.1)


ODD_NAME = "layers.<b>&\x1b]0;x\x07"  # possible names of modules


def save_layer(folder: Path, bad: int | None = None, steps: int = 60, name: str = ODD_NAME) -> str:
    """Save a run of one layer that is NaN from a step on."""
    sink, _ = keep(folder)
    for step in range(steps):
        values = [math.nan if bad is not None and step >= bad else 1.0]
        stats = stats_of_magnitudes(values, "rms", "norm", "max")
        sink.send(frame(step, stats, (Tap(name, "output"),) if step == 0 else (), scalars={"loss": 1.0}))
    sink.close()
    return str(kept_in(folder))
