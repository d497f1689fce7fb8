"""Fills a store with a recorded run, part by part."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from operator import not_
from typing import Protocol

from hookcore.errors import HookcoreError
from hookcore.records import Coverage, Event, Frame, HookRecord, ModuleRecord, Snapshot, Tap
from hookcore.records.vocabulary import NONFINITE_STEP, OWN_RULE
from hookcore.store import Store
from hookcore.store.schemas import SKIPPED_STEP


class Recorded(Protocol):
    """The source for filling a store: a run on disk, or in a database."""

    damages: list[str]  # what could not be read

    @property
    def labels(self) -> dict[str, str]: ...
    def taps(self) -> tuple[Tap, ...]: ...
    def modules(self) -> Sequence[ModuleRecord]: ...
    def coverage(self) -> Sequence[Coverage]: ...
    def hooks(self) -> Sequence[HookRecord]: ...
    def events(self) -> Iterator[Event]: ...
    def frames(self) -> Iterator[Frame]: ...
    def snapshots(self) -> Iterator[Snapshot]: ...


def load_into(store: Store, archive: Recorded) -> None:
    """Load a saved run into a store, part by part; the store's limits bound the memory."""
    store.announce(archive.taps())
    store.describe(archive.modules(), archive.coverage(), archive.hooks())
    load_frames(store, archive)


def load_frames(store: Store, archive: Recorded) -> None:
    """Load all that a run's steps brought into a store that knows its taps and modules."""
    labels = archive.labels
    # While the run was live, an incident was known to be skipped before it made room for later ones.
    skipped = deque(sorted(event.step for event in archive.events() if event.name == SKIPPED_STEP))
    unheard = Unheard(archive.events())
    for frame in archive.frames():
        unheard.tell(store, frame)
        while skipped and skipped[0] < frame.step:
            store.note_skipped(skipped.popleft())
        try:
            store.append(replace(frame, labels=labels) if labels else frame)
        except HookcoreError as error:
            archive.damages.append(f"step {frame.step}: {error}")
        labels = {}
    unheard.tell(store)
    for snapshot in archive.snapshots():
        store.add_snapshot(snapshot)
    # Events that the store added while it was being filled may be recorded too.
    told = {(event.step, event.name, event.message) for event in store.events()}
    for event in archive.events():
        if (event.step, event.name, event.message) not in told:
            store.add_saved_event(event)


class Unheard:
    """The events of a saved run that its rules and incidents must hear when they did while the run was live."""

    def __init__(self, events: Iterable[Event]) -> None:
        known = [each for each in events if each.name.startswith(OWN_RULE) or each.name == NONFINITE_STEP]
        is_late = [bool(each.about.get("late")) for each in known]  # it came with a frame of a later step
        self._late = deque(sorted(compress(known, is_late), key=lambda each: each.time_s))
        self._others = deque(sorted(compress(known, map(not_, is_late)), key=lambda each: each.step))

    def tell(self, store: Store, frame: Frame | None = None, shift: int = 0) -> None:
        """Let a store hear the events that came with a frame or before it; without a frame, all others."""
        while self._others and (frame is None or self._others[0].step <= frame.step):
            store.hear(self._others.popleft().moved(shift))
        while self._late and (frame is None or self._late[0].time_s <= frame.time_s):
            store.hear(self._late.popleft().moved(shift))
