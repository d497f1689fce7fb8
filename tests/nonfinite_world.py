"""Runs with gaps, steps in several parts, and non-finite values."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hookcore.records import STAT_COLUMN, Event, Frame, Tap
from hookcore.store import Store
from tests.build import frame, stats_of
from tests.lanes import examples

TAPS = 5
quick = settings(deadline=None, derandomize=True, max_examples=examples(150), suppress_health_check=list(HealthCheck))

# The values of each tap in a part of a step: None (absent), 0 (finite), or the number of NaN (positive) or infinities.
Part = tuple[int | None, ...]
values = st.sampled_from([None, 0, 0, 0, 3, -2])
steps = st.lists(
    st.tuples(st.integers(1, 40), st.lists(st.tuples(*[values] * TAPS), min_size=1, max_size=2)),
    min_size=1,
    max_size=60,
)


def part(step: int, held: Part, *, new: bool = False) -> Frame:
    """Return a frame in which each tap has the values of `held`."""
    numbers = np.array([tap for tap, each in enumerate(held) if each is not None], np.uint32)
    given = np.array([held[tap] for tap in numbers], float)
    stats = stats_of(len(numbers), 1.0, count=8, nan=np.maximum(given, 0), inf=np.maximum(-given, 0))
    stats[given < 0, STAT_COLUMN["max"]] = 1e30  # an overflow, not a mask
    taps = tuple(Tap(f"m{number}", "output") for number in range(len(held))) if new else ()
    return frame(step, stats, taps, numbers=numbers)


def store_of(run: list[tuple[int, list[Part]]]) -> tuple[Store, dict[int, list[Part]]]:
    """Return a small store that contains a run with gaps and parts, and the same data by step."""
    store, told, step = Store(2**20), {}, 0
    for gap, parts in run:
        step += gap
        told[step] = parts
        for held in parts:
            store.append(part(step, held, new=step == gap and held is parts[0] and not len(store.taps().taps)))
    return store, told


def alarm(step: int, previous: int | None, found: str = "loss", module: str = "", **about: Any) -> Event:
    """Return the event of the trainer's check of every step."""
    known = {"found": found, "name": "loss", "value": "nan", "previous": previous, "captured": False, "late": False}
    return Event(step, float(step), "nonfinite-step", "not finite", "error", module, about=known | about)
