"""A server for tests of the sender: real runs behind plain HTTP, with every kind of misbehavior."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from hookcore.delivery.dashboard.trust import PROOF_PATH, proof_of
from hookcore.records import Frame, Tap
from hookcore.records.wire import CONTENT_TYPE, Batch, Receipt, RunInfo, decode_batch, encode, frame_of
from hookcore_app.runs import Run, Runs
from hookcore_app.settings import ServerSettings
from tests.build import frame, make_info, stats_of
from tests.waiting import wait_for

DEADLINE_S = 20.0


def a_run(name: str = "run") -> RunInfo:
    """Return a run whose settings ask for a small store."""
    return make_info(name, memory=4_000_000)


def a_frame(step: int, new_taps: tuple[Tap, ...] = (), taps: tuple[int, ...] = (0,), padding: int = 0) -> Frame:
    """Return a frame of some taps. `padding` makes it larger by that many bytes."""
    labels = {"padding": "x" * padding} if padding else {}
    return frame(step, stats_of(len(taps), step), new_taps, numbers=taps, time_s=1000.0 + step, labels=labels)


class Receiver:
    """Accepts batches as the server does. `before` and `after` may return a status to answer in its place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.batches: list[Batch] = []
        self.headers: list[dict[str, str]] = []
        self.stored: list[int] = []  # the steps of the stored frames, once for each time that a frame was stored
        self.before: Callable[[Batch], int | None] = lambda batch: None
        self.after: Callable[[Batch], int | None] = lambda batch: None
        self.extra: dict[str, str] = {}
        self.tokens: tuple[str, ...] = ()  # the tokens that it can prove to know
        self.hangs_up = False  # hangs up after a proof
        self.forget()

    def forget(self) -> None:
        """Forget everything, like a restarted server."""
        self.runs = Runs(ServerSettings(memory=64_000_000))

    def run(self, name: str = "run") -> Run:
        """Return a run. Batches are listed before their run is open."""
        wait_for(lambda: self.runs.get(name) is not None)
        found = self.runs.get(name)
        assert found is not None
        return found

    def take(self, batch: Batch) -> Receipt:
        """Store a batch, and note which of its frames were new."""
        run = self.runs.open(batch.run)
        assert run is not None
        before = run.received.acknowledged
        answer = run.take(batch)
        self.stored += [
            frame_of(item).step
            for item in batch.items
            if before < item.number <= answer.acknowledged and type(item).__name__ == "FrameItem"
        ]
        return answer

    def items_sent(self) -> int:
        """Count the items that arrived, including repetitions."""
        with self.lock:
            return sum(len(batch.items) for batch in self.batches)

    def handle(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Return the answer to a request. Status 0 drops the connection."""
        batch = decode_batch(body)
        with self.lock:
            self.batches.append(batch)
            self.headers.append(headers)
        status = self.before(batch)
        if status is None:
            with self.lock:
                answer = self.take(batch)
            status = self.after(batch)
            if status is None:
                return 200, encode(answer)
        return status, msgspec.json.encode({"error": "as the test wants it"})


class _Proving(BaseHTTPRequestHandler):
    """Answers the challenges of clients that have a token."""

    receiver: Receiver

    def do_GET(self) -> None:
        path, _, nonce = self.path.partition("?nonce=")
        data = msgspec.json.encode({"proofs": [proof_of(token, nonce) for token in self.receiver.tokens]})
        self.send_response(200 if path.endswith(PROOF_PATH) else 404)
        self.send_header("Content-Length", str(len(data)))
        if self.receiver.hangs_up:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(receiver: Receiver, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve the receiver on a local port, and yield its address."""

    asked = receiver  # a class body can't see an argument of the same name

    class Handler(_Proving):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        receiver = asked

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, data = receiver.handle(body, {**dict(self.headers.items()), ":path": self.path})
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            for name, value in receiver.extra.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    connections: list[socket.socket] = []

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def process_request(self, request: Any, client_address: Any) -> None:
            connections.append(request)
            super().process_request(request, client_address)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore the error: in some tests, the peer disconnects on purpose."""

    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        for each in connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        thread.join()
