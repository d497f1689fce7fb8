"""What the parts of one recorder share, each by its name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hookcore.config import AUTO, Settings
from hookcore.delivery.sinks import Sink
from hookcore.observe import cpu
from hookcore.recorder.calls.plans import PlanTable
from hookcore.recorder.clock.cadence import Cadence
from hookcore.recorder.clock.current import CurrentStep
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.clock.owners import Owners
from hookcore.recorder.known.parameters import Parameters
from hookcore.recorder.measured.statistics import Statistics
from hookcore.records import ROOT, Event, Severity, Value

_RECEIVED: Final = frozenset({"output_grad", "input_grad"})


class Ended(NamedTuple):
    """How many steps have ended, and when the newest one did, in seconds."""

    steps: int = 0
    at: float = float("nan")


class Context:
    """The first argument of every part, which takes from it what it uses.

    It knows no part that takes it. What graphs keep alive (`current`, `errors`, `statistics`) doesn't know it.
    """

    def __init__(self, settings: Settings, sink: Sink, now: Callable[[], float]) -> None:
        self.settings = settings  # as they are now: commands replace them
        self.paused = False  # whether steps are only counted
        self.sink = sink  # where frames go; replaced if there is no server
        self.now = now  # the time in seconds
        self.lock = threading.RLock()  # threads that train at the same time end their steps one after another
        self.track: Any = cpu.Track()  # counts the steps; see `clock/steady.py`
        self.track.at = float("nan")
        self.events: list[Event] = []  # for the next frame; always the same list, because the short way looks at it
        self.current = CurrentStep()  # and the passes that run in it
        self.errors = ErrorLog(self.current)  # of hookcore, and what it had to leave out
        self.plans = PlanTable()  # the models, and what to capture of each module
        self.statistics = Statistics(settings, self.current, self.errors)  # the taps and their rows
        self.parameters = Parameters(self.plans, self.statistics, settings.kinds, self.errors)
        self.owners = Owners(self.parameters)  # the optimizers that step them
        sketches = None if settings.sketches == AUTO else settings.sketches
        self.cadence = Cadence(  # which steps are captured, and which of them with histograms
            settings.every, settings.budget, settings.allowance, settings.state_every, sketches
        )

    @property
    def receives_gradients(self) -> bool:
        """Whether hooks receive gradients in captured steps, which shows whose passes these are."""
        return not _RECEIVED.isdisjoint(self.settings.kinds) and "train" in self.settings.phases

    @property
    def step(self) -> int:
        """The number of the running step, which is the number of ended steps."""
        number: int = self.track.step
        return number

    @property
    def ended(self) -> Ended:
        """How many steps have ended, and when the newest one did, by `now`. Other threads read it."""
        return Ended(*self.track.when())

    def emit(
        self,
        name: str,
        message: str,
        severity: Severity = "info",
        module: str = "",
        about: Mapping[str, Value] = MappingProxyType({}),
        at: int | None = None,
    ) -> None:
        """Add an event to the next frame. Any thread may call it. `at`: its step, if that isn't the running one."""
        step = self.step if at is None else at
        message = message.replace(ROOT, self.plans.root)
        with self.lock:
            self.events.append(Event(step, time.time(), name, message, severity, module, about=dict(about)))

    def add_events(self, events: Sequence[Event]) -> None:
        """Add events to the next frame. Any thread may call it."""
        with self.lock:
            self.events += events
