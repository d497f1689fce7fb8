"""Capsules: the steps that a training saved, what a replay found in each, and a new one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request, Response
from starlette.exceptions import HTTPException

from hookcore.reading import answers

from ..formats import StrictJson
from ..runs.explaining import BusyError, Explainer
from .params import RunParam
from .routing import answered, described, router
from .runs import accepted, require_live

CapsuleId = Annotated[str, Path(max_length=100, description="its `id`", examples=["step-000000100"])]


def explainer_of(request: Request) -> Explainer:
    """Return the server's explainer."""
    explainer: Explainer = request.app.state.explainer
    return explainer


@router.get("/capsules", summary="Saved steps", responses=described(("json",), answers.Capsules))
def capsules(run: RunParam, request: Request) -> Response:
    """Return the steps that the run saved on this machine, oldest first, with what a replay found."""
    found = tuple(explainer_of(request).capsules_of(run))
    return StrictJson(answers.Capsules(run.id, len(found), found))


@router.post("/capsules", summary="Save a step", status_code=202, responses=answered(answers.Accepted, 202, 409))
def save_step(run: RunParam) -> Response:
    """Ask the trainer to save its next step to a capsule, on the trainer's machine."""
    require_live(run)
    return accepted(run, run.ask("capsule").number, f"/api/v1/capsules?run={run.id}")


@router.post(
    "/capsules/{capsule}/explain",
    summary="Replay a saved step",
    status_code=202,
    responses=answered(answers.Capsule, 202, 409),
)
def explain(run: RunParam, request: Request, capsule: CapsuleId) -> Response:
    """Replay a saved step in a process of its own, which runs code from the capsule; `state` says when it is done."""
    try:
        found = explainer_of(request).explain(run, capsule)
    except BusyError as error:
        raise HTTPException(409, str(error)) from None
    if found is None:
        raise HTTPException(404, f"the run {run.id} has no capsule {capsule!r} on this machine")
    return StrictJson(found, 202, {"Location": f"/api/v1/capsules?run={run.id}"})
