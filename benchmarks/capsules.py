"""What capsules add to a training step, and how long a replay takes.

    python -m benchmarks.capsules [--seconds 10]

Four kinds of steps take turns: unwatched; inside `hookcore.capsules.record`; watched at every step; and watched at
every step with `capsule="error"`, which keeps each step in case it becomes non-finite. A replay runs after them, in the
same process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hookcore
from benchmarks.models import Training, narrow_net, resnet18, small_gpt, small_mlp
from benchmarks.timing import Length, Spread, describe_machine, seconds_each, take_turns
from hookcore.capsules import record, replay

MODELS = {"MLP": small_mlp, "ResNet-18": resnet18, "GPT": small_gpt, "240 narrow layers": narrow_net}
WARM_UP = 3  # steps of a new watch that are not timed
STEPS_S = 0.2  # a turn is as many steps as fit in this time


@dataclass(frozen=True, slots=True)
class Cost:
    """Ratios to an unwatched step; `armed` is the ratio of steps that are kept to those that are only watched."""

    recorded: Spread
    armed: Spread
    replay: float


def compare(training: Training, length: Length, path: Path) -> Cost:
    """Return what each kind of step costs."""
    times = max(1, int(STEPS_S / seconds_each(training.step, 3)))

    def recorded() -> float:
        with record(training.model, path):
            return seconds_each(training.step, times)

    def watched(capsule: Any) -> float:
        with hookcore.watch(training.model, server=None, budget=None, capsule=capsule):
            seconds_each(training.step, WARM_UP)
            return seconds_each(training.step, times)

    turns = {
        "plain": lambda: seconds_each(training.step, times),
        "recorded": recorded,
        "watched": lambda: watched("never"),
        "armed": lambda: watched("error"),
    }
    found = take_turns(turns, length)
    with record(training.model, path, "asked") as recording:
        training.step()
        recording.write()
    replay(path)
    started = time.perf_counter()
    replay(path)
    plain = Spread.of(found["plain"]).median
    elapsed = time.perf_counter() - started
    recorded_cost, armed_cost = found["recorded"] / found["plain"], found["armed"] / found["watched"]
    return Cost(Spread.of(recorded_cost), Spread.of(armed_cost), elapsed / plain)


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each model (default: 10)")
    given = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{os.getpid()}.capsule"
        for name, make in MODELS.items():
            cost = compare(make(), Length(given.seconds), path)
            print(
                f"{name}: with record {cost.recorded} of a step; watched and kept {cost.armed} of a watched step; "
                f"replay {cost.replay:.1f} times a step",
                flush=True,
            )


if __name__ == "__main__":
    main()
