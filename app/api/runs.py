"""The runs: the list and its saved views, the parts of each, its trainer, and its report."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import Query, Response
from msgspec.structs import replace
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from hookcore.config import LIVE
from hookcore.config.patterns import STRUCTURE, parse
from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.store import STAT_NAMES
from hookcore.store.checks import require

from ..analysis.modules import ModuleRow, Patterns, Switch, columns_of, first_found, found_by, preview, rows_of
from ..formats import ARRAYS, StrictJson, Table, plain
from ..runs import Run, Runs, why_gone
from ..runs.answering import run_of
from ..runs.parts import MAX_COMMANDS
from ..runs.query import Traits, find_runs
from .params import (
    MAX_STEP,
    RUN_PATTERN,
    After,
    Limit,
    ListedRun,
    MatchParam,
    NameParam,
    OfKind,
    OfModule,
    PathRun,
    RunChanges,
    RunId,
    RunParam,
    RunsParam,
    SavedText,
    SelectionDraft,
    SettingsChanges,
    SpanParam,
    ViewToSave,
    asked_in,
    forget,
    page_of,
    problem_of,
)
from .routing import Format, ReplyParam, answered, described, problems, router

# The runs and their parts: modules, taps, coverage, hooks.

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
        raise HTTPException(409, (why_gone(runs.gone(), run) or "") + " Or a newer run has its id.")
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


@router.get("/runs/{run}/module-rows", include_in_schema=False)  # only for the files of the page Capture
def module_rows(run: PathRun, reply: ReplyParam, span: SpanParam, format: Format = None) -> Response:
    """Return what the page shows of each module: its hooks, and the newest values in a range of steps."""

    def rows() -> list[ModuleRow]:
        return rows_of(run.store, span.first, span.last)

    return reply.arrays(format, rows, table=lambda: Table(columns_of(rows())))


@router.post("/runs/{run}/selection", include_in_schema=False)  # only for the page Capture
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


@router.get("/runs/{run}/hook-rows", include_in_schema=False)  # only for the files of the page Hooks
def hook_rows(run: PathRun, reply: ReplyParam, format: Format = None) -> Response:
    """Return all hooks at the last inventory."""
    found = run.store.hooks()
    texts = ("scope", "owner", "point", "function", "where", "warning")
    flags = {name: [str(getattr(hook, name)).lower() for hook in found] for name in ("ours", "legacy")}
    columns = {name: [str(getattr(hook, name)) for hook in found] for name in texts} | flags
    columns["options"] = [" ".join(hook.options) for hook in found]
    return reply.arrays(format, lambda: {"hooks": found}, table=lambda: Table(columns))


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
    outcome = f"/api/v1/commands?run={run.id}&numbers={number}"
    return StrictJson(answers.Accepted(run.id, number, look, outcome), 202, {"Location": look})


@router.reads("/model", "The model as a picture", ARRAYS)
def model(
    run: RunParam,
    step: Annotated[int | None, Query(ge=0, le=2**53, description="as it was known in this step; default: now")] = None,
) -> answers.Model:
    """Return the model as boxes in boxes with what flows between them: calls, or modules until the flow is known."""
    return run.reader.model(step)


# The trainer: its settings, changes of these, and what became of commands.


@router.get("/settings", summary="Current settings", responses=described(("json",), answers.Settings))
def settings(run: RunParam, reply: ReplyParam) -> Response:
    """Return the current settings of the trainer, and the commands that it has not carried out yet."""
    with run.lock:
        waiting = tuple(answers.Command(each.number, each.name, plain(each.changes)) for each in run.commands)
    reply.versions += [str(command.number) for command in waiting]
    return reply.json(lambda: answers.Settings(run.id, run.state, plain(run.info.settings), waiting))


@router.patch(
    "/settings", summary="Change what is captured", status_code=202, responses=answered(answers.Accepted, 202, 409)
)
def change_settings(run: RunParam, wanted: SettingsChanges) -> Response:
    """Change settings of the trainer, pause it, or resume it. Takes effect at its next step."""
    changes = _checked(wanted.model_dump(exclude_unset=True))
    require_live(run)
    number = run.ask("settings", changes=changes).number
    return accepted(run, number, f"/api/v1/settings?run={run.id}")


@router.get("/commands", summary="Outcomes of commands", responses=described(("json",), answers.Outcomes))
def outcomes(
    run: RunParam,
    reply: ReplyParam,
    numbers: Annotated[
        str,
        Query(
            max_length=5000,
            pattern=r"^\d{1,19}(,\d{1,19})*$",
            description=f"the numbers of up to {MAX_COMMANDS} commands, separated by commas",
            examples=["1767225600000"],
        ),
    ],
) -> Response:
    """Return what became of commands: changes of settings, and requests for tensors.

    `received` means that the trainer carries it out at its next step. A search for hooks and a saved step have no
    further outcome.
    """
    wanted = list(dict.fromkeys(map(int, numbers.split(","))))
    if len(wanted) > MAX_COMMANDS:
        raise ArgumentError(f"{len(wanted)} numbers are given; at most {MAX_COMMANDS} are allowed")
    known = tuple(run.outcome(number) for number in wanted)
    reply.versions += [f"{outcome.number} {outcome.outcome}" for outcome in known]
    return reply.json(lambda: answers.Outcomes(run.id, known))


def _checked(changes: dict[str, Any]) -> dict[str, Any]:
    """Validate changes as a call of `watch` would, so that what the trainer would refuse is refused here."""
    if not changes:
        raise ArgumentError(f"nothing to change: give one or more of {', '.join(LIVE)}, paused")
    for name, value in changes.items():
        if name == "paused":
            if value is None:
                raise ArgumentError("paused=null is invalid: use true or false")
            continue
        LIVE[name].value_of(value)
        if name in ("include", "exclude"):
            for pattern in [value] if isinstance(value, str) else value or ():
                parse(pattern, STRUCTURE)
    return changes


# Views of the list of runs, which readers keep by name: query strings of its page.

_Short = Annotated[str, Field(max_length=50)]


class RunsView(BaseModel):
    """The address of the Runs page: what the server reads of it, then what only its script reads."""

    f: SavedText = ""
    sort: SavedText = ""
    columns: Annotated[list[SavedText], Field(max_length=50)] = []
    group: SavedText = ""
    runs: str = ""
    metric: SavedText = ""
    tap: Annotated[str, Field(max_length=2100)] = ""
    stat: _Short = ""
    band: Literal["", "0", "1"] = ""
    result: SavedText = ""
    better: SavedText = ""
    setting: SavedText = ""
    row: Annotated[str, Field(pattern=r"^\d{0,9}$")] = ""
    smooth: Annotated[str, Field(pattern=r"^\d{0,4}$")] = ""
    y: Literal["", "log"] = ""
    steps: _Short = ""
    by: Literal["", "captured", "step", "time", "samples"] = ""


def check_view(query: str) -> None:
    """Raise HookcoreError if the Runs page can't show what a query string asks for."""
    asked = asked_in(RunsView, query)
    find_runs(asked.f, ())  # a value that no run has yet may come
    if asked.stat:
        require("stat", asked.stat, STAT_NAMES)


