"""The thread that empties an outbox into a server. It raises nothing, and waits where only it has to wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from hookcore.delivery.http.batches import batch_of, sentence_of
from hookcore.delivery.http.connection import Address, Connection, NotSentError, Reply, UnansweredError
from hookcore.delivery.http.fitting import fitted_settings
from hookcore.delivery.http.messages import absence_message, return_message
from hookcore.delivery.http.outbox import Outbox, Reason
from hookcore.delivery.http.parcels import Parcel
from hookcore.delivery.http.retries import MAX_PAUSE_HERE_S, MAX_PAUSE_S, WRITING, Retries
from hookcore.delivery.http.spool import MakeSpool
from hookcore.delivery.http.spooling import Spooling
from hookcore.errors import WireError
from hookcore.records import Command
from hookcore.records.wire import Answer, RunInfo, decode_answer, encode

logger = logging.getLogger("hookcore")

SPOOL_S: Final = 60.0  # for writing the rest at the end: a busy machine takes long, and what isn't written is lost
_POLL_S: Final = 0.02
_REFUSALS: Final[dict[int, Reason]] = {400: "refused", 413: "too-large", 422: "refused"}


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
        self.trouble = ""  # the last error; empty if all is well
        self.answered = False  # whether the server has taken anything
        self.incidents_version = 0
        self.spooling = Spooling(outbox, make_spool)
        self._outbox = outbox
        self._writing_s = WRITING * close_s
        self._request_s = request_s
        self._address: Callable[[], Address] = lambda: Address("")
        self._settings: Callable[[], dict[str, Any]] | None = None
        self._met: Callable[[], None] | None = None
        self._connection: Connection | None = None
        self._commands_done = -1
        self._retries = Retries()
        self._warned = False
        self._thread: threading.Thread | None = None

    def start(
        self,
        address: Callable[[], Address],
        settings: Callable[[], dict[str, Any]] | None,
        met: Callable[[], None] | None,
    ) -> None:
        """Start to send. `address` is called again whenever the server can't be reached."""
        self._address, self._settings, self._met = address, settings, met
        self._retries.note_answer()
        self._thread = threading.Thread(target=self._run, name="hookcore-sender", daemon=True)
        self._thread.start()

    @property
    def was_started(self) -> bool:
        """Whether it was given an address, in this process."""
        return self._thread is not None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, close_s: float) -> None:
        """Wait until everything is saved, or the time is up, which is longer for a local server that takes it."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        if not thread.is_alive():
            self._finish()
            return
        with self._outbox.changed:
            self._retries.end(close_s, self._writing_s)
            self._outbox.changed.notify_all()
        while thread.is_alive() and time.monotonic() < self._deadline():
            thread.join(_POLL_S)
        connection = self._connection
        if thread.is_alive() and connection is not None:
            connection.interrupt()
        thread.join(SPOOL_S if self.spooling.is_possible else 0.2)

    def abandon(self) -> None:
        """Stop in a forked child: don't touch the parent's connection."""
        connection, self._connection, self._thread = self._connection, None, None
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
        finally:
            if self._connection is not None:
                self._connection.close()
            self._finish()

    def _act(self) -> None:
        if time.monotonic() >= self.spooling.due_at:
            self.spooling.write()
        if self._retries.due_at(self._outbox.has_news) <= time.monotonic():
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
                due = min(self._retries.due_at(self._outbox.has_news), self.spooling.due_at)
                end = self._deadline()
                rest = min(due, end) - time.monotonic()
                if rest <= 0 and due <= end:
                    self._outbox.set_listening(False)
                    return True
                self._outbox.set_listening(self._retries.not_before <= time.monotonic())
                changed.wait(max(rest, 0.001))
            return False

    def _is_over(self) -> bool:
        return self._retries.is_ending and (self._outbox.settled or time.monotonic() >= self._deadline())

    def _deadline(self) -> float:
        connection = self._connection
        held = connection is not None and connection.is_here and connection.stands
        return self._retries.deadline(held, self._outbox.has_news)

    def _deliver(self, parcel: Parcel) -> None:
        self._update_info()
        body = self._encoded(parcel)
        if body is None:
            return
        self._retries.note_sent(parcel.has_news)
        try:
            reply = self._connected().post(body)
        except NotSentError as error:
            self._outbox.on_send_failed(parcel)
            is_here = self._connection is not None and self._connection.is_here
            self._retries.is_slow = is_here and _is_timeout(error)
            self._connection = None  # it may have moved
            self._failed(str(error), longest_s=MAX_PAUSE_HERE_S if is_here else MAX_PAUSE_S, is_absent=True)
        except UnansweredError as error:
            self._outbox.on_no_answer(parcel)
            is_here, is_late = self._connected().is_here, _is_timeout(error)
            self._retries.is_slow = is_here and is_late
            # A local server that hangs up has died, and the next one is there soon. One that is late is busy.
            self._failed(str(error), longest_s=MAX_PAUSE_HERE_S if is_here and not is_late else MAX_PAUSE_S)
        else:
            self._retries.is_slow = False
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
        reason = _REFUSALS.get(reply.status)
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
            self._retries.succeed()
            self.spooling.note_progress()
            self.trouble = ""
            if self._warned:
                self._warned = False
                logger.warning("%s", return_message(self._outbox.counters))
        else:
            self._failed("it accepts no more data yet", longest_s=MAX_PAUSE_HERE_S)  # it is there: its disk is behind
        self._retries.note_answer()
        self.answered = True
        self.incidents_version = answer.incidents
        met, self._met = self._met, None
        if met is not None:
            met()
        self._hand_on(answer)

    def _hand_on(self, answer: Answer) -> None:
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
        is_absent_for_long = self._retries.fail(at_least_s, longest_s, is_absent)
        if is_absent_for_long or (self.is_checked and not self.answered):
            self._warn()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            self.spooling.begin(self._update_info())
            logger.warning("%s%s", absence_message(self.trouble, self.spooling), self.advice)


def _is_timeout(error: Exception) -> bool:
    return isinstance(error.__cause__, TimeoutError)
