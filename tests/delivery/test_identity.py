"""A server proves its identity before it gets a token or a frame, whatever process now listens at its address."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn

import hookcore
from hookcore.commands.doctor import examine_machine
from hookcore.delivery import delivery
from hookcore.delivery.dashboard.process import status, stop_dashboard
from hookcore.delivery.dashboard.trust import MAX_NONCE, PROOF_PATH, proof_of
from hookcore.delivery.http import Address, HttpSink
from hookcore.errors import ServerError
from hookcore.reading import Client
from hookcore_app import cli
from tests.inside import delivery_of, pause_of, thread_of
from tests.receiver import DEADLINE_S, Receiver, a_frame, a_run, serving
from tests.serving import READ_TOKEN, TOKEN, make_world, served
from tests.waiting import wait_for
from tests.warm import python

NONCE = "n" * 43
NOBODY = f"HTTP/1.1 200 OK\r\nContent-Length: {len('{}')}\r\n\r\n{{}}".encode()


@dataclass
class Impostor:
    """A server that keeps every received byte and always gives the same answer."""

    port: int
    heard: bytearray = field(default_factory=bytearray)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def impostor(port: int = 0, answer: bytes = NOBODY) -> Iterator[Impostor]:
    with socket.create_server(("127.0.0.1", port)) as listening:
        found = Impostor(listening.getsockname()[1])

        def hear(connection: socket.socket) -> None:
            with connection, contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(65536):
                    found.heard += piece
                    if found.heard.endswith(b"\r\n\r\n"):
                        connection.sendall(answer)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=hear, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _requests(heard: bytearray) -> set[bytes]:
    return {line for line in bytes(heard).split(b"\r\n") if line.endswith(b"HTTP/1.1")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a separate user's home, with its own dashboard."""
    folder = tmp_path / "home"
    for name in ("HOOKCORE_URL", "HOOKCORE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOOKCORE_HOME", str(folder))
    monkeypatch.setenv("HOOKCORE_PORT", "0")
    monkeypatch.setenv("HOOKCORE_SERVER", "auto")
    monkeypatch.setattr(sys, "executable", python())  # its dashboards are forks
    yield folder
    if status().pid:
        stop_dashboard()


@contextmanager
def _sending_to(address: Address) -> Iterator[HttpSink]:
    """Yield a sink with a frame to send, and end it with its thread."""
    sink = HttpSink(a_run(), request_s=1.0, close_s=0.1)
    pause_of(sink).failures = 100  # as after a long outage
    sink.start(address)
    sink.send(a_frame(0))
    try:
        yield sink
    finally:
        sink.close()
        assert thread_of(sink) is not None
        thread_of(sink).join(DEADLINE_S)


def _train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def test_a_process_that_takes_the_port_of_a_dead_dashboard_gets_neither_token_nor_frames(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MAX_REVIVALS", 0)
    model = nn.Linear(8, 1)
    with hookcore.watch(model, name="secret-name", budget=None) as watcher:
        _train(model, 3)
        assert watcher.flush(60.0)
        said = json.loads((home / "dashboard.json").read_text())
        port = int(said["url"].rpartition(":")[2])
        os.kill(said["pid"], signal.SIGKILL)
        wait_for(lambda: not status().running)
        with impostor(port) as other:
            _train(model, 3)
            wait_for(lambda: pause_of(delivery_of(watcher).sink).failures > 3)
            heard = bytes(other.heard)
            assert f"GET {PROOF_PATH}".encode() in heard
            assert b"POST" not in heard
            for secret in (said["token"], "secret-name", delivery_of(watcher).run.key):
                assert secret.encode() not in heard
            assert "did not prove" in delivery_of(watcher).sink.trouble  # type: ignore[attr-defined]
        counters = watcher.delivery
        assert counters is not None
        assert counters.acknowledged >= 3
        assert counters.waiting + counters.in_flight >= 3
        delivery_of(watcher).sink.limit_close_time(0.1)


def test_frames_that_waited_for_an_impostor_to_leave_reach_the_next_dashboard(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MAX_REVIVALS", 0)
    model = nn.Linear(8, 1)
    with hookcore.watch(model, budget=None) as watcher:
        _train(model, 3)
        assert watcher.flush(60.0)
        said = json.loads((home / "dashboard.json").read_text())
        os.kill(said["pid"], signal.SIGKILL)
        wait_for(lambda: not status().running)
        with impostor(int(said["url"].rpartition(":")[2])):
            _train(model, 3)
            wait_for(lambda: pause_of(delivery_of(watcher).sink).failures > 1)
            with hookcore.watch(nn.Linear(2, 2)) as other:
                assert other.url is not None
                assert not other.url.startswith(said["url"])
            assert watcher.flush(60.0)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"proofs":[]}',
        b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"proofs":[""]}',
        b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"proofs":[null]}',
        b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"[" * 20_000,
        b"\x16\x03\x01 this is not HTTP\r\n\r\n",
    ],
)
def test_without_a_valid_proof_a_server_gets_no_token(answer: bytes) -> None:
    with impostor(answer=answer) as other:
        with Client(other.url, TOKEN) as client:
            with pytest.raises(ServerError):
                client.runs()
            with pytest.raises(ServerError):
                client.pause("run")
            with pytest.raises(ServerError):
                next(client.tail("run"))
        with _sending_to(Address(other.url, TOKEN)) as sink:
            wait_for(lambda: pause_of(sink).failures > 101)
        assert cli.main(["link", other.url, "--token", TOKEN]) == 2
        assert TOKEN.encode() not in other.heard
        assert all(request.startswith(b"GET " + PROOF_PATH.encode()) for request in _requests(other.heard))


