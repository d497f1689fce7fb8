"""A model as a picture, the data flow between its calls, and what was kept of its tensors and media."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from msgspec import Meta

from hookcore import records
from hookcore.reading.anatomy import OUTSIDE, Box, Level, Total, anatomy_of
from hookcore.reading.answers.base import Answer, FloatMatrix, Nested, Number, Page, Tabular, Tap
from hookcore.records import ModuleRecord, Phase
from hookcore.records.flow import How, TensorForm, flow_at

Numbers = tuple[int, ...]

# The data flow between module calls.


class FlowCall(Answer, frozen=True):
    """One call of a module, and the calls that feed it, by their places in the list of calls."""

    module: str
    call: int
    phase: Phase
    fed_by: Annotated[Numbers, Meta(description="the calls whose outputs it directly computed its own from")]
    returns: Annotated[Numbers, Meta(description="the calls inside it whose outputs it returned as they were")]
    how: Annotated[How, Meta(description="how this is known; `order` is a guess from the order of execution")]


class Flow(Answer, frozen=True):
    """The calls of a step with their sources, in the order in which the calls returned. Empty if unknown."""

    run: str
    step: Annotated[int | None, Meta(description="the step in which it was learned; null if it isn't known")]
    steps: Annotated[tuple[int, ...], Meta(description="all steps in which a structure of the model was learned")]
    seconds: Annotated[Number, Meta(description="the time that learning it cost the training")]
    calls: tuple[FlowCall, ...]

    @classmethod
    def of(cls, run: str, flows: tuple[records.flow.Flow, ...], step: int | None) -> Flow:
        """Return the answer for the newest flow, or for the newest one up to a step."""
        steps = tuple(flow.step for flow in flows)
        found = flow_at(flows, step)
        if found is None:
            return cls(run, None, steps, Number(0.0), ())
        calls = (FlowCall(*(getattr(call, name) for name in FlowCall.__struct_fields__)) for call in found.calls)
        return cls(run, found.step, steps, Number(found.seconds), tuple(calls))


# A model as a picture: its boxes, their connections, and their sizes.


class ModelEdge(Answer, frozen=True):
    """The data flow between two parts of a box. A null end is outside of the box."""

    source: int | None
    target: int | None
    carries: Annotated[Numbers, Meta(description="the boxes whose outputs flow along the edge")]
    guessed: Annotated[bool, Meta(description="only the order of execution is known")]


class ModelTensor(Answer, frozen=True):
    """An input or output of a call, as it was in the step in which the structure was learned."""

    place: Annotated[str, Meta(description="in a nested value, as the index of a tap")]
    dtype: Annotated[str, Meta(description="empty if it isn't known")]
    shape: Numbers


class ModelBox(Answer, frozen=True):
    """A call of a module, a module, or a repeat: parts that occur several times in a row."""

    number: int
    kind: Literal["call", "module", "repeat"]
    module: Annotated[str, Meta(description="path of the module; of the first one, if it is a repeat")]
    call: int
    phase: Phase
    type: Annotated[str, Meta(description="the module's class")]
    source: Annotated[str, Meta(description="file and line of the class; empty if unknown")]
    inside: Annotated[int | None, Meta(description="the box around it")]
    parts: Annotated[Numbers, Meta(description="the boxes in it, in the order of execution")]
    edges: Annotated[tuple[ModelEdge, ...], Meta(description="what flows between the parts")]
    period: Annotated[int, Meta(description="the number of parts of a repeat that form one unit")]
    same: Annotated[int, Meta(description="boxes with the same number have the same structure")]
    how: Annotated[How, Meta(description="how its sources are known")]
    computes: Annotated[bool, Meta(description="whether it has its own operators, in addition to those of its parts")]
    made_by: Annotated[str, Meta(description="the operator that computed its output, if that is its own, such as Add")]
    parameters: Annotated[int, Meta(description="with those of its children; shared ones count once")]
    trainable: int
    inputs: Annotated[tuple[ModelTensor, ...], Meta(description="the first ones")]
    outputs: Annotated[tuple[ModelTensor, ...], Meta(description="the first ones")]
    memory: Annotated[int | None, Meta(description="bytes of new memory in its outputs, with those of its parts")]
    flops: Annotated[int | None, Meta(description="floating-point operations of a forward pass, with its parts")]
    flops_unknown: Annotated[str, Meta(description="why not all of them are counted; empty if they are")]


class Model(Tabular, frozen=True):
    """A model as boxes inside of boxes: calls if the data flow is known, else modules."""

    run: str
    step: Annotated[
        int | None, Meta(description="the step in which the structure was learned; null if the boxes are modules")
    ]
    steps: Annotated[Numbers, Meta(description="all steps in which a structure was learned")]
    why: Annotated[str, Meta(description="why the data flow isn't known; empty if it is")]
    parts: Annotated[Numbers, Meta(description="the outermost boxes")]
    edges: tuple[ModelEdge, ...]
    boxes: tuple[ModelBox, ...]
    absent: Annotated[tuple[str, ...], Meta(description="the outermost modules that didn't run in this structure")]

    @classmethod
    def of(
        cls,
        run: str,
        modules: Sequence[ModuleRecord],
        flows: Sequence[records.flow.Flow],
        step: int | None,
        why: str = "",
    ) -> Model:
        """Return the answer for the newest structure, or for the newest one up to a step."""
        flow = flow_at(flows, step)
        anatomy = anatomy_of(modules, flow)
        kinds, totals = anatomy.kinds(), anatomy.totals()
        boxes = (_box_of(number, anatomy.boxes[number], kinds[number], totals[number]) for number in range(len(kinds)))
        learned = None if flow is None else flow.step
        steps = tuple(each.step for each in flows)
        edges = _edges_of(anatomy.level)
        return cls(run, learned, steps, why if flow is None else "", anatomy.parts, edges, tuple(boxes), anatomy.absent)

    def columns(self) -> dict[str, Any]:
        """Return a row for each box that isn't a repeat. Unknown values are NaN."""
        shown = [box for box in self.boxes if box.kind != "repeat"]
        texts = ("module", "phase", "type", "flops_unknown")
        counts, sizes, forms = ("call", "parameters", "trainable"), ("memory", "flops"), ("inputs", "outputs")
        return {
            **{name: [str(getattr(box, name)) for box in shown] for name in texts},
            **{name: np.array([getattr(box, name) for box in shown], np.int64) for name in counts},
            **{name: np.array([getattr(box, name) for box in shown], np.float64) for name in sizes},
            **{name: [", ".join(map(_words_of, getattr(box, name))) for box in shown] for name in forms},
        }


