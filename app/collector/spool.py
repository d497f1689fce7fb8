"""Records on disk until somebody has taken them: append-only segments, with checksums for each record and its head.

A record is written once `append` returns, so that a killed process loses none; `sync_s` says how much a power failure
may cost. When the spool is full, the oldest segment goes, and `gone` says what was in it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from hookcore.errors import HookcoreError

logger = logging.getLogger("hookcore")

SEGMENT_BYTES: Final = 64 * 2**20
_HEAD: Final = struct.Struct("<4sIIHHQQI")
_MARK: Final = b"hcs1"
_SMALL: Final = 2**20
_NAME: Final = re.compile(r"(\d{12})\.spool")


class SpoolError(HookcoreError):
    """The disk takes nothing more, or a record can't be read."""


class _Head(NamedTuple):
    """What stands before the name and the payload of a record."""

    mark: bytes
    size: int  # of the payload
    checksum: int  # of name and payload
    name: int  # the size of the name
    check: int  # of this head; 0 in spools of before 2026-11-25, which had none
    first: int
    last: int
    items: int

    @property
    def is_right(self) -> bool:
        return self.mark == _MARK and self.check in (0, self.checked().check)

    def checked(self) -> _Head:
        """Return the head with its check."""
        return self._replace(check=zlib.crc32(_HEAD.pack(*self._replace(check=0))) & 0xFFFF or 1)


@dataclass(slots=True, eq=False)
class Record:
    """Where one record is: the items from `first` to `last` of a run, `count` in number."""

    run: str
    first: int
    last: int
    count: int
    segment: _Segment
    offset: int
    size: int
    checksum: int


@dataclass(slots=True, eq=False)
class _Segment:
    number: int
    path: Path
    file: int = -1
    nbytes: int = 0
    records: set[Record] = field(default_factory=set)  # that somebody still needs

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


