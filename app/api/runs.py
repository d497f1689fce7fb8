"""The runs, and what a run consists of: modules, taps, coverage, hooks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from starlette.exceptions import HTTPException

from hookcore.records import ModuleRecord
from hookcore.store import Store
from hookcore.store.checks import matcher

from ..facts import facts_as_json, facts_of
from ..formats import array_json, plain
from ..runs import Gone, Run, why_gone
from ..schemas import StrictJson, run_as_json, tap_as_json
from . import examples
from .bodies import RunChanges
from .given import (
    RUN_PATTERN,
    After,
    GivenReply,
    GivenRun,
    GivenRuns,
    Limit,
    ListedRun,
    Match,
    OfKind,
    PathRun,
    RunId,
    described,
    page_of,
    problems,
    version_of,
)
from .models import (
    Accepted,
    CoveragePage,
    HooksPage,
    ModulesPage,
    RemovedRunsPage,
    RunModel,
    RunsPage,
    TapsPage,
)

router = APIRouter(prefix="/api/v1", default_response_class=StrictJson)


@router.get("/runs", summary="The runs", response_model=RunsPage, responses=described(examples.RUNS))
def list_runs(
    runs: GivenRuns,
    reply: GivenReply,
    limit: Annotated[int, Query(ge=1, le=1000, description="runs in this answer, at most 1,000")] = 100,
    after: Annotated[str | None, Query(pattern=RUN_PATTERN, description="the last run of the answer before")] = None,
) -> Response:
    """Every run of this server, the newest first."""
    known = runs.all()
    start = 0
    if after is not None:
        places = [place for place, run in enumerate(known) if run.id == after]
        if not places:
            raise HTTPException(404, f"there is no run {after!r} any more behind which to go on: begin anew")
        start = places[0] + 1
    shown = known[start : start + limit]

    def content() -> dict[str, Any]:
        more = start + limit < len(known)
        listed = [run_as_json(run) for run in shown]
        return {"total": len(known), "next": shown[-1].id if more else None, "runs": listed}

    return reply.json([version_of(run) for run in known], content)


@router.get("/runs/{run}", summary="One run", response_model=RunModel, responses=described(examples.RUN))
def one_run(run: PathRun, reply: GivenReply) -> Response:
    """What a run is, how far it is, its accounts, and what its store takes."""
    return reply.json([version_of(run)], lambda: run_as_json(run))


@router.delete(
    "/runs/{run}",
    summary="Forget a run",
    status_code=204,
    response_class=Response,
    responses=problems(),
)
def delete_run(runs: GivenRuns, run: ListedRun) -> None:
    """Remove a run. It can be restored for seven days, or until its room is needed.

    A folder that a trainer named stays where it is. A live trainer starts the run again.
    """
    runs.remove(run.id)


@router.patch(
    "/runs/{run}", summary="Rename a run", response_model=RunModel, responses=described(examples.RUN) | problems()
)
def change_run(runs: GivenRuns, run: ListedRun, changes: RunChanges) -> Response:
    """Gives a run another name, or notes. What is left out stays."""
    if changes.name is not None:
        run.name = changes.name
    if changes.notes is not None:
        run.notes = changes.notes
    run.edited()
    runs.changes.tell()
    return StrictJson(run_as_json(run))


@router.get(
    "/removed-runs",
    summary="The runs that were removed",
    response_model=RemovedRunsPage,
    responses=described(examples.REMOVED_RUNS),
)
def list_removed(runs: GivenRuns) -> Response:
    """Runs that were deleted or had to make room, the newest removal first."""
    gone = runs.gone()
    listed = [_gone_as_json(each) for each in gone]
    return StrictJson({"total": len(gone), "runs": listed})


def _gone_as_json(gone: Gone) -> dict[str, Any]:
    return {
        "id": gone.id,
        "name": gone.name,
        "removed_s": gone.at_s,
        "why": gone.why,
        "restorable": gone.run is not None,
    }


@router.post(
    "/removed-runs/{run}/restore",
    summary="Bring a removed run back",
    response_model=RunModel,
    responses=described(examples.RUN) | problems(409),
)
def restore_run(runs: GivenRuns, run: RunId) -> Response:
    """Undo a removal, as long as the run's room wasn't needed."""
    if all(gone.id != run for gone in runs.gone()):
        raise HTTPException(404, f"the run {run!r} was not removed from this server")
    restored = runs.restore(run)
    if restored is None:
        raise HTTPException(409, why_gone(runs, run) + " Or a newer run has its id.")
    return StrictJson(run_as_json(restored))


@router.get(
    "/runs/{run}/modules",
    summary="The tree of modules",
    response_model=ModulesPage,
    responses=described(examples.MODULES),
)
def modules(run: PathRun, reply: GivenReply, match: Match = None, after: After = 0, limit: Limit = 1000) -> Response:
    """Every module in the model's order, with its parameters, its coverage and its taps."""
    fits = matcher(match)

    def content() -> dict[str, Any]:
        found = [module for module in run.store.modules() if fits(module.path)]
        shown, page = page_of(found, after, limit)
        return {"run": run.id, **page, "modules": _tree_rows(run.store, shown)}

    return reply.json([version_of(run)], content)


