"""A timeline of events over steps, as columns of an SVG. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.records import SEVERITIES

from .event_list import Line

COLUMNS: Final = 100
HEIGHT: Final = 40
MIN_HEIGHT: Final = 6  # minimum height of a column: one event must stay visible next to thousands


@dataclass(frozen=True, slots=True)
class Bar:
    """The events of one severity in a span of steps: a box in COLUMNS by HEIGHT."""

    column: int
    y: float
    height: float
    severity: str


@dataclass(frozen=True, slots=True)
class Column:
    """A span of steps with events."""

    column: int
    first: int
    last: int
    words: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans with events, from the first to the last step."""

    first: int
    last: int
    columns: tuple[Column, ...]


def timeline_of(lines: Sequence[Line], first: int, last: int) -> Timeline:
    """Return the timeline of lines from the first to the last step."""
    length = max(1, last - first + 1)
    counts: dict[int, Counter[str]] = {}
    for line in lines:
        if first <= line.step <= last:
            counts.setdefault((line.step - first) * COLUMNS // length, Counter())[line.severity] += 1
    most = max((each.total() for each in counts.values()), default=1)
    return Timeline(first, last, tuple(_column(place, counts[place], most, first, length) for place in sorted(counts)))


def _column(place: int, counts: Counter[str], most: int, first: int, length: int) -> Column:
    begin = first + -(-place * length // COLUMNS)
    end = max(begin, first + -(-(place + 1) * length // COLUMNS) - 1)
    bars, y = [], float(HEIGHT)
    for severity in SEVERITIES:
        if counts[severity]:
            height = max(MIN_HEIGHT / len(counts), counts[severity] / most * HEIGHT)
            height = min(height, y)
            y -= height
            bars.append(Bar(place, round(y, 1), round(height, 1), severity))
    said = ", ".join(f"{counts[severity]:,} {severity}" for severity in SEVERITIES if counts[severity])
    steps = f"step {begin:,}" if begin == end else f"steps {begin:,} to {end:,}"
    return Column(place, begin, end, f"{steps}: {said}", tuple(bars))
