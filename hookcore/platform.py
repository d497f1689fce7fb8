"""What differs between operating systems: locks, priorities, limits, processes, and how files are opened.

All tests run on Linux. macOS has the same calls, except for a few, and Windows has others: neither was run. Both are
checked by mypy (`make types-elsewhere`), which knows what each system's Python has.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

if sys.platform == "win32":
    import msvcrt

    PLAIN: Final = os.O_BINARY
    FOLDER: Final = 0
else:
    import fcntl
    import resource

    PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK  # for files: no links, and no waiting for the writer of a pipe
    FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW

OPENS_FOLDERS: Final = os.open in os.supports_dir_fd  # whether files can be opened relative to an open folder
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


def open_to_lock(folder: Path) -> int:
    """Open a folder, so that it can be locked. On Windows, a file in it stands for it."""
    if sys.platform == "win32":
        return os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    return os.open(folder, os.O_RDONLY)


def warn_of_open_folder(folder: Path) -> None:
    """Warn once that others may read a folder outside of the user's own, on a system without file modes."""
    if not folder.is_relative_to(Path.home()):
        warnings.warn(
            f"hookcore sets no permissions on this system, and {folder} is outside of your home folder: others may "
            "read the dashboard's token there; set HOOKCORE_HOME to a folder that only you can read",
            RuntimeWarning,
            stacklevel=2,
        )


if sys.platform == "win32":
    _reading = threading.Lock()


def read_at(number: int, nbytes: int, offset: int) -> bytes:
    """Read from a place of a file that is only appended to. Other threads may write to it."""
    if sys.platform == "win32":
        with _reading:
            os.lseek(number, offset, os.SEEK_SET)
            return os.read(number, nbytes)
    return os.pread(number, nbytes, offset)


def write_parts(number: int, parts: Sequence[bytes | bytearray]) -> int:
    """Write parts at the end of a file, and return how many bytes that was: maybe not all of them."""
    if sys.platform == "win32":
        with _reading:
            return os.write(number, b"".join(parts))
    return os.writev(number, parts)


def sync(number: int) -> None:
    """Wait until a file's contents are on the disk."""
    if sys.platform == "linux":
        os.fdatasync(number)
    else:
        os.fsync(number)


def is_process(pid: int) -> bool:
    """Return whether a process of this machine has this number."""
    if sys.platform == "win32":
        return bool(import_module("psutil").pid_exists(pid))  # os.kill would end it there
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def kill_session(pid: int) -> None:
    """Kill a process that has a session of its own, with what it has started. On Windows, only itself."""
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            os.kill(pid, signal.SIGTERM)  # which isn't a signal there: it ends the process
        else:
            os.killpg(pid, signal.SIGKILL)


def seconds_of(clock: int) -> float:
    """Return the time of a thread's clock, which Windows lacks. Raises OSError if the thread has ended."""
    if sys.platform == "win32":
        raise OSError("threads have no clocks")
    return time.clock_gettime(clock)


def after_fork(call: Callable[[], None]) -> None:
    """Call a function in each forked child. Windows doesn't fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=call)


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


# Options of glibc's mallopt. By default, each thread fills an arena of its own, which keeps what it once had, and the
# size from which on freed memory goes back to the system at once grows to 32 MiB.
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
ALLOCATOR: Final = {_ARENA_MAX: 2, _MMAP_THRESHOLD: 2**18, _TRIM_THRESHOLD: 2**20}


def _allocator() -> Any:
    """Return the C library if its allocator can be asked to hold little memory, as glibc's can; else None."""
    if sys.platform != "linux":
        return None
    library = import_module("ctypes").CDLL(None)
    return library if hasattr(library, "malloc_trim") else None


def save_memory() -> None:
    """Let this process hold little memory that it doesn't use. To be called before it starts threads."""
    if (allocator := _allocator()) is not None:
        for option in ALLOCATOR.items():
            allocator.mallopt(*option)


def return_memory(every_s: float, worked_s: float) -> None:
    """Give freed memory back to the system, again and again while this process works; don't return.

    The allocator keeps what was freed between what is in use: 60 MB of a server, after 20,000 steps of a training.
    """
    allocator, at_s = _allocator(), 0.0
    while allocator is not None:
        if time.process_time() - at_s >= worked_s:
            allocator.malloc_trim(0)
            at_s = time.process_time()
        time.sleep(every_s)


def allow_files(wanted: int) -> None:
    """Let this process open this many files and connections, or as many as it may."""
    if sys.platform != "win32":
        with suppress(ValueError, OSError):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft != resource.RLIM_INFINITY and soft < wanted:
                most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
