"""A sink that also saves to disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from hookcore.delivery.archive.writer import ArchiveWriter
from hookcore.delivery.sinks import StoreSink
from hookcore.records import Failure, Frame, Snapshot
from hookcore.records.wire import EndItem, Place, RunInfo
from hookcore.store import Store

logger = logging.getLogger("hookcore")

CLOSE_S: Final = 10.0  # a process that ends before its values are on disk loses them, so it is worth the wait


class ArchiveSink(StoreSink):
    """Puts frames into a store of this process, and into a folder on disk; the writer gets modules from the store."""

    def __init__(self, store: Store, folder: str, info: RunInfo) -> None:
        super().__init__(store)
        self._info = info
        self._writer = ArchiveWriter(folder, info, store)
        self._failure: Failure | None = None

    def send(self, record: Frame | Snapshot) -> None:
        super().send(record)
        self._writer.take(record)

    def locate(self, place: Place) -> None:
        if self.store.follower is not None:
            self.store.follower.take_turns(place.rank)  # as when the saved run is read
        self._inform(place=place)

    def learn(self, description: Mapping[str, Any]) -> None:
        self._inform(**description)

    def _inform(self, **changes: Any) -> None:
        self._info = structs.replace(self._info, **changes)
        self._writer.inform(self._info)

    def fail(self, failure: Failure) -> None:
        super().fail(failure)
        self._failure = failure

    def close(self) -> None:
        """Write the rest."""
        if not self._closed:
            super().close()
            self._writer.take(EndItem(0, self.store.steps().newest or 0, self._failure))
            if not self._writer.close(CLOSE_S):
                logger.warning("hookcore: the run's folder is incomplete: writing it took more than %g s", CLOSE_S)

    def abandon(self) -> None:
        self._writer.abandon()
