"""Two runs side by side: which layers they share, and where they part first."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Query, Response
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.records import Kind, Tap
from hookcore.store import STAT_NAMES
from hookcore.store.names import label_of, matcher, require
from hookcore.store.rows import Rows

from ..formats import ARRAYS, Table, array_json, word_of
from ..runs import Run
from ..schemas import StrictJson, tap_as_json
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
    Span,
    StatName,
    described,
    page_of,
    run_named,
    version_of,
)
from .models import CompareAnswer

MAX_COMPARED: Final = 5000  # layers of one question
MAX_ALONE: Final = 1000
_AT_ONCE: Final = 64  # taps read together

router = APIRouter(prefix="/api/v1", default_response_class=StrictJson)


@dataclass(frozen=True, slots=True)
class Layer:
    """One tap of both runs: how far they are apart, and at some of the spans of steps that both have."""

    tap: Tap
    numbers: tuple[int, int]
    points: int  # that were compared
    parts_at: int | None  # the first step in which the two part
    largest: float  # magnitude of the differences; NaN where one was not a number and the other was
    first_step: NDArray[np.int64]
    last_step: NDArray[np.int64]
    difference: NDArray[np.float64]  # the second run's less the first one's


@dataclass(frozen=True, slots=True)
class Compared:
    """Some taps [row, tap] at the steps of which both runs speak."""

    first_step: NDArray[np.int64]
    last_step: NDArray[np.int64]
    difference: NDArray[np.float64]
    parts: NDArray[np.bool_]
    both: NDArray[np.bool_]  # whether both runs saw the tap

    @classmethod
    def of(cls, one: Rows, two: Rows, tolerance: float) -> Compared:
        """NaN equals NaN, and an infinity equals itself."""
        _, in_one, in_two = np.intersect1d(one.first, two.first, return_indices=True)
        same = one.last[in_one] == two.last[in_two]
        in_one, in_two = in_one[same], in_two[same]
        parts = one.nonfinite[in_one] != two.nonfinite[in_two]
        for name in ("mean", "low", "high"):  # a point of merged steps parts with its extremes, too
            parts |= _distance(getattr(one, name)[in_one], getattr(two, name)[in_two]) > tolerance
        values = one.mean[in_one], two.mean[in_two]
        with np.errstate(invalid="ignore", over="ignore"):
            equal = (values[0] == values[1]) | (np.isnan(values[0]) & np.isnan(values[1]))
            difference = np.where(equal, 0.0, values[1] - values[0])
        both = (one.present[in_one] > 0) & (two.present[in_two] > 0)
        return cls(one.first[in_one], one.last[in_one], difference, parts & both, both)

    def layer(self, place: int, tap: Tap, numbers: tuple[int, int], points: int) -> Layer:
        """One tap, thinned to so many points: of neighbours the one with the largest difference stays."""
        seen = np.flatnonzero(self.both[:, place])
        difference = self.difference[seen, place]
        apart = np.flatnonzero(self.parts[seen, place])
        parts_at = int(self.first_step[seen[apart[0]]]) if len(apart) else None
        magnitudes = np.abs(difference)
        largest = float(magnitudes.max(initial=0.0))
        kept = _thinned(magnitudes, points)
        steps = self.first_step[seen[kept]], self.last_step[seen[kept]]
        return Layer(tap, numbers, len(seen), parts_at, largest, *steps, difference[kept])


def _thinned(magnitudes: NDArray[np.float64], points: int) -> NDArray[np.intp]:
    """The places of at most so many points, the largest of each group of neighbours; NaN is larger than all."""
    size = len(magnitudes)
    if size <= points or not points:
        return np.arange(min(size, points))
    keys = np.where(np.isnan(magnitudes), np.inf, magnitudes)
    borders = (np.arange(points + 1) * size // points).tolist()
    return np.array([low + int(keys[low:high].argmax()) for low, high in itertools.pairwise(borders)], np.intp)


def _distance(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far two values are apart, in shares of the larger magnitude; infinite where only one is a number."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        share = np.abs(two - one) / np.maximum(np.abs(one), np.abs(two))
        both_nan = np.isnan(one) & np.isnan(two)
        return np.where((one == two) | both_nan, 0.0, np.where(np.isfinite(share), share, np.inf))


@router.get(
    "/compare",
    summary="Two runs, layer by layer",
    response_model=CompareAnswer,
    responses=described(examples.COMPARE, ARRAYS),
)
def compare(
    runs: GivenRuns,
    reply: GivenReply,
    span: GivenSpan,
    pair: Annotated[
        str,
        Query(alias="runs", max_length=401, description="the ids of two runs, with a comma", examples=["run-1,run-2"]),
    ],
    stat: StatName = "rms",
    kind: OfKind = None,
    match: Match = None,
    tolerance: Annotated[
        float, Query(ge=0, le=1, description="how far apart counts as equal, as a share of the larger magnitude")
    ] = 0.0,
    points: Annotated[int, Query(ge=1, le=10_000, description="points of each layer at most")] = 200,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="layers in this answer, at most 1,000")] = 50,
    format: Format = None,
) -> Response:
    """Taps of the same module, kind, index, call and phase, at the same steps, and where the two runs part first.

    Where older steps were merged they are compared as they were merged: by mean, least and largest value.
    """
    require("stat", stat, STAT_NAMES)
    matcher(match)
    one, two = _two_runs(runs, pair)
    if limit * points > 500_000:
        raise ArgumentError(f"{limit} layers of {points} points are more than 500000 numbers: ask for fewer")

    asked = Asked(kind, stat, match, span, tolerance, slice(after, after + limit), points)

    def content() -> dict[str, Any]:
        layers, alone = _compared(one, two, asked)
        shown, page = page_of(layers, after, limit)
        return {
            "runs": [one.id, two.id],
            "kind": kind,
            "stat": stat,
            "tolerance": tolerance,
            "first": _first_parting(layers),
            "parted": sum(layer.parts_at is not None for layer in layers),
            **page,
            "layers": [_layer_as_json(layer) for layer in shown],
            "only_in": alone,
        }

    def table() -> Table:
        return _table(_compared(one, two, asked)[0][after : after + limit])

    return reply.arrays(format, [version_of(one), version_of(two)], content, table)


def _two_runs(runs: GivenRuns, pair: str) -> tuple[Run, Run]:
    ids = pair.split(",")
    if len(ids) != 2 or not all(re.match(RUN_PATTERN, each) for each in ids):
        raise ArgumentError(f"runs={pair!r} does not name two runs: give two ids with a comma, such as runs=a,b")
    return run_named(runs, ids[0]), run_named(runs, ids[1])


@dataclass(frozen=True, slots=True)
class Asked:
    """What is compared, and which layers are shown in how many points."""

    kind: Kind | None
    stat: str
    match: str | None
    span: Span
    tolerance: float
    shown: slice
    points: int


def _compared(one: Run, two: Run, asked: Asked) -> tuple[list[Layer], dict[str, list[dict[str, Any]]]]:
    lists = [run.store.taps(asked.match, asked.kind) for run in (one, two)]
    own, other = (dict(zip(each.taps, each.numbers.tolist(), strict=True)) for each in lists)
    shared = [tap for tap in lists[0].taps if tap in other]
    if len(shared) > MAX_COMPARED:
        raise ArgumentError(f"{len(shared)} taps are more than {MAX_COMPARED}: narrow them with match= or kind=")
    pairs = [(tap, (own[tap], other[tap])) for tap in shared]
    layers: list[Layer] = []
    for start in range(0, len(pairs), _AT_ONCE):
        layers += _layers(one, two, pairs[start : start + _AT_ONCE], start, asked)
    return layers, {one.id: _alone(own, other), two.id: _alone(other, own)}


def _layers(one: Run, two: Run, pairs: list[tuple[Tap, tuple[int, int]]], start: int, asked: Asked) -> list[Layer]:
    """The layers of some taps; `start` is the place of the first of them in the whole list."""
    rows = []
    for side, run in enumerate((one, two)):
        numbers = np.array([each[side] for _, each in pairs], np.int64)
        order = np.argsort(numbers)  # a store reads its lanes in their order
        found = run.store.rows(numbers[order], asked.stat, asked.span.first, asked.span.last)
        rows.append(found.take(np.argsort(order)))
    compared = Compared.of(rows[0], rows[1], asked.tolerance)
    layers = []
    for place, (tap, numbers_of_both) in enumerate(pairs):
        is_shown = asked.shown.start <= start + place < asked.shown.stop
        layers.append(compared.layer(place, tap, numbers_of_both, asked.points if is_shown else 0))
    return layers


def _alone(own: dict[Tap, int], other: dict[Tap, int]) -> list[dict[str, Any]]:
    return [tap_as_json(number, tap) for tap, number in own.items() if tap not in other][:MAX_ALONE]


def _first_parting(layers: list[Layer]) -> dict[str, Any] | None:
    """The earliest step, and of the layers that part there the one that was seen first."""
    parted = [(step, layer.numbers[0], layer) for layer in layers if (step := layer.parts_at) is not None]
    if not parted:
        return None
    step, number, layer = min(parted, key=lambda each: each[:2])
    return {"step": step, "layer": tap_as_json(number, layer.tap)}


def _layer_as_json(layer: Layer) -> dict[str, Any]:
    return {
        "about": tap_as_json(layer.numbers[0], layer.tap),
        "taps": list(layer.numbers),
        "points": layer.points,
        "parts_at": layer.parts_at,
        "largest": word_of(layer.largest),
        **{name: array_json(getattr(layer, name)) for name in ("first_step", "last_step", "difference")},
    }


def _table(layers: list[Layer]) -> Table:
    sizes = [len(layer.difference) for layer in layers]
    columns: dict[str, Any] = {
        "tap": np.repeat(np.array([layer.numbers[0] for layer in layers], np.int64), sizes),
        "label": [label_of(layer.tap) for layer, size in zip(layers, sizes, strict=True) for _ in range(size)],
    }
    for name, kind in (("first_step", np.int64), ("last_step", np.int64), ("difference", np.float64)):
        parts = [getattr(layer, name) for layer in layers]
        columns[name] = np.concatenate(parts) if parts else np.empty(0, kind)
    return Table(columns)
