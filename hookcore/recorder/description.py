"""The description of a run: its modules, their coverage, and the hooks, sent now and then; facts and its place."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from hookcore.recorder.clock import Clock
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.facts import Facts
from hookcore.recorder.inventory import list_hooks
from hookcore.recorder.models import Models
from hookcore.recorder.problems import Problems
from hookcore.recorder.ranks import Ranks
from hookcore.recorder.shipping import Shipper
from hookcore.recorder.taps import TapTable
from hookcore.records import HookRecord
from hookcore.records.vocabulary import TRAINED

EVERY_S: Final = 30.0
PAUSE: Final = 200  # pause after a description, in multiples of its duration


@dataclass(slots=True, eq=False)
class Describer:
    """Describes the run to the sink, on the recorder's thread."""

    _shipper: Shipper
    _models: Models
    _table: TapTable
    _clock: Clock
    _problems: Problems
    _ranks: Ranks
    _facts: Facts
    _errors: ErrorLog
    _hooks: tuple[HookRecord, ...] = field(default=(), init=False)  # the last inventory
    _due_at: float = field(default=0.0, init=False)
    _rests_until: float = field(default=0.0, init=False)  # walking over a very large model blocks other threads
    _forms: int = field(default=-1, init=False)  # of the parameters, as last described
    requested: bool = field(default=True, init=False)  # the first one is sent without a request

    def request(self) -> None:
        """Send everything soon. Can be called from any thread."""
        self.requested = True

    def send_if_requested(self) -> None:
        """Send everything if requested."""
        if self.requested:
            self.requested = False  # first, so that a request during the description isn't lost
            self.send()

    def send_if_due(self) -> None:
        """Send everything if the last description is old, or parameters were frozen or cast since."""
        began = time.monotonic()
        if began > (self._due_at if self._forms == self._models.parameters.forms else self._rests_until):
            self.send()
            now = time.monotonic()
            self._rests_until = now + PAUSE * (now - began)
            self._due_at = max(now + EVERY_S, self._rests_until)

    def send(self) -> None:
        """Send the modules, their coverage, and the hooks."""
        self._forms = self._models.parameters.forms  # first, so that a later change isn't lost
        try:
            self._problems.emit_new()
            self._hooks = list_hooks(self._models.roots, self._clock.owners.optimizers())
            self.send_coverage()
        except Exception as error:
            self._errors.record("description of the modules", error)

    def send_coverage(self) -> None:
        """Send the modules and their coverage, with the hooks of the last inventory."""
        self._shipper.sink.describe(self._models.records(), self._models.coverage(self._table), self._hooks)

    def send_modules(self) -> None:
        """Send the modules, without waiting for their coverage."""
        self._shipper.sink.describe(self._models.records(), (), self._hooks)

    def send_news(self, ended: bool = False) -> None:
        """Send the place of this process and what the run trains with, whenever more of it is known."""
        self.send_place()
        if ended:
            self._facts.hear({TRAINED: self._clock.step})
        try:
            known = self._facts.news(self._models, self._clock.owners)
        except Exception as error:  # attributes of the user's models and optimizers can do anything
            self._errors.record("facts of the run", error)
        else:
            if known is not None:
                self._shipper.sink.learn(known)

    def send_place(self) -> None:
        """Send where this process is in a distributed training."""
        try:
            place = self._ranks.news(self._models.device)
        except Exception as error:  # never a reason to lose a frame
            self._errors.record("place among the ranks", error)
        else:
            if place is not None:
                self._shipper.sink.locate(place)
