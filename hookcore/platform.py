"""What differs between operating systems: locks, priorities, limits, and the owner of a file.

All tests run on Linux. macOS has the same calls, except for the priority of a thread, and Windows has others: neither
was run.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, Final

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource

NICENESS: Final = 5
_FAR: Final = 2**62  # the place of Windows' locks, which are mandatory: nothing is read or written there


def lock_file(file: int | IO[Any], shared: bool = False) -> None:
    """Lock an open file, or raise BlockingIOError if another one has the lock, which ends with the descriptor.

    Any other OSError means that the file system has no locks. On Windows, a shared lock is an exclusive one.
    """
    number = file if isinstance(file, int) else file.fileno()
    if sys.platform == "win32":
        _at_far_place(number, msvcrt.LK_NBLCK)
    else:
        fcntl.flock(number, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def unlock_file(number: int) -> None:
    """End a lock before its descriptor is closed, also for a child that has inherited it."""
    if sys.platform == "win32":
        _at_far_place(number, msvcrt.LK_UNLCK)
    else:
        fcntl.flock(number, fcntl.LOCK_UN)


if sys.platform == "win32":

    def _at_far_place(number: int, kind: int) -> None:
        place = os.lseek(number, 0, os.SEEK_CUR)
        try:
            os.lseek(number, _FAR, os.SEEK_SET)
            msvcrt.locking(number, kind, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, "another process has the lock") from None
        finally:
            os.lseek(number, place, os.SEEK_SET)


def user_id() -> int:
    """Return the number of this user, as `os.stat` gives the owner of a file."""
    if sys.platform == "win32":
        return 0
    return os.getuid()


def protect(number: int, mode: int) -> None:
    """Set who may use an open file or folder. Windows has no such modes: a file belongs to the folder's users there."""
    if sys.platform != "win32":
        os.fchmod(number, mode)


def background(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """Return a thread that gives way to others, not started yet. What it starts does so, too.

    It leaves the processor to the training, and to readers.
    """

    def run() -> None:
        if sys.platform == "linux":  # elsewhere, this would be the priority of the whole process
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        target(*args)

    return threading.Thread(target=run, name=name, daemon=True)


def give_way(by: int) -> None:
    """Lower the priority of this process, where that can be done."""
    if sys.platform != "win32":
        os.nice(by)


def limit_memory(nbytes: int) -> None:
    """Let this process take no more memory than this, where that can be done."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))


def allow_files(wanted: int) -> None:
    """Let this process open this many files and connections, or as many as it may."""
    if sys.platform != "win32":
        with suppress(ValueError, OSError):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft != resource.RLIM_INFINITY and soft < wanted:
                most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
