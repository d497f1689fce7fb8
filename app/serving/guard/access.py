"""Authentication: tokens, sessions, one-time codes, the local user; places for readers, and the last use."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from hookcore.delivery.dashboard.trust import proof_of
from hookcore.errors import ArgumentError

from ...settings import ServerSettings

# Authentication: tokens, browser sessions, one-time codes, and the local user at the other end of a connection.

Role = Literal["owner", "reader"]
How = Literal["token", "cookie", "user", "open"]
SESSION_S: Final = 7 * 24 * 3600  # lifetime of a session, however much it is used
IDLE_S: Final = 24 * 3600.0  # lifetime after the last request
MAX_SESSIONS: Final = 1000
CODE_S: Final = 3600.0
MAX_CODES: Final = 100
ESTABLISHED: Final = "01"
# A proxy adds one of these headers. The user at the other end is then only the proxy's, and the request may come from
# any machine.
FORWARDED: Final = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Someone with access: a reader, or an owner, who may change everything. `how` is the means of authentication."""

    role: Role
    how: How
    session: bytes = field(default=b"", compare=False)


@dataclass(slots=True)
class _Session:
    role: Role
    name: str  # of its cookie
    peer: str  # identifies the connection that logged in
    until: float
    used: float


class Access:
    """Decides who sends a request. docs/security.md describes the model."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.time) -> None:
        if not settings.is_loopback and not settings.token:
            raise ArgumentError(
                f"host={settings.host!r} is reachable from other machines, but there is no token: set a token, "
                f"or listen on 127.0.0.1"
            )
        self.settings = settings
        # Browsers send a cookie to every port of a host, so each server has its own cookie name.
        self.cookie = f"hookcore-{secrets.token_hex(4)}"
        self._sessions: dict[bytes, _Session] = {}
        self._clock = clock
        self.codes: dict[bytes, tuple[Role, float]] = {}
        self._lock = threading.Lock()

    def know(
        self,
        headers: Mapping[bytes, bytes],
        is_user: Callable[[], bool],
        changes: bool,
        peer: Callable[[], str] = lambda: "",
    ) -> Visitor | None:
        """Return the visitor, or None without access. `changes`: the request changes something.

        `is_user` checks whether the user who runs the server is at the other end; `peer` identifies the connection.
        """
        if not self.settings.token:
            return Visitor("owner", "open")  # an application inside the user's own program, such as a test
        shown = headers.get(b"authorization")
        if shown is not None:
            role = self._role_of_bearer(shown)
            return Visitor(role, "token") if role else None
        visitor = self._visitor_of_cookie(headers.get(b"cookie", b""), peer)
        if visitor:
            return visitor
        if not self.settings.is_loopback or not FORWARDED.isdisjoint(headers):
            return None
        reads_freely = not self.settings.read_token
        if reads_freely and not changes:
            return Visitor("reader", "open")
        if is_user():
            return Visitor("owner", "user")
        return Visitor("reader", "open") if reads_freely else None

    def _role_of_bearer(self, shown: bytes) -> Role | None:
        scheme, _, token = shown.partition(b" ")
        return self.role_of_token(token.strip()) if scheme.lower() == b"bearer" else None

    def role_of_token(self, token: bytes) -> Role | None:
        """Return what a token gives access to, or None."""
        roles: tuple[tuple[Role, str], ...] = (("owner", self.settings.token), ("reader", self.settings.read_token))
        found: Role | None = None
        for role, known in roles:
            if known and hmac.compare_digest(token, known.encode()) and found is None:
                found = role
        return found

    def proofs(self, nonce: str) -> list[str]:
        """Return one proof per token that this server knows the token."""
        return [proof_of(token, nonce) for token in (self.settings.token, self.settings.read_token) if token]

    def cookie_name(self, secure: bool, root: str = "") -> str:
        """Return the name of the session cookie; over TLS, one that no other server can set."""
        return f"{'__Secure-' if root else '__Host-'}{self.cookie}" if secure else self.cookie

    def open_session(self, role: Role, peer: str = "", name: str = "") -> str:
        """Log in a browser and return its cookie value, which is valid only for this peer."""
        value, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            self._sessions = {key: each for key, each in self._sessions.items() if self._is_open(each)}
            while len(self._sessions) >= MAX_SESSIONS:
                del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].used)]
            self._sessions[_digest(value)] = _Session(role, name or self.cookie, peer, now + SESSION_S, now)
        return value

    def has_session(self, session: bytes) -> bool:
        """Return whether a visitor's session is still open."""
        with self._lock:
            return session in self._sessions and self._is_open(self._sessions[session])

    def end_session(self, session: bytes) -> None:
        """Log out a browser."""
        with self._lock:
            self._sessions.pop(session, None)

    def end_all_sessions(self) -> int:
        """Log out all browsers, invalidate all unused login links, and return the number of ended sessions."""
        with self._lock:
            ended = len(self._sessions)
            self._sessions, self.codes = {}, {}
            return ended

    def _is_open(self, session: _Session) -> bool:
        now = self._clock()
        return now < session.until and now - session.used < IDLE_S

    def _visitor_of_cookie(self, header: bytes, peer: Callable[[], str]) -> Visitor | None:
        # Parsed by hand: other servers on this machine also set cookies, and a strict parser would fail on theirs.
        for part in header.split(b";"):
            name, _, value = part.strip().partition(b"=")
            if not name.endswith(self.cookie.encode()):
                continue
            key = _digest(value.decode("latin-1"))
            with self._lock:
                session = self._sessions.get(key)
                if session is None or session.name.encode() != name or not self._is_open(session):
                    continue
                if session.peer == peer():
                    session.used = self._clock()
                    return Visitor(session.role, "cookie", key)
        return None

    def make_code(self, role: Role = "owner") -> str:
        """Return a one-time code that logs in one browser within an hour."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self.codes = {key: value for key, value in self.codes.items() if value[1] > now}
            while len(self.codes) >= MAX_CODES:
                del self.codes[next(iter(self.codes))]
            self.codes[_digest(code)] = role, now + CODE_S
        return code

    def take_code(self, code: str) -> Role | None:
        """Redeem a code and return its role, or None."""
        with self._lock:
            role, until = self.codes.pop(_digest(code), (None, 0.0))
        return role if until > self._clock() else None


def _digest(code: str) -> bytes:
    # Looked up by digest, so that the timing reveals nothing about existing codes.
    return hashlib.sha256(code.encode()).digest()


def user_of(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> int | None:
    """Return the user at the other end of a connection inside this machine, or None if it can't be determined.

    Linux lists each socket with its owner.
    """
    if client is None or server is None or server[1] is None:
        return None
    try:
        wanted = {_as_listed(*client) + b" " + _as_listed(server[0], server[1])}
    except (OSError, ValueError):
        return None
    ends = {end.decode() for end in wanted} | {_mapped(end).decode() for end in wanted if len(end) < 40}
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if f"{fields[1]} {fields[2]}" in ends and fields[3] == ESTABLISHED:
                return int(fields[7])
    return None


def _as_listed(host: str, port: int) -> bytes:
    """Format an address as the kernel lists it: words in native byte order, in hexadecimal."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return ("".join(f"{word:08X}" for word in words) + f":{port:04X}").encode()


