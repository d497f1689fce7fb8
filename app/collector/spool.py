"""Records on disk until they are delivered: append-only segments, with checksums for each record."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import secrets
import shutil
import stat
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from hookcore.delivery.dashboard.private import read_regular, whole_file
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.platform import PLAIN, read_at, sync, write_parts

# A file of a spool: records one after the other, each a head, the name of a run, and a payload.

_HEAD: Final = struct.Struct("<4sIIHHQQI")
_UNSEALED: Final = b"hcs1"
SEAL_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Seal:
    """What the records of a spool begin with, and where their checksums start.

    It is a secret of the spool: after damage, records are searched for among all bytes, and no trainer can write a
    tensor that looks like a record of another run.
    """

    mark: bytes
    start: int

    @classmethod
    def of(cls, secret: bytes) -> Seal:
        """Return the seal of a spool. Its mark differs from the one without a secret."""
        first = secret[0] | 0x80
        return cls(bytes([first]) + secret[1:4], int.from_bytes(secret[4:8], "little"))

    def checksum_of(self, run: str, payload: bytes | bytearray) -> int:
        """Return the checksum of a record's name and payload."""
        return zlib.crc32(payload, zlib.crc32(run.encode(), self.start))

    def head_of(self, run: str, first: int, last: int, count: int, size: int, checksum: int) -> bytes:
        """Return what stands before a payload of this size."""
        name = run.encode()
        head = _Head(self.mark, size, checksum, len(name), 0, first, last, count)
        return _HEAD.pack(*head._replace(check=self.check_of(head))) + name

    def check_of(self, head: _Head) -> int:
        """Return the checksum of a head."""
        return zlib.crc32(_HEAD.pack(*head._replace(check=0)), self.start) & 0xFFFF or 1

    def fits(self, head: _Head) -> bool:
        """Return whether a head is undamaged."""
        checks = (0, self.check_of(head)) if self == UNSEALED else (self.check_of(head),)
        return head.mark == self.mark and head.check in checks


UNSEALED: Final = Seal(_UNSEALED, 0)  # of spools of before 2026-11-29


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


@dataclass(slots=True, eq=False)
class Record:
    """Where one record is: the items from `first` to `last` of a run, `count` in number."""

    run: str
    first: int
    last: int
    count: int
    segment: Segment
    offset: int
    size: int
    checksum: int

    def payload(self) -> bytes:
        """Return the file's bytes at a record, which may be damaged."""
        return read_at(self.segment.file, self.size, self.offset)


@dataclass(slots=True, eq=False)
class Segment:
    """An open file of a spool."""

    number: int
    path: Path
    file: int
    seal: Seal
    nbytes: int = 0
    records: set[Record] = field(default_factory=set)  # that are still needed

    @classmethod
    def found(cls, number: int, path: Path, seal: Seal) -> Segment:
        """Open a segment of an earlier process. Raises OSError for anything but a plain file."""
        file = os.open(path, os.O_RDWR | os.O_APPEND | PLAIN)
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            os.close(file)
            raise OSError(f"{path.name} is not a plain file with one name")
        return cls(number, path, file, UNSEALED if read_at(file, 4, 0) == _UNSEALED else seal)

    @classmethod
    def new(cls, number: int, path: Path, seal: Seal) -> Segment:
        """Create a segment. Raises FileExistsError if something has this name."""
        return cls(number, path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | PLAIN, 0o600), seal)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def write(self, parts: list[bytes | bytearray]) -> None:
        """Write all parts, however many calls that takes."""
        written = write_parts(self.file, parts)
        left = b"".join(parts)[written:] if written < sum(map(len, parts)) else b""
        while left:
            left = left[os.write(self.file, left) :]

    def head_at(self, at: int) -> _Head | None:
        """Return the head that begins here, right or not, if a whole one does."""
        data = read_at(self.file, _HEAD.size, at)
        return _Head(*_HEAD.unpack(data)) if len(data) == _HEAD.size else None

    def may_be_unfinished(self, at: int) -> bool:
        """Return whether what is here is a record that was being written when its process was killed."""
        head = self.head_at(at)
        return head is None or self.seal.fits(head)

    def record_at(self, at: int, size: int) -> Record | None:
        """Return the record that begins here, if a whole one does in a file of this size."""
        head = self.head_at(at)
        if head is None or not self.seal.fits(head):
            return None
        offset = at + _HEAD.size + head.name
        if offset + head.size > size:
            return None
        name = read_at(self.file, head.name, at + _HEAD.size).decode("utf-8", "replace")
        return Record(name, head.first, head.last, head.items, self, offset, head.size, head.checksum)

    def next_record(self, at: int, size: int) -> int:
        """Return the start of the next record after a damaged one, or `size`."""
        data = read_at(self.file, size - at, at)
        place = data.find(self.seal.mark, 1)
        while place >= 0:
            record = self.record_at(at + place, size)  # None: the mark is part of a payload
            if record is not None and self.seal.checksum_of(record.run, record.payload()) == record.checksum:
                return at + place
            place = data.find(self.seal.mark, place + 1)
        return size


