"""Who is asking, and what they may do: tokens, browser sessions, one-time codes, and the user at the other end."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from hookcore.errors import ArgumentError
from hookcore.trust import proof_of

from .settings import ServerSettings

Role = Literal["owner", "reader"]
How = Literal["token", "cookie", "user", "open"]
SESSION_S: Final = 7 * 24 * 3600  # of a session, however much it is used
IDLE_S: Final = 24 * 3600.0  # after its last request
MAX_SESSIONS: Final = 1000
CODE_S: Final = 3600.0
MAX_CODES: Final = 100
ESTABLISHED: Final = "01"
# Whoever forwards requests of others says so; then the user at the other end is only the messenger, and who asks may be
# on any machine.
FORWARDED: Final = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Someone who may read, or as owner change everything; `how` says by what they were known."""

    role: Role
    how: How
    session: bytes = field(default=b"", compare=False)


@dataclass(slots=True)
class _Session:
    role: Role
    name: str  # of its cookie
    peer: str  # what the connection that logged in is known by
    until: float
    used: float


class Access:
    """The one place that decides who somebody is. docs/security.md has the model."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.time) -> None:
        if not settings.is_loopback and not settings.token:
            raise ArgumentError(
                f"host={settings.host!r} can be reached by other machines, and no token was given: give one, "
                f"or listen on 127.0.0.1"
            )
        self.settings = settings
        # Browsers send a cookie to every port of a host, so each server has a name of its own.
        self.cookie = f"hookcore-{secrets.token_hex(4)}"
        self._sessions: dict[bytes, _Session] = {}
        self._clock = clock
        self._codes: dict[bytes, tuple[Role, float]] = {}
        self._lock = threading.Lock()

    def know(
        self,
        headers: Mapping[bytes, bytes],
        is_user: Callable[[], bool],
        changes: bool,
        peer: Callable[[], str] = lambda: "",
    ) -> Visitor | None:
        """Return who is asking, or None for someone who may do nothing. `changes`: they want to change something.

        `is_user` finds out whether the user who runs the server is at the other end, `peer` what the connection is
        known by.
        """
        if not self.settings.token:
            return Visitor("owner", "open")  # an application in a program of the user's own, such as a test
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
        """What a token is good for."""
        roles: tuple[tuple[Role, str], ...] = (("owner", self.settings.token), ("reader", self.settings.read_token))
        found: Role | None = None
        for role, known in roles:
            if known and hmac.compare_digest(token, known.encode()) and found is None:
                found = role
        return found

    def proofs(self, nonce: str) -> list[str]:
        """Return for each token what proves that this server knows it."""
        return [proof_of(token, nonce) for token in (self.settings.token, self.settings.read_token) if token]

    def cookie_name(self, secure: bool, root: str = "") -> str:
        """Return the name of the cookie to set; over TLS one that no other server can set for us."""
        return f"{'__Secure-' if root else '__Host-'}{self.cookie}" if secure else self.cookie

    def open_session(self, role: Role, peer: str = "", name: str = "") -> str:
        """Log a browser in and return its cookie's value, which is good for connections of this peer alone."""
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
        """Log a browser out."""
        with self._lock:
            self._sessions.pop(session, None)

    def end_all_sessions(self) -> int:
        """Log every browser out and make every link useless that was not opened yet; return how many sessions ended."""
        with self._lock:
            ended = len(self._sessions)
            self._sessions, self._codes = {}, {}
            return ended

    def _is_open(self, session: _Session) -> bool:
        now = self._clock()
        return now < session.until and now - session.used < IDLE_S

    def _visitor_of_cookie(self, header: bytes, peer: Callable[[], str]) -> Visitor | None:
        # By hand: other servers of this machine set cookies too, and a parser that is strict gives up on theirs.
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
        """A code that logs one browser in, once, within an hour."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._codes = {key: value for key, value in self._codes.items() if value[1] > now}
            while len(self._codes) >= MAX_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[_digest(code)] = role, now + CODE_S
        return code

    def take_code(self, code: str) -> Role | None:
        """What a code is good for; it is used up."""
        with self._lock:
            role, until = self._codes.pop(_digest(code), (None, 0.0))
        return role if until > self._clock() else None


def _digest(code: str) -> bytes:
    # Looked up by its digest, so that the time it takes says nothing about the codes that there are.
    return hashlib.sha256(code.encode()).digest()


def is_same_user(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> bool:
    """Return whether the other end of a connection inside this machine belongs to the user who runs the server."""
    return user_of(client, server) == os.getuid()


def user_of(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> int | None:
    """Return the user at the other end of a connection inside this machine.

    Linux lists each socket with its owner. If nothing can be found out the answer is None.
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
    """An address as the kernel lists it: words of the machine's own order, in hexadecimal."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return ("".join(f"{word:08X}" for word in words) + f":{port:04X}").encode()


def _mapped(ends: bytes) -> bytes:
    """The same two IPv4 ends as a socket of IPv6 has them."""
    prefix = f"{0:016X}".encode() + f"{struct.unpack('=I', bytes.fromhex('0000FFFF'))[0]:08X}".encode()
    return b" ".join(prefix + end for end in ends.split(b" "))
