"""Fixtures for the server: batches like a trainer's, a real server in a thread, and plain sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from starlette.testclient import TestClient

from hookcore.records import Event, Frame, Tap, wire
from hookcore_app.main import App, create_app
from hookcore_app.runs import Joint, Run, Runs, ranks_in
from hookcore_app.serving.server import Server, complete, listen, make_server
from hookcore_app.settings import ServerSettings
from tests.build import frame, stats_of
from tests.waiting import wait_for

TOKEN = "t" * 40
READ_TOKEN = "r" * 40
PATIENCE_S = 30.0
BATCH = {"Content-Type": wire.CONTENT_TYPE}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def make_taps(count: int) -> tuple[Tap, ...]:
    return tuple(Tap(f"layer.{number}", "output") for number in range(count))


def make_frame(step: int, taps: int = 2, mean: float | None = None, **others: Any) -> Frame:
    """Return a frame whose means are its step."""
    return frame(step, stats_of(taps, 1.0, mean=step if mean is None else mean), **others)


def make_batch(
    info: wire.RunInfo, steps: Sequence[int], taps: int = 2, first: bool = True, **others: Any
) -> wire.Batch:
    """Return a batch with a frame for each step. The items are numbered by step."""
    items = tuple(wire.frame_item(step, make_frame(step, taps)) for step in steps)
    announced: dict[str, Any] = {"taps": make_taps(taps)} if first else {"taps_from": taps}
    return wire.Batch(**{"run": info, "items": items, **announced, **others})


def make_event(number: int) -> Event:
    return Event(number, 0.0, "told", f"event {number}")


@dataclass
class World:
    """An application and its client, without a network."""

    app: App
    runs: Runs
    client: TestClient

    def post(self, batch: wire.Batch | bytes, **headers: str) -> Any:
        """Send a batch."""
        body = batch if isinstance(batch, bytes) else wire.encode(batch)
        return self.client.post("/api/v1/ingest", content=body, headers={**BATCH, **headers})

    def take(self, batch: wire.Batch) -> wire.Receipt:
        """Send a batch that must be accepted."""
        response = self.post(batch)
        assert response.status_code == 200, response.text
        return wire.decode_answer(response.content)

    def means(self, run: str = "one", tap: int = 0) -> tuple[list[int], list[float]]:
        """Return the steps and the means of a tap."""
        found = self.runs.get(run)
        assert found is not None
        series = found.store.series(tap, "mean")
        return series.first_step.tolist(), series.mean.tolist()


def make_world(clock: Callable[[], float] = time.monotonic, **settings: Any) -> World:
    chosen = ServerSettings(**settings)
    runs = Runs(chosen, clock)
    app = create_app(runs, chosen)
    assert isinstance(app, App)
    return World(app, runs, TestClient(app, base_url="http://127.0.0.1:8642", raise_server_exceptions=False))


def routes_of(routes: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the methods and routes of an application, including those of its routers, as FastAPI serves them."""
    for route in routes:
        inside = getattr(route, "effective_route_contexts", lambda route=route: [route])
        for each in inside():
            served = getattr(each, "starlette_route", None) or each
            yield from ((method, served) for method in (getattr(served, "methods", None) or {"SOCKET"}) - {"HEAD"})


@dataclass
class Served:
    """A real server in a thread of this process."""

    app: App
    runs: Runs
    server: Server
    port: int
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def ask(self, head: str, body: bytes = b"") -> bytes:
        """Send a literal request, and return the answer. The connection is closed afterward."""
        with self.connect() as connection:
            connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
            return read_all(connection)

    def get(self, path: str) -> bytes:
        return self.ask(f"GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close")


def run_named(server: Served, name: str) -> Run:
    """Wait until the run has ended, and return it."""
    run = next(each for each in server.runs.all() if each.name == name)
    wait_for(lambda: run.state == "ended")
    return run


def joint_named(server: Served, name: str, world: int) -> Joint:
    """Wait until the run of all ranks has ended without a missing rank or step, and return it."""
    joint = ranks_in(run_named(server, name))
    assert joint is not None
    assembly = joint.sum.assembly
    assert (joint.rounds.world, joint.rounds.missing(), assembly.absences.incomplete, assembly.partial) == (
        world,
        [],
        0,
        0,
    )
    return joint


def read_all(connection: socket.socket) -> bytes:
    """Return everything that arrives until the other end closes the connection."""
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


@contextmanager
def served(clock: Callable[[], float] = time.monotonic, **given: Any) -> Iterator[Served]:
    listening = listen(given.get("host", "127.0.0.1"), given.get("port", 0))
    settings = complete(ServerSettings(**{"host": "127.0.0.1", "port": 0, "token": TOKEN, **given}), listening)
    runs = Runs(settings, clock)
    app = create_app(runs, settings)
    assert isinstance(app, App)
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="hookcore-server")
    thread.start()
    try:
        yield Served(app, runs, server, settings.port, thread)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@contextmanager
def foreign_page(html: str) -> Iterator[str]:
    """Serve a foreign page on another local port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = html.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
