"""What waits for the recorder's thread, which sends it as snapshots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from hookcore.recorder.errorlog import ErrorLog
from hookcore.records import Snapshot

Send = Callable[[Snapshot], None]
Item = TypeVar("Item")


@dataclass(slots=True, eq=False)
class Outgoing(ABC, Generic[Item]):
    """Items that become snapshots when the recorder's thread sends them, oldest first."""

    what: ClassVar[str]  # in the list of errors
    _errors: ErrorLog
    _waiting: deque[Item] = field(default_factory=deque, init=False)

    @property
    def waiting(self) -> bool:
        """Whether any item waits to be sent."""
        return bool(self._waiting)

    def ship(self, send: Send) -> None:
        """Send the items. Called on the recorder's thread."""
        while self._waiting:
            item = self._waiting[0]
            try:
                self._send(item, send)
            except Exception as error:
                self._errors.record(self.what, error)
                self._lose(item, error)
            finally:
                self._waiting.popleft()
                self._release(item)

    @abstractmethod
    def _send(self, item: Item, send: Send) -> None:
        """Send the snapshot of an item."""

    def _lose(self, item: Item, error: Exception) -> None:
        """Note that an item couldn't be sent."""

    def _release(self, item: Item) -> None:
        """Give back the memory that an item took."""
