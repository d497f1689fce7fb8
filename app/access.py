"""Who is asking, and what they may do: tokens, session cookies, one-time codes, and the user at the other end."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hookcore.errors import ArgumentError
from hookcore.trust import proof_of

from .settings import ServerSettings

Role = Literal["owner", "reader"]
How = Literal["token", "cookie", "user", "open"]
SESSION_S: Final = 30 * 24 * 3600
CODE_S: Final = 3600.0
MOST_CODES: Final = 100
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


class Access:
    """The one place that decides who somebody is. docs/security.md has the model."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.time) -> None:
        if not settings.is_loopback and not settings.token:
            raise ArgumentError(
                f"host={settings.host!r} can be reached by other machines, and no token was given: give one, "
                f"or listen on 127.0.0.1"
            )
        self.settings = settings
        self.cookie = f"hookcore-{settings.port}"  # browsers keep no cookies apart by port
        self._clock = clock
        self._codes: dict[bytes, tuple[Role, float]] = {}
        self._lock = threading.Lock()

    def know(self, headers: Mapping[bytes, bytes], is_user: Callable[[], bool], changes: bool) -> Visitor | None:
        """Who is asking; None for somebody who may nothing. `changes` says that they want to change something.

        `is_user` finds out whether the user who runs the server is at the other end.
        """
        if not self.settings.token:
            return Visitor("owner", "open")  # an application in a program of the user's own, such as a test
        shown = headers.get(b"authorization")
        if shown is not None:
            role = self._role_of_bearer(shown)
            return Visitor(role, "token") if role else None
        role = self._role_of_cookie(headers.get(b"cookie", b""))
        if role:
            return Visitor(role, "cookie")
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

    def make_session(self, role: Role) -> str:
        """The value of a session's cookie. It is signed, so that nothing needs to be kept, and ends with the token."""
        said = f"{role}.{int(self._clock()) + SESSION_S}"
        return f"{said}.{self._sign(said)}"

    def _role_of_cookie(self, header: bytes) -> Role | None:
        # By hand: other servers of this machine set cookies too, and a parser that is strict gives up on theirs.
        name = self.cookie.encode() + b"="
        found = (part.strip() for part in header.split(b";"))
        value = next((part[len(name) :] for part in found if part.startswith(name)), b"")
        said, _, signature = value.decode("latin-1").rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(said).encode()):
            return None
        role, _, until = said.partition(".")
        if not until.isdecimal() or int(until) < self._clock():
            return None
        return "owner" if role == "owner" else "reader"

    def _sign(self, said: str) -> str:
        return hmac.new(self.settings.token.encode(), f"session {self.cookie} {said}".encode(), "sha256").hexdigest()

    def make_code(self, role: Role = "owner") -> str:
        """A code that logs one browser in, once, within an hour."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._codes = {key: value for key, value in self._codes.items() if value[1] > now}
            while len(self._codes) >= MOST_CODES:
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
    """Whether the other end of a connection inside this machine belongs to the user who runs the server.

    Linux lists each socket with its owner. Where nothing can be found out the answer is no.
    """
    if client is None or server is None or server[1] is None:
        return False
    try:
        wanted = {_as_listed(*client) + b" " + _as_listed(server[0], server[1])}
    except (OSError, ValueError):
        return False
    ends = {end.decode() for end in wanted} | {_mapped(end).decode() for end in wanted if len(end) < 40}
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if f"{fields[1]} {fields[2]}" in ends and fields[3] == ESTABLISHED:
                return int(fields[7]) == os.getuid()
    return False


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
