"""The runs and their parts: modules, taps, coverage, hooks."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Response
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from hookcore.reading import answers
from hookcore.reading.answers import Number

from ..analysis.modulerows import rows_of
from ..analysis.selection import Patterns, Switch, first_found, found_by, preview
from ..formats import ARRAYS, StrictJson
from ..runs import Run, why_gone
from ..runs.answering import run_of
from ..runs.query import find_runs
from ..runs.traits import Traits
from .bodies import RunChanges, SelectionDraft
from .params import (
    RUN_PATTERN,
    After,
    Limit,
    ListedRun,
    MatchParam,
    OfKind,
    OfModule,
    PathRun,
    RunId,
    RunParam,
    RunsParam,
    SpanParam,
    page_of,
)
from .routing import ReplyParam, answered, described, problems, router

MAX_LISTED: Final = 1000  # runs of an answer


@router.get("/runs", summary="The runs", responses=described(("json",), answers.Runs))
def list_runs(
    runs: RunsParam,
    reply: ReplyParam,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="maximum number of runs in this answer")] = 100,
    after: Annotated[str | None, Query(pattern=RUN_PATTERN, description="the last run of the previous answer")] = None,
    query: Annotated[
        str,
        Query(
            max_length=1000,
            description="which runs, such as `lr>0.1 and tag:sweep and state:crashed`; see docs/runs.md",
            examples=["state:ended"],
        ),
    ] = "",
) -> Response:
    """Return the runs of this server, newest first: all of them, or those that a query finds."""
    known = [each.run for each in find_runs(query, map(Traits, runs.all()))]
    missing = " ".join(filter(None, (runs.partial, runs.unlisted.words)))
    start = 0
    if after is not None:
        places = [place for place, run in enumerate(known) if run.id == after]
        if not places:
            raise HTTPException(404, f"there is no run {after!r}; start again without after=")
        start = places[0] + 1
    shown = known[start : start + limit]

    def content() -> answers.Runs:
        more = start + limit < len(known)
        return answers.Runs(len(known), shown[-1].id if more else None, tuple(map(run_of, shown)), missing)

    for run in known:
        reply.about(run)
    reply.versions.append(missing)
    return reply.json(content)


@router.reads("/runs/{run}", "One run")
def one_run(run: PathRun) -> answers.Run:
    """Return a run's description, its progress, its counters, and the size of its store."""
    return run_of(run)


@router.delete("/runs/{run}", summary="Forget a run", status_code=204, response_class=Response, responses=problems())
def delete_run(runs: RunsParam, run: ListedRun) -> None:
    """Remove a run. It can be restored for seven days, or until its room is needed.

    A folder that a trainer named stays where it is. A live trainer starts the run again.
    """
    runs.remove(run.id)


@router.patch("/runs/{run}", summary="Edit a run", responses=answered(answers.Run))
def change_run(runs: RunsParam, run: ListedRun, changes: RunChanges) -> Response:
    """Change the name, notes, tags, or group of a run, or archive it. Omitted ones stay unchanged."""
    given = changes.model_dump(exclude_none=True)
    run.edit({name: tuple(dict.fromkeys(value)) if name == "tags" else value for name, value in given.items()})
    runs.changes.tell()
    return StrictJson(run_of(run))


@router.get("/removed-runs", summary="The runs that were removed", responses=described(("json",), answers.RemovedRuns))
def list_removed(runs: RunsParam) -> Response:
    """Return the runs that were deleted or had to make room, newest removal first."""
    every = runs.gone()
    gone = tuple(answers.RemovedRun(run.id, run.name, Number(run.at_s), run.why, run.run is not None) for run in every)
    return StrictJson(answers.RemovedRuns(len(gone), gone))


@router.post(
    "/removed-runs/{run}/restore", summary="Bring a removed run back", responses=answered(answers.Run, 200, 409)
)
def restore_run(runs: RunsParam, run: RunId) -> Response:
    """Undo a removal, as long as the run's room wasn't needed."""
    if all(gone.id != run for gone in runs.gone()):
        raise HTTPException(404, f"the run {run!r} was not removed from this server")
    restored = runs.restore(run)
    if restored is None:
        raise HTTPException(409, why_gone(runs.gone(), run) + " Or a newer run has its id.")
    return StrictJson(run_of(restored))


