"""A sink that also saves to disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from hookcore.archive.writer import ArchiveWriter
from hookcore.delivery.sinks import StoreSink
from hookcore.records import Command, Coverage, Failure, Frame, HookRecord, ModuleRecord, Snapshot
from hookcore.wire import EndItem, RunInfo

logger = logging.getLogger("hookcore")

CLOSE_S: Final = 10.0  # a process that ends before its values are on disk loses them, so it is worth the wait


class ArchiveSink:
    """Puts frames into a store of this process, and into a folder on disk."""

    def __init__(self, inner: StoreSink, folder: str, info: RunInfo) -> None:
        self.store = inner.store
        self._inner = inner
        self._writer = ArchiveWriter(folder, info, inner.store)
        self._failure: Failure | None = None
        self._closed = False

    def send(self, frame: Frame) -> None:
        """Store and save a frame."""
        self._inner.send(frame)
        self._writer.take(frame)

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Store the modules; the writer reads them from the store."""
        self._inner.describe(modules, coverage, hooks)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Store and save a snapshot."""
        self._inner.add_snapshot(snapshot)
        self._writer.take(snapshot)

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        """Do nothing: a store gives no commands."""

    def fail(self, failure: Failure) -> None:
        """Record why the run ends."""
        self._failure = failure
        self._inner.fail(failure)

    def close(self) -> None:
        """Write the rest."""
        if not self._closed:
            self._closed = True
            self._inner.close()
            self._writer.take(EndItem(0, self.store.steps().newest or 0, self._failure))
            if not self._writer.close(CLOSE_S):
                logger.warning("hookcore: the run's folder is not complete: it took more than %g s to write", CLOSE_S)

    def abandon(self) -> None:
        """Stop writing in a forked child."""
        self._writer.abandon()
