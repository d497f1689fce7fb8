"""Two runs, layer by layer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from hookcore.reading.answers.base import (
    Answer,
    FloatMatrix,
    Floats,
    Integers,
    Number,
    Page,
    States,
    Tabular,
    Tap,
    tap_columns,
)
from hookcore.reading.answers.series import Row, shape_cells
from hookcore.store.tables import span_columns


class Apart(Answer, frozen=True):
    """The difference between two runs in one layer or logged value that both have."""

    outcome: Literal["different", "not compared", "NaN in both", "no difference"]
    points: Annotated[int, Meta(description="the number of compared points: steps, or merged older steps")]
    steps: Annotated[int, Meta(description="the number of steps in these points")]
    parts_at: Annotated[
        int | None,
        Meta(
            description="the first step with a difference larger than the tolerance, or the first of the merged steps "
            "that contain it"
        ),
    ]
    parts_by: Annotated[int | None, Meta(description="the last of these; the same as parts_at if they aren't merged")]
    largest: Annotated[
        Number, Meta(description="the largest magnitude of the differences; NaN if nothing was compared")
    ]
    share: Annotated[
        Number,
        Meta(
            description="the largest as a share of the larger magnitude; Infinity if only one run has a finite value, "
            "NaN if nothing was compared"
        ),
    ]
    at_step: Annotated[int | None, Meta(description="the step of the largest share")]
    nonfinite: Annotated[int, Meta(description="points at which both runs have NaN or infinities")]
    nonfinite_at: Annotated[
        int | None,
        Meta(description="the first step at which they do, or the first of the merged steps that contain it"),
    ]
    nonfinite_by: Annotated[int | None, Meta(description="the last of these")]


class ComparedScalar(Apart, frozen=True):
    """A value that both runs logged."""

    name: str


class ComparedLayer(Apart, Tabular, frozen=True, eq=False):
    """One tap of both runs. `difference` is the second run's value minus the first one's, at common steps."""

    tap: Tap
    numbers: Annotated[tuple[int, int], Meta(description="its numbers in the two runs")]
    first_step: Integers
    last_step: Integers
    difference: Floats

    def columns(self) -> dict[str, Any]:
        """Return a row for each point."""
        return {name: getattr(self, name) for name in ("first_step", "last_step", "difference")}


class Verdict(Answer, frozen=True):
    """The result of the comparison, and how much was compared."""

    outcome: Annotated[
        Literal["different", "no difference", "unknown"],
        Meta(description="unknown if no step of a layer was captured by both runs and no logged value differs"),
    ]
    message: Annotated[str, Meta(description="the verdict in sentences")]
    steps_compared: Annotated[int, Meta(description="steps that both runs captured")]
    steps_captured: Annotated[tuple[int, int], Meta(description="steps that each run captured")]
    steps_not_comparable: Annotated[
        int, Meta(description="the other steps from the first to the newest step of either run")
    ]


class Parting(Answer, frozen=True):
    """The first difference of two runs."""

    step: int
    tap: Tap


class Comparison(Page, frozen=True):
    """Two runs, layer by layer."""

    runs: tuple[str, str]
    kind: str | None
    stat: str
    tolerance: float
    verdict: Verdict
    first: Annotated[Parting | None, Meta(description="the earliest difference in a layer")]
    parted: Annotated[int, Meta(description="the number of layers that differ")]
    layers: tuple[ComparedLayer, ...]
    logged: Annotated[
        tuple[ComparedScalar, ...], Meta(description="every value that both runs logged, such as the loss")
    ]
    only_in: Annotated[dict[str, tuple[Tap, ...]], Meta(description="taps of one run only, at most 1,000 of each")]


class DifferenceRow(Row, frozen=True):
    """A tap of both runs, or a group of neighbors starting with it."""

    numbers: Annotated[tuple[int, int], Meta(description="its numbers in the two runs")]


class ComparisonHeatmap(Tabular, frozen=True, eq=False):
    """The largest difference of two runs in each cell [row][column], as a share of the larger magnitude."""

    runs: tuple[str, str]
    kind: str | None
    stat: str
    rows: tuple[DifferenceRow, ...]
    first_step: Integers
    last_step: Integers
    worst: FloatMatrix
    state: Annotated[
        States,
        Meta(
            description="0 not compared, 1 compared, 2 finite in one run only, 3 NaN or infinite in both, no difference"
        ),
    ]

    def __post_init__(self) -> None:
        shape_cells(self)

    @property
    def taps(self) -> tuple[DifferenceRow, ...]:
        """The first tap of each row."""
        return self.rows

    def columns(self) -> dict[str, Any]:
        """Return a row for each row of the map, and a column for each span of steps, named by its first step."""
        groups = np.array([row.group for row in self.rows], np.int64)
        return tap_columns(self.rows) | {"group": groups} | span_columns(self.first_step, self.worst)


class Figure(Answer, frozen=True):
    """A chart for Plotly: `plotly.graph_objects.Figure(answer)`, or `Plotly.newPlot(element, answer)`."""

    data: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
