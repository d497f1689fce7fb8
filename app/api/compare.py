"""Several runs: what two share, where they first differ, values of many over time, and the ranks of one training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import Depends, Query, Response
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from hookcore.config.patterns import literal
from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.records import Kind, Tap
from hookcore.records.vocabulary import ELAPSED
from hookcore.store import STAT_NAMES, Series, Similarities
from hookcore.store.checks import require

from ..analysis.comparison import ComparisonQuery, Differences, Pairs, Side, compare, renamer, what_differs
from ..analysis.comparison import differences as differences_of
from ..analysis.distributed import SpreadSort, every_store_of, layers_of, map_of, ranks_of, spreads_of, stores_at
from ..analysis.overlay import OverlayQuery, band_of, find_series, grouped
from ..analysis.resume import alike, check_resume, verdict_of
from ..analysis.verdict import Verdict, compare_runs
from ..formats import ARRAYS, StrictJson, Table
from ..runs import Joint, Run
from ..runs.joint import joint_of
from ..runs.query import Traits, names_apart
from .params import (
    MAX_STEP,
    RUN_PATTERN,
    After,
    MatchParam,
    OfKind,
    OfModule,
    RunParam,
    RunsParam,
    SpanParam,
    StatName,
    check_cells,
    listed_run,
    page_of,
    run_named,
)
from .routing import MAX_RUN_ID, Format, ReplyParam, answered, described, router
from .series import TapText

# Two runs side by side: what they share, how much was compared, and where they first differ.

MAX_ALONE: Final = 1000
MAX_NUMBERS: Final = 500_000


def _two_runs(
    runs: RunsParam,
    reply: ReplyParam,
    pair: Annotated[
        str,
        Query(
            alias="runs",
            max_length=2 * MAX_RUN_ID + 1,
            description="the ids of two runs, separated by a comma",
            examples=["run-1,run-2"],
        ),
    ],
) -> tuple[Run, Run]:
    ids = pair.split(",")
    if len(ids) != 2 or not all(re.match(RUN_PATTERN, run_id) for run_id in ids):
        raise ArgumentError(f"runs={pair!r} does not name two runs: give two ids with a comma, such as runs=a,b")
    return reply.about(run_named(runs, ids[0])), reply.about(run_named(runs, ids[1]))


def _asked(
    span: SpanParam,
    match: MatchParam,
    module: OfModule = None,
    stat: StatName = "rms",
    kind: OfKind = None,
    tolerance: Annotated[
        float,
        Query(ge=0, le=2, description="largest difference that counts as equal, as a share of the larger magnitude"),
    ] = 0.0,
    rename: Annotated[
        str,
        Query(
            max_length=1000,
            description='"expression -> replacement" that maps the modules of the second run to those of the first',
            examples=["^backbone\\. -> encoder."],
        ),
    ] = "",
) -> ComparisonQuery:
    require("stat", stat, STAT_NAMES)
    renamer(rename)
    match = match if module is None else literal(module)
    return ComparisonQuery(stat, kind, match, span.first, span.last, tolerance, rename)


TwoRuns = Annotated[tuple[Run, Run], Depends(_two_runs)]
AskedParam = Annotated[ComparisonQuery, Depends(_asked)]


@router.get("/compare", summary="Two runs, layer by layer", responses=described(ARRAYS, answers.Comparison))
def compare_two_runs(
    reply: ReplyParam,
    pair: TwoRuns,
    asked: AskedParam,
    points: Annotated[int, Query(ge=1, le=10_000, description="maximum number of points per layer")] = 200,
    sort: Annotated[
        Literal["model", "share", "step"],
        Query(description="the model's order, the largest difference first, or the earliest difference first"),
    ] = "model",
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="maximum number of layers in this answer")] = 50,
    format: Format = None,
) -> Response:
    """Compare taps of the same module, kind, index, call, and phase, and values that both runs logged, step by step.

    `verdict` says how much was compared. Older steps that were merged are compared by their mean, minimum, and maximum,
    if both runs merged the same steps.
    """
    one, two = pair
    if limit * points > MAX_NUMBERS:
        raise ArgumentError(f"{limit} layers of {points} points are more than {MAX_NUMBERS} numbers: ask for fewer")

    def read() -> tuple[Verdict, list[int]]:
        verdict = compare_runs(one.store, two.store, asked)
        return verdict, verdict.order(sort)

    def shown(pairs: Pairs, order: Sequence[int]) -> list[answers.ComparedLayer]:
        return compare(one.store, two.store, pairs, asked, points, order)

    def content() -> answers.Comparison:
        verdict, order = read()
        places, page = page_of(order, after, limit)
        return answers.Comparison(
            **page,
            runs=(one.id, two.id),
            kind=asked.kind,
            stat=asked.stat,
            tolerance=asked.tolerance,
            verdict=_verdict_of(verdict),
            first=first_parting(verdict),
            parted=sum(layer.parts_at is not None for layer in verdict.layers),
            layers=tuple(shown(verdict.pairs, places)),
            logged=tuple(verdict.logged),
            only_in={run.id: _alone(taps) for run, taps in zip((one, two), verdict.pairs.alone, strict=True)},
        )

    def table() -> Table:
        verdict, order = read()
        return _table(shown(verdict.pairs, order[after : after + limit]))

    return reply.arrays(format, content, table=table)


def first_parting(verdict: Verdict) -> answers.Parting | None:
    """Return the earliest step in which a layer differs, and that layer."""
    layer = verdict.parting
    if layer is None or layer.parts_at is None:
        return None
    return answers.Parting(layer.parts_at, layer.tap)


def _verdict_of(verdict: Verdict) -> answers.Verdict:
    extent = verdict.extent
    message = " ".join(verdict.say())
    return answers.Verdict(verdict.outcome, message, extent.compared, extent.captured, extent.not_comparable)


def _alone(taps: dict[Tap, int]) -> tuple[answers.Tap, ...]:
    return tuple(answers.Tap.of(number, tap) for tap, number in islice(taps.items(), MAX_ALONE))


def _table(layers: Sequence[answers.ComparedLayer]) -> Table:
    sizes = [len(layer.difference) for layer in layers]
    columns: dict[str, Any] = {
        "tap": np.repeat(np.array([layer.numbers[0] for layer in layers], np.int64), sizes),
        "label": [layer.tap.label for layer, size in zip(layers, sizes, strict=True) for _ in range(size)],
    }
    for name, kind in (("first_step", np.int64), ("last_step", np.int64), ("difference", np.float64)):
        parts = [getattr(layer, name) for layer in layers]
        columns[name] = np.concatenate(parts) if parts else np.empty(0, kind)
    return Table(columns)


MAX_EARLIER: Final = 8  # runs in which a saved state is looked for


@router.reads("/resume", "Whether a run went on as another one was saved")
def resume(
    runs: RunsParam,
    run: RunParam,
    earlier: Annotated[
        str | None,
        Query(
            pattern=RUN_PATTERN,
            max_length=MAX_RUN_ID,
            description="the run that saved the state; default: the one before it whose state is most like it",
        ),
    ] = None,
) -> answers.ResumeCheck:
    """Compare the first steps after a restart with the state that an earlier run has saved.

    Before an optimizer's first step, whenever its `state_dict()` is called, and at the end, a watched training notes
    hashes and norms of weights, buffers, and states, the learning rates, and the random generators. Of a distributed
    training, ask for one rank.
    """
    _require_rank(run)
    source = _earlier_of(runs, run) if earlier is None else run_named(runs, earlier)
    _require_rank(source)
    step, parts = check_resume(run.store, source.store)
    return answers.ResumeCheck(run.id, source.id, step, *verdict_of(parts), tuple(parts))


StepOfBatch = Annotated[
    int | None, Query(ge=0, le=MAX_STEP, description="measured in this step or before it; default: the newest")
]


@router.reads("/cka", "How alike representations of a fixed batch are")
def cka(
    runs: RunsParam,
    run: RunParam,
    other: Annotated[
        str | None,
        Query(pattern=RUN_PATTERN, max_length=MAX_RUN_ID, description="the run of the columns; default: the same"),
    ] = None,
    step: StepOfBatch = None,
    other_step: StepOfBatch = None,
) -> answers.Cka:
    """Compare what the layers of one or two runs make of the same batch, as `watcher.cka` has measured it (linear CKA).

    1 means that two representations are alike up to a rotation and a factor, about 0 that they are unrelated. Without
    `other` and `other_step`, the layers of one step are compared with each other.
    """
    second = run if other is None else run_named(runs, other)
    same = step if other is None and other_step is None else other_step
    return answers.Cka.of((run.id, second.id), (_measured(run, step), _measured(second, same)))


def _measured(run: Run, step: int | None) -> Similarities:
    found = run.store.similarities(step)
    if found is None:
        when = "" if step is None else f" up to step {step:,}"
        raise ArgumentError(
            f"the run {run.id} has no representations of a fixed batch{when}, or they were dropped to make room: call "
            'watcher.cka(model, batch, include="blocks.*") in the training'
        )
    return found


def _require_rank(run: Run) -> None:
    if run.is_derived:
        raise ArgumentError(
            f"the run {run.id} adds up several ranks, and each has a state of its own: ask for one rank"
        )


def _earlier_of(runs: RunsParam, run: Run) -> Run:
    """Return the run before this one whose saved state is most like its beginning; else the newest with its name."""
    here = run.info
    rank = None if here.place is None else here.place.rank
    before = [
        each
        for each in runs.every()
        if each.info.started_s < here.started_s
        and (each.info.name == here.name or each.info.script == here.script)
        and not each.is_derived
        and (None if each.info.place is None else each.info.place.rank) == rank
    ]
    named = [each for each in before if each.info.name == here.name]
    known = [(alike(run.store, runs.read(each).store), each) for each in before[:MAX_EARLIER]]
    most, found = max(known, key=lambda each: each[0], default=(0, None))
    if most and found is not None:
        return found
    if not named:
        raise ArgumentError(
            f"no run before {run.id} has its name {here.name!r}, or saved what it began with: say which run was saved, "
            "as in earlier=RUN"
        )
    return runs.read(named[0])


@router.get(
    "/compare/heatmap",
    summary="How far two runs are apart, layer by step",
    responses=described(ARRAYS, answers.ComparisonHeatmap),
)
def compare_heatmap(
    reply: ReplyParam,
    pair: TwoRuns,
    asked: AskedParam,
    columns: Annotated[int, Query(ge=1, le=5000, description="maximum number of columns (equal spans of steps)")] = 500,
    rows: Annotated[int, Query(ge=1, le=5000, description="maximum number of rows; neighbors share one")] = 600,
    format: Format = None,
) -> Response:
    """Return each cell's largest difference, as a share of the larger magnitude; columns x rows: at most 2,000,000."""
    one, two = pair
    check_cells(columns, rows)

    def read() -> tuple[answers.ComparisonHeatmap, Differences]:
        pairs = Pairs.of(one.store, two.store, asked)
        found = differences_of(one.store, two.store, pairs, asked, columns, rows)
        return _differences_of((one.id, two.id), asked, pairs, found), found

    def table() -> Table:
        answer, found = read()
        return Table(replace(answer, worst=found.share).columns(), found.share)  # infinities unchanged

    return reply.arrays(format, lambda: read()[0], table=table)


