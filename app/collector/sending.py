"""The threads that send what the lanes hold: into ClickHouse, or to a server."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from hookcore.delivery.http.connection import REFUSALS, Address, Connection, NotSentError, Pause, Reply, UnansweredError
from hookcore.delivery.http.sender import sentence_of
from hookcore.errors import HookcoreError, WireError
from hookcore.records.wire import Batch, decode_answer, encode

from ..api.health import Metric
from ..clickhouse.client import Cluster, Shard, UnreachableError
from ..clickhouse.schema import number_of_run
from ..clickhouse.writing import claims_of, is_stored
from .cutter import Block, Cutter, Job
from .feed import Cut
from .lanes import Lane, Lanes

logger = logging.getLogger("hookcore")

LOOK_S: Final = 0.2
CUTTING: Final = -1  # the key of the cutting thread's troubles, in addition to those of the shards


class Inserter:
    """Inserts what the lanes have. One thread cuts, and each shard has one that inserts."""

    def __init__(
        self, lanes: Lanes, cluster: Cluster, insert_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.segments = self.rows = 0  # inserted
        self.seconds = 0.0  # in which ClickHouse inserted them
        self.cluster = cluster
        self.cutter = Cutter(lanes, cluster, insert_s, clock)
        self._stopping = threading.Event()
        self._troubles: dict[int, str] = {}
        self.slots = [ShardSlot() for _ in cluster.shards]
        self._pauses = [Pause(clock) for _ in cluster.shards]
        self._locating = Pause(clock)
        self._repeated = [False for _ in cluster.shards]
        self._threads = [threading.Thread(target=self._cut_all, name="hookcore-cut", daemon=True)]
        for shard in cluster.shards:
            name = f"hookcore-insert-{shard.number}"
            self._threads.append(threading.Thread(target=self._insert_all, args=(shard,), name=name, daemon=True))

    @property
    def trouble(self) -> str | None:
        """Why something can't be inserted; None if all is well."""
        return "; ".join(filter(None, self._troubles.values())) or None

    def metrics(self) -> Iterator[Metric]:
        """Yield what only a collector before ClickHouse has."""
        reachable = [({"shard": str(shard.number)}, float(shard.is_reachable)) for shard in self.cluster.shards]
        yield Metric(
            "clickhouse_reachable", "gauge", "Whether a server of the shard answered the last request.", reachable
        )
        yield Metric("inserted_segments_total", "counter", "Segments inserted.", [({}, self.segments)])
        yield Metric("inserted_rows_total", "counter", "Rows of taps inserted.", [({}, self.rows)])
        yield Metric("insert_seconds_total", "counter", "Seconds spent inserting.", [({}, self.seconds)])

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, wait_s: float = 2.0) -> None:
        """Stop inserting. Data that wasn't inserted stays in the spool."""
        self._stopping.set()
        for slot in self.slots:
            slot.close()
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        self.cluster.close()

    # -- cutting ----------------------------------------------------------------------------------------------------

    def _cut_all(self) -> None:
        pause = Pause()
        while not self._stopping.is_set():
            try:
                is_busy = self.step()
                pause.succeed()
            except Exception as error:  # our own bug must not end the thread silently
                is_busy = False
                pause.fail()
                self._note(CUTTING, error)
            if not is_busy:
                self._stopping.wait(pause.rest_s if pause.failures else LOOK_S)

    def step(self) -> bool:
        """Cut the due items of all shards that have too little to insert. Return whether there were any."""
        self.cutter.follow()
        for slot in self.slots:
            if lost := slot.take_lost():
                self.cutter.give_up(lost)
        is_busy = False
        for shard, slot, pause in zip(self.cluster.shards, self.slots, self._pauses, strict=True):
            with self._trying(pause) as is_due:
                while is_due and slot.is_free and (job := self._next(shard)) is not None:
                    slot.put(job)
                    is_busy |= job.cut is not None
        with self._trying(self._locating) as is_due:
            if is_due:
                self.cutter.locate()
        if not any(waited.failures for waited in (*self._pauses, self._locating)):
            self._troubles[CUTTING] = ""
        return is_busy

    @contextmanager
    def _trying(self, pause: Pause) -> Iterator[bool]:
        """Yield whether to try again. A failing shard waits alone; the others continue."""
        is_due = pause.is_over
        try:
            yield is_due
        except HookcoreError as error:
            pause.fail()
            self._note(CUTTING, error)
        else:
            if is_due:
                pause.succeed()

    def _next(self, shard: Shard) -> Job | None:
        shard.prepare()
        if not shard.is_reachable:  # said also while nothing waits
            self._note(shard.number, UnreachableError(shard.trouble))
        elif self.slots[shard.number].is_empty:
            self._clear(shard)
        if not self._repeated[shard.number]:
            for job in self.cutter.repeat(shard):
                self.slots[shard.number].put(job)
            self._repeated[shard.number] = True
            return None
        return self.cutter.next(shard)

    # -- inserting --------------------------------------------------------------------------------------------------

    def _insert_all(self, shard: Shard) -> None:
        slot = self.slots[shard.number]
        while (job := slot.get()) is not None:
            pause = Pause()
            while not self._stopping.is_set():
                try:
                    self.insert(shard, job)
                    break
                except Exception as error:
                    pause.fail()
                    slot.doubt()
                    self._note(shard.number, error)
                    self._stopping.wait(pause.rest_s)
            else:
                return
            self._clear(shard)

    def insert(self, shard: Shard, job: Job) -> None:
        """Insert the rest of a job. After an exception, it can be called again."""
        began = time.perf_counter()
        slot = self.slots[shard.number]
        if job.cut is not None and job.is_repeated:
            shard.settle(f"{self.cutter.cuts.id}-{job.cut.number}")
            if not job.is_begun and not self._is_ours(shard, job.cut):
                slot.lose()
                return
        _insert_each(shard, job.names)
        while job.blocks and job.cut is not None:
            table, block = job.blocks[0]
            spool, segment = self.cutter.cuts.id, job.cut.number
            if not (job.is_repeated and is_stored(shard, table, spool, segment)):
                shard.insert(table.name, block, f"{spool}-{segment}")
            del job.blocks[0]
            job.is_begun = True
        if job.cut is not None:
            self.cutter.on_stored(job.cut)
            self.segments, self.rows, job.cut = self.segments + 1, self.rows + job.rows, None
        _insert_each(shard, job.signs)
        slot.done()
        self.seconds += time.perf_counter() - began

    def _is_ours(self, shard: Shard, cut: Cut) -> bool:
        """Return whether no other process has claimed a run while a segment couldn't be inserted."""
        claims = claims_of(shard, [number_of_run(share.run) for share in cut.shares])
        return all(claim.spool == self.cutter.homes.spool for claim in claims.values())

    def _note(self, shard: int, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self._troubles.get(shard):
            message = "hookcore: ClickHouse isn't accepting data (%s); incoming data waits in the spool"
            logger.warning(message, text, exc_info=not isinstance(error, HookcoreError))
        self._troubles[shard] = text

    def _clear(self, shard: Shard) -> None:
        if self._troubles.get(shard.number):
            logger.warning("hookcore: %s can be reached again", shard.name)
        self._troubles[shard.number] = ""


def _insert_each(shard: Shard, blocks: list[Block]) -> None:
    """Insert blocks that may be repeated."""
    while blocks:
        shard.insert(blocks[0][0].name, blocks[0][1])
        del blocks[0]


class ShardSlot:
    """The jobs of one shard: one that is inserted, and one that waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.jobs: list[Job] = []
        self._lost: list[Cut] = []
        self._closed = False

    @property
    def is_free(self) -> bool:
        """Whether another job may be prepared."""
        with self._changed:
            return len(self.jobs) < 2 and not self._lost

    @property
    def is_empty(self) -> bool:
        with self._changed:
            return not self.jobs

    def put(self, job: Job) -> None:
        """Add a job. One whose predecessors were removed since it was prepared is removed, too."""
        with self._changed:
            if self._lost and job.cut is not None:
                self._lost.append(job.cut)
                return
            job.is_repeated |= any(before.is_repeated for before in self.jobs)
            self.jobs.append(job)
            self._changed.notify_all()

    def doubt(self) -> None:
        """Note that an insert failed. While all jobs wait, other processes may claim their runs, or insert the same."""
        with self._changed:
            for job in self.jobs:
                job.is_repeated = True

    def get(self) -> Job | None:
        """Wait for the oldest job, which stays until it is done; None at the end."""
        with self._changed:
            while not self.jobs and not self._closed:
                self._changed.wait()
            return None if self._closed else self.jobs[0]

    def done(self) -> None:
        """Remove the oldest job."""
        with self._changed:
            del self.jobs[0]

    def lose(self) -> None:
        """Remove all jobs, because the oldest one may not be inserted from here."""
        with self._changed:
            self._lost = [job.cut for job in self.jobs if job.cut is not None]
            self.jobs.clear()

    def take_lost(self) -> list[Cut]:
        """Return the segments of the jobs that were removed, oldest first."""
        with self._changed:
            lost, self._lost = self._lost, []
            return lost

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


# To a server.

logger = logging.getLogger("hookcore")

THREADS: Final = 4
CONNECT_S: Final = 2.0
REQUEST_S: Final = 30.0
LOOK_EVERY_S: Final = 1.0
BEHIND: Final = "the server accepts no more data yet"


class Forwarder:
    """Sends each run in order; runs are shared among a few threads, each with a connection of its own."""

    def __init__(self, lanes: Lanes, address: Address, threads: int = THREADS) -> None:
        self.trouble: str | None = None  # why the server can't be reached
        self.batches = 0
        self._lanes = lanes
        self._address = address
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, args=(number, threads), name=f"hookcore-forward-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def metrics(self) -> Iterator[Metric]:
        """Yield what only a collector before a server has."""
        yield Metric("forwarded_batches_total", "counter", "Batches sent to the server.", [({}, self.batches)])
        reachable = float(not self.trouble)
        yield Metric(
            "server_reachable", "gauge", "Whether the newest attempt to reach the server worked.", [({}, reachable)]
        )

    def close(self, wait_s: float = 2.0) -> None:
        """Stop sending. Unsent data stays in the spool."""
        with self._lanes.changed:
            self._stopping = True
            self._lanes.changed.notify_all()
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self, number: int, of: int) -> None:
        connection = Connection(self._address, CONNECT_S, REQUEST_S)
        pause = Pause()
        while (lane := self._next(number, of, pause.until)) is not None:
            try:
                self._send(lane, connection)
                if self.trouble:
                    logger.warning("hookcore: %s can be reached again", self._address.url)
                self.trouble = None
                pause.succeed()
            except (NotSentError, UnansweredError) as error:
                pause.fail()
                if not self.trouble:
                    logger.warning("hookcore: %s; incoming data waits in the spool", error)
                self.trouble = str(error)
            except Exception as error:  # our own bug must not end the thread silently
                lane.on_failure(f"{type(error).__name__}: {error}")
                logger.warning("hookcore: the run %s can't be sent on", lane.info.id, exc_info=True)
            if number == 0:
                self._lanes.forget_finished()
        connection.close()

    def _next(self, number: int, of: int, not_before: float) -> Lane | None:
        """Wait for the lane that has waited longest, among those of this thread. None at the end."""
        changed = self._lanes.changed
        with changed:
            while not self._stopping:
                now = time.monotonic()
                mine = [lane for lane in self._lanes.all() if zlib.crc32(lane.info.id.encode()) % of == number]
                due = min(
                    ((max(lane.due_at(), not_before), lane.sent_at, lane) for lane in mine), default=None, key=_when
                )
                if due is not None and due[0] <= now:
                    return due[2]
                changed.wait(min(LOOK_EVERY_S, due[0] - now) if due is not None else LOOK_EVERY_S)
        return None

    def _send(self, lane: Lane, connection: Connection) -> None:
        sent = lane.next_batch()
        reply = connection.post(encode(sent))
        self.batches += 1
        if 200 <= reply.status < 300:
            trouble = _read(lane, sent, reply)
        else:
            trouble = f"the server answered {reply.status}{sentence_of(reply.body)}"
            if reply.status in REFUSALS:
                lane.on_refusal(sent)
        # A server that is behind is no reason for a warning: it says so whenever its disk has to catch up.
        if trouble is not None and lane.on_failure(trouble, reply.retry_after_s) and trouble != BEHIND:
            logger.warning("hookcore: the run %s waits in the spool: %s", lane.info.id, trouble)


def _when(due: tuple[float, float, Lane]) -> tuple[float, float]:
    return due[:2]


def _read(lane: Lane, sent: Batch, reply: Reply) -> str | None:
    """Process an answer. Return why it made no progress, or None."""
    try:
        answer = decode_answer(reply.body)
    except WireError as error:
        return f"the program at this address is not a hookcore server: {error}"
    return None if lane.on_answer(sent, answer) else BEHIND
