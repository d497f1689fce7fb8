"""A run, its parts, and its events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from hookcore import records
from hookcore.answers.base import Answer, Integers, Number, Page, Tabular, Tap, tap_columns
from hookcore.records import Coverage, Failure, HookRecord, Severity
from hookcore.store import Usage
from hookcore.wire import DeliveryCounters

State = Literal["live", "ended", "crashed", "interrupted", "lost"]


class Run(Answer, frozen=True):
    """One training process."""

    id: str
    name: str
    notes: str
    state: State
    failure: Annotated[Failure | None, Meta(description="why it crashed or was interrupted")]
    in_memory: Annotated[bool, Meta(description="false: it is on disk, and read when you ask for it")]
    folder: Annotated[str, Meta(description="the folder on disk; empty if there is none")]
    first_step: int | None
    newest_step: int | None
    steps: int
    ended_at_step: int | None
    taps: int
    started_s: Number
    host: str
    pid: int | str
    script: str
    versions: dict[str, Any]
    settings: dict[str, Any]
    labels: dict[str, str]
    counters: DeliveryCounters
    usage: Usage


class Runs(Answer, frozen=True):
    """Runs, newest first. `next` is the `after` of the following part."""

    total: int
    next: str | None
    runs: tuple[Run, ...]


class RemovedRun(Answer, frozen=True):
    """A run that was deleted, or removed to make room in memory or on disk."""

    id: str
    name: str
    removed_s: Number
    why: Literal["deleted", "memory", "disk"]
    restorable: bool


class RemovedRuns(Answer, frozen=True):
    """Removed runs, the newest removal first."""

    total: int
    runs: tuple[RemovedRun, ...]


class ModuleTap(Tap, frozen=True):
    """A tap of a module, its number of values when last seen, and its shape if known."""

    values: Number | None
    shape: tuple[int, ...] | None


class Module(Answer, frozen=True):
    """One module of the tree."""

    path: str
    parent: str | None
    type: str
    parameters: int
    trainable: int
    aliases: tuple[str, ...]
    shapes: Annotated[dict[str, tuple[int, ...]], Meta(description='of "weight", "output", "input 0", ...')]
    coverage: Coverage | None
    taps: tuple[ModuleTap, ...]


class Modules(Page, frozen=True):
    """Modules in the model's order."""

    run: str
    modules: tuple[Module, ...]


class Taps(Page, Tabular, frozen=True):
    """Taps, ascending by number."""

    run: str
    taps: tuple[Tap, ...]

    @property
    def numbers(self) -> Integers:
        """The taps' numbers."""
        return np.array([tap.number for tap in self.taps], np.int64)

    def columns(self) -> dict[str, Any]:
        """Return a row for each tap."""
        return tap_columns(self.taps)


class CoverageList(Page, frozen=True):
    """The coverage of the modules."""

    run: str
    coverage: tuple[Coverage, ...]


class Hooks(Page, frozen=True):
    """The hooks on the model and the process."""

    run: str
    hooks: tuple[HookRecord, ...]


class Event(Answer, frozen=True):
    """An alert, a skipped capture, or a change of settings."""

    step: int
    time_s: Number
    name: str
    message: str
    severity: Severity
    module: str
    count: int
    key: Annotated[str, Meta(description="by which it is acknowledged")]
    acknowledged: bool
    muted: Annotated[bool, Meta(description="whether a mute covers it, so that it is no alert")]

    @classmethod
    def of(cls, event: records.Event, acknowledged: bool, muted: bool) -> Event:
        """Return the answer for an event."""
        about = event.name, event.message, event.severity, event.module, event.count
        return cls(event.step, Number(event.time_s), *about, event.key, acknowledged, muted)


class Events(Answer, frozen=True):
    """Events, oldest first. `next` is the `after` for later ones."""

    run: str
    total: int
    next: int
    events: tuple[Event, ...]


class Command(Answer, frozen=True):
    """A command that the trainer has not carried out yet."""

    number: int
    name: str
    changes: dict[str, Any]


class Settings(Answer, frozen=True):
    """The trainer's settings, and the commands on their way to it."""

    run: str
    state: str
    settings: dict[str, Any]
    waiting: tuple[Command, ...]


class Accepted(Answer, frozen=True):
    """A command on its way to the trainer; its effect shows at `look`."""

    run: str
    number: int
    look: str


class Acknowledged(Answer, frozen=True):
    """Whether a finding or an event is acknowledged now."""

    run: str
    key: str
    acknowledged: bool


class Mute(Answer, frozen=True):
    """No alerts from a rule in the modules that match."""

    rule: Annotated[str, Meta(description="a rule of findings, or the name of events")]
    match: Annotated[str, Meta(description="a pattern for modules; empty is everywhere")]
    findings: Annotated[int, Meta(description="findings that it covers now")]
    incidents: int
    events: int


class Mutes(Answer, frozen=True):
    """The mutes of a run. What they cover is found, counted, and listed, but is no alert."""

    run: str
    mutes: tuple[Mute, ...]


class Problem(Answer, frozen=True):
    """Any error."""

    error: str
