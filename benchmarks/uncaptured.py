"""What a step costs the training thread that isn't captured: Python calls, and processor time.

    python -m benchmarks.uncaptured [--turns 60]

One process trains the same model untouched, paused, in steps that aren't captured, in such steps whose calls are held
for capsules, and in such steps in which the script logs a number. Turns of 50 steps alternate. Their processor time is
compared with that of the untouched turn of the same round, which cancels most of what other work on the machine does. A
call is one of a Python function of hookcore.
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
}
_FOLDER: Final = str(Path(hookcore.__file__).parent)


class Way:
    """A training of its own, whose watcher is taken off between its turns."""

    def __init__(self, pause: bool = False, watched: bool = True, logs: bool = False, **given: Any) -> None:
        torch.manual_seed(0)
        self._aside = ExitStack()
        training = small_mlp()
        self._step: Callable[[], None] = training.step
        self._watcher: hookcore.Watcher | None = None
        self._logs = logs
        if watched:
            self._watcher = hookcore.watch(training.model, server=None, every=NEVER, budget=None, **given)
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

    def calls(self) -> int:
        """Return the smallest number of calls in some steps: rare ones do more."""
        self._aside.close()
        self._train(3)
        counts = [_count(self._run) for _ in range(16)]
        self._take_off()
        return min(counts)


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
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    print(describe_machine())
    untouched, ways = Way(watched=False), {name: Way(**given) for name, given in WAYS.items()}
    rounds = [(untouched.turn(), [way.turn() for way in ways.values()]) for _ in range(turns)]
    base = np.array([plain for plain, _ in rounds])
    print(f"untouched: {np.median(base):.0f} us a step")
    for place, (name, way) in enumerate(ways.items()):
        more = np.array([each[place] for _, each in rounds]) - base
        low, median, high = np.quantile(more, [0.25, 0.5, 0.75])
        print(f"{name}: {way.calls()} calls, {median:.0f} us more [{low:.0f} to {high:.0f}]")


if __name__ == "__main__":
    main()
