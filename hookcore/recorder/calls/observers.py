"""The observers that are there in some steps only: snapshots, probes, and what learns the data flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hookcore.config import Settings
from hookcore.recorder.calls.dispatch import Dispatcher
from hookcore.recorder.calls.placement import Placement
from hookcore.recorder.calls.plans import Observer
from hookcore.recorder.clock.cadence import Cadence
from hookcore.recorder.known.models import Models
from hookcore.recorder.known.parameters import Parameter
from hookcore.recorder.leaving.frames import Collector
from hookcore.recorder.measured.flows import Flows
from hookcore.recorder.measured.probes import Probes
from hookcore.recorder.measured.snapshots import Snapshots, WaitingCopies


class Observers:
    """Chooses the observers of a step's calls, in addition to the statistics."""

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        models: Models,
        collector: Collector,
        cadence: Cadence,
        placement: Placement,
        scale_of: Callable[[str], float | None],
    ) -> None:
        plans, current, statistics = dispatcher.plans, dispatcher.current, dispatcher.statistics
        errors, emit = dispatcher.errors, collector.emit
        copies = WaitingCopies(errors, emit, current, scale_of, dispatcher.names)
        self.snapshots = Snapshots(plans, copies, current, errors)
        self.probes = Probes(plans, statistics, current, emit, collector.add_label, errors)
        self.probes.choose_channels(settings.channels)
        inside = settings.compiled == "inside"  # in a compiled graph, nothing shows which tensor goes where
        self.flows = Flows(statistics, settings.calls, lambda: models.changes, emit, not inside)
        self._cadence = cadence
        self._placement = placement

    def begin_step(self, step: int, captured: bool) -> None:
        """Choose who observes the calls of a step."""
        learns = self.flows.begin_step(captured)
        if self.probes.begin_step(step, captured, self._cadence.block) or learns:
            self._follow()

    def begin_snapshots(self) -> None:
        """Look for the requested tensors."""
        self.snapshots.begin()
        self._follow()

    def _follow(self) -> None:
        snapshots: tuple[Observer, ...] = (self.snapshots,) if self.snapshots.looks_at_calls else ()
        probes: tuple[Observer, ...] = (self.probes,) if self.probes.due else ()
        flows: tuple[Observer, ...] = (self.flows,) if self.flows.is_learning else ()
        self._placement.follow_observers(*snapshots, *probes, *flows)

    def hurries(self, step: int) -> bool:
        """Return whether to capture a step, whatever the cadence says."""
        if self.probes.added and self.probes.hurries(step):
            return True
        return self.snapshots.active and self.snapshots.hurries

    # Parameters

    def before_step(self, owned: Sequence[Parameter], with_gradients: bool) -> None:
        """Look at weights and gradients as the optimizer is about to use them."""
        if self.snapshots.active:
            self.snapshots.before_step(owned, with_gradients)
        if self.probes.due:
            self.probes.before_step(owned, with_gradients)

    def read_gradients(self, owned: Sequence[Parameter]) -> None:
        """Look at the gradients that a closure has left."""
        self.snapshots.read_gradients(owned)
        self.probes.read_gradients(owned)

    def after_step(self, owned: Sequence[Parameter]) -> None:
        """Look at what the optimizer has changed."""
        if self.snapshots.active:
            self.snapshots.after_step(owned)
