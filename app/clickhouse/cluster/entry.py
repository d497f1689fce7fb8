"""One run of ClickHouse in a server's list, and how the store of one is filled."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hookcore.delivery.archive import load_frames, load_into
from hookcore.records import Command
from hookcore.store import StepRange, Store

from ...runs.edits import merged
from ...runs.joint import joint_in
from ...runs.limits import tamed
from ...runs.parts import End
from ...runs.run import Run, follow_rules
from ...runs.saved import apply_page, page_of
from ..client import Shard
from ..reading import Extent, Listed, Mismatch, StoredRun, awaited_in, begin_of_newest, steps_before
from ..runpast import RunPast
from ..schema import day_of, number_of_run
from .sharing import History, SharedPage, newest_command, pages_of, save_commands

SIGNS_MISSED: Final = 2  # before the silence of a run counts
PATIENCE: Final = 60  # looks for the rows of a frame, before they are lost; there is about one per second
UNSAID: Final = 5  # of these looks, because replicas often lag behind a little


@dataclass(slots=True)
class Entry:
    """A run and where it is. `lock` is held while its store is filled or continued."""

    run: Run
    shard: Shard
    _lost_after_s: float
    _version: int = -1  # of the newest sign of life
    _history: History = field(default_factory=History)  # of the edits
    removed: bool = False
    described: int = -1
    waits: int = 0  # looks in which frames had taps without names
    summed: int = -1  # the highest item that the sum of all ranks has taken, or could have
    _stored: int = -1  # the highest item in ClickHouse, as the newest sign of life says
    _awaited: int = -1  # the frame that isn't here completely
    _looks: int = 0  # for its rows
    _begun_at: int = -1  # the newest item when this began
    _given_up: int = -1  # frames up to this item were awaited for long enough
    summarized: bool = False
    is_new: bool = True  # it began while this server was running
    lock: threading.RLock = field(default_factory=threading.RLock)
    _content: dict[str, Any] = field(init=False)  # of the newest edit, as it was applied here
    _editing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._content = self._own()

    @property
    def number(self) -> int:
        return number_of_run(self.run.id)

    @property
    def day(self) -> int:
        """The day on which the run began, whose partition has it."""
        return day_of(self.run.info.started_s)

    @property
    def attempt(self) -> int:
        """How often the training of this rank was started again before; 0 for a single process."""
        joint = joint_in(self.run)
        member = None if joint is None else joint.rounds.members.get(self.run.id)
        return 0 if member is None else member.round

    @property
    def is_followed(self) -> bool:
        """Whether its store lacks something that ClickHouse has or will have."""
        return self.run.loaded and not (
            self.run.end.step is not None and self.run.received.acknowledged >= self._stored
        )

    @property
    def lost_until(self) -> int:
        """The item up to which frames that aren't here completely never will be."""
        # Whoever inserted items up to `stored` has finished that, so only replicas get their rows later.
        return max(self._given_up, -1 if self.shard.is_replicated else self._stored)

    # -- from ClickHouse --------------------------------------------------------------------------------------------

    def hear(self, each: Listed) -> None:
        """Take a newer sign of life."""
        if each.version <= self._version:
            return
        run, sign = self.run, each.sign
        self._version, self._stored = each.version, sign.stored
        run.received.sent = sign.acknowledged
        run.hear(
            tamed(sign.info),
            sign.counters,
            silent_s=max(0, each.age_s) + sign.silent_s,
            lost_after_s=self._lost_after_s + SIGNS_MISSED * sign.every_s,
            has_ended=sign.has_ended,
        )
        run.commands.drop_received(sign.commands_done)
        if not run.loaded:
            self._outline(each)
        run.changes.tell()

    def _outline(self, each: Listed) -> None:
        sign = each.sign
        end = End(sign.newest_step) if sign.has_ended else End()
        if sign.end is not None:
            end = End(sign.end.step, sign.end.failure)
        first, newest = (sign.first_step, sign.newest_step) if sign.newest_step >= 0 else (None, None)
        self.run.outline(StepRange(first, newest, sign.steps), end)

    def wait_for(self, waits: Mismatch | None) -> None:
        """Note after a look for which frame's rows the run waits, if it does."""
        number = -1 if waits is None else waits.number
        if number != self._awaited:
            self._awaited, self._looks, self._begun_at = number, 0, max(self._stored, number)
        self._looks += waits is not None
        if self._looks >= PATIENCE:
            self._given_up = self._begun_at
        if waits is None or self._looks > UNSAID:
            self.run.set_behind("" if waits is None else awaited_in(waits))

    def read_page(self, page: SharedPage) -> None:
        """Take a newer edit, of another server or an earlier one."""
        with self._editing:
            if page.version > self._history.version and self._follow(page):
                self._write()

    def _follow(self, page: SharedPage) -> bool:
        """Take a newer edit. Return whether it lacks changes made here that are unwritten or simultaneous."""
        run, rules, before, mine = self.run, self.run.rules, self._content, self._own()
        theirs, mended = self._history.follow(page)
        self._apply(theirs)
        self._content = self._own()
        self._apply(mended)
        if mine != before:
            self._apply(merged(before, mine, self._own()))
        self.summarized = bool(run.saved.summary.get("results") is not None)
        follow_rules(run, rules)
        if (joint := joint_in(run)) is not None:
            joint.follow_edit(run)
        run.changes.tell()
        return self._own() != self._content

    def _apply(self, content: Mapping[str, Any]) -> None:
        self.removed = content.get("removed") is True
        apply_page(self.run, content)

    def _own(self) -> dict[str, Any]:
        # JSON has no tuples and no objects, so the content that is read equals the content that was written.
        own: dict[str, Any] = json.loads(json.dumps({**page_of(self.run), "removed": self.removed}))
        return own

    # -- to ClickHouse ----------------------------------------------------------------------------------------------

    def write_page(self) -> None:
        """Save the edits made here for all servers, merged with edits that others made in the meantime."""
        with self._editing:
            newest = next(iter(pages_of(self.shard, run=self.number)), None)
            if newest is not None and newest.version > self._history.version:
                self._follow(newest)
            self._write()

    def _write(self) -> None:
        content = self._own()
        self._history.write(self.shard, self.day, self.number, self._content, content)
        self._content = content

    def newest(self) -> int:
        """Return the highest number of a command for its trainer."""
        return newest_command(self.shard, self.number)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands to its trainer through the process to which it sends."""
        save_commands(self.shard, self.day, self.number, commands)


# Fills the store of a run from ClickHouse: with all of it, or with the newest steps before a past.

WHOLE_ROWS: Final = 2_000_000  # of a run that is read completely
WINDOW_ROWS: Final = 1_000_000  # of the newest steps of a longer one
WINDOW_FRAMES: Final = 10_000  # of these, since small frames take most of the time: about 0.4 ms each
MIN_FRAMES: Final = 1024  # of each of several ranks: what rules look at
LOOKS: Final = "Findings, incidents, and counts of non-finite steps"
SEES_ALL: Final = "Series, heatmaps, histograms, and events have all steps."


def fill(store: Store, past: RunPast, stored: StoredRun, rows: int) -> str:
    """Fill a store, and give it its past. Return what doesn't begin with the run, in a sentence, or nothing."""
    if rows <= WHOLE_ROWS:
        load_into(store, stored)
        store.recall_from(past)
        return ""
    stored.first, step = begin_of_newest(stored.shard, stored.run, stored.last, WINDOW_ROWS, WINDOW_FRAMES)
    earlier, captured = steps_before(stored.shard, stored.run, step)
    store.announce(stored.taps())
    store.describe(stored.modules(), stored.coverage(), stored.hooks())
    if earlier.first is not None and earlier.newest is not None:
        latest = past.latest(len(stored.taps()), (earlier.first, earlier.newest))
        store.begin_after(earlier, captured, stored.scalars(), latest)
    for event in stored.earlier_events():
        store.add_event(event)
    store.recall_from(past)
    load_frames(store, stored)
    return said_of(step)


