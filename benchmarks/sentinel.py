"""The processor time that the look at each step takes, in real trainings that capture almost no step.

    python -m benchmarks.sentinel [--steps 200]

The time of the training thread is measured around each call, less what the clock itself takes. The lower quartile is
printed, because other work on the machine only makes a call longer. Between two steps, the model has displaced the
code and data of the look from the processor's caches; `warm` is the same look without a training in between. This is
the look in Python: in most steps, the extension looks itself, as a part of what `benchmarks.uncaptured` measures.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Final

import torch

import hookcore
from benchmarks.models import MODELS
from hookcore.recorder.clock import steady
from hookcore.recorder.measured.sentinel import Sentinel

LOOKS: Final = ("glance", "look", "look_before_step", "begin_step")  # glances go before looks, most of them alone
SETTLE_STEPS: Final = 80  # after which the optimizers are known
WARM: Final = 2000


class Timed:
    """A method of the sentinel that notes how long each call takes, in nanoseconds."""

    def __init__(self, name: str) -> None:
        self._name, self._method = name, getattr(Sentinel, name)
        self.times: list[int] = []
        self.arguments: tuple[Any, ...] = ()  # of the last call

    def on(self) -> None:
        """Put it in the method's place."""
        setattr(Sentinel, self._name, lambda *arguments: self.call(self._method, arguments))

    def off(self) -> None:
        """Put the method back."""
        setattr(Sentinel, self._name, self._method)

    def call(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call the method and note the time."""
        began = time.thread_time_ns()
        result = method(*arguments)
        self.times.append(time.thread_time_ns() - began)
        self.arguments = arguments
        return result

    def warm(self) -> float:
        """Return the microseconds of the last call, made again and again, each time as if in another step."""
        sentinel = self.arguments[0]
        began = time.thread_time_ns()
        for _ in range(WARM):
            sentinel._now.step = -1
            self._method(*self.arguments)
        return (time.thread_time_ns() - began) / WARM / 1000


def lower_quartile(times: list[int]) -> float:
    """Return it in microseconds."""
    return sorted(times)[len(times) // 4] / 1000


def clock_time() -> float:
    """Return the microseconds that it takes to note an empty call."""
    empty = Timed("begin_step")
    for _ in range(WARM):
        empty.call(lambda *_: None, ())
    return lower_quartile(empty.times)


def measure(name: str, steps: int) -> tuple[dict[str, float], float]:
    """Return the microseconds of each call of the sentinel in a training of a model, and of a warm look."""
    torch.manual_seed(0)
    training = MODELS[name]()
    looks = {look: Timed(look) for look in LOOKS}
    with hookcore.watch(training.model, server=None, every=100_000):
        for _ in range(SETTLE_STEPS):
            training.step()
        for look in looks.values():
            look.on()
        try:
            for _ in range(steps):
                training.step()
        finally:
            for look in looks.values():
                look.off()
        warm = min(looks["glance"].warm() for _ in range(5))
    clock = clock_time()
    usual = {name: look.times for name, look in looks.items() if 2 * len(look.times) > steps}  # not the rare ones
    return {name: max(0.0, lower_quartile(times) - clock) for name, times in usual.items()}, warm


def main() -> None:
    """Print the figures of each model."""
    parser = argparse.ArgumentParser(description="Measures the look at each step.")
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    steady._TRACKS = False  # type: ignore[misc]
    for name in MODELS:
        found, warm = measure(name, steps)
        parts = ", ".join(f"{look} {value:.1f}" for look, value in found.items())
        print(f"{name:16} {sum(found.values()):6.1f} us per step ({parts}); warm: {warm:.1f} us per look", flush=True)


if __name__ == "__main__":
    main()
