"""Rejected requests, and how they are answered."""

from __future__ import annotations

import json
from typing import Final

from starlette.types import Scope, Send

from .headers import with_headers

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class RefusedError(Exception):
    """A rejected request: its status, and a sentence that says what to do."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


async def refuse(scope: Scope, send: Send, refusal: RefusedError) -> None:
    """Answer a rejected request."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.sentence[:120]})
        return
    body, kind = _body_of(scope, refusal)
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
    ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if scope["method"] not in SAFE_METHODS:
        headers.append((b"connection", b"close"))  # the body was not read
    await with_headers(send)({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _body_of(scope: Scope, refusal: RefusedError) -> tuple[bytes, bytes]:
    accepts = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    if refusal.status == 401 and b"text/html" in accepts:
        return LOGIN_NEEDED.encode(), b"text/html; charset=utf-8"
    return json.dumps({"error": refusal.sentence}).encode(), b"application/json"


# The link is followed from this server's own page, so a browser that came from another site sends its cookie.
LOGIN_NEEDED: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>Log in - hookcore</title>
<h1>Log in</h1>
<p>Open the login link that the server printed at startup, or create one with <code>hookcore link</code>.</p>
<p>Already logged in with this browser? <a href="">Continue</a>.</p>
</html>
"""
