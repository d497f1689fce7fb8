"""Registration of hookcore's hooks: on modules, on optimizers, in compiled graphs, and around backward passes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn

from hookcore import hooks
from hookcore.config import Settings
from hookcore.hooks import internals
from hookcore.hooks.backward import BackwardObserver, observe_backward
from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.handle import ObserverHandle
from hookcore.hooks.inside import Inside, Materialized
from hookcore.hooks.loading import UNSEEN, observe_loading
from hookcore.hooks.modules import hold_headroom, release_headroom
from hookcore.hooks.optimizers import StepObserver, observe_steps
from hookcore.observe.device import (
    ELSEWHERE,
    EVALUATED,
    GRADIENT,
    IN_CAPTURE,
    OUTPUT,
    PLACES,
    DeviceArena,
    GraphArena,
    cell_of,
    write,
)
from hookcore.observe.plain import make_plain, unseen
from hookcore.recorder.calls.dispatch import Dispatcher
from hookcore.recorder.calls.hooks import ModuleAttachment, ProcessAttachment, SeesPending
from hookcore.recorder.calls.keeping import Holding
from hookcore.recorder.calls.plans import Observer, Plan
from hookcore.recorder.clock.errors import entry
from hookcore.recorder.clock.steptimes import StepTimes
from hookcore.recorder.context import Context
from hookcore.recorder.known.models import Models
from hookcore.recorder.known.parameters import Parameter
from hookcore.recorder.known.roots import Root
from hookcore.recorder.leaving.frames import Collector
from hookcore.recorder.measured.attention import AttentionCalls
from hookcore.recorder.measured.float8 import Float8Scales
from hookcore.recorder.measured.flows import Flows, Streams
from hookcore.recorder.measured.moments import Samples
from hookcore.recorder.measured.probes import Probes
from hookcore.recorder.measured.routers import Routers
from hookcore.recorder.measured.snapshots import AutomaticSnapshots, Snapshots, WaitingCopies
from hookcore.recorder.measured.statistics import OTHER_PHASE
from hookcore.records import Kind, Phase
from hookcore.records.vocabulary import counted

# Hooks that are traced into compiled graphs, and called directly outside of them.


def feasible(settings: Settings) -> tuple[Settings, str]:
    """Return the settings that this release of torch allows, and why they are not the given ones."""
    if settings.compiled == "materialized" and settings.attach == "module":
        why = "compiled='materialized' needs attach='global'"
    elif settings.compiled != "boundary" and not internals.SEES_INSIDE:
        needed = ".".join(map(str, internals.INSIDE_FROM))
        why = f"compiled='{settings.compiled}' needs torch {needed} or newer, and this is {torch.__version__}"
    else:
        return settings, ""
    return replace(settings, compiled="boundary"), f"{why}: of compiled regions, only the boundaries are captured"


class InsideAttachment:
    """A hook on each initially selected module. Another selection would recompile every graph."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        plans = {key: plan for key, plan in enumerate(dispatcher.plans.live()) if plan.wants_output}
        hold_headroom()
        self._has_headroom = True
        self._writer = GraphWriter(dispatcher, plans) if os.environ.get(IN_CUDA_GRAPHS, "") == "1" else None
        self._inside = Inside(GraphReporter(dispatcher, plans), self._writer)
        modules = [(key, module) for key, plan in plans.items() if (module := plan.ref()) is not None]
        self.compiled_before = self._inside.attach(modules)
        self._attached = {id(plan) for plan in plans.values()}

    @property
    def is_on_device(self) -> bool:
        """Whether compiled graphs write on their device."""
        return self._writer is not None

    def on(self) -> None:
        pass  # the arenas of a step open their gates

    def off(self) -> None:
        if self._writer is not None:
            self._writer.off()

    def follow_observers(self) -> None:
        pass

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        missing = sum(plan.wants_output and id(plan) not in self._attached for plan in chosen)
        if not missing:
            return None
        return f"{counted(missing, 'module')} can't be captured: compiled graphs contain only the initial selection"

    def close(self) -> None:
        self._inside.close()
        self.off()
        if self._has_headroom:
            self._has_headroom = False
            release_headroom()


class GraphReporter:
    """Passes the reports of the ops in a compiled graph on to the dispatcher."""

    def __init__(self, dispatcher: Dispatcher, plans: dict[int, Plan]) -> None:
        self._dispatcher = dispatcher
        self._plans = plans

    def saw_output(self, key: int, index: str, output: Tensor) -> int:
        """Report an output and return the ticket of its gradient."""
        dispatcher, plan = self._dispatcher, self._plans[key]
        if not dispatcher.current.captured or plan.muted:
            return -1
        if (meter := dispatcher.current.meter) is not None:
            meter.enter()
        ticket = -1
        try:
            ticket = dispatcher.saw_traced_output(plan, index, output)
        except Exception as error:
            dispatcher.errors.record("op in a compiled graph", error, plan)
        if meter is not None:
            meter.leave()
        return ticket

    def saw_gradient(self, key: int, index: str, ticket: int, gradient: Tensor) -> None:
        """Report the gradient of the output with this ticket."""
        plan = self._plans[key]
        try:
            self._dispatcher.saw_traced_gradient(plan, ticket, gradient)
        except Exception as error:
            self._dispatcher.errors.record("op in a compiled graph", error, plan)


