"""The server as a process: its connections, its start, and its end."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from hookcore.errors import ArgumentError
from hookcore.records import wire
from hookcore_app import cli
from hookcore_app.cli import flags
from hookcore_app.runs import Runs
from hookcore_app.serving import server as serve
from hookcore_app.serving import server as sockets
from hookcore_app.serving.guard.access import Access
from hookcore_app.settings import SERVER, ServerSettings
from tests.build import make_info
from tests.serving import (
    BATCH,
    BEARER,
    PATIENCE_S,
    TOKEN,
    Served,
    make_batch,
    make_world,
    read_all,
    served,
)
from tests.waiting import wait_for
from tests.warm import python

GET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def _half_open(server: Served, stack: ExitStack, count: int, begin: bytes) -> list[socket.socket]:
    opened = [stack.enter_context(server.connect()) for _ in range(count)]
    for connection in opened:
        connection.sendall(begin)
    return opened


def test_answers_on_kept_connections_are_sent_immediately() -> None:
    with served() as server, server.connect() as connection:
        connection.sendall(GET)
        assert connection.recv(12) == b"HTTP/1.1 200"
        (accepted,) = server.server.server_state.connections
        sock = accepted.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


POST = f"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
KIND = b"Content-Type: application/vnd.hookcore.v1+msgpack\r\n"
SLOW = {
    "nothing at all": b"",
    "half a line": b"GE",
    "half of its headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "half of its body": POST + KIND + b"Content-Length: 1000\r\n\r\nx",
    "half of a chunk": POST
    + b"Content-Type: application/vnd.hookcore.v1+msgpack\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nx",
    "one request, and then half of another": GET + b"GET / HTTP",
}


def _read_on(page: ClientConnection) -> None:
    while True:
        page.recv(PATIENCE_S)


@pytest.mark.parametrize("case", SLOW)
def test_a_connection_with_a_partial_request_is_closed(case: str) -> None:
    with served(receive_s=0.3) as server, ExitStack() as stack:
        for connection in _half_open(server, stack, 3, SLOW[case]):
            read_all(connection)  # returns when the server closes it
        assert server.get("/healthz").startswith(b"HTTP/1.1 200")


def test_a_connection_that_sends_byte_by_byte_is_closed() -> None:
    with served(receive_s=0.3) as server, server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")

        def drip() -> bool:
            try:
                connection.sendall(b"X-Slow: 1\r\n")
            except OSError:
                return True
            return False

        wait_for(drip)


def test_empty_lines_between_requests_do_not_keep_a_connection() -> None:
    with served(receive_s=0.3) as server, server.connect() as connection:
        connection.sendall(GET)
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.sendall(b"\r\n\r\n")
        read_all(connection)


def test_half_open_connections_do_not_keep_others_out() -> None:
    with served(receive_s=60.0, max_connections=50) as server, ExitStack() as stack:
        opened = _half_open(server, stack, 300, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        for _ in range(20):
            assert server.get("/healthz").startswith(b"HTTP/1.1 200")
        assert len(server.server.server_state.connections) <= 50
        assert read_all(opened[0]) == b""  # the oldest one made room


def test_a_new_connection_is_asked_to_retry_if_all_are_busy() -> None:
    with served(max_connections=2) as server, ExitStack() as stack:
        follow = b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for connection in _half_open(server, stack, 2, follow):
            assert connection.recv(12) == b"HTTP/1.1 200"
        answer = server.get("/healthz")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"try again" in answer


def test_readers_whose_requests_are_being_answered_do_not_keep_a_trainer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, waiting = threading.Event(), list[int]()

    def gone(_runs: Runs) -> list[Any]:
        waiting.append(1)
        gate.wait(PATIENCE_S)
        return []

    monkeypatch.setattr(Runs, "gone", gone)
    with served(max_connections=8) as server, ExitStack() as stack:
        stack.callback(gate.set)
        asked = _half_open(server, stack, 8, b"GET /api/v1/removed-runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_for(lambda: len(select.select(asked, [], [], 0.0)[0]) == 4, "the answers to those beyond the share")
        wait_for(lambda: len(waiting) == 4)
        assert all(each.recv(12) == b"HTTP/1.1 503" for each in select.select(asked, [], [], 0.0)[0])
        for _ in range(3):
            answer = httpx2.post(f"{server.url}/api/v1/ingest", content=b"", headers={**BATCH, **BEARER})
            assert answer.status_code == 422  # it was read
        assert server.get("/healthz").startswith(b"HTTP/1.1 200")


def test_the_idle_connection_of_an_owner_is_closed_after_those_of_others() -> None:
    with served(max_connections=4) as server, ExitStack() as stack:
        owner = HTTPConnection("127.0.0.1", server.port)
        owner.auto_open = 0
        owner.connect()
        for _ in range(2):
            owner.request("GET", "/api/v1/runs", headers=BEARER)
            answer = owner.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            _half_open(server, stack, 12, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
            assert server.get("/healthz").startswith(b"HTTP/1.1 200")
        owner.close()


def test_endless_headers_are_refused() -> None:
    with served() as server, server.connect() as connection:
        answer = b""
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 1_000_000)
            answer = read_all(connection)
        except OSError:
            pass
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431")
        assert server.get("/healthz").startswith(b"HTTP/1.1 200")


def test_a_connection_is_reused_while_its_peer_sends_requests() -> None:
    with served(receive_s=0.5) as server, server.connect() as connection:
        for _ in range(6):  # together, longer than one request may take
            connection.sendall(GET)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):  # head and body may arrive separately
                piece = connection.recv(65536)
                assert piece
                answer += piece
            time.sleep(0.15)


def test_a_refused_batch_ends_its_connection_and_not_the_server() -> None:
    with served(max_body=1000) as server, server.connect() as connection:
        head = POST + KIND + b"Content-Length: 99999999\r\n\r\n"
        connection.sendall(head + bytes(5000))
        assert read_all(connection).startswith(b"HTTP/1.1 413")
        assert server.get("/healthz").startswith(b"HTTP/1.1 200")


def test_an_invalid_message_closes_its_websocket() -> None:
    with served() as server, connect(f"ws://127.0.0.1:{server.port}/api/v1/socket", compression=None) as page:
        page.send(b"x" * (2**16 + 1))
        with pytest.raises(ConnectionClosed) as told:
            _read_on(page)
        assert told.value.rcvd is None or told.value.rcvd.code == 1009


def test_streams_stay_open_longer_than_a_request_may_take_to_arrive() -> None:
    with served(receive_s=0.2) as server, ExitStack() as stack:
        page = stack.enter_context(connect(f"ws://127.0.0.1:{server.port}/api/v1/socket"))
        stream = stack.enter_context(server.connect())
        stream.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        slow = stack.enter_context(server.connect())
        read_all(slow)  # this one is closed, although it is the newest
        page.ping().wait(PATIENCE_S)
        run = server.runs.open(make_info())
        assert run is not None
        seen = b""
        while b'"state":' not in seen:
            seen += stream.recv(65536)


def test_a_websocket_of_a_foreign_page_is_refused_at_the_network_level() -> None:
    with served() as server, pytest.raises(InvalidStatus) as told:
        connect(f"ws://127.0.0.1:{server.port}/api/v1/socket", origin="http://evil.example")  # type: ignore[arg-type]
    assert told.value.response.status_code == 403


def test_a_server_shuts_down_in_order_with_open_streams() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(served())
        stream = stack.enter_context(server.connect())
        stream.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert stream.recv(12) == b"HTTP/1.1 200"
        idle = stack.enter_context(server.connect())  # before the page, whose answer shows that both were accepted
        page = stack.enter_context(connect(f"ws://127.0.0.1:{server.port}/api/v1/socket"))
        server.server.stop()
        server.thread.join(PATIENCE_S)
        assert not server.thread.is_alive()
        read_all(stream)
        assert read_all(idle) == b""
        with pytest.raises(ConnectionClosed):
            _read_on(page)


def test_a_stopping_server_is_not_ready() -> None:
    world = make_world()
    assert world.client.get("/readyz").status_code == 200
    world.app.state.stopping = True
    response = world.client.get("/readyz")
    assert (response.status_code, "stopping" in response.json()["error"]) == (503, True)
    assert world.client.get("/healthz").status_code == 200


def test_an_unused_server_stops_by_itself() -> None:
    now = [0.0]
    with served(idle_stop_s=100.0) as server:
        usage = server.app.state.usage
        usage.clock = lambda: now[0]
        usage.trainer_at = usage.reader_at = 0.0
        now[0] = 90.0
        server.get("/api/v1/openapi.json")
        now[0] = 185.0
        for path in ("/healthz", "/metrics", "/readyz"):  # requests of monitoring do not count
            assert server.get(path).startswith(b"HTTP/1.1 200")
        assert usage.idle_s == 95.0
        assert not server.server.should_exit
        now[0] = 191.0
        server.thread.join(PATIENCE_S)
        assert not server.thread.is_alive()


def test_trainers_and_open_streams_keep_a_server_from_being_idle() -> None:
    now = [0.0]
    world = make_world()
    usage = world.app.state.usage
    usage.clock = lambda: now[0]
    usage.trainer_at = usage.reader_at = 0.0
    now[0] = 50.0
    world.take(make_batch(make_info(), [0]))
    now[0] = 60.0
    assert usage.idle_s == 10.0
    with usage.reading():
        now[0] = 9999.0
        assert usage.idle_s == 0.0
    now[0] = 10_000.0
    assert usage.idle_s == 1.0


def test_a_port_in_use_is_skipped_and_zero_takes_any() -> None:
    with sockets.listen("127.0.0.1", 0) as first:
        taken = first.getsockname()[1]
        with sockets.listen("127.0.0.1", taken) as second, sockets.listen("localhost", 0) as third:
            assert len({taken, second.getsockname()[1], third.getsockname()[1]}) == 3


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "::ffff:192.0.2.1"])
def test_listening_on_the_address_of_another_machine_fails(host: str) -> None:
    with pytest.raises(ArgumentError, match="address of this machine"):
        sockets.listen(host, 0)


def test_a_remote_server_gets_a_token_and_prints_it_once_with_a_link_that_works() -> None:
    given = ServerSettings(host="0.0.0.0", port=0)
    with sockets.listen("0.0.0.0", 0) as listening:
        settings = serve.complete(given, listening)
    access = Access(settings)
    text = serve.greeting(given, settings, access)
    assert len(settings.token) >= 43
    assert text.count(settings.token) == 1
    assert "unencrypted" in text
    code = re.search(r"/login\?code=([\w-]+)", text)
    assert code
    assert access.take_code(code[1]) == "owner"
    own = serve.greeting(settings, settings, access)
    assert settings.token not in own


def test_a_server_says_that_the_port_was_taken() -> None:
    with sockets.listen("127.0.0.1", 0) as taken:
        given = ServerSettings(port=taken.getsockname()[1])
        with sockets.listen(given.host, given.port) as listening:
            settings = serve.complete(given, listening)
    text = serve.greeting(given, settings, Access(settings))
    assert f"Port {given.port} is taken by another process, so this one listens on port {settings.port}." in text
    assert "is taken" not in serve.greeting(settings, settings, Access(settings))


def test_a_dashboard_prints_no_secret_to_its_log() -> None:
    given = ServerSettings(token=TOKEN, dashboard=True)
    with sockets.listen("127.0.0.1", 0) as listening:
        settings = serve.complete(given, listening)
    text = serve.greeting(given, settings, Access(settings))
    assert TOKEN not in text
    assert "code=" not in text
    assert settings.idle_stop_s == 3600.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"token": "short"}, "16 characters"),
        ({"read_token": "short"}, "16 characters"),
        ({"token": TOKEN, "read_token": TOKEN}, "the same"),
        ({"certfile": "x.pem"}, "both"),
        ({"certfile": "/nowhere/x.pem", "keyfile": "/nowhere/x.key"}, "not a file"),
    ],
)
def test_settings_that_would_not_work_are_refused_with_advice(given: dict[str, Any], words: str) -> None:
    with sockets.listen("127.0.0.1", 0) as listening, pytest.raises(ArgumentError, match=words):
        serve.complete(ServerSettings(**given), listening)


@contextmanager
def _process(home: Path, *arguments: str, start: str = "", **more: Any) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOOKCORE_")}
    environment |= {"HOOKCORE_HOME": str(home), **more.pop("env", {})}
    command = [start or python(), "-m", "hookcore_app.cli", *arguments]
    process = subprocess.Popen(
        command, env=environment, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def _url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"https?://[\w.-]+:\d+", line):
            return found[0]
    raise AssertionError("it said no address")


def _is_up(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(GET)
            return connection.recv(12) == b"HTTP/1.1 200"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_process_serves_and_exits_cleanly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with _process(tmp_path, "serve", "--port", "0") as process:
        port = int(_url_of(process).rpartition(":")[2])
        wait_for(lambda: _is_up(port))
        with socket.create_connection(("127.0.0.1", port)) as stream:
            stream.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert stream.recv(12) == b"HTTP/1.1 200"
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()


def test_a_dashboard_takes_over_a_socket_holds_its_lock_and_removes_its_own_file(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "dashboard.lock", os.O_RDWR | os.O_CREAT, 0o600)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        handed = {"HOOKCORE_LOCK_FD": str(lock), "HOOKCORE_LISTEN_FD": str(listening.fileno()), "HOOKCORE_TOKEN": TOKEN}
        handed_on = {"env": handed, "pass_fds": (lock, listening.fileno())}
        with _process(tmp_path, "serve", "--dashboard", start=sys.executable, **handed_on) as process:
            wait_for(lambda: _is_up(port))
            assert os.readlink(f"/proc/{process.pid}/fd/{lock}").endswith("dashboard.lock")
            usual, tasks = os.getpriority(os.PRIO_PROCESS, 0), f"/proc/{process.pid}/task"
            given_way = [os.getpriority(os.PRIO_PROCESS, int(task)) - usual for task in os.listdir(tasks)]
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == usual  # it answers a person
            assert max(given_way) in range(1, 6)  # what can wait gives way to the training
            file = tmp_path / "dashboard.json"
            file.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "token": TOKEN, "pid": process.pid}))
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
            assert not file.exists()
    os.close(lock)


def test_a_dashboard_does_not_touch_another_dashboards_file(tmp_path: Path) -> None:
    file = tmp_path / "dashboard.json"
    file.write_text(json.dumps({"url": "", "token": "", "pid": 1}))
    with _process(tmp_path, "serve", "--dashboard", "--port", "0") as process:
        port = int(_url_of(process).rpartition(":")[2])
        wait_for(lambda: _is_up(port))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert file.exists()


@pytest.mark.slow
def test_a_saved_run_is_opened_from_the_command_line(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with served(keep=str(kept)) as server:
        batch = make_batch(make_info(), [0, 1, 2])
        ended = msgspec.structs.replace(batch, items=(*batch.items, wire.EndItem(3, 2)))
        answer = httpx2.post(f"{server.url}/api/v1/ingest", content=wire.encode(ended), headers={**BATCH, **BEARER})
        assert answer.status_code == 200
    (folder,) = kept.iterdir()
    with _process(tmp_path, "open", str(folder), "--port", "0") as process:
        url = _url_of(process)
        wait_for(lambda: _is_up(int(url.rpartition(":")[2])))
        page = httpx2.get(f"{url}/runs/one").text
        assert "layer.1" in page
        assert 'class="pill ended" id="status"' in page
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    returned, told = _command(tmp_path, "open", str(damaged), "--port", "0")
    assert returned == 2
    assert "Traceback" not in told


def _command(home: Path, *arguments: str) -> tuple[int, str]:
    with _process(home, *arguments) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--port", "many"), "port='many'"),
        (("serve", "--memory", "much"), "memory='much'"),
        (("serve", "--host", "192.0.2.1"), "192.0.2.1"),
        (("serve", "--token-file", "nowhere"), "token-file"),
        (("open", "nowhere"), "'nowhere' is not a file"),
        (("link",), "no dashboard is running"),
        (("link", "ftp://box"), "http://"),
        (("link", "http://127.0.0.1:1"), "can't be reached"),
    ],
)
def test_a_command_line_error_is_one_sentence_and_exit_code_two(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    words: str,
) -> None:
    monkeypatch.setenv("HOOKCORE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_the_status_of_a_missing_dashboard_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOOKCORE_HOME", str(tmp_path))
    assert cli.main(["status"]) == cli.main(["stop"]) == 0
    assert capsys.readouterr().out.count("no dashboard is running") == 2


def test_every_setting_has_a_flag_and_is_read_from_flags_and_variables() -> None:
    parser = cli.make_parser()
    given = parser.parse_args(["serve", "--max-runs", "3", "--allowed-hosts", "a,b", "--dashboard"])
    found = flags.server_settings_of(
        given, {"HOOKCORE_MEMORY": "64MB", "HOOKCORE_MAX_RUNS": "9", "HOOKCORE_DASHBOARD": "0"}
    )
    assert (found.max_runs, found.allowed_hosts, found.memory, found.dashboard) == (3, ("a", "b"), 64_000_000, True)
    assert not flags.server_settings_of(parser.parse_args(["serve"]), {"HOOKCORE_DASHBOARD": "0"}).dashboard
    for arguments, environment, error in (
        ((), {"HOOKCORE_DASHBOARD": "perhaps"}, "HOOKCORE_DASHBOARD='perhaps' is invalid: dashboard must be 1 or 0."),
        ((), {"HOOKCORE_PORT": "-1"}, "HOOKCORE_PORT=-1 is invalid: port must be an integer of 0 or more."),
        (
            ("--max-body", "9 apples"),
            {},
            "max_body='9 apples' is invalid: max_body must be a size such as 512MB. Unknown",
        ),
        (("--idle-stop-s", "nan"), {}, "idle_stop_s=nan is invalid: idle_stop_s must be a number of 0 or more."),
    ):
        with pytest.raises(ArgumentError, match=re.escape(error)):
            flags.server_settings_of(parser.parse_args(["serve", *arguments]), environment)


def test_an_empty_variable_of_a_server_counts_as_not_set_as_in_a_training() -> None:
    empty = {setting.variable: "" for setting in SERVER}
    assert ServerSettings.of({}, empty) == ServerSettings.of({}, {}) == ServerSettings()


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    parser = cli.make_parser()
    given = parser.parse_args(["serve", "--token-file", str(tmp_path / "token")])
    assert flags.server_settings_of(given, {}).token == TOKEN


def test_a_link_is_made_from_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    with served() as server:
        assert cli.main(["link", server.url, "--read-only"]) == 0
        path = capsys.readouterr().out.strip().removeprefix(server.url)
        assert b"303" in server.get(path)[:20]
        assert cli.main(["logout", server.url]) == 0
        assert "1 browser was logged out" in capsys.readouterr().out
        monkeypatch.setenv("HOOKCORE_TOKEN", "w" * 40)
        assert cli.main(["link", server.url]) == 2
        assert "token" in capsys.readouterr().err


def test_help_works_without_torch() -> None:
    code = "import sys; from hookcore_app import cli; cli.make_parser().format_help(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, check=False).returncode == 0
    assert "examples:" in cli.make_parser().format_help()


def test_tls_is_served_with_a_certificate(tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, capture_output=True, check=True,
    )  # fmt: skip
    files = {"certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem")}
    context = ssl.create_default_context(cafile=files["certfile"])
    with ExitStack() as stack:
        server = stack.enter_context(served(**files))
        plain = stack.enter_context(server.connect())
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_every_request_of_many_threads_is_answered() -> None:
    answers: list[bytes] = []

    def ask(server: Served) -> None:
        for _ in range(10):
            answers.append(server.get("/healthz")[:12])

    with served() as server:
        threads = [threading.Thread(target=ask, args=(server,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert answers == [b"HTTP/1.1 200"] * 200


def test_a_failed_check_of_the_runs_does_not_end_the_server(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("a run is odd")

    with served(lost_after_s=10_000.0) as server:
        server.server.lifetime.each_second = fail
        wait_for(lambda: "regular check of its runs failed" in caplog.text)
        assert b"200 OK" in server.get("/healthz")
