"""Probes of backward passes: objects that see a model's gradients before and after each pass."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from hookcore.hooks.handle import HookHandle
from hookcore.hooks.tensors import hook_leaves
from hookcore.observe.plain import generators_kept, unseen
from hookcore.recorder.calls.plans import Plan, PlanTable
from hookcore.recorder.context import Context
from hookcore.recorder.known.roots import Root
from hookcore.records import PROBE, Tap

# What functions of probes may return.

MAX_VALUES: Final = 4096  # that a function may return


def values_of(result: Any) -> Tensor:
    """Return a result as a tensor. Raises TypeError for a wrong one."""
    if isinstance(result, (bool, int, float)):
        return torch.tensor(float(result), dtype=torch.float64)
    if isinstance(result, Tensor) and result.dim() <= 1 and result.numel() <= MAX_VALUES:
        return result.detach()
    what = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
    raise TypeError(f"it returned {what}; a probe returns a number, or a 1-D tensor of at most {MAX_VALUES:,}")


def channels_of(function: Callable[[Tensor], Any] | None, given: Tensor, values: Tensor) -> int:
    """Return how many numbers the function has in mind: of very many, it returns groups. 0 for a single number."""
    if not values.dim():
        return 0
    count = getattr(function, "channels", None)
    return len(values) if count is None else int(count(given))


MAX_REPORTED: Final = 16  # reasons that are reported for one probe


class PassProbe(Protocol):
    """The objects of a class that looks at passes: one for each model, as long as the probe exists."""

    def begin_pass(self, parameters: list[Tensor]) -> None:
        """Look at the gradients before a pass."""

    def end_pass(self, parameters: list[Tensor]) -> None:
        """Look at the gradients after a pass."""

    def end_step(self) -> Any:
        """Return numbers, or a sentence that says why they are unknown."""


class LocalProbe(PassProbe, Protocol):
    """An object that can also see the gradients before they are reduced between ranks."""

    def wants_local(self) -> bool:
        """Whether it does in the next pass."""

    def see_local(self, place: int, gradient: Tensor) -> None:
        """Look at what a pass adds in this process to the gradient of the parameter at this place."""


@dataclass(slots=True, eq=False)
class Passes:
    """The objects of one probe, by model."""

    make: Callable[[], PassProbe]
    _objects: weakref.WeakKeyDictionary[Root, PassProbe] = field(default_factory=weakref.WeakKeyDictionary)
    _running: list[int] = field(default_factory=list)  # the threads of the passes that run; the outermost first
    _seen: bool = False  # whether a pass was seen in this step
    _tangled: bool = False  # whether passes ran in several threads at once
    _hooks: list[HookHandle] = field(default_factory=list)  # on the parameters, while a pass runs
    fault: Exception | None = None  # in such a hook
    reported: set[str] = field(default_factory=set)

    def begin_step(self) -> None:
        """Forget an unfinished step."""
        if self._seen:
            self.finish()

    def begin_pass(self, plans: PlanTable, paths: frozenset[str]) -> None:
        """Show the gradients before a pass. A pass inside another one, as of a checkpoint, is a part of it."""
        self._running.append(threading.get_ident())
        self._tangled |= len(set(self._running)) > 1
        if len(self._running) == 1:
            self._seen = True
            self._show(plans, paths, "begin_pass")
            self._hook(plans, paths)

    def end_pass(self, plans: PlanTable, paths: frozenset[str]) -> None:
        """Show the gradients after a pass."""
        if not self._running:  # it began before the step in which the probe is due
            return
        self._running.pop()
        if not self._running:
            self._unhook()
            self._show(plans, paths, "end_pass")

    def _hook(self, plans: PlanTable, paths: frozenset[str]) -> None:
        for root, parameters in _parameters(plans, paths).items():
            probe: Any = self._objects[root]
            if hasattr(probe, "wants_local") and probe.wants_local():
                hooks = [(tensor, _LocalHook(self, probe, place)) for place, tensor in enumerate(parameters)]
                self._hooks.append(hook_leaves(hooks))

    def _unhook(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault

    def _show(self, plans: PlanTable, paths: frozenset[str], method: str) -> None:
        with unseen(), generators_kept():
            for root, parameters in _parameters(plans, paths).items():
                if root not in self._objects:
                    self._objects[root] = self.make()
                getattr(self._objects[root], method)(parameters)

    def finish(self) -> list[tuple[Root, Any]]:
        """End the step: return what each object found, or why it doesn't know."""
        tangled, self._tangled, self._seen, self._running = self._tangled, False, False, []
        self._unhook()
        found = []
        with unseen(), generators_kept():
            for root, each in list(self._objects.items()):
                result = each.end_step()
                found.append((root, "backward passes ran in several threads at once" if tangled else result))
        return found


