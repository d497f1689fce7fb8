"""The view of a frame that a user's rule receives, and the problems that it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hookcore.errors import ArgumentError
from hookcore.records import SEVERITIES, STAT_COLUMN, STATS, Frame, Kind, Severity, Tap


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule's finding: a message, a severity, and a module, if the finding is about one."""

    message: str
    severity: Severity = "warning"
    module: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.message, str) or not self.message.strip():
            raise ArgumentError(f"message={self.message!r} is invalid: say in a few words what is wrong")
        if self.severity not in SEVERITIES:
            raise ArgumentError(f"severity={self.severity!r} is invalid: it must be one of {', '.join(SEVERITIES)}")
        if not isinstance(self.module, str):
            raise ArgumentError(f"module={self.module!r} is invalid: give the path of a module, such as 'layers.0'")


@dataclass(frozen=True, slots=True)
class TensorView:
    """One tensor in a frame. Its stats are attributes: `mean`, `rms`, `nan`, and so on."""

    module: str
    kind: Kind
    index: str
    call: int
    phase: str
    _row: Sequence[float]

    def __getattr__(self, name: str) -> float:
        column = STAT_COLUMN.get(name)
        if column is None:
            raise AttributeError(f"a tensor has no {name!r}: its stats are {', '.join(STATS)}")
        return float(self._row[column])


@dataclass(frozen=True, slots=True)
class FrameView:
    """The data captured in one step. Read-only."""

    step: int
    time_s: float
    scalars: Mapping[str, float]
    _frames: Sequence[Frame]  # the newest is this one
    _taps: Sequence[Tap]

    @property
    def tensors(self) -> Iterator[TensorView]:
        """All captured tensors, in the order in which they were seen first."""
        frame = self._frames[-1]
        for row in range(len(frame.taps)):
            yield self._view(frame, row)

    def tensor(self, module: str, kind: Kind = "output", index: str | None = None) -> TensorView | None:
        """Return one tensor, the first that fits; None if it wasn't captured in this step."""
        found = next(self._rows_of(self._frames[-1:], module, kind, index), None)
        return None if found is None else self._view(*found)

    def series(self, module: str, stat: str, kind: Kind = "output", index: str | None = None) -> list[float]:
        """Return a stat in the newest captured steps, at most 64, oldest first."""
        if stat not in STAT_COLUMN:
            raise ArgumentError(f"{stat!r} is not a stat: the stats are {', '.join(STATS)}")
        rows = self._rows_of(self._frames, module, kind, index)
        return [float(frame.stats[row, STAT_COLUMN[stat]]) for frame, row in rows]

    def logged(self, name: str) -> list[float]:
        """Return a logged scalar in the newest steps, oldest first."""
        return [frame.scalars[name] for frame in self._frames if name in frame.scalars]

    def _rows_of(
        self, frames: Sequence[Frame], module: str, kind: Kind, index: str | None
    ) -> Iterator[tuple[Frame, int]]:
        """Yield the first row that fits of each frame that has one."""
        fitting = [
            number
            for number, tap in enumerate(self._taps)
            if tap.module == module and tap.kind == kind and index in (None, tap.index)
        ]
        taps, rows = None, np.empty(0, np.intp)
        for frame in frames:
            if frame.taps is not taps:  # most frames share one array
                taps, rows = frame.taps, np.flatnonzero(np.isin(frame.taps, fitting))
            if len(rows):
                yield frame, int(rows[0])

    def _view(self, frame: Frame, row: int) -> TensorView:
        tap = self._taps[int(frame.taps[row])]
        return TensorView(tap.module, tap.kind, tap.index, tap.call, tap.phase, frame.stats[row])
