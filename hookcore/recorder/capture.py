"""The parts that see and measure what a training does. Those of the clock and of the recorder's thread use them."""

from __future__ import annotations

from collections.abc import Callable

from hookcore.recorder.calls.dispatch import Dispatcher
from hookcore.recorder.calls.keeping import Keeping
from hookcore.recorder.calls.placement import Observers, Placement
from hookcore.recorder.calls.plans import StepKeeper
from hookcore.recorder.clock.pace import sampler_of
from hookcore.recorder.commands import Commands, Control
from hookcore.recorder.context import Context
from hookcore.recorder.known.models import Models
from hookcore.recorder.known.place import Ranks, Replicas
from hookcore.recorder.leaving.frames import Collector
from hookcore.recorder.measured.moments import Moments, Samples
from hookcore.recorder.measured.sentinel import Sentinel
from hookcore.recorder.measured.snapshots import MediaQueue

MakeKeeper = Callable[[Context], StepKeeper | None]


class Capture:
    """Each part knows only those above it."""

    def __init__(self, context: Context, ranks: Ranks, make_keeper: MakeKeeper) -> None:
        self.models = Models(context)
        self.samples = Samples(context)
        self.dispatcher = Dispatcher(context, make_keeper(context), self.samples)
        self.keeping = Keeping(context, self.dispatcher, self.samples)
        self.placement = Placement(context, self.dispatcher, self.models, self.samples)
        self.collector = Collector(context, Replicas(context, ranks), sampler_of(context))
        self.observers = Observers(context, self.dispatcher, self.collector, self.placement)
        self.sentinel = Sentinel(context, self.keeping)
        self.media, self.moments = MediaQueue(context.errors), Moments(context)
        self.commands = Commands(context, self.models, self.observers.snapshots, self.keeping)
        self.control = Control(context, self.commands, self.models, self.observers, self.placement)
