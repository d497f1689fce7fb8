"""What it costs to find problems while frames arrive, compared with adding the frames.

`python -m benchmarks.rules` adds the same frames to a store alone and to one that the rules follow, in turn. It prints
how much longer the second takes for a steady run, one with a lasting change, one with NaN from then on, and one that
changes all the time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from hookcore.findings import follow
from hookcore.records import STAT_COLUMN, Frame, SketchBlock, Tap
from hookcore.store import Store
from tests import build

KINDS: Final = ("output", "output_grad", "param_grad", "update")
RUNS: Final = ("steady", "one change", "NaN from then on", "always changing")
_BINS: Final = 40  # of each sketch


def frames(run: str, steps: int, taps: int) -> Iterator[Frame]:
    """Return the frames of a run whose change is in the middle."""
    random = np.random.default_rng(0)
    names = tuple(Tap(f"layers.{number // 4}", KINDS[number % 4]) for number in range(taps))  # type: ignore[arg-type]
    start = (np.arange(taps + 1) * _BINS).astype(np.uint32)
    bins = np.tile(np.sort(random.choice(3000, _BINS, replace=False)), taps).astype(np.uint16)
    blocks = [SketchBlock(start, bins, random.integers(1, 1000, taps * _BINS).astype(np.uint32)) for _ in range(4)]
    for step in range(steps):
        sizes = np.exp(0.2 * random.standard_normal(taps))
        if step >= steps // 2:
            sizes[40:] *= {"one change": 1e3, "NaN from then on": np.nan}.get(run, 1.0)
        if run == "always changing":
            sizes **= 10.0 * (step // 20 % 2)
        stats = build.stats_of_magnitudes(sizes, "rms", "norm", "max", "std", count=100)
        stats[:, STAT_COLUMN["ratio"]] = 1e-3
        loss = {"loss": 1.0 + 1e-3 * step}
        yield build.frame(step, stats, names if step == 0 else (), sketches=blocks[step % 4], scalars=loss)


def compare(run: str, steps: int, taps: int) -> None:
    """Add the frames of a run to both stores, and print what the rules cost."""
    stores = Store(2**29), follow(Store(2**29))
    spent = [0.0, 0.0]
    for number, frame in enumerate(frames(run, steps, taps)):
        for place in (0, 1) if number % 2 else (1, 0):
            begun = time.perf_counter()
            stores[place].append(frame)
            spent[place] += time.perf_counter() - begun
    alone, followed = spent
    told = len(stores[1].incidents())
    print(f"{run:18} {alone / steps * 1e6:8.0f} us a frame, {followed / alone - 1:+7.1%} with rules, {told} incidents")


def main() -> None:
    """Compare all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="frames of each run (default: 2,000)")
    parser.add_argument("--taps", type=int, default=2000, help="tensors in each frame (default: 2,000)")
    given = parser.parse_args()
    for run in RUNS:
        compare(run, given.steps, given.taps)


if __name__ == "__main__":
    main()
