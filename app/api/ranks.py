"""The ranks of a distributed training."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.records import Kind, Tap
from hookcore.records.vocabulary import ELAPSED
from hookcore.store import STAT_NAMES
from hookcore.store.checks import require

from ..analysis.rankmaps import Map, map_of
from ..analysis.ranks import ranks_of
from ..analysis.rankstores import every_store_of, stores_at
from ..analysis.spreads import SpreadSort, layers_of, spreads_of
from ..formats import ARRAYS
from ..runs import JointRun, Run
from ..runs.ranked import joint_of, read_every
from .params import (
    MAX_STEP,
    After,
    Format,
    MatchParam,
    ReplyParam,
    RunParam,
    RunsParam,
    SpanParam,
    StatName,
    described,
    page_of,
    version_of,
)
from .series import TapText
from .steady import SteadyRoute

router = APIRouter(route_class=SteadyRoute)


@router.get("/ranks", summary="The ranks of a training", responses=described(answers.Ranks, ARRAYS))
def ranks(run: RunParam, reply: ReplyParam, format: Format = None) -> Response:
    """Return each rank: its state, how far it is, how fast, and what of it came too late for the sum of all ranks."""
    joint = joint_of(run)
    return reply.arrays(format, _versions(joint), lambda: ranks_of(joint))


@router.get("/ranks/map", summary="A value by rank and step", responses=described(answers.RankMap, ARRAYS))
def rank_map(
    run: RunParam,
    runs: RunsParam,
    reply: ReplyParam,
    span: SpanParam,
    tap: Annotated[TapText | None, Query(description="a tap's label in the run of all ranks")] = None,
    stat: StatName = "rms",
    name: Annotated[str | None, Query(max_length=1000, description="a logged value instead of a tap")] = None,
    columns: Annotated[int, Query(ge=1, le=2000, description="maximum number of columns (equal spans of steps)")] = 200,
    format: Format = None,
) -> Response:
    """Return a tap's stat, a logged value, or without either the seconds per step: the mean by rank and column.

    `newest` says how far the ranks are apart in the newest column, and which one is farthest from the others.
    """
    if tap is not None and name is not None:
        raise ArgumentError("use either tap= or name=, not both")
    require("stat", stat, STAT_NAMES)
    joint = joint_of(run)

    def read() -> answers.RankMap:
        what: Tap | str = name or ELAPSED
        shown = None
        if tap is not None:
            shown = joint.reader.find(tap)
            what = shown.record
        read_every(runs, joint)
        found = map_of(every_store_of(joint), what, stat, span.first, span.last, columns)
        return answer_of(joint, found, shown, what if isinstance(what, str) else stat)

    return reply.arrays(format, _versions(joint), read)


@router.get("/ranks/spread", summary="Spread over ranks, by layer", responses=described(answers.LayerSpreads, ARRAYS))
def rank_spread(
    run: RunParam,
    runs: RunsParam,
    reply: ReplyParam,
    kind: Annotated[Kind, Query(description="of the taps")],
    match: MatchParam = None,
    stat: StatName = "rms",
    step: Annotated[int | None, Query(ge=0, le=MAX_STEP, description="default: the newest one")] = None,
    sort: Annotated[SpreadSort, Query(description="the model's order, or the largest of these values first")] = "model",
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="maximum number of layers in this answer")] = 1000,
    format: Format = None,
) -> Response:
    """Return how far the ranks are apart in one step, layer by layer, and which rank is the odd one out.

    It is the given step, or the newest one that all ranks have sent. Of steps that were merged, it is their mean.
    """
    require("stat", stat, STAT_NAMES)
    joint = joint_of(run)

    def read() -> answers.LayerSpreads:
        read_every(runs, joint)
        found = layers_of(joint.store, partial(stores_at, joint), joint.store.taps(match, kind), stat, step, step)
        places, page = page_of([] if found is None else found.order(sort), after, limit)
        first, last = (None, None) if found is None else (found.first_step, found.step)
        layers = () if found is None else spreads_of(found, places)
        return answers.LayerSpreads(
            **page, run=joint.id, kind=kind, stat=stat, first_step=first, step=last, layers=layers
        )

    return reply.arrays(format, _versions(joint), read)


def answer_of(run: Run, found: Map, tap: answers.Tap | None, name: str) -> answers.RankMap:
    return answers.RankMap(
        run=run.id,
        tap=tap,
        name=name,
        ranks=found.ranks,
        first_step=found.first,
        last_step=found.last,
        values=found.values,
        newest=found.newest(),
    )


def _versions(joint: JointRun) -> list[str]:
    return [version_of(joint), *(version_of(each.run) for each in joint.current())]
