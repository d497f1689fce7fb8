"""Where frames go: a store in this process, or something else that takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hookcore.errors import ClosedError
from hookcore.records import Coverage, Frame, ModuleRecord
from hookcore.store import Store


@runtime_checkable
class Sink(Protocol):
    """Takes the frames of one run, one after the other, from one thread."""

    def send(self, frame: Frame) -> None:
        """Takes a frame; its arrays must not be written to any more."""

    def describe(self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = ()) -> None:
        """Says which modules the run has, and which of them were captured."""

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

    def describe(self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = ()) -> None:
        """Hands the modules on."""
        self._require_open()
        self.store.describe(modules, coverage)

    def close(self) -> None:
        """Ends the sink."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this sink was closed: make a new one on the same store to send more")
