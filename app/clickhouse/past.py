"""The common part of the pasts of stores: how far everything is stored, and why something can't be read."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from hookcore.errors import HookcoreError
from hookcore.store.past import Past, Together

logger = logging.getLogger("hookcore")

FRESH_S: Final = 1.0  # for which the newest stored step is believed
TROUBLED_S: Final = 30.0  # for which something that couldn't be read is missing, unless it is read after all
Found = TypeVar("Found")


class Troubles:
    """Recent reasons why something couldn't be read, by query. `what` names the subject in the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: dict[Hashable, tuple[str, float]] = {}

    @property
    def text(self) -> str:
        """All reasons; empty if there are none."""
        recent = time.monotonic() - TROUBLED_S
        return "; ".join(dict.fromkeys(text for text, at in list(self._found.values()) if at >= recent))

    def note(self, question: Hashable, why: str) -> None:
        """Note that an answer lacks something."""
        now = time.monotonic()
        for old in [each for each, (_, at) in list(self._found.items()) if at < now - TROUBLED_S]:
            self._found.pop(old, None)
        self._found[question] = why, now

    def attempt(self, question: Hashable, ask: Callable[[], Found]) -> Found | None:
        """Ask. What could be read says nothing about what couldn't: that stays missing until it is read."""
        try:
            found = ask()
        except HookcoreError as error:
            if not self.text:
                logger.warning("hookcore: %s can't be read from ClickHouse: %s", self._what, error)
            self.note(question, str(error))
            return None
        self._found.pop(question, None)
        return found


class StoredPast(Past):
    """The stored data, as last seen. Any thread can ask. Unreadable data is None, and `trouble` says why."""

    def __init__(self, what: str) -> None:
        self._troubles = Troubles(what)
        self._stored, self._asked_at = -1, float("-inf")
        self._lock = threading.Lock()

    @property
    def together(self) -> Together | None:
        return None

    @property
    def trouble(self) -> str:
        return self._troubles.text

    @property
    def is_fresh(self) -> bool:
        """Whether how far everything is stored was seen just now."""
        return time.monotonic() - self._asked_at <= FRESH_S

    def stored_until(self) -> int:
        with self._lock:
            if not self.is_fresh:
                self._try_to_look(self._look)
            return self._stored

    def _try_to_look(self, look: Callable[[], None]) -> None:
        self._troubles.attempt("stored_until", look)
        self._asked_at = time.monotonic()

    @abstractmethod
    def _look(self) -> None:
        """Find out up to which step everything is stored."""
