"""The trainers of a collector: their lanes, in memory and on disk, within limits."""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hookcore.errors import ArgumentError, HookcoreError
from hookcore.records.wire import Answer, Batch

from .lane import HEAD, Lane
from .spool import Spool
from .spoolfile import Record

logger = logging.getLogger("hookcore")

MAX_LANES: Final = 10_000
LOCK_FILE: Final = "lock"
FORGET_AFTER_S: Final = 60.0  # a trainer may repeat its last batch
SILENT_S: Final = 3600.0  # without a trainer and without data


class FullError(HookcoreError):
    """There are too many runs."""


class WrongKeyError(HookcoreError):
    """Another trainer opened the run."""


class Lanes:
    """All lanes of a collector. `changed` is notified when there is something to send."""

    def __init__(
        self, folder: Path, limit_bytes: int, sync_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lock_file = _hold(folder)
        self.spool = Spool(folder, limit_bytes, sync_s)
        self.changed = threading.Condition()
        self.dropped: Counter[str] = Counter()  # items of lanes that were forgotten
        self._lanes: dict[str, Lane] = {}
        self._recover()

    def _recover(self) -> None:
        records: defaultdict[str, list[Record]] = defaultdict(list)
        for record in self.spool.recover():
            records[record.run].append(record)
        for path in sorted(self.spool.folder.glob(f"*{HEAD}")):
            try:
                lane = Lane.read(path, self.spool, self._clock)
            except (HookcoreError, OSError) as error:
                logger.warning("hookcore: %s can't be read (%s): its run can't be sent on", path, error)
                continue
            self._lanes[lane.info.id] = lane
            if found := records.pop(lane.info.id, None):
                lane.restore(found)
        for run, left in records.items():
            logger.warning("hookcore: the tap names of %d records of the run %s are lost", len(left), run)
            self.dropped["spool-damaged"] += sum(record.count for record in left)
            for record in left:
                self.spool.release(record)

    def all(self) -> list[Lane]:
        return list(self._lanes.values())

    def take(self, batch: Batch, data: bytes | bytearray) -> Answer:
        """Take a batch of a trainer. Raises SpoolError, FullError, or WrongKeyError; then nothing was taken."""
        answer = None
        while answer is None:
            answer = self._lane_of(batch).take(batch, data)
        self.count_gone()
        with self.changed:
            self.changed.notify_all()
        return answer

    def _lane_of(self, batch: Batch) -> Lane:
        with self.changed:
            lane = self._lanes.get(batch.run.id)
            if lane is None:
                if len(self._lanes) >= MAX_LANES:
                    raise FullError(f"this collector already has {MAX_LANES} runs: start another one")
                lane = self._lanes[batch.run.id] = Lane(batch.run, self.spool, self._clock)
        if not hmac.compare_digest(lane.info.key.encode(), batch.run.key.encode()):
            raise WrongKeyError(f"another trainer opened the run {batch.run.id}: each trainer needs its own run")
        return lane

    def count_gone(self) -> None:
        """Count what the spool dropped to make room. Not while a lane is locked."""
        while self.spool.gone:
            record = self.spool.gone.popleft()
            lane = self._lanes.get(record.run)
            if lane is None:
                self.dropped["spool-full"] += record.count
            else:
                lane.lose([record], "spool-full")

    def forget_finished(self) -> None:
        """Forget runs whose server has everything, and runs without a message for an hour."""
        for lane in self.all():
            silent_s = min(lane.silent_s, self._clock() - lane.sent_at)
            with self.changed, lane.lock:
                is_over = lane.is_finished and silent_s > FORGET_AFTER_S
                if is_over or (lane.is_empty and silent_s > SILENT_S):
                    del self._lanes[lane.info.id]
                    self.dropped.update(lane.dropped)
                    lane.forget()

    def close(self) -> None:
        """Write everything to disk."""
        for lane in self.all():
            lane.leave()
        self.spool.close()
        os.close(self._lock_file)


def _hold(folder: Path) -> int:
    """Lock the folder against other collectors, until this process ends."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ArgumentError(
            f"spool={str(folder)!r} can't be used: {error}; give a folder that you may write to"
        ) from None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        raise ArgumentError(f"spool={str(folder)!r} is in use by another collector: give each its own folder") from None
    return number