IN_CUDA_GRAPHS: Final = "HOOKCORE_GPU_GRAPHS"  # switches on what no GPU has run yet: see docs/architecture.md
ON_DEVICE: Final = (
    f"operators in compiled graphs write on the device ({IN_CUDA_GRAPHS}=1): there, all calls of a module in a step "
    "are one call, and there are no snapshots, probes, routers, or attention maps"
)


RENAMED: Final = "the parts of its output have other names or places in another compiled graph"


class GraphWriter:
    """Gives the operators in compiled graphs rows on their device, and launches what writes there.

    All calls of a module in a step are one call there, because a replay of a CUDA graph counts nothing.
    """

    def __init__(self, dispatcher: Dispatcher, plans: dict[int, Plan]) -> None:
        self._plans, self._errors, self._statistics = plans, dispatcher.errors, dispatcher.statistics
        self._arenas: dict[torch.device, GraphArena] = {}
        self._tables: dict[int, Tensor] = {}
        self._rows: dict[tuple[int, int], int] = {}  # by key and cell
        self._named: dict[tuple[int, int], str] = {}  # the index of what a cell is for
        self._owners: dict[int, tuple[int, int]] = {}  # by slot

    def table(self, key: int, number: int) -> Tensor | None:
        plan = self._plans[key]
        device = next((each.device for each in _tensors_of(plan.ref(), plan.root.ref())), torch.device("cpu"))
        arena = self._arenas.get(device) or self._arena_on(device)
        if not arena.can_write:
            return None
        table = self._tables[key] = arena.table(number)
        for what, kind in ((OUTPUT, "output"), (GRADIENT, "output_grad")):  # so that their first step has numbers, too
            if kind in plan.kinds and "train" in self._statistics.phases:
                self._rows[key, cell_of(0, what)] = arena.want(table, cell_of(0, what))
        return table

    def _arena_on(self, device: torch.device) -> GraphArena:
        arenas = self._statistics.devices.arenas
        found = cast("GraphArena | None", arenas.get((device, -1)))  # of hooks that were detached for a while
        arena = self._arenas[device] = found or GraphArena(device, self._statistics.arena.sketch_values, self._stale)
        if arena.can_write:
            arenas[device, -1] = cast("DeviceArena", arena)
        return arena

    def _name(self, plan: Plan, key: int, cell: int, tap: tuple[Kind, str, Phase], value: Tensor) -> str:
        """Say what a row is for, or return why it can't be told."""
        kind, index, phase = tap
        if self._named.setdefault((key, cell), index) != index:
            return RENAMED
        slot, table = self._statistics.slot_of(plan, kind, index, 0, phase, value), self._tables[key]
        if slot < 0:
            return ""
        if self._owners.setdefault(slot, (key, cell)) != (key, cell):
            return RENAMED
        arena = self._arenas[table.device]
        if (key, cell) not in self._rows:
            self._rows[key, cell] = arena.want(table, cell)
        arena.name(self._rows[key, cell], slot)
        return ""

    def write(self, key: int, place: int, index: str, value: Tensor, requires_grad: bool, gradient: bool) -> None:
        plan = self._plans[key]
        if plan.muted:
            return
        try:
            with torch.set_grad_enabled(requires_grad):
                reason = self._write(plan, key, place, index, value, gradient)
            if reason:
                plan.note_reason(reason)
        except Exception as error:
            self._errors.record("op in a compiled graph", error, plan)

    def _write(self, plan: Plan, key: int, place: int, index: str, value: Tensor, gradient: bool) -> str:
        table, phase = self._tables[key], plan.root.phase(torch.is_grad_enabled())
        if place >= PLACES:
            return f"more than {PLACES} tensors of an output in a compiled graph; the rest is left out"
        if phase not in self._statistics.phases:
            return OTHER_PHASE[phase]
        if value.device != table.device:
            return ELSEWHERE
        if value.is_cuda and internals.is_stream_capturing() and not internals.on_stream_of_graphs(value.device):
            return IN_CAPTURE  # of the training itself: how often it is replayed isn't known
        plan.history.seen = True
        with unseen():
            plain = make_plain(value.detach())
        if isinstance(plain, str):
            return plain
        cell = cell_of(place, GRADIENT if gradient else OUTPUT if phase == "train" else EVALUATED)
        tap: tuple[Kind, str, Phase] = ("output_grad" if gradient else "output", index, phase)
        if reason := self._name(plan, key, cell, tap, value):
            return reason
        return write(plain, table, cell)

    def _stale(self, rows: int) -> None:
        for _ in range(rows):
            self._errors.count_loss("graph-row-lost", "row of a compiled graph", "isn't of the step that had ended")

    def lost(self) -> None:
        self._errors.count_loss("graph-tensor-lost", "tensor in a compiled graph", "its module isn't known")

    def off(self) -> None:
        """Let nothing be written until the next captured step."""
        for arena in self._arenas.values():
            arena.off()


