"""The memory of a server's runs, assigned by use.

When it is scarce, runs that are completely on disk are unloaded first, then idle runs become coarser. Only after that
is a run removed, which is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..settings import ServerSettings
from .disk import Disk
from .joint import JointRun
from .removed import Removals
from .run import Run

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
        every |= {id(each.joint): each.joint for each in gone if isinstance(each.joint, JointRun)}
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
        return any(self._unload(run) for run in idle) or any(self._evict(run) for run in idle)

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
            (self._unload, idle),
            (_shrink, sorted(idle, key=_nbytes_of, reverse=True)),
            (_shrink, live),
            (self._evict, idle),
        )
        for make, runs in means:
            for run in runs:
                if self.used_bytes <= self._limit:
                    return
                make(run)

    def leave(self, run: Run) -> bool:
        """Unload a run if all of it is on disk. Needs no lock."""
        disk = self._disk()
        if disk is None or run.commands.local is not None or not run.lock.acquire(blocking=False):
            return False  # a batch is being stored: the trainer is back
        try:
            if not disk.is_whole(run):
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

    def _unload(self, run: Run) -> bool:
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
        if isinstance(run, JointRun) or (disk is not None and disk.is_saving(run)):
            return False  # it goes with its ranks, or will soon be only on disk
        self._remove(run)
        return True


def _nbytes_of(run: Run) -> int:
    return run.store.usage().nbytes


def _shrink(run: Run) -> bool:
    """Merge older steps until the run takes half of its memory."""
    return run.store.shrink(_nbytes_of(run) // 2) > 0