def _differences_of(
    runs: tuple[str, str], asked: ComparisonQuery, pairs: Pairs, found: Differences
) -> answers.ComparisonHeatmap:
    rows = tuple(
        answers.DifferenceRow.of(pairs.numbers[place][0], pairs.taps[place], group=group, numbers=pairs.numbers[place])
        for place, group in zip(found.starts.tolist(), found.groups.tolist(), strict=True)
    )
    cells: Any = found.worst, found.state
    return answers.ComparisonHeatmap(runs, asked.kind, asked.stat, rows, found.first_step, found.last_step, *cells)


MAX_RUNS: Final = 200  # of an answer; their ids fit into an address


def _runs_named(
    runs: RunsParam,
    reply: ReplyParam,
    named: Annotated[
        str,
        Query(
            alias="runs",
            max_length=MAX_RUNS * (MAX_RUN_ID + 1),
            description=f"the ids of at most {MAX_RUNS} runs, separated by commas",
            examples=["run-1,run-2"],
        ),
    ],
) -> list[Run]:
    ids = list(dict.fromkeys(named.split(",")))
    if len(ids) > MAX_RUNS or not all(re.match(RUN_PATTERN, run_id) for run_id in ids):
        raise ArgumentError(f"runs={named[:80]!r} is invalid: give the ids of 1 to {MAX_RUNS} runs, such as runs=a,b")
    return [reply.about(listed_run(runs, run_id)) for run_id in ids]


