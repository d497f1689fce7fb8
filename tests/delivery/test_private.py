"""The private folder under attack and in odd environments: a folder that isn't this user's own is never trusted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import hookcore
from hookcore.delivery.dashboard import private
from hookcore.delivery.dashboard import process as dashboard
from hookcore.delivery.dashboard.private import PrivateFolder
from hookcore.delivery.dashboard.process import find, home, join_or_start, status, stop_dashboard
from hookcore.delivery.http import HttpSink
from hookcore.errors import ServerError
from tests.waiting import wait_for
from tests.warm import python

FILES = ("dashboard.lock", "dashboard.json", "dashboard.log")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a separate user, whose dashboard ends with the test."""
    yield {**os.environ, "HOOKCORE_HOME": str(tmp_path / "home"), "HOOKCORE_PORT": "0"}
    end = {"HOOKCORE_HOME": str(tmp_path / "home")}
    with contextlib.suppress(ServerError):  # the lock isn't this user's file, so no dashboard is running
        stop_dashboard(end)


def _give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file to another user or, without the permission to do that, pretend to be another user."""
    if os.getuid() == 0:
        os.lchown(path, 12345, 12345)
    else:
        own = os.getuid()
        monkeypatch.setattr(private.os, "getuid", lambda: own + 1)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _run(code: str, environment: dict[str, str], **others: str) -> str:
    ran = subprocess.run(
        [python(), "-c", code], check=True, capture_output=True, text=True, env={**environment, **others}
    )
    return ran.stdout + ran.stderr


def test_another_users_link_is_not_followed_and_its_target_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(target)
    (tmp_path / "own").symlink_to(link)
    _give_away(link, monkeypatch)
    for given in (link, link / "below", tmp_path / "own"):
        with pytest.raises(ServerError, match=r"another user's symbolic link.*set HOOKCORE_HOME"):
            home({"HOOKCORE_HOME": str(given)})
    assert _mode(target) == 0o755
    assert not list(target.iterdir())


def test_the_users_own_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "again").symlink_to(tmp_path / "link")
    home({"HOOKCORE_HOME": str(tmp_path / "again" / ".." / "disk" / "below")})
    assert _mode(tmp_path / "disk" / "below") == 0o700


def test_circular_links_terminate(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(ServerError, match="can't be used"):
        home({"HOOKCORE_HOME": str(tmp_path / "one")})


def test_parent_folders_are_created_for_the_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        home({"HOME": str(tmp_path / "me")})
    finally:
        os.umask(before)
    made = [path for path in (tmp_path / "me").rglob("*") if path.is_dir()]
    assert len(made) == 4
    assert {_mode(path) for path in (tmp_path / "me", *made)} == {0o700}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "pipe", "folder"])
def test_a_link_or_pipe_in_place_of_a_file_is_neither_followed_nor_waited_for(
    environment: dict[str, str], tmp_path: Path, name: str, kind: str
) -> None:
    folder = home(environment)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    if kind == "symbolic link":
        (folder / name).symlink_to(precious)
    elif kind == "hard link":
        (folder / name).hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).mkdir()
    if name == "dashboard.json" and kind != "folder":  # the file is replaced
        assert join_or_start(environment).started
    else:
        with pytest.raises(ServerError, match="set HOOKCORE_HOME"):
            join_or_start(environment)
    assert precious.read_text() == "precious"
    if kind == "folder":
        (folder / name).rmdir()


@pytest.mark.parametrize("name", FILES)
def test_files_of_another_user_are_not_used(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = home(environment)
    said = {"url": "http://127.0.0.1:1", "token": "t" * 43, "pid": os.getpid()}
    (folder / name).write_text(json.dumps(said))
    with PrivateFolder(folder) as opened:
        _give_away(folder / name, monkeypatch)
        with pytest.raises(PermissionError, match="not a plain file of your own"):
            opened.read(name)
    assert (folder / name).read_text() == json.dumps(said)


def test_the_opened_folder_stays_in_use_whatever_replaces_it(tmp_path: Path) -> None:
    with PrivateFolder(tmp_path / "folder") as folder:
        (tmp_path / "folder").rename(tmp_path / "moved")
        (tmp_path / "trap").mkdir()
        (tmp_path / "folder").symlink_to("trap")
        folder.write("secret", b"secret")
    assert (tmp_path / "moved" / "secret").read_bytes() == b"secret"
    assert not list((tmp_path / "trap").iterdir())


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space")

    with PrivateFolder(tmp_path / "folder") as folder:
        folder.write("file", b"old")
        monkeypatch.setattr(private.os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            folder.write("file", b"new")
        assert os.listdir(tmp_path / "folder") == ["file"]
        assert folder.read("file") == b"old"


def test_two_processes_that_check_at_the_same_moment_do_not_mistake_each_other_for_the_dashboard(
    environment: dict[str, str],
) -> None:
    folder = home(environment)
    stale = {"url": "http://127.0.0.1:1", "token": "t" * 43, "pid": os.getpid()}  # the process number was reused
    (folder / "dashboard.json").write_text(json.dumps(stale))
    lock = os.open(folder / "dashboard.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    closer = threading.Timer(0.3, os.close, (lock,))
    closer.start()
    try:
        assert find(environment) is None
        assert join_or_start(environment).started
    finally:
        closer.join()


def test_a_dashboard_whose_starter_was_killed_publishes_its_address(environment: dict[str, str]) -> None:
    code = """
