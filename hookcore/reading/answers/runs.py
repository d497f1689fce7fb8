"""A run, its parts and events, its ranks, and what several runs have in one answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast, get_args

import msgspec
import numpy as np
from msgspec import Meta

from hookcore import records
from hookcore.reading.answers.base import Answer, FloatMatrix, Floats, Integers, Number, Page, Tabular, Tap, tap_columns
from hookcore.reading.answers.series import Series
from hookcore.records import Coverage, Failure, HookRecord, Severity, Value
from hookcore.records.wire import DeliveryCounters
from hookcore.store import Usage

# A run, its parts, and its events.

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


class Outcome(Answer, frozen=True):
    """What became of a command."""

    number: int
    outcome: Annotated[
        Literal["waiting", "received", "applied", "refused", "superseded", "dropped", "unknown"],
        Meta(description="superseded: a later command replaced a value of it before a step used it"),
    ]
    reason: Annotated[str, Meta(description="the trainer's message, or why nothing is known")] = ""
    step: Annotated[int | None, Meta(description="the step in which the trainer reported it")] = None
    module: str = ""
    replaced_by: Annotated[int | None, Meta(description="the number of the later command")] = None

    @classmethod
    def of(cls, number: int, event: records.Event) -> Outcome | None:
        """Return the outcome that an event reports of this command, if it is about it."""
        outcome, later = event.about.get(records.OUTCOME), event.about.get(records.REPLACED_BY)
        if event.about.get(records.COMMAND) != number or outcome not in get_args(records.Outcome):
            return None
        replaced_by = later if isinstance(later, int) else None
        return cls(number, cast(records.Outcome, outcome), event.message, event.step, event.module, replaced_by)

    @property
    def is_final(self) -> bool:
        """Whether it stays so. Searches for hooks and saved steps have no further outcome than `received`."""
        return self.outcome not in ("waiting", "received")


class Outcomes(Answer, frozen=True):
    """What became of commands, in the order of the request."""

    run: str
    outcomes: tuple[Outcome, ...]


class Accepted(Answer, frozen=True):
    """A command on its way to the trainer. Its effect shows at `look`, and its outcome at `outcome`."""

    run: str
    number: int
    look: str
    outcome: str


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


# The ranks of a distributed training.


class Rank(Answer, frozen=True):
    """One rank of the newest attempt."""

    rank: int
    run: Annotated[str, Meta(description="the id of its own run")]
    state: State
    host: str
    device: str
    local_rank: int
    axes: Annotated[dict[str, tuple[int, int]], Meta(description="coordinate and size on each axis of the mesh")]
    newest_step: Annotated[int | None, Meta(description="as the run of all ranks counts steps")]
    behind: Annotated[int | None, Meta(description="steps behind the farthest rank")]
    seconds_per_step: Annotated[Number, Meta(description="mean of the newest captured steps; NaN if unknown")]
    wait_s: Annotated[Number, Meta(description="mean seconds of waiting in a step (see `waits`); NaN if unknown")]
    wait_share: Annotated[Number, Meta(description="as a share of a step's time")]
    after_first_s: Annotated[Number, Meta(description="mean seconds from the first rank's last gradient to this one's")]
    was_last: Annotated[int, Meta(description="in how many of these steps it was the last rank")]
    late: Annotated[int, Meta(description="frames that came too late for the sum")]
    missed: Annotated[int, Meta(description="steps that were added up without this rank")]
    unknown_rows: Annotated[int, Meta(description="rows of its newest frame whose owner is unknown")]
    samples_per_second: Annotated[
        Number | None, Meta(description="that its model received, as last measured; null if unknown")
    ] = None
    tokens_per_second: Annotated[Number | None, Meta(description="null if its batches aren't rows of tokens")] = None


class RankWaits(Answer, frozen=True):
    """How ranks wait for each other at the end of backward passes, in the newest steps that all have captured."""

    name: Annotated[str, Meta(description="the logged value that it is from")]
    steps: int
    first_step: int
    last_step: int
    seconds_per_step: Number
    latest: Annotated[int | None, Meta(description="the rank that is noticeably last in most steps")]


class Ranks(Tabular, frozen=True):
    """The ranks of a run, and how complete their sum is."""

    run: str
    summary: RankSummary
    steps: Annotated[int, Meta(description="steps that were added up")]
    incomplete: Annotated[int, Meta(description="those that lack a rank")]
    partial: Annotated[
        int, Meta(description="those that some rank didn't capture; values that would be incomplete are left out")
    ]
    waiting: Annotated[int, Meta(description="steps that are waiting for a rank")]
    compared: Annotated[int, Meta(description="rows that were compared with the same row of another rank")]
    unread: Annotated[
        tuple[int, ...], Meta(description="ranks whose saved runs can't be read, so the sum doesn't include them")
    ]
    unlisted: Annotated[int, Meta(description="folders with its name that can't be read, if ranks are missing")]
    waits: Annotated[RankWaits | None, Meta(description="null if fewer than two ranks measure how long they wait")]
    ranks: tuple[Rank, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each rank. Unknown values are NaN."""
        texts, counts = ("run", "state", "host", "device"), ("was_last", "late", "missed")
        rates = ("seconds_per_step", "samples_per_second", "tokens_per_second")
        numbers = ("newest_step", *rates, "wait_s", "after_first_s")
        return {
            "rank": np.array([rank.rank for rank in self.ranks], np.int64),
            **{name: [getattr(rank, name) for rank in self.ranks] for name in texts},
            **{name: np.array([getattr(rank, name) for rank in self.ranks], np.float64) for name in numbers},
            **{name: np.array([getattr(rank, name) for rank in self.ranks], np.int64) for name in counts},
        }


