"""Requests of a client over HTTP: connections are reused, and errors are the server's own messages."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from hookcore.delivery.dashboard.trust import Endpoint
from hookcore.errors import ArgumentError, ServerError
from hookcore.reading.answers.base import Wanted, decode

# Requests of a client over HTTP: connections are reused, and errors are the server's own messages.

STREAM_TIMEOUT_S: Final = 60.0  # a live stream sends a heartbeat every 15 s
FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 10.0
NEW_SERVER_S: Final = 30.0  # during which a restarted server may not know a run yet
_TRY_AGAIN: Final = (429, 502, 503, 504)
MAX_LINE: Final = 64 * 2**20
_BROKEN: Final = (OSError, http.client.HTTPException)
Carry = Callable[[str, str, bytes | None], tuple[int, bytes]]  # method, address, and body to status and answer


class Exchange:
    """Exchanges messages with one server. Can be used from several threads.

    `carry` answers requests in this process, in place of a connection.
    """

    def __init__(self, url: str, token: str | None, timeout_s: float, carry: Carry | None = None) -> None:
        self._carry = carry
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ArgumentError(f"url={url!r} is not a server's address: an address looks like http://127.0.0.1:8642")
        self.url = url.rstrip("/")
        self._endpoint, self._timeout_s = Endpoint.of(url, token or ""), timeout_s
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []  # as many as threads ever asked at once

    def __del__(self) -> None:
        if hasattr(self, "_idle"):  # missing if the address was refused
            self.close()

    def ask(
        self, kind: type[Wanted], method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Wanted:
        """Return the server's answer."""
        return decode(self.send(method, path, query, body), kind)

    def send(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> bytes:
        """Return the bytes of the answer. Parameters that are None are left out."""
        data = None if body is None else msgspec.json.encode(body)
        address = self._endpoint.prefix + quote(path) + query_of(query or {})
        try:
            status, answer = self._answer_to(method, address, data)
        except _BROKEN as error:
            raise self._unreachable(error) from None
        if status >= 400:
            raise ServerError(sentence_of(status, answer), status)
        return answer

    def _answer_to(self, method: str, address: str, data: bytes | None) -> tuple[int, bytes]:
        if self._carry is not None:
            return self._carry(method, address, data)
        idle = self._take()
        if idle is not None:
            try:
                return self._once(idle, method, address, data)
            except _BROKEN:
                # The server may have closed an idle connection. A request with changes is not sent twice.
                if method != "GET":
                    raise
        return self._once(self._connect(self._timeout_s), method, address, data)

    def close(self) -> None:
        """Close the connections. The next request opens a new one."""
        with self._lock:
            connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()

    def follow(self, path: str, query: Mapping[str, Any], last: str | None) -> Iterator[tuple[str, bytes]]:
        """Yield id and data of server-sent events forever; resume a broken stream."""
        wait_s, address, was_there = FIRST_WAIT_S, self._endpoint.prefix + path + query_of(query), False
        unknown_since = float("inf")
        while True:
            connection = None
            try:
                connection = self._connect(STREAM_TIMEOUT_S)
                for number, data in self._events(connection, address, last):
                    wait_s, last, was_there, unknown_since = FIRST_WAIT_S, number, True, float("inf")
                    yield number, data
            except _BROKEN as error:
                if not was_there:
                    raise self._unreachable(error) from None
                # It is gone, or is being restarted.
            except ServerError as error:
                is_unknown, now = error.status == 404 and was_there, time.monotonic()
                unknown_since = min(unknown_since, now) if is_unknown else unknown_since
                if error.status not in _TRY_AGAIN and not (is_unknown and now - unknown_since < NEW_SERVER_S):
                    raise
            finally:
                if connection is not None:
                    connection.close()
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    def _events(
        self, connection: http.client.HTTPConnection, address: str, last: str | None
    ) -> Iterator[tuple[str, bytes]]:
        headers = self._headers() | {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        connection.request("GET", address, headers=headers)
        answer = connection.getresponse()
        if answer.status >= 400:
            raise ServerError(sentence_of(answer.status, answer.read()), answer.status)
        fields: dict[str, str] = {}
        while line := answer.readline(MAX_LINE):
            text = line.decode("utf-8", "replace").rstrip("\r\n")  # the last line may be cut inside a letter
            name, _, value = text.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
            elif not text and fields.keys() >= {"id", "data"}:
                yield fields["id"], fields["data"].encode()
                fields = {}

    def _once(
        self, connection: http.client.HTTPConnection, method: str, address: str, data: bytes | None
    ) -> tuple[int, bytes]:
        headers = self._headers()
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, address, data, headers)
            answer = connection.getresponse()
            status, body = answer.status, answer.read()
        except BaseException:
            connection.close()  # half an answer must not be read as the start of the next one
            raise
        if connection.sock is not None:
            with self._lock:
                self._idle.append(connection)
        return status, body

    def _take(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _headers(self) -> dict[str, str]:
        token = self._endpoint.token
        return {"Accept": "*/*"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """Open a connection. With a token, the server must prove that it knows it."""
        connection = self._endpoint.connection(timeout_s)
        try:
            connection.connect()
            self._endpoint.require_proof(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _unreachable(self, error: Exception) -> ServerError:
        return ServerError(
            f"the server at {self.url} can't be reached ({error!r}): is it running, and is the address correct?"
        )


def query_of(query: Mapping[str, Any]) -> str:
    """Return the query string with its question mark. A list repeats its name."""
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        several: Sequence[Any] = value if isinstance(value, list) else [value]
        pairs += [(name, _text_of(item)) for item in several if item is not None]
    return f"?{urlencode(pairs)}" if pairs else ""


def sentence_of(status: int, answer: bytes) -> str:
    """Return the message of a server's error."""
    try:
        return str(msgspec.json.decode(answer)["error"])
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError):
        return f"the server answered {status}, and did not say why: is this address a hookcore dashboard's?"


def _text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
