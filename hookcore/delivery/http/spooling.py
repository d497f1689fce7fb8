"""When a run's undelivered items go to disk, and when that is over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from hookcore.delivery.http.outbox import Outbox
from hookcore.delivery.http.spool import MakeSpool, Spool
from hookcore.records.wire import RunInfo

PART_S: Final = 5.0  # what a killed trainer may lose


class Spooling:
    """The spool of one run, from the moment that it is needed. Everything but `abandon` is called by one thread."""

    def __init__(self, outbox: Outbox, make: MakeSpool | None) -> None:
        self._outbox = outbox
        self._make = make
        self._spool: Spool | None = None
        self._is_on = False  # whether it gets every item
        self._due = float("inf")
        self._trouble = ""
        self._ended = False
        self.lost = 0  # at the end: items that could not be written

    @property
    def path(self) -> Path | None:
        """The folder on disk that has what wasn't delivered; None if there is none, or if it can't be written."""
        return None if self._spool is None or self._spool.trouble else self._spool.path

    @property
    def is_possible(self) -> bool:
        """Whether something may be written at the end."""
        return self._make is not None and not self._trouble

    @property
    def trouble(self) -> str:
        """Why nothing can be written; empty if it can, or if nothing should be."""
        return self._trouble or ("" if self._spool is None else self._spool.trouble)

    @property
    def due_at(self) -> float:
        """When the next part is due."""
        return self._due

    def begin(self, run: RunInfo) -> None:
        """Keep everything on disk from now on, and write what is waiting."""
        if self._is_on or self._ended or (self._spool is None and not self._open(run)):
            return
        assert self._spool is not None
        self._is_on = True
        self._outbox.spool_to(self._spool)
        self.write()

    def _open(self, run: RunInfo) -> bool:
        if self._make is None or self._trouble:
            return False
        try:
            self._spool = self._make(run, lambda: self._outbox.described)
        except Exception as error:  # no folder, a library that can't be loaded: never a reason not to train
            self._trouble = str(error) or type(error).__name__
        return self._spool is not None

    def write(self) -> None:
        """Write the next part."""
        self._due = time.monotonic() + PART_S
        if self._spool is not None:
            self._spool.write()

    def note_progress(self) -> None:
        """Note that the server takes items. The spool is removed once it has saved all that is in there."""
        spool = self._spool
        if spool is None:
            return
        if self._is_on and self._outbox.spool_no_more():
            self._is_on, self._due = False, float("inf")
        if not self._is_on and self._outbox.durable >= spool.newest:
            self._spool = None
            spool.discard()

    def finish(self, run: RunInfo) -> None:
        """Write everything that the server hasn't saved, for the next dashboard. A second call does nothing."""
        self.begin(run)
        if not self._ended and self._spool is not None:
            self.lost = self._spool.close(run)
        self._ended = True

    def drop(self) -> None:
        """Remove the spool at the end of a run that the server has saved."""
        if not self._ended and self._spool is not None:
            self._spool.discard()
            self._spool = None
        self._ended = True

    def abandon(self) -> None:
        """Leave the spool alone in a forked child."""
        spool, self._spool, self._ended = self._spool, None, True
        if spool is not None:
            spool.abandon()
