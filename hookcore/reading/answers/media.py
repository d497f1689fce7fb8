"""Items that a script logged in addition to numbers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hookcore import records
from hookcore.reading.answers.base import Answer, Number, Page


class Media(Answer, frozen=True):
    """An image, text, table, or figure, without its content."""

    number: Annotated[int, Meta(description="its number in the API")]
    name: str
    step: int
    time_s: Number
    type: Annotated[str, Meta(description="the media type of its content")]
    nbytes: int
    cut: Annotated[bool, Meta(description="whether the item was shortened")]

    @classmethod
    def of(cls, number: int, found: records.Snapshot) -> Media:
        """Return the answer for an item."""
        about = found.tap.module, found.step, Number(found.time_s), found.dtype
        return cls(number, *about, found.values.nbytes, found.truncated)


class MediaList(Page, frozen=True):
    """Images, texts, tables, and figures that a script logged, oldest first."""

    run: str
    media: tuple[Media, ...]
