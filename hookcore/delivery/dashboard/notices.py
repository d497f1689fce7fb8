"""Notices of runs that have started, for a dashboard that hasn't received anything from them yet.

A dashboard takes a second or two to start, and a trainer can be killed before that. Therefore each trainer leaves a
file in the user's private folder and locks it until the dashboard has answered. The kernel releases the lock of a
process that dies, so an unlocked notice belongs to a run whose first values never arrived.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from hookcore.delivery.dashboard.private import MAX_READ, PrivateFolder
from hookcore.delivery.dashboard.process import opened_home
from hookcore.errors import ServerError
from hookcore.records.wire import RunInfo

MAX_NOTICES: Final = 200  # maximum number of notices in the folder; further runs get none
_BEGINNING: Final = "begun-"
_DRAFT_S: Final = 60.0  # an unreadable notice is removed after this time; before, its trainer may still be writing it


class Notice:
    """The locked notice of one run."""

    def __init__(self, name: str, number: int, environment: Mapping[str, str]) -> None:
        self._name = name
        self._number = number
        self._environment = environment

    def remove(self) -> None:
        """Remove the notice, because the dashboard knows the run. A second call does nothing."""
        if self._number >= 0:
            with contextlib.suppress(Exception), opened_home(self._environment) as folder:
                folder.remove(self._name)
            self.leave()

    def leave(self) -> None:
        """Release the notice. It becomes visible when no other process, such as the parent of a fork, holds it."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.leave()


def post_notice(run: RunInfo, environment: Mapping[str, str] = os.environ) -> Notice:
    """Leave a notice of a run. Raises ServerError if the folder isn't writable."""
    name = f"{_BEGINNING}{run.id}.json"
    with opened_home(environment) as folder:
        if len(_names(folder)) >= MAX_NOTICES:
            raise ServerError(f"{folder.path} holds {MAX_NOTICES} notices of runs: delete the begun-*.json files there")
        notice = Notice(name, folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL), environment)
        try:
            fcntl.flock(notice._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(notice._number, msgspec.json.encode(run))
        except OSError:
            folder.remove(name)
            raise
    return notice


def _write(number: int, data: bytes) -> None:
    if len(data) > MAX_READ:
        raise OSError(f"the notice of this run would have {len(data)} bytes")
    while data:
        data = data[os.write(number, data) :]


def take_orphans(environment: Mapping[str, str] = os.environ) -> list[RunInfo]:
    """Return the runs whose process ended before a dashboard answered it, and remove their notices."""
    with opened_home(environment) as folder:
        found = [_take(folder, name) for name in _names(folder)]
    return [run for run in found if run is not None]


def _names(folder: PrivateFolder) -> list[str]:
    return [name for name in folder.names() if name.startswith(_BEGINNING)]


def _take(folder: PrivateFolder, name: str) -> RunInfo | None:
    try:
        number = folder.open(name, os.O_RDWR)
    except OSError:
        return None  # removed in the meantime, or not this user's file
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        run = msgspec.json.decode(os.read(number, MAX_READ), type=RunInfo)
    except OSError:
        return None  # its process is alive
    except (ValueError, RecursionError):
        if time.time() - os.fstat(number).st_mtime > _DRAFT_S:
            folder.remove(name)
        return None
    else:
        folder.remove(name)
        return run
    finally:
        os.close(number)