import os, signal
from hookcore.delivery.dashboard import process
from hookcore.delivery.dashboard.process import join_or_start
write = process.write_entry
process.write_entry = lambda *given: os.kill(os.getpid(), signal.SIGKILL) if given[-1] else write(*given)
join_or_start()
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert killed.returncode == -9
    assert status(environment).running
    assert not join_or_start(environment).started  # its address was published before it had started
    wait_for(lambda: status(environment).pid)


# -- a training is never stopped ------------------------------------------------------------------------------------

WATCH = """
import os, sys, torch, hookcore
from hookcore_app import cli
model = torch.nn.Linear(3, 1)
hookcore.watch(model, server=None).close()  # what is imported later needs a temporary folder
{before}
watcher = hookcore.watch(model, server="auto", budget=None)
for _ in range(2):
    model(torch.ones(2, 3)).sum().backward()
    watcher.step()
assert watcher.flush()
print("steps", watcher.store.steps().count, "url", watcher.url)
watcher.close()
print("status", cli.main(["status"]))
"""
NO_PASSWD = """
os.environ.pop("HOME", None)
if os.getuid() == 0:
    os.setgroups([]); os.setgid(54321); os.setuid(54321)
else:
    import pwd
    def nobody(uid): raise KeyError(uid)
    pwd.getpwuid = nobody
"""
NO_DISK = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""
NO_CURRENT_FOLDER = """
import tempfile
os.chdir(folder := tempfile.mkdtemp()); os.rmdir(folder)
"""
NO_LOOPBACK = """
import ctypes
NEW_USER, NEW_NET = 0x10000000, 0x40000000
assert ctypes.CDLL(None, use_errno=True).unshare(NEW_NET if os.getuid() == 0 else NEW_USER | NEW_NET) == 0
"""


@pytest.mark.parametrize(
    ("before", "variables", "words"),
    [
        (NO_PASSWD, {"HOOKCORE_HOME": ""}, "has no home folder"),
        (NO_DISK, {}, "can't be used (File too large"),
        (NO_CURRENT_FOLDER, {"HOOKCORE_HOME": "relative"}, "can't be used"),
        (NO_LOOPBACK, {}, "127.0.0.1 can't be reached"),
    ],
    ids=["no home", "full disk", "no current folder", "no loopback"],
)
def test_training_continues_with_its_own_store_and_a_warning_that_says_why(
    environment: dict[str, str], before: str, variables: dict[str, str], words: str
) -> None:
    variables = {"XDG_STATE_HOME": "", **variables}
    said = _run(WATCH.format(before=before), environment, **variables)
    assert "steps 2 url None" in said
    assert said.count("hookcore: no dashboard: ") == 1
    assert words in said
    assert "The run stays in watcher.store." in said
    assert "Traceback" not in said
    assert not status(environment).running


@pytest.mark.parametrize("given", ["/proc/self/hookcore", "~nobody-of-this-name/x", "/dev/null/x"])
def test_a_folder_that_cannot_be_created_is_an_error_with_advice(given: str) -> None:
    with pytest.raises(ServerError, match=r"can't be used .*set HOOKCORE_HOME"):
        home({"HOOKCORE_HOME": given})


def test_training_continues_if_no_thread_can_be_started_for_the_sender(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    for name in ("HOOKCORE_HOME", "HOOKCORE_PORT"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setattr(HttpSink, "start", fail)
    model = nn.Linear(3, 1)
    with hookcore.watch(model, server="auto", budget=None) as watcher:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            watcher.step()
        assert watcher.flush()
        assert watcher.store.steps().count == 2
    assert "can't start new thread" in caplog.text


def test_a_trainer_that_is_killed_while_it_starts_a_dashboard_leaves_one_for_the_next(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "STOP_S", 60.0)
    start = "from hookcore.delivery.dashboard.process import join_or_start; print('up', flush=True); "
    code = f"{start}print(join_or_start().url)"
    for delay_s in (0.0, 0.003, 0.01):
        trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
        assert trainer.stdout is not None
        trainer.stdout.readline()
        time.sleep(delay_s)
        trainer.kill()
        trainer.communicate()
        assert join_or_start(environment).url.startswith("http://127.0.0.1:")
        stop_dashboard(environment)
