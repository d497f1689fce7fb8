"""Fills a store with a recorded run, part by part."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from hookcore.errors import HookcoreError
from hookcore.records import Coverage, Event, Frame, HookRecord, ModuleRecord, Snapshot, Tap
from hookcore.records.vocabulary import OWN_RULE
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
    own = deque(
        sorted((each for each in archive.events() if each.name.startswith(OWN_RULE)), key=lambda each: each.step)
    )
    for frame in archive.frames():
        while own and own[0].step <= frame.step:
            store.hear(own.popleft())
        while skipped and skipped[0] < frame.step:
            store.note_skipped(skipped.popleft())
        try:
            store.append(replace(frame, labels=labels) if labels else frame)
        except HookcoreError as error:
            archive.damages.append(f"step {frame.step}: {error}")
        labels = {}
    for snapshot in archive.snapshots():
        store.add_snapshot(snapshot)
    # Events that the store added while it was being filled may be recorded too.
    told = {(event.step, event.name, event.message) for event in store.events()}
    for event in archive.events():
        if (event.step, event.name, event.message) not in told:
            store.add_saved_event(event)