@router.get("/runs/{run}/facts", include_in_schema=False)  # of the pages alone: their find box asks it
def module_facts(run: PathRun, reply: GivenReply) -> Response:
    """What the find box can ask of each module."""
    return reply.json([version_of(run)], lambda: {"modules": facts_as_json(facts_of(run))})


def _tree_rows(store: Store, shown: Any) -> list[dict[str, Any]]:
    coverage = {each.path: asdict(each) for each in store.coverage()}
    taps = _taps_by_module(store)
    return [_tree_row(module, coverage.get(module.path), taps[module.path]) for module in shown]


def _tree_row(module: ModuleRecord, coverage: Any, taps: list[dict[str, Any]]) -> dict[str, Any]:
    shapes = {name: list(shape) for name, shape in module.shapes}
    for tap in taps:
        if tap["shape"] is None:
            tap["shape"] = shapes.get(_shape_name(tap["kind"], tap["index"]))
    return {**asdict(module), "shapes": shapes, "coverage": coverage, "taps": taps}


def _shape_name(kind: str, index: str) -> str:
    """A gradient has the shape of its tensor; a parameter goes by its own name."""
    return index if kind.startswith(("param", "update")) else f"{kind.removesuffix('_grad')} {index}".rstrip()


def _taps_by_module(store: Store) -> defaultdict[str, list[dict[str, Any]]]:
    latest = store.latest(stat="count")
    values = dict(zip(latest.numbers.tolist(), latest.values[:, 0], strict=True))
    shapes = {snapshot.tap: list(snapshot.shape) for snapshot in store.snapshots()}
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    all_taps = store.taps()
    for number, tap in zip(all_taps.numbers.tolist(), all_taps.taps, strict=True):
        count = array_json(values[number]) if number in values else None
        found[tap.module].append({**tap_as_json(number, tap), "values": count, "shape": shapes.get(tap)})
    return found


@router.get("/taps", summary="The observed tensor streams", response_model=TapsPage, responses=described(examples.TAPS))
def taps(
    run: GivenRun,
    reply: GivenReply,
    match: Match = None,
    kind: OfKind = None,
    of_type: Annotated[
        str | None, Query(alias="type", max_length=200, description="a glob on the module's class, or re:")
    ] = None,
    after: After = 0,
    limit: Limit = 10_000,
) -> Response:
    """The taps that fit, ascending by number."""
    matcher(match)
    is_type = matcher(of_type)

    def content() -> dict[str, Any]:
        found = run.store.taps(match, kind)
        types = {module.path: module.type for module in run.store.modules()} if of_type else {}
        pairs = [
            (number, tap)
            for number, tap in zip(found.numbers.tolist(), found.taps, strict=True)
            if of_type is None or is_type(types.get(tap.module, ""))
        ]
        shown, page = page_of(pairs, after, limit)
        return {"run": run.id, **page, "taps": [tap_as_json(number, tap) for number, tap in shown]}

    return reply.json([version_of(run)], content)


@router.get(
    "/coverage",
    summary="What is captured, and what is not and why",
    response_model=CoveragePage,
    responses=described(examples.COVERAGE),
)
def coverage(
    run: GivenRun,
    reply: GivenReply,
    match: Match = None,
    captured: Annotated[bool | None, Query(description="only modules that were captured, or were not")] = None,
    after: After = 0,
    limit: Limit = 1000,
) -> Response:
    """Every module: captured, or not and why."""
    fits = matcher(match)

    def content() -> dict[str, Any]:
        found = [each for each in run.store.coverage() if fits(each.path) and captured in (None, each.captured)]
        shown, page = page_of(found, after, limit)
        return {"run": run.id, **page, "coverage": [asdict(each) for each in shown]}

    return reply.json([version_of(run)], content)


@router.get("/hooks", summary="The inventory of hooks", response_model=HooksPage, responses=described(examples.HOOKS))
def hooks(run: GivenRun, reply: GivenReply, after: After = 0, limit: Limit = 1000) -> Response:
    """The hooks on the model and the process, as they were when last looked for."""

    def content() -> dict[str, Any]:
        shown, page = page_of(run.store.hooks(), after, limit)
        return {"run": run.id, **page, "hooks": [plain(asdict(each)) for each in shown]}

    return reply.json([version_of(run)], content)


@router.post(
    "/hooks",
    summary="Look for hooks again",
    status_code=202,
    response_model=Accepted,
    responses=problems(409),
)
def look_for_hooks(run: GivenRun) -> Response:
    """Asks the trainer to take stock of the hooks at its next step."""
    require_live(run)
    number = run.ask("inventory").number
    return accepted(run, number, f"/api/v1/hooks?run={run.id}")


def require_live(run: Run) -> None:
    """Raises 409 where nobody is there to obey."""
    if run.state != "live":
        raise HTTPException(409, f"the run {run.id} is {run.state}: its trainer cannot be asked for anything any more")


def accepted(run: Run, number: int, look: str) -> Response:
    """A command is on its way."""
    content = {"run": run.id, "number": number, "look": look}
    return StrictJson(content, 202, {"Location": look})
