"""What it costs to find problems while frames arrive, compared with adding the frames.

`python -m benchmarks.rules` adds the same frames to a store alone and to one that the rules follow, in random order. It
prints how much more processor time the second takes for a steady run, one with a lasting change, one with NaN from then
on, and one that changes all the time: in the first half of its frames, when a run is looked at more often, and in the
second half. "itself" is a second store alone, compared with the first one; it shows how exact the figures are.
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


def warm_up() -> None:
    """Import and compile what the first look of a process does."""
    store = follow(Store(2**24))
    for frame in frames("always changing", 40, 40):
        store.append(frame)


def compare(run: str, steps: int, taps: int) -> None:
    """Add the frames of a run to all stores, and print what the rules cost."""
    stores = Store(2**29), Store(2**29), follow(Store(2**29))
    spent = np.zeros((2, len(stores)))  # [half, store]
    order = np.random.default_rng(1)  # a store that always comes first would always fill the caches for the others
    for number, frame in enumerate(frames(run, steps, taps)):
        for place in order.permutation(len(stores)).tolist():
            begun = time.thread_time()
            stores[place].append(frame)
            spent[2 * number // steps, place] += time.thread_time() - begun
    told = len(stores[2].incidents())
    for half, (one, other, followed) in zip(("first", "second"), spent.tolist(), strict=True):
        alone = (one + other) / 2
        print(
            f"{run:18} {half:6} half: {alone / steps * 2e6:6.0f} us a frame, {followed / alone - 1:+6.1%} with rules "
            f"(itself: {other / one - 1:+6.1%}), {told} incidents"
        )


def main() -> None:
    """Compare all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="frames of each run (default: 4,000)")
    parser.add_argument("--run", choices=RUNS, action="append", help="only this run")
    parser.add_argument("--taps", type=int, default=2000, help="tensors in each frame (default: 2,000)")
    given = parser.parse_args()
    warm_up()
    for run in given.run or RUNS:
        compare(run, given.steps, given.taps)


if __name__ == "__main__":
    main()
