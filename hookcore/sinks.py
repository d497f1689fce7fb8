"""Where frames go: a store in this process, or something else that takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from hookcore.errors import ClosedError
from hookcore.failures import event_of
from hookcore.records import Command, Coverage, Failure, Frame, HookRecord, ModuleRecord, Snapshot
from hookcore.store import Store


@runtime_checkable
class Sink(Protocol):
    """Takes the frames of one run, one after the other, from one thread."""

    def send(self, frame: Frame) -> None:
        """Takes a frame; its arrays must not be written to any more."""

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Says which modules the run has, which of them were captured, and which hooks are there."""

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Takes a snapshot."""

    def listen(self, obey: Callable[[Command], None]) -> None:
        """Names the one who is told of commands, from any thread, in the order of their numbers."""

    def fail(self, failure: Failure) -> None:
        """Say why the run ends, if it does not end as it should; `close` follows."""

    def close(self) -> None:
        """Sends what is left; nothing may be sent any more. A second call does nothing."""


class StoreSink:
    """Puts frames into a store in this process. Closing leaves the store readable."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._closed = False

    def send(self, frame: Frame) -> None:
        """Appends a frame."""
        self._require_open()
        self.store.append(frame)

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Hands the modules on."""
        self._require_open()
        self.store.describe(modules, coverage, hooks)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot."""
        self._require_open()
        self.store.add_snapshot(snapshot)

    def listen(self, obey: Callable[[Command], None]) -> None:
        """Nobody gives commands through a store."""

    def fail(self, failure: Failure) -> None:
        """Put it among the events."""
        self.store.add_event(event_of(failure))

    def close(self) -> None:
        """Ends the sink."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this sink was closed: make a new one on the same store to send more")
