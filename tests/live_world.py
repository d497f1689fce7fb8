"""Fixtures for the live streams: frames, runs, a real server in a thread, and readers of both formats."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hookcore.errors import HookcoreError
from hookcore.records import Event, Frame, Tap
from hookcore_app import live
from hookcore_app.runs import Run, Runs
from hookcore_app.serving.protocol import WriteDeadline
from hookcore_app.settings import ServerSettings
from tests import build
from tests.build import stats_of_magnitudes
from tests.waiting import wait_for

PATIENCE_S = 30.0


class Http(WriteDeadline, HttpToolsProtocol):
    """An HTTP protocol that waits for slow readers."""


class Socket(WriteDeadline, WebSocketsSansIOProtocol):
    """A WebSocket protocol that waits for slow readers."""


def make_app(runs: Runs | None = None, **settings: Any) -> FastAPI:
    """Return an application with only the live streams."""
    app = FastAPI()
    app.state.settings = ServerSettings(**settings)
    app.state.runs = runs or Runs(app.state.settings)
    app.include_router(live.router)

    async def explain(_request: Any, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    app.add_exception_handler(HookcoreError, explain)
    return app


def frame(
    step: int,
    values: Sequence[float],
    numbers: Sequence[int] | None = None,
    new: int = 0,
    known: int = 0,
    **more: Any,
) -> Frame:
    """Return a frame whose taps have these rms values. NaN and infinity stand for such values in the tensor."""
    stats = stats_of_magnitudes(values, "mean", "std", "min", "max", "rms", "norm", count=4)
    taps = tuple(Tap(f"layers.{known + place}", "output") for place in range(new))
    return build.frame(step, stats, taps, numbers=numbers, time_s=time.time(), **more)


def put(run: Run, *frames: Frame) -> None:
    """Add frames to the run, as if they had arrived."""
    for each in frames:
        run.store.append(each)
    run.signs.seen_at = run.signs.clock()
    run.changes.tell()


def event(step: int, name: str = "note") -> Event:
    return Event(step, 1.0, name, f"{name} at {step}")


@dataclass
class Served:
    """A server that runs in a thread."""

    app: FastAPI
    port: int
    uvicorn: uvicorn.Server

    @property
    def runs(self) -> Runs:
        found: Runs = self.app.state.runs
        return found

    @property
    def publisher(self) -> live.Publisher:
        return live.publisher_of(self.app)

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}"


@contextmanager
def serving(app: FastAPI, http: Any = Http, socket: Any = Socket) -> Iterator[Served]:
    """Run a real server on a free port. Its streams end before it stops."""
    config = uvicorn.Config(
        app,
        port=0,
        http=http,
        ws=socket,
        log_level="warning",
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=5,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="test-server", daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(app, port, server)
    finally:
        live.publisher_of(app).stop()
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@dataclass
class Block:
    """One server-sent event: messages by their types."""

    id: str
    data: dict[str, Any]


def blocks_of(data: bytes) -> list[Block]:
    """Parse the events in a piece of a stream."""
    found = []
    for part in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in fields:
            found.append(Block(fields["id"], json.loads(fields["data"], parse_constant=_refuse)))
    return found


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} is not JSON")


@contextmanager
def listening(served: Served, last: str | None = None, **query: Any) -> Iterator[Iterator[Block]]:
    """Yield the events of a live stream as they arrive."""
    headers = {} if last is None else {"Last-Event-ID": last}
    with (
        httpx2.Client(timeout=PATIENCE_S) as client,
        client.stream("GET", served.url() + "/api/v1/live", params=query, headers=headers) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        yield _events(answer)


def _events(answer: Any) -> Iterator[Block]:
    waiting = b""
    for piece in answer.iter_raw():
        waiting += piece
        whole, found, rest = waiting.rpartition(b"\n\n")
        if found:
            waiting = rest
            yield from blocks_of(whole)


def next_of(events: Iterator[Block], type: str) -> Any:
    """Return the next message of this type."""
    return next(block.data[type] for block in events if type in block.data)


@dataclass
class Message:
    """One frame of the socket, parsed independently of the server's code."""

    kind: int
    subscription: int
    sequence: int
    first_step: int
    columns: int
    rows: int
    time_s: float
    data: bytes

    @classmethod
    def read(cls, data: bytes) -> Message:
        return cls(*struct.unpack_from("<BxHIQIId", data), data[32:])

    @property
    def json(self) -> dict[str, Any]:
        assert self.kind == 3
        found: dict[str, Any] = json.loads(self.data, parse_constant=_refuse)
        return found

    @property
    def values(self) -> Any:
        return np.frombuffer(self.data, "<f4", self.columns * self.rows).reshape(self.columns, self.rows)

    @property
    def _about(self) -> int:
        size = self.columns * self.rows * 4
        return size + -size % 8

    @property
    def first(self) -> list[float]:
        found: list[float] = np.frombuffer(self.data, "<f8", self.columns, self._about).tolist()
        return found

    @property
    def last(self) -> list[float]:
        found: list[float] = np.frombuffer(self.data, "<f8", self.columns, self._about + 8 * self.columns).tolist()
        return found

    @property
    def nonfinite(self) -> list[int]:
        found: list[int] = np.frombuffer(self.data, "<u4", self.columns, self._about + 16 * self.columns).tolist()
        return found
