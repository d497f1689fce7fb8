"""Files of this user alone, files of others, files that appear whole or not at all, and processes that may be gone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Final

from hookcore.platform import (
    FOLDER,
    OPENS_FOLDERS,
    PLAIN,
    is_process,
    lock_file,
    protect,
    user_id,
    warn_of_open_folder,
)
from hookcore.records import plain

MAX_LINKS: Final = 40
MAX_READ: Final = 65_536
_SEARCH: Final = FOLDER | getattr(os, "O_PATH", os.O_RDONLY)  # a parent folder may be closed to reading


class PrivateFolder:
    """An open folder that belongs to this user and is closed to others, created if missing.

    All methods raise OSError. The folder stays the same one while it is open, whatever happens to its path. On Windows,
    which can't open folders, it is its path, and private as far as its parents are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number: int | None = None
        if not OPENS_FOLDERS:
            path.mkdir(parents=True, exist_ok=True)
            warn_of_open_folder(path)
            return
        self._number = _open_folder(path)
        try:
            about = os.fstat(self._number)
            if about.st_uid != user_id():
                raise PermissionError(errno.EPERM, "it belongs to another user")
            if stat.S_IMODE(about.st_mode) & 0o077:
                protect(self._number, 0o700)
        except BaseException:
            os.close(self._number)
            raise

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._number is not None:
            os.close(self._number)

    def _place(self, name: str) -> str:
        """Return how the system finds a file, together with the folder's number."""
        return name if self._number is not None else str(self.path / name)

    def open(self, name: str, flags: int) -> int:
        """Open a file and return its descriptor. Links, pipes, and other users' files are rejected."""
        number = os.open(self._place(name), flags | PLAIN, 0o600, dir_fd=self._number)
        try:
            about = os.fstat(number)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != user_id() or about.st_nlink > 1:
                raise PermissionError(errno.EPERM, f"{self.path / name} is not a plain file of your own: remove it")
            if flags & os.O_CREAT and stat.S_IMODE(about.st_mode) & 0o077:
                protect(number, 0o600)
        except BaseException:
            os.close(number)
            raise
        return number

    def open_empty(self, name: str) -> int:
        """Open a file for writing; it is emptied once it is known to be this user's plain file."""
        number = self.open(name, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(number, 0)
        return number

    def read(self, name: str, most: int = MAX_READ) -> bytes:
        """Return the beginning of a file. By default, it is all of any file that says where something is."""
        with open(self.open(name, os.O_RDONLY), "rb") as file:
            return file.read(most)

    def write(self, name: str, data: bytes) -> None:
        """Write a file completely or not at all."""
        draft = f"{name}.{secrets.token_hex(8)}"
        try:
            with open(self.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(data)
            places = (self._place(draft), self._place(name))
            os.replace(*places, src_dir_fd=self._number, dst_dir_fd=self._number)
        except OSError:
            self.remove(draft)
            raise

    def names(self) -> list[str]:
        """Return the names of all files."""
        return os.listdir(self.path if self._number is None else self._number)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._place(name), dir_fd=self._number)

    def remove_drafts(self, name: str) -> None:
        """Remove drafts of a file that killed writers left."""
        for draft in self.names():
            if draft.startswith(f"{name}."):
                self.remove(draft)


def _open_folder(path: Path) -> int:
    """Open a folder component by component, to check each link. Missing components are created for this user only."""
    current = os.open("/", _SEARCH)
    trusted = {0, user_id(), os.fstat(current).st_uid}  # the owner of "/" is root, if root has no id of its own here
    rest, links = list(path.parts[:0:-1]), 0
    try:
        while rest:
            name = rest.pop()
            target = _link(current, name, trusted)
            if target is not None:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if target.is_absolute():
                    current = _replaced(current, os.open("/", _SEARCH))
                rest += [part for part in reversed(target.parts) if part != "/"]
            else:
                current = _replaced(current, _below(current, name, _SEARCH if rest else FOLDER | os.O_RDONLY))
    except BaseException:
        os.close(current)
        raise
    return current


def _replaced(number: int, other: int) -> int:
    os.close(number)
    return other


def _link(folder: int, name: str, trusted: set[int]) -> Path | None:
    """Return the target of a link, or None if the name isn't one. Raises PermissionError for other users' links."""
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(about.st_mode):
        return None
    if about.st_uid not in trusted:
        raise PermissionError(errno.EPERM, f"{name!r} in its path is another user's symbolic link")
    return Path(os.readlink(name, dir_fd=folder))


def _below(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)


# Files that may come from another person: only regular ones of a limited size are opened, and their JSON is tamed.

_MAX_DIGITS: Final = 300  # of an integer; a longer one becomes infinity, because no float can hold it


def open_regular(path: str | os.PathLike[str], most_bytes: int) -> BinaryIO:
    """Open a file for reading; raise OSError if it is a pipe, a device, or larger than `most_bytes`.

    A folder may belong to someone else. A pipe in it would wait for a writer, and a device may have no end.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    about, name = os.fstat(file.fileno()), Path(path).name
    if stat.S_ISREG(about.st_mode) and about.st_size <= most_bytes:
        return file
    file.close()
    if stat.S_ISREG(about.st_mode):
        raise OSError(f"{name} has {about.st_size} bytes: at most {most_bytes} are allowed")
    raise OSError(f"{name} is not a regular file")


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the contents of a file; raise OSError if it is a pipe, a device, or larger than `most_bytes`."""
    with open_regular(path, most_bytes) as file:
        return file.read(most_bytes)


def parsed(data: bytes) -> Any:
    """Return what JSON says. Raises ValueError if it isn't JSON, or is nested too deeply.

    All texts are valid Unicode, so they can be written anywhere, and all integers fit into a float.
    """
    try:
        return plain(json.loads(data, parse_int=_whole))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


# Whether a process still exists. Its number alone doesn't say: numbers are used again, here and on other machines.

MAX_PID: Final = 2**22  # Linux has no higher one; a message can claim any
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_STATE, _THREADS, _STARTED = 0, 17, 19  # places in /proc/PID/stat after the name


def mark_of(pid: int) -> str:
    """Return a mark that identifies a process across all machines; empty if it is unknown (not on Linux)."""
    place, started = _place(), _started(pid)
    return f"{place}/{started}" if place and started else ""


def lives_as(pid: int, mark: str) -> bool | None:
    """Return whether the process with this mark still exists; None if it can't be seen from here."""
    place, _, started = mark.rpartition("/")
    if not place or place != _place():
        return None
    return _started(pid) in (started, "") if lives(pid) else False


def lives(pid: int) -> bool:
    """Return whether a process of this machine has this number."""
    return 0 < pid < MAX_PID and is_process(pid)


def _place() -> str:
    """Return this machine, its boot, and the namespaces that numbers and times of processes belong to."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # the /proc of another namespace
            return ""
        # The name, because copies of a virtual machine have one boot.
        return "/".join((socket.gethostname(), _BOOT.read_text().strip(), *map(_namespace, ("pid", "time"))))
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except FileNotFoundError:  # an older kernel has one for all
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; "ended" for one that only waits for its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[_STATE] in "ZX" and fields[_THREADS] in "01":  # more: only its first thread has ended
            return "ended"
        return fields[_STARTED]
    except (OSError, IndexError):
        return ""  # hidden, or gone by now


# Files that appear whole or not at all, and the remains of files whose writer was killed.

UNFINISHED: Final = ".unfinished"  # at the end of a name, so that no pattern for finished files matches it
_NAME: Final = re.compile(rf"\.(.+)\.(\d{{1,10}})\.\d{{1,20}}\{UNFINISHED}", re.ASCII)


def make_folder(path: Path) -> None:
    """Create a folder and its parents. Other users can't write to new ones, whatever the umask."""
    for folder in (*reversed(path.absolute().parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o755, exist_ok=True)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name when the block ends, and is removed if the block raises.

    Other users can't write to it, whatever the umask.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{UNFINISHED}")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | PLAIN, 0o644), "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                lock_file(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def remove_orphans(folder: Path, name: str = "") -> int:
    """Remove the unfinished files in a folder whose writers are dead, or only those of one file; count them."""
    removed = 0
    with contextlib.suppress(OSError):
        for draft in folder.iterdir():
            match = _NAME.fullmatch(draft.name)
            if match is not None and name in ("", match[1]) and _is_orphan(draft, int(match[2])):
                with contextlib.suppress(OSError):
                    draft.unlink()
                    removed += 1
    return removed


def _is_orphan(path: Path, writer: int) -> bool:
    """Return whether a writer is surely dead: no process here has its number, and no process anywhere its lock."""
    if lives(writer):
        return False
    try:
        with path.open("rb") as file:
            lock_file(file)
    except OSError:  # locked by a writer on another machine, or not to be locked: left alone
        return False
    return True
