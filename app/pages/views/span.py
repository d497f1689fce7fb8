"""The steps that a page of a run shows, read from its address in the same way as in `static/js/follow.js`.

`steps` is `all`, the newest ones (`live:500`), or a range (`100-200`). `step` is the one that the page is held at.
`by` is the quantity on the axis of charts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import urlencode

from ...formats import words_of
from ...runs import Run

LIVE_STEPS: Final = 500  # of a live run, if the address says nothing
ALL: Final = "all"
SHARED: Final = ("steps", "step", "by")  # of every address of a run
AXES: Final = {"step": "steps", "time": "time", "samples": "samples"}


Values: TypeAlias = tuple[int | None, int | None]  # first and last step; None is any


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts of an address that all pages of a run have in common."""

    steps: str = ""
    step: str = ""
    by: str = ""

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The names and values that are given, for a form."""
        return [(name, value) for name in SHARED if (value := getattr(self, name))]

    @property
    def query(self) -> str:
        """The query of links to other pages that show the same."""
        return urlencode(self.parts)


@dataclass(frozen=True, slots=True)
class Span:
    """The first and last step on the axis of charts, and what the reader chose.

    `step` is the step that the page is held at: then no number is of another one. `is_chosen` says that `first` and
    `last` are a range of the reader.
    """

    first: int
    last: int
    step: int | None = None
    is_chosen: bool = False

    @property
    def held(self) -> bool:
        """Whether values are those of certain steps, not the newest ones."""
        return self.step is not None or self.is_chosen

    @property
    def values(self) -> Values:
        """The steps of which the newest values are shown: one, those of the range, or any."""
        if self.step is not None:
            return self.step, self.step
        return (self.first, self.last) if self.is_chosen else (None, None)

    @property
    def words(self) -> str:
        """The steps on the axis in words."""
        return words_of(self.first, self.last)

    @property
    def values_words(self) -> str:
        """The steps of the values in words; empty for the newest ones."""
        return words_of_values(self.values)


def words_of_values(values: Values) -> str:
    """Return the steps of values in words; empty for the newest ones."""
    first, last = values
    return "" if first is None or last is None else words_of(first, last)


def asked_values(steps: str, step: str) -> Values:
    """Return the steps of the values that an address asks for, whether or not the run has any: one, a range, or any."""
    held, chosen = step_in(step), range_in(steps) if "-" in steps else None
    return (held, held) if held is not None else chosen or (None, None)


def step_in(text: str) -> int | None:
    """Return the step that a text in an address means; None if it isn't one."""
    return int(text) if re.fullmatch(r"\d{1,15}", text) else None


def range_in(text: str) -> tuple[int, int] | None:
    """Return the first and the last step of "100-200" or of a single step; None for anything else."""
    ends = [step_in(each) for each in text.split("-", 1)]
    first, last = ends[0], ends[-1]
    return (first, last) if first is not None and last is not None and first <= last else None


def usual_steps(run: Run) -> str:
    """Return the steps shown if the address says nothing: all of a finished run, the newest of a live one."""
    return f"live:{LIVE_STEPS}" if run.state == "live" else ALL


def span_of(run: Run, steps: str = "", step: str = "") -> Span | None:
    """Return the steps in an address; None before the first step."""
    known = run.reader.steps()
    if known.first is None or known.newest is None:
        return None
    asked, chosen = step_in(step), range_in(steps) if "-" in steps else None
    held = None if asked is None else min(asked, known.newest)
    if chosen is not None:
        return Span(*_around(chosen[0], chosen[1], held, known.newest), held, True)
    length = _length(run, steps)
    if length is None:
        return Span(known.first, known.newest, held)
    last = known.newest if held is None else min(known.newest, held + length - 1)
    return Span(max(known.first, last - length + 1), last, held)


def _around(first: int, last: int, step: int | None, newest: int) -> tuple[int, int]:
    """Return a range up to the newest step, moved as far as needed to contain a step."""
    by = 0 if step is None else min(0, step - first) + max(0, step - last)
    last = min(last + by, newest)
    return min(first + by, last), last


def _length(run: Run, steps: str) -> int | None:
    """Return how many of the newest steps are shown; None for all."""
    for text in (steps, usual_steps(run)):
        if text == ALL:
            return None
        if live := re.fullmatch(r"live:(\d{1,9})", text):
            return max(2, int(live[1]))
    return None
