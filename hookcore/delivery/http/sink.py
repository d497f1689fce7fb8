"""The sink that sends frames to a server. It never waits or raises, and counts what happens to every item."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from hookcore.delivery.http.batches import batch_of, sentence_of
from hookcore.delivery.http.connection import (
    CONNECT_S,
    REQUEST_S,
    Address,
    Connection,
    NotSentError,
    Reply,
    UnansweredError,
)
from hookcore.delivery.http.fitting import cut, fitted_settings
from hookcore.delivery.http.messages import absence_message, loss_message
from hookcore.delivery.http.outbox import MAX_BYTES, MAX_ITEMS, Outbox, Reason
from hookcore.delivery.http.parcels import Parcel
from hookcore.delivery.http.retries import MAX_PAUSE_HERE_S, MAX_PAUSE_S, WRITING, Retries
from hookcore.delivery.sinks import Sink
from hookcore.errors import WireError
from hookcore.records import Command, Coverage, Failure, Frame, HookRecord, ModuleRecord, Snapshot
from hookcore.records.wire import Answer, DeliveryCounters, Place, RunInfo, decode_answer, encode

logger = logging.getLogger("hookcore")

CLOSE_S: Final = 2.0
CLOSE_POLL_S: Final = 0.02
_REFUSALS: Final[dict[int, Reason]] = {400: "refused", 413: "too-large", 422: "refused"}


class HttpSink(Sink):
    """Receives the frames of one run, and sends them from its own thread once `start` has set the address.

    Frames that a full queue, a refusal, or the end drops are counted in `counters`. An absent server is retried after
    growing pauses. A server that lost its memory gets everything again that it needs, until all of the run is saved.
    """

    def __init__(
        self,
        info: RunInfo,
        *,
        max_bytes: int = MAX_BYTES,
        max_items: int = MAX_ITEMS,
        close_s: float = CLOSE_S,
        connect_s: float = CONNECT_S,
        request_s: float = REQUEST_S,
    ) -> None:
        self.info = msgspec.structs.replace(
            info, name=cut(info.name), script=cut(info.script), settings=fitted_settings(info.settings)
        )
        self.close_s, self._writing_s = close_s, WRITING * close_s
        self.trouble = ""  # the last error; empty if all is well
        self._outbox = Outbox(max_bytes, max_items)
        self._timeouts_s = (connect_s, request_s)
        self._address: Callable[[], Address] = lambda: Address("")
        self._connection: Connection | None = None
        self._advice = ""
        self._settings: Callable[[], dict[str, Any]] | None = None
        self._place = info.place
        self._learned: Mapping[str, Any] = {}
        self._on_command: Callable[[Command], None] | None = None
        self._commands_done = -1
        self._incidents_version = 0
        self._answered = False
        self._met: Callable[[], None] | None = None
        self._retries = Retries()
        self._warned = self._told_losses = False
        self._thread: threading.Thread | None = None

    # -- the sink ---------------------------------------------------------------------------------------------------

    def send(self, record: Frame | Snapshot) -> None:
        """Queue a record; never wait, never raise."""
        self._outbox.put(record)

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Describe what the run consists of. Only changes are sent."""
        self._outbox.describe(modules, coverage, hooks)

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        """Set the receiver of the commands in answers. It is called from the sender's thread."""
        self._on_command = on_command

    def locate(self, place: Place) -> None:
        """Send the place with every batch from now on; a sign of life is one."""
        self._place = place

    def learn(self, description: Mapping[str, Any]) -> None:
        """Send this with every batch from now on."""
        self._learned = description

    def limit_close_time(self, close_s: float) -> None:
        self.close_s = min(self.close_s, max(0.0, close_s))

    def fail(self, failure: Failure) -> None:
        self._outbox.fail(failure)

    def close(self) -> None:
        """Send the rest within `close_s`, and wait until it is saved. What remains is counted as dropped, or in flight.

        A local dashboard that accepts connections gets more time, because it may just be starting.
        """
        self._outbox.end()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            with self._outbox.changed:
                self._retries.end(self.close_s, self._writing_s)
                self._outbox.changed.notify_all()
            while thread.is_alive() and time.monotonic() < self._deadline():
                thread.join(CLOSE_POLL_S)
            connection = self._connection
            if thread.is_alive() and connection is not None:
                connection.interrupt()
                thread.join(0.2)
        self._outbox.give_up()
        self._tell_losses()
        self._outbox.give_up()  # what came back meanwhile

    # -- beside the sink --------------------------------------------------------------------------------------------

    def start(
        self,
        address: Address | Callable[[], Address],
        settings: Callable[[], dict[str, Any]] | None = None,
        advice: str = "",
        met: Callable[[], None] | None = None,
    ) -> None:
        """Start to send. If `address` is a function, it is called again whenever the server can't be reached.

        `settings` returns the run's current settings. `advice` ends the warning about an absent server. `met` is called
        once, when the server has answered.
        """
        if self._thread is None:
            self._met = met
            self._address = address if callable(address) else lambda: address
            self._settings, self._advice = settings, f" {advice}" if advice else ""
            self._retries.note_answer()
            self._thread = threading.Thread(target=self._run, name="hookcore-sender", daemon=True)
            self._thread.start()

    @property
    def counters(self) -> DeliveryCounters:
        """Counters of frames and snapshots: produced = acknowledged + dropped (by reason) + waiting + in flight."""
        return self._outbox.counters

    @property
    def incidents_version(self) -> int:
        """The version of the run's incidents at the server, by its newest answer."""
        return self._incidents_version

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far was acknowledged or dropped. Return False if the time ran out."""
        deadline = time.monotonic() + timeout_s
        while not self._outbox.empty:
            if time.monotonic() > deadline or self._thread is None or not self._thread.is_alive():
                return self._outbox.empty
            time.sleep(0.002)
        return True

    def abandon(self) -> None:
        """Stop in a forked child: don't send, don't touch the parent's connection, don't wait for locks."""
        self._outbox.abandon()
        connection, self._connection, self._thread = self._connection, None, None
        if connection is not None:
            connection.abandon()

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._await_turn():
                try:
                    self._deliver(self._outbox.next_parcel())
                except Exception as error:  # our own bug must not end the thread silently
                    self._failed(f"{type(error).__name__}: {error}")
                    logger.debug("hookcore: sending failed", exc_info=True)
        finally:
            if self._connection is not None:
                self._connection.close()

    def _await_turn(self) -> bool:
        """Wait until there is something to send. Return False at the end."""
        changed = self._outbox.changed
        with changed:
            while not self._is_over():
                due, end = self._retries.due_at(self._outbox.has_news), self._deadline()
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
        settings = self.info.settings if self._settings is None else fitted_settings(self._settings())
        self.info = msgspec.structs.replace(self.info, settings=settings, place=self._place, **self._learned)
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
            self._failed(str(error), longest_s=MAX_PAUSE_HERE_S if is_here else MAX_PAUSE_S)
        except UnansweredError as error:
            self._outbox.on_no_answer(parcel)
            self._retries.is_slow = self._connected().is_here and _is_timeout(error)
            self._failed(str(error))
        else:
            self._retries.is_slow = False
            self._read(parcel, reply)

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                address = self._address()
            except Exception as error:
                raise NotSentError(str(error)) from None
            self._connection = Connection(address, *self._timeouts_s)
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
            self.trouble = ""
        else:
            self._failed("it accepted none of the data")
        self._retries.note_answer()
        self._answered = True
        self._incidents_version = answer.incidents
        met, self._met = self._met, None
        if met is not None:
            met()
        self._hand_on(answer)

    def _hand_on(self, answer: Answer) -> None:
        """Pass on each command once, in the order of their numbers. They wait while there is no listener."""
        for command in sorted(answer.commands, key=lambda command: command.number):
            if self._on_command is None or command.number <= self._commands_done:
                continue
            try:
                self._on_command(command)
            except Exception:
                logger.warning("hookcore: a command from the dashboard failed", exc_info=True)
            self._commands_done = command.number

    def _failed(self, trouble: str, at_least_s: float = 0.0, longest_s: float = MAX_PAUSE_S) -> None:
        """Wait before the next attempt, and warn about a server that has been absent for long."""
        self.trouble = trouble
        if self._retries.fail(at_least_s, longest_s):
            self._warn()

    def _tell_losses(self) -> None:
        """Warn at the end if parts of the run didn't reach the server, or may not be saved there."""
        message = loss_message(self.counters, self.trouble, self._answered, self._outbox.unsaved)
        if message and self._thread is not None and not self._told_losses:
            self._told_losses = True
            logger.warning("%s%s", message, self._advice)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s%s", absence_message(self.trouble), self._advice)


def _is_timeout(error: Exception) -> bool:
    return isinstance(error.__cause__, TimeoutError)