def _tensors_of(*modules: nn.Module | None) -> Iterator[Tensor]:
    for module in modules:
        if module is not None:
            yield from module.parameters()
            yield from module.buffers()


class Loading:
    """Reports the calls of loaders that a step waits for. Those of other threads cost the training no time."""

    def __init__(self, context: Context, times: StepTimes, samples: Samples) -> None:
        self._current, self._errors, self._lock = context.current, context.errors, context.lock
        self._times = times
        self.took, self.ran_out = samples.took, samples.ran_out

    def loading_begins(self) -> None:
        if self._times.active:
            self._begin()

    def loading_ended(self, brought: bool) -> None:
        if self._times.active:
            self._end(brought)

    @entry("begin of data loading")
    def _begin(self) -> None:
        self._times.enter_loading()

    @entry("end of data loading")
    def _end(self, brought: bool) -> None:
        self._times.leave_loading(brought, torch.is_grad_enabled())


guard_functions(Loading.loading_begins, Loading.loading_ended)


class Attachment(Protocol):
    """One way to observe modules: by hooks on the process, on the modules, or in compiled graphs.

    Its hooks report to the dispatcher. `on` and `off` are called between steps and must be cheap.
    """

    def on(self) -> None:
        """Start a captured step."""

    def off(self) -> None:
        """Capture nothing for a while."""

    def follow_observers(self) -> None:
        """Add and remove hooks as the observers need them now."""

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        """Add and remove hooks for a new selection of modules. Return why that's impossible for some."""

    def close(self) -> None:
        """Remove every hook."""


class Front(StepObserver, BackwardObserver, Protocol):
    """The object that torch calls."""


class Placement:
    """Registers the hooks of one recorder, and removes them."""

    def __init__(self, context: Context, dispatcher: Dispatcher, models: Models, samples: Samples) -> None:
        self._context, self._dispatcher, self._models = context, dispatcher, models
        self._loading = Loading(context, dispatcher.times, samples)
        self._attachment: Attachment | None = None
        self.holding: Holding | None = None  # with hooks on the process only
        self._materialized: Materialized | None = None
        self._closed: Attachment | None = None  # the last one, in circles until the recorder is taken apart
        self._handles: list[hooks.HookHandle | ObserverHandle[Any]] = []

    def attach(self, front: Front, passes: SeesPending, captured: bool) -> None:
        """Register every hook. `front` sees torch's calls first."""
        self._handles = [observe_steps(front), observe_backward(front), observe_loading(self._loading)]
        if UNSEEN:
            self._context.emit("loading-unseen", UNSEEN)
        if self._models.discovers:
            self._handles.append(hooks.on_module_registration(self._models.registrations.saw))
        self._attachment = self._new_attachment(passes)
        if self._dispatcher.keeper is not None and isinstance(self._attachment, ProcessAttachment):
            self.holding = Holding(self._dispatcher)
        self.begin_step(self._context.step, captured)
        self._attachment.follow_observers()

    def _new_attachment(self, passes: SeesPending) -> Attachment:
        if self._context.settings.compiled == "inside":
            inside = InsideAttachment(self._dispatcher)
            if inside.is_on_device:
                self._context.emit("inside-on-device", ON_DEVICE)
            if inside.compiled_before:
                self._context.emit(
                    "compiled-again",
                    "the model was compiled earlier; it is compiled again so that its inner modules can be captured",
                )
            return inside
        if self._context.settings.attach == "module":
            return ModuleAttachment(self._dispatcher, self._models, passes)
        if self._context.settings.compiled == "materialized":
            self._materialized = Materialized()
        return ProcessAttachment(self._dispatcher, self._models, passes, self._materialized)

    def detach(self) -> None:
        """Remove every hook."""
        self._context.current.stop()
        if self._attachment is not None:
            self._attachment.close()
            self._closed, self._attachment = self._attachment, None
        if self._materialized is not None:
            self._materialized.close()
        if self.holding is not None:
            self.holding.close()
            self.holding = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def attached(self) -> bool:
        """Whether any hook is registered."""
        return self._attachment is not None

    def begin_step(self, step: int, captured: bool) -> None:
        """Start a step; hooks on modules are on in captured steps only."""
        current = self._context.current
        was_captured = current.captured
        current.begin(step, captured)
        if captured or was_captured:
            self._dispatcher.begin_step(captured)
        if self._attachment is not None and (captured or was_captured):
            (self._attachment.on if captured else self._attachment.off)()
        if self.holding is not None and (self.holding.is_on or not captured):  # else it is off already
            self.holding.begin_step(captured)

    def follow_observers(self, *others: Observer) -> None:
        """Let these observers see the calls of modules, in addition to the statistics."""
        self._dispatcher.add_only(*others)
        if self._attachment is not None:
            self._attachment.follow_observers()

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        """Follow a new selection of modules. Return why that's impossible for some."""
        return None if self._attachment is None else self._attachment.follow_choice(chosen)