# A record is written once `append` returns, so that a killed process loses none; `sync_s` says how much a power failure
# may cost. When the spool is full, the oldest segment goes, and `gone` says what was in it.

logger = logging.getLogger("hookcore")

SEGMENT_BYTES: Final = 64 * 2**20
_SMALL: Final = 2**20
KEY_FILE: Final = "key"
HEADS_SHARE: Final = 2  # the heads of runs may take this part of the spool,
MAX_HEADS_BYTES: Final = 2**29  # and of the memory, where their contents are, too
_NAME: Final = re.compile(r"(\d{12})\.spool")


class SpoolError(HookcoreError):
    """The disk takes nothing more, or a record can't be read."""


class Spool:
    """The records of all runs, in one folder that belongs to this process. All methods can be called by any thread."""

    def __init__(self, folder: Path, limit_bytes: int, sync_s: float = 1.0, segment_bytes: int = 0) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.nbytes = 0  # of the records
        self.heads_nbytes = 0  # of the files that say what the runs are
        self.damaged = 0  # places where no record could be found
        self.sync_errors = 0  # attempts to reach the disk that failed
        self.gone: deque[Record] = deque()  # records that were dropped to make room; their owners take them
        self._sync_s = sync_s
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        room = min(limit_bytes, shutil.disk_usage(folder).free)  # a segment gives its room back as a whole
        self._segment_bytes = segment_bytes or min(SEGMENT_BYTES, max(2**16, room // 16))
        self._seal = seal_of(folder)
        self.segments: dict[int, Segment] = {}
        self._unsynced: set[int] = set()
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sync_often, name="hookcore-spool", daemon=True)
        if 0 < sync_s < math.inf:
            self._thread.start()

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, run: str, first: int, last: int, count: int, payload: bytes | bytearray) -> Record:
        """Write a record. Raises SpoolError if the disk takes nothing more; then nothing was written."""
        checksum = self._seal.checksum_of(run, payload)
        head = self._seal.head_of(run, first, last, count, len(payload), checksum)
        size = len(head) + len(payload)
        with self._lock:
            segment = self._current(size)
            begin = segment.nbytes
            try:
                segment.write([head, payload])
                if self._sync_s == 0:
                    sync(segment.file)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(segment.file, begin)
                if not segment.records:  # a full disk may need its room
                    self._remove(segment.number)
                raise SpoolError(f"can't write to {segment.path}: {error}") from None
            segment.nbytes += size
            self.nbytes += size
            self._unsynced.add(segment.number)
            record = Record(run, first, last, count, segment, begin + len(head), len(payload), checksum)
            segment.records.add(record)
            self._make_room()
        return record

    def _current(self, size: int) -> Segment:
        newest = self.segments[max(self.segments)] if self.segments else None
        if newest is None or newest.nbytes + size > self._segment_bytes or newest.seal != self._seal:
            newest = self._new_segment()
        return newest

    def _new_segment(self) -> Segment:
        number = max(self.segments, default=-1)
        while True:
            number += 1
            path = self.folder / f"{number:012d}.spool"
            try:
                self.segments[number] = segment = Segment.new(number, path, self._seal)
            except FileExistsError:
                continue  # something else that was found at the start
            except OSError as error:
                raise SpoolError(f"can't write to {path}: {error}") from None
            return segment

    def count_head(self, before: int, after: int) -> None:
        """Count the head of a run in place of an earlier one. Raises SpoolError if it doesn't fit."""
        with self._lock:
            most = min(self.limit_bytes // HEADS_SHARE, MAX_HEADS_BYTES)
            if after > before and self.heads_nbytes - before + after > most:
                raise SpoolError(
                    f"the descriptions of all runs would take more than {most} bytes of this collector's spool: raise "
                    f"--spool-limit, or start another collector"
                )
            self.heads_nbytes += after - before

    def _make_room(self) -> None:
        """Remove unneeded segments, then the oldest ones while there is too much."""
        newest = max(self.segments)
        for number in sorted(self.segments):
            if number != newest and not self.segments[number].records:
                self._remove(number)
        for number in sorted(self.segments):
            if self.nbytes + self.heads_nbytes <= self.limit_bytes or number == newest:
                break
            self.gone += sorted(self.segments[number].records, key=lambda record: record.offset)
            self._remove(number)

    def _remove(self, number: int) -> None:
        segment = self.segments.pop(number)
        self._unsynced.discard(number)
        self.nbytes -= segment.nbytes
        segment.close()
        with contextlib.suppress(OSError):
            segment.path.unlink()

    def release(self, record: Record) -> None:
        """Note that a record is no longer needed."""
        with self._lock:
            segment = record.segment
            segment.records.discard(record)
            if segment.records or segment.number not in self.segments:
                return
            # A small newest one stays, or each batch would have a file of its own while the server keeps up.
            if segment.nbytes > _SMALL or segment.number != max(self.segments):
                self._remove(segment.number)

    def _sync_often(self) -> None:
        while not self._stopping.wait(self._sync_s):
            self.sync()

    def sync(self) -> None:
        """Bring everything written so far to the disk itself."""
        with self._lock:
            files = [(number, os.dup(self.segments[number].file)) for number in self._unsynced]
            self._unsynced.clear()
        for number, file in files:
            try:
                sync(file)
            except OSError:
                self.sync_errors += 1
                with self._lock:
                    self._unsynced |= {number} & self.segments.keys()
            finally:
                os.close(file)

    def close(self) -> None:
        """Bring everything to the disk, and stop writing."""
        self._stopping.set()
        self.sync()
        with self._lock:
            for segment in self.segments.values():
                segment.close()

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, record: Record) -> bytes:
        """Return the contents of a record. Raises SpoolError if they are damaged."""
        with self._lock:
            try:
                data = record.payload()
            except OSError as error:
                raise SpoolError(f"can't read {record.segment.path}: {error}") from None
        if record.segment.seal.checksum_of(record.run, data) != record.checksum:
            raise SpoolError(f"{record.segment.path} is damaged at byte {record.offset}")
        return data

    def recover(self) -> Iterator[Record]:
        """Yield the records of an earlier process, oldest first. What it wrote only in part at its end is removed."""
        for path in sorted(self.folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue
            try:
                segment = Segment.found(int(match[1]), path, self._seal)
            except OSError as error:
                self.damaged += 1
                logger.warning("hookcore: %s can't be read, so its items are lost: %s", path, error)
                continue
            self.segments[segment.number] = segment
            yield from self._records_in(segment)

    def _records_in(self, segment: Segment) -> Iterator[Record]:
        at, size = 0, os.fstat(segment.file).st_size
        while at < size:
            record = segment.record_at(at, size)
            if record is not None:
                segment.records.add(record)
                at = record.offset + record.size
                yield record
                continue
            after = segment.next_record(at, size)
            self._report(segment, at, after, size)
            if after == size:
                os.ftruncate(segment.file, at)
                break
            at = after
        segment.nbytes = at
        self.nbytes += at

    def _report(self, segment: Segment, begin: int, end: int, size: int) -> None:
        """Report unreadable records. A record that a killed process wrote in part was never acknowledged: no damage."""
        if end == size and segment.may_be_unfinished(begin):
            logger.warning("hookcore: removed the last %d bytes of %s, an unfinished record", end - begin, segment.path)
            return
        self.damaged += 1
        logger.warning(
            "hookcore: %s is damaged: bytes %d to %d contain no readable record, so their items are lost. "
            "Check the disk",
            segment.path,
            begin,
            end - 1,
        )


def seal_of(folder: Path) -> Seal:
    """Return the seal of a spool, which the first collector with this folder makes."""
    path = folder / KEY_FILE
    try:
        if not os.path.lexists(path):
            with whole_file(path) as file:
                os.chmod(file.fileno(), 0o600)
                file.write(secrets.token_bytes(SEAL_BYTES))
    except OSError as error:  # a full disk must be able to empty itself
        logger.warning("hookcore: can't write %s, so records have no secret checksums: %s", path, error)
        return UNSEALED
    try:
        secret = read_regular(path, SEAL_BYTES)
    except OSError as error:
        raise ArgumentError(f"{path} can't be read: {error}; give another folder") from None
    if len(secret) != SEAL_BYTES:
        raise ArgumentError(f"{path} is damaged, so nothing in this spool can be read: give another folder")
    return Seal.of(secret)
