"""One training process: what it receives, what its trainer is asked, what readers edit, and its known state."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol

from msgspec.structs import replace

from hookcore.delivery.failures import event_of
from hookcore.errors import HookcoreError
from hookcore.findings import Choices, Finding, FindingsCache, changed, read_choices
from hookcore.findings.ownrules import OwnRules
from hookcore.reading import Mute, StoreReader
from hookcore.reading.answers.runs import Outcome, State
from hookcore.records import Command, Event, Frame, Severity, Snapshot, Tap
from hookcore.records.vocabulary import OWN_RULE_LABEL, PROBE_LABEL, TRAINED, functions_of
from hookcore.records.wire import Batch, DeliveryCounters, Description, EndItem, Receipt, RunInfo
from hookcore.store import StepRange, Store
from hookcore.store.incidents import FirstError, Incident

from .parts import MAX_COMMANDS, Ask, Changes, Commands, Edits, End, Gaps, Received, Record, Saved, Signs, record_of

# most urgent first
STATES: Final[tuple[State, ...]] = ("live", "waiting", "crashed", "lost", "stopped", "ended")
GONE_AFTER_S: Final = 2.0  # of silence: the last batch of a process that has ended may still be read


class AwayError(HookcoreError):
    """A batch arrived for a run that must be read from disk before. Its trainer repeats the batch."""


class Training(Protocol):
    """A distributed training: the runs of its ranks write the run of all ranks, as a trainer writes any other."""

    @property
    def run(self) -> Run:
        """The run of all ranks. Its id in addresses is `ranks-` and the job."""

    def runs(self) -> list[Run]:
        """Return the runs of all ranks, of all attempts."""

    @property
    def gathers(self) -> bool:
        """Whether ranks that are back must wait for others, so that their saved runs are added up together."""

    def take_of(self, run: Run, record: Record) -> None:
        """Take what a rank's run has taken."""

    def describe_of(self, run: Run, described: Description) -> None:
        """Take the description of a rank's model."""

    # What the run of all ranks does, and says of them

    def read_all(self) -> None:
        """Add up what is kept of the ranks."""

    @property
    def state(self) -> State:
        """The state of all ranks together."""

    @property
    def steps(self) -> int:
        """The number of steps that the longest rank trained."""

    @property
    def coarse(self) -> str | None:
        """Which steps are merged, although the runs of the ranks have each of them; None if none are."""

    def why_away(self) -> list[str]:
        """Return why steps of ranks can't be read now."""

    def ask_all(self, name: Ask, contents: Sequence[dict[str, Any]]) -> list[Command]:
        """Queue commands for the ranks and return them."""

    def outcome(self, number: int) -> Outcome:
        """Return what became of a command that was sent to the ranks."""

    def save_edit(self) -> None:
        """Save what readers edited of the run of all ranks."""


