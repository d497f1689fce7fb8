"""Server-sent events for scripts: all news of a run, from exactly where a reader stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Final

import anyio
from fastapi import APIRouter, Header, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from hookcore.store import STAT_NAMES, checks

from ..runs import Run
from .news import StreamQuery, begin, block, has_all, make_blocks
from .publisher import ChangeTicker, Cursor, Mark, Publisher, publisher_of, reader_of
from .views import check_match

HEARTBEAT_S: Final = 15.0
NEWER_RUN_S: Final = 1.0  # how often to look for a newer run
SEND_S: Final = 60.0  # the last resort, for a server without WriteDeadline
DEFAULT_STATS: Final = ("rms", "min", "max", "nan", "inf")

router = APIRouter()


class LiveResponse(StreamingResponse):
    """A stream that takes one of the places for clients for its duration."""

    def __init__(self, publisher: Publisher, content: AsyncGenerator[bytes, None]) -> None:
        headers = {"Cache-Control": "private, no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._publisher, self._content = publisher, content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._content):
            with self._publisher.client(reader_of(scope, scope["app"].state)) as room:
                if room:
                    await super().__call__(scope, receive, send)
                    return
            headers = {"Retry-After": "5"}
            await JSONResponse({"error": self._publisher.why_full()}, 503, headers)(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with anyio.fail_after(SEND_S):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            return  # it stopped reading; the server closes the rest of the connection


@router.get(
    "/api/v1/live",
    status_code=200,  # OpenAPI can't derive it from LiveResponse
    response_class=LiveResponse,
    responses={200: {"content": {"text/event-stream": {}}}, 503: {"description": "too many live streams"}},
)
def live(
    request: Request,
    run: Annotated[str | None, Query(max_length=200, description="a run's id; default: the newest run")] = None,
    kind: Annotated[str | None, Query(max_length=50)] = None,
    stat: Annotated[str | None, Query(max_length=500, description='names of stats with commas, or "all"')] = None,
    match: Annotated[str | None, Query(max_length=1000, description="a glob on the module's path, or re:")] = None,
    hz: Annotated[float, Query(ge=1, le=30, description="maximum frames per second")] = 20.0,
    last_event_id: Annotated[str | None, Header(max_length=1000)] = None,
) -> LiveResponse:
    """Send news as server-sent events; see docs/live.md. `Last-Event-ID` continues exactly after that event."""
    publisher = publisher_of(request.app)
    checks.require_kind(kind)
    check_match(match)
    query = StreamQuery(kind, match, _stats_of(stat), hz)
    if run is not None and publisher.find(run) is None:
        known = [each.id for each in publisher.runs.all()]
        raise HTTPException(404, checks.unknown("run", run, known))
    return LiveResponse(publisher, _stream(publisher, run, query, Cursor.read(last_event_id or "")))


def _stats_of(given: str | None) -> tuple[str, ...]:
    if given is None:
        return DEFAULT_STATS
    if given == "all":
        return STAT_NAMES
    chosen = tuple(dict.fromkeys(filter(None, given.split(","))))
    for name in chosen:
        checks.require("stat", name, STAT_NAMES)
    return chosen


async def _stream(
    publisher: Publisher, run_id: str | None, query: StreamQuery, cursor: Cursor | None
) -> AsyncGenerator[bytes, None]:
    yield b"retry: 1000\n\n"
    with publisher.hearing() as wake:
        while not publisher.stopping:
            run = publisher.find(run_id)
            if run is None:
                if run_id is not None:
                    return
                async for beat in _wait_for_a_run(publisher, wake):
                    yield beat
                continue
            cursor = begin(run, cursor)
            yield block("run", {"run": run.id, "name": run.name}, cursor)
            with publisher.following(run, query.hz, wake) as ticker:
                follower = _Follower(publisher, run, query, cursor, run_id is None)
                async with aclosing(follower.follow(ticker, wake)) as blocks:
                    async for data in blocks:
                        yield data
            if run_id is not None:
                return
            cursor = None


async def _wait_for_a_run(publisher: Publisher, wake: asyncio.Event) -> AsyncIterator[bytes]:
    beat = time.monotonic() + HEARTBEAT_S
    while not publisher.stopping and not publisher.runs.all():
        await _hear(wake, NEWER_RUN_S)
        if time.monotonic() >= beat:
            beat += HEARTBEAT_S
            yield b": nothing new\n\n"


class _Follower:
    """One reader of one run."""

    def __init__(self, publisher: Publisher, run: Run, query: StreamQuery, cursor: Cursor, newest: bool) -> None:
        self._publisher, self._run, self._query, self._cursor = publisher, run, query, cursor
        self._follows_newest = newest
        self._looked_at = time.monotonic()

    async def follow(self, ticker: ChangeTicker, wake: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Yield blocks until there is a newer run, the run is removed, or the server stops."""
        silent_since = time.monotonic()
        while not self._publisher.stopping:
            wake.clear()
            now: Mark = ticker.now
            data = await self._news(now)
            if data:
                yield data
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since >= HEARTBEAT_S:
                yield b": nothing new\n\n"
                silent_since = time.monotonic()
            if now.state == "removed" or self._has_newer():
                return
            if ticker.now == now:
                await _hear(wake, NEWER_RUN_S)

    async def _news(self, now: Mark) -> bytes:
        sent, run, query = self._cursor, self._run, self._query
        if has_all(sent, now):
            return b""
        publisher = self._publisher

        def make() -> tuple[bytes, Cursor]:
            return make_blocks(publisher, run, query, sent, now)

        key = ("sse", query, sent, now, run.edits.count)
        data, self._cursor = await publisher.shared.get(key, make, lambda made: len(made[0]))
        return bytes(data)

    def _has_newer(self) -> bool:
        if not self._follows_newest or time.monotonic() - self._looked_at < NEWER_RUN_S:
            return False
        self._looked_at = time.monotonic()
        return self._publisher.find(None) is not self._run


async def _hear(wake: asyncio.Event, timeout_s: float) -> None:
    with anyio.move_on_after(timeout_s):
        await wake.wait()
