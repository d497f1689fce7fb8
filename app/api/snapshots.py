"""Raw tensors and what is made of them: the list, one in many formats, attention over all layers, and logged media."""

from __future__ import annotations

from dataclasses import astuple
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import Path, Query, Response
from numpy.typing import NDArray
from safetensors.numpy import save as save_tensors
from starlette.exceptions import HTTPException

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers import Number as FloatOrWord
from hookcore.reading.pictures import cells_of, cut
from hookcore.records import Snapshot, Tap
from hookcore.records.sketch import BLOCKS, MAX_BLOCKED, cast_blocks
from hookcore.records.vocabulary import FIGURE_TYPE, IMAGE_TYPES, TABLE_TYPE, TEXT_TYPE
from hookcore.store.checks import unknown

from ..analysis.attention import (
    AttentionLayer,
    Captured,
    Fuse,
    gradient_of,
    maps_at,
    maps_of,
    taps_like_attention,
    taps_recomputed,
)
from ..analysis.attention import rollout as roll_out
from ..analysis.tiles import MAX_VALUES, Pool, factors_of, named, png_of, real_of, statistics_of, tiles_of
from ..analysis.tiles import pool as pooled
from ..formats import ARRAYS, TENSORS, StrictJson, Table, csv_of, json_of, npy_of
from ..runs import Run
from .params import MAX_STEP, After, Limit, MatchParam, OfKind, RunParam, SnapshotRequest, SpanParam, page_of
from .routing import Format, ReplyParam, answered, described, problems, router
from .runs import accepted, require_live

# Raw tensors: the list, one of them in many formats, and requests for more.

MAX_TILES: Final = 1024

Part = Annotated[str, Query(alias="slice", max_length=500, description="a slice as in NumPy, such as 0,:,3:7")]
Number = Annotated[int, Path(ge=0, le=2**62, description="the number from the list or the request", examples=[0])]
Pixels = Annotated[int, Query(ge=1, le=4096)]


@router.reads("/snapshots", "The captured tensors")
def snapshots(
    run: RunParam, match: MatchParam, kind: OfKind = None, after: After = 0, limit: Limit = 1000
) -> answers.Snapshots:
    """Return the snapshots, oldest first, without their values."""
    shown, page = page_of(run.reader.snapshots(match, kind), after, limit)
    return answers.Snapshots(**page, run=run.id, snapshots=tuple(shown))


@router.post("/snapshots", summary="Request a tensor", status_code=202, responses=answered(answers.Accepted, 202, 409))
def request_snapshot(run: RunParam, wanted: SnapshotRequest) -> Response:
    """Ask the trainer to capture a tensor at its next call. When it arrives, it is at `look`."""
    require_live(run)
    tap = _tap_wanted(run, wanted)
    number = run.ask("snapshot", tap=tap).number
    return accepted(run, number, f"/api/v1/snapshots/{number}?run={run.id}")


def _tap_wanted(run: Run, wanted: SnapshotRequest) -> Tap:
    if (wanted.tap is None) == (wanted.module is None):
        raise ArgumentError("give either tap, or module and kind")
    if wanted.tap is not None:
        return run.reader.find(wanted.tap).record
    module = str(wanted.module)
    known = [each.path for each in run.store.modules()] or sorted({tap.module for tap in run.store.taps().taps})
    if module not in known:
        raise ArgumentError(unknown("module", module, known))
    return Tap(module, wanted.kind, wanted.index, wanted.call, wanted.phase)


@router.get(
    "/snapshots/{number}",
    summary="One tensor",
    responses=described(TENSORS, answers.Snapshot, example="one Snapshot"),
)
def one_snapshot(
    run: RunParam,
    reply: ReplyParam,
    number: Number,
    part: Part = "",
    format: Annotated[
        Literal["json", "npy", "safetensors", "csv", "png"] | None,
        Query(description="the format; overrides the Accept header"),
    ] = None,
) -> Response:
    """Return the values of a snapshot or a part of them. JSON, CSV, and PNG hold at most 2,000,000 values."""
    snapshot = _find(run, number)
    values = cut(snapshot.values, part)
    makers = {
        "json": lambda: json_of(answers.Snapshot.of(number, snapshot, run=run.id, slice=part, values=_few(values))),
        "npy": lambda: npy_of(values),
        "safetensors": lambda: _as_safetensors(snapshot, values),
        "csv": lambda: _as_csv(_few(values)),
        "png": lambda: png_of(_as_picture(_few(values))),
    }
    return reply.any_of(TENSORS, format, makers)