@dataclass(slots=True)
class Run:
    """What a trainer sent, or the sum of what all ranks of a training sent. All methods are thread-safe."""

    info: RunInfo
    store: Store
    commands: Commands
    changes: Changes
    signs: Signs = field(default_factory=Signs)
    name: str = ""
    loaded: bool = True  # False: it is on disk, and its store has only the range of steps
    edits: Edits = field(default_factory=Edits)
    saved: Saved = field(default_factory=Saved)
    received: Received = field(default_factory=Received)
    end: End = field(default_factory=End)
    findings: FindingsCache = field(init=False)
    training: Training | None = None  # if it is a rank of it, or the sum of all ranks
    lock: threading.Lock = field(default_factory=threading.Lock)
    _own_rules: OwnRules = field(default_factory=lambda: OwnRules((), "server"))  # those of this server
    _first_error: FirstError = field(default_factory=FirstError)
    _taps: tuple[Tap, ...] = ()  # as far as rules of this server asked for them
    _gaps: Gaps = field(default_factory=Gaps)

    def __post_init__(self) -> None:
        self.renew_findings()

    def renew_findings(self) -> None:
        """Look for findings in the store, which is another one now."""
        self.findings = FindingsCache(self.store)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def reader(self) -> StoreReader:
        """A reader of its values."""
        return StoreReader(self.store, self.id, self.edits.quiet)

    @property
    def labels(self) -> dict[str, str]:
        """Facts that the trainer reported, without the counters of rules and hookcore's own probes."""
        own = {(f"{PROBE_LABEL}{name}", text) for name, text in functions_of({}).items()}  # that older runs list
        labels = self.store.labels().items()
        return {name: text for name, text in labels if not name.startswith(OWN_RULE_LABEL) and (name, text) not in own}

    @property
    def is_derived(self) -> bool:
        """Whether it is the sum of all ranks, which no trainer sends and nothing saves."""
        return self.ranks is not None

    @property
    def ranks(self) -> Training | None:
        """The training whose ranks it is the sum of; None if a trainer sends it."""
        training = self.training  # a rank's run may be removed at this moment
        return training if training is not None and training.run is self else None

    @property
    def joint(self) -> Run | None:
        """The run of all ranks, if this is one of them."""
        training = self.training
        return None if training is None or training.run is self else training.run

    @property
    def partial(self) -> str | None:
        """Why answers about the run may lack something; None if they don't."""
        coarse = None if self.ranks is None else self.ranks.coarse
        return " ".join(filter(None, (self.received.beginning, coarse, self.away))) or None

    @property
    def away(self) -> str | None:
        """Why steps aren't here yet, or left memory and can't be read now; None if all can."""
        past = self.store.past
        old = "" if past is None or not past.trouble else f"Steps that left memory can't be read now: {past.trouble}"
        own = " ".join(filter(None, (self.received.behind, old)))
        of_ranks = [] if self.ranks is None else self.ranks.why_away()
        return " ".join(dict.fromkeys(filter(None, (own, *of_ranks)))) or None

    @property
    def is_paused(self) -> bool:
        """Whether its trainer has paused capture."""
        return self.info.settings.get("paused") is True

    @property
    def state(self) -> State:
        """Whether its trainer is live, and if not, how the run ended."""
        if self.ranks is not None:
            return self.ranks.state
        if self.end.is_known:
            return "ended" if self.end.failure is None else self.end.failure.outcome
        if self.saved.from_disk:
            return "waiting" if self.saved.is_awaited and not self.is_silent(self.signs.lost_after_s) else "lost"
        return "lost" if self.is_silent(GONE_AFTER_S if self.signs.is_gone else self.signs.lost_after_s) else "live"

    @property
    def trained(self) -> int | None:
        """The number of steps that it trained, captured or not, if its trainer reported it at the end."""
        steps = self.info.facts.get(TRAINED)
        return steps if isinstance(steps, int) else None

    @property
    def steps(self) -> int:
        """The number of steps that it trained, captured or not; of a running one, up to the newest that is known."""
        if self.ranks is not None and not self.loaded:
            return self.ranks.steps
        trained, newest = self.trained, self.store.steps().newest
        if trained is not None and self.finished:
            return trained
        return 0 if newest is None else newest + 1

    def is_silent(self, seconds: float) -> bool:
        """Return whether its trainer, in another process, has sent nothing for longer than this."""
        return self.commands.local is None and self.signs.silent_s > seconds

    @property
    def finished(self) -> bool:
        """Whether no more data can arrive, unless its trainer comes back."""
        return self.state != "live"

    @property
    def rules(self) -> Choices:
        """The thresholds that were chosen, by rule."""
        return self.edits.rule_changes[-1][1] if self.edits.rule_changes else {}

    def has_seen(self, finding: Finding) -> bool:
        """Return whether a finding was acknowledged since it began; a recurring one is new."""
        return self.edits.quiet.has_seen(finding.key, finding.since_step)

    def hear(
        self, info: RunInfo, counters: DeliveryCounters, *, silent_s: float, lost_after_s: float, has_ended: bool
    ) -> None:
        """Take a sign of life that another process received. Its key is the hash of the trainer's."""
        self.info, self.saved.key_hash = replace(info, key=""), info.key
        self.received.counters, self.signs.lost_after_s = counters, lost_after_s
        self.signs.seen_at = self.signs.clock() - silent_s
        is_over = has_ended or self.is_silent(lost_after_s)
        if not (self.loaded and is_over):
            self.saved.from_disk = is_over

    def amend(self, **changes: Any) -> None:
        self.info = replace(self.info, **changes)
        self.changes.tell()

    def set_behind(self, why: str) -> None:
        """Note why the newest steps aren't here yet; empty if they are."""
        if why != self.received.behind:
            self.received.behind = why
            self.changes.tell()

    def outline(self, steps: StepRange, end: End) -> None:
        """Keep the range of steps only."""
        self.end = end
        self.swap(Store.outline(steps), loaded=False)

    def fill(self, store: Store, acknowledged: int, end: End, *, beginning: str, behind: str) -> None:
        """Use a store that was filled up to an item. `beginning` and `behind` describe what it lacks."""
        self.received.acknowledged, self.end = acknowledged, end
        self.received.beginning, self.received.behind = beginning, behind
        self.swap(store, loaded=True)

    def swap(self, store: Store, loaded: bool) -> None:
        """Use another store: one loaded from disk, or an outline of one that is on disk."""
        self.store, self.loaded = store, loaded
        self.renew_findings()
        self.changes.tell()

    def ask(self, name: Ask, **what: Any) -> Command:
        """Queue a command for the trainer and return it."""
        return self.ask_all(name, [what])[0]

    def ask_snapshots(self, taps: Sequence[Tap]) -> list[Command]:
        """Queue commands that the trainer receives together, so that it captures the tensors of one step."""
        return self.ask_all("snapshot", [{"tap": tap} for tap in taps])

    def ask_all(self, name: Ask, contents: Sequence[dict[str, Any]]) -> list[Command]:
        """Queue commands of one kind for the trainer, and return them."""
        if self.ranks is not None:
            return self.ranks.ask_all(name, contents)
        # One at a time: a trainer ignores a command that arrives after one with a higher number.
        with self.commands.asking:
            self.learn_numbers()
            commands = self.commands.make(name, contents)
            self.hand_on(commands)
        return commands

    def learn_numbers(self) -> None:
        """Number further commands above those of other servers, which may have asked in the meantime."""
        if self.commands.relay is not None:
            self.commands.number_above(self.commands.relay.newest())

    def hand_on(self, commands: Sequence[Command]) -> None:
        """Give commands to the trainer, while no one else does (`commands.asking` must be held)."""
        local, relay = self.commands.local, self.commands.relay
        with self.lock:
            self.commands.number_above(max((command.number for command in commands), default=-1))
            self.commands.mark_asked(commands, self.store.events_after(0)[0])
            if local is None and self.commands.enqueue(commands):
                why = f"more than {MAX_COMMANDS} commands are waiting for the trainer, so the oldest were dropped"
                emit_event(self, "command-dropped", why, "warning")
        if local is not None:
            for command in commands:
                local(command)
        if relay is not None:
            relay.send(commands)

    def outcome(self, number: int) -> Outcome:
        """Return what became of a command, by its number."""
        if self.ranks is not None:
            return self.ranks.outcome(number)
        state = self.state  # first, because a run that has ended has all its events
        with self.lock:
            before = self.commands.asked.get(number)
            is_waiting, is_dropped = number in self.commands.waiting, number in self.commands.newest_dropped
            taken, events = self.store.events_after(before or 0)
            if before is not None and taken < before:  # another store, such as one that was read from disk
                taken, events = self.store.events_after(0)
        reported = next(filter(None, (Outcome.of(number, event) for event in reversed(events))), None)
        if reported is not None:
            return reported
        if before is None:
            return Outcome(number, "unknown", "this server sent no such command, or too long ago")
        if is_dropped:
            return Outcome(number, "dropped", f"more than {MAX_COMMANDS} commands were waiting for the trainer")
        if state not in ("live", "waiting"):
            return Outcome(number, "unknown", f"the run is {state}, and its trainer has not reported the outcome")
        if before < taken - len(events):
            return Outcome(number, "unknown", "there was no room for the events of that time")
        return Outcome(number, "waiting" if is_waiting else "received")

    def _ask_for_step(self) -> None:
        """Ask the trainer to save a step after the run's first error. Its settings and limits decide about that."""
        if self.finished:
            return
        occasion = self._first_error.news(self.store, self._is_muted)
        if occasion is not None:
            self.ask("capsule", occasion=occasion)

    def _is_muted(self, incident: Incident) -> bool:
        return self.edits.quiet.muting(self.store)(incident.rule, incident.culprit.tap.module) is not None

    def acknowledge(self, key: str, yes: bool = True) -> None:
        """Acknowledge a finding or an event, or undo that."""
        with self.lock:
            self.edits.quiet.acknowledge(key, (self.store.steps().newest or 0) if yes else None)
        self.edited()

    def mute(self, mute: Mute, yes: bool = True) -> None:
        """Mute a rule, or undo that."""
        with self.lock:
            (self.edits.quiet.mute if yes else self.edits.quiet.unmute)(mute)
        self.edited()

    def change_rules(self, given: Mapping[str, object]) -> None:
        """Change thresholds for the steps to come. Raises ArgumentError for a wrong name or number."""
        with self.lock:
            newest = self.store.steps().newest
            step, chosen = -1 if newest is None else newest, read_choices(given, self.rules)
            if chosen == self.rules:
                return
            self.edits.rule_changes = changed(self.edits.rule_changes, step, chosen)
            if self.store.follower is not None:
                self.store.follower.change(step, chosen)
        self.edited()

    def edit(self, changes: Mapping[str, Any]) -> None:
        """Change the name, or other edits, by their names."""
        with self.lock:
            for name, value in changes.items():
                setattr(self if name == "name" else self.edits, name, value)
        self.edited()

    def edited(self) -> None:
        """Announce and save a changed name, note, acknowledgement, mute, or annotation."""
        if self.ranks is not None:
            self.ranks.save_edit()
        self.edits.count += 1
        if self.saved.on_edit is not None:
            self.saved.on_edit()
        self.changes.tell()

    def take(self, batch: Batch) -> Receipt:
        """Store a batch. Repeated items are ignored; inconsistent data raises WireError."""
        with self.lock:
            if self.saved.from_disk:
                raise AwayError(f"the run {self.id} has just left memory: send again")
            if self.training is not None and self.training.gathers:
                self.signs.see()
                raise AwayError(f"the run {self.id} is waiting for the other ranks of its training: send again")
            self.commands.drop_received(batch.commands_done)  # first, or the next command gets a number that it ignores
            if batch.retained > self.received.acknowledged:
                # Lost with the server that acknowledged it. The trainer sends it again, and the rest after it.
                self.signs.see()
                return self._answer()
            self._notice(batch.counters, is_last=any(isinstance(item, EndItem) for item in batch.items))
            self.signs.see()
            self.info, self.received.counters = batch.run, batch.counters
            announced = self.store.taps_announced
            if batch.taps_from <= announced:
                self._take_all(batch, batch.taps[announced - batch.taps_from :])
        self._ask_for_step()
        with self.lock:
            answer = self._answer()
        self.changes.tell()
        return answer

    @property
    def is_followed(self) -> bool:
        """Whether somebody may be looking at it, or at all ranks together."""
        return self.signs.is_followed or (self.joint is not None and self.joint.signs.is_followed)

    def _answer(self) -> Receipt:
        return Receipt(
            acknowledged=self.received.acknowledged,
            taps=self.store.taps_announced,
            described=self.received.described,
            commands=tuple(self.commands),
            incidents=self.store.incidents_version,
            durable=(durable := self.saved.durable),
            saved=durable is None or (durable >= self.received.acknowledged and not self.saved.given_up),
            given_up=self.saved.given_up or "",
            followed=self.is_followed,
        )

    def _notice(self, counters: DeliveryCounters, is_last: bool) -> None:
        """Add events about lost or delayed data."""
        saved, is_back = self.saved, self.saved.count is not None
        missing = 0 if saved.count is None or self._gaps.met else counters.acknowledged - saved.count
        if missing > 0 and saved.on_disk is not None:
            saved.on_disk.miss(missing)  # or the next restart would report them again
        for event in self._gaps.greet(counters, self.signs.silent_s, is_back, missing):
            emit_event(self, *event)
        for event in self._gaps.count(self.received.counters, counters, self.signs.clock(), is_last):
            emit_event(self, *event)

    def _take_all(self, batch: Batch, new_taps: tuple[Tap, ...]) -> None:
        # Everything is read before anything is stored: a damaged batch leaves no trace.
        fresh = [item for item in batch.items if item.number > self.received.acknowledged]
        records = [record_of(item) for item in fresh]
        if new_taps:
            self.store.announce(new_taps)
        described = batch.description
        if described is not None and described.version > self.received.described:
            self.store.describe(described.modules, described.coverage, described.hooks)
            self.received.described = described.version
            if self.training is not None:
                self.training.describe_of(self, described)
        room = self.saved.room_for(records)  # the sender keeps the rest, and asks again
        # A rule of the user, or the run of all ranks, takes each frame as it is stored.
        is_alone = not self._own_rules and self.training is None
        taken = zip(fresh[:room], records, strict=False)
        for can_join, group in groupby(taken, lambda pair: is_alone and isinstance(pair[1], Frame)):
            together = list(group)
            if can_join:
                self.store.extend([record for _, record in together if isinstance(record, Frame)])
            for item, record in together:
                self.keep(record, item.number, is_stored=can_join)
                self.received.acknowledged = item.number

    def take_record(self, record: Record) -> None:
        """Store a record of a trainer in this process."""
        with self.lock:
            self.signs.see()
            self.keep(record)
        self._ask_for_step()
        self.changes.tell()

    def take_stored(self, record: Record, number: int) -> None:
        """Take a record that another process has received and stored."""
        with self.lock:
            self.keep(record, number)
            self.received.acknowledged = number

    def keep(self, record: Record, number: int = -1, *, is_stored: bool = False) -> None:
        """Store and save a record of its trainer or of all ranks (the lock must be held)."""
        if isinstance(record, EndItem):
            self.end = End(record.step, record.failure)
            self.store.settle()
            if record.failure is not None:
                self.store.add_event(event_of(record.failure))
        elif isinstance(record, Snapshot):
            self.store.add_snapshot(record)
        elif not is_stored:
            if self._own_rules:  # before it is stored, so that what they find is saved with the run
                if len(self._taps) != self.store.taps_known:
                    self._taps = self.store.taps().taps
                record = self._own_rules.examine(record, self._taps)
            self.store.append(record)
        if self.training is not None and self.ranks is None:
            # Before it is written: what a run of all ranks reads from disk, it hasn't taken.
            self.training.take_of(self, record)
        if self.saved.on_record is not None:
            self.saved.on_record(record, number)


def follow_rules(run: Run, before: Choices) -> None:
    """Let the rules of a run use its thresholds, if they were changed elsewhere."""
    if run.loaded and run.rules != before and run.store.follower is not None:
        run.store.follower.change(run.edits.rule_changes[-1][0] if run.edits.rule_changes else -1, run.rules)


def emit_event(run: Run, name: str, message: str, severity: Severity = "info", count: int = 1) -> None:
    """Add an event of the server to those of the trainer."""
    run.store.add_event(Event(run.store.steps().newest or 0, time.time(), name, message, severity, count=count))
    run.changes.tell()
