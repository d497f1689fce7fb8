"""The duties of the recorder's thread: it sends the frames that wait, and in each round, it looks after the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hookcore.recorder.collector import Collector
from hookcore.recorder.description import Describer
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.frames import RawFrame
from hookcore.recorder.idle import Idle
from hookcore.recorder.outgoing import Outgoing
from hookcore.recorder.problems import Problems
from hookcore.recorder.sentinel import Sentinel
from hookcore.recorder.shipping import Shipper
from hookcore.recorder.steps import Steps


@dataclass(slots=True, eq=False)
class Rounds:
    """Sends what waits, and looks for changes, problems, and stalls."""

    _shipper: Shipper
    _steps: Steps
    _collector: Collector
    _outgoing: tuple[Outgoing[Any], ...]
    _description: Describer
    _problems: Problems
    _idle: Idle
    _sentinel: Sentinel
    _errors: ErrorLog
    _put: Callable[[RawFrame], None]

    def ship(self, raws: list[RawFrame]) -> None:
        """Send frames, and the place of this process before the first frame that it is about."""
        self._description.send_place()
        self._shipper.ship(raws)
        self._description.send_if_due()

    def make(self) -> None:
        """Make a round."""
        self._report_errors()
        self._sentinel.read_late(self._steps.clock)
        for each in self._outgoing:
            each.ship(self._shipper.sink.send)
        self._description.send_if_requested()
        self._description.send_news()
        self._problems.say_refused()
        self._idle.tick()
        self._steps.stalls.look(self._steps.ended.at)

    @property
    def has_more(self) -> bool:
        """Whether the next round has something that a flush waits for."""
        return self._description.requested or self._sentinel.waits or any(each.waiting for each in self._outgoing)

    def _report_errors(self, is_last: bool = False) -> None:
        """Make the errors events of the run."""
        events = self._errors.news(is_last)
        if events:
            self._collector.add_events(events)

    def end(self) -> None:
        """Queue the last events: they were emitted as the last frames were shipped, or have not been yet."""
        self._sentinel.read_late(self._steps.clock, is_last=True)
        self._description.send_news(ended=True)
        self._problems.emit_new()
        self._report_errors(is_last=True)  # after all that can fail
        if self._collector.has_events:
            self._put(self._collector.take_between(time.time()))
