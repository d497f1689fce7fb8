"""Comparison of ways to do the same work on a noisy machine: they take turns, and ratios are taken within a turn."""

from __future__ import annotations

import gc
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, with their quartiles."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, figures: Seconds) -> Spread:
        """Return the spread of figures, one per round."""
        low, median, high = np.quantile(figures, [0.25, 0.5, 0.75]).tolist()
        return cls(median, low, high, len(figures))

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f} to {self.high:.3f}]"

    def as_dict(self) -> dict[str, float]:
        """Return the figures under their names, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a benchmark: about this many seconds and at least a few rounds, or an exact number of rounds."""

    seconds: float
    least: int = 5
    rounds: int | None = None

    def is_over(self, done: int, started: float) -> bool:
        """Return whether this many rounds are enough."""
        if self.rounds is not None:
            return done >= self.rounds
        return done >= self.least and time.perf_counter() - started >= self.seconds


def take_turns(tasks: Mapping[str, Callable[[], float]], length: Length, seed: int = 0) -> dict[str, Seconds]:
    """Return each task's result in each round. A task does a short piece of work and returns its duration.

    The order differs in every round, so that no task always follows the same other one.
    """
    order, shuffle = list(tasks), random.Random(seed).shuffle
    figures: dict[str, list[float]] = {name: [] for name in tasks}
    started, done = time.perf_counter(), 0
    gc.freeze()  # existing objects need no check before every turn
    try:
        while not length.is_over(done, started):
            shuffle(order)
            for name in order:
                figures[name].append(tasks[name]())
            done += 1
    finally:
        gc.unfreeze()
    return {name: np.array(values) for name, values in figures.items()}


@contextmanager
def no_collection() -> Iterator[None]:
    """Run the garbage collector before and after, never inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds_each(call: Callable[[], object], times: int) -> float:
    """Return the mean time of a call. A mean, because occasional work of a background thread is part of the cost."""
    with no_collection():
        started = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - started) / times


def describe_machine() -> str:
    """Return one line about the machine."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"Python {platform.python_version()}, load average {load:.1f} at the start"
    )


@contextmanager
def busy(many: int) -> Iterator[None]:
    """Keep cores busy with other processes."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(many)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()
