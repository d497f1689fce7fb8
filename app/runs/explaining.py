"""Explains saved steps: a child process replays a capsule, because opening one runs code from it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from hookcore.delivery.dashboard.capsules import (
    MAX_EXPLANATION,
    Saved,
    folder_of,
    keep_explanation,
    remove_unfinished,
    saved,
)
from hookcore.errors import HookcoreError, ServerError
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.records import Event

from .run import Run

logger = logging.getLogger("hookcore")

MAX_S: Final = 300.0  # of one replay
MAX_MEMORY: Final = "16GiB"  # of one replay
MAX_RUNNING: Final = 2
CLOSE_S: Final = 5.0
_MAX_SAID: Final = 2000  # characters of what a failed replay printed


class BusyError(HookcoreError):
    """As many steps are being explained as may be at the same time."""


class _Kept(msgspec.Struct):
    """The file next to a capsule."""

    failure: str = ""
    explanation: answers.Explanation | None = None


class Explainer:
    """The capsules of this server's user, and the replays that run now."""

    def __init__(self, environment: Mapping[str, str] = os.environ, max_s: float = MAX_S) -> None:
        self._environment, self._max_s = environment, max_s
        self._running: dict[Path, subprocess.Popen[bytes] | None] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        if left := remove_unfinished(environment):
            logger.warning("hookcore: removed %d unfinished capsule files that killed processes left", left)

    def capsules_of(self, run: Run) -> list[answers.Capsule]:
        """Return the capsules of a run that are on this machine."""
        return [self._answer(each) for each in self._saved(run)]

    def explain(self, run: Run, id: str) -> answers.Capsule | None:
        """Start to replay a capsule, unless that runs already. Return it, or None if there is no such capsule."""
        found = next((each for each in self._saved(run) if each.id == id), None)
        if found is None:
            return None
        with self._lock:
            if not found.trouble and found.path not in self._running:
                if self._closed or len(self._running) >= MAX_RUNNING:
                    raise BusyError(f"{MAX_RUNNING} steps are being explained: try again when one is finished")
                self._running[found.path] = None
                thread = threading.Thread(target=self._replay, args=(run, found), name="hookcore-explain", daemon=True)
                self._threads = [*(each for each in self._threads if each.is_alive()), thread]
                thread.start()
        return self._answer(found)

    def close(self) -> None:
        """End all replays."""
        with self._lock:
            self._closed = True
            for process in self._running.values():
                if process is not None:
                    _kill(process)
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _saved(self, run: Run) -> list[Saved]:
        with contextlib.suppress(ServerError):  # without a private folder, nothing can be in it
            return saved(folder_of(run.id, self._environment))
        return []

    def _answer(self, found: Saved) -> answers.Capsule:
        kept, about = _Kept(found.trouble) if found.trouble else _read(found.explained), found.described
        state: Any = "saved" if kept is None else "failed" if kept.failure else "explained"
        with self._lock:
            state = "running" if found.path in self._running else state
        return answers.Capsule(
            id=found.id,
            step=about.step,
            reason=about.reason,
            model=about.model,
            weights=about.weights,
            time_s=Number(about.time_s),
            size=found.size,
            path=str(found.path),
            state=state,
            failure="" if kept is None or state == "running" else kept.failure,
            explanation=None if kept is None or state == "running" else kept.explanation,
            incident="" if about.occasion is None else about.occasion.incident,
        )

    # The child

    def _replay(self, run: Run, found: Saved) -> None:
        try:
            kept = self._run(found)
        except Exception as error:  # for example, no more processes
            kept = _Kept(failure=f"the replay could not be started: {type(error).__name__}: {error}")
        if not self._closed:  # otherwise it was ended, which says nothing about the step
            with contextlib.suppress(OSError):
                keep_explanation(found.path, msgspec.json.encode(kept))
        with self._lock:
            self._running.pop(found.path, None)
        if self._closed:
            return
        step, said = found.described.step, kept.explanation
        if said is not None:
            run.store.add_event(Event(step, time.time(), "explained", said.sentence))
        else:
            run.store.add_event(Event(step, time.time(), "explanation-failed", kept.failure))
        run.changes.tell()

    def _run(self, found: Saved) -> _Kept:
        python = str(found.described.main.get("python", ""))
        command = [python if os.path.isfile(python) else sys.executable, "-m", "hookcore_app.cli", "replay"]
        command += [str(found.path), "--json", "--memory", MAX_MEMORY]
        threads = str(found.described.versions.get("threads", "1"))
        variables = {name: value for name, value in self._environment.items() if not name.startswith("HOOKCORE_")}
        variables |= {"HOOKCORE_SERVER": "none", "OMP_NUM_THREADS": threads if threads.isdecimal() else "1"}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            # Its folder contains capsules only, so nothing in it can stand in for a module.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=found.path.parent,
                env=variables,
                start_new_session=True,
            )
            with self._lock:
                self._running[found.path] = process
                if self._closed:
                    _kill(process)
            try:
                code = process.wait(self._max_s)
            except subprocess.TimeoutExpired:
                return _Kept(failure=f"the replay took more than {self._max_s:,.0f} s and was stopped")
            finally:
                _kill(process)  # and what it has started
            return _kept_of(code, _content(output), _content(errors))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MAX_EXPLANATION + 1)


def _kept_of(code: int, output: bytes, errors: bytes) -> _Kept:
    if code == 0:
        try:
            return _Kept(explanation=msgspec.json.decode(output, type=answers.Explanation))
        except msgspec.DecodeError as error:
            return _Kept(failure=f"the replay's answer can't be read: {error}")
    said = errors.decode("utf-8", "backslashreplace").strip()[-_MAX_SAID:]
    how = f"a signal ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    return _Kept(failure=f"the replay ended with {how}: {said}" if said else f"the replay ended with {how}")


def _read(explained: bytes | None) -> _Kept | None:
    if explained is None:
        return None
    try:
        return msgspec.json.decode(explained, type=_Kept)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return _Kept(failure=f"the saved result of the replay can't be read: {error}")