@router.get(
    "/snapshots/{number}/tiles", summary="One tensor as pictures", responses=described(("json", "npy"), answers.Tiles)
)
def tiles(
    run: RunParam,
    reply: ReplyParam,
    number: Number,
    part: Part = "",
    rows: Pixels = 256,
    columns: Pixels = 256,
    pool: Annotated[Pool, Query(description="the value that a pooled cell shows")] = "worst",
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_TILES, description="maximum number of tiles in this answer")] = 64,
    format: Annotated[Literal["json", "npy"] | None, Query(description="the format; overrides Accept")] = None,
) -> Response:
    """Return the tensor as tiles: the last two dimensions are a tile, and all others count the tiles.

    Larger tiles are pooled to rows x columns. The worst value of a cell is a NaN, else the largest magnitude. Complex
    numbers are shown by their magnitude.
    """
    snapshot = _find(run, number)
    every = tiles_of(cut(snapshot.values, part))
    chosen = every[after : after + limit]
    factors = factors_of(every.shape, rows, columns)
    cells = len(chosen) * -(-every.shape[1] // factors[0]) * -(-every.shape[2] // factors[1])
    if cells > MAX_VALUES:
        raise ArgumentError(f"{cells} cells are more than {MAX_VALUES}: ask for fewer tiles, rows or columns")

    def read() -> NDArray[Any]:
        return pooled(real_of(chosen), rows, columns, pool)

    def content() -> answers.Tiles:
        return answers.Tiles(run.id, number, part, pool, len(every), every.shape[1:], factors, read())

    makers = {"json": lambda: json_of(content()), "npy": lambda: npy_of(read())}
    return reply.any_of(("json", "npy"), format, makers)


@router.reads("/snapshots/{number}/names", "The names of a tensor's tokens and samples")
def names(run: RunParam, number: Number) -> answers.SnapshotNames:
    """Return what the script called them with `watcher.tokens` and `watcher.labels`, as far as it fits the tensor.

    Without tokens of the script, they are the ids of the batch, or what a tokenizer in the training's process says.
    """
    fits = named(_find(run, number))
    return answers.SnapshotNames(
        run.id, number, fits.axes, fits.tokens, fits.shared, fits.labels, fits.why, fits.origin
    )


@router.reads("/snapshots/{number}/statistics", "Statistics of a slice")
def statistics(run: RunParam, number: Number, part: Part = "") -> answers.Statistics:
    """Return counts, moments, and quantiles of the exact values in float64, or of the magnitudes of complex ones."""
    values = cut(_find(run, number).values, part)
    found = {name: FloatOrWord(value) for name, value in statistics_of(values).items()}
    return answers.Statistics(run.id, number, part, values.shape, found)


@router.reads("/snapshots/{number}/casts", "What casts in blocks would make of a slice")
def casts(run: RunParam, number: Number, part: Part = "") -> answers.BlockCasts:
    """Return the shares and the noise of casts to MXFP8, MXFP4, and NVFP4, and of ones with one scale for all values.

    Blocks are along the last dimension. Of a large tensor, the first rows are cast.
    """
    values = real_of(cut(_find(run, number).values, part))
    rows = values.reshape(-1, values.shape[-1] if values.ndim else 1) if values.size else np.zeros((0, 1))
    some = rows[: max(1, MAX_BLOCKED // max(1, rows.shape[-1])), :MAX_BLOCKED].astype(np.float64)
    found = {name: (each.size, cast_blocks(some, each)) for name, each in BLOCKS.items()}
    formats = {
        name: answers.BlockCast(size, *map(FloatOrWord, astuple(cast)))
        for name, (size, cast) in found.items()
        if cast is not None
    }
    return answers.BlockCasts(run.id, number, part, some.size, values.size, formats)


def _find(run: Run, number: int) -> Snapshot:
    found = run.reader.snapshot(number)
    if found is not None:
        return found
    with run.lock:
        waits = any(command.number == number for command in run.commands)
    why = "its trainer hasn't sent it yet: try again" if waits else "see the list of snapshots"
    raise HTTPException(404, f"there is no snapshot {number} of the run {run.id}; {why}")


def _few(values: NDArray[Any]) -> NDArray[Any]:
    cells = cells_of(values)
    if cells > MAX_VALUES:
        raise ArgumentError(
            f"{cells} values are more than {MAX_VALUES}, the limit of this format: use slice=, or request "
            "npy or safetensors"
        )
    return values


def _as_safetensors(snapshot: Snapshot, values: NDArray[Any]) -> bytes:
    if values.dtype == np.complex128:
        raise HTTPException(406, "safetensors has no complex128: request npy")
    about = {"tap": snapshot.tap.label, "step": str(snapshot.step), "dtype": snapshot.dtype}
    return bytes(save_tensors({"values": np.ascontiguousarray(values).reshape(values.shape)}, about))


def _as_csv(values: NDArray[Any]) -> bytes:
    if values.ndim > 2 or values.dtype.kind == "c":
        raise HTTPException(406, "CSV holds up to two dimensions of real numbers: use slice=, or request npy")
    matrix = values.reshape(-1, 1) if values.ndim < 2 else values
    return csv_of(matrix)


def _as_picture(values: NDArray[Any]) -> NDArray[Any]:
    if values.ndim > 2 or not values.size:
        raise HTTPException(406, "a picture has two dimensions and at least one pixel: cut it with slice=")
    return np.atleast_2d(values)


# Attention over all layers: a request for the maps of one step, and their rollout.

MAX_ASKED: Final = 64  # snapshots that a trainer remembers


@router.post(
    "/attention-rollout",
    summary="Request all attention maps",
    status_code=202,
    responses=answered(answers.RequestedMaps, 202, 409),
)
def request_maps(run: RunParam, match: MatchParam) -> Response:
    """Ask the trainer for a snapshot of every output that may be attention, and of its gradient if it has one.

    Maps of fused attention are computed for this; they have no gradient.
    """
    require_live(run)
    store = run.store
    taps = [*taps_recomputed(store, match), *taps_like_attention(store, match)]
    if not taps:
        among = f" among the modules that fit {match!r}" if match else ""
        raise HTTPException(404, f"no output of this run looks like attention{among}; {_HELP}")
    known = set(store.latest("output_grad").taps)  # the existing ones: weights that don't affect the loss have none
    gradients = [gradient_of(tap) for tap in taps if gradient_of(tap) in known]
    wanted = [*taps, *gradients][:MAX_ASKED]
    commands = run.ask_snapshots(wanted)
    asked = tuple(
        answers.RequestedSnapshot(each.number, answers.Tap.of(None, tap))
        for each, tap in zip(commands, wanted, strict=True)
    )
    look = f"/api/v1/attention-rollout?run={run.id}"
    content = answers.RequestedMaps(run.id, asked, len(taps) + len(gradients) - len(wanted), look)
    return StrictJson(content, 202, {"Location": look})


_HELP: Final = (
    "fused attention must have been measured, which is done in few steps; other maps must be outputs of modules: use "
    'need_weights=True with nn.MultiheadAttention, in transformers attn_implementation="eager", and a softmax module '
    "in your own attention"
)


@router.get("/attention-rollout", summary="Attention over all layers", responses=described(ARRAYS, answers.Rollout))
def rollout(
    run: RunParam,
    reply: ReplyParam,
    match: MatchParam,
    step: Annotated[int | None, Query(ge=0, le=MAX_STEP, description="default: the newest step with maps")] = None,
    sample: Annotated[int, Query(ge=0, le=MAX_STEP, description="index in the batch")] = 0,
    fuse: Annotated[Fuse, Query(description="how the heads of a layer become one map")] = "mean",
    discard: Annotated[
        float, Query(ge=0, lt=1, description="the share of the smallest weights of each row to leave out")
    ] = 0.0,
    gradient: Annotated[bool, Query(description="weight the maps with their gradient")] = False,
    format: Format = None,
) -> Response:
    """Return Abnar and Zuidema's rollout over the captured attention maps of one step. Rows sum to 1.

    It is empty if there are none: request them with POST.
    """
    steps, kept = _chosen(run, match, step)
    layers = [
        AttentionLayer(
            each.snapshot.tap.module, maps_of(each.snapshot.values), _gradient_maps(each) if gradient else None
        )
        for each in kept
    ]
    # Computed before the format is chosen: maps that don't fit together are refused even if the client has a copy.
    how: dict[str, Any] = {"fuse": fuse, "discard": discard, "gradient": gradient}
    matrix = roll_out(layers, sample=sample, **how) if layers else np.zeros((0, 0))

    tokens, label = _names_of(kept, sample, len(matrix))

    def content() -> answers.Rollout:
        return answers.Rollout(
            run=run.id,
            step=kept[0].snapshot.step if kept else None,
            steps=tuple(steps),
            sample=sample,
            samples=min((len(layer.weights) for layer in layers), default=0),
            **how,
            layers=tuple(map(_layer_of, kept, layers)),
            tokens=tokens,
            label=label,
            matrix=matrix,
        )

    def table() -> Table:
        columns = {str(place): np.ascontiguousarray(matrix[:, place]) for place in range(matrix.shape[1])}
        return Table(columns, matrix)

    return reply.arrays(format, content, table=table)


def _layer_of(kept: Captured, layer: AttentionLayer) -> answers.RolloutLayer:
    gradient = None if kept.gradient is None else kept.gradient[0]
    return answers.RolloutLayer(kept.number, answers.Tap.of(None, kept.snapshot.tap), layer.weights.shape[1], gradient)


def _chosen(run: Run, match: str | None, step: int | None) -> tuple[list[int], list[Captured]]:
    maps = maps_at(run.store, match)
    steps = sorted(maps)
    if step is None:
        return steps, maps[steps[-1]] if steps else []
    if step not in maps:
        there_are = "ask for them with POST /api/v1/attention-rollout"
        if steps:
            there_are = f"available steps: {', '.join(map(str, steps[-20:]))}"
        raise HTTPException(404, f"there are no attention maps of step {step}: {there_are}")
    return steps, maps[step]


def _names_of(kept: list[Captured], sample: int, positions: int) -> tuple[tuple[str, ...], str]:
    """Return the names of the positions and of the sample, if all layers that have names have the same ones."""
    found = [named(each.snapshot) for each in kept if each.snapshot.names is not None]
    tokens = {each.tokens_of(sample) for each in found}
    labels = {each.labels[sample] if sample < len(each.labels) else "" for each in found}
    same = next(iter(tokens)) if len(tokens) == 1 else ()
    return same if len(same) == positions else (), next(iter(labels)) if len(labels) == 1 else ""


def _gradient_maps(kept: Captured) -> Any:
    return None if kept.gradient is None else maps_of(kept.gradient[1].values)


# Images, texts, tables, and figures that a script logged: the list, and the content of one item.

# Nothing else is sent as it came: a trainer's word for it must not make a browser run it.
TYPES = {kind: kind for kind in (*IMAGE_TYPES, TABLE_TYPE, FIGURE_TYPE)} | {TEXT_TYPE: "text/plain; charset=utf-8"}

_TABLE = {TABLE_TYPE: {"example": {"columns": ["loss"], "rows": [[0.5]], "total": 1}}}


@router.reads("/media", "Images, texts, tables, and figures")
def media(
    run: RunParam,
    span: SpanParam,
    name: Annotated[str | None, Query(max_length=1000, description="only those of this name")] = None,
    after: After = 0,
    limit: Limit = 1000,
) -> answers.MediaList:
    """Return the images, texts, tables, and figures that the script logged, oldest first, without their content."""
    shown, page = page_of(run.reader.media(name, span.first, span.last), after, limit)
    return answers.MediaList(**page, run=run.id, media=tuple(shown))


@router.get(
    "/media/{number}",
    summary="The content of one item",
    response_class=Response,
    responses={
        200: {"content": {kind: {} for kind in TYPES} | _TABLE},
        304: {"description": "the item is the one with the ETag in If-None-Match"},
        **problems(),
    },
)
def content(
    run: RunParam,
    reply: ReplyParam,
    number: Annotated[int, Path(ge=0, le=2**62, description="the number from the list")],
) -> Response:
    """Return the content: an image (a PNG, if the script logged it), a text, or a table or figure of Plotly as JSON."""
    found = run.reader.medium(number)
    if found is None:
        raise HTTPException(404, f"there is no item {number} of the run {run.id}; see the list of media")
    kind = TYPES.get(found.dtype, "application/octet-stream")
    return reply.content(found.values.tobytes(), kind)