def test_an_old_proof_is_invalid(tmp_path: Path) -> None:
    proof = proof_of(TOKEN, NONCE)
    said = json.dumps({"proofs": [proof]}).encode()
    with impostor(answer=b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said) as other:
        with Client(other.url, TOKEN) as client, pytest.raises(ServerError, match="its proof is wrong") as raised:
            client.runs()
        assert raised.value.status == 401
        assert TOKEN.encode() not in other.heard


def test_a_server_that_disconnects_after_its_proof_gets_no_token_on_a_new_connection() -> None:
    receiver = Receiver()
    receiver.tokens = (TOKEN,)
    receiver.hangs_up = True
    with serving(receiver) as url:
        with Client(url, TOKEN) as client, pytest.raises(ServerError, match="closed the connection"):
            client.health()
        with _sending_to(Address(url, TOKEN)) as sink:
            wait_for(lambda: pause_of(sink).failures > 101)
    assert not receiver.batches


def test_the_proof_covers_both_tokens_and_reveals_neither() -> None:
    world = make_world(token=TOKEN, read_token=READ_TOKEN, host="0.0.0.0")
    answer = world.client.get(f"{PROOF_PATH}?nonce={NONCE}")
    assert answer.json() == {"proofs": [proof_of(TOKEN, NONCE), proof_of(READ_TOKEN, NONCE)]}
    assert TOKEN not in answer.text
    for nonce in ("", "short", "n" * (MAX_NONCE + 1)):
        assert world.client.get(f"{PROOF_PATH}?nonce={nonce}").status_code == 422
    assert world.client.post(f"{PROOF_PATH}?nonce={NONCE}").status_code in (401, 405)


def test_both_tokens_open_a_real_server_after_its_proof() -> None:
    with served(read_token=READ_TOKEN) as server:
        for token in (TOKEN, READ_TOKEN):
            with Client(server.url, token) as client:
                assert client.runs() == []


def test_proxies_of_the_environment_are_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with impostor() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        model = nn.Linear(8, 1)
        with hookcore.watch(model, budget=None) as watcher:
            _train(model, 2)
            assert watcher.flush(60.0)
            assert cli.main(["link"]) == 0
            assert "/login?code=" in capsys.readouterr().out
            (found,) = [each for each in examine_machine(os.environ) if each.about == "dashboard"]
            assert "it answers" in found.text
            with Client() as client:
                assert len(client.runs()) == 1
        assert not proxy.heard


def test_a_local_server_that_returns_after_a_long_absence_is_contacted_quickly() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with _sending_to(Address(url)) as sink:
        for failures in range(101, 110):
            wait_for(lambda failures=failures: pause_of(sink).failures > failures)
            assert pause_of(sink).until <= time.monotonic() + 1.0