def _box_of(number: int, box: Box, same: int, total: Total) -> ModelBox:
    module, size = box.module, box.size
    return ModelBox(
        number,
        box.kind,
        module.path,
        box.call,
        box.phase,
        module.type,
        module.source,
        None if box.inside == OUTSIDE else box.inside,
        tuple(box.parts),
        _edges_of(box.level),
        box.period,
        same,
        box.how,
        box.computes,
        size.made_by,
        module.parameters,
        module.trainable,
        tuple(map(_tensor_of, size.inputs)),
        tuple(map(_tensor_of, size.outputs)),
        total.memory,
        None if total.why and not total.flops else total.flops,
        total.why,
    )


def _edges_of(level: Level) -> tuple[ModelEdge, ...]:
    return tuple(
        ModelEdge(
            None if source == OUTSIDE else source,
            None if target == OUTSIDE else target,
            tuple(sorted(connection.carries)),
            connection.guessed,
        )
        for (source, target), connection in sorted(level.items())
    )


def _tensor_of(form: TensorForm) -> ModelTensor:
    return ModelTensor(form.place, form.dtype, form.shape)


def _words_of(tensor: ModelTensor) -> str:
    named = f"{tensor.place}: " if tensor.place else ""
    return f"{named}{tensor.dtype} {' x '.join(map(str, tensor.shape)) or 'scalar'}".strip()


# Snapshots of tensors, and attention over all layers.


class Snapshot(Answer, frozen=True, omit_defaults=True):
    """A captured tensor. Only the answer about a single one has the last three fields: its run, and its values."""

    number: Annotated[int, Meta(description="its number in the API")]
    asked: Annotated[bool, Meta(description="whether a reader requested it; else the script did, or nobody")]
    tap: Tap
    step: int
    time_s: Number
    dtype: str
    stored: str
    shape: tuple[int, ...]
    kept_shape: tuple[int, ...]
    truncated: bool
    nbytes: int
    named: Annotated[bool, Meta(description="whether the tokens or the samples of its batch have names")]
    run: str | None = None
    slice: str | None = None
    values: Annotated[Nested | None, Meta(description="complex numbers are pairs")] = None

    @classmethod
    def of(cls, number: int, snapshot: records.Snapshot, **more: Any) -> Snapshot:
        stored = snapshot.values.dtype.name
        about = snapshot.step, Number(snapshot.time_s), snapshot.dtype, stored, snapshot.shape, snapshot.values.shape
        return cls(
            number,
            snapshot.number >= 0,
            Tap.of(None, snapshot.tap),
            *about,
            snapshot.truncated,
            snapshot.values.nbytes,
            snapshot.names is not None,
            **more,
        )


