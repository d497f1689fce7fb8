"""The thread that empties an outbox into a server. It raises nothing, and waits where only it can wait."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from hookcore.delivery.http.connection import (
    MAX_PAUSE_HERE_S,
    MAX_PAUSE_S,
    REFUSALS,
    WRITING,
    Address,
    Connection,
    NotSentError,
    Reply,
    Retries,
    UnansweredError,
)
from hookcore.delivery.http.outbox import Outbox
from hookcore.delivery.http.parcels import Entry, MakeSpool, Parcel, Spool, fitted, fitted_frame, fitted_settings
from hookcore.errors import WireError
from hookcore.records import Command, Frame
from hookcore.records.wire import (
    Batch,
    DeliveryCounters,
    FrameItem,
    Item,
    Receipt,
    RunInfo,
    SnapshotItem,
    decode_answer,
    encode,
    frame_item,
    snapshot_item,
)

# Conversion of parcels to batches, and of error answers to sentences.

MAX_SENTENCE = 500


def batch_of(parcel: Parcel, run: RunInfo, commands_done: int) -> Batch:
    """Return the batch for a parcel."""
    items: list[Item] = [_item(entry) for entry in parcel.entries]
    if parcel.end is not None:
        items.append(parcel.end)
    return Batch(
        run=run,
        taps_from=parcel.taps_from,
        taps=parcel.taps,
        description=parcel.description,
        items=tuple(items),
        counters=parcel.counters,
        commands_done=commands_done,
        retained=parcel.retained,
    )


def _item(entry: Entry) -> FrameItem | SnapshotItem:
    if isinstance(entry.record, Frame):
        return frame_item(entry.number, fitted_frame(entry.record))
    return snapshot_item(entry.number, replace(entry.record, tap=fitted(entry.record.tap)))


def sentence_of(body: bytes) -> str:
    """Return the error in an answer, with a leading colon, or an empty string."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return f": {str(json.loads(body)['error'])[:MAX_SENTENCE]}"
    return ""


PART_S: Final = 5.0  # what a killed trainer may lose


class Spooling:
    """The spool of one run, from the moment that it is needed. Everything but `abandon` is called by one thread."""

    def __init__(self, outbox: Outbox, make: MakeSpool | None) -> None:
        self._outbox = outbox
        self._make = make
        self._spool: Spool | None = None
        self._is_on = False  # whether it gets every item
        self._due = float("inf")
        self._trouble: str | None = None
        self._ended = False
        self.lost = 0  # at the end: items that could not be written

    @property
    def path(self) -> Path | None:
        """The folder on disk that has what wasn't delivered; None if there is none, or if it can't be written."""
        return None if self._spool is None or self._spool.trouble else self._spool.path

    @property
    def is_possible(self) -> bool:
        """Whether something may be written at the end."""
        return self._make is not None and not self._trouble

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written; None if it can, or if nothing should be."""
        return self._trouble or (None if self._spool is None else self._spool.trouble)

    @property
    def due_at(self) -> float:
        """When the next part is due."""
        return self._due

    def begin(self, run: RunInfo) -> None:
        """Keep everything on disk from now on, and write what is waiting."""
        if self._is_on or self._ended or (self._spool is None and not self._open(run)):
            return
        assert self._spool is not None
        self._is_on = True
        self._outbox.spool_to(self._spool)
        self.write()

    def _open(self, run: RunInfo) -> bool:
        if self._make is None or self._trouble:
            return False
        try:
            self._spool = self._make(run, lambda: self._outbox.described)
        except Exception as error:  # no folder, a library that can't be loaded: never a reason not to train
            self._trouble = str(error) or type(error).__name__
        return self._spool is not None

    def write(self) -> None:
        """Write the next part."""
        self._due = time.monotonic() + PART_S
        if self._spool is not None:
            self._spool.write()

    def note_progress(self) -> None:
        """Note that the server takes items. The spool is removed once it has saved all that is in there."""
        spool = self._spool
        if spool is None:
            return
        if self._is_on and self._outbox.spool_no_more():
            self._is_on, self._due = False, float("inf")
        if not self._is_on and self._outbox.durable >= spool.newest:
            self._spool = None
            spool.discard()

    def finish(self, run: RunInfo) -> None:
        """Write everything that the server hasn't saved, for the next dashboard. A second call does nothing."""
        self.begin(run)
        if not self._ended and self._spool is not None:
            self.lost = self._spool.close(run)
        self._ended = True

    def drop(self) -> None:
        """Remove the spool at the end of a run that the server has saved."""
        if not self._ended and self._spool is not None:
            self._spool.discard()
            self._spool = None
        self._ended = True

    def abandon(self) -> None:
        """Leave the spool alone in a forked child."""
        spool, self._spool, self._ended = self._spool, None, True
        if spool is not None:
            spool.abandon()


