"""The threads that send what the lanes hold to a server."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Final

from hookcore.delivery.http.connection import REFUSALS, Address, Connection, NotSentError, Pause, Reply, UnansweredError
from hookcore.delivery.http.sender import sentence_of
from hookcore.errors import WireError
from hookcore.records.wire import Batch, decode_answer, encode

from ..api.health import Metric
from .lanes import Lane, Lanes

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
