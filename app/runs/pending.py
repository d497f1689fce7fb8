"""The steps that wait for ranks, and the known state of each rank."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Event, Frame, SketchBlock, Tap
from hookcore.store.rankstep import StepOfRanks

_FRAME_BYTES: Final = 2000  # the Python objects around the arrays
_ENTRY_BYTES: Final = 100  # a scalar, a label, or an event


@dataclass(slots=True)
class RankProgress:
    """The known state of one rank."""

    rank: int
    taps: Callable[[], Sequence[Tap]] = tuple
    newest: int = -1
    open: bool = True  # frames are expected
    measures: bool = False  # some of its frames had rows
    late: int = 0  # frames that came too late for the sum
    missed: int = 0  # steps that were added up without it
    begins: int = 0  # the sum lacks its steps before this one
    trained: int = 0  # of one that has left: how many steps it trained, as far as it has said so
    is_gone: bool = False  # it has left, but not because it was through
    unknown_rows: int = 0  # rows whose owner is unknown in its newest frame
    lanes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # of its taps

    @property
    def end(self) -> int:
        """The step after those that it has trained, captured or not, as far as is known."""
        return max(self.newest + 1, self.trained)

    @property
    def is_silent(self) -> bool:
        """Whether it has ended, says that it trained, and sent no values."""
        return not self.open and not self.measures and self.trained > 0

    def absence(self, step: int) -> tuple[str, str] | None:
        """Return the name and the words of an event if it has left and a step lacks it; None if nothing is missing."""
        if self.is_gone and step >= self.end:
            return "rank-gone", f"has crashed or is lost: the sums from step {step:,} on don't include it"
        if self.is_silent and step < self.trained:
            why = f"reported {self.trained:,} trained steps, but it sent no values: the sums don't include it"
            return "rank-silent", why
        return None


@dataclass(slots=True)
class Pending:
    """A step that waits for ranks."""

    rows: StepOfRanks
    since: float
    frames: dict[int, Frame] = field(default_factory=dict)  # the last one of each rank, for all that isn't a row
    scalars: dict[int, dict[str, float]] = field(default_factory=dict)
    labels: dict[int, dict[str, str]] = field(default_factory=dict)
    events: list[tuple[int, Event]] = field(default_factory=list)
    waiting: list[tuple[int, Frame]] = field(default_factory=list)  # with taps that no step has had yet
    measured: set[int] = field(default_factory=set)  # ranks that sent rows
    nbytes: int = 0  # of all but the rows
    size: int = 0  # with them, when the last frame came

    def note(self, rank: int, frame: Frame) -> None:
        """Keep everything in a frame except its rows."""
        self.scalars.setdefault(rank, {}).update(frame.scalars)
        self.labels.setdefault(rank, {}).update(frame.labels)
        self.events += [(rank, event) for event in frame.events]
        about, before = without_rows(frame), self.frames.get(rank)
        self.frames[rank] = about if before is None else _joined(before, about)
        entries = len(frame.scalars) + len(frame.labels) + len(frame.events)
        self.nbytes += _FRAME_BYTES + _ENTRY_BYTES * entries

    def skipping(self, step: int, ranks: Iterable[RankProgress]) -> list[int]:
        """Return the ranks that didn't capture this step, which others captured."""
        if not self.measured:
            return []
        trained = (each for each in ranks if each.measures and step < each.end)
        return [each.rank for each in trained if each.rank not in self.measured]

    def all_labels(self) -> dict[str, str]:
        """Return the labels of all ranks. Those of the lowest rank count."""
        ranks = sorted(self.labels, reverse=True)
        return {name: text for rank in ranks for name, text in self.labels[rank].items()}


class Backlog:
    """The steps that wait for some rank, in their order."""

    def __init__(self) -> None:
        self._steps: dict[int, Pending] = {}
        self._order: list[int] = []  # a heap
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def first(self) -> tuple[int, Pending] | None:
        """The first step."""
        return (self._order[0], self._steps[self._order[0]]) if self._order else None

    def at(self, step: int) -> Pending | None:
        """Return what waits of a step."""
        return self._steps.get(step)

    def add(self, step: int, pending: Pending) -> None:
        """Add a step."""
        self._steps[step] = pending
        heapq.heappush(self._order, step)

    def measure(self, pending: Pending) -> None:
        """Note that a step takes more memory now."""
        size = pending.nbytes + pending.rows.nbytes
        self.nbytes, pending.size = self.nbytes + size - pending.size, size

    def take_first(self) -> tuple[int, Pending]:
        """Return the first step, which waits no longer."""
        step = heapq.heappop(self._order)
        pending = self._steps.pop(step)
        self.nbytes -= pending.size
        return step, pending


def bytes_of(frame: Frame) -> int:
    """Return about how much memory a frame takes."""
    return frame.stats.nbytes + frame.sketches.bins.nbytes * 3 + _FRAME_BYTES


def _joined(one: Frame, other: Frame) -> Frame:
    """Return what two parts of a rank's step say, without their rows."""
    return replace(
        other,
        time_s=max(one.time_s, other.time_s),
        micro_batches=max(one.micro_batches, other.micro_batches),
        grad_scale=one.grad_scale if other.grad_scale is None else other.grad_scale,
        elapsed_s=one.elapsed_s if other.elapsed_s != other.elapsed_s else other.elapsed_s,
        flow=one.flow or other.flow,
    )


def without_rows(frame: Frame) -> Frame:
    none = np.empty(0, np.uint32)
    return replace(frame, taps=none, stats=frame.stats[:0].copy(), sketches=SketchBlock.empty(0), owners=None)
