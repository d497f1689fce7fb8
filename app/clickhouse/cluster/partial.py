"""Says with each answer that it may lack something because a part of ClickHouse is away: a header for all formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...runs import Run, Runs

HEADER: Final = "hookcore-partial"
MAX_CHARACTERS: Final = 1000
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STALE: Final = frozenset({b"etag", b"cache-control"})  # such an answer must not be taken for the whole one later


class Partial:
    """ASGI middleware: adds the header where it is true, and keeps clients from storing the answer."""

    def __init__(self, app: ASGIApp, runs: Runs) -> None:
        self._app, self._runs = app, runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and check at the end what was missing."""
        if scope["type"] != "http" or "/static/" in scope["path"]:
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and (text := self._missing(scope)):
                kept = [each for each in message.get("headers", []) if each[0].lower() not in _STALE]
                message = {**message, "headers": [*kept, (HEADER.encode(), text)]}
            await send(message)

        await self._app(scope, receive, send_marked)

    def _missing(self, scope: Scope) -> bytes:
        asked = [self._runs.partial, *dict.fromkeys(run.partial for run in self._asked(scope))]
        text = " ".join(" ".join(filter(None, asked)).split())
        return text.encode("ascii", "replace")[:MAX_CHARACTERS]

    def _asked(self, scope: Scope) -> Iterator[Run]:
        """Yield the runs that an address names, or the newest one, which is meant if it names none."""
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        names = [*scope["path"].split("/"), *(value for _, value in query)]
        found = [run for name in names if _ID.fullmatch(name) and (run := self._runs.get(name)) is not None]
        yield from found or self._runs.all()[:1]
