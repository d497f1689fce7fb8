"""Which steps a report is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookcore.errors import ArgumentError
from hookcore.findings import Finding
from hookcore.reading import Reader
from hookcore.records import Severity
from hookcore.store.incidents import Incident

from ...formats import words_of
from ...runs import Run


@dataclass(frozen=True, slots=True)
class View:
    """The steps of charts, and the step that numbers and findings are of; None for all of them, and the newest one."""

    first: int | None = None
    last: int | None = None
    at: int | None = None

    @property
    def values(self) -> tuple[int | None, int | None]:
        """The steps of which the newest values are shown."""
        return (self.first, self.last) if self.at is None else (self.at, self.at)

    @property
    def listed(self) -> tuple[int | None, int | None]:
        """The steps of which events are listed: up to the held one."""
        return self.first, self.last if self.at is None else self.at

    @property
    def is_whole(self) -> bool:
        """Whether it is about the run as it is now."""
        return self.values == (None, None)

    def within(self, reader: Reader) -> View:
        """Return the same with both ends. A step outside the run is an error."""
        known = reader.steps()
        if self.is_whole or known.first is None or known.newest is None:
            return self
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ArgumentError(f"the first step, {self.first}, is after the last one, {self.last}")
        first = known.first if self.first is None else self.first
        last = known.newest if self.last is None else min(self.last, known.newest)
        if self.at is not None and not first <= self.at <= last:
            raise ArgumentError(f"at={self.at} is outside of the steps {first} to {last}")
        if first > last:
            raise ArgumentError(f"these steps are outside of the run, which has {known.first} to {known.newest}")
        return View(first, last, self.at)

    @property
    def words(self) -> str:
        """The steps of the numbers; empty for the newest ones."""
        first, last = self.values
        if first is None or last is None:
            return ""
        return words_of(first, last)


@dataclass(frozen=True, slots=True)
class Past:
    """An incident as it was known at a step, as a row of the table of findings."""

    rule: str
    severity: Severity
    module: str
    kind: str
    since_step: int
    message: str
    downstream: int
    earliest_step: int
    culprit_known: bool
    spark: tuple[float, ...] = ()


def alerts_of(run: Run, current: Sequence[Finding], view: View) -> Sequence[Finding | Past]:
    """Return today's findings; of a report about some steps, the incidents that touch them, as of the last one."""
    first, last = view.values
    if last is None:
        return current
    return [_past(each, last) for each in reversed(run.store.incidents()) if each.touches(first, last)]


def _past(incident: Incident, last: int) -> Past:
    then, tap = incident.as_of(last), incident.culprit.tap
    about = incident.rule, then.severity, tap.module, tap.kind, incident.first_step, then.sentence
    return Past(*about, 0, incident.earliest_step, incident.culprit_known)  # the sentence says what followed
