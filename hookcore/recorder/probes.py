"""Probes: functions of the user that compute numbers from tensors, at intervals of steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from hookcore.config import Pattern
from hookcore.config.patterns import select
from hookcore.hooks.internals import DisableTorchFunction, version_of
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe.generators import generators_kept
from hookcore.observe.plain import unseen
from hookcore.probes import channel_rms, channel_zeros
from hookcore.recorder.calls import Call
from hookcore.recorder.channels import ChannelColumns
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.parameters import Parameter
from hookcore.recorder.passes import PassProbes
from hookcore.recorder.plans import Plan, PlanTable
from hookcore.recorder.probe import MAX_FAULTS, Probe
from hookcore.recorder.results import channels_of, values_of
from hookcore.recorder.snapshot_copies import Emit
from hookcore.recorder.statistics import Statistics
from hookcore.records import PROBE, Kind, Tap
from hookcore.records.vocabulary import PROBE_LABEL

MAX_PROBES: Final = 32
CHANNELS_EVERY: Final = 10


@dataclass(slots=True, eq=False)
class Probes:
    """The probes of one watcher: an observer of calls in the steps in which one is due."""

    _plans: PlanTable
    _statistics: Statistics
    _current: CurrentStep
    _emit: Emit
    _add_label: Callable[[str, str], None]
    _errors: ErrorLog
    channels: ChannelColumns = field(init=False)
    passes: PassProbes = field(init=False)
    due: tuple[Probe, ...] = ()
    wants_inputs: bool = False
    added: list[Probe] = field(default_factory=list)  # by the user; replaced, never changed
    _of_channels: tuple[Probe, ...] = ()  # of the setting

    def __post_init__(self) -> None:
        self.channels = ChannelColumns(self._errors)
        self.passes = PassProbes(self._plans, self._statistics, self._emit)

    def add(self, probe: Probe) -> bool:
        """Add a probe; return False if there is no room."""
        if len(self.added) >= MAX_PROBES:
            return False
        self.added = [*self.added, probe]
        return True

    def choose_channels(self, include: tuple[Pattern, ...]) -> None:
        """Look at each channel of the outputs of these modules from the next step on."""
        own = (("channel_rms", channel_rms), ("channel_zeros", channel_zeros)) if include else ()
        self._of_channels = tuple(
            Probe(name, function, include, frozenset(("output",)), CHANNELS_EVERY) for name, function in own
        )

    def hurries(self, step: int) -> bool:
        """Return whether to capture a step because a probe looks at several in a row."""
        return any(probe.wants_next(step) for probe in self.added)

    def begin_step(self, step: int, captured: bool, block: int = 1) -> bool:
        """Choose the probes of a step. Return whether that changed who observes calls."""
        if not (self.added or self._of_channels or self.due):
            return False
        self.channels.end_step()
        before = self.due
        self.due = tuple(
            probe for probe in (*self._of_channels, *self.added) if probe.begin_step(step, captured, block)
        )
        modules = {plan.path: plan.ref() for plan in self._plans.live()} if self.due else {}
        for probe in self.due:
            probe.paths = frozenset(_chosen(modules, probe.include))
            self._add_label(f"{PROBE_LABEL}{probe.name}", probe.computes)  # each time: a frame may be lost
        self.passes.due = tuple(probe for probe in self.due if probe.passes is not None)
        return bool(before or self.due)

    # Calls

    def wants(self, plan: Plan) -> bool:
        """Return whether a probe looks at this module."""
        return any(probe.kinds and plan.path in probe.paths for probe in self.due)

    def saw_inputs(self, call: Call) -> None:
        """Do nothing: a module's input is another one's output."""

    def saw_outputs(self, call: Call) -> None:
        """Compute the numbers of outputs, and hook their gradients."""
        if call.phase not in self._statistics.phases or call.again:
            return
        for probe in self.due:
            if call.plan.path not in probe.paths:
                continue
            for index, tensor in call.tensors:
                if "output" in probe.kinds:
                    self.compute(probe, call.plan, "output", index, call.number, tensor)
                if "output_grad" in probe.kinds and tensor.requires_grad and not tensor.is_leaf and not call.traced:
                    hook_gradient(tensor, _ProbeHook(self, probe, call.plan, index, call.number))

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Compute the numbers of a gradient that a compiled graph reports."""
        for probe in self.due:
            if "output_grad" in probe.kinds and plan.path in probe.paths:
                self.compute(probe, plan, "output_grad", tap.index, tap.call, gradient)

    def saw_arriving(self, probe: Probe, plan: Plan, index: str, call: int, gradient: Tensor) -> None:
        """Compute the numbers of a gradient from inside its hook; let no exception out."""
        current = self._current
        if current.captured and probe in self.due and current.reach():
            with contextlib.suppress(Exception), DisableTorchFunction():
                self.compute(probe, plan, "output_grad", index, call, gradient)

    # Parameters

    def before_step(self, owned: Sequence[Parameter], with_gradients: bool) -> None:
        """Compute the numbers of weights and their gradients, as the optimizer is about to use them."""
        for probe, parameter, tensor in self._parameters("param", owned):
            self.compute(probe, parameter.plan, "param", parameter.name, 0, tensor)
        if with_gradients:
            self.read_gradients(owned)

    def read_gradients(self, owned: Sequence[Parameter]) -> None:
        """Compute the numbers of the current gradients of weights."""
        for probe, parameter, tensor in self._parameters("param_grad", owned):
            if tensor.grad is not None:
                self.compute(probe, parameter.plan, "param_grad", parameter.name, 0, tensor.grad)

    def _parameters(self, kind: Kind, owned: Sequence[Parameter]) -> Iterator[tuple[Probe, Parameter, Tensor]]:
        for probe in self.due:
            for parameter in owned if kind in probe.kinds else ():
                tensor = parameter.tensor
                if tensor is not None and parameter.plan.path in probe.paths:
                    yield probe, parameter, tensor

    # Values

    def compute(self, probe: Probe, plan: Plan, kind: Kind, index: str, call: int, tensor: Tensor) -> None:
        """Call the function, and add its result to the row of its tap."""
        if probe.is_off:
            return
        name = " ".join(filter(None, (probe.name, "" if kind == "output" else kind, index)))
        tap = Tap(plan.path, PROBE, name, call)
        given = tensor.detach()
        before = version_of(given)
        try:
            with unseen(), generators_kept():
                function = probe.call_for(tap, plan, self._current.number)
                result = None if function is None else function(given)
                if result is None and isinstance(probe.function, type):
                    return
                values = values_of(result)
                channels = channels_of(function, given, values)
        except Exception as error:
            if message := probe.count_fault(error):
                self._emit("probe-failed", message, "warning", plan.path)
            return
        if version_of(given) != before:
            probe.faults = MAX_FAULTS
            why = "changed its tensor, so the training may differ from this step on; it is switched off"
            self._emit("probe-failed", f"the probe {probe.name!r} {why}", "error", plan.path)
            return
        slot = self._statistics.table.add(tap)
        if slot >= 0:
            self._statistics.add(plan, values, slot)
            if channels:
                self.channels.note(tap, self._current.number, channels, values)


class _ProbeHook:
    """The tensor hook that gives a gradient to a function. It holds no tensor, so it extends no graph's life."""

    __slots__ = ("_about", "_probes")
    __torch_unserializable__ = True

    def __init__(self, probes: Probes, probe: Probe, plan: Plan, index: str, call: int) -> None:
        self._probes = probes
        self._about = probe, plan, index, call

    def __call__(self, gradient: Any) -> None:
        if gradient is not None:
            self._probes.saw_arriving(*self._about, gradient)


def _chosen(modules: dict[str, Any], include: tuple[Pattern, ...]) -> Iterable[str]:
    leaves = {path for path, module in modules.items() if module is not None and not module._modules}
    return select(modules, leaves, include, strict=False).chosen