@router.reads("/overlay", "The same values of many runs", ARRAYS)
def overlay(
    runs: RunsParam,
    chosen: Annotated[list[Run], Depends(_runs_named)],
    span: SpanParam,
    scalar: Annotated[
        str,
        Query(
            max_length=1000,
            description="a scalar; `loss` is the loss of each run, whatever its name, and `gradient norm` the norm of "
            "all gradients of parameters",
        ),
    ] = "",
    tap: Annotated[str, Query(max_length=2100, description="the label of a tap, such as `layers.0 output`")] = "",
    stat: StatName = "rms",
    group_by: Annotated[
        str, Query(max_length=200, description="a value of the runs by which to group them, such as `lr` or `group`")
    ] = "",
    band: Annotated[bool, Query(description="the mean and the range of each group instead of each run")] = False,
    points: Annotated[int, Query(ge=1, le=2000, description="maximum points per line; extremes are kept")] = 500,
) -> answers.Overlay:
    """Return a line for each run, or with `band` for each group of runs. A run on disk is read for it.

    In fewer steps, the same number of points shows more of each.
    """
    wanted = OverlayQuery(scalar, tap, stat)
    found: list[tuple[Run, Series]] = []
    for run in chosen:
        series = find_series(runs.read(run).store, wanted, points, span.first, span.last)
        if series is not None and len(series.mean):
            found.append((run, series))
    groups = {run.id: Traits(run).text(group_by) for run, _ in found}
    names = names_apart([Traits(run) for run in chosen])
    lines = _bands(found, groups) if band else [_line_of(names, *each, groups[each[0].id]) for each in found]
    known = {run.id for run, _ in found}
    what = wanted.scalar or f"{wanted.tap} {wanted.stat}"
    return answers.Overlay(what, group_by, tuple(lines), tuple(run.id for run in chosen if run.id not in known))