class _LocalHook:
    """The hook that shows a gradient to an object. It returns nothing, so it changes nothing."""

    __slots__ = ("_passes", "_place", "_probe")
    __torch_unserializable__ = True

    def __init__(self, passes: Passes, probe: LocalProbe, place: int) -> None:
        self._passes, self._probe, self._place = passes, probe, place

    def __call__(self, gradient: Tensor | None) -> None:
        try:
            if gradient is not None:
                with unseen():  # nothing is drawn here, and setting generators back would disturb other threads
                    self._probe.see_local(self._place, gradient)
        except Exception as error:
            self._passes.fault = error


class Looking(Protocol):
    """A probe that looks at passes."""

    name: str
    paths: frozenset[str]
    passes: Passes | None

    @property
    def is_off(self) -> bool:
        """Whether it failed too often."""

    def count_fault(self, error: Exception) -> str:
        """Count an exception. Return what to say of it."""


class PassProbes:
    """The probes of a watcher that look at the backward passes of the running step."""

    def __init__(self, context: Context) -> None:
        self._plans, self._statistics, self._emit = context.plans, context.statistics, context.emit
        self.due: tuple[Looking, ...] = ()

    def begin(self) -> None:
        """Let them see the gradients before a backward pass."""
        self._each(lambda probe, passes: passes.begin_pass(self._plans, probe.paths))

    def end(self) -> None:
        """Let them see the gradients after a backward pass."""
        self._each(lambda probe, passes: passes.end_pass(self._plans, probe.paths))

    def end_step(self) -> None:
        """Add the results to the rows of the models."""
        self._each(self._finish)

    def _each(self, call: Callable[[Any, Passes], None]) -> None:
        for probe in self.due:
            if probe.passes is None or probe.is_off:
                continue
            try:
                call(probe, probe.passes)
            except Exception as error:
                if message := probe.count_fault(error):
                    self._emit("probe-failed", message, "warning", "")

    def _finish(self, probe: Looking, passes: Passes) -> None:
        for root, result in passes.finish():
            plan = _plan_of(self._plans, root)
            if plan is not None and isinstance(result, str):
                self._note_unknown(probe, passes, result, plan.path)
            elif plan is not None:
                slot = self._statistics.table.add(Tap(plan.path, PROBE, probe.name))
                if slot >= 0:
                    self._statistics.add(plan, values_of(result), slot)

    def _note_unknown(self, probe: Looking, passes: Passes, why: str, path: str) -> None:
        if why not in passes.reported and len(passes.reported) < MAX_REPORTED:
            passes.reported.add(why)
            self._emit("probe-unknown", f"the probe {probe.name!r} has no result: {why}", "info", path)


def _parameters(plans: PlanTable, paths: frozenset[str]) -> dict[Root, list[Tensor]]:
    """Return the trained parameters of the modules at these paths, each once, by model."""
    found: dict[Root, dict[int, Tensor]] = {}
    for plan in plans.live():
        module = plan.ref() if plan.path in paths else None
        for tensor in list(module._parameters.values()) if module is not None else ():
            if tensor is not None and tensor.requires_grad:
                found.setdefault(plan.root, {})[id(tensor)] = tensor
    return {root: list(tensors.values()) for root, tensors in found.items()}


def _plan_of(plans: PlanTable, root: Root) -> Plan | None:
    """Return the plan of a model's outermost module."""
    module = root.ref()
    return next((plan for plan in plans.live() if plan.root is root and plan.ref() is module), None)
