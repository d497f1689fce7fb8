"""uvicorn's protocols, extended with deadlines and limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ..settings import ServerSettings
from .guard.security import HEADERS, OWNER, PEER

WRITE_S: Final = 10.0


class WriteDeadline:
    """Mixed into a protocol, before it: aborts a connection whose client has read nothing for `write_s` seconds.

    A slow client that reads something now and then keeps its connection. A plain close isn't enough: it first waits
    until everything in the buffer has been read, which never happens.
    """

    write_s: float = WRITE_S
    transport: asyncio.Transport
    write_timer: asyncio.TimerHandle | None = None

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
        self.write_timer = asyncio.get_running_loop().call_later(self.write_s, self.judge, before)

    def judge(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting < before:
            self._look_again(waiting)
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self.write_timer is not None:
            self.write_timer.cancel()
            self.write_timer = None


MAX_HEAD_BYTES: Final = 65_536
MAX_MESSAGE: Final = 64 * 2**10  # bytes of one message that a page sends


class SocketProtocol(WriteDeadline, WebSocketsSansIOProtocol):
    """A WebSocket that is closed if its peer doesn't read."""

    close_timeout = 0.3

    def send_receive_event_to_app(self) -> None:
        """Pass on a message, unless its text isn't UTF-8, for which uvicorn would log a traceback."""
        if self.curr_msg_data_type == "text" and not _is_utf8(self.frames):
            self.frames = []
            self.conn.send_close(1007, "the text of a message was not UTF-8")
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()


def _is_utf8(pieces: list[bytes]) -> bool:
    try:
        b"".join(pieces).decode()
    except UnicodeDecodeError:
        return False
    return True


class HttpProtocol(WriteDeadline, HttpToolsProtocol):
    """A connection on which a request must arrive in time, and that is closed if there are too many.

    uvicorn waits for a request as long as its peer likes, and restarts its keep-alive time with every byte.
    """

    settings: ServerSettings = ServerSettings()
    _receive_timer: asyncio.TimerHandle | None = None
    _in_head = True
    _is_arriving = False
    _nbytes = 0
    since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or reject it if there are too many."""
        self.app_state = {**self.app_state, PEER: {}}  # facts about the peer, for all its requests
        self.since = self.loop.time()
        is_full = len(self.connections) >= self.settings.max_connections and not self._evict()
        super().connection_made(transport)
        if is_full:
            count = self.settings.max_connections
            self._answer(503, f"{count} connections are open, which is the maximum: try again in a moment")
            return
        self._start_receiving()

    def connection_lost(self, *arguments: Any) -> None:
        self._stop_receiving()
        super().connection_lost(*arguments)

    def data_received(self, data: bytes) -> None:
        """Check the size of the headers and pass the data on."""
        if self._receive_timer is None and not self._is_busy:
            self._start_receiving()
        self._nbytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._nbytes > MAX_HEAD_BYTES:
            self._answer(431, f"the headers are longer than {MAX_HEAD_BYTES} bytes: send less")
        elif self._nbytes > 2 * self.settings.max_body + 2**20:
            self.transport.abort()  # data that the application did not count: padding, trailers

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._is_arriving = True
        self._nbytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_arriving = False
        self._stop_receiving()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        if self._is_arriving and self._receive_timer is None and not self.transport.is_closing():
            self._start_receiving()  # the rest of a request that was answered early, or a following request

    @property
    def _is_busy(self) -> bool:
        """Return whether an answer is being prepared."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def may_be_evicted(self) -> bool:
        """Return whether closing the connection loses nothing that the peer waits for."""
        return not self._is_busy and not self.transport.is_closing()

    def _start_receiving(self) -> None:
        self._receive_timer = self.loop.call_later(self.settings.receive_s, self._came_too_late)

    def _stop_receiving(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _came_too_late(self) -> None:
        self._receive_timer = None
        if self.transport.is_closing():
            return
        if self._is_busy:
            self.transport.abort()  # the application waits for the body, and learns that the client is gone
        else:
            self._answer(408, f"no complete request arrived within {self.settings.receive_s:g} s: connect again")

    def _evict(self) -> bool:
        """Close the connection that has waited longest, one of an owner last. Return False if all are busy."""
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, HttpProtocol) and connection.may_be_evicted
        ]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: (OWNER in each.app_state[PEER], each.since))
        self.connections.discard(cast(Any, oldest))
        oldest.transport.abort()
        return True

    def _answer(self, status: int, sentence: str) -> None:
        """Answer without the application, and close the connection."""
        body = json.dumps({"error": sentence}).encode()
        lines = [f"HTTP/1.1 {status} Refused", *(f"{name}: {value}" for name, value in HEADERS.items())]
        lines += ["content-type: application/json", f"content-length: {len(body)}", "connection: close"]
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.transport.close()


def protocol_for(settings: ServerSettings) -> type[HttpProtocol]:
    """Return the protocol class with the limits of these settings."""
    return type("HttpProtocol", (HttpProtocol,), {"settings": settings})


__all__ = ["MAX_MESSAGE", "HttpProtocol", "SocketProtocol", "protocol_for"]