# The observers that are there in some steps only: snapshots (also automatic ones), probes, routers, and what learns the
# data flow.


class Observers:
    """Chooses the observers of a step's calls, in addition to the statistics."""

    def __init__(self, context: Context, dispatcher: Dispatcher, collector: Collector, placement: Placement) -> None:
        copies = WaitingCopies(context, collector.scale, dispatcher.names)
        self.snapshots, self.automatic = Snapshots(context, copies), AutomaticSnapshots(context, copies)
        self.probes = Probes(context, collector)
        self.routers = Routers(context, self.probes.channels)
        self.attention = AttentionCalls(context, self.probes, self.snapshots)
        self.flows, self.streams = Flows(context), Streams(context)
        self.scales = Float8Scales(context)
        self._cadence, self._statistics, self._placement = context.cadence, context.statistics, placement
        self._is_rare = False  # whether residual streams and scales of float8 are measured in this step
        self._current, self._dispatcher = context.current, dispatcher
        if "eval" in context.settings.phases:
            dispatcher.when_evaluating = self._begin_evaluation

    def begin_step(self, step: int, captured: bool) -> None:
        """Choose who observes the calls of a step."""
        learns, routes = self.flows.begin_step(captured), self.routers.begin_step(step, captured)
        takes, is_rare = self.automatic.begin_step(captured), captured and self._cadence.is_rare(step)
        before, self._is_rare = self._is_rare, is_rare and "train" in self._statistics.phases
        if rare := before or self._is_rare:
            self.streams.begin_step(self._is_rare)
            self.scales.begin_step(self._is_rare)
        if self.probes.begin_step(step, captured, is_rare, self._cadence.block) or learns or routes or takes or rare:
            self._follow()
        if self.attention.looks:
            self.attention.begin_step()

    def _begin_evaluation(self, root: Root) -> None:
        """Let attention be looked at if this model runs in an evaluation, which may begin in any captured step."""
        step = self._current.number
        if root.evaluated == step or not (root.evaluates or not torch.is_grad_enabled()):
            return
        root.evaluated = step
        if self.probes.begin_evaluation(root.name, step, self._cadence.between_rare):
            if self.attention not in self._dispatcher.others:
                self.attention.begin_step()
            self._dispatcher.add(self.attention)

    def end_step(self) -> None:
        """Add what is known only now to the rows of the step."""
        if self.probes.passes.due:
            self.probes.passes.end_step()
        if self.routers.due:
            self.routers.end_step()
        if self._is_rare:
            self.scales.end_step()

    def begin_snapshots(self) -> None:
        """Look for the requested tensors."""
        self.snapshots.begin()
        self._follow()

    def _follow(self) -> None:
        snapshots: tuple[Observer, ...] = (self.snapshots,) if self.snapshots.looks_at_calls else ()
        automatic: tuple[Observer, ...] = (self.automatic,) if self.automatic.due else ()
        probes: tuple[Observer, ...] = (self.probes,) if self.probes.due else ()
        routers: tuple[Observer, ...] = (self.routers,) if self.routers.due else ()
        attention: tuple[Observer, ...] = (self.attention,) if self.attention.looks else ()
        flows: tuple[Observer, ...] = (self.flows,) if self.flows.is_learning else ()
        rare: tuple[Observer, ...] = (self.streams, self.scales) if self._is_rare else ()
        self._placement.follow_observers(*snapshots, *automatic, *probes, *routers, *attention, *flows, *rare)

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
        if self._is_rare:
            self.scales.before_step(owned)

    def read_gradients(self, owned: Sequence[Parameter]) -> None:
        """Look at the gradients that a closure has left."""
        self.snapshots.read_gradients(owned)
        self.probes.read_gradients(owned)

    def after_step(self, owned: Sequence[Parameter]) -> None:
        """Look at what the optimizer has changed."""
        if self.snapshots.active:
            self.snapshots.after_step(owned)
