"""A file of a spool: records one after the other, each a head, the name of a run, and a payload."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct("<4sIIHHQQI")
_MARK: Final = b"hcs1"


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


def head_of(run: str, first: int, last: int, count: int, size: int, checksum: int) -> bytes:
    """Return what stands before a payload of this size."""
    name = run.encode()
    return _HEAD.pack(*_Head(_MARK, size, checksum, len(name), 0, first, last, count).checked()) + name


def checksum_of(run: str, payload: bytes | bytearray) -> int:
    """Return the checksum of a record's name and payload."""
    return zlib.crc32(payload, zlib.crc32(run.encode()))


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
        return os.pread(self.segment.file, self.size, self.offset)


@dataclass(slots=True, eq=False)
class Segment:
    """An open file of a spool."""

    number: int
    path: Path
    file: int = -1
    nbytes: int = 0
    records: set[Record] = field(default_factory=set)  # that are still needed

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def write(self, parts: list[bytes | bytearray]) -> None:
        """Write all parts, however many calls that takes."""
        written = os.writev(self.file, parts)
        left = b"".join(parts)[written:] if written < sum(map(len, parts)) else b""
        while left:
            left = left[os.write(self.file, left) :]

    def head_at(self, at: int) -> _Head | None:
        """Return the head that begins here, right or not, if a whole one does."""
        data = os.pread(self.file, _HEAD.size, at)
        return _Head(*_HEAD.unpack(data)) if len(data) == _HEAD.size else None

    def record_at(self, at: int, size: int) -> Record | None:
        """Return the record that begins here, if a whole one does in a file of this size."""
        head = self.head_at(at)
        if head is None or not head.is_right:
            return None
        offset = at + _HEAD.size + head.name
        if offset + head.size > size:
            return None
        name = os.pread(self.file, head.name, at + _HEAD.size).decode("utf-8", "replace")
        return Record(name, head.first, head.last, head.items, self, offset, head.size, head.checksum)

    def next_record(self, at: int, size: int) -> int:
        """Return the start of the next record after a damaged one, or `size`."""
        data = os.pread(self.file, size - at, at)
        place = data.find(_MARK, 1)
        while place >= 0:
            record = self.record_at(at + place, size)  # None: the mark is part of a payload
            if record is not None and checksum_of(record.run, record.payload()) == record.checksum:
                return at + place
            place = data.find(_MARK, place + 1)
        return size
