"""What a step costs the training thread, captured or not: Python calls, and processor time.

    python -m benchmarks.uncaptured [--turns 60] [--loop plain | two | turns | scaled | parts]

One process trains the same model untouched, paused, in steps that aren't captured, in such steps whose calls are held
for capsules, in such steps in which the script logs a number, with every eighth step captured, and with every step. A
loop has one optimizer, two of them behind one backward pass, two that take turns, one with a scaler, or one behind
four backward passes.
Figures are per turn of it, and 50 of these alternate. Their processor time is compared with that of the untouched ones
of the same round, which cancels most of what other work on the machine does. A call is one of a Python function of
hookcore.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import hookcore
from benchmarks.models import small_mlp
from benchmarks.timing import describe_machine

STEPS: Final = 50  # of a turn
SETTLE_STEPS: Final = 150  # after which the optimizers are known
NEVER: Final = 1 << 20  # steps between two captured ones
WAYS: Final[dict[str, dict[str, Any]]] = {
    "paused": {"pause": True},
    "not captured": {"capsule": "never"},
    "not captured, calls held": {"capsule": "error"},
    "not captured, a number logged": {"capsule": "never", "logs": True},
    "every eighth captured, the usual kinds": {"every": 8},
    "captured, leaves": {"every": 1, "include": "is:leaf", "kinds": {"output", "output_grad"}},
    "captured, the usual kinds": {"every": 1},
}


def _make_loop(name: str) -> tuple[nn.Module, Callable[[], None]]:
    """Return a model and one turn of a loop."""
    if name == "plain":
        training = small_mlp()
        return training.model, training.step
    first, last = nn.Sequential(nn.Linear(784, 256), nn.ReLU()), nn.Linear(256, 10)
    model, batch = nn.Sequential(first, last), torch.randn(32, 784)
    parts = (first, last) if name in ("two", "turns") else (model,)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=name == "scaled")
    behind = [[each] for each in optimizers] if name == "turns" else [optimizers]

    def turn() -> None:
        for stepped in behind:
            for each in stepped:
                each.zero_grad()
            for _ in range(4 if name == "parts" else 1):
                scaler.scale(model(batch).square().mean()).backward()  # type: ignore[no-untyped-call]
            for each in stepped:
                scaler.step(each)
            scaler.update()

    return model, turn


_FOLDER: Final = str(Path(hookcore.__file__).parent)


class Way:
    """A training of its own, whose watcher is taken off between its turns."""

    def __init__(self, loop: str, pause: bool = False, watched: bool = True, logs: bool = False, **given: Any) -> None:
        torch.manual_seed(0)
        self._aside = ExitStack()
        model, self._step = _make_loop(loop)
        self._watcher: hookcore.Watcher | None = None
        self._logs = logs
        if watched:
            self._watcher = hookcore.watch(model, server=None, budget=None, **{"every": NEVER, **given})
            if pause:
                self._watcher.pause()
        self._train(SETTLE_STEPS)
        self._take_off()

    def _train(self, steps: int) -> None:
        for _ in range(steps):
            self._run()

    def _run(self) -> None:
        self._step()
        if self._logs and self._watcher is not None:
            self._watcher.log(accuracy=1.0)

    def _take_off(self) -> None:
        if self._watcher is not None:
            self._watcher.flush()
            self._aside.enter_context(hookcore.detached())

    def turn(self) -> float:
        """Return the microseconds of processor time of a step."""
        self._aside.close()
        self._train(3)
        began = time.thread_time_ns()
        self._train(STEPS)
        took = (time.thread_time_ns() - began) / STEPS / 1000
        self._take_off()
        return took

    def calls(self) -> tuple[int, float]:
        """Return the smallest number of calls in some steps, and the mean: rare ones do more."""
        self._aside.close()
        self._train(3)
        counts = [_count(self._run) for _ in range(128)]
        self._take_off()
        return min(counts), sum(counts) / len(counts)


def _count(step: Callable[[], None]) -> int:
    made = 0

    def saw(frame: Any, event: str, _: Any) -> None:
        nonlocal made
        made += event == "call" and frame.f_code.co_filename.startswith(_FOLDER)

    sys.setprofile(saw)
    try:
        step()
    finally:
        sys.setprofile(None)
    return made


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--loop", choices=("plain", "two", "turns", "scaled", "parts"), default="plain")
    chosen = parser.parse_args()
    turns, loop = chosen.turns, chosen.loop
    torch.set_num_threads(1)
    print(describe_machine())
    untouched, ways = Way(loop, watched=False), {name: Way(loop, **given) for name, given in WAYS.items()}
    rounds = [(untouched.turn(), [way.turn() for way in ways.values()]) for _ in range(turns)]
    base = np.array([plain for plain, _ in rounds])
    print(f"untouched: {np.median(base):.0f} us a step")
    for place, (name, way) in enumerate(ways.items()):
        more = np.array([each[place] for _, each in rounds]) - base
        low, median, high = np.quantile(more, [0.25, 0.5, 0.75])
        least, mean = way.calls()
        print(f"{name}: {least} calls, {mean:.0f} on average, {median:.0f} us more [{low:.0f} to {high:.0f}]")


if __name__ == "__main__":
    main()
