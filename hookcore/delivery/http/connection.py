"""A connection to a server that has proved its identity, and the possible results of a request."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from dataclasses import dataclass
from typing import Final

from hookcore.config import is_loopback
from hookcore.delivery.dashboard.trust import Endpoint
from hookcore.errors import ServerError
from hookcore.records.wire import CONTENT_TYPE

CONNECT_S: Final = 1.0
REQUEST_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 4 * 2**20
COMPRESS_FROM_BYTES: Final = 500
SLOWEST: Final = 1_000_000  # bytes per second: a large request may take longer
_PATH: Final = "/api/v1/ingest"


class NotSentError(Exception):
    """There is no connection: no byte of the request was sent."""


class UnansweredError(Exception):
    """The request was sent in part or completely, and no answer arrived."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: int
    body: bytes
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server, and its token."""

    url: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


class Connection:
    """Posts bodies to one server, in order, from one thread."""

    def __init__(self, address: Address, connect_s: float = CONNECT_S, request_s: float = REQUEST_S) -> None:
        self.address = address
        self._connect_s = connect_s
        self._request_s = request_s
        self._endpoint = Endpoint.of(address.url, address.token)
        self.is_here = is_loopback(self._endpoint.host)
        self._http: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None

    @property
    def stands(self) -> bool:
        """Whether the connection is open."""
        return self._socket is not None

    def post(self, body: bytes) -> Reply:
        """Send a body and return the answer; raises NotSentError or UnansweredError."""
        connection = self._http or self._connect()
        try:
            packed, headers = self._packed(body)
            connection.sock.settimeout(self._request_s + len(packed) / SLOWEST)
            connection.request("POST", self._endpoint.prefix + _PATH, packed, headers)
            with connection.getresponse() as response:
                data = response.read(MAX_ANSWER_BYTES)
                reply = Reply(response.status, data, _seconds(response.headers.get("Retry-After", "")))
                closes = response.will_close or not response.isclosed()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnansweredError(_said(error)) from error
        except ValueError as error:  # a token that no header can contain
            self.close()
            raise NotSentError(_said(error)) from None
        if closes:
            self.close()
        return reply

    def _connect(self) -> http.client.HTTPConnection:
        """Open a connection. Only a challenge is sent before the server has proved that it knows the token."""
        try:
            self._http = connection = self._endpoint.connection(self._connect_s)
            connection.connect()
            self._socket = connection.sock
            connection.sock.settimeout(self._request_s)
            self._endpoint.require_proof(connection)
        except (OSError, http.client.HTTPException, ValueError, ServerError) as error:
            self.close()
            raise NotSentError(_said(error)) from error
        return connection

    def _packed(self, body: bytes) -> tuple[bytes, dict[str, str]]:
        headers = {"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE, "User-Agent": "hookcore"}
        if self.address.token:
            headers["Authorization"] = f"Bearer {self.address.token}"
        if not self.is_here and len(body) >= COMPRESS_FROM_BYTES:
            # Needed only to send over a network.
            import zstandard

            body = zstandard.ZstdCompressor(level=1).compress(body)
            headers["Content-Encoding"] = "zstd"
        return body, headers

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        connection, self._http, self._socket = self._http, None, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def interrupt(self) -> None:
        """Stop waiting for an answer; callable from another thread."""
        current = self._socket
        if current is not None:
            with contextlib.suppress(OSError):
                # Below TLS, whose state belongs to the thread that uses it.
                socket.socket.shutdown(current, socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close the descriptor in a forked child, without a message to the server; the parent keeps using it."""
        current, self._http, self._socket = self._socket, None, None
        if current is not None:
            with contextlib.suppress(OSError):
                os.close(current.detach())


def _said(error: Exception) -> str:
    text = str(error)
    if isinstance(error, ServerError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
