"""Notification of followers."""

from __future__ import annotations

import asyncio
import threading

import anyio


class Changes:
    """Notifies followers of new data. A follower keeps a version number, never a queue."""

    def __init__(self) -> None:
        self.version = 0
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def tell(self) -> None:
        """Announce new data, from any thread."""
        with self._lock:
            self.version += 1
            waiting, self._waiting = self._waiting, {}
        for event, loop in waiting.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait_beyond(self, version: int, timeout_s: float) -> int:
        """Return the version once it is above `version`, or the current one after the timeout."""
        event = asyncio.Event()
        with self._lock:
            if self.version > version:
                return self.version
            self._waiting[event] = asyncio.get_running_loop()
        try:
            with anyio.move_on_after(timeout_s):
                await event.wait()
        finally:
            with self._lock:
                self._waiting.pop(event, None)
        return self.version
