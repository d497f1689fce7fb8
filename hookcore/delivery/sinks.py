"""Sinks of frames: a store in this process, or something else that receives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hookcore.delivery.failures import event_of
from hookcore.errors import ClosedError
from hookcore.records import Command, Coverage, Failure, Frame, HookRecord, ModuleRecord, Snapshot
from hookcore.records.wire import DeliveryCounters, Place
from hookcore.store import Store
from hookcore.store.bounded import bytes_of
from hookcore.store.incidents import FirstError

Settled = Callable[[], dict[str, Any]]


class Sink(ABC):
    """Receives the frames of one run, in order, from one thread."""

    @abstractmethod
    def send(self, record: Frame | Snapshot) -> None:
        """Receive a frame or a snapshot; its arrays must not be changed afterwards."""

    @abstractmethod
    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Receive the modules of the run, which of them were captured, and the hooks."""

    @abstractmethod
    def close(self) -> None:
        """Send the rest and reject further data. A second call does nothing."""

    # The rest does nothing in sinks that don't need it.

    def send_together(self, frames: Sequence[Frame]) -> bool:
        """Receive frames that waited together, if that takes less than one after the other; else return False.

        An error means that none of them was received.
        """
        return False

    def fail(self, failure: Failure) -> None:
        """Record why the run ends, if it fails; `close` follows."""
        return

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        """Set the receiver of commands. It is called from any thread, in the order of their numbers."""
        return

    def locate(self, place: Place) -> None:
        """Receive this process's place in a distributed training, again whenever more of it is known."""
        return

    def learn(self, description: Mapping[str, Any]) -> None:
        """Receive fields of the run's description that are known by now, again whenever there is more."""
        return

    def follow_settings(self, settled: Settled) -> None:
        """Receive a function that returns the run's settings with figures of the cadence, which change."""
        return

    @property
    def counters(self) -> DeliveryCounters | None:
        """The counters of frames and snapshots; None if they don't leave this process."""
        return None

    @property
    def incidents_version(self) -> int:
        """The version of the run's incidents, as far as it is known here; another number means that they changed."""
        return 0

    @property
    def spent_s(self) -> float:
        """The processor time in seconds that threads of its own have taken in this process."""
        return 0.0

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far was received. Return False if the time ran out."""
        return True

    def limit_close_time(self, close_s: float) -> None:
        """Limit the time that closing may take."""
        return

    def abandon(self) -> None:
        """Stop in a forked child."""
        return


class StoreSink(Sink):
    """Puts frames into a store in this process. After closing, the store stays readable."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_closed = False
        self._first_error = FirstError()
        self._on_command: Callable[[Command], None] = lambda _: None

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        self._on_command = on_command

    def send(self, record: Frame | Snapshot) -> None:
        if isinstance(record, Frame):
            self.send_together((record,))
        else:
            self._require_open()
            self.store.add_snapshot(record)

    def send_together(self, frames: Sequence[Frame]) -> bool:
        self._require_open()
        self.store.extend(frames)
        occasion = self._first_error.news(self.store)
        if occasion is not None:
            self._on_command(Command(0, "capsule", occasion=occasion))
        return True

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        self._require_open()
        self.store.describe(modules, coverage, hooks)

    @property
    def incidents_version(self) -> int:
        return self.store.incidents_version

    def fail(self, failure: Failure) -> None:
        """Add the failure to the events."""
        self.store.add_event(event_of(failure))

    def close(self) -> None:
        if not self.is_closed:
            self.store.settle()
        self.is_closed = True

    def _require_open(self) -> None:
        if self.is_closed:
            raise ClosedError("this sink was closed: create a new one on the same store to send more")


# Acknowledged data that isn't on the receiver's disk yet. A trainer keeps as much to send it again if the receiver is
# killed, and a receiver that saves runs accepts no more until its disk has some of it.
UNSAVED_BYTES: Final = 16 * 2**20
_ENTRY_BYTES: Final = 500  # an item without its arrays and texts


def size_of(record: Frame | Snapshot) -> int:
    """Return about how much memory a record takes, with all its names."""
    if isinstance(record, Snapshot):
        return bytes_of(record) + _ENTRY_BYTES
    block = record.sketches
    texts = sum(len(event.message) + _ENTRY_BYTES for event in record.events)
    names = sum(len(name) + 9 for name in record.scalars)
    labels = sum(len(name) + len(text) for name, text in record.labels.items())
    arrays = record.stats.nbytes + record.taps.nbytes + block.start.nbytes + block.bins.nbytes + block.counts.nbytes
    flow = 0 if record.flow is None else record.flow.nbytes
    arrays += 0 if record.owners is None else record.owners.nbytes
    return arrays + texts + names + labels + flow + _ENTRY_BYTES
