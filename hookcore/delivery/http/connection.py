"""A connection to a server that has proved its identity, the results of a request, and when the next may be sent."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

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

Reason = Literal["queue-full", "refused", "too-large", "unsendable", "closed"]  # of items that are dropped
REFUSALS: Final[dict[int, Reason]] = {400: "refused", 413: "too-large", 422: "refused"}  # of what a batch contains


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


PATIENCE: Final = 10  # times as long, if a local server holds the connection: it is slow, not absent
WRITING: Final = 5  # times as long as any close, if the receiver answers and only has to write its data
SIGN_OF_LIFE_S: Final = 1.0
UNREAD_S: Final = 0.25  # between requests, while nobody looks at the run: each costs the server as much as many frames
FIRST_LOOK_S: Final = 0.005  # before the server of an ended run is asked whether it has saved everything; doubles
FIRST_PAUSE_S: Final = 0.1
LONGEST_S: Final = 10.0  # unless a sink says otherwise
MAX_PAUSE_S: Final = 30.0
MAX_PAUSE_HERE_S: Final = 1.0  # for a local server: a refused connection costs nothing there
MAX_PAUSE_AT_END_S: Final = 0.2
WARN_AFTER_S: Final = 10.0  # without an answer


class Pause:
    """A pause after each failure: random, up to a limit that doubles."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0  # since the last success
        self.until = float("-inf")
        self._clock = clock
        self._random = random.Random()  # a separate generator, because the global one belongs to the training

    @property
    def is_over(self) -> bool:
        return self._clock() >= self.until

    @property
    def rest_s(self) -> float:
        return max(0.0, self.until - self._clock())

    def fail(self, at_least_s: float = 0.0, longest_s: float = LONGEST_S, most_s: float = MAX_PAUSE_S) -> None:
        """Begin a pause of at most `longest_s`, or of `most_s` if the server asks for more."""
        limit = min(longest_s, FIRST_PAUSE_S * 2.0 ** min(self.failures, 20))
        self.failures += 1
        self.until = self._clock() + min(most_s, max(self._random.uniform(0, limit), at_least_s))

    def succeed(self) -> None:
        """End the pauses."""
        self.failures, self.until = 0, float("-inf")


class Retries:
    """The times of one sink's requests. Those at the end are set by the thread that closes it."""

    def __init__(self) -> None:
        self.pause = Pause()
        self._was_absent = False  # whether the newest request found no server
        self.is_followed = True  # whether somebody may look at the run
        self.is_slow = False  # whether a local server accepted the newest request and let it time out
        self._fine_at = 0.0  # time of the last answer
        self._sent_at = float("-inf")
        self._news_at = float("-inf")  # time of the last request that was more than a sign of life
        self._look_s = FIRST_LOOK_S
        self._writing_s = 0.0
        self._ends_at = float("inf")
        self._gives_up_at = float("inf")

    def due_at(self, has_news: bool, can_wait: bool = False) -> float:
        """Return when the next request is due. `can_wait`: the news is nothing that only a reader would see at once."""
        now = time.monotonic()
        if self.pause.until > now:
            return self.pause.until
        if not has_news:
            return self._sent_at + (self._look_s if self.is_ending else SIGN_OF_LIFE_S)
        return max(now, self._news_at + UNREAD_S) if can_wait and not (self.is_followed or self.is_ending) else now

    def note_sent(self, has_news: bool) -> None:
        """Note that a request is sent now, which may be only a sign of life."""
        self._sent_at = time.monotonic()
        if has_news:
            self._news_at, self._look_s = self._sent_at, FIRST_LOOK_S
        else:
            self._look_s = min(2 * self._look_s, MAX_PAUSE_AT_END_S)

    def note_answer(self) -> None:
        """Note that the server has answered, or that waiting for it begins."""
        self._fine_at = time.monotonic()

    def succeed(self) -> None:
        """End the pauses."""
        self.pause.succeed()
        self._was_absent = False

    def fail(self, at_least_s: float, longest_s: float, is_absent: bool) -> bool:
        """Begin a pause: random, up to a limit that doubles. Return whether the server has been absent for long.

        A server that has just come back is asked again soon, however long it was absent: it may still be starting.
        """
        if self._was_absent and not is_absent:
            self.pause.failures = 0
        self._was_absent = is_absent
        self.pause.fail(at_least_s, longest_s, MAX_PAUSE_AT_END_S if self.is_ending else MAX_PAUSE_S)
        return time.monotonic() - self._fine_at > WARN_AFTER_S

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """Whether the sink is being closed."""
        return self._ends_at != float("inf")

    def end(self, close_s: float, writing_s: float) -> None:
        """Set the deadlines of a sink that is closed now, and end its pause."""
        now, self._writing_s = time.monotonic(), writing_s
        self._ends_at = min(self._ends_at, now + close_s)
        self._gives_up_at = self._ends_at + (PATIENCE - 1) * close_s
        self.pause.until = min(self.pause.until, now)

    def deadline(self, is_held: bool, has_news: bool) -> float:
        """Return until when to send. `is_held`: whether a local server holds the connection."""
        if not (is_held or self.is_slow):
            return self._ends_at
        # One that has everything may just be starting to write, but its disk may also take nothing more.
        return self._gives_up_at if has_news else max(self._ends_at, self._news_at + self._writing_s)