class RankSpread(Answer, frozen=True):
    """The values of the ranks in one column of a map."""

    first_step: int
    last_step: int
    low: Number
    median: Number
    high: Number
    odd: Annotated[int | None, Meta(description="the rank twice as far from the median as all others; null if none is")]
    ranks: Annotated[int, Meta(description="how many have a finite value")]


class RankMap(Tabular, frozen=True, eq=False):
    """A value by rank and step: values[i][j] is the mean of rank i in column j.

    It is NaN where there is no value, and infinite where none is finite.
    """

    run: str
    tap: Annotated[Tap | None, Meta(description="null for a logged value")]
    name: Annotated[str, Meta(description="the logged value, or the stat of the tap")]
    ranks: tuple[int, ...]
    first_step: Integers
    last_step: Integers
    values: FloatMatrix
    newest: Annotated[RankSpread | None, Meta(description="of the last column in which all live ranks have a value")]

    def columns(self) -> dict[str, Any]:
        """Return a row for each column of the map, with a column for each rank."""
        steps: dict[str, Any] = {"first_step": self.first_step, "last_step": self.last_step}
        values = np.asarray(self.values)
        return steps | {f"rank_{rank}": values[row] for row, rank in enumerate(self.ranks)}


class LayerSpread(Answer, frozen=True):
    """The values of one tap on all ranks in one step: statistics of the finite ones, NaN if there are none."""

    tap: Tap
    low: Number
    median: Number
    high: Number
    apart: Annotated[Number, Meta(description="high less low, relative to the median; infinite if some aren't finite")]
    odd: Annotated[int | None, Meta(description="the rank twice as far from the median as all others; null if none is")]
    odd_value: Annotated[Number, Meta(description="its value: infinite if it isn't finite, NaN without such a rank")]
    finite: Annotated[int, Meta(description="how many ranks have a finite value")]
    present: Annotated[int, Meta(description="how many have any")]


