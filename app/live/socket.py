"""The binary socket of the pages: subscriptions, each a snapshot and then deltas, on one ordered channel."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio import to_thread
from fastapi import APIRouter, WebSocket
from starlette.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect

from hookcore.errors import ArgumentError, HookcoreError
from hookcore.reading.answers.live import ErrorMessage
from hookcore.store import checks

from ..runs import Run
from ..serving.guard.security import ONLY_KNOWN
from .publisher import Mark, Publisher, publisher_of, reader_of, token_of
from .views import (
    NOBODY,
    Ack,
    Body,
    Request,
    Subscribe,
    Unsubscribe,
    ViewSpec,
    concern,
    json_body,
    make,
    read,
    spec_of,
)

MAX_SUBSCRIPTIONS: Final = 16
MAX_UNACKNOWLEDGED: Final = 2
MAX_WRONG: Final = 10
MAX_REQUESTS_S: Final = 20.0
MAX_AT_ONCE: Final = 100
MAX_TEXT: Final = 2**16
SEND_S: Final = 60.0  # the last resort, for a server without WriteDeadline

_log = logging.getLogger("hookcore.live")
router = APIRouter(dependencies=[ONLY_KNOWN])


class _NoSuchRunError(HookcoreError):
    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number


class Subscription:
    """One view of one page, and how far it was sent and acknowledged."""

    def __init__(self, session: Session, number: int, run: Run | None, spec: ViewSpec, hz: float, rank: str) -> None:
        self._session, self._number, self._run, self._spec, self._hz = session, number, run, spec, hz
        self._rank = rank  # a run that the list of runs doesn't have
        self._sent: Any = None
        self._sequence = self._acknowledged = 0
        self._wake: asyncio.Event | None = None

    def acknowledge(self, sequence: int) -> None:
        """Note that everything up to a number has arrived."""
        self._acknowledged = max(self._acknowledged, min(sequence, self._sequence))
        if self._wake is not None:
            self._wake.set()

    async def serve(self) -> None:
        """Send news until this is cancelled, the run is removed, or the server stops."""
        publisher = self._session.publisher
        if self._run is not None and not self._run.loaded:  # the server was restarted since the page was made
            await to_thread.run_sync(publisher.runs.read, self._run)
        with publisher.hearing() as wake, publisher.following(self._run, self._hz, wake, self._rank) as ticker:
            self._wake = wake
            while not publisher.stopping:
                wake.clear()
                self._start_over(ticker.now)
                if self._has_news(ticker.now):
                    async with self._session.sending:
                        await self._tell(ticker.now)
                elif getattr(self._sent, "state", "") == "removed":
                    return
                else:
                    await wake.wait()

    def _start_over(self, now: Any) -> None:
        """Begin with a new snapshot if the run was read from disk since: what was sent is of another store."""
        if isinstance(self._sent, Mark) and now.store not in ("", self._sent.store):
            self._sent = None

    def _has_news(self, now: Any) -> bool:
        if self._sequence - self._acknowledged >= MAX_UNACKNOWLEDGED:
            return False
        return self._sent is None or concern(self._spec, now) != concern(self._spec, self._sent)

    async def _tell(self, now: Any) -> None:
        publisher, run, spec, sent = self._session.publisher, self._run, self._spec, self._sent
        about = (token_of(run.store), run.edits.count) if run else ()
        key = ("socket", about, spec, sent, now)
        for body in await self._session.made(key, lambda: make(publisher.selections, run, spec, sent, now)):
            self._sequence += 1
            await self._session.send(body.frame(self._number, self._sequence, time.time()))
        self._sent = now


class Pace:
    """The rate limit for requests: `burst` at once, then `rate` per second."""

    def __init__(self, rate: float, burst: int) -> None:
        self._period_s, self._ahead_s = 1 / rate, (burst - 1) / rate
        self._due = 0.0  # when all requests so far would have arrived at an even rate

    def rest_s(self, now: float) -> float:
        """Return how long to wait after a request at this time before reading the next one."""
        self._due = max(self._due, now) + self._period_s
        return max(0.0, self._due - now - self._ahead_s)


class Session:
    """One open socket."""

    def __init__(self, socket: WebSocket, publisher: Publisher) -> None:
        self.publisher = publisher
        self.sending = asyncio.Lock()  # one frame at a time: the next one is made when this one has been sent
        self._socket = socket
        self._wrong = 0
        self._making = asyncio.Lock()
        self._pace = Pace(MAX_REQUESTS_S, MAX_AT_ONCE)
        self._open: dict[int, tuple[Subscription, asyncio.Task[None]]] = {}

    async def send(self, frame: bytes) -> None:
        """Send a frame when the connection has room."""
        try:
            with anyio.fail_after(SEND_S):
                await self._socket.send_bytes(frame)
        except (TimeoutError, RuntimeError) as error:  # Starlette's error for a socket that this end has closed
            raise WebSocketDisconnect from error

    async def made(self, key: Hashable, make: Callable[[], tuple[Body, ...]]) -> tuple[Body, ...]:
        """Return a message, from the cache or newly made.

        A socket makes one message at a time. The next one waits until it is done, even if its subscription is replaced
        in the meantime, because a running thread can't be stopped.
        """
        await self._making.acquire()
        try:
            future = self.publisher.shared.begin(key, make, lambda bodies: sum(len(body.data) for body in bodies))
        except BaseException:
            self._making.release()
            raise
        future.add_done_callback(lambda _: self._making.release())
        found: tuple[Body, ...] = await asyncio.shield(future)
        return found

    async def listen(self) -> None:
        """Read requests until the page closes, or sends too many invalid ones."""
        try:
            while (message := await self._socket.receive())["type"] == "websocket.receive":
                try:
                    request = self._read(message)
                    self._obey(request)
                    if not isinstance(request, Ack):  # a page sends one for each frame
                        await asyncio.sleep(self._pace.rest_s(asyncio.get_running_loop().time()))
                except _NoSuchRunError as error:  # not the page's error: a new server doesn't know its runs yet
                    await self._complain(error.number, error)
                except HookcoreError as error:
                    self._wrong += 1
                    await self._complain(NOBODY, error)
                if self._wrong >= MAX_WRONG:
                    await self._socket.close(1008, f"{self._wrong} requests were wrong")
                    return
        finally:
            await self._end([number for number in self._open])

    def _read(self, message: Any) -> Request:
        text = message.get("text")
        if text is None:
            raise ArgumentError("a binary message: requests are JSON in text messages")
        if len(text) > MAX_TEXT:
            raise ArgumentError(f"a request of {len(text)} characters: {MAX_TEXT} are allowed")
        return read(text)

    def _obey(self, request: Request) -> None:
        if isinstance(request, Subscribe):
            self._subscribe(request)
            return
        found = self._open.get(request.id)
        if found is None:
            return  # an acknowledgement may arrive after the end of its subscription
        if isinstance(request, Unsubscribe):
            del self._open[request.id]
            found[1].cancel()
        else:
            found[0].acknowledge(request.sequence)

    def _subscribe(self, asked: Subscribe) -> None:
        if asked.id not in self._open and len(self._open) >= MAX_SUBSCRIPTIONS:
            raise ArgumentError(f"{MAX_SUBSCRIPTIONS} subscriptions are open on this socket: end one of them")
        spec, run, rank = spec_of(asked), None, ""
        if asked.view != "runs":
            run = self.publisher.find(asked.run)
            if run is None:
                known = [each.id for each in self.publisher.runs.all()]
                raise _NoSuchRunError(asked.id, checks.unknown("run", str(asked.run or "newest"), known))
        elif asked.run is not None and (found := self.publisher.runs.get(asked.run)) is not None:
            rank = "" if found.joint is None else found.id
        if asked.id in self._open:
            self._open.pop(asked.id)[1].cancel()
        subscription = Subscription(self, asked.id, run, spec, asked.hz, rank)
        task = asyncio.create_task(self._guard(asked.id, subscription))
        self._open[asked.id] = subscription, task

    async def _guard(self, number: int, subscription: Subscription) -> None:
        try:
            await subscription.serve()
        except WebSocketDisconnect:
            return  # the page is closed or stopped reading: `listen` ends, or the server closes the connection
        except Exception as error:
            if not isinstance(error, HookcoreError):
                _log.exception("a subscription failed")
            with suppress(WebSocketDisconnect):
                await self._complain(number, error)
        if self._open.get(number, (None,))[0] is subscription:
            del self._open[number]

    async def _complain(self, number: int, error: Exception) -> None:
        sentence = str(error) if isinstance(error, HookcoreError) else "the server failed; its log says why"
        await self.send(json_body(ErrorMessage(sentence)).frame(number, 0, time.time()))

    async def _end(self, numbers: list[int]) -> None:
        tasks = [self._open.pop(number)[1] for number in numbers]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@router.websocket("/api/v1/socket")
async def socket(websocket: WebSocket) -> None:
    """Receive subscriptions and send binary frames; see docs/live.md."""
    publisher = publisher_of(websocket.app)
    with publisher.client(reader_of(websocket.scope, websocket.app.state)) as room:
        if not room:
            refusal = JSONResponse({"error": publisher.why_full()}, 503, {"Retry-After": "5"})
            await websocket.send_denial_response(refusal)
            return
        await websocket.accept()
        session = Session(websocket, publisher)
        with publisher.hearing() as wake:
            listening = asyncio.create_task(session.listen())
            stopping = asyncio.create_task(_wait_for_the_end(publisher, wake))
            try:
                await asyncio.wait([listening, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not listening.done():
                    with suppress(WebSocketDisconnect):  # the page may be closed in the same moment
                        await websocket.close(1012, "the server is stopping")
            finally:
                listening.cancel()
                stopping.cancel()
                ends = await asyncio.gather(listening, stopping, return_exceptions=True)
        if isinstance(ends[0], Exception) and not isinstance(ends[0], WebSocketDisconnect):
            raise ends[0]


async def _wait_for_the_end(publisher: Publisher, wake: asyncio.Event) -> None:
    while not publisher.stopping:
        wake.clear()
        await wake.wait()
