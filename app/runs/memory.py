"""The memory of a server's runs, assigned by use, which runs an answer reads, and which were removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Final

from hookcore.store import Store

from ..settings import ServerSettings
from .disk import Disk, Gone
from .joint import as_joint
from .run import Run

# Which runs an answer reads, so that one is made again if a run leaves memory meanwhile.

Read = list[tuple[Run, Store]]

_READ: Final[ContextVar[Read | None]] = ContextVar("runs read for an answer", default=None)


def watch_reads() -> Read:
    """Return the runs that are read from now on in this context and its threads, each with its store then."""
    read: Read = []
    _READ.set(read)
    return read


def note_read(run: Run) -> Run:
    """Note that an answer reads a run, and return it."""
    read = _READ.get()
    if read is not None:
        read.append((run, run.store))
    return run


def has_swapped(read: Read) -> bool:
    """Return whether one of these runs was unloaded or read again, and so has another store now."""
    return any(run.store is not store for run, store in read)


MAX_GONE: Final = 200  # removed runs that are remembered


class Removals:
    """The removed runs by id, latest removal last. The list of runs has a lock, which must be held to change them."""

    def __init__(self) -> None:
        self._gone: dict[str, Gone] = {}

    def __iter__(self) -> Iterator[Gone]:
        return iter(list(self._gone.values()))

    def get(self, run_id: str) -> Run | None:
        """Return a removed run by its id, if it can be restored."""
        gone = self._gone.get(run_id)
        return None if gone is None else gone.run

    def put(self, gone: Gone) -> None:
        """Remember a removed run, and forget the oldest beyond the limit."""
        self.drop(gone.id)
        self._gone[gone.id] = gone
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def drop(self, run_id: str) -> None:
        """Forget a removed run: it is back, or nothing is left of it."""
        self._gone.pop(run_id, None)

    def restorable(self) -> list[Run]:
        """Return the runs that can be restored."""
        return [gone.run for gone in self if gone.run is not None]

    def let_go(self, run_id: str) -> None:
        """Release a removed run, which can no longer be restored."""
        if (gone := self._gone.get(run_id)) is not None:
            gone.run = None

    def latest_first(self) -> list[Gone]:
        """Return the removals, the latest first. Those of the ranks of one training are one."""
        oldest_first = map(as_joint, sorted(self, key=lambda gone: gone.at_s))
        return list({run.id: run for run in oldest_first}.values())[::-1]

    def ranks_of(self, run_id: str) -> list[str]:
        """Return the ids of the removed runs that were the ranks of a training."""
        return [gone.id for gone in self if as_joint(gone).id == run_id != gone.id]


# When it is scarce, runs that are completely on disk are unloaded first, then idle runs become coarser. Only after that
# is a run removed, which is reported.

MIN_RUN_BYTES: Final = 2**20
MAX_SHARE: Final = 4  # one run gets at most a quarter of the memory
FULL: Final = 0.9  # of the memory: from here on, room is made
IDLE_S: Final = 300.0  # a run viewed since then stays in memory
BALANCE_EVERY_S: Final = 1.0


class Memory:
    """Decides which runs leave memory. The methods `make_place` and `make_room` need the lock of the list.

    `runs` and `gone` are those of the list, `disk` returns where runs are saved, and `remove` takes a run off the list
    that is only in memory.
    """

    def __init__(
        self,
        settings: ServerSettings,
        clock: Callable[[], float],
        runs: Mapping[str, Run],
        gone: Removals,
        disk: Callable[[], Disk | None],
        remove: Callable[[Run], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._runs = runs
        self._gone = gone
        self._disk = disk
        self._remove = remove
        self._balanced_at = float("-inf")

    @property
    def used_bytes(self) -> int:
        """Return the memory of all runs, including those that can be restored."""
        gone = self._gone.restorable()
        every: dict[int, Run] = {id(each): each for each in [*self._runs.values(), *gone]}
        every |= {id(each.joint): each.joint for each in gone if each.joint is not None}
        return sum(run.store.usage().nbytes for run in every.values() if run.loaded)

    def store_bytes(self, asked: int) -> int:
        """Return the limit of a run's store: as requested, but at most a quarter of the memory."""
        most = self._settings.memory // MAX_SHARE
        return max(min(asked or most, most), MIN_RUN_BYTES)

    def make_place(self) -> bool:
        """Return whether there is room for another run; unload or remove an idle one if needed."""
        loaded = [run for run in self._runs.values() if run.loaded]
        if sum(run.joint is None for run in loaded) < self._settings.max_runs:
            return self.used_bytes < self._settings.memory or any(run.finished for run in loaded)
        idle = self._idle(loaded)
        return any(self.unload(run) for run in idle) or any(self._evict(run) for run in idle)

    def is_short(self, at_once: bool) -> bool:
        """Return whether room must be made. Unless it is needed `at_once`, that is examined once a second at most."""
        now = self._clock()
        if not at_once and 0 <= now - self._balanced_at < BALANCE_EVERY_S:
            return False
        self._balanced_at = now
        return self.used_bytes > self._limit

    def make_room(self, spare: Run | None) -> None:
        """Bring the memory within its limit, with the mildest sufficient means. A `spare` run stays as it is."""
        loaded = [run for run in self._runs.values() if run.loaded and run is not spare]
        idle = self._idle(loaded)
        live = sorted((run for run in loaded if not run.finished), key=_nbytes_of, reverse=True)
        means: tuple[tuple[Callable[[Run], bool], list[Run]], ...] = (
            (self._drop, [run for run in self._gone.restorable() if run.loaded]),
            (self.unload, idle),
            (_shrink, sorted(idle, key=_nbytes_of, reverse=True)),
            (_shrink, live),
            (self._evict, idle),
        )
        for make, runs in means:
            for run in runs:
                if self.used_bytes <= self._limit:
                    return
                make(run)

    def is_kept(self, run: Run) -> bool:
        """Return whether all of a run is on disk, or of all ranks, if it is their sum."""
        disk, parts = self._disk(), [run] if run.ranks is None else run.ranks.runs()
        return disk is not None and bool(parts) and all(map(disk.is_whole, parts))

    def leave(self, run: Run) -> bool:
        """Unload a run if all of it is on disk. Needs no lock."""
        if run.commands.local is not None or not run.lock.acquire(blocking=False):
            return False  # a batch is being stored: the trainer is back
        try:
            if not self.is_kept(run):
                return False
            run.outline(run.store.steps(), run.end)
            run.saved.from_disk, run.saved.writer = True, None
            return True
        finally:
            run.lock.release()

    @property
    def _limit(self) -> int:
        return int(self._settings.memory * FULL)

    def _idle(self, loaded: list[Run]) -> list[Run]:
        """Return the finished runs in memory: unviewed ones first, and of these the oldest."""
        recent = self._clock() - IDLE_S
        finished = [run for run in loaded if run.finished]
        looked_at = {run.id: max(run.signs.looked_at, recent) for run in finished}
        return sorted(finished, key=lambda run: (looked_at[run.id], run.signs.seen_at, run.info.started_s))

    def _drop(self, run: Run) -> bool:
        """Unload a removed run, which can still be restored from disk."""
        if not self.leave(run):
            self._gone.let_go(run.id)
        return True

    def unload(self, run: Run) -> bool:
        """Unload a run that is completely on disk; no data is lost."""
        if self._clock() - run.signs.looked_at < IDLE_S:
            return False
        disk = self._disk()
        if run.state == "lost" and disk is not None:
            disk.release(run)  # it will be complete soon
        return self.leave(run)

    def _evict(self, run: Run) -> bool:
        """Remove a run that is only in memory; the last resort."""
        if run.id not in self._runs or not run.loaded:
            return False
        disk = self._disk()
        if run.state == "lost" and disk is not None:
            disk.release(run)
        if self.leave(run):
            return True
        if run.is_derived or (disk is not None and disk.is_saving(run)):
            return False  # it goes with its ranks, or will soon be only on disk
        self._remove(run)
        return True


def _nbytes_of(run: Run) -> int:
    return run.store.usage().nbytes


def _shrink(run: Run) -> bool:
    """Merge older steps until the run takes half of its memory."""
    return run.store.shrink(_nbytes_of(run) // 2) > 0
