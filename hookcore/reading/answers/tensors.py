"""Snapshots of tensors, and attention over all layers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from hookcore import records
from hookcore.reading.answers.base import Answer, FloatMatrix, Nested, Number, Page, Tap


class Snapshot(Answer, frozen=True):
    """A captured tensor, without its values."""

    number: Annotated[int, Meta(description="its number in the API")]
    asked: Annotated[bool, Meta(description="whether a reader requested it; otherwise the training script did")]
    tap: Tap
    step: int
    time_s: Number
    dtype: str
    stored: str
    shape: tuple[int, ...]
    kept_shape: tuple[int, ...]
    truncated: bool
    nbytes: int
    named: Annotated[bool, Meta(description="whether the script named the tokens or the samples of its batch")]

    @classmethod
    def of(cls, number: int, found: records.Snapshot, **more: Any) -> Any:
        stored = found.values.dtype.name
        about = found.step, Number(found.time_s), found.dtype, stored, found.shape, found.values.shape
        return cls(
            number,
            found.number >= 0,
            Tap.of(None, found.tap),
            *about,
            found.truncated,
            found.values.nbytes,
            found.names is not None,
            **more,
        )


class Snapshots(Page, frozen=True):
    """Snapshots, oldest first."""

    run: str
    snapshots: tuple[Snapshot, ...]


class SnapshotNames(Answer, frozen=True):
    """The script's names for the positions and samples of a snapshot's batch, as far as they fit the tensor."""

    run: str
    number: int
    axes: Annotated[tuple[int, ...], Meta(description="the dimensions of the positions that tokens name")]
    tokens: Annotated[tuple[tuple[str, ...], ...], Meta(description="of each sample, or one row for all if `shared`")]
    shared: bool
    labels: Annotated[tuple[str, ...], Meta(description="of the samples, the first dimension")]
    why: Annotated[str, Meta(description="why the given names are missing")]


class SnapshotValues(Snapshot, frozen=True, eq=False):
    """A snapshot and its values, as nested lists. For complex numbers, the innermost lists are pairs."""

    run: str
    slice: str
    values: Nested


class Statistics(Answer, frozen=True):
    """Statistics of a part of a tensor, in float64; moments and quantiles are over the finite values."""

    run: str
    number: int
    slice: str
    shape: tuple[int, ...]
    statistics: Annotated[
        dict[str, Number],
        Meta(description="count, nan, inf, zero, mean, std, min, max, rms, p1, p5, p25, p50, p75, p95, p99"),
    ]


class Tiles(Answer, frozen=True, eq=False):
    """A tensor as pictures: `values` are [tile][row][column]; `factors` are the rows and columns per cell."""

    run: str
    number: int
    slice: str
    pool: str
    total: Annotated[int, Meta(description="number of tiles; those from `after` on are in `values`")]
    tile_shape: tuple[int, ...]
    factors: tuple[int, ...]
    values: Nested


class RequestedSnapshot(Answer, frozen=True):
    """A requested tensor, and the number that it will have."""

    number: int
    tap: Tap


class RequestedMaps(Answer, frozen=True):
    """The requested attention maps."""

    run: str
    asked: tuple[RequestedSnapshot, ...]
    left_out: Annotated[int, Meta(description="the number of maps that didn't fit into the request")]
    look: str


class RolloutLayer(Answer, frozen=True):
    """One layer of a rollout: its snapshot, and that of its gradient."""

    number: int
    tap: Tap
    heads: int
    gradient: int | None


class Rollout(Answer, frozen=True, eq=False):
    """The influence of each position before the first layer (column) on each position of the last layer (row)."""

    run: str
    step: Annotated[int | None, Meta(description="null if there are no attention maps")]
    steps: Annotated[tuple[int, ...], Meta(description="the steps with attention maps")]
    sample: int
    samples: int
    fuse: str
    discard: float
    gradient: bool
    layers: tuple[RolloutLayer, ...]
    tokens: Annotated[tuple[str, ...], Meta(description="the script's names of the positions, or empty")]
    label: Annotated[str, Meta(description="the script's name of the sample")]
    matrix: FloatMatrix
