"""The child process that replays a saved step, because opening a capsule runs code from it, and its result as events.

A server starts one when someone asks for it; a trainer does once, for the step of its first error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

import msgspec

from hookcore.delivery.dashboard.capsules import MAX_EXPLANATION, Saved, explanation_of, keep_explanation
from hookcore.platform import kill_session, lock_file
from hookcore.reading import answers
from hookcore.records import Event, Value
from hookcore.records.flow import EXPLAINED, NOTHING, REPLAYED, ReplayedTap, packed

MAX_S: Final = 300.0  # of one replay
MAX_MEMORY: Final = "16GiB"  # of one replay
FAILED: Final = "explanation-failed"
_MAX_SAID: Final = 2000  # characters of what a failed replay printed
_MAX_CODE: Final = 400  # characters of a line
_POLL_S: Final = 0.2


class Kept(msgspec.Struct):
    """The file next to a capsule."""

    failure: str = ""
    explanation: answers.Explanation | None = None


def read(explained: bytes | None) -> Kept | None:
    """Return the content of that file; None if there is none."""
    if explained is None:
        return None
    try:
        return msgspec.json.decode(explained, type=Kept)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return Kept(failure=f"the saved result of the replay can't be read: {error}")


class Replaying:
    """The replay of one capsule, in a process with a lower priority and limited memory.

    `by_itself`: nobody asked for it. Then only imports and definitions of the main script run, and no GPU is used.
    """

    def __init__(self, capsule: Saved, environment: Mapping[str, str], *, by_itself: bool = False) -> None:
        self._found, self._environment, self._by_itself = capsule, environment, by_itself
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.was_elsewhere = False  # whether another process has replayed it, which reports the events, too
        self._lock = threading.Lock()

    def run(self, max_s: float = MAX_S) -> Kept:
        """Replay the capsule, and write the result next to it, unless it was killed, which says nothing of the step.

        While another process replays it, wait for that one's result.
        """
        with self._turn(max_s):
            if self.was_elsewhere and (kept := read(explanation_of(self._found.path))) and not kept.failure:
                return kept
            self.was_elsewhere = False
            try:
                kept = self._run(max_s)
            except Exception as error:  # for example, no more processes
                kept = Kept(failure=f"the replay could not be started: {type(error).__name__}: {error}")
            if not self._killed:
                with contextlib.suppress(OSError):
                    keep_explanation(self._found.path, msgspec.json.encode(kept))
            return kept

    @contextlib.contextmanager
    def _turn(self, max_s: float) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # it was removed: the replay says so
                file = stack.enter_context(self._found.path.open("rb"))
                until = time.monotonic() + max_s
                while not self._killed and time.monotonic() < until:
                    with contextlib.suppress(BlockingIOError):
                        lock_file(file)
                        break
                    self.was_elsewhere = True
                    time.sleep(_POLL_S)
            yield

    def kill(self) -> None:
        """End it."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                _kill(self._process)

    def _run(self, max_s: float) -> Kept:
        # Its folder contains capsules only, so nothing in it can stand in for a module.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            with self._lock:
                if self._killed:
                    return Kept(failure="the replay was stopped")
                process = self._process = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    cwd=self._found.path.parent,
                    env=self._variables(),
                    start_new_session=True,
                )
            try:
                code = process.wait(max_s)
            except subprocess.TimeoutExpired:
                return Kept(failure=f"the replay took more than {max_s:,.0f} s and was stopped")
            finally:
                _kill(process)  # and what it has started
            return _kept_of(code, _content(output), _content(errors))

    def command(self) -> list[str]:
        python = str(self._found.described.main.get("python", ""))
        command = [python if os.path.isfile(python) else sys.executable, "-m", "hookcore_app.cli", "replay"]
        command += [str(self._found.path), "--json", "--memory", MAX_MEMORY]
        return [*command, "--definitions"] if self._by_itself else command

    def _variables(self) -> dict[str, str]:
        threads = str(self._found.described.versions.get("threads", "1"))
        variables = {name: value for name, value in self._environment.items() if not name.startswith("HOOKCORE_")}
        variables |= {"HOOKCORE_SERVER": "none", "OMP_NUM_THREADS": threads if threads.isdecimal() else "1"}
        return variables | {"CUDA_VISIBLE_DEVICES": ""} if self._by_itself else variables


def events_of(capsule: Saved, kept: Kept) -> tuple[Event, ...]:
    """Return the result of a replay as events of its run."""
    step, now, explanation = capsule.described.step, time.time(), kept.explanation
    if explanation is None:
        return (Event(step, now, FAILED, kept.failure, about={"capsule": capsule.id, "step": step}),)
    path, below = capsule.described.path, capsule.described.below
    about = {"capsule": capsule.id, "step": step, "model": path, **_about(explanation), **_shares(explanation)}
    module = ""
    if explanation.culprit is not None:
        module = about["module"] = _placed(explanation.culprit.module, path, below)
    explained = Event(step, now, EXPLAINED, explanation.sentence, module=str(module), about=about)
    if not explanation.layers:
        return (explained,)
    layers = packed(
        ReplayedTap(_placed(layer.module, path, below), layer.kind, layer.index, layer.call, _numbers(layer))
        for layer in explanation.layers
    )
    message = f"the layers of step {step:,}, from its replay"
    return explained, Event(step, now, REPLAYED, message, about={**about, "layers": layers})


def _placed(module: str, path: str, below: str) -> str:
    """Return the path of a module in the run."""
    return f"{below}{module}" if module else path


def _about(explanation: answers.Explanation) -> dict[str, Value]:
    culprit = explanation.culprit
    if culprit is None:
        return {"exact": explanation.exact, **({} if explanation.error else {"found": NOTHING})}
    return {
        "module": culprit.module,
        "phase": culprit.phase,
        "operator": culprit.operator,
        "origin": culprit.origin,
        "exact": explanation.exact,
        **_place(explanation),
    }


def _shares(explanation: answers.Explanation) -> dict[str, Value]:
    shares = explanation.shares
    if shares is None or not shares.stands_out:
        return {}
    first = shares.samples[0]
    named: dict[str, Value] = {"sample": first.ids[0]} if len(first.ids) == 1 else {}
    return {**named, "row": first.row, "share": first.share}


def _place(explanation: answers.Explanation) -> dict[str, Value]:
    if explanation.culprit is None or not explanation.culprit.stack:
        return {}
    line = explanation.culprit.stack[-1]
    where = f"{Path(line.file).name}:{line.line}"
    return {"where": where, "path": line.file, "line": line.line, "code": line.code[:_MAX_CODE]}


def _numbers(layer: answers.ReplayedLayer) -> tuple[float, ...]:
    return tuple(float("nan") if value is None else value for value in layer.values)


def _kill(process: subprocess.Popen[bytes]) -> None:
    kill_session(process.pid)
    process.wait()


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MAX_EXPLANATION + 1)


def _kept_of(code: int, output: bytes, errors: bytes) -> Kept:
    if code == 0:
        try:
            return Kept(explanation=msgspec.json.decode(output, type=answers.Explanation))
        except msgspec.DecodeError as error:
            return Kept(failure=f"the replay's answer can't be read: {error}")
    text = errors.decode("utf-8", "backslashreplace").strip()[-_MAX_SAID:]
    how = f"a signal ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    return Kept(failure=f"the replay ended with {how}: {text}" if text else f"the replay ended with {how}")
