"""The runs that a server shows. `memory.py` says which of them leave memory when it is scarce."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from hookcore.delivery.facts import joint_id
from hookcore.findings import Choices, chosen_in, follow, read_choices, started_with
from hookcore.findings.follower import RULES_CHANGED, words_of
from hookcore.findings.ownrules import OwnRules, rules_in
from hookcore.records import Event
from hookcore.records.wire import MAX_TEXT, Place, RunInfo
from hookcore.store import Store

from ..settings import ServerSettings
from .disk import Disk, Gone, Unlisted, Why
from .joint import Joint, joint_in, ranks_in
from .memory import MIN_RUN_BYTES, Memory, Removals, note_read
from .parts import Changes, Commands, Edits, OnCommand, Signs
from .run import Run
from .shelf import BOARD_FILE, RULES_FILE, Views

OF_SERVER: Final = "this server begins runs with other thresholds"


class Runs:
    """All runs of a server, within its memory."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.changes = Changes()
        self.disk: Disk | None = None
        folder = Path(settings.keep) if settings.keeps else None
        changed = self.changes.tell
        self.views, self.board = Views(folder, changed=changed), Views(folder, BOARD_FILE, "chart", changed)
        self._kept_rules = Views(folder, RULES_FILE, "rule", changed)
        self.trying = threading.Lock()  # what other thresholds would find: one run at a time is read for that
        self.unlisted = Unlisted()
        self._own_rules = rules_in(settings.rules_file) if settings.rules_file else ()
        self._clock = clock
        self._lock, self._loading = threading.Lock(), threading.Lock()  # one run at a time is loaded from disk
        self._runs: dict[str, Run] = {}
        self._gone = Removals()
        self._removed = 0
        self.memory = Memory(settings, clock, self._runs, self._gone, lambda: self.disk, self._evict)
        # Far above the positions that number snapshots without a command.
        self._numbers = itertools.count(int(time.time() * 1000))

    def now(self) -> float:
        """Return the time for deciding whether runs are idle or lost."""
        return self._clock()

    @property
    def removed(self) -> int:
        """The number of runs that were removed to make room."""
        return self._removed

    def all(self) -> list[Run]:
        """Return all runs, newest first, including those on disk. The ranks of one training are one run."""
        return [run for run in self.every() if run.joint is None]

    def every(self) -> list[Run]:
        """Return all runs as `all` does, and also those of single ranks."""
        with self._lock:
            return sorted(self._runs.values(), key=lambda run: (run.info.started_s, run.id), reverse=True)

    def gone(self) -> list[Gone]:
        """Return the removed runs, latest removal first. The ranks of one training are one run."""
        with self._lock:
            return self._gone.latest_first()

    def removed_run(self, run_id: str) -> Run | None:
        """Return a removed run that can be restored."""
        return self._gone.get(run_id)

    @property
    def partial(self) -> str | None:
        """Why runs may be missing in the list now; None if none are."""
        return None if self.disk is None else self.disk.partial

    def get(self, run_id: str) -> Run | None:
        """Return a listed run by its id, without loading it."""
        return self._runs.get(run_id)

    def look_up(self, run_id: str) -> Run | None:
        """Return a run by its id without loading it, even if there were too many to list it. Not for the event loop."""
        run = self._runs.get(run_id)
        return self.disk.find(run_id) if run is None and self.disk is not None else run

    def find(self, run_id: str) -> Run | None:
        """Return a run by its id, loaded from disk if needed. Not for the event loop."""
        return None if (run := self.look_up(run_id)) is None else self.read(run)

    def read(self, run: Run) -> Run:
        """Return the run with all its values in memory."""
        run.signs.look()
        if not run.loaded and self.disk is not None:
            with self._loading:
                if not run.loaded:
                    self.disk.load(run)
            self.balance(spare=run)
        return note_read(run)

    def read_ranks(self, joint: Joint) -> None:
        """Load the runs of all ranks, of all attempts, that are on disk only."""
        for run in joint.runs():
            self.read(run)

    def can_sum_again(self, joint: Joint) -> bool:
        """Return whether what is kept of all ranks can be added up again: all have ended, and are saved."""
        return self.memory.is_kept(joint.run)

    def sum_again(self, joint: Joint) -> bool:
        """Add up what is kept of all ranks again, with frames that came too late. Return False if it can't be now."""
        if joint.run.loaded and not self.memory.leave(joint.run):
            return False
        self.read(joint.run)
        return True

    @property
    def later_rules(self) -> Choices:
        """The thresholds with which runs begin, unless their scripts say something else about a rule."""
        said: dict[str, object] = {}
        for name, text in self._kept_rules.all().items():
            with contextlib.suppress(ValueError):  # a file that others have edited
                said[name] = json.loads(text)
        return chosen_in(said)[0]

    def keep_rules(self, given: Mapping[str, object]) -> None:
        """Let runs begin with these thresholds from now on. Raises ArgumentError for a wrong name or number."""
        before = self.later_rules
        chosen = read_choices(given, before)
        for name in {*before, *chosen}:
            if (what := chosen.get(name)) in (None, {}):
                self._kept_rules.delete(name)
            elif what != before.get(name):
                self._kept_rules.save(name, json.dumps(what if what is False else dict(cast("Any", what))))

    def open(self, info: RunInfo) -> Run | None:
        """Return a trainer's run, created if needed; None if the server is full of live runs."""
        with self._lock:
            run = self._runs.get(info.id)
            if run is not None:
                return run
            if not self.memory.make_place():
                return None
            run = self._made(info, self.store_bytes(info.memory), begins=True)
            self._runs[info.id] = run
            self._join(run, info.place)
        self.balance(spare=run)
        self.changes.tell()
        return run

    def open_local(self, info: RunInfo, memory: int, on_command: OnCommand) -> Run:
        """Return the run of a trainer in this process, which has its own memory and is never rejected."""
        run = self._made(info, memory, on_command, begins=True)
        self.add(run)
        return run

    def place(self, run: Run, place: Place | None) -> None:
        """Put a run among the ranks of its training, once its trainer knows its place, or knows more of it."""
        if place is None:
            return
        if (joint := joint_in(run)) is not None:
            joint.locate(run, place)
        else:
            with self._lock:
                self._join(run, place)
            self.changes.tell()

    def _join(self, run: Run, place: Place | None) -> None:
        """Put a run among the ranks of its training (the lock must be held)."""
        run_id = joint_id(place)
        if run_id is None or place is None or run.training is not None:
            return
        of_all = self._runs.get(run_id)
        if of_all is None:
            of_all = self._runs[run_id] = self._sum_with(run, run_id)
        if (joint := ranks_in(of_all)) is not None:
            joint.admit(run, place)

    def _sum_with(self, run: Run, run_id: str) -> Run:
        """Return a run of all ranks for the first rank of a training."""
        info = replace(run.info, id=run_id, place=None, keep="", key="")
        of_all = self._made(info, self.store_bytes(info.memory))
        of_all.loaded = run.loaded
        Joint(of_all, lambda: self.disk, self.store_bytes, self.unlisted.unread)
        return of_all

    def _made(self, info: RunInfo, memory: int, local: OnCommand | None = None, begins: bool = False) -> Run:
        later = self.later_rules if begins else {}
        chosen, ignored = chosen_in(info.settings.get("rules"), later)
        kept = {name: what for name, what in later.items() if chosen.get(name) == what}
        changes = started_with(chosen)
        store = follow(Store(memory), changes, info.rank)
        if ignored:
            store.add_event(Event(0, time.time(), "rules-ignored", ignored, "warning"))
        if kept:
            store.add_event(Event(0, time.time(), RULES_CHANGED, f"{OF_SERVER}: {words_of(kept, {})}"))
        return Run(
            info,
            store,
            Commands(self._numbers, local),
            Changes(),
            Signs(self._clock, self.settings.lost_after_s, self._clock()),
            info.name[:MAX_TEXT] or info.id,
            edits=Edits(info.notes, info.tags, info.group, rule_changes=changes),
            _own_rules=OwnRules(self._own_rules, "server"),
        )

    def known(self, info: RunInfo) -> Run:
        """Return a run on disk, as the list shows it."""
        run = self._made(info, MIN_RUN_BYTES)
        run.saved.from_disk, run.loaded = True, False
        return run

    def add(self, run: Run) -> None:
        """List a run from elsewhere: loaded from a file, or trained in this process."""
        with self._lock:
            self._runs[run.id] = run
            self._join(run, run.info.place)
        self.changes.tell()

    def add_known(self, run: Run) -> Run:
        """List a run on disk, unless its id is listed already."""
        with self._lock:
            listed = self._runs.setdefault(run.id, run)
            self._join(listed, listed.info.place)
        self.changes.tell()
        return listed

    def remove(self, run_id: str, why: Why = "deleted") -> bool:
        """Remove a run from the list; False if there is none. It can be restored until its space is needed.

        A trainer that still sends starts the run again.
        """
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None:
                return False
            self._part(run)
        for member in [run] if run.ranks is None else run.ranks.runs():
            self._remove(member, why)
        self.changes.tell()
        return True

    def _remove(self, run: Run, why: Why) -> None:
        self._runs.pop(run.id, None)
        self.put_aside(run, why)
        if self.disk is not None:
            self.disk.discard(run, why)
            self.memory.leave(run)

    def _part(self, run: Run) -> None:
        """Take a run out of the ranks of its training, and that off the list if it was the last one.

        The lock must be held.
        """
        joint = joint_in(run)
        if joint is not None and not run.is_derived:
            joint.dismiss(run)
            if not joint.rounds.members:
                self._runs.pop(joint.run.id, None)

    def drop(self, run: Run) -> None:
        """Remove a run that has no data, or none any more. It can't be restored."""
        with self._lock:
            self._runs.pop(run.id, None)
            self._gone.drop(run.id)
            self._part(run)
        if self.disk is not None:
            self.disk.release(run)
        self.changes.tell()

    def put_aside(self, run: Run, why: Why, at_s: float | None = None) -> None:
        """Remember a removed run; with `at_s`, one that was removed before this server started."""
        with self._lock:
            self._gone.put(Gone(run.id, run.name, time.time() if at_s is None else at_s, why, run))
            self._removed += why != "deleted" and at_s is None

    def forget(self, folder_name: str) -> None:
        """Forget a removed run whose folder was deleted to make room."""
        for run in self._gone.restorable():
            if run.saved.folder is not None and run.saved.folder.name == folder_name:
                self._gone.let_go(run.id)
        self.changes.tell()

    def restore(self, run_id: str) -> Run | None:
        """Restore a removed run, or those of all ranks of a training; return None if that is not possible."""
        if ranks := self._gone.ranks_of(run_id):
            restored = [self.restore(rank) for rank in ranks]
            return self._runs.get(run_id) if any(restored) else None
        with self._lock:
            run = self._gone.get(run_id)
            if run is None or run_id in self._runs:
                return None
            self._gone.drop(run_id)
            self._runs[run_id] = run
            if run.joint is not None:  # it was removed with all ranks
                self._runs.setdefault(run.joint.id, run.joint)
            self._join(run, run.info.place)
        run.signs.look()
        if self.disk is not None:
            self.disk.restore(run)
        self.changes.tell()
        return run

    @property
    def used_bytes(self) -> int:
        """Return the memory of all runs, including those that can be restored."""
        return self.memory.used_bytes

    def store_bytes(self, asked: int) -> int:
        """Return the limit of a run's store: as requested, but at most a quarter of the memory."""
        return self.memory.store_bytes(asked)

    def balance(self, spare: Run | None = None, at_once: bool = True) -> None:
        """Keep the memory within its limit, with the mildest sufficient means."""
        if self.memory.is_short(at_once):
            with self._lock:
                self.memory.make_room(spare)
            self.changes.tell()

    def _evict(self, run: Run) -> None:
        """Take a run off the list that is only in memory, to make room (the lock must be held)."""
        del self._runs[run.id]
        self._part(run)
        self._gone.put(Gone(run.id, run.name, time.time(), "memory", None))
        self._removed += 1
        if self.disk is not None:
            self.disk.release(run)
