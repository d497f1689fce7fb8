"""Layers and logged values that differ in some steps of a run, the largest difference first."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from hookcore.reading.answers.base import Answer, Floats, Number, Tabular, Tap, tap_columns


class StepSample(Answer, frozen=True):
    """The steps that were compared. Older steps are kept as sums, so these may be more than the requested ones."""

    run: str
    first: int | None
    last: int | None
    steps: Annotated[int, Meta(description="the number of captured steps with histograms")]


class DifferentLayer(Answer, frozen=True, eq=False):
    """A tap whose values are distributed differently: counts[i][j] values lie between edges[j] and edges[j + 1]."""

    tap: Tap
    share: Annotated[
        Number,
        Meta(description="the share of values that would have to move to make both histograms match, beyond chance"),
    ]
    usual: Annotated[
        Number | None,
        Meta(description="the median share of other windows of equal length; null if there are fewer than two"),
    ]
    message: Annotated[str, Meta(description="what is different, in words")]
    edges: Floats
    inside: Floats
    outside: Floats
    values: Annotated[tuple[int, int], Meta(description="the number of sampled values inside and outside")]
    nonfinite: Annotated[tuple[int, int], Meta(description="the number of NaN and infinities among these")]

    @property
    def is_usual(self) -> bool:
        """Whether other windows of as many steps differ as much."""
        return self.usual is not None and self.share <= self.usual


class DifferentScalar(Answer, frozen=True):
    """A logged value that differs: mean and extremes of its finite values. Each pair is inside and outside."""

    name: str
    share: Number
    message: str
    mean: tuple[Number, Number]
    low: tuple[Number, Number]
    high: tuple[Number, Number]


class Differences(Tabular, frozen=True, eq=False):
    """What differs most between some steps and others, largest share first."""

    inside: StepSample
    outside: StepSample
    compared: Annotated[int, Meta(description="the number of taps with values in both")]
    not_compared: Annotated[int, Meta(description="the number of taps without values in one of them")]
    layers: tuple[DifferentLayer, ...]
    logged: tuple[DifferentScalar, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each layer."""
        found = tap_columns([each.tap for each in self.layers])
        found["share"] = np.array([each.share for each in self.layers], np.float64)
        found["usual"] = np.array([np.nan if each.usual is None else each.usual for each in self.layers], np.float64)
        found["message"] = [each.message for each in self.layers]
        return found
