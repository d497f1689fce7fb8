"""Marks runs whose trainer went silent with an event, which is saved with them: a state alone explains nothing."""

from __future__ import annotations

import os
import socket
from math import isfinite
from typing import Final

from .run import Run, say
from .runs import Runs

MAX_PID: Final = 2**22  # Linux has no higher one; a trainer can claim any
ENDED: Final = (
    "The process no longer exists: a signal killed it (SIGKILL, for example because memory ran out, or SIGTERM), or "
    "native code crashed"
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
        runs = (run for run in self._runs.all() if run.loaded and not run.from_disk and isfinite(run.seen_at))
        lost = [run for run in runs if run.state == "lost"]
        for run in lost:
            if self._marked.get(run.id) != run.seen_at:
                cause = _cause(run)
                say(run, "lost", f"{_sentence(run)} {cause}.", "error" if cause == ENDED else "warning")
        self._marked = {run.id: run.seen_at for run in lost}


def _sentence(run: Run) -> str:
    newest = run.store.steps().newest
    since = "before its first step" if newest is None else f"after step {newest:,}"
    return f"The trainer (process {run.info.pid} on {run.info.host}) sent nothing more {since}."


def _cause(run: Run) -> str:
    if run.info.host != socket.gethostname() or not 0 < run.info.pid < MAX_PID:
        return ELSEWHERE
    try:
        os.kill(run.info.pid, 0)  # sends nothing
    except ProcessLookupError:
        return ENDED
    except OSError:  # it belongs to another user
        return STUCK
    return STUCK
