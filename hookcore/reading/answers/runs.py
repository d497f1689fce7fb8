"""A run, its parts, and its events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from hookcore import records
from hookcore.reading.answers.base import Answer, Integers, Number, Page, Tabular, Tap, tap_columns
from hookcore.records import Coverage, Failure, HookRecord, Severity, Value
from hookcore.records.wire import DeliveryCounters
from hookcore.store import Usage

State = Literal["live", "ended", "crashed", "stopped", "lost", "waiting"]


class RankSummary(Answer, frozen=True):
    """The ranks of a run that adds them up."""

    world: int
    seen: int
    live: int
    missing: Annotated[tuple[int, ...], Meta(description="ranks that this server has no data of, the first 100")]
    attempts: Annotated[int, Meta(description="how often the training was started")]


class Run(Answer, frozen=True):
    """One training process."""

    id: str
    name: str
    notes: str
    state: State
    failure: Annotated[Failure | None, Meta(description="why it crashed, or the signal that stopped it")]
    partial: Annotated[str, Meta(description="why answers about it may be incomplete; empty if they are complete")]
    in_memory: Annotated[bool, Meta(description="false: it is on disk, and read when you ask for it")]
    folder: Annotated[str, Meta(description="the folder on disk; empty if there is none")]
    first_step: int | None
    newest_step: int | None
    steps: int
    ended_at_step: int | None
    taps: Annotated[int, Meta(description="0 if it isn't in memory")]
    started_s: Number
    ranks: Annotated[RankSummary | None, Meta(description="of a run that adds up the ranks of a training")]
    rank: Annotated[int | None, Meta(description="of a run that is one rank of a training")]
    joint: Annotated[str | None, Meta(description="the id of the run of all ranks, if this is one of them")]
    host: str
    pid: int | str
    script: str
    versions: dict[str, Any]
    settings: dict[str, Any]
    config: Annotated[dict[str, Value], Meta(description="the user's configuration, flattened")]
    config_cut: Annotated[int, Meta(description="values of the configuration that were left out or shortened")]
    facts: Annotated[dict[str, Value], Meta(description="recognized: optimizer, parameters, device, commit, ...")]
    facts_cut: Annotated[int, Meta(description="facts that were left out or shortened")]
    results: Annotated[
        dict[str, Number],
        Meta(description="the newest logged values; `recent_loss` is the mean of the loss's last tenth"),
    ]
    tags: tuple[str, ...]
    group: str
    archived: Annotated[bool, Meta(description="left out of the list of runs unless a query asks for it")]
    labels: Annotated[dict[str, str], Meta(description="empty if it isn't in memory")]
    counters: DeliveryCounters
    usage: Usage


class Runs(Answer, frozen=True):
    """Runs, newest first. `next` is the `after` of the following part."""

    total: int
    next: str | None
    runs: tuple[Run, ...]
    partial: Annotated[str, Meta(description="why runs may be missing; empty if none are")] = ""


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
    source: Annotated[str, Meta(description="file and line of its class; empty if unknown")]
    coverage: Coverage | None
    taps: tuple[ModuleTap, ...]
    placements: Annotated[dict[str, str], Meta(description="of those tensors that torch has spread over ranks")] = (
        msgspec.field(default_factory=dict)
    )


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
    key: Annotated[str, Meta(description="the key to acknowledge it")]
    acknowledged: bool
    muted: Annotated[bool, Meta(description="whether a mute covers it, so that it raises no alert")]
    about: Annotated[dict[str, Value], Meta(description="the facts of the message, by name")]

    @classmethod
    def of(cls, event: records.Event, acknowledged: bool, muted: bool) -> Event:
        said = event.name, event.message, event.severity, event.module, event.count
        return cls(event.step, Number(event.time_s), *said, event.key, acknowledged, muted, event.about)


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


class Annotation(Answer, frozen=True):
    """A reader's note about a step."""

    step: int
    text: str


class Annotations(Answer, frozen=True):
    """The annotated steps of a run, in their order."""

    run: str
    annotations: tuple[Annotation, ...]


class Mute(Answer, frozen=True):
    """A rule that raises no alerts in the matching modules."""

    rule: Annotated[str, Meta(description="a rule of findings, or the name of events")]
    match: Annotated[str, Meta(description="a pattern for modules; empty for all modules")]
    findings: Annotated[int, Meta(description="current findings that it covers")]
    incidents: int
    events: int


class Mutes(Answer, frozen=True):
    """The mutes of a run. Muted findings are found, counted, and listed, but raise no alert."""

    run: str
    mutes: tuple[Mute, ...]


class View(Answer, frozen=True):
    """A saved view of the list of runs."""

    name: str
    query: Annotated[str, Meta(description="the query string of the Runs page")]


class Views(Answer, frozen=True):
    """The saved views, in the order of their names."""

    views: tuple[View, ...]


class PinnedChart(Answer, frozen=True):
    """A chart of the board. Add a run and its steps to the query to ask for its values."""

    name: str
    path: Annotated[str, Meta(description="`series` or `scalars`")]
    query: str


class Board(Answer, frozen=True):
    """The charts that readers pinned, in the order of their names. They are the same for every run."""

    charts: tuple[PinnedChart, ...]


class Problem(Answer, frozen=True):
    """Any error."""

    error: str
