"""Sinks of frames: a store in this process, or something else that receives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from hookcore.delivery.failures import event_of
from hookcore.errors import ClosedError
from hookcore.records import Command, Coverage, Failure, Frame, HookRecord, ModuleRecord, Snapshot
from hookcore.store import Store


@runtime_checkable
class Sink(Protocol):
    """Receives the frames of one run, in order, from one thread."""

    def send(self, frame: Frame) -> None:
        """Receive a frame; its arrays must not be changed afterwards."""

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Receive the modules of the run, which of them were captured, and the hooks."""

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Receive a snapshot."""

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        """Set the receiver of commands. It is called from any thread, in the order of their numbers."""

    def fail(self, failure: Failure) -> None:
        """Record why the run ends, if it fails; `close` follows."""

    def close(self) -> None:
        """Send the rest and reject further data. A second call does nothing."""


class StoreSink:
    """Puts frames into a store in this process. After closing, the store stays readable."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._closed = False

    def send(self, frame: Frame) -> None:
        """Append a frame."""
        self._require_open()
        self.store.append(frame)

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Pass the modules on."""
        self._require_open()
        self.store.describe(modules, coverage, hooks)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot."""
        self._require_open()
        self.store.add_snapshot(snapshot)

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        """Do nothing: a store gives no commands."""

    def fail(self, failure: Failure) -> None:
        """Add the failure to the events."""
        self.store.add_event(event_of(failure))

    def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this sink was closed: create a new one on the same store to send more")
