"""The store under load: a long run in bounded memory, the cost of a step, and the time of the queries.

python -m benchmarks.store                 # 1,000,000 steps of 200 taps: a few minutes
python -m benchmarks.store --steps 50000   # shorter
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.reading.answers import Differences
from hookcore.records import STAT_COLUMN, STATS, Frame, SketchBlock, Tap
from hookcore.store import DEFAULT_BYTES, Store
from hookcore_app.analysis.comparison import Side, what_differs
from tests.sketches import block_of, sketch_of

_MIB: Final = 2**20
_VARIANTS: Final = 8  # different steps in turn, so that merging meets changing bins


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every part and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of the long run (default: 1,000,000)")
    parser.add_argument("--taps", type=int, default=200, help="taps of the long run (default: 200)")
    parser.add_argument("--max-mib", type=int, default=DEFAULT_BYTES // _MIB, help="limit of the store (default: 512)")
    parser.add_argument("--sketch-every", type=int, default=10, help="the long run has sketches every so many steps")
    chosen = parser.parse_args(arguments)
    write_steps(taps=2000)
    write_steps(taps=200)
    query_heatmap(taps=1000, steps=10_000)
    store = long_run(chosen.steps, chosen.taps, chosen.max_mib * _MIB, chosen.sketch_every)
    query_series(store)
    query_differences(taps=2000, steps=10_000)


def long_run(steps: int, taps: int, max_bytes: int, sketch_every: int) -> Store:
    """Put a whole run through a store, and show that memory stays constant."""
    print(f"\n{steps:,} steps of {taps} taps, sketches every {sketch_every} steps, limit {max_bytes / _MIB:.0f} MiB")
    store = Store(max_bytes)
    frames = _frames(taps, sketched=True)
    no_sketches = _no_sketches(taps)
    print(f"{'steps':>12} {'us a step':>10} {'RSS MiB':>8} {'store MiB':>10} {'share of limit':>15}")
    part = max(1, steps // 10)
    for begin in range(0, steps, part):
        number = min(part, steps - begin)
        started = time.perf_counter()
        for step in range(begin, begin + number):
            stats, block = frames[step % _VARIANTS]
            sketches = block if step % sketch_every == 0 else no_sketches
            store.append(_frame(step, stats, sketches, taps))
        cost = (time.perf_counter() - started) / number * 1e6
        used = store.usage().nbytes
        print(f"{begin + number:12,} {cost:10.1f} {_rss_mib():8.0f} {used / _MIB:10.1f} {used / max_bytes:15.1%}")
    usage = store.usage()
    for name, use in usage.parts.items():
        print(f"  {name:10} {use.nbytes / _MIB:8.1f} of {use.limit / _MIB:6.1f} MiB")
    print(f"  merged away {usage.merged}, dropped {_positive(usage.dropped)}")
    return store


def write_steps(taps: int) -> None:
    """Return the time of one append, with and without sketches. The mean includes the merging of older steps."""
    print(f"\none step of {taps:,} taps")
    for sketched in (False, True):
        store = Store()
        frames = _frames(taps, sketched)
        bins = np.mean([len(block.bins) / taps for _, block in frames])
        steps = 400 if sketched else 4000
        times = []
        for step in range(steps):
            stats, block = frames[step % _VARIANTS]
            frame = _frame(step, stats, block, taps)
            started = time.perf_counter()
            store.append(frame)
            times.append(time.perf_counter() - started)
        name = f"with sketches of {bins:.0f} bins" if sketched else "without sketches"
        _report(name, times[1:])


def query_heatmap(taps: int, steps: int) -> None:
    """Return the time of a heatmap of every tap over the whole run."""
    store = Store()
    frames = _frames(taps, sketched=False)
    for step in range(steps):
        stats, block = frames[step % _VARIANTS]
        store.append(_frame(step, stats, block, taps))
    shape = store.heatmap("output", "rms", columns=500).worst.shape
    print(f"\nqueries over {steps:,} steps of {taps:,} taps")
    _report(f"heatmap of {shape[0]} x {shape[1]}", _time(lambda: store.heatmap("output", "rms", columns=500)))
    _report("latest of every tap", _time(store.latest))


def query_series(store: Store) -> None:
    """Return the time of queries over the whole of a long run."""
    steps = store.steps()
    print(f"\nqueries over {steps.count:,} steps")
    points = len(store.series(7, "rms", points=1000).mean)
    _report(f"series of at most 1000 points ({points})", _time(lambda: store.series(7, "rms", points=1000)))
    _report("its last 1,000 steps", _time(lambda: store.series(7, "rms", first=(steps.newest or 0) - 999)))
    _report("heatmap of every tap", _time(lambda: store.heatmap("output", "rms")))
    columns = len(store.histograms(7).first_step)
    _report(f"histograms of {columns} columns", _time(lambda: store.histograms(7)))
    _report("three quantiles over time", _time(lambda: store.quantiles(7, [0.01, 0.5, 0.99])))


def query_differences(taps: int, steps: int) -> None:
    """Return the time of "what is different here?" in a run with sketches in every step."""
    store = long_run(steps, taps, DEFAULT_BYTES, sketch_every=1)
    print(f"\nwhat differs over {steps:,} steps of {taps:,} taps, of all other steps")
    middle = steps // 2
    asked = (("the newest 100 steps", steps - 100), ("100 steps of the middle", middle), ("the second half", middle))
    for name, first in asked:
        last = steps - 1 if name == "the second half" else first + 99

        def query(first: int = first, last: int = last) -> Differences:
            inside = store.sample(first, last)
            rest = store.sample(but=inside)
            return what_differs(Side(store, inside), Side(store, rest), lambda _: True)

        query()
        samples = store.sample(first, last), store.sample(but=store.sample(first, last))
        filled = sum(len(entry.bins) for sample in samples for entry in sample.entries)
        _report(f"{name} ({filled / 1e6:.0f} million filled bins)", _time(query, 10))


def _frames(taps: int, sketched: bool) -> list[tuple[NDArray[np.float64], SketchBlock]]:
    random = np.random.default_rng(1)
    variants = []
    for _ in range(_VARIANTS):
        stats = random.random((taps, len(STATS)))
        stats[:, STAT_COLUMN["count"]] = 65_536
        stats[:, [STAT_COLUMN["nan"], STAT_COLUMN["inf"]]] = 0
        stats[:, STAT_COLUMN["ratio"]] = np.nan
        block = _sketches(taps, random) if sketched else _no_sketches(taps)
        variants.append((stats, block))
    return variants


def _sketches(taps: int, random: np.random.Generator) -> SketchBlock:
    """Return sketches of normal values of different scales, some after a ReLU, as in layers."""
    kinds = []
    for scale in np.geomspace(1e-6, 10, 20):
        values = random.normal(0, scale, 65_536)
        kinds.append(sketch_of(np.maximum(values, 0) if random.random() < 0.3 else values))
    return block_of([kinds[tap % len(kinds)] for tap in range(taps)])


def _no_sketches(taps: int) -> SketchBlock:
    return SketchBlock(np.zeros(taps + 1, np.uint32), np.empty(0, np.uint16), np.empty(0, np.uint32))


def _frame(step: int, stats: NDArray[np.float64], sketches: SketchBlock, taps: int) -> Frame:
    new = tuple(Tap(f"layers.{tap}", "output") for tap in range(taps)) if step == 0 else ()
    numbers = np.arange(taps, dtype=np.uint32)
    return Frame(step, step * 0.01, numbers, stats, sketches, new, scalars={"loss": 1 / (1 + step)}, elapsed_s=0.01)


def _time(call: Callable[[], object], times: int = 30) -> list[float]:
    call()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return taken


def _report(name: str, times: Sequence[float]) -> None:
    low, median, high, worst = np.quantile(times, [0.1, 0.5, 0.9, 1.0]) * 1e6
    mean = np.mean(times) * 1e6
    spread = f"10-90 % {low:9.1f} to {high:9.1f}   mean {mean:9.1f}   max {worst:9.0f}"
    print(f"  {name:44} median {median:9.1f} us   {spread}")


def _positive(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _rss_mib() -> float:
    """Return the resident memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    main()