def _line_of(names: Mapping[str, str], run: Run, series: Series, group: str) -> answers.OverlayLine:
    counts = np.ones(len(series.mean), np.int64)
    steps, values = (series.first_step, series.last_step), (series.mean, series.min, series.max)
    nonfinite = series.nonfinite.astype(np.int64)
    return answers.OverlayLine(run.id, names[run.id], group, series.name, *steps, *values, nonfinite, counts)


def _bands(found: Sequence[tuple[Run, Series]], groups: dict[str, str]) -> list[answers.OverlayLine]:
    lines = []
    for group in grouped(groups.values()):
        band = band_of([series for run, series in found if groups[run.id] == group])
        steps, values = (band.first, band.last), (band.mean, band.low, band.high)
        lines.append(answers.OverlayLine(None, group, group, "", *steps, *values, band.nonfinite, band.runs))
    return lines


MAX_LAYERS: Final = 200

OtherStep = Annotated[
    int | None, Query(ge=0, le=MAX_STEP, description="the steps to compare with; default: all others")
]


def _other(
    runs: RunsParam,
    reply: ReplyParam,
    run: RunParam,
    other: Annotated[str | None, Query(pattern=RUN_PATTERN, description="another run to compare with")] = None,
) -> Run:
    return run if other is None else reply.about(run_named(runs, other))


@router.reads("/differences", "What changed in some steps", ARRAYS)
def differences(
    run: RunParam,
    beside: Annotated[Run, Depends(_other)],
    span: SpanParam,
    match: MatchParam,
    kind: OfKind = None,
    other_from: OtherStep = None,
    other_to: OtherStep = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LAYERS, description="maximum number of layers and of logged values")] = 20,
    bins: Annotated[int, Query(ge=5, le=500, description="maximum number of bins of a histogram")] = 60,
) -> answers.Differences:
    """Return the layers and logged values whose distributions differ most between the steps and all others.

    Give `other_from` and `other_to` to compare with these steps only, and `other` to compare with another run. Older
    steps are kept as sums: the answer says which steps it is about. `share` is half the sum of the differences of the
    two histograms, less what chance explains.
    """
    if other_from is not None and other_to is not None and other_from > other_to:
        raise ArgumentError(f"other_from={other_from} is after other_to={other_to}: give the earlier step first")
    inside = run.store.sample(span.first, span.last)
    outside = beside.store.sample(other_from, other_to, inside if beside is run else None)
    one, two = Side(run.store, inside, run.id), Side(beside.store, outside, beside.id)
    return what_differs(one, two, run.store.matcher(match), kind, limit, bins)