# Warnings about data that the server didn't receive.

_LOSSES: Final[dict[str, str]] = {
    "queue-full": "dropped because too many were waiting",
    "refused": "rejected",
    "too-large": "too large",
    "unsendable": "could not be encoded",
    "closed": "not sent in time",
}
_NO_ANSWER: Final = "it didn't answer"
_WRITES: Final = "it is still writing"


def absence_message(trouble: str | None, spooling: Spooling) -> str:
    """Return the warning about a server that accepts nothing."""
    return (
        f"hookcore: the server isn't accepting frames ({trouble or _NO_ANSWER}). Training continues. "
        f"{_meanwhile(spooling)}"
    )


def _meanwhile(spooling: Spooling) -> str:
    if spooling.path is not None:
        return f"Until it does, frames are kept in {spooling.path}."
    why = f" They can't be kept on disk: {spooling.trouble}." if spooling.trouble else ""
    return (
        f"If the queue fills up, the oldest frames are dropped. Frames still waiting when the run ends are lost.{why}"
    )


def return_message(counters: DeliveryCounters) -> str:
    """Return the words about a server that accepts frames again."""
    dropped = counters.dropped.get("queue-full", 0)
    what = f"{dropped:,} of {counters.produced:,} frames and snapshots were {_LOSSES['queue-full']}"
    return f"hookcore: the server is accepting frames again.{f' {what}.' if dropped else ''}"


def loss_message(
    counters: DeliveryCounters,
    trouble: str | None,
    answered: bool,
    unsaved: int | None,
    given_up: str | None,
    spooling: Spooling,
) -> str | None:
    """Return a warning about the data of an ended run that is or may be lost, or None if all of it is saved.

    `unsaved`: the number of items that the server acknowledged but may not have saved; 0 if only the end is unsaved.
    `given_up`: why the server will not save them.
    """
    parts = [(count, _LOSSES[reason]) for reason, count in counters.dropped.items() if count]
    parts += [(counters.waiting, _LOSSES["closed"])] if counters.waiting else []  # they are in the spool
    parts += [(counters.in_flight, "sent without an answer")] if counters.in_flight else []
    kept = _kept_message(spooling)
    if not parts and answered:
        return None if unsaved is None else _unsaved_message(counters, trouble, unsaved, given_up, kept)
    why = ", ".join(f"{count:,} {why}" for count, why in parts) or "only its description was not sent"
    also = f" Of those that did, the server may not have saved the last {unsaved:,}." if unsaved else ""
    return (
        f"hookcore: the run has ended, and {sum(count for count, _ in parts):,} of its {counters.produced:,} frames "
        f"and snapshots did not reach the server ({trouble or _NO_ANSWER}): {why}.{also}{kept}"
    )


def _kept_message(spooling: Spooling) -> str:
    """Return where the undelivered items are, with a leading space; empty if they are nowhere."""
    if spooling.path is None:
        return f" They are lost: {spooling.trouble}." if spooling.trouble else ""
    lost = f" {spooling.lost:,} of them could not be written and are lost." if spooling.lost else ""
    return (
        f" What it hasn't saved is in {spooling.path}.{lost} Your next dashboard takes it in, and `hookcore open` "
        "shows it."
    )


def _unsaved_message(
    counters: DeliveryCounters, trouble: str | None, unsaved: int, given_up: str | None, kept: str
) -> str:
    last = f"the last {unsaved:,} of the {counters.acknowledged:,} frames and snapshots that it acknowledged"
    if given_up is not None:
        return (
            f"hookcore: the run has ended, but the server couldn't save {last if unsaved else 'all of it'}: "
            f"{given_up}. That data is lost when the server stops."
        )
    what = last if unsaved else "how it ended"
    return (
        f"hookcore: the run has ended, but the server didn't confirm in time ({trouble or _WRITES}) that it saved "
        f"{what}.{kept or ' If the server was killed or its disk is full, that data is lost.'}"
    )


logger = logging.getLogger("hookcore")

SPOOL_S: Final = 60.0  # for writing the rest at the end: a busy machine takes long, and what isn't written is lost
_POLL_S: Final = 0.02


