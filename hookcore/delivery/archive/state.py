"""The state of a saved run: how much of it is on disk, who may continue it, and whether it is being written."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hookcore.delivery.archive.layout import MAX_RUN_FILE_BYTES, RUN_FILE, parts_in
from hookcore.delivery.dashboard.foreign import parsed, read_regular

LOCK_FILE: Final = "writing.lock"
_METADATA: Final = b"hookcore"


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """The counters of a run on disk, over all of its writers."""

    acknowledged: int = -1  # the highest number, on the wire, of what was written
    written: int = 0  # frames and snapshots
    lost: int = 0

    def as_metadata(self) -> dict[bytes, bytes]:
        """Return the counters as metadata of a part, so that a crash can't separate them from its data."""
        return {_METADATA: msgspec.json.encode(self)}

    @classmethod
    def of(cls, folder: Path) -> DiskCounters:
        """Return the counters of the run in a folder: the newer of run.json and its last part."""
        found = [cls()]
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found.append(msgspec.convert(parsed(read_regular(folder / RUN_FILE, MAX_RUN_FILE_BYTES)), cls))
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, LookupError, pa.ArrowException):
            said = pq.read_schema(parts_in(folder / "steps")[-1][2]).metadata[_METADATA]
            found.append(msgspec.json.decode(said, type=cls))
        return max(found, key=lambda counters: (counters.acknowledged, counters.written))


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Counters of received, written, and lost frames and snapshots, and the bytes on disk."""

    taken: int
    written: int
    lost: int
    nbytes: int
    stopped: str  # why nothing is being written; empty if all is well


def key_hash(key: str) -> str:
    """Return a hash of a run's key: enough to recognize its trainer, useless to anyone else."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() if key else ""


def hold(folder: Path) -> int | None:
    """Lock a run against other writers; None if another process has the lock. It ends with the descriptor."""
    number = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        return None
    except OSError:
        pass  # a file system without locks
    return number


def is_held(folder: Path) -> bool:
    """Return whether a process is writing to this run."""
    try:
        number = hold(folder)
    except OSError:
        return False
    if number is None:
        return True
    os.close(number)
    return False