class Snapshots(Page, frozen=True):
    """Snapshots, oldest first."""

    run: str
    snapshots: tuple[Snapshot, ...]


class SnapshotNames(Answer, frozen=True):
    """The names of the positions and samples of a snapshot's batch, as far as they fit the tensor."""

    run: str
    number: int
    axes: Annotated[tuple[int, ...], Meta(description="the dimensions of the positions that tokens name")]
    tokens: Annotated[tuple[tuple[str, ...], ...], Meta(description="of each sample, or one row for all if `shared`")]
    shared: bool
    labels: Annotated[tuple[str, ...], Meta(description="of the samples, the first dimension")]
    why: Annotated[str, Meta(description="why the given names are missing")]
    origin: Annotated[str, Meta(description="what says the tokens if the script doesn't; else empty")] = ""


class BlockCast(Answer, frozen=True):
    """What a cast makes of a tensor's nonzero finite values."""

    block: Annotated[int, Meta(description="values that share a scale; 0 if all do")]
    underflow: Annotated[Number, Meta(description="share that becomes zero")]
    saturated: Annotated[Number, Meta(description="share above the largest value of its block")]
    noise: Annotated[Number, Meta(description="root mean square of the errors, relative to that of the values")]
    most_noise: Annotated[Number, Meta(description="noise of all values but the largest 1 %")]


class BlockCasts(Answer, frozen=True):
    """What casts to formats with a scale for each block of values would make of a tensor, or of a part of it."""

    run: str
    number: int
    slice: str
    values: Annotated[int, Meta(description="values that were cast: the first ones of a large tensor")]
    of: Annotated[int, Meta(description="values of the tensor, or of the part")]
    formats: Annotated[
        dict[str, BlockCast], Meta(description="e4m3, mxfp8, e2m1, mxfp4, and nvfp4; none of only zeros")
    ]


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


# Items that a script logged in addition to numbers.


class Media(Answer, frozen=True):
    """An image, text, table, or figure, without its content."""

    number: Annotated[int, Meta(description="its number in the API")]
    name: str
    step: int
    time_s: Number
    type: Annotated[str, Meta(description="the media type of its content")]
    nbytes: int
    cut: Annotated[bool, Meta(description="whether the item was shortened")]

    @classmethod
    def of(cls, number: int, item: records.Snapshot) -> Media:
        """Return the answer for an item."""
        about = item.tap.module, item.step, Number(item.time_s), item.dtype
        return cls(number, *about, item.values.nbytes, item.truncated)


class MediaList(Page, frozen=True):
    """Images, texts, tables, and figures that a script logged, oldest first."""

    run: str
    media: tuple[Media, ...]


# Which samples a step had.


class SampleBatch(Answer, frozen=True):
    """A batch of a step, and what its samples are called."""

    source: Annotated[str, Meta(description="the class of its data set; empty if the script named the samples")]
    ids: Annotated[tuple[int | str, ...], Meta(description="as the sampler or the script gave them, at most 4,096")]
    rows: Annotated[tuple[int, ...], Meta(description="how many samples each row has; empty: one")]
    left_out: Annotated[int, Meta(description="samples beyond the limit")]
    why: Annotated[str | None, Meta(description="why its samples aren't known; null if they are")]
    rank: Annotated[int | None, Meta(description="in the answer about all ranks; otherwise null")] = None


class Samples(Answer, frozen=True):
    """Which samples a step had."""

    run: str
    step: int
    why: Annotated[str | None, Meta(description="why they aren't known, or not all; null if they are")]
    batches: Annotated[tuple[SampleBatch, ...], Meta(description="those that were loaded in this step, in order")]

    @property
    def sentence(self) -> str:
        """Which samples the step had, in a sentence; of many, the first."""
        if self.why is not None:
            return f"samples unknown: {self.why}"
        ids = [str(each) for batch in self.batches for each in batch.ids]
        more = len(ids) + sum(batch.left_out for batch in self.batches) - _SHOWN
        return f"samples of step {self.step:,}: {', '.join(ids[:_SHOWN])}{f', and {more:,} more' if more > 0 else ''}"


_SHOWN: Final = 16