def _mapped(ends: bytes) -> bytes:
    """Format the same two IPv4 ends as an IPv6 socket has them."""
    prefix = f"{0:016X}".encode() + f"{struct.unpack('=I', bytes.fromhex('0000FFFF'))[0]:08X}".encode()
    return b" ".join(prefix + end for end in ends.split(b" "))


class Places:
    """A limited number of places. A reader is named by an address, an owner is None. Used in one thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._readers: Counter[str | None] = Counter()  # places by the address of a reader

    def is_full(self, reader: str | None) -> bool:
        """Return whether there is no place for a reader or an owner now."""
        if self.taken >= self.most:
            return True
        readers = self.taken - self._readers[None]
        return reader is not None and (
            readers >= self.most - self.most // 4 or self._readers[reader] >= max(1, self.most // 2)
        )

    @contextmanager
    def hold(self, reader: str | None) -> Generator[None, None, None]:
        """Take a place while the block runs, whether or not there is one."""
        self.taken += 1
        self._readers[reader] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._readers[reader] -= 1
            if not self._readers[reader]:
                del self._readers[reader]


class Usage:
    """The last use by trainers and readers. A reader is any request or open stream about runs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.trainer_at = self.reader_at = clock()
        self.open = 0  # requests and streams of readers that are under way

    def note_trainer(self) -> None:
        """Note that a trainer sent something."""
        self.trainer_at = self.clock()

    @contextmanager
    def reading(self) -> Generator[None, None, None]:
        """Count a reader's request while it is open."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            self.reader_at = self.clock()

    @property
    def idle_s(self) -> float:
        """Return for how many seconds the server has not been used."""
        return 0.0 if self.open else self.clock() - max(self.trainer_at, self.reader_at)
