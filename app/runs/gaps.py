"""Data of a trainer that was lost or delayed on its way, in words: it explains a gap in the steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hookcore.records import Severity
from hookcore.records.vocabulary import counted
from hookcore.records.wire import DeliveryCounters

SILENCE_S: Final = 5.0  # a trainer gives a sign of life every second
UNSENT_EVERY_S: Final = 10.0  # between two events about frames that were not sent

Said = tuple[str, str, Severity, int]  # name, message, and count of an event


@dataclass(slots=True)
class Gaps:
    """The known gaps of one trainer."""

    met: bool = False  # a batch has arrived
    _unsent: int = 0  # dropped by the trainer, and not in an event yet
    _unsent_due: float = 0.0

    def greet(self, counters: DeliveryCounters, silent_s: float, restarted: bool, missing: int) -> Iterator[Said]:
        """Say where a trainer comes from that sends a batch. `missing`: what a server lost that was restarted."""
        met, self.met = self.met, True
        if met:
            if silent_s > SILENCE_S:
                yield "reconnected", f"the trainer is back after {silent_s:.0f} s without a message", "info", 1
        elif restarted:
            if missing > 0:
                lost = f"The server was restarted and lost {counted(missing, 'record')} that it hadn't written to disk."
                yield "reconnected", lost, "warning", missing
            else:
                yield "reconnected", "the server was restarted and lost nothing", "info", 1
        elif counters.acknowledged:
            sent = f"{counted(counters.acknowledged, 'record')} (frames or snapshots) that it received"
            yield "reconnected", f"the trainer's previous server is gone, and so are {sent}", "info", 1

    def count(self, before: DeliveryCounters, after: DeliveryCounters, now_s: float, is_last: bool) -> Iterator[Said]:
        """Say from time to time how much the trainer could not send."""
        self._unsent += max(0, sum(after.dropped.values()) - sum(before.dropped.values()))
        if self._unsent and (is_last or now_s >= self._unsent_due):
            lost = f"the trainer dropped {counted(self._unsent, 'record')} (frames or snapshots) that it could not send"
            yield "frame-dropped", lost, "warning", self._unsent
            self._unsent, self._unsent_due = 0, now_s + UNSENT_EVERY_S
