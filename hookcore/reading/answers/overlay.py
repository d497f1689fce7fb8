"""Values of many runs over time, in one answer."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from hookcore.reading.answers.base import Answer, Floats, Integers, Tabular

_PARTS = ("first_step", "last_step", "mean", "min", "max", "nonfinite", "runs")


class OverlayLine(Answer, frozen=True, eq=False):
    """A run, or the mean of a group of runs with their smallest and largest value."""

    run: Annotated[str | None, Meta(description="null for the mean of a group")]
    name: Annotated[str, Meta(description="the name of the run, or the value that the runs of the group share")]
    group: Annotated[str, Meta(description="the run's value of `group_by`; empty without one")]
    source: Annotated[str, Meta(description="the scalar or tap that was found; empty for a group")]
    first_step: Integers
    last_step: Integers
    mean: Floats
    min: Floats
    max: Floats
    nonfinite: Annotated[Integers, Meta(description="the number of steps with a NaN or infinite value")]
    runs: Annotated[Integers, Meta(description="the number of runs with a value")]


class Overlay(Tabular, frozen=True):
    """The same values of many runs. `without` lists the runs that have none."""

    what: Annotated[str, Meta(description="a scalar, or a stat of a tap")]
    group_by: str
    lines: tuple[OverlayLine, ...]
    without: tuple[str, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each point of each line."""
        sizes = [len(line.mean) for line in self.lines]
        pairs = list(zip(self.lines, sizes, strict=True))
        columns: dict[str, Any] = {
            "run": [line.run or "" for line, size in pairs for _ in range(size)],  # none of a group
            "name": [line.name for line, size in pairs for _ in range(size)],
            "group": [line.group for line, size in pairs for _ in range(size)],
        }
        for part in _PARTS:
            arrays = [getattr(line, part) for line in self.lines]
            columns[part] = np.concatenate(arrays) if arrays else np.empty(0)
        return columns