class LayerSpreads(Page, Tabular, frozen=True):
    """How far apart the ranks are, layer by layer."""

    run: str
    kind: str
    stat: str
    first_step: Annotated[int | None, Meta(description="before `step` if values are means of merged steps")]
    step: Annotated[int | None, Meta(description="the newest step that all ranks have sent; null if there is none")]
    layers: tuple[LayerSpread, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each layer."""
        kinds: dict[str, Any] = dict.fromkeys(("low", "median", "high", "apart", "odd_value"), np.float64)
        kinds |= dict.fromkeys(("finite", "present"), np.int64)
        columns = {
            name: np.array([getattr(layer, name) for layer in self.layers], kind) for name, kind in kinds.items()
        }
        odd = np.array([-1 if layer.odd is None else layer.odd for layer in self.layers], np.int64)  # -1: none
        return tap_columns([layer.tap for layer in self.layers]) | columns | {"odd": odd}


# Values of many runs over time, in one answer.

_PARTS = ("first_step", "last_step", "mean", "min", "max", "nonfinite", "runs")


class OverlayLine(Answer, frozen=True, eq=False):
    """A run, or the mean of a group of runs with their smallest and largest value."""

    run: Annotated[str | None, Meta(description="null for the mean of a group")]
    name: Annotated[
        str,
        Meta(
            description="the name of the run, with what differs if others have the same name, or the value that the "
            "runs of the group share"
        ),
    ]
    group: Annotated[str, Meta(description="the run's value of `group_by`; empty without one")]
    source: Annotated[str, Meta(description="the scalar or tap that was found; empty for a group")]
    first_step: Integers
    last_step: Integers
    mean: Floats
    min: Floats
    max: Floats
    nonfinite: Annotated[Integers, Meta(description="the number of steps with a NaN or infinite value")]
    runs: Annotated[Integers, Meta(description="the number of runs with a value")]


class Overlay(Tabular, frozen=True):
    """The same values of many runs. `without` lists the runs that have none."""

    what: Annotated[str, Meta(description="a scalar, or a stat of a tap")]
    group_by: str
    lines: tuple[OverlayLine, ...]
    without: tuple[str, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each point of each line."""
        sizes = [len(line.mean) for line in self.lines]
        pairs = list(zip(self.lines, sizes, strict=True))
        columns: dict[str, Any] = {
            "run": [line.run or "" for line, size in pairs for _ in range(size)],  # none of a group
            "name": [line.name for line, size in pairs for _ in range(size)],
            "group": [line.group for line, size in pairs for _ in range(size)],
        }
        for part in _PARTS:
            arrays = [getattr(line, part) for line in self.lines]
            columns[part] = np.concatenate(arrays) if arrays else np.empty(0)
        return columns


class LoginLink(Answer, frozen=True):
    """A one-time link that logs in one browser."""

    url: str
    expires_s: Number


# Notifications of a server.


class NotificationTarget(Answer, frozen=True):
    """A place that notifications go to. Its address is a secret."""

    name: Annotated[str, Meta(description="the service, numbered if there are several")]
    sent: Annotated[int, Meta(description="messages that it accepted")]
    failed: Annotated[int, Meta(description="messages that it didn't accept in three attempts")]
    works: Annotated[bool | None, Meta(description="whether it accepted the newest one; null before the first")]


class Notifications(Answer, frozen=True):
    """Where a server sends notifications, and how many arrived."""

    targets: tuple[NotificationTarget, ...]
    waiting: Annotated[int, Meta(description="incidents waiting for the next message")]
    dropped: Annotated[int, Meta(description="incidents dropped because too many were waiting")]


# A whole run at a glance: a line over its steps, its incidents and events, and its captured steps.


class Nearest(Answer, frozen=True):
    """Whether a step was captured, and the captured steps around it, or null if there are none."""

    run: str
    step: int
    first_step: Annotated[int | None, Meta(description="of the captured steps that it was merged with, or itself")]
    last_step: int | None
    before: Annotated[int | None, Meta(description="the captured step before it")]
    after: int | None


class TimelineMark(Answer, frozen=True):
    """The incidents and events in a span of steps: the worst one, and their number."""

    step: Annotated[int, Meta(description="of the worst one")]
    first_step: int
    last_step: int
    severity: Severity
    title: str
    module: str
    count: int
    incident: Annotated[str, Meta(description="the id of the worst one, if it is an incident; else empty")]
    event: Annotated[str, Meta(description="the worst one's key in the list of events")]


class Timeline(Answer, frozen=True, omit_defaults=True):
    """A run from its first to its newest step, or a part of it."""

    run: str
    state: State
    first_step: int | None
    newest_step: int | None
    quantity: Annotated[str, Meta(description="what the line shows")]
    is_loss: Annotated[bool, Meta(description="false if no loss was logged, so that the line shows something else")]
    captured: Annotated[int, Meta(description="the number of captured steps")]
    captured_first: Annotated[
        Integers, Meta(description="the first step of each captured step, or of the steps merged with it")
    ]
    captured_last: Annotated[Integers, Meta(description="the last step; the same if the step is still exact")]
    captured_all: Annotated[bool, Meta(description="false if some were left out because there are too many")]
    marks: tuple[TimelineMark, ...]
    line: Annotated[Series | None, Meta(description="null if there is nothing to draw")] = None
