"""The steps that a page shows, read from its address in the same way as in `static/js/follow.js`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ...runs import Run

LIVE_STEPS: Final = 500


@dataclass(frozen=True, slots=True)
class Span:
    """The first and last step shown; `held` if the last one isn't simply the newest."""

    first: int
    last: int
    held: bool

    @property
    def words(self) -> str:
        """The steps in words."""
        return f"step {self.last:,}" if self.first == self.last else f"steps {self.first:,} to {self.last:,}"


def step_in(text: str) -> int | None:
    """Return the step that a text in an address means; None if it isn't one."""
    return int(text) if re.fullmatch(r"\d{1,15}", text) else None


def range_in(text: str) -> tuple[int, int] | None:
    """Return the first and the last step of "100-200" or of a single step; None for anything else."""
    ends = [step_in(each) for each in text.split("-", 1)]
    first, last = ends[0], ends[-1]
    return (first, last) if first is not None and last is not None and first <= last else None


def span_of(run: Run, steps: str = "", step: str = "") -> Span | None:
    """Return the steps in an address; None before the first step."""
    known = run.store.steps()
    if known.first is None or known.newest is None:
        return None
    asked, zoomed = step_in(step), range_in(steps) if "-" in steps else None
    held = None if asked is None else min(asked, known.newest)
    if zoomed is not None:
        last = min(zoomed[1], known.newest) if held is None else held
        return Span(min(zoomed[0], last), last, True)
    last = known.newest if held is None else held
    return Span(max(known.first, last - _length(run, steps) + 1), last, held is not None)


def _length(run: Run, steps: str) -> int:
    live = re.fullmatch(r"live:(\d{1,9})", steps)
    if live:
        return max(2, int(live[1]))
    known = run.store.steps()
    return LIVE_STEPS if run.state == "live" else (known.newest or 0) - (known.first or 0) + 1
