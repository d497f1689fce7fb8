"""Raw tensors: the list, one of them in many formats, and requests for more."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import Path, Query, Response
from numpy.typing import NDArray
from safetensors.numpy import save as save_tensors
from starlette.exceptions import HTTPException

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers import Number as FloatOrWord
from hookcore.reading.slices import cells_of, cut
from hookcore.records import Snapshot, Tap
from hookcore.store.checks import unknown

from ..analysis.named import named
from ..analysis.png import png_of
from ..analysis.tiles import Pool, factors_of, real_of, statistics_of, tiles_of
from ..analysis.tiles import pool as pooled
from ..formats import TENSORS, csv_of, json_of, npy_of
from ..runs import Run
from .bodies import SnapshotRequest
from .params import After, Limit, MatchParam, OfKind, RunParam, page_of
from .routing import ReplyParam, answered, described, router
from .runs import accepted, require_live

MAX_VALUES: Final = 2_000_000  # of a tensor in JSON, CSV, PNG, or tiles; npy and safetensors have no limit
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


@router.get("/snapshots/{number}", summary="One tensor", responses=described(TENSORS, answers.SnapshotValues))
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
        "json": lambda: json_of(
            answers.SnapshotValues.of(number, snapshot, run=run.id, slice=part, values=_few(values))
        ),
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
    """Return what the script called them with `watcher.tokens` and `watcher.labels`, as far as it fits the tensor."""
    fits = named(_find(run, number))
    return answers.SnapshotNames(run.id, number, fits.axes, fits.tokens, fits.shared, fits.labels, fits.why)


@router.reads("/snapshots/{number}/statistics", "Statistics of a slice")
def statistics(run: RunParam, number: Number, part: Part = "") -> answers.Statistics:
    """Return counts, moments, and quantiles of the exact values in float64, or of the magnitudes of complex ones."""
    values = cut(_find(run, number).values, part)
    found = {name: FloatOrWord(value) for name, value in statistics_of(values).items()}
    return answers.Statistics(run.id, number, part, values.shape, found)


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
