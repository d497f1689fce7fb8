"""Which items a segment has, on disk before it is first inserted, so that a restart repeats it with the same bytes."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from hookcore.delivery.dashboard.foreign import read_regular
from hookcore.delivery.dashboard.whole import whole_file
from hookcore.errors import ArgumentError, HookcoreError

logger = logging.getLogger("hookcore")

ID_FILE: Final = "id"
OPEN: Final = ".cut"  # may not be inserted completely
DONE: Final = ".inserted"  # the newest one stays, for its number
DAMAGED: Final = ".damaged"  # can't be read
SPARE: Final = "spare"  # room for a note that was taken before the disk was full
SPARE_BYTES: Final = 64 * 2**10
MAX_NOTE_BYTES: Final = 64 * 2**20
ID_BYTES: Final = 16
_ID: Final = re.compile(r"[0-9a-f]{32}")


class Share(msgspec.Struct, frozen=True):
    """The items of one run in a segment, and what their blocks depend on besides them."""

    run: str
    rank: int
    attempt: int
    taps: int
    before: int  # the newest step of earlier segments
    ranges: tuple[tuple[int, int], ...]  # of the items' numbers, inclusive
    through: int  # up to this item, nothing of the run is left to insert


class Cut(msgspec.Struct, frozen=True):
    """A segment: runs that began on one day, on one shard."""

    number: int
    shard: int
    day: int
    shares: tuple[Share, ...]


class CutError(HookcoreError):
    """The disk takes no note of a segment, so it can't be inserted."""


class Cuts:
    """The segments of one spool, by their numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = self._own_id()
        self._take_spare()
        known = (path for ending in (OPEN, DONE, DAMAGED) for path in self._all(ending))
        self._next = 1 + max(map(_number_of, known), default=-1)

    def _own_id(self) -> str:
        path = self.folder / ID_FILE
        if not os.path.lexists(path):
            with whole_file(path) as file:
                file.write(secrets.token_hex(ID_BYTES).encode())
        try:
            found = read_regular(path, 2 * ID_BYTES).decode()
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{path} can't be read: {error}; give another folder") from None
        if not _ID.fullmatch(found):
            raise ArgumentError(
                f"{path} is damaged, so ClickHouse can't tell whose segments these are: give another folder"
            )
        return found

    @property
    def _spare(self) -> Path:
        return self.folder / SPARE

    def _take_spare(self) -> None:
        """Take room on the disk for one note: what fills the disk can only be inserted after a note."""
        if not self._spare.exists():
            with suppress(OSError), whole_file(self._spare) as file:
                file.write(b" " * SPARE_BYTES)

    def _all(self, ending: str) -> list[Path]:
        return sorted(path for path in self.folder.glob(f"*{ending}") if path.stem.isdigit())

    def unfinished(self) -> list[Cut]:
        """Return the segments of an earlier process that may not be inserted, oldest first.

        A note that can't be read is set aside. Its items are in the spool and become part of other segments.
        """
        found = []
        for path in self._all(OPEN):
            try:
                found.append(msgspec.json.decode(read_regular(path, MAX_NOTE_BYTES), type=Cut))
            except (OSError, ValueError, RecursionError) as error:
                os.replace(path, path.with_suffix(DAMAGED))
                logger.warning(
                    "hookcore: %s can't be read (%s). Its frames are inserted again; of those that an earlier process "
                    "had inserted in part, values may be missing or counted twice",
                    path,
                    error,
                )
        return found

    def cut(self, shard: int, day: int, shares: Sequence[Share]) -> Cut:
        """Note a new segment. Raises CutError if the disk takes nothing more."""
        made = Cut(self._next, shard, day, tuple(shares))
        content, path = msgspec.json.encode(made), self._path(made, OPEN)
        try:
            with whole_file(path) as file:
                file.write(content)
        except OSError as error:
            if not self._use_spare(content, path):
                raise CutError(f"can't write to {self.folder}: {error}") from None
        self._next += 1
        return made

    def _use_spare(self, content: bytes, path: Path) -> bool:
        """Write a note where there is room for it already. Until it has its name, it doesn't count."""
        if len(content) > SPARE_BYTES:
            return False
        try:
            with self._spare.open("r+b") as file:
                file.write(content.ljust(SPARE_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._spare, path)
        except OSError:
            return False
        return True

    def finish(self, cut: Cut) -> None:
        """Note that a segment is inserted. Any thread may, and may do it again after an error."""
        path = self._path(cut, OPEN)
        with suppress(FileNotFoundError):
            if path.stat().st_size == SPARE_BYTES and not self._spare.exists():
                self._path(cut, DONE).touch()  # which takes no room
                os.replace(path, self._spare)
            else:
                os.replace(path, self._path(cut, DONE))
        self._take_spare()
        for path in self._all(DONE):
            if _number_of(path) < cut.number:
                path.unlink(missing_ok=True)

    def _path(self, cut: Cut, ending: str) -> Path:
        return self.folder / f"{cut.number:012d}{ending}"


def _number_of(path: Path) -> int:
    return int(path.stem)


def ranges_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as ranges."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)
