"""A whole run at a glance: a line over its steps, its incidents and events, and its captured steps."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hookcore.reading.answers.base import Answer, Integers
from hookcore.reading.answers.runs import State
from hookcore.reading.answers.series import Series
from hookcore.records import Severity


class Nearest(Answer, frozen=True):
    """Whether a step was captured, and the captured steps around it, or null if there are none."""

    run: str
    step: int
    first_step: Annotated[int | None, Meta(description="of the captured steps that it was merged with, or itself")]
    last_step: int | None
    before: Annotated[int | None, Meta(description="the captured step before it")]
    after: int | None


class TimelineMark(Answer, frozen=True):
    """The incidents and events in a span of steps: the worst one, and their number."""

    step: Annotated[int, Meta(description="of the worst one")]
    first_step: int
    last_step: int
    severity: Severity
    title: str
    module: str
    count: int
    incident: Annotated[str, Meta(description="the id of the worst one, if it is an incident; else empty")]
    event: Annotated[str, Meta(description="the worst one's key in the list of events")]


class Timeline(Answer, frozen=True, omit_defaults=True):
    """A run from its first to its newest step, or a part of it."""

    run: str
    state: State
    first_step: int | None
    newest_step: int | None
    quantity: Annotated[str, Meta(description="what the line shows")]
    is_loss: Annotated[bool, Meta(description="false if no loss was logged, so that the line shows something else")]
    captured: Annotated[int, Meta(description="the number of captured steps")]
    captured_first: Annotated[
        Integers, Meta(description="the first step of each captured step, or of the steps merged with it")
    ]
    captured_last: Annotated[Integers, Meta(description="the last step; the same if the step is still exact")]
    captured_all: Annotated[bool, Meta(description="false if some were left out because there are too many")]
    marks: tuple[TimelineMark, ...]
    line: Annotated[Series | None, Meta(description="null if there is nothing to draw")] = None
