"""The sink that sends frames to a server. It never waits or raises."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from hookcore.delivery.http.connection import REQUEST_S, Address
from hookcore.delivery.http.outbox import MAX_ITEMS, Outbox
from hookcore.delivery.http.parcels import MakeSpool, cut, fitted_settings
from hookcore.delivery.http.sender import Sender, loss_message
from hookcore.delivery.sinks import Sink
from hookcore.records import Command, Coverage, Failure, Frame, HookRecord, ModuleRecord, Snapshot
from hookcore.records.wire import DeliveryCounters, Place, RunInfo

logger = logging.getLogger("hookcore")

CLOSE_S: Final = 2.0


class HttpSink(Sink):
    """Receives the frames of one run, and sends them from its own thread once `start` has set the address.

    What is dropped is counted in `counters`: what the server refuses and, without a spool, what doesn't fit into the
    queue or isn't delivered at the end. An absent server is retried after growing pauses. A server that lost its memory
    gets everything again that it needs, until all of the run is saved.
    """

    def __init__(
        self,
        info: RunInfo,
        *,
        max_items: int = MAX_ITEMS,
        close_s: float = CLOSE_S,
        request_s: float = REQUEST_S,
        make_spool: MakeSpool | None = None,
    ) -> None:
        info = msgspec.structs.replace(
            info, name=cut(info.name), script=cut(info.script), settings=fitted_settings(info.settings)
        )
        self.close_s = close_s
        self.outbox = Outbox(max_items=max_items)
        self.sender = Sender(self.outbox, info, close_s, request_s, make_spool)
        self._reported_losses = False

    # -- the sink ---------------------------------------------------------------------------------------------------

    def send(self, record: Frame | Snapshot) -> None:
        """Queue a record; never wait, never raise."""
        self.outbox.put(record)

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Describe what the run consists of. Only changes are sent."""
        self.outbox.describe(modules, coverage, hooks)

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        """Set the receiver of the commands in answers. It is called from the sender's thread."""
        self.sender.on_command = on_command

    def locate(self, place: Place) -> None:
        """Send the place with every batch from now on; a sign of life is one."""
        self.sender.place = place

    def learn(self, description: Mapping[str, Any]) -> None:
        """Send this with every batch from now on."""
        self.sender.learned = description

    def limit_close_time(self, close_s: float) -> None:
        self.close_s = min(self.close_s, max(0.0, close_s))

    def fail(self, failure: Failure) -> None:
        self.outbox.fail(failure)

    def close(self) -> None:
        """Send the rest within `close_s`, and wait until it is saved. What remains goes to the spool.

        Without a spool, it is counted as dropped, or in flight. A local dashboard that accepts connections gets more
        time, because it may just be starting.
        """
        self.outbox.end()
        self.sender.close(self.close_s)
        self.outbox.give_up()
        self._report_losses()
        self.outbox.give_up()  # data that came back in the meantime

    # -- beside the sink --------------------------------------------------------------------------------------------

    def start(
        self,
        address: Address | Callable[[], Address],
        settings: Callable[[], dict[str, Any]] | None = None,
        advice: str = "",
        met: Callable[[], None] | None = None,
        is_checked: bool = False,
    ) -> None:
        """Start to send. If `address` is a function, it is called again whenever the server can't be reached.

        `settings` returns the run's current settings. `advice` ends the warning about an absent server. `met` is called
        once, when the server has answered. `is_checked`: warn at once if it can't be reached from the beginning.
        """
        if not self.sender.was_started:
            self.sender.is_checked = is_checked
            self.sender.advice = f" {advice}" if advice else ""
            self.sender.start(address if callable(address) else lambda: address, settings, met)

    @property
    def info(self) -> RunInfo:
        """The description of the run, as it was sent last."""
        return self.sender.info

    @property
    def trouble(self) -> str | None:
        """The last error of the sender; None if all is well."""
        return self.sender.trouble

    @property
    def counters(self) -> DeliveryCounters:
        """Counters of frames and snapshots: produced = acknowledged + dropped (by reason) + waiting + in flight."""
        return self.outbox.counters

    @property
    def spent_s(self) -> float:
        return self.sender.spent_s

    @property
    def incidents_version(self) -> int:
        """The version of the run's incidents at the server, by its newest answer."""
        return self.sender.incidents_version

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far was acknowledged or dropped. Return False if the time ran out."""
        deadline = time.monotonic() + timeout_s
        self.outbox.hurry()
        while not self.outbox.empty:
            if time.monotonic() > deadline or not self.sender.is_alive:
                return self.outbox.empty
            time.sleep(0.002)
        return True

    def abandon(self) -> None:
        """Stop in a forked child: don't send, don't touch the parent's connection, don't wait for locks."""
        self.outbox.abandon()
        self.sender.abandon()

    def _report_losses(self) -> None:
        """Warn at the end if parts of the run didn't reach the server, or may not be saved there."""
        outbox, sender = self.outbox, self.sender
        fate = sender.answered, outbox.unsaved, outbox.given_up, sender.spooling
        message = loss_message(self.counters, self.trouble, *fate)
        if message is not None and self.sender.was_started and not self._reported_losses:
            self._reported_losses = True
            logger.warning("%s%s", message, self.sender.advice)
