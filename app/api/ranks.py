"""The ranks of a distributed training."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Depends, Query

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.records import Kind
from hookcore.records.vocabulary import ELAPSED
from hookcore.store import STAT_NAMES
from hookcore.store.checks import require

from ..analysis.ranks import SpreadSort, every_store_of, layers_of, map_of, ranks_of, spreads_of, stores_at
from ..formats import ARRAYS
from ..runs import JointRun
from ..runs.ranked import joint_of, read_every
from .params import MAX_STEP, After, MatchParam, RunParam, RunsParam, SpanParam, StatName, page_of
from .routing import ReplyParam, router
from .series import TapText


def _joint_of(run: RunParam, reply: ReplyParam) -> JointRun:
    joint = joint_of(run)
    for each in joint.current():
        reply.about(each.run)
    return reply.about(joint)


JointParam = Annotated[JointRun, Depends(_joint_of)]


@router.reads("/ranks", "The ranks of a training", ARRAYS)
def ranks(joint: JointParam) -> answers.Ranks:
    """Return each rank: its state, how far it is, how fast, and what of it came too late for the sum of all ranks."""
    return ranks_of(joint)


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
    shown = None if tap is None else joint.reader.find(tap)
    what = (name or ELAPSED) if shown is None else shown.record
    read_every(runs, joint)
    found = map_of(every_store_of(joint), what, stat, span.first, span.last, columns)
    return answers.RankMap(
        run=joint.id,
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
    read_every(runs, joint)
    found = layers_of(joint.store, partial(stores_at, joint), joint.store.taps(match, kind), stat, step, step)
    places, page = page_of([] if found is None else found.order(sort), after, limit)
    first, last = (None, None) if found is None else (found.first_step, found.step)
    layers = () if found is None else spreads_of(found, places)
    return answers.LayerSpreads(**page, run=joint.id, kind=kind, stat=stat, first_step=first, step=last, layers=layers)
