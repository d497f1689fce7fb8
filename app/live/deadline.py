"""A write deadline for clients that stop reading. ASGI has no way to set one, but uvicorn's protocols do."""

from __future__ import annotations

import asyncio
from typing import Any, Final

WRITE_S: Final = 10.0


class WriteDeadline:
    """Mixed into a protocol, before it: aborts a connection whose client has read nothing for `write_s` seconds.

    A slow client that reads something now and then keeps its connection. A plain close isn't enough: it first waits
    until everything in the buffer has been read, which never happens.
    """

    write_s: float = WRITE_S
    transport: asyncio.Transport
    _write_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Handle a full buffer of the transport."""
        super().pause_writing()  # type: ignore[misc]
        self._stop_write_timer()
        self._look_again(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Handle enough room in the buffer of the transport."""
        self._stop_write_timer()
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, *arguments: Any) -> None:
        """Handle the end of the connection."""
        self._stop_write_timer()
        super().connection_lost(*arguments)  # type: ignore[misc]

    def _look_again(self, before: int) -> None:
        self._write_timer = asyncio.get_running_loop().call_later(self.write_s, self._judge, before)

    def _judge(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting < before:
            self._look_again(waiting)
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
