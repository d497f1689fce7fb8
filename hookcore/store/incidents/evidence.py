"""Takes the values around an onset while they are still exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records import Tap
from hookcore.records.vocabulary import GRAD_SCALE, OWN, loss_rank
from hookcore.store.incidents.incident import Evidence, Floats, Logged, Steps
from hookcore.store.incidents.order import TURN

AROUND: Final = 50  # captured steps on either side
MAX_LOGGED: Final = 12
_BESIDE: Final = 2  # neighbors of the same kind, on either side
_OF_MODULE: Final = 3  # other tensors of the culprit's module

# Reads the exact rows from a step on, and some before it: the steps, and the values [column, step, lane].
ReadRows = Callable[[Sequence[int], int, int], tuple[Steps, Floats]]


@dataclass(slots=True)
class Window:
    """Rows of some lanes around a step, exact however the store merges them later."""

    lanes: tuple[int, ...]
    begin: int
    read: ReadRows
    steps: Steps
    values: Floats

    @classmethod
    def open(cls, lanes: Sequence[int], begin: int, read: ReadRows) -> Window:
        """Take what there is up to the onset."""
        return cls(tuple(lanes), begin, read, *read(lanes, begin, AROUND))

    @property
    def is_complete(self) -> bool:
        """Whether enough steps after the onset have been taken."""
        return len(self.steps) - int(np.searchsorted(self.steps, self.begin)) > AROUND

    @property
    def nbytes(self) -> int:
        """The memory that it takes when it is complete."""
        return (2 * AROUND + 1) * 8 * (1 + len(self.values) * len(self.lanes))

    def extend(self) -> None:
        """Take the data that has since arrived, and the newest step again, which may have another part."""
        if self.is_complete or not self.lanes:
            return
        known = slice(0, max(0, len(self.steps) - 1))
        first = int(self.steps[-1]) if len(self.steps) else self.begin
        steps, values = self.read(self.lanes, first, 0)
        end = int(np.searchsorted(self.steps, self.begin)) + AROUND + 1
        self.steps = np.concatenate([self.steps[known], steps])[:end]
        self.values = np.concatenate([self.values[:, known], values], axis=1)[:, :end]


@dataclass(slots=True)
class Gathering:
    """The evidence of an incident while it is taken."""

    taps: tuple[Tap, ...]
    names: tuple[str, ...]
    stats: Window
    logged: Window

    @property
    def is_complete(self) -> bool:
        """Whether the steps after the onset have been taken."""
        return self.stats.is_complete

    @property
    def nbytes(self) -> int:
        """The memory that it takes when it is complete."""
        return self.stats.nbytes + self.logged.nbytes

    def extend(self) -> None:
        """Take the data that has since arrived."""
        self.stats.extend()
        self.logged.extend()

    def evidence(self) -> Evidence:
        """Return the evidence so far."""
        logged = []
        for place, name in enumerate(self.names):
            present = self.logged.values[0, :, place] == 1
            logged.append(Logged(name, self.logged.steps[present], self.logged.values[-1, present, place]))
        shown = tuple(each for each in logged if len(each.steps))
        return Evidence(self.stats.lanes, self.taps, self.stats.steps, self.stats.values, shown)


def neighbors_of(culprit: int, taps: Sequence[Tap]) -> list[int]:
    """Return the culprit, other tensors of its module, and the tensors of its kind before and after it."""
    tap = taps[culprit]
    own = [number for number, each in enumerate(taps) if each.module == tap.module and number != culprit]
    own.sort(key=lambda number: (abs(TURN[taps[number].kind] - TURN[tap.kind]), number))
    alike = [number for number, each in enumerate(taps) if (each.kind, each.phase) == (tap.kind, tap.phase)]
    place = alike.index(culprit)
    beside = alike[max(0, place - _BESIDE) : place] + alike[place + 1 : place + 1 + _BESIDE]
    return list(dict.fromkeys([culprit, *own[:_OF_MODULE], *beside]))


def worth_showing(names: Sequence[str]) -> list[str]:
    """Return the logged values that explain most: the loss scale, losses, learning rates, and then others."""
    wanted = [name for name in names if name == GRAD_SCALE or not name.startswith(OWN)]
    return sorted(wanted, key=lambda name: (name != GRAD_SCALE, loss_rank(name), "lr" not in name))[:MAX_LOGGED]
