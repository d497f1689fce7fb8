"""Probes: functions of the user that compute numbers from tensors, every so many steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from hookcore.config import Pattern
from hookcore.config.readers import read_include
from hookcore.errors import ArgumentError
from hookcore.hooks.tensors import hook_gradient
from hookcore.internals import DisableTorchFunction
from hookcore.observe.generators import generators_kept
from hookcore.observe.plain import unseen
from hookcore.patterns import select
from hookcore.recorder.calls import Call
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.parameters import Parameter
from hookcore.recorder.plans import Plan, PlanTable
from hookcore.recorder.snapshot_copies import Emit
from hookcore.recorder.statistics import Statistics
from hookcore.records import PROBE, Kind, Tap
from hookcore.records.vocabulary import PROBE_LABEL

MAX_PROBES: Final = 32
MAX_NAME: Final = 100
MAX_COMPUTES: Final = 200  # letters of the name of a function
MAX_VALUES: Final = 4096  # that a function may return
MAX_FAULTS: Final = 3  # then it is switched off
PROBE_KINDS: Final[tuple[Kind, ...]] = ("output", "output_grad", "param", "param_grad")

Function = Callable[[Tensor], Any]


@dataclass(slots=True, eq=False)
class Probe:
    """One function, and which tensors it gets."""

    name: str
    function: Function
    include: tuple[Pattern, ...]
    kinds: frozenset[Kind]
    every: int
    due_at: int = 0  # the first captured step from this one on
    begun_at: int = -1  # the newest step in which it was due
    faults: int = 0
    paths: frozenset[str] = frozenset()  # of the modules that it looks at in this step

    @property
    def computes(self) -> str:
        """The qualified name of its function, by which rules recognize what its results mean."""
        function: Any = self.function
        while isinstance(function, partial):
            function = function.func
        named = function if hasattr(function, "__qualname__") else type(function)
        return f"{getattr(named, '__module__', '')}.{named.__qualname__}"[:MAX_COMPUTES]

    @property
    def is_off(self) -> bool:
        """Whether it failed too often."""
        return self.faults >= MAX_FAULTS


@dataclass(slots=True, eq=False)
class Probes:
    """The probes of one watcher: an observer of calls in the steps in which one is due."""

    _plans: PlanTable
    _statistics: Statistics
    _current: CurrentStep
    _emit: Emit
    _add_label: Callable[[str, str], None]
    due: tuple[Probe, ...] = ()
    wants_inputs: bool = False
    _all: list[Probe] = field(default_factory=list)

    def add(self, probe: Probe) -> bool:
        """Add a probe; return False if there is no room."""
        if len(self._all) >= MAX_PROBES:
            return False
        self._all = [*self._all, probe]
        return True

    def begin_step(self, step: int, captured: bool) -> bool:
        """Choose the probes of a step. Return whether that changed who observes calls."""
        if not self._all:
            return False
        before = self.due
        due = (each for each in self._all if not each.is_off and (each.due_at <= step or each.begun_at == step))
        self.due = tuple(due) if captured else ()
        modules = {plan.path: plan.ref() for plan in self._plans.live()} if self.due else {}
        for probe in self.due:
            probe.due_at, probe.begun_at = step + probe.every, step
            probe.paths = frozenset(_chosen(modules, probe.include))
            self._add_label(f"{PROBE_LABEL}{probe.name}", probe.computes)  # each time: a frame may be lost
        return bool(before or self.due)

    # Calls

    def wants(self, plan: Plan) -> bool:
        """Return whether a probe looks at this module."""
        return any(plan.path in probe.paths for probe in self.due)

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

    def before_step(self, owned: Sequence[Parameter]) -> None:
        """Compute the numbers of weights and their gradients, as the optimizer is about to use them."""
        for probe in self.due:
            for parameter in owned if not probe.kinds.isdisjoint(("param", "param_grad")) else ():
                tensor = parameter.tensor
                if tensor is None or parameter.plan.path not in probe.paths:
                    continue
                if "param" in probe.kinds:
                    self.compute(probe, parameter.plan, "param", parameter.name, 0, tensor)
                if "param_grad" in probe.kinds and tensor.grad is not None:
                    self.compute(probe, parameter.plan, "param_grad", parameter.name, 0, tensor.grad)

    # Values

    def compute(self, probe: Probe, plan: Plan, kind: Kind, index: str, call: int, tensor: Tensor) -> None:
        """Call the function, and add what it returns to the row of its tap."""
        if probe.is_off:
            return
        given = tensor.detach()
        before = _version(given)
        try:
            with unseen(), generators_kept():
                values = _values_of(probe.function(given))
        except Exception as error:
            self._note_fault(probe, plan, f"{type(error).__name__}: {error}")
            return
        if _version(given) != before:
            probe.faults = MAX_FAULTS
            why = "changed the tensor that it was given, so the training may differ from here on; it is switched off"
            self._emit("probe-failed", f"the probe {probe.name!r} {why}", "error", plan.path)
            return
        name = " ".join(filter(None, (probe.name, "" if kind == "output" else kind, index)))
        slot = self._statistics.table.add(Tap(plan.path, PROBE, name, call))
        if slot >= 0:
            self._statistics.add(plan, values, slot)

    def _note_fault(self, probe: Probe, plan: Plan, why: str) -> None:
        probe.faults += 1
        if probe.faults == 1 or probe.is_off:
            off = f"; after {MAX_FAULTS} faults, it is switched off" if probe.is_off else ""
            self._emit("probe-failed", f"the probe {probe.name!r} failed: {why[:500]}{off}", "warning", plan.path)


def probe_of(name: str, function: Function, include: Any, kinds: Any, every: int) -> Probe:
    """Return a probe with these arguments of a user. Raises ArgumentError for a wrong one."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise ArgumentError(f"name={name!r} is invalid: use a string of 1 to {MAX_NAME} characters")
    if not callable(function):
        raise ArgumentError(f"function={function!r} is invalid: use a function that takes a tensor")
    chosen = frozenset([kinds] if isinstance(kinds, str) else kinds)
    if not chosen or not chosen <= set(PROBE_KINDS):
        raise ArgumentError(f"kinds={kinds!r} is invalid: use one or more of {', '.join(map(repr, PROBE_KINDS))}")
    if type(every) is not int or every < 1:
        raise ArgumentError(f"every={every!r} is invalid: use an integer of 1 or more")
    try:
        patterns = read_include(include)
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"include={include!r} is invalid: use a pattern, a list of patterns, or None. {error}"
        ) from None
    return Probe(name, function, patterns, chosen, every)


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


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _values_of(result: Any) -> Tensor:
    if isinstance(result, (bool, int, float)):
        return torch.tensor([float(result)], dtype=torch.float64)
    if isinstance(result, Tensor) and result.dim() <= 1 and result.numel() <= MAX_VALUES:
        return result.detach()
    what = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
    raise TypeError(f"it returned {what}; a probe returns a number, or a 1-D tensor of at most {MAX_VALUES:,}")
