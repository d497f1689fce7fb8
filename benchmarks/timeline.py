"""The timeline of a long run beside that of a short one: what the server computes, and what a page receives.

python -m benchmarks.timeline             # a million steps: two minutes
python -m benchmarks.timeline --quick     # small numbers: checks that it works
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Final

from starlette.testclient import TestClient

from benchmarks import traffic
from hookcore.records import Event, Tap
from hookcore_app.main import create_app
from hookcore_app.runs import Run, Runs
from hookcore_app.settings import ServerSettings
from tests.build import frame, open_run, stats_of

SHORT: Final = 2_000
LONG: Final = 1_000_000
QUICK: Final = 20_000
EVENTS: Final = 200  # in either
ROUNDS: Final = 15
MORE_TIME: Final = 2.0  # times that of the short run
MORE_BYTES: Final = 1.2
PLACES: Final = {"part of a page": "/runs/{}/timeline?part=line", "REST": "/api/v1/timeline?run={}"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both, interleaved, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers")
    chosen = parser.parse_args(arguments)
    runs = Runs(ServerSettings(memory=2**30))
    sizes = {"short": SHORT, "long": QUICK if chosen.quick else LONG}
    for name, steps in sizes.items():
        started = time.perf_counter()
        fill(open_run(runs, name), steps)
        print(f"{name}: {steps:,} steps, filled in {time.perf_counter() - started:.0f} s", flush=True)
    client = TestClient(create_app(runs, runs.settings), base_url="http://127.0.0.1")
    for what, path in PLACES.items():
        taken: dict[str, list[float]] = {name: [] for name in sizes}
        nbytes = {}
        for _ in range(ROUNDS):
            for name in sizes:
                run = runs.get(name)
                assert run is not None
                append(run, (run.store.steps().newest or 0) + 1)  # so that nothing was computed before
                started = time.perf_counter()
                answer = client.get(path.format(name))
                taken[name].append(time.perf_counter() - started)
                assert answer.status_code == 200, answer.text
                nbytes[name] = len(answer.content)
        best = {name: min(times) for name, times in taken.items()}
        print(", ".join(f"{what}, {name}: {best[name] * 1e3:.1f} ms, {nbytes[name]:,} bytes" for name in sizes))
        traffic.judge(f"{what}: time of the long run over the short one", best["long"] / best["short"], MORE_TIME, "x")
        traffic.judge(f"{what}: bytes", nbytes["long"] / nbytes["short"], MORE_BYTES, "x")


def fill(run: Run, steps: int) -> None:
    """Fill a run with a loss, two tensors, and some events."""
    run.store.announce([Tap("a", "output"), Tap("b", "output")])
    for step in range(steps):
        append(run, step, tells=step % (steps // EVENTS) == 0)


def append(run: Run, step: int, tells: bool = False) -> None:
    """Append a step."""
    told = (Event(step, 0.0, "note", "now and then", "warning"),) if tells else ()
    loss = {"loss": 2.0 + math.sin(step / 1000)}
    run.store.append(frame(step, stats_of(2, 1.0, inf=0, nan=0), scalars=loss, events=told))


if __name__ == "__main__":
    main()
