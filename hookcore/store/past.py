"""Steps that a store's memory has merged, or never had, in a place that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hookcore.store.rows import Cells, Columns, Rows
from hookcore.store.segments import Floats, Steps
from hookcore.store.sketches import SketchRows

Span = tuple[int | None, int | None]  # inclusive steps
Lane = int | str  # a tap by its number, or a scalar by its name


class Past(Protocol):
    """The storage of the whole run. Unreadable data is None; memory then answers with what it has."""

    @property
    def together(self) -> Together | None:
        """The object that queries this run and others at once, or None."""

    @property
    def trouble(self) -> str | None:
        """Why something couldn't be read lately; None if all could."""

    def stored_until(self) -> int:
        """Return the step up to which everything is there; -1 if nothing is."""

    def rows(self, stat: str, lanes: Sequence[Lane], span: Span, most: int) -> Rows | None:
        """Return one stat of some lanes [row, lane] in rows of equal spans: exact ones, or at least `most` of them."""

    def ends(self, span: Span) -> tuple[int, int] | None:
        """Return the first and the last captured step of a span; None if there is none, or that can't be read."""

    def cells(self, stat: str, taps: Sequence[int], columns: Columns, span: Span) -> Cells | None:
        """Return one stat of some taps in cells."""

    def sketches(self, tap: int, span: Span, most: int) -> list[SketchRows] | None:
        """Return the sketches of a tap, or their sums in at least `most` equal spans."""

    def all_sketches(self, taps: int, span: Span) -> list[SketchRows] | None:
        """Return the sketches of the first taps, or their sums in equal spans that follow from the number of taps."""

    def captured(self, span: Span) -> Steps | None:
        """Return the captured steps of a span, oldest first: all of them, or some if there are too many."""

    def latest(self, taps: int, span: Span) -> tuple[Steps, Floats] | None:
        """Return the newest step of each of the first taps in a span (-1: none), and its stats [stat, tap]."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows that a past is asked for, as by `Past.rows`."""

    past: Past
    stat: str
    lanes: Sequence[Lane]
    span: Span
    most: int


class Together(Protocol):
    """Asks about several runs that are in the same place, which takes less time than to ask about each."""

    def look(self, pasts: Sequence[Past]) -> None:
        """Find out up to which step each run is stored, if that isn't known."""

    def rows(self, wanted: Sequence[Wanted]) -> list[Rows | None]:
        """Return what `Past.rows` returns of each."""


@dataclass(frozen=True, slots=True)
class Older:
    """Steps that a past answers for. Memory answers with its rows that begin later."""

    past: Past
    first: int | None
    last: int

    @property
    def span(self) -> Span:
        return self.first, self.last

    def later(self, near: Sequence[Rows]) -> list[Rows]:
        """Return the rows of memory that begin later."""
        parts = (part.some(slice(int(part.first.searchsorted(self.last, "right")), None)) for part in near)
        return [part for part in parts if len(part.first)]


def look_together(pasts: Sequence[Past]) -> None:
    """Find out how far several runs are stored."""
    here: dict[Together, list[Past]] = {}
    for past in pasts:
        if past.together is not None:
            here.setdefault(past.together, []).append(past)
    for together, some in here.items():
        together.look(some)


def rows_together(wanted: Sequence[Wanted]) -> list[Rows | None]:
    """Return the rows of several runs. Those in the same place are asked for at once."""
    rows_of: list[Rows | None] = [None] * len(wanted)
    here: dict[Together, list[int]] = {}
    for number, question in enumerate(wanted):
        if question.past.together is None:
            rows_of[number] = question.past.rows(question.stat, question.lanes, question.span, question.most)
        else:
            here.setdefault(question.past.together, []).append(number)
    for together, numbers in here.items():
        for number, rows in zip(numbers, together.rows([wanted[number] for number in numbers]), strict=True):
            rows_of[number] = rows
    return rows_of
