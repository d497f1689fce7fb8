"""What routes receive: the run, the span of steps, and the rest of a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query, Request
from starlette.exceptions import HTTPException

from hookcore.config.patterns import parse
from hookcore.config.patterns.matching import MAX_LENGTH
from hookcore.errors import ArgumentError
from hookcore.records import Kind
from hookcore.store import STAT_NAMES
from hookcore.store.checks import unknown

from ..runs import Run, Runs, why_gone
from ..runs.ranked import rank_of
from ..runs.views import MAX_NAME, Views
from .routing import ReplyParam

MAX_CELLS: Final = 2_000_000  # of a map
MAX_STEP: Final = 2**53
MAX_PAGE: Final = 10_000
MAX_RUN_ID: Final = 200  # characters
RUN_PATTERN: Final = rf"^[A-Za-z0-9_-]{{1,{MAX_RUN_ID}}}$"

RunId = Annotated[str, Path(pattern=RUN_PATTERN, description="a run's id", examples=["run-1"])]
OfRun = Annotated[str | None, Query(pattern=RUN_PATTERN, description="a run's id; default: the newest run")]
OfRank = Annotated[
    int | None, Query(ge=0, le=2**31, description="one rank of a distributed training; default: all ranks together")
]
OfModule = Annotated[str | None, Query(max_length=1000, description="only the module with this path")]
OfKind = Annotated[Kind | None, Query(description="only taps of this kind")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="maximum number of items in this answer")]
After = Annotated[int, Query(ge=0, le=MAX_STEP, description="`next` of the previous answer")]
# Described as a choice but read as a text, so that an unknown one gets the nearest as a hint.
StatName = Annotated[str, Query(max_length=50, json_schema_extra={"enum": list(STAT_NAMES)})]
StatsOrQuantiles = Annotated[
    str,
    Query(
        max_length=500,
        description="a stat, or a quantile such as p50 or p99.9; separate several with commas",
        json_schema_extra={"anyOf": [{"enum": list(STAT_NAMES)}, {"pattern": r"^p(\d{1,2}(\.\d{1,6})?|100)$"}]},
    ),
]


def match_of(
    match: Annotated[
        str | None,
        Query(
            max_length=MAX_LENGTH,
            description="a pattern for modules, such as layers.*.attn, type:Linear, or is:nan; see docs/patterns.md",
            examples=["layers.*"],
        ),
    ] = None,
) -> str | None:
    """Return a pattern for modules. A malformed one raises PatternError before anything is read."""
    if match is not None:
        parse(match)
    return match


MatchParam = Annotated[str | None, Depends(match_of)]


def runs_of(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


RunsParam = Annotated[Runs, Depends(runs_of)]
NameParam = Annotated[str, Query(min_length=1, max_length=MAX_NAME, description="the name it was saved under")]


def forget(kept: Views, name: str) -> None:
    """Delete the view or chart that readers saved under a name. Answers 404 if there is none."""
    if not kept.delete(name):
        raise HTTPException(404, unknown(kept.noun, name, list(kept.all())))


def listed_run(runs: Runs, run_id: str) -> Run:
    """Return a run from the list by its id, or 404. Its values may be on disk."""
    found = runs.look_up(run_id)
    if found is None:
        raise HTTPException(
            404,
            why_gone(runs.gone(), run_id)
            or " ".join(filter(None, [unknown("run", run_id, [run.id for run in runs.all()]), runs.partial])),
        )
    return found


def run_named(runs: Runs, run_id: str | None) -> Run:
    """Return a run with its values, by its id, or the newest one. 404 if there is none."""
    if run_id is not None:
        return runs.read(listed_run(runs, run_id))
    newest = next(iter(runs.all()), None)
    if newest is None:
        raise HTTPException(404, "there is no run yet: start a training that calls hookcore.watch(model)")
    return runs.read(newest)


def _run_of_path(runs: RunsParam, reply: ReplyParam, run: RunId) -> Run:
    return reply.about(run_named(runs, run))


def _listed_run_of_path(runs: RunsParam, run: RunId) -> Run:
    return listed_run(runs, run)


def _run_of_query(runs: RunsParam, reply: ReplyParam, run: OfRun = None, rank: OfRank = None) -> Run:
    found = run_named(runs, run)
    return reply.about(found if rank is None else runs.read(rank_of(found, rank)))


PathRun = Annotated[Run, Depends(_run_of_path)]
ListedRun = Annotated[Run, Depends(_listed_run_of_path)]
RunParam = Annotated[Run, Depends(_run_of_query)]


@dataclass(frozen=True, slots=True)
class Span:
    """The steps from first to last, both inclusive. None means no bound."""

    first: Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP, description="the first step")] = None
    last: Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP, description="the last step")] = None

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ArgumentError(f"from={self.first} is after to={self.last}: give the earlier step as from")


SpanParam = Annotated[Span, Depends()]


def page_of(items: Sequence[Any], after: int, limit: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return a page of a list, and where the next one begins."""
    end = after + limit
    return items[after:end], {"total": len(items), "next": end if end < len(items) else None}


def check_cells(columns: int, rows: int) -> None:
    """Raise ArgumentError if a map has too many cells."""
    if columns * rows > MAX_CELLS:
        raise ArgumentError(f"columns={columns} by rows={rows} are more than {MAX_CELLS} cells: ask for fewer")
