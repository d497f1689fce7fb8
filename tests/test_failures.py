"""A run that raises is shown as crashed, with its exception, traceback, and step, however the loop handles it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hookcore
from hookcore.delivery import failures
from hookcore.delivery.archive import Archive, read_archive
from hookcore.records import Event
from tests.warm import python
from tests.zoo.case import mlp

ROOT = Path(__file__).parents[1]
RAISES = "train(3)\nraise RuntimeError('out of luck')"
RETURN, RAISED, INTERRUPTED = 0, 1, -signal.SIGINT
# Each script, and how it ends under Python.
SCRIPTS: dict[str, tuple[str, int]] = {
    "plain": (f"watcher = start()\n{RAISES}", RAISED),
    "with": ("with start():\n    train(3)\n    raise RuntimeError('out of luck')", RAISED),
    "finally": (
        "watcher = start()\ntry:\n    train(3)\n    raise RuntimeError('out of luck')\nfinally:\n    watcher.close()",
        RAISED,
    ),
    "own hook": (f"watcher = start()\nsys.excepthook = lambda *told: print('mine')\n{RAISES}", RAISED),
    "fine": ("watcher = start()\ntrain(3)", RETURN),
    "caught": (
        "with start():\n    train(3)\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        pass",
        RETURN,
    ),
    "exit 0": ("with start():\n    train(3)\n    sys.exit(0)", RETURN),
    "after the run": ("with start():\n    train(3)\nraise RuntimeError('later')", RAISED),
    "in an older exception": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    watcher = start()\n    train(3)\n    watcher.close()",
        RETURN,
    ),
    "ctrl c": ("watcher = start()\ntrain(3)\nraise KeyboardInterrupt", INTERRUPTED),
    "exit 3": ("with start():\n    train(3)\n    sys.exit(3)", 3),
}
DRIVER = """
import sys, torch
sys.path.insert(0, {root!r})
import hookcore
def train(steps):  # without torch's optimizers, whose import takes a third of the time of a script
    for _ in range(steps):
        model(torch.randn(4, 6)).square().mean().backward()
        watcher.step()
def start():
    global watcher
    watcher = hookcore.watch(model, server=None, keep={keep!r}, budget=None)
    return watcher
model = torch.nn.Linear(6, 6)
{script}
"""


def run_script(folder: Path, name: str) -> Archive:
    """Return the run that a script left on disk."""
    script, code = SCRIPTS[name]
    file = folder / "script.py"
    file.write_text(DRIVER.format(root=str(ROOT), script=script, keep=str(folder)))
    # If the tests run in the background, they ignore Ctrl+C, and so would the script.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = subprocess.run([python(), str(file)], capture_output=True, text=True, timeout=240)
    finally:
        signal.signal(signal.SIGINT, heard)
    assert done.returncode == code, done.stderr
    if code == RAISED and name != "own hook":
        assert "RuntimeError" in done.stderr  # Python's usual traceback
    assert ("mine" in done.stdout) == (name == "own hook")
    return read_archive(next(folder.glob("*.hookcore")))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["plain", "with", "finally", "own hook"])
def test_a_script_that_raises_leaves_a_crashed_run(tmp_path: Path, script: str) -> None:
    archive = run_script(tmp_path, script)
    assert archive.state == "crashed"
    assert archive.failure is not None
    assert (archive.failure.error, archive.failure.step) == ("RuntimeError: out of luck", 3)
    assert "script.py" in archive.failure.traceback
    assert archive.failure.traceback.rstrip().endswith("RuntimeError: out of luck")


@pytest.mark.slow
@pytest.mark.parametrize("script", ["fine", "caught", "exit 0", "after the run", "in an older exception"])
def test_a_run_that_did_not_raise_has_ended(tmp_path: Path, script: str) -> None:
    archive = run_script(tmp_path, script)
    assert (archive.state, archive.failure) == ("ended", None)


@pytest.mark.slow
def test_ctrl_c_interrupts_a_run_and_an_exit_code_is_recorded(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert run_script(tmp_path / "one", "ctrl c").state == "interrupted"
    archive = run_script(tmp_path / "two", "exit 3")
    assert archive.state == "crashed"
    failure = archive.failure
    assert failure is not None
    assert "exited with 3" in failure.error


@pytest.fixture
def open_watcher() -> Any:
    watchers = []

    def start() -> hookcore.Watcher:
        watchers.append(hookcore.watch(mlp(), server=None, budget=None, memory="8MB"))
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.close()


def said(watcher: hookcore.Watcher) -> list[Event]:
    return [event for event in watcher.store.events() if event.name in ("crashed", "interrupted")]


def test_the_exception_of_a_run_is_among_its_events(open_watcher: Callable[[], hookcore.Watcher]) -> None:
    watcher = open_watcher()
    with pytest.raises(ValueError, match="odd"), watcher:
        raise ValueError("an odd one \udc80")
    (event,) = said(watcher)
    assert event.severity == "error"
    assert "ValueError: an odd one \\udc80" in event.message


def test_the_end_of_a_loop_is_not_a_crash(open_watcher: Callable[[], hookcore.Watcher]) -> None:
    watcher = open_watcher()
    try:
        next(iter(()))
    except StopIteration:
        watcher.close()
    assert said(watcher) == []


def test_an_exception_whose_own_code_raises_is_still_reported() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    failure = failures.failure_of(OddError(), 7)
    assert failure is not None
    assert "OddError" in failure.error
    deep = failures.failure_of(RecursionError("x" * 10**6), 1)
    assert deep is not None
    assert len(deep.error) <= 1000
    assert len(deep.traceback) <= 16_000
    assert deep.traceback.rstrip().endswith("x")


def test_no_hook_of_the_process_is_replaced(open_watcher: Callable[[], hookcore.Watcher]) -> None:
    before = sys.excepthook
    open_watcher()
    assert sys.excepthook is before


class Shell:
    """The part of IPython that reports cells."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Any]] = {"post_run_cell": []}
        self.events = self

    def register(self, name: str, call: Any) -> None:
        self.callbacks[name].append(call)

    def unregister(self, name: str, call: Any) -> None:
        self.callbacks[name].remove(call)

    def end_cell(self, error: BaseException | None = None) -> None:
        for call in self.callbacks["post_run_cell"]:
            call(SimpleNamespace(error_in_exec=error))


def step(watcher: hookcore.Watcher) -> None:
    torch.nn.Linear(1, 1)(torch.ones(1)).sum().backward()
    watcher.step()


def test_a_cell_that_raises_crashes_the_run_unless_another_cell_continues(
    open_watcher: Callable[[], hookcore.Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell()
    monkeypatch.setattr(failures, "_shell", lambda: shell)
    crashed, recovered, idle = open_watcher(), open_watcher(), open_watcher()
    shell.end_cell()
    step(crashed)
    step(recovered)
    shell.end_cell(ValueError("in a cell"))
    step(recovered)
    shell.end_cell()
    for watcher in (crashed, recovered, idle):
        watcher.close()
    assert [event.message for event in said(crashed)] == ["The training crashed in step 1: ValueError: in a cell"]
    assert said(recovered) == said(idle) == []
    assert shell.callbacks == {"post_run_cell": []}
