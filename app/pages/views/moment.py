"""Values at a step, and notes if there are none: the steps that a value covers, and the nearest captured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookcore.findings import Reading
from hookcore.findings.keyfigures import newest_of
from hookcore.reading import Reader

from ...formats import words_of
from ...runs import Run
from .span import Span


@dataclass(frozen=True, slots=True)
class Nearest:
    """The captured steps before and after one, or None."""

    before: int | None
    after: int | None

    verb: str = "captured"

    @property
    def words(self) -> str:
        """Where to look instead, as a sentence; empty if there is nowhere."""
        near = [f"{each:,}" for each in (self.before, self.after) if each is not None]
        if not near:
            return ""
        return f"The nearest {self.verb} step{' is' if len(near) == 1 else 's are'} {' and '.join(near)}."


@dataclass(frozen=True, slots=True)
class Note:
    """A note about a held step, and the steps to look at instead."""

    words: str
    instead: tuple[int, ...] = ()


def note_of(reader: Reader, span: Span | None) -> Note | None:
    """Return what must be known of the held step; None if it was captured and is still exact."""
    if span is None or span.step is None:
        return None
    near = reader.nearest(span.step)
    if near.first_step is None or near.last_step is None:
        words = f"No tensor was captured in step {span.step:,}."
        return Note(words, tuple(each for each in (near.before, near.after) if each is not None))
    if near.first_step == near.last_step:
        return None
    return Note(f"{words_of(near.first_step, near.last_step).capitalize()} have been merged: values are their means.")


def nearest_captured(reader: Reader, step: int) -> Nearest:
    """Return the captured steps around a step, without it."""
    near = reader.nearest(step)
    return Nearest(near.before, near.after)


def nearest_sampled(run: Run, names: Sequence[str], step: int) -> Nearest:
    """Return the steps around one in which some scalars have values, without it."""
    before = [found.step for name in names if (found := newest_of(run.store, name, step - 1)) is not None]
    later = run.reader.scalars(names, step + 1, None, 10_000).series
    after = [int(each.first_step[0]) for each in later if len(each.first_step)]
    return Nearest(max(before, default=None), min(after, default=None), "sampled")


def nothing_in(reader: Reader, span: Span, words: str) -> str:
    """Return a sentence that there is nothing in the steps of a page: "Nothing was captured in" step 7."""
    near = "" if span.step is None else nearest_captured(reader, span.step).words
    return f"{words} {span.values_words}. {near}".rstrip()


def steps_of(first: int, last: int, span: Span | None) -> str:
    """Return the steps of a value, if the reader can't know them: they aren't those that the page is about."""
    if first < last:
        return f"mean of {words_of(first, last)}"
    about = None if span is None else span.step if span.step is not None else span.last
    return "" if last == about else words_of(last, last)


def about_reading(reading: Reading, span: Span | None) -> str:
    """Return of which steps a reading is, unless the page says so."""
    return steps_of(reading.first_step if reading.is_mean else reading.step, reading.step, span)
