"""Which runs an answer reads, so that one is made again if a run leaves memory meanwhile."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, TypeVar

from hookcore.store import Store

from .state import RunState

SomeRun = TypeVar("SomeRun", bound=RunState)
Read = list[tuple[RunState, Store]]

_READ: Final[ContextVar[Read | None]] = ContextVar("runs read for an answer", default=None)


def watch_reads() -> Read:
    """Return the runs that are read from now on in this context and its threads, each with its store then."""
    read: Read = []
    _READ.set(read)
    return read


def note_read(run: SomeRun) -> SomeRun:
    """Note that an answer reads a run, and return it."""
    read = _READ.get()
    if read is not None:
        read.append((run, run.store))
    return run


def has_swapped(read: Read) -> bool:
    """Return whether one of these runs was unloaded or read again, and so has another store now."""
    return any(run.store is not store for run, store in read)