class Spool:
    """The records of all runs, in one folder that belongs to this process. All methods can be called by any thread."""

    def __init__(self, folder: Path, limit_bytes: int, sync_s: float = 1.0, segment_bytes: int = 0) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self.damaged = 0  # places where no record could be found
        self.sync_errors = 0  # attempts to reach the disk that failed
        self.gone: deque[Record] = deque()  # records that were dropped to make room; their owners take them
        self._sync_s = sync_s
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        room = min(limit_bytes, shutil.disk_usage(folder).free)  # a segment gives its room back as a whole
        self._segment_bytes = segment_bytes or min(SEGMENT_BYTES, max(2**16, room // 16))
        self._segments: dict[int, _Segment] = {}
        self._unsynced: set[int] = set()
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sync_often, name="hookcore-spool", daemon=True)
        if 0 < sync_s < math.inf:
            self._thread.start()

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, run: str, first: int, last: int, count: int, payload: bytes | bytearray) -> Record:
        """Write a record. Raises SpoolError if the disk takes nothing more; then nothing was written."""
        name = run.encode()
        checksum = _checksum_of(run, payload)
        head = _HEAD.pack(*_Head(_MARK, len(payload), checksum, len(name), 0, first, last, count).checked())
        with self._lock:
            segment = self._current(len(head) + len(name) + len(payload))
            begin = segment.nbytes
            try:
                _write(segment.file, [head, name, payload])
                if self._sync_s == 0:
                    os.fdatasync(segment.file)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(segment.file, begin)
                if not segment.records:  # a full disk may need its room
                    self._remove(segment.number)
                raise SpoolError(f"can't write to {segment.path}: {error}") from None
            size = len(head) + len(name) + len(payload)
            segment.nbytes += size
            self.nbytes += size
            self._unsynced.add(segment.number)
            record = Record(run, first, last, count, segment, begin + size - len(payload), len(payload), checksum)
            segment.records.add(record)
            self._make_room()
        return record

    def _current(self, size: int) -> _Segment:
        newest = self._segments[max(self._segments)] if self._segments else None
        if newest is None or newest.nbytes + size > self._segment_bytes:
            newest = self._open(max(self._segments, default=-1) + 1)
        return newest

    def _open(self, number: int) -> _Segment:
        path = self.folder / f"{number:012d}.spool"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpoolError(f"can't write to {path}: {error}") from None
        self._segments[number] = segment = _Segment(number, path, file)
        return segment

    def _make_room(self) -> None:
        """Remove unneeded segments, then the oldest ones while there is too much."""
        newest = max(self._segments)
        for number in sorted(self._segments):
            if number != newest and not self._segments[number].records:
                self._remove(number)
        for number in sorted(self._segments):
            if self.nbytes <= self.limit_bytes or number == newest:
                break
            self.gone += sorted(self._segments[number].records, key=lambda record: record.offset)
            self._remove(number)

    def _remove(self, number: int) -> None:
        segment = self._segments.pop(number)
        self._unsynced.discard(number)
        self.nbytes -= segment.nbytes
        segment.close()
        with contextlib.suppress(OSError):
            segment.path.unlink()

    def release(self, record: Record) -> None:
        """Note that a record isn't needed any more."""
        with self._lock:
            segment = record.segment
            segment.records.discard(record)
            if segment.records or segment.number not in self._segments:
                return
            # A small newest one stays, or each batch would have a file of its own while the server keeps up.
            if segment.nbytes > _SMALL or segment.number != max(self._segments):
                self._remove(segment.number)

    def _sync_often(self) -> None:
        while not self._stopping.wait(self._sync_s):
            self.sync()

    def sync(self) -> None:
        """Bring everything written so far to the disk itself."""
        with self._lock:
            files = [(number, os.dup(self._segments[number].file)) for number in self._unsynced]
            self._unsynced.clear()
        for number, file in files:
            try:
                os.fdatasync(file)
            except OSError:
                self.sync_errors += 1
                with self._lock:
                    self._unsynced |= {number} & self._segments.keys()
            finally:
                os.close(file)

    def close(self) -> None:
        """Bring everything to the disk, and stop writing."""
        self._stopping.set()
        self.sync()
        with self._lock:
            for segment in self._segments.values():
                segment.close()

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, record: Record) -> bytes:
        """Return what a record contains. Raises SpoolError if it isn't what was written."""
        with self._lock:
            try:
                data = _payload_of(record)
            except OSError as error:
                raise SpoolError(f"can't read {record.segment.path}: {error}") from None
        if _checksum_of(record.run, data) != record.checksum:
            raise SpoolError(f"{record.segment.path} is damaged at byte {record.offset}")
        return data

    def recover(self) -> Iterator[Record]:
        """Yield the records of an earlier process, oldest first. What it wrote only in part at its end is removed."""
        for path in sorted(self.folder.iterdir()):
            found = _NAME.fullmatch(path.name)
            if found is not None:
                yield from self._records_in(self._open(int(found[1])))

    def _records_in(self, segment: _Segment) -> Iterator[Record]:
        at, size = 0, os.fstat(segment.file).st_size
        while at < size:
            record = _record_at(segment, at, size)
            if record is not None:
                segment.records.add(record)
                at = record.offset + record.size
                yield record
                continue
            after = _next_record(segment, at, size)
            self._report(segment, at, after, size)
            if after == size:
                os.ftruncate(segment.file, at)
                break
            at = after
        segment.nbytes = at
        self.nbytes += at

    def _report(self, segment: _Segment, begin: int, end: int, size: int) -> None:
        """Say what can't be read. What was written in part, by a killed process, was never acknowledged: no damage."""
        head = _head_at(segment, begin)
        if end == size and (head is None or head.is_right):
            logger.warning(
                "hookcore: removed the last %d bytes of %s: a record that was not finished", end - begin, segment.path
            )
            return
        self.damaged += 1
        logger.warning(
            "hookcore: %s is damaged: no record can be read in its bytes %d to %d, so their items are lost. "
            "Check the disk",
            segment.path,
            begin,
            end - 1,
        )


def _head_at(segment: _Segment, at: int) -> _Head | None:
    data = os.pread(segment.file, _HEAD.size, at)
    return _Head(*_HEAD.unpack(data)) if len(data) == _HEAD.size else None


def _record_at(segment: _Segment, at: int, size: int) -> Record | None:
    """Return the record that begins here, if a whole one does."""
    head = _head_at(segment, at)
    if head is None or not head.is_right:
        return None
    offset = at + _HEAD.size + head.name
    if offset + head.size > size:
        return None
    name = os.pread(segment.file, head.name, at + _HEAD.size).decode("utf-8", "replace")
    return Record(name, head.first, head.last, head.items, segment, offset, head.size, head.checksum)


def _next_record(segment: _Segment, at: int, size: int) -> int:
    """Return where the next record begins after a damaged one, or `size` if there is none."""
    data = os.pread(segment.file, size - at, at)
    place = data.find(_MARK, 1)
    while place >= 0:
        record = _record_at(segment, at + place, size)  # None: the mark is part of a payload
        if record is not None and _checksum_of(record.run, _payload_of(record)) == record.checksum:
            return at + place
        place = data.find(_MARK, place + 1)
    return size


def _payload_of(record: Record) -> bytes:
    return os.pread(record.segment.file, record.size, record.offset)


def _checksum_of(run: str, payload: bytes | bytearray) -> int:
    return zlib.crc32(payload, zlib.crc32(run.encode()))


def _write(file: int, parts: list[bytes | bytearray]) -> None:
    """Write all parts, however many calls that takes."""
    written = os.writev(file, parts)
    left = b"".join(parts)[written:] if written < sum(map(len, parts)) else b""
    while left:
        left = left[os.write(file, left) :]
