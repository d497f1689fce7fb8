"""What the live streams say of a run."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hookcore.answers.base import Answer, Floats, Integers, Number
from hookcore.answers.series import Row


class FrameNews(Answer, frozen=True, eq=False, omit_defaults=True):
    """The newest values: values[stat][i] belongs to the tap with numbers[i], last seen in steps[i]."""

    run: str
    first_step: int
    last_step: int
    time_s: Number | None
    stats: tuple[str, ...]
    numbers: Integers = msgspec.field(name="taps")
    steps: Integers
    values: dict[str, Floats]
    nonfinite: Annotated[Integers, Meta(description="the taps that held a NaN or an infinity in any of the steps")]
    id: str = ""  # of the event that brought it
    name: str = "frame"


class News(Answer, frozen=True):
    """Something new in a run: `name` is run, taps, event, scalars or state; `data` is what the server said."""

    name: str
    id: str
    data: dict[str, Any]


class LiveRow(Row, frozen=True):
    """A row of a live view, with the class of its module."""

    type: str