@router.reads("/runs/{run}/modules", "The tree of modules")
def modules(
    run: PathRun,
    match: MatchParam,
    module: OfModule = None,
    taps: Annotated[bool, Query(description="false: without their taps, which is faster")] = True,
    after: After = 0,
    limit: Limit = 1000,
) -> answers.Modules:
    """Return every module in the model's order, with its parameters, its coverage, and its taps."""
    fits, every = run.store.matcher(match), run.store.modules()
    found = [each for each in every if module in (None, each.path) and fits(each.path)]
    shown, page = page_of(found, after, limit)
    return answers.Modules(**page, run=run.id, modules=tuple(run.reader.modules_of(shown, taps=taps)))


@router.get("/runs/{run}/find", include_in_schema=False)  # only for the find boxes of the pages, and the palette
def find_modules(
    run: PathRun,
    reply: ReplyParam,
    f: Annotated[str, Query(max_length=1000)] = "",
    limit: Annotated[
        int | None, Query(ge=1, le=1000, description="only the first ones, and how many there are")
    ] = None,
) -> Response:
    """Return the modules that the text of a find box matches."""
    return reply.json(lambda: found_by(run, f) if limit is None else first_found(run, f, limit))


@router.get("/runs/{run}/module-rows", include_in_schema=False)  # only for the tree of the page Hooks
def module_rows(run: PathRun, reply: ReplyParam, span: SpanParam) -> Response:
    """Return what the tree shows of each module: its hooks, and the newest values in a range of steps."""
    return reply.json(lambda: rows_of(run.store, span.first, span.last))


@router.post("/runs/{run}/selection", include_in_schema=False)  # only for the page Hooks
def preview_selection(run: PathRun, draft: SelectionDraft) -> Response:
    """Return the modules that patterns would select, and the patterns after a switch."""
    before, switch = Patterns(draft.include, draft.exclude), draft.switch
    return StrictJson(preview(run, before, None if switch is None else Switch(switch.paths, switch.whole, switch.on)))


@router.reads("/taps", "The observed tensor streams")
def taps(
    run: RunParam,
    match: MatchParam,
    kind: OfKind = None,
    module: OfModule = None,
    after: After = 0,
    limit: Limit = 10_000,
) -> answers.Taps:
    """Return the matching taps, ascending by number."""
    found = run.reader.taps(match, kind)
    shown, page = page_of([tap for tap in found.taps if module in (None, tap.module)], after, limit)
    return replace(found, **page, taps=tuple(shown))


@router.reads("/coverage", "What is captured, and what is not and why")
def coverage(
    run: RunParam,
    match: MatchParam,
    captured: Annotated[bool | None, Query(description="only captured, or only uncaptured modules")] = None,
    after: After = 0,
    limit: Limit = 1000,
) -> answers.CoverageList:
    """Return every module: captured, or why not."""
    shown, page = page_of(run.reader.coverage(match, captured), after, limit)
    return answers.CoverageList(**page, run=run.id, coverage=tuple(shown))


@router.reads("/hooks", "The inventory of hooks")
def hooks(run: RunParam, after: After = 0, limit: Limit = 1000) -> answers.Hooks:
    """Return the hooks on the model and the process at the last inventory."""
    shown, page = page_of(run.store.hooks(), after, limit)
    return answers.Hooks(**page, run=run.id, hooks=tuple(shown))


@router.reads("/flow", "Which call feeds which")
def flow(
    run: RunParam,
    step: Annotated[int | None, Query(ge=0, le=2**53, description="as it was known in this step; else now")] = None,
) -> answers.Flow:
    """Return the calls of the modules, and whose outputs went into each. It was learned inside the training."""
    return run.reader.flow(step)


@router.post("/hooks", summary="Look for hooks again", status_code=202, responses=answered(answers.Accepted, 202, 409))
def look_for_hooks(run: RunParam) -> Response:
    """Ask the trainer to take inventory of the hooks at its next step."""
    require_live(run)
    number = run.ask("inventory").number
    return accepted(run, number, f"/api/v1/hooks?run={run.id}")


def require_live(run: Run) -> None:
    """Raise 409 if the run has no trainer."""
    if run.state != "live":
        raise HTTPException(409, f"the run {run.id} is {run.state}: it has no trainer to carry out the request")


def accepted(run: Run, number: int, look: str) -> Response:
    """Return the answer for a command that was sent."""
    return StrictJson(answers.Accepted(run.id, number, look), 202, {"Location": look})


@router.reads("/model", "The model as a picture", ARRAYS)
def model(
    run: RunParam,
    step: Annotated[int | None, Query(ge=0, le=2**53, description="as it was known in this step; default: now")] = None,
) -> answers.Model:
    """Return the model as boxes in boxes with what flows between them: calls, or modules until the flow is known."""
    return run.reader.model(step)
