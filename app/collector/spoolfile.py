"""A file of a spool: records one after the other, each a head, the name of a run, and a payload."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct("<4sIIHHQQI")
_UNSEALED: Final = b"hcs1"
_PLAIN: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # no links, and no waiting for the writer of a pipe
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
        return os.pread(self.segment.file, self.size, self.offset)


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
        file = os.open(path, os.O_RDWR | os.O_APPEND | _PLAIN)
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            os.close(file)
            raise OSError(f"{path.name} is not a plain file with one name")
        return cls(number, path, file, UNSEALED if os.pread(file, 4, 0) == _UNSEALED else seal)

    @classmethod
    def new(cls, number: int, path: Path, seal: Seal) -> Segment:
        """Create a segment. Raises FileExistsError if something has this name."""
        return cls(number, path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | _PLAIN, 0o600), seal)

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
        name = os.pread(self.file, head.name, at + _HEAD.size).decode("utf-8", "replace")
        return Record(name, head.first, head.last, head.items, self, offset, head.size, head.checksum)

    def next_record(self, at: int, size: int) -> int:
        """Return the start of the next record after a damaged one, or `size`."""
        data = os.pread(self.file, size - at, at)
        place = data.find(self.seal.mark, 1)
        while place >= 0:
            record = self.record_at(at + place, size)  # None: the mark is part of a payload
            if record is not None and self.seal.checksum_of(record.run, record.payload()) == record.checksum:
                return at + place
            place = data.find(self.seal.mark, place + 1)
        return size
