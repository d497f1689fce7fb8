"""Trust in servers: by certificate over TLS, and with a token by a proof that the server knows it too."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import secrets
import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from hookcore.errors import ArgumentError, ServerError

PROOF_PATH: Final = "/api/v1/identity"
MAX_NONCE: Final = 100
_BUSY: Final = frozenset({429, 502, 503, 504})
_MAX_ANSWER: Final = 10_000
_ROUNDS: Final = 100_000  # anyone can ask a server for a proof, so guessing a token from one must be slow


def trusted() -> ssl.SSLContext:
    """Return the TLS context of a client. Raises ArgumentError if HOOKCORE_CA_FILE has no certificates."""
    file = os.environ.get("HOOKCORE_CA_FILE", "").strip() or None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:  # includes ssl.SSLError
        raise ArgumentError(
            f"can't use HOOKCORE_CA_FILE={file!r} ({error.strerror or error}): give a file with PEM certificates"
        ) from None


def proof_of(token: str, nonce: str) -> str:
    """Return the answer to a challenge, which only a party that knows the token can compute."""
    return hmac.new(_key_of(token), f"hookcore identity {nonce}".encode(), "sha256").hexdigest()


@lru_cache(maxsize=8)
def _key_of(token: str) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", token.encode("utf-8", "surrogateescape"), b"hookcore identity", _ROUNDS)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, and the token that it must know (if any)."""

    host: str
    port: int | None
    prefix: str  # of every path
    secure: bool
    token: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str, token: str) -> Endpoint:
        """Return the endpoint at an address."""
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port, parts.path.rstrip("/"), parts.scheme == "https", token)

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection, which isn't open yet. It never reconnects by itself: a proof holds only once."""
        if self.secure:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.host, self.port, timeout=timeout_s, context=trusted()
            )
        else:
            made = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        made.auto_open = 0
        return made

    def require_proof(self, connection: http.client.HTTPConnection) -> None:
        """Check that the other end of an open connection knows the token; raise ServerError if it doesn't prove it.

        Only a challenge is sent, not the token itself.
        """
        if self.token:
            _require_proof(connection, self.prefix, self.token)


def _require_proof(connection: http.client.HTTPConnection, prefix: str, token: str) -> None:
    nonce = secrets.token_urlsafe(32)
    connection.request("GET", f"{prefix}{PROOF_PATH}?nonce={nonce}", headers={"Accept": "application/json"})
    with connection.getresponse() as response:
        body, status = response.read(_MAX_ANSWER), response.status
    why = _flaw_in(body, status, proof_of(token, nonce)) or ("it closed the connection" if not connection.sock else "")
    if why:
        raise ServerError(
            f"the server at {connection.host}:{connection.port} did not prove that it knows this token ({why}), so "
            "neither the token nor data was sent: use that server's token, or check the address",
            status if status in _BUSY else 401,
        )


def _flaw_in(body: bytes, status: int, expected: str) -> str:
    try:
        proofs = [str(proof).encode("utf-8", "replace") for proof in json.loads(body)["proofs"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"it answered {status}"
    return "" if any([hmac.compare_digest(expected.encode(), proof) for proof in proofs]) else "its proof is wrong"
