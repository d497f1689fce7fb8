"""What operating systems do differently, as far as Linux shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from hookcore.delivery.dashboard.private import PrivateFolder
from hookcore.platform import is_process, kill_session, lock_file, read_at, unlock_file, write_parts


def test_a_lock_is_of_one_descriptor_until_it_is_given_back_or_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("wb") as first, path.open("rb") as second:
        lock_file(first)
        with pytest.raises(BlockingIOError):
            lock_file(second)
        with pytest.raises(BlockingIOError):
            lock_file(second.fileno(), shared=True)
        unlock_file(first.fileno())
        lock_file(second)
    with path.open("rb") as third:
        lock_file(third)


def test_shared_locks_go_together_and_keep_others_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("wb") as first, path.open("rb") as second, path.open("rb") as third:
        lock_file(first, shared=True)
        lock_file(second, shared=True)
        with pytest.raises(BlockingIOError):
            lock_file(third)


def test_where_folders_cant_be_opened_a_private_folder_works_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, whose other calls aren't run here."""
    monkeypatch.setattr("hookcore.delivery.dashboard.private.OPENS_FOLDERS", False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with PrivateFolder(tmp_path / "new" / "home") as folder:
            folder.write("dashboard.json", b"first")
            folder.write("dashboard.json", b"second")  # replaces the first
            folder.write("dashboard.json.1", b"a draft")
            folder.remove_drafts("dashboard.json")
            assert folder.read("dashboard.json") == b"second"
            assert folder.names() == ["dashboard.json"]
            folder.remove("dashboard.json")
            folder.remove("dashboard.json")  # which is gone already
    assert list((tmp_path / "new/home").iterdir()) == []


def test_where_files_have_no_modes_a_private_folder_outside_of_the_users_own_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookcore.delivery.dashboard.private.OPENS_FOLDERS", False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "me")
    with pytest.warns(RuntimeWarning, match="others may read the dashboard's token there; set HOOKCORE_HOME"):
        PrivateFolder(tmp_path / "shared")


def test_a_file_is_read_at_a_place_while_it_grows(tmp_path: Path) -> None:
    number = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    assert write_parts(number, [b"one ", bytearray(b"two")]) == 7
    assert read_at(number, 3, 4) == b"two"
    assert write_parts(number, [b" three"]) == 6
    assert read_at(number, 100, 4) == b"two three"
    os.close(number)


def test_a_process_is_known_until_it_ends_and_killing_its_session_ends_what_it_has_started() -> None:
    code = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1).pid, flush=True)"
    )
    command = [sys.executable, "-c", f"{code}; input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert is_process(process.pid)
        assert is_process(child)
        kill_session(process.pid)
        process.wait()
        assert process.stdout.read() == b""  # the end of the pipe that both had open
    assert not is_process(process.pid)


FREES = """
import threading, time
from pathlib import Path
from hookcore.platform import return_memory, save_memory

def held():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

save_memory()
kept = [bytearray(b"x" * 50_000) for _ in range(1000)]
kept = kept[::2]
before = held()
threading.Thread(target=return_memory, args=(0.01, 0.0), daemon=True).start()
while before - held() < 15_000_000:
    time.sleep(0.01)
print(len(kept), "are left")
"""


def test_memory_that_was_freed_between_what_is_in_use_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "500 are left\n"
