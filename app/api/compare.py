"""Two runs side by side: which layers they share, and where they part first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Response

from hookcore.errors import ArgumentError
from hookcore.records import Tap
from hookcore.store import STAT_NAMES
from hookcore.store.names import label_of, matcher, require

from ..comparison import Asked, Differences, Layer, Pairs, compare, differences, renamer
from ..formats import ARRAYS, Table, array_json, word_of
from ..runs import Run
from ..schemas import StrictJson, tap_as_json, tap_columns
from . import examples
from .given import (
    RUN_PATTERN,
    After,
    Format,
    GivenReply,
    GivenRuns,
    GivenSpan,
    Match,
    OfKind,
    StatName,
    described,
    page_of,
    run_named,
    version_of,
)
from .models import CompareAnswer, DifferencesAnswer

MAX_ALONE: Final = 1000
MAX_NUMBERS: Final = 500_000
MAX_CELLS: Final = 2_000_000

router = APIRouter(prefix="/api/v1", default_response_class=StrictJson)


def _two_runs(
    runs: GivenRuns,
    pair: Annotated[
        str,
        Query(alias="runs", max_length=401, description="the ids of two runs, with a comma", examples=["run-1,run-2"]),
    ],
) -> tuple[Run, Run]:
    ids = pair.split(",")
    if len(ids) != 2 or not all(re.match(RUN_PATTERN, each) for each in ids):
        raise ArgumentError(f"runs={pair!r} does not name two runs: give two ids with a comma, such as runs=a,b")
    return run_named(runs, ids[0]), run_named(runs, ids[1])


def _asked(
    span: GivenSpan,
    stat: StatName = "rms",
    kind: OfKind = None,
    match: Match = None,
    tolerance: Annotated[
        float, Query(ge=0, le=2, description="how far apart counts as equal, as a share of the larger magnitude")
    ] = 0.0,
    rename: Annotated[
        str,
        Query(
            max_length=1000,
            description='"expression -> replacement" for the modules of the second run, by which they find their like',
            examples=["^backbone\\. -> encoder."],
        ),
    ] = "",
) -> Asked:
    require("stat", stat, STAT_NAMES)
    matcher(match)
    renamer(rename)
    return Asked(stat, kind, match, span.first, span.last, tolerance, rename)


TwoRuns = Annotated[tuple[Run, Run], Depends(_two_runs)]
GivenAsked = Annotated[Asked, Depends(_asked)]


@router.get(
    "/compare",
    summary="Two runs, layer by layer",
    response_model=CompareAnswer,
    responses=described(examples.COMPARE, ARRAYS),
)
def compare_runs(
    reply: GivenReply,
    pair: TwoRuns,
    asked: GivenAsked,
    points: Annotated[int, Query(ge=1, le=10_000, description="points of each layer at most")] = 200,
    sort: Annotated[
        Literal["model", "share", "step"],
        Query(description="in the model's order, the largest share of a difference first, or who parts first"),
    ] = "model",
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="layers in this answer, at most 1,000")] = 50,
    format: Format = None,
) -> Response:
    """Taps of the same module, kind, index, call and phase, at the same steps, and where the two runs part first.

    Where older steps were merged they are compared as they were merged: by mean, least and largest value.
    """
    one, two = pair
    if limit * points > MAX_NUMBERS:
        raise ArgumentError(f"{limit} layers of {points} points are more than {MAX_NUMBERS} numbers: ask for fewer")

    def read() -> tuple[Pairs, list[Layer], list[int]]:
        pairs = Pairs.of(one.store, two.store, asked)
        layers = compare(one.store, two.store, pairs, asked, 0)
        return pairs, layers, _order(layers, sort)

    def shown(pairs: Pairs, order: Sequence[int]) -> list[Layer]:
        return compare(one.store, two.store, pairs, asked, points, order)

    def content() -> dict[str, Any]:
        pairs, layers, order = read()
        places, page = page_of(order, after, limit)
        return {
            "runs": [one.id, two.id],
            "kind": asked.kind,
            "stat": asked.stat,
            "tolerance": asked.tolerance,
            "first": first_parting(layers),
            "parted": sum(layer.parts_at is not None for layer in layers),
            **page,
            "layers": [_layer_as_json(layer) for layer in shown(pairs, places)],
            "only_in": {run.id: _alone(taps) for run, taps in zip((one, two), pairs.alone, strict=True)},
        }

    def table() -> Table:
        pairs, _, order = read()
        return _table(shown(pairs, order[after : after + limit]))

    return reply.arrays(format, [version_of(one), version_of(two)], content, table)


def _order(layers: Sequence[Layer], sort: str) -> list[int]:
    """The places of the layers, as they are to be shown."""
    places = range(len(layers))
    if sort == "share":
        return sorted(places, key=lambda place: (-layers[place].share, *_parting_key(layers[place])))
    if sort == "step":
        return sorted(places, key=lambda place: _parting_key(layers[place]))
    return list(places)


def _parting_key(layer: Layer) -> tuple[bool, int, int]:
    """The earliest first, of those that part at one step who was seen first; behind them those that never part."""
    return layer.parts_at is None, layer.parts_at or 0, layer.numbers[0]


def first_parting(layers: Sequence[Layer]) -> dict[str, Any] | None:
    """The earliest step, and of the layers that part there the one that was seen first."""
    first = min(layers, key=_parting_key, default=None)
    if first is None or first.parts_at is None:
        return None
    return {"step": first.parts_at, "layer": tap_as_json(first.numbers[0], first.tap)}


def _alone(taps: dict[Tap, int]) -> list[dict[str, Any]]:
    return [tap_as_json(number, tap) for tap, number in taps.items()][:MAX_ALONE]


def _layer_as_json(layer: Layer) -> dict[str, Any]:
    return {
        "about": tap_as_json(layer.numbers[0], layer.tap),
        "taps": list(layer.numbers),
        "points": layer.points,
        "parts_at": layer.parts_at,
        "largest": word_of(layer.largest),
        "share": word_of(layer.share),
        "at_step": layer.at_step,
        **{name: array_json(getattr(layer, name)) for name in ("first_step", "last_step", "difference")},
    }


def _table(layers: Sequence[Layer]) -> Table:
    sizes = [len(layer.difference) for layer in layers]
    columns: dict[str, Any] = {
        "tap": np.repeat(np.array([layer.numbers[0] for layer in layers], np.int64), sizes),
        "label": [label_of(layer.tap) for layer, size in zip(layers, sizes, strict=True) for _ in range(size)],
    }
    for name, kind in (("first_step", np.int64), ("last_step", np.int64), ("difference", np.float64)):
        parts = [getattr(layer, name) for layer in layers]
        columns[name] = np.concatenate(parts) if parts else np.empty(0, kind)
    return Table(columns)


@router.get(
    "/compare/heatmap",
    summary="How far two runs are apart, layer by step",
    response_model=DifferencesAnswer,
    responses=described(examples.DIFFERENCES, ARRAYS),
)
def compare_heatmap(
    reply: GivenReply,
    pair: TwoRuns,
    asked: GivenAsked,
    columns: Annotated[int, Query(ge=1, le=5000, description="columns at most: equal spans of steps")] = 500,
    rows: Annotated[int, Query(ge=1, le=5000, description="rows at most; neighbours share one")] = 600,
    format: Format = None,
) -> Response:
    """The largest difference in each cell, as a share of the larger magnitude; columns x rows is at most 2,000,000."""
    one, two = pair
    if columns * rows > MAX_CELLS:
        raise ArgumentError(f"columns={columns} by rows={rows} are more than {MAX_CELLS} cells: ask for fewer")

    def read() -> tuple[Pairs, Differences]:
        pairs = Pairs.of(one.store, two.store, asked)
        return pairs, differences(one.store, two.store, pairs, asked, columns, rows)

    def content() -> dict[str, Any]:
        pairs, found = read()
        return {"runs": [one.id, two.id], "kind": asked.kind, "stat": asked.stat, **_differences_as_json(pairs, found)}

    def table() -> Table:
        return _differences_table(*read())

    return reply.arrays(format, [version_of(one), version_of(two)], content, table)


def _differences_as_json(pairs: Pairs, found: Differences) -> dict[str, Any]:
    rows = []
    for place, group in zip(found.starts.tolist(), found.groups.tolist(), strict=True):
        numbers = pairs.numbers[place]
        rows.append({**tap_as_json(numbers[0], pairs.taps[place]), "taps": group, "numbers": list(numbers)})
    one_only = np.isinf(found.share)
    state = (~np.isnan(found.share)).astype(np.uint8) + one_only
    return {
        "rows": rows,
        "first_step": array_json(found.first_step),
        "last_step": array_json(found.last_step),
        "worst": array_json(np.where(one_only, np.nan, found.share).astype(np.float32)),
        "state": array_json(state),
    }


def _differences_table(pairs: Pairs, found: Differences) -> Table:
    """A row for each row, a column for each span of steps, named by its first step; npy holds the matrix."""
    places = found.starts.tolist()
    numbers = np.array([pairs.numbers[place][0] for place in places], np.int64)
    columns = tap_columns(numbers, [pairs.taps[place] for place in places]) | {"taps": found.groups}
    columns |= {str(step): found.share[:, place] for place, step in enumerate(found.first_step.tolist())}
    return Table(columns, found.share)
