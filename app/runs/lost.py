"""Marks runs whose trainer went silent with an event, which is saved with them: a state alone explains nothing."""

from __future__ import annotations

import socket
from math import isfinite
from typing import Final

from hookcore.delivery.dashboard.lives import MAX_PID, lives, lives_as

from .joint import JointRun
from .run import Run, emit_event
from .runs import Runs
from .state import GONE_AFTER_S

ENDED: Final = (
    "The process no longer exists: a signal killed it (SIGKILL, for example because memory ran out, or SIGTERM), "
    "native code crashed, it ended with `os._exit` or `os.exec...`, or it ended while it couldn't reach this server"
)
STUCK: Final = "The process still exists: it is stuck or paused, or can't reach this server"
ELSEWHERE: Final = "It runs on another machine, where it was killed, is stuck, or can't reach this server"


class LostMarks:
    """Which silences have an event."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._marked: dict[str, float] = {}  # the last message of each marked run

    def mark(self) -> None:
        """Add an event to each run that is newly lost. One whose trainer returns and is lost again gets another."""
        every = self._runs.every()
        for run in every:
            if isinstance(run, JointRun):
                run.tick()
        runs = (run for run in every if run.loaded and not run.saved.from_disk and isfinite(run.signs.seen_at))
        lost = [run for run in runs if not isinstance(run, JointRun) and _is_lost(run)]
        for run in lost:
            if self._marked.get(run.id) != run.signs.seen_at:
                cause = _cause(run)
                emit_event(run, "lost", f"{_sentence(run)} {cause}.", "error" if cause == ENDED else "warning")
        self._marked = {run.id: run.signs.seen_at for run in lost}


def _is_lost(run: Run) -> bool:
    if run.state == "live" and run.is_silent(GONE_AFTER_S):
        run.signs.is_gone = lives_as(run.info.pid, run.info.process) is False
    return run.state == "lost"


def _sentence(run: Run) -> str:
    newest = run.store.steps().newest
    since = "before its first step" if newest is None else f"after step {newest:,}"
    pid, host = run.info.pid, run.info.host
    if pid and host:
        return f"The trainer (process {pid} on {host}) stopped sending data {since}."
    known = f" (process {pid})" if pid else f" (on {host})" if host else ""
    return f"The trainer{known} stopped sending data {since}."


def _cause(run: Run) -> str:
    info = run.info
    alive = lives_as(info.pid, info.process)
    if alive is None and not info.process and info.host == socket.gethostname() and 0 < info.pid < MAX_PID:
        alive = lives(info.pid)  # a system that doesn't tell more of a process
    return ELSEWHERE if alive is None else STUCK if alive else ENDED