def said_of(step: int) -> str:
    """Return what of a long run begins at a step, in sentences."""
    return f"This run is long: {LOOKS[0].lower()}{LOOKS[1:]} cover steps from {step:,} on. {SEES_ALL}"


def limit(attempts: Sequence[Sequence[tuple[StoredRun, Extent]]]) -> int | None:
    """Limit what is read of all ranks, if there is too much. Return the step at which that begins; None for all.

    Each attempt of the training has runs of its ranks. Left are the newest steps of the newest one, and of those before
    only their last step, because the steps of the next one continue from there.
    """
    if sum(extent.rows for here in attempts for _, extent in here) <= WHOLE_ROWS:
        return None
    *earlier, newest = attempts
    begin = sum(_keep_last_step(here) + 1 for here in earlier)
    ranks = [stored for stored, extent in newest if extent.newest >= 0]
    if ranks and sum(extent.rows for _, extent in newest) > WHOLE_ROWS:
        share = WINDOW_ROWS // len(ranks), max(WINDOW_FRAMES // len(ranks), MIN_FRAMES)
        step = max(begin_of_newest(rank.shard, rank.run, rank.last, *share)[1] for rank in ranks)
        begin += step
        for rank in ranks:
            rank.first = rank.first_at(step)
    return begin


def _keep_last_step(ranks: Sequence[tuple[StoredRun, Extent]]) -> int:
    """Leave only the last step of an attempt. Return which one that is; -1 if it has none."""
    newest = max(extent.newest for _, extent in ranks)
    for stored, extent in ranks:
        stored.last = extent.last
        stored.first = extent.newest_at if extent.newest == newest else extent.last + 1
    return newest
