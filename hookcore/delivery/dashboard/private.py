"""A folder that only its user can read, and plain files in it, opened without following other users' links."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import Final

MAX_LINKS: Final = 40
MAX_READ: Final = 65_536
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SEARCH: Final = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)  # a parent folder may be closed to reading
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a named pipe must not block


class PrivateFolder:
    """An open folder that belongs to this user and is closed to others, created if missing.

    All methods raise OSError. The folder stays the same one while it is open, whatever happens to its path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = _open_folder(path)
        try:
            found = os.fstat(self._number)
            if found.st_uid != os.getuid():
                raise PermissionError(errno.EPERM, "it belongs to another user")
            if stat.S_IMODE(found.st_mode) & 0o077:
                os.fchmod(self._number, 0o700)
        except BaseException:
            os.close(self._number)
            raise

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._number)

    def open(self, name: str, flags: int) -> int:
        """Open a file and return its descriptor. Links, pipes, and other users' files are rejected."""
        number = os.open(name, flags | _FILE, 0o600, dir_fd=self._number)
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_nlink > 1:
                raise PermissionError(errno.EPERM, f"{self.path / name} is not a plain file of your own: remove it")
            if flags & os.O_CREAT and stat.S_IMODE(found.st_mode) & 0o077:
                os.fchmod(number, 0o600)
        except BaseException:
            os.close(number)
            raise
        return number

    def open_empty(self, name: str) -> int:
        """Open a file for writing; it is emptied once it is known to be this user's plain file."""
        number = self.open(name, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(number, 0)
        return number

    def read(self, name: str) -> bytes:
        """Return the beginning of a file, which is all of any file written here."""
        with open(self.open(name, os.O_RDONLY), "rb") as file:
            return file.read(MAX_READ)

    def write(self, name: str, data: bytes) -> None:
        """Write a file completely or not at all."""
        draft = f"{name}.{secrets.token_hex(8)}"
        try:
            with open(self.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(data)
            os.rename(draft, name, src_dir_fd=self._number, dst_dir_fd=self._number)
        except OSError:
            self.remove(draft)
            raise

    def names(self) -> list[str]:
        """Return the names of all files."""
        return os.listdir(self._number)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._number)

    def remove_drafts(self, name: str) -> None:
        """Remove drafts of a file that killed writers left."""
        for each in self.names():
            if each.startswith(f"{name}."):
                self.remove(each)


def _open_folder(path: Path) -> int:
    """Open a folder component by component, to check each link. Missing components are created for this user only."""
    current = os.open("/", _SEARCH)
    trusted = {0, os.getuid(), os.fstat(current).st_uid}  # the owner of "/" is root, if root has no id of its own here
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
                current = _replaced(current, _below(current, name, _SEARCH if rest else _FOLDER | os.O_RDONLY))
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
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    if found.st_uid not in trusted:
        raise PermissionError(errno.EPERM, f"{name!r} in its path is another user's symbolic link")
    return Path(os.readlink(name, dir_fd=folder))


def _below(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)
