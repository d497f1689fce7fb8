"""The dashboard process: one per user, found through a private folder, started if needed, and never in the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookcore.delivery.dashboard import process as dashboard
from hookcore.delivery.dashboard.process import find, home, join_or_start, status, stop_dashboard
from hookcore.errors import ArgumentError, ServerError
from tests.waiting import wait_for
from tests.warm import python

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable


@pytest.fixture(autouse=True)
def quick_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start dashboards as forks of a Python that has already imported what they need."""
    monkeypatch.setattr(sys, "executable", python())


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a separate user, whose dashboard ends with the test."""
    folder = tmp_path / "home"
    yield {**os.environ, "HOOKCORE_HOME": str(folder), "HOOKCORE_PORT": "0"}
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    if status({"HOOKCORE_HOME": str(folder)}).pid:
        stop_dashboard({"HOOKCORE_HOME": str(folder)})


def _answers(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/healthz", timeout=30) as answer:
        return json.load(answer)


def test_the_first_trainer_starts_it_and_the_second_joins(environment: dict[str, str]) -> None:
    first = join_or_start(environment)
    second = join_or_start(environment)
    assert (first.started, second.started) == (True, False)
    assert (second.url, second.token) == (first.url, first.token)
    assert len(first.token) >= 43
    assert first.token not in repr(first)
    assert _answers(first.url)
    assert find(environment) == second
    found = status(environment)
    assert found.running
    assert found.url == first.url


def test_its_address_accepts_connections_before_the_process_is_ready(environment: dict[str, str]) -> None:
    started = join_or_start(environment)
    port = int(started.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30):
        assert started.url.startswith("http://127.0.0.1:")


def test_only_the_user_can_read_the_folder_and_its_files(environment: dict[str, str]) -> None:
    started = join_or_start(environment)
    folder = home(environment)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    said = json.loads((folder / "dashboard.json").read_text())
    assert set(said) == {"url", "token", "pid", "started_s", "version"}
    _answers(started.url)
    command = Path(f"/proc/{said['pid']}/cmdline").read_bytes()
    assert b"serve" in command
    assert started.token.encode() not in command


def test_a_folder_that_others_could_read_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    home({"HOOKCORE_HOME": str(folder)})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_machines_with_a_shared_home_have_separate_folders(tmp_path: Path) -> None:
    name = socket.gethostname()
    assert home({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "hookcore" / name
    assert home({"HOME": str(tmp_path / "me")}) == tmp_path / "me/.local/state/hookcore" / name


def test_a_dashboard_stops_on_request_and_another_can_replace_it(environment: dict[str, str]) -> None:
    assert stop_dashboard(environment) == "no dashboard is running"
    first = join_or_start(environment)
    _answers(first.url)
    assert first.url in stop_dashboard(environment)
    assert not status(environment).running
    assert find(environment) is None
    second = join_or_start(environment)
    assert second.started
    assert second.token != first.token


def test_a_killed_dashboard_leaves_nothing_stale(environment: dict[str, str]) -> None:
    first = join_or_start(environment)
    os.kill(status(environment).pid, signal.SIGKILL)
    wait_for(lambda: not status(environment).running)
    assert (home(environment) / "dashboard.json").exists()
    second = join_or_start(environment)
    assert second.started
    assert second.token != first.token
    assert _answers(second.url)


def test_a_dashboard_outlives_its_starter_and_is_not_in_its_session(environment: dict[str, str]) -> None:
    code = "from hookcore.delivery.dashboard.process import join_or_start; print(join_or_start().url)"
    ran = subprocess.run(
        [PYTHON, "-W", "error", "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert not ran.stderr
    assert _answers(ran.stdout.strip())
    assert os.getsid(status(environment).pid) == status(environment).pid


def test_trainers_that_start_at_the_same_moment_share_one_dashboard(environment: dict[str, str]) -> None:
    code = (
        "import sys; from hookcore.delivery.dashboard.process import join_or_start; "
        "sys.stdin.readline(); d = join_or_start(); "
        "print(d.url, d.token, d.started)"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert all(racer.returncode == 0 for racer in racers)
    assert len({(url, token) for url, token, _ in said}) == 1
    assert [started for _, _, started in said].count("True") == 1


def test_the_next_free_port_is_used(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = join_or_start({**environment, "HOOKCORE_PORT": str(port)})
    assert int(started.url.rsplit(":", 1)[1]) != port
    assert _answers(started.url)


@pytest.mark.parametrize("port", ["http", "-1", "65536", "8642.0", "0000008642000"])
def test_the_error_for_an_invalid_port_says_what_is_valid(environment: dict[str, str], port: str) -> None:
    with pytest.raises(ArgumentError, match="a port from 0 to 65535"):
        join_or_start({**environment, "HOOKCORE_PORT": port})
    assert not status(environment).running


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\0",
        '{"url": "http://127.0.0.1:1"}',
        '{"url": "http://evil:1", "token": "%s", "pid": 9}',
        '{"url": "http://127.0.0.1:1", "token": 3, "pid": 9}',
        '{"url": "http://127.0.0.1:1", "token": "%s", "pid": -1}',
    ],
)
def test_the_next_start_repairs_a_damaged_file(environment: dict[str, str], text: str) -> None:
    (home(environment) / "dashboard.json").write_text(text.replace("%s", "t" * 43))
    assert find(environment) is None
    started = join_or_start(environment)
    assert started.started
    again = find(environment)
    assert again is not None
    assert again.url == started.url


def test_a_damaged_file_of_a_running_dashboard_is_reported(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "FIND_S", 0.1)
    join_or_start(environment)
    file = home(environment) / "dashboard.json"
    _answers(status(environment).url)  # before its first answer, it writes its address again
    whole = file.read_text()
    file.write_text("{")
    try:
        with pytest.raises(ServerError, match=r"has no address: stop the process"):
            join_or_start(environment)
        with pytest.raises(ServerError, match=r"has no address"):
            stop_dashboard(environment)
        assert status(environment).running
        assert status(environment).url == ""
    finally:
        file.write_text(whole)


def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/hookcore")):
        with pytest.raises(ServerError, match="set HOOKCORE_HOME"):
            join_or_start({"HOOKCORE_HOME": str(folder)})


def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    foreign = Path("/")
    if os.getuid() == 0:
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        os.chown(foreign, 12345, 12345)
    with pytest.raises(ServerError, match="belongs to another user"):
        home({"HOOKCORE_HOME": str(foreign)})


def test_a_server_that_cannot_start_explains_itself_in_the_log(environment: dict[str, str]) -> None:
    broken = {**environment, "HOOKCORE_MEMORY": "ignored", "HOOKCORE_MAX_RUNS": "many"}
    started = join_or_start(broken)
    wait_for(lambda: not status(environment).running)
    assert "max_runs" in started.log.read_text()
    assert join_or_start(environment).started


def test_settings_of_a_training_do_not_reach_the_server(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", PYTHON)  # the system knows the variables of a process that isn't a fork
    given = {**environment, "HOOKCORE_MEMORY": "5MB", "HOOKCORE_KEEP": "/nowhere", "HOOKCORE_HOST": "0.0.0.0"}
    given |= {"HOOKCORE_TOKEN": "that of another server"}
    started = join_or_start(given)
    _answers(started.url)
    pid = status(environment).pid
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    names = {each.split(b"=")[0].decode() for each in variables}
    assert not names & {"HOOKCORE_MEMORY", "HOOKCORE_KEEP", "HOOKCORE_HOST", "HOOKCORE_SERVER"}
    assert f"HOOKCORE_TOKEN={started.token}".encode() in variables
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")


def test_a_starter_that_forks_later_does_not_keep_the_lock(environment: dict[str, str]) -> None:
    code = """
import os, sys, time
from hookcore.delivery.dashboard.process import join_or_start, status, stop_dashboard
join_or_start()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(stop_dashboard())
os.kill(child, 9)
assert not status().running
"""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
    assert time.monotonic() - began < 55
