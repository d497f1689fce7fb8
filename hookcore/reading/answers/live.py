"""The messages of the live streams: those of the pages' socket, and the news for scripts that consists of them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from hookcore.reading.answers.base import Answer, Floats, Integers, Number
from hookcore.reading.answers.findings import Incident
from hookcore.reading.answers.runs import Event
from hookcore.reading.answers.series import Row, Series


class LiveRow(Row, frozen=True):
    """A row of a live view, with the class of its module."""

    type: str


class Message(Answer, frozen=True, tag_field="type"):
    """A message of a live stream; its field `type` names it."""


class RowsMessage(Message, frozen=True, tag="rows", omit_defaults=True):
    """The rows of the snapshot that follows."""

    run: str
    view: str
    kind: str | None
    stats: tuple[str, ...]
    taps: int
    rows: tuple[LiveRow, ...]
    why: Annotated[str, Meta(description="why there are no rows, or not all of them")] = ""


class LatestMessage(Message, frozen=True, eq=False, tag="latest"):
    """The newest values: values[stat][i] belongs to the tap with numbers[i], last seen in steps[i]. For scripts."""

    run: str
    snapshot: bool
    first_step: int
    last_step: int
    time_s: Number | None
    stats: tuple[str, ...]
    numbers: Integers = msgspec.field(name="taps")
    steps: Integers
    values: dict[str, Floats]
    nonfinite: Annotated[Integers, Meta(description="the taps that contained a NaN or an infinity in any of the steps")]


class StateMessage(Message, frozen=True, tag="state"):
    """The state of a run."""

    run: str
    state: str
    last_step: int | None


class EventsMessage(Message, frozen=True, tag="events"):
    """The newest events; a snapshot replaces all earlier ones."""

    run: str
    snapshot: bool
    count: int
    events: tuple[Event, ...]


class IncidentsMessage(Message, frozen=True, tag="incidents"):
    """The incidents that began or changed; a snapshot has all of them."""

    run: str
    snapshot: bool
    incidents: tuple[Incident, ...]


class ScalarsMessage(Message, frozen=True, tag="scalars"):
    """The newest points of the scalars; a snapshot replaces all earlier ones."""

    run: str
    snapshot: bool
    first_step: int
    last_step: int
    left_out: int
    scalars: tuple[Series, ...]


class RunNews(Answer, frozen=True):
    """The progress of a run."""

    run: str
    name: str
    state: str
    last_step: int | None
    steps: int
    taps: int
    events: int
    edits: Annotated[int, Meta(description="changes of the name, the notes, and acknowledgements")]
    paused: Annotated[bool, Meta(description="whether capture is paused")]
    flow_step: Annotated[int | None, Meta(description="the step whose data flow was learned last")]
    snapshots: Annotated[
        int,
        Meta(description="the number of tensors that were requested and have arrived, including those dropped since"),
    ]
    waiting: Annotated[
        tuple[int, ...], Meta(description="the numbers of the commands that are waiting for the trainer")
    ]
    frames: Annotated[int, Meta(description="the number of frames; a step has several if parts of it arrived later")]
    time_s: Annotated[Number | None, Meta(description="when the newest step ended, by the trainer's clock")]


class RunsMessage(Message, frozen=True, tag="runs"):
    """Every run of the server with its progress; sent again if one of them has changed."""

    runs: tuple[RunNews, ...]


class ErrorMessage(Message, frozen=True, tag="error"):
    """What was wrong with a request or a subscription."""

    error: str


Messages = RowsMessage | StateMessage | EventsMessage | IncidentsMessage | ScalarsMessage | RunsMessage | ErrorMessage


class News(Answer, frozen=True, eq=False):
    """What is new of a run since the last news, or None. `id` is where a later stream can continue."""

    rows: RowsMessage | None = None
    latest: LatestMessage | None = None
    scalars: ScalarsMessage | None = None
    events: EventsMessage | None = None
    incidents: IncidentsMessage | None = None
    state: StateMessage | None = None
    id: str = ""
