"""The processor time that holding the model's call takes in an uncaptured step.

    python -m benchmarks.holding [--turns 2000]

A model with one small layer trains; turns of a few steps with and without holding alternate, and the fastest turn of
each kind counts, because other work on the machine only makes a turn longer. The time is that of the training thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any, Final

import torch
from torch import nn

import hookcore
from benchmarks.timing import describe_machine
from hookcore.watcher import parts_of

STEPS: Final = 5  # of a turn
NEVER: Final = 1 << 20  # steps between two captured ones


def measure(turns: int) -> float:
    """Return the microseconds that holding adds to a step."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = torch.randn(2, 4)

    def train(steps: int) -> None:
        for _ in range(steps):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    with hookcore.watch(model, server=None, capsule="error", budget=None, every=NEVER) as watcher:
        keeper: Any = parts_of(watcher).recorder.capture.dispatcher.keeper
        fastest = {"never": float("inf"), "error": float("inf")}
        for _ in range(turns):
            for when in fastest:
                keeper._plan = dataclasses.replace(keeper._plan, when=when)
                parts_of(watcher).recorder.steps.steady.leave()  # a plan never changes otherwise
                train(3)
                began = time.thread_time_ns()
                train(STEPS)
                fastest[when] = min(fastest[when], (time.thread_time_ns() - began) / STEPS / 1000)
    return fastest["error"] - fastest["never"]


def main() -> None:
    """Print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    given = parser.parse_args()
    print(describe_machine())
    print(f"holding the call of an uncaptured step: {measure(given.turns):.1f} us of processor time")


if __name__ == "__main__":
    main()
