"""The runs of a ClickHouse cluster in the list of a server: a thread for each shard keeps them in sync."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from hookcore.errors import HookcoreError

from ...runs.gone import Why
from ...runs.joint import JointRun
from ...runs.run import Run
from ...runs.runs import Runs
from ...settings import ServerSettings
from ..client import Cluster, Shard, UnreachableError
from .following import Following
from .loading import Summarize
from .retention import Retention

logger = logging.getLogger("hookcore")

LOOK_S: Final = 1.0
ADD_S: Final = 5.0  # between two looks for steps to add up, if there were none
UNLIST_LOOKS: Final = 60  # between two looks for runs that were dropped


class SharedRuns(Following):
    """Manages the runs of a cluster, as a disk does for a server without ClickHouse."""

    def __init__(
        self, runs: Runs, cluster: Cluster, settings: ServerSettings, summarize: Summarize = lambda run: {}
    ) -> None:
        super().__init__(runs, cluster, settings, summarize)
        self._threads: list[threading.Thread] = []
        runs.disk = self

    # -- the threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """List the runs, and follow them. Raises HookcoreError if this server can't use the database."""
        for shard in self._cluster.shards:
            try:
                self._look(shard)
            except UnreachableError as error:  # it may come back
                self._note(shard, error)
        self._listed.set()
        retention = Retention(self._settings.retain)
        for shard in self._cluster.shards:
            self._begin(f"hookcore-shard-{shard.number}", partial(self._follow, shard, retention))
        self._begin("hookcore-sums", self._add_up)

    def _begin(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self, wait_s: float = 2.0) -> None:
        """Stop following."""
        self._stopping.set()
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._cluster.close()

    def _follow(self, shard: Shard, retention: Retention) -> None:
        looks = 0
        while not self._stopping.wait(LOOK_S):
            try:
                self._look(shard)
                self.advance(shard)
                looks += 1
                if retention.keep(shard) or looks % UNLIST_LOOKS == 0:
                    self._unlist_dropped(shard)
            except Exception as error:  # also our own bug must not end the thread silently
                self._note(shard, error)
            else:
                self._note(shard, None)

    def _add_up(self) -> None:
        """Store sums over the steps of the trainings in memory, of each a part in turn."""
        is_done = True
        while not self._stopping.wait(ADD_S if is_done else 0.0):
            is_done = not any([self._advance(each) for each in list(self._adders)])

    def _advance(self, run_id: str) -> bool:
        """Store sums of some steps of a training; return whether there may be more."""
        run, (store, adder) = self._runs.get(run_id), self._adders[run_id]
        if run is None or run.store is not store:
            self._adders.pop(run_id, None)
            return False
        try:
            return run.loaded and adder.advance()
        except HookcoreError as error:  # the thread of its shard says so, too
            logger.debug("hookcore: sums of ranks can't be stored: %s", error)
        except Exception:  # also our own bug must not end the thread silently
            logger.exception("hookcore: sums of the ranks of %s can't be stored", run_id)
            self._adders.pop(run_id, None)
        return False

    # -- leaving memory ---------------------------------------------------------------------------------------------

    def is_whole(self, run: Run) -> bool:
        """Return whether a run can leave memory: it is all in ClickHouse, and no more data is expected."""
        if isinstance(run, JointRun):
            return bool(run.members) and all(self.is_whole(each.run) for each in list(run.members.values()))
        return run.id in self._entries and run.finished

    def is_saving(self, run: Run) -> bool:
        """Return False: nothing is written here."""
        return False

    def release(self, run: Run) -> None:
        """Do nothing: nothing is written here."""

    def discard(self, run: Run, why: Why) -> None:
        """Remove a run from the lists of all servers. Its data stays until its time is over."""
        self._mark(run, why == "deleted")

    def restore(self, run: Run) -> None:
        """Put a run back into the lists of all servers."""
        self._mark(run, False)

    def _mark(self, run: Run, removed: bool) -> None:
        entry = self._entries.get(run.id)
        if entry is not None and entry.removed != removed:
            entry.removed = removed
            entry.write_page()
