"""A run that raises is shown as crashed, with its exception, traceback, and step, however the loop handles it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hookcore
from hookcore.delivery import failures
from hookcore.delivery import failures as signals
from hookcore.delivery.archive import Archive, read_archive
from hookcore.records import Event
from tests.warm import python
from tests.zoo.case import mlp

ROOT = Path(__file__).parents[2]
needs_handler = pytest.mark.skipif(
    not Path(signals.__file__).with_name(signals.FILE).exists(), reason="the handler of signals isn't compiled here"
)
RAISES = "train(3)\nraise RuntimeError('out of luck')"
RETURN, RAISED, INTERRUPTED, TERMINATED = 0, 1, -signal.SIGINT, -signal.SIGTERM
# A script that is ended by a signal, whatever it does: it asserts that nothing of the signal has changed.
KILLED = (
    "watcher = start()\ntrain(3)\nassert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    "while not glob.glob(os.path.join(os.path.dirname(__file__), '*', 'run.json')):\n    time.sleep(0.01)\n"
)
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
    "sigterm": (f"{KILLED}os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)", TERMINATED),
    # The main thread keeps every other thread of Python from running.
    "sigterm while python is stuck": (
        f"{KILLED}subprocess.Popen(['sh', '-c', f'sleep 1; kill -TERM {{os.getpid()}}'])\n"
        "re.match('(a+)+$', 'a' * 60 + 'b')",
        TERMINATED,
    ),
    "sigterm in a fork": (
        f"{KILLED}child = os.fork()\nif not child:\n    time.sleep(60)\nos.kill(child, signal.SIGTERM)\n"
        "assert os.waitpid(child, 0)[1] == signal.SIGTERM",
        RETURN,
    ),
    "own handler": (
        f"{KILLED}signal.signal(signal.SIGTERM, lambda *told: sys.exit(143))\n"
        "with watcher:\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)",
        128 + signal.SIGTERM,
    ),
    "exit 3": ("with start():\n    train(3)\n    sys.exit(3)", 3),
}
DRIVER = """
import glob, os, re, signal, subprocess, sys, time, torch
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
def test_ctrl_c_stops_a_run_and_an_exit_code_is_recorded(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    interrupted = run_script(tmp_path / "one", "ctrl c")
    assert interrupted.failure is not None
    assert (interrupted.state, interrupted.failure.signal) == ("stopped", "SIGINT")
    archive = run_script(tmp_path / "two", "exit 3")
    assert archive.state == "crashed"
    failure = archive.failure
    assert failure is not None
    assert "exited with 3" in failure.error


@pytest.mark.slow
@needs_handler
@pytest.mark.parametrize("script", ["sigterm", "own handler"])
def test_a_signal_that_ends_a_process_stops_the_run_and_loses_no_step(tmp_path: Path, script: str) -> None:
    archive = run_script(tmp_path, script)
    assert archive.failure is not None
    assert (archive.state, archive.failure.outcome, archive.failure.signal) == ("stopped", "stopped", "SIGTERM")
    assert (archive.failure.step, archive.last_step, archive.steps) == (3, 2, 3)


@pytest.mark.slow
@needs_handler
def test_a_signal_ends_a_process_in_which_no_thread_of_python_can_run(tmp_path: Path) -> None:
    assert run_script(tmp_path, "sigterm while python is stuck").state == "lost"


@pytest.mark.slow
def test_a_signal_ends_a_fork_of_the_training_and_not_the_run(tmp_path: Path) -> None:
    assert run_script(tmp_path, "sigterm in a fork").state == "ended"


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
    return [event for event in watcher.store.events() if event.name in ("crashed", "stopped")]


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


class Broken(torch.nn.Module):
    """A model whose second block raises if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU(), Raising())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(values))  # type: ignore[no-any-return]


class Raising(torch.nn.Module):
    raises = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack([values, values[:1]]) if self.raises else values  # THE LINE


@pytest.mark.parametrize("every", [1, 1000])
def test_a_crash_names_the_module_that_raised_and_the_users_line_captured_or_not(every: int) -> None:
    model = Broken()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = hookcore.watch(model, server=None, budget=None, every=every, memory="8MB")

    def train() -> None:
        with watcher:
            for step in range(4):
                model.second[1].raises = step == 3
                model(torch.ones(2, 2)).sum().backward()
                optimizer.step()

    with pytest.raises(RuntimeError):
        train()
    (event,) = said(watcher)
    assert event.module == "second.1"
    assert event.about["code"] == "return torch.stack([values, values[:1]]) if self.raises else values  # THE LINE"
    assert event.about["file"] == __file__
    assert "THE LINE" in Path(__file__).read_text().splitlines()[int(event.about["line"] or 0) - 1]
    assert event.message.startswith(
        f"The training crashed in step 3 in second.1, at test_failures.py:{event.about['line']}: RuntimeError: "
    )
    partial = watcher.store.latest(first=3, last=3)
    assert {tap.module for tap in partial.taps} == ({"first", "second.0"} if every == 1 else set())


def test_an_exception_outside_of_all_modules_names_none() -> None:
    try:
        torch.ones(2).backward()
    except RuntimeError as error:
        failure = failures.failure_of(error, 5)
    assert failure is not None
    assert (failure.module, failure.where.partition(":")[0]) == (None, "test_failures.py")
    assert failure.code == "torch.ones(2).backward()"


def _follows_sigterm() -> tuple[bool, bool]:
    """Return whether the process has a handler of SIGTERM, of which Python knows nothing, and the thread for it."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())
    assert caught is not None
    names = [thread.name for thread in threading.enumerate()]
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1), "hookcore-signals" in names


@needs_handler
def test_the_handlers_of_signals_and_their_thread_go_with_the_last_watch_and_return_with_the_next() -> None:
    before = _follows_sigterm()  # libraries of other tests may have a handler of their own
    assert not before[1]
    for _ in range(20):
        first, second = (hookcore.watch(torch.nn.Linear(1, 1), server=None, memory="8MB") for _ in range(2))
        assert _follows_sigterm() == (True, True)
        first.close()
        assert _follows_sigterm() == (True, True)
        second.close()
        assert _follows_sigterm() == before
