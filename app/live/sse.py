"""Server-sent events for scripts: the messages of the socket about one run, from exactly where a reader stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Final

import anyio
import msgspec
from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from hookcore.store import STAT_NAMES, checks

from ..api.routing import REFUSALS
from ..runs import Run
from ..serving.guard.security import ONLY_KNOWN
from .publisher import ALL, ChangeTicker, Mark, Publisher, Steps, publisher_of, reader_of
from .views import Subscribe, ViewSpec, make, spec_of

HEARTBEAT_S: Final = 15.0
NEWER_RUN_S: Final = 1.0  # how often to look for a newer run
SEND_S: Final = 60.0  # the last resort, for a server without WriteDeadline

Cursor = tuple[str, Mark]  # the id of an event: a run, and the progress of its reader

router = APIRouter(dependencies=[ONLY_KNOWN], responses=REFUSALS)


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
    specs = specs_of(kind, match, stat)
    if run is not None and publisher.find(run) is None:
        known = [each.id for each in publisher.runs.all()]
        raise HTTPException(404, checks.unknown("run", run, known))
    return LiveResponse(publisher, _stream(publisher, run, specs, hz, read_cursor(last_event_id or "")))


def specs_of(kind: str | None, match: str | None, stat: str | None) -> tuple[ViewSpec, ...]:
    """Return the views of a stream: the latest values of the given taps, the user's scalars, events, and incidents."""
    stats = STAT_NAMES if stat == "all" else tuple(filter(None, (stat or "").split(",")))
    latest = spec_of(Subscribe(id=0, view="latest", kind=kind, match=match, stats=stats))
    others = [spec_of(Subscribe(id=0, view=view)) for view in ("scalars", "events", "incidents")]
    return replace(latest, json=True), others[0], replace(others[1], columns=ALL), others[2]


def read_cursor(text: str) -> Cursor | None:
    """Parse the id of an event; None if it is invalid."""
    try:
        cursor: Cursor = msgspec.json.decode(text, type=Cursor)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return cursor


def progress_of(mark: Mark) -> Mark:
    """Return the part of a run's progress that a stream sends."""
    return Mark(mark.steps, mark.events, mark.taps, mark.state, mark.incidents, store=mark.store)


def continued(sent: Mark | None, now: Mark) -> Mark:
    """Return the point at which a reader continues: after what it has, or at the newest step."""
    if sent is None:
        newest, different, frames = (number - 1 for number in now.steps)
        before = Steps(max(-1, newest), max(0, different), max(0, frames))
        return Mark(before, now.events, -1, "", now.incidents, store=now.store)
    if now.store in ("", sent.store):
        return sent
    # The server was restarted, or has read the run again: the steps continue, but its counts started again.
    return Mark(Steps(min(sent.steps.newest, now.steps.newest)), 0, -1, "", store=now.store)


def make_news(publisher: Publisher, run: Run, specs: tuple[ViewSpec, ...], sent: Mark, now: Mark) -> bytes:
    """Return everything between a reader's progress and now, as one event of the stream; empty if there is nothing."""
    bodies = [body for spec in specs for body in make(publisher.selections, run, spec, sent, now)]
    messages = {body.type: b'"%b":%b' % (body.type.encode(), body.data) for body in bodies}
    if not messages:
        return b""
    return b"id: %b\ndata: {%b}\n\n" % (msgspec.json.encode((run.id, now)), b",".join(messages.values()))


async def _stream(
    publisher: Publisher, run_id: str | None, specs: tuple[ViewSpec, ...], hz: float, cursor: Cursor | None
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
            if not run.loaded:
                await to_thread.run_sync(publisher.runs.read, run)
            sent = cursor[1] if cursor is not None and cursor[0] == run.id else None
            with publisher.following(run, hz, wake) as ticker:
                follower = _Follower(publisher, run, specs, sent, run_id is None)
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

    def __init__(
        self, publisher: Publisher, run: Run, specs: tuple[ViewSpec, ...], sent: Mark | None, newest: bool
    ) -> None:
        self._publisher, self._run, self._specs, self._sent = publisher, run, specs, sent
        self._follows_newest = newest
        self._looked_at = time.monotonic()

    async def follow(self, ticker: ChangeTicker, wake: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Yield blocks until there is a newer run, the run is removed, or the server stops."""
        silent_since = time.monotonic()
        while not self._publisher.stopping:
            wake.clear()
            now: Mark = ticker.now
            data = await self._news(progress_of(now))
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
        publisher, run, specs, sent = self._publisher, self._run, self._specs, continued(self._sent, now)
        if sent == now:
            return b""
        key = ("sse", run.id, specs, sent, now, run.edits.count)
        data = await publisher.shared.get(key, lambda: make_news(publisher, run, specs, sent, now), len)
        self._sent = now
        return bytes(data)

    def _has_newer(self) -> bool:
        if not self._follows_newest or time.monotonic() - self._looked_at < NEWER_RUN_S:
            return False
        self._looked_at = time.monotonic()
        return self._publisher.find(None) is not self._run


async def _hear(wake: asyncio.Event, timeout_s: float) -> None:
    with anyio.move_on_after(timeout_s):
        await wake.wait()
