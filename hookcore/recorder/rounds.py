"""What the recorder's thread looks after each time that it looks for frames, besides the frames."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hookcore.recorder.collector import Collector
from hookcore.recorder.description import Describer
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.facts import Facts
from hookcore.recorder.idle import Idle
from hookcore.recorder.media import MediaQueue
from hookcore.recorder.models import Models
from hookcore.recorder.probes import Probes
from hookcore.recorder.problems import Problems
from hookcore.recorder.ranks import Ranks
from hookcore.recorder.shipping import Shipper
from hookcore.recorder.snapshots import Snapshots
from hookcore.recorder.steps import Steps
from hookcore.records.vocabulary import TRAINED


@dataclass(slots=True, eq=False)
class Rounds:
    """Sends what waits, tells the sink what became known, and looks for stalls."""

    _shipper: Shipper
    _steps: Steps
    _collector: Collector
    _models: Models
    _snapshots: Snapshots
    _probes: Probes
    _media: MediaQueue
    _description: Describer
    _problems: Problems
    _idle: Idle
    _ranks: Ranks
    _facts: Facts
    _errors: ErrorLog

    def make(self) -> None:
        """Make a round."""
        self._tell_errors()
        self._snapshots.copies.ship(self._shipper.sink.send)
        self._probes.channels.ship(self._shipper.sink.send)
        self._media.ship(self._shipper.sink.send)
        self._description.send_if_requested()
        self._tell_sink()
        self._idle.tick()
        self._steps.stalls.look(self._steps.ended_at)

    @property
    def has_more(self) -> bool:
        """Whether the next round has something that a flush waits for."""
        return (
            self._snapshots.copies.waiting
            or self._probes.channels.waiting
            or self._media.waiting
            or self._description.requested
        )

    def _tell_errors(self, is_last: bool = False) -> None:
        """Make the errors events of the run."""
        events = self._errors.news(is_last)
        if events:
            self._collector.add_events(events)

    def _tell_sink(self) -> None:
        """Tell the sink the place of this process, and facts, whenever more of them is known."""
        self.tell_place()
        try:
            known = self._facts.news(self._models, self._steps.clock.owners)
        except Exception as error:  # attributes of the user's models and optimizers can do anything
            self._errors.record("facts of the run", error)
        else:
            if known is not None:
                self._shipper.sink.learn(known)

    def tell_place(self) -> None:
        """Tell the sink where this process is in a distributed training, before the first frame that it is about."""
        try:
            place = self._ranks.news(self._models.device)
        except Exception as error:  # never a reason to lose a frame
            self._errors.record("place among the ranks", error)
            return
        if place is not None:
            self._shipper.sink.locate(place)

    def end(self) -> None:
        """Ship the last events: they were emitted as the last frames were shipped, or have not been yet."""
        self._problems.emit_new()
        self._tell_errors(is_last=True)
        if self._collector.has_events:
            self._shipper.put(self._collector.take_between(time.time()))
        self._facts.hear({TRAINED: self._steps.clock.step})
        self._tell_sink()