def problem_of_view(query: str) -> str | None:
    """Return why a stored view can't be shown; None if it can."""
    return problem_of(check_view, query)


def _views_of(runs: Runs) -> Response:
    return StrictJson(answers.Views(tuple(answers.View(*each) for each in runs.views.all().items())))


@router.get("/views", summary="Saved views of the list of runs", responses=described(("json",), answers.Views))
def list_views(runs: RunsParam) -> Response:
    """Return the saved views: each is a name, and the query string of the Runs page."""
    return _views_of(runs)


@router.put("/views", summary="Save a view", responses=answered(answers.Views))
def save_view(runs: RunsParam, view: ViewToSave) -> Response:
    """Save what the Runs page shows with a query string, instead of the view of the same name.

    A query string that the page can't show is refused.
    """
    check_view(view.query)
    runs.views.save(view.name, view.query)
    return _views_of(runs)


@router.delete("/views", summary="Delete a view", status_code=204, response_class=Response, responses=problems())
def delete_view(runs: RunsParam, name: NameParam) -> None:
    """Delete a saved view."""
    forget(runs.views, name)


# The file is saved, not shown. If it is opened anyway, the page has no origin. It has its own policy too.
_POLICY = (
    "sandbox allow-scripts; default-src 'none'; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


@router.get(
    "/report",
    summary="A report to keep",
    response_class=Response,
    responses={
        200: {
            "content": {"text/html": {"schema": {"type": "string"}, "example": "<!doctype html>..."}},
            "description": "a file that needs no server",
        },
        **problems(),
    },
)
def report(
    run: RunParam,
    span: SpanParam,
    at: Annotated[
        int | None,
        Query(ge=0, le=MAX_STEP, description="the step that numbers are taken from; charts show all the steps"),
    ] = None,
) -> Response:
    """Return key figures, findings, charts, coverage, settings, and events in one offline file of at most 10 MB.

    With steps, numbers are of them, and findings are the incidents that touch them, as they were known then.
    """
    from ..pages.report import ReportSteps, report_of  # imports Plotly

    headers = {
        "Content-Disposition": f'attachment; filename="hookcore-{run.id}.html"',
        "Content-Security-Policy": _POLICY,
        "Cache-Control": "private, no-store",
    }
    return Response(
        report_of(run, ReportSteps(span.first, span.last, at)), media_type="text/html; charset=utf-8", headers=headers
    )
