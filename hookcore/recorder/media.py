"""Images, texts, tables, and figures that the script logged, held until the recorder's thread sends them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hookcore.recorder.outgoing import Outgoing, Send
from hookcore.records import Snapshot, Tap

MAX_WAITING: Final = 256  # items
MAX_WAITING_BYTES: Final = 32 << 20


@dataclass(slots=True, eq=False)
class MediaQueue(Outgoing[Snapshot]):
    """Items in the order in which they were logged. If too many wait, newer ones are dropped and counted."""

    what = "logged media"
    _bytes: int = 0
    _count: threading.Lock = field(default_factory=threading.Lock)  # both threads change the number of bytes

    def put(self, name: str, step: int, media_type: str, data: bytes, whole: int) -> None:
        """Add an item. Called with the recorder's lock."""
        if len(self._waiting) >= MAX_WAITING or self._bytes + len(data) > MAX_WAITING_BYTES:
            self._errors.count_loss("media-dropped", "logged item", "dropped: too many were waiting to be sent")
            return
        with self._count:
            self._bytes += len(data)
        values = np.frombuffer(data, np.uint8)
        tap = Tap(name, "output")
        self._waiting.append(
            Snapshot(tap, step, time.time(), media_type, (max(whole, len(data)),), values, whole > len(data))
        )

    def _send(self, item: Snapshot, send: Send) -> None:
        send(item)

    def _release(self, item: Snapshot) -> None:
        with self._count:
            self._bytes -= item.values.nbytes
