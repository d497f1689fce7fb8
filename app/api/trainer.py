"""The trainer: its events, its settings, and changes of these."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from hookcore.config import LIVE
from hookcore.config.patterns import STRUCTURE, parse
from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.records import Severity

from ..formats import plain
from .bodies import SettingsChanges
from .params import MAX_STEP, Limit, RunParam, SpanParam
from .routing import ReplyParam, answered, described, router
from .runs import accepted, require_live


@router.reads("/events", "Events")
def events(
    run: RunParam,
    span: SpanParam,
    name: Annotated[str | None, Query(max_length=1000, description="only events of this name")] = None,
    severity: Annotated[Severity | None, Query(description="only events of this severity")] = None,
    after: Annotated[
        int | None, Query(ge=0, le=MAX_STEP, description="only events after an answer's `next`, oldest first")
    ] = None,
    limit: Limit = 200,
) -> answers.Events:
    """Return the newest matching events; with `after`, the oldest later ones."""
    return run.reader.events(span.first, span.last, name, severity, after, limit)


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