class Sender:
    """Sends what is in an outbox, from a thread of its own, until all of it is saved or the time is up."""

    def __init__(
        self, outbox: Outbox, info: RunInfo, close_s: float, request_s: float, make_spool: MakeSpool | None = None
    ) -> None:
        self.info, self.place = info, info.place
        self.learned: Mapping[str, Any] = {}  # what replaces fields of `info`
        self.on_command: Callable[[Command], None] | None = None
        self.advice = ""  # ends warnings
        self.is_checked = False  # whether the first failure is reported: someone gave the address
        self.trouble: str | None = None  # the last error
        self.answered = False  # whether the server has taken anything
        self.incidents_version = 0
        self.spent_s = 0.0  # processor time of the thread
        self.spooling = Spooling(outbox, make_spool)
        self._outbox = outbox
        self._writing_s = WRITING * close_s
        self._request_s = request_s
        self._address: Callable[[], Address] = lambda: Address("")
        self._settings: Callable[[], dict[str, Any]] | None = None
        self._met: Callable[[], None] | None = None
        self._connection: Connection | None = None
        self._commands_done = -1
        self.retries = Retries()
        self.warned = False
        self.thread: threading.Thread | None = None

    def start(
        self,
        address: Callable[[], Address],
        settings: Callable[[], dict[str, Any]] | None,
        met: Callable[[], None] | None,
    ) -> None:
        """Start to send. `address` is called again whenever the server can't be reached."""
        self._address, self._settings, self._met = address, settings, met
        self.retries.note_answer()
        self.thread = threading.Thread(target=self._run, name="hookcore-sender", daemon=True)
        self.thread.start()

    @property
    def was_started(self) -> bool:
        """Whether it was given an address, in this process."""
        return self.thread is not None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self.thread is not None and self.thread.is_alive()

    def close(self, close_s: float) -> None:
        """Wait until everything is saved, or the time is up, which is longer for a local server that takes it."""
        thread = self.thread
        if thread is None or thread is threading.current_thread():
            return
        if not thread.is_alive():
            self._finish()
            return
        with self._outbox.changed:
            self.retries.end(close_s, self._writing_s)
            self._outbox.changed.notify_all()
        while thread.is_alive() and time.monotonic() < self._deadline():
            thread.join(_POLL_S)
        connection = self._connection
        if thread.is_alive() and connection is not None:
            connection.interrupt()
        thread.join(SPOOL_S if self.spooling.is_possible else 0.2)

    def abandon(self) -> None:
        """Stop in a forked child: don't touch the parent's connection."""
        connection, self._connection, self.thread = self._connection, None, None
        if connection is not None:
            connection.abandon()
        self.spooling.abandon()

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._await_turn():
                try:
                    self._act()
                except Exception as error:  # our own bug must not end the thread silently
                    self._failed(f"{type(error).__name__}: {error}")
                    logger.debug("hookcore: sending failed", exc_info=True)
                self.spent_s = time.thread_time()
        finally:
            if self._connection is not None:
                self._connection.close()
            self._finish()

    def _act(self) -> None:
        if time.monotonic() >= self.spooling.due_at:
            self.spooling.write()
        if self._due_at() <= time.monotonic():
            self._outbox.refill()
            self._deliver(self._outbox.next_parcel())

    def _finish(self) -> None:
        """Keep what the server hasn't saved at the end."""
        if self._outbox.settled:
            self.spooling.drop()
        else:
            self.spooling.finish(self._update_info())

    def _await_turn(self) -> bool:
        """Wait until there is something to send. Return False at the end."""
        changed = self._outbox.changed
        with changed:
            while not self._is_over():
                due = min(self._due_at(), self.spooling.due_at)
                end = self._deadline()
                rest = min(due, end) - time.monotonic()
                if rest <= 0 and due <= end:
                    self._outbox.set_listening(False)
                    return True
                self._outbox.set_listening(self.retries.pause.until <= time.monotonic(), self._outbox.has_news)
                changed.wait(max(rest, 0.001))
            return False

    def _due_at(self) -> float:
        return self.retries.due_at(self._outbox.has_news, self._outbox.can_wait)

    def _is_over(self) -> bool:
        return self.retries.is_ending and (self._outbox.settled or time.monotonic() >= self._deadline())

    def _deadline(self) -> float:
        connection = self._connection
        held = connection is not None and connection.is_here and connection.stands
        return self.retries.deadline(held, self._outbox.has_news)

    def _deliver(self, parcel: Parcel) -> None:
        self._update_info()
        body = self._encoded(parcel)
        if body is None:
            return
        self.retries.note_sent(parcel.has_news)
        try:
            reply = self._connected().post(body)
        except NotSentError as error:
            self._outbox.on_send_failed(parcel)
            is_here = self._connection is not None and self._connection.is_here
            self.retries.is_slow = is_here and _is_timeout(error)
            self._connection = None  # it may have moved
            self._failed(str(error), longest_s=MAX_PAUSE_HERE_S if is_here else MAX_PAUSE_S, is_absent=True)
        except UnansweredError as error:
            self._outbox.on_no_answer(parcel)
            is_here, is_late = self._connected().is_here, _is_timeout(error)
            self.retries.is_slow = is_here and is_late
            # A local server that hangs up has died, and the next one is there soon. One that is late is busy.
            self._failed(str(error), longest_s=MAX_PAUSE_HERE_S if is_here and not is_late else MAX_PAUSE_S)
        else:
            self.retries.is_slow = False
            self._read(parcel, reply)

    def _update_info(self) -> RunInfo:
        settings = self.info.settings if self._settings is None else fitted_settings(self._settings())
        self.info = msgspec.structs.replace(self.info, settings=settings, place=self.place, **self.learned)
        return self.info

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                address = self._address()
            except Exception as error:
                raise NotSentError(str(error)) from None
            self._connection = Connection(address, request_s=self._request_s)
        return self._connection

    def _encoded(self, parcel: Parcel) -> bytes | None:
        try:
            return encode(batch_of(parcel, self.info, self._commands_done))
        except (TypeError, ValueError, OverflowError) as error:
            self._outbox.refused(parcel, "unsendable")
            self._failed(f"a frame that can't be encoded: {error}")
            return None

    def _read(self, parcel: Parcel, reply: Reply) -> None:
        if 200 <= reply.status < 300:
            self._read_answer(parcel, reply)
            return
        reason = REFUSALS.get(reply.status)
        if reason is not None:
            self._outbox.refused(parcel, reason)
        elif 400 <= reply.status < 500:
            self._outbox.on_send_failed(parcel)
            self._forget_connection()
        else:
            self._outbox.on_no_answer(parcel)
        self._failed(f"it answered {reply.status}{sentence_of(reply.body)}", reply.retry_after_s)

    def _forget_connection(self) -> None:
        """Forget the connection, because another server may have replaced the one that knew the run."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_answer(self, parcel: Parcel, reply: Reply) -> None:
        try:
            answer = decode_answer(reply.body)
        except WireError as error:
            self._outbox.on_no_answer(parcel)
            self._failed(f"the program at this address is not a hookcore server: {error}")
            return
        if self._outbox.on_answer(parcel, answer):
            self.retries.succeed()
            self.spooling.note_progress()
            self.trouble = None
            if self.warned:
                self.warned = False
                logger.warning("%s", return_message(self._outbox.counters))
        else:
            self._failed("it accepts no more data yet", longest_s=MAX_PAUSE_HERE_S)  # it is there: its disk is behind
        self.retries.note_answer()
        self.answered = True
        self.incidents_version, self.retries.is_followed = answer.incidents, answer.followed
        met, self._met = self._met, None
        if met is not None:
            met()
        self._hand_on(answer)

    def _hand_on(self, answer: Receipt) -> None:
        """Pass on each command once, in the order of their numbers. They wait while there is no listener."""
        for command in sorted(answer.commands, key=lambda command: command.number):
            if self.on_command is None or command.number <= self._commands_done:
                continue
            try:
                self.on_command(command)
            except Exception:
                logger.warning("hookcore: a command from the dashboard failed", exc_info=True)
            self._commands_done = command.number

    def _failed(
        self, trouble: str, at_least_s: float = 0.0, longest_s: float = MAX_PAUSE_S, is_absent: bool = False
    ) -> None:
        """Wait before the next attempt, and warn about a server that has been absent for long, or was never there."""
        self.trouble = trouble
        is_absent_for_long = self.retries.fail(at_least_s, longest_s, is_absent)
        if is_absent_for_long or (self.is_checked and not self.answered):
            self._warn()

    def _warn(self) -> None:
        if not self.warned:
            self.warned = True
            self.spooling.begin(self._update_info())
            logger.warning("%s%s", absence_message(self.trouble, self.spooling), self.advice)


def _is_timeout(error: Exception) -> bool:
    return isinstance(error.__cause__, TimeoutError)
