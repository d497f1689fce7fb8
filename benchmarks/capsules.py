"""What `hookcore.capsules.record` adds to a training step, and how long a replay takes.

    python -m benchmarks.capsules [--seconds 10]

Steps with and without `record` take turns; a replay runs after them, in the same process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.models import Training, narrow_net, resnet18, small_gpt, small_mlp
from benchmarks.timing import Length, Spread, describe_machine, seconds_each, take_turns
from hookcore.capsules import record, replay

MODELS = {"MLP": small_mlp, "ResNet-18": resnet18, "GPT": small_gpt, "240 narrow layers": narrow_net}
STEPS_S = 0.2  # a turn is as many steps as fit in this time


def compare(training: Training, length: Length, path: Path) -> tuple[Spread, float]:
    """Return the ratio of recorded to unrecorded steps, and that of the replay."""
    times = max(1, int(STEPS_S / seconds_each(training.step, 3)))

    def recorded() -> float:
        with record(training.model, path):
            return seconds_each(training.step, times)

    found = take_turns({"plain": lambda: seconds_each(training.step, times), "recorded": recorded}, length)
    with record(training.model, path, "asked") as recording:
        training.step()
        recording.write()
    replay(path)
    started = time.perf_counter()
    replay(path)
    plain = Spread.of(found["plain"]).median
    return Spread.of(found["recorded"] / found["plain"]), (time.perf_counter() - started) / plain


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each model (default: 10)")
    given = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{os.getpid()}.capsule"
        for name, make in MODELS.items():
            ratio, replayed = compare(make(), Length(given.seconds), path)
            print(f"{name}: step with record {ratio} of the step, replay {replayed:.1f} times the step")


if __name__ == "__main__":
    main()