# The ranks of a distributed training.


def _joint_of(run: RunParam, reply: ReplyParam) -> Joint:
    joint = joint_of(run)
    for each in joint.rounds.current():
        reply.about(each.run)
    reply.about(joint.run)
    return joint


JointParam = Annotated[Joint, Depends(_joint_of)]


@router.reads("/ranks", "The ranks of a training", ARRAYS)
def ranks(joint: JointParam) -> answers.Ranks:
    """Return each rank: its state, how far it is, how fast, and what of it came too late for the sum of all ranks."""
    return ranks_of(joint)


@router.post("/ranks", summary="Add up the ranks again", responses=answered(answers.Ranks, 200, 409))
def sum_again(run: RunParam, runs: RunsParam) -> Response:
    """Add up the saved runs of all ranks again, with the frames that came too late for the sum."""
    joint = joint_of(run)
    if not runs.sum_again(joint):
        needed = "all of them must have ended and be saved (start the server with --keep, or over ClickHouse)"
        raise HTTPException(409, f"the ranks of {joint.run.id} can't be added up again: {needed}")
    return StrictJson(ranks_of(joint))


@router.reads("/ranks/map", "A value by rank and step", ARRAYS)
def rank_map(
    joint: JointParam,
    runs: RunsParam,
    span: SpanParam,
    tap: Annotated[TapText | None, Query(description="a tap's label in the run of all ranks")] = None,
    stat: StatName = "rms",
    name: Annotated[str | None, Query(max_length=1000, description="a logged value instead of a tap")] = None,
    columns: Annotated[int, Query(ge=1, le=2000, description="maximum number of columns (equal spans of steps)")] = 200,
) -> answers.RankMap:
    """Return a tap's stat, a logged value, or without either the seconds per step: the mean by rank and column.

    `newest` says how far the ranks are apart in the newest column, and which one is farthest from the others.
    """
    if tap is not None and name is not None:
        raise ArgumentError("use either tap= or name=, not both")
    require("stat", stat, STAT_NAMES)
    shown = None if tap is None else joint.run.reader.find(tap)
    what = (name or ELAPSED) if shown is None else shown.record
    runs.read_ranks(joint)
    found = map_of(every_store_of(joint), what, stat, span.first, span.last, columns)
    return answers.RankMap(
        run=joint.run.id,
        tap=shown,
        name=what if isinstance(what, str) else stat,
        ranks=found.ranks,
        first_step=found.first,
        last_step=found.last,
        values=found.values,
        newest=found.newest(),
    )


@router.reads("/ranks/spread", "Spread over ranks, by layer", ARRAYS)
def rank_spread(
    joint: JointParam,
    runs: RunsParam,
    kind: Annotated[Kind, Query(description="of the taps")],
    match: MatchParam = None,
    stat: StatName = "rms",
    step: Annotated[int | None, Query(ge=0, le=MAX_STEP, description="default: the newest one")] = None,
    sort: Annotated[SpreadSort, Query(description="the model's order, or the largest of these values first")] = "model",
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="maximum number of layers in this answer")] = 1000,
) -> answers.LayerSpreads:
    """Return how far the ranks are apart in one step, layer by layer, and which rank is the odd one out.

    It is the given step, or the newest one that all ranks have sent. Of steps that were merged, it is their mean.
    """
    require("stat", stat, STAT_NAMES)
    runs.read_ranks(joint)
    found = layers_of(joint.run.store, partial(stores_at, joint), joint.run.store.taps(match, kind), stat, step, step)
    places, page = page_of([] if found is None else found.order(sort), after, limit)
    first, last = (None, None) if found is None else (found.first_step, found.step)
    layers = () if found is None else spreads_of(found, places)
    return answers.LayerSpreads(
        **page, run=joint.run.id, kind=kind, stat=stat, first_step=first, step=last, layers=layers
    )
