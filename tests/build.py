"""The only builders of a trainer's data: stats, frames, runs, and filled stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hookcore.records import STAT_COLUMN, STATS, Frame, SketchBlock, Tap
from hookcore.records.wire import RunInfo
from hookcore.store import Store
from hookcore_app.runs import Run, Runs


def stats_of(rows: int, fill: float = 0.0, **columns: Any) -> np.ndarray:
    """Return stats [tap, stat] that are `fill`, except for the given columns: each a number, or one for each tap."""
    stats = np.full((rows, len(STATS)), float(fill))
    for name, column in columns.items():
        stats[:, STAT_COLUMN[name]] = column
    return stats


def stats_of_magnitudes(values: Sequence[float], *names: str, count: int = 8, **columns: Any) -> np.ndarray:
    """Return stats whose `names` are these values. NaN and infinities stand for such values in the tensors."""
    given = np.asarray(values, float)
    named = dict.fromkeys(names, given)
    odd = {"nan": np.isnan(given), "inf": np.isinf(given), "ratio": np.nan}
    return stats_of(len(given), **{"count": count, **odd, **named, **columns})


def frame(
    step: int,
    stats: Any,
    new_taps: tuple[Tap, ...] = (),
    *,
    numbers: Sequence[int] | np.ndarray | None = None,
    sketches: SketchBlock | None = None,
    time_s: float | None = None,
    **others: Any,
) -> Frame:
    """Return a frame of the first taps, or of those with these `numbers`. `time_s` is the step unless given."""
    rows = np.asarray(stats, np.float64)
    chosen = np.arange(len(rows)) if numbers is None else np.asarray(numbers)
    block = SketchBlock.empty(len(rows)) if sketches is None else sketches
    return Frame(
        step, float(step) if time_s is None else time_s, chosen.astype(np.uint32), rows, block, new_taps, **others
    )


def make_info(run: str = "one", **others: Any) -> RunInfo:
    """Return the info of a trainer about its run."""
    return RunInfo(**{"id": run, "key": f"key of {run}", "name": run, "started_s": 1.0, **others})


def open_run(runs: Runs, run: str = "one", **others: Any) -> Run:
    """Return an empty run whose trainer is connected."""
    found = runs.open(make_info(run, **others))
    assert found is not None
    return found


def append(
    store: Store,
    step: int,
    rms: Sequence[float],
    new: tuple[Tap, ...] = (),
    scalars: dict[str, float] | None = None,
    numbers: Sequence[int] | None = None,
    **columns: Any,
) -> None:
    """Append a step in which the taps have these magnitudes: the first ones, or those with these `numbers`."""
    finite = np.where(np.isfinite(rms), rms, np.nan)
    stats = stats_of_magnitudes(rms, **{**dict.fromkeys(("rms", "norm", "max"), finite), **columns})
    store.append(frame(step, stats, new, numbers=numbers, time_s=100.0 + 0.5 * step, scalars=scalars or {}))


def store_of(rms: Any, taps: tuple[Tap, ...] | None = None, memory: int = 2**26, **columns: Any) -> Store:
    """Return a store of the values rms[step, tap]. The taps are outputs of some layers unless `taps` are given.

    `columns` are other stats of the same shape.
    """
    store, rows = Store(memory), np.asarray(rms, float)
    if taps is None:
        taps = tuple(Tap(f"layers.{number}", "output") for number in range(rows.shape[1]))
    for step, row in enumerate(rows):
        append(store, step, row, taps if step == 0 else (), **{name: each[step] for name, each in columns.items()})
    return store


def steady(steps: int = 60, taps: int = 6, noise: float = 0.1, seed: int = 0) -> Any:
    """Return magnitudes that differ between layers by powers of ten, and are constant except for noise."""
    random = np.random.default_rng(seed)
    return 10.0 ** np.linspace(-6, 3, taps) * np.exp(noise * random.standard_normal((steps, taps)))
