"""Parameters, their gradients and their updates, read around the optimizer's step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.observe.plain import unseen
from hookcore.recorder.capture import Capture
from hookcore.recorder.plans import Plan
from hookcore.records import Kind, Tap

_STACK_DEPTH = 8  # recorder, torch's step wrapper, wrappers of schedulers and frameworks, scaler


class Parameter:
    """A watched parameter and its rows."""

    __slots__ = ("_hidden_slot", "grad_slot", "name", "norm_slot", "param_slot", "plan", "ref", "update_slot")

    def __init__(
        self, capture: Capture, plan: Plan, name: str, parameter: Tensor, gone: Callable[[object], object]
    ) -> None:
        self.ref = weakref.ref(parameter, gone)
        self.plan = plan
        self.name = name
        self._hidden_slot = -1
        self.choose(capture)

    def choose(self, capture: Capture) -> None:
        """Find its rows by what its module's plan wants now."""
        plan, name = self.plan, self.name
        self.grad_slot = capture.slot_of(plan, "param_grad", name, 0)
        self.param_slot = capture.slot_of(plan, "param", name, 0)
        self.update_slot = capture.slot_of(plan, "update", name, 0)
        self.norm_slot = self.param_slot
        if self.update_slot >= 0 and self.param_slot < 0:
            # The ratio needs the weight's norm, also where nobody asked to see it.
            if self._hidden_slot < 0:
                self._hidden_slot = capture.new_slot(Tap(plan.path, "param", name), hidden=True)
            self.norm_slot = self._hidden_slot


class Parameters:
    """The watched parameters, found by identity in an optimizer's groups."""

    def __init__(self, capture: Capture, kinds: frozenset[Kind]) -> None:
        self._capture = capture
        self._wanted = _reads_parameters(kinds)
        self._known: dict[int, Parameter] = {}
        # By optimizer, for several may step at once in several threads.
        self._before: dict[int, list[tuple[Parameter, Tensor]]] = {}
        self.read = False  # whether this step's gradients have been read

    def find(self, parameter: Tensor) -> Parameter | None:
        """The watched parameter that this tensor is."""
        found = self._known.get(id(parameter))
        if found is not None and found.ref() is parameter:
            return found
        return None

    def adopt(self, plan: Plan) -> None:
        """Learn a module's own parameters; a tied one belongs to the module that has it first.

        Also those that nobody wants to see: an optimizer that steps them ends the steps of this model.
        """
        module = plan.ref()
        for name, parameter in (module._parameters if module is not None else {}).items():
            if parameter is not None and self.find(parameter) is None:
                key, known = id(parameter), self._known
                known[key] = Parameter(self._capture, plan, name, parameter, partial(_forget, known, key))

    def choose(self, kinds: frozenset[Kind]) -> None:
        """The plans were made anew: so are the rows."""
        self._wanted = _reads_parameters(kinds)
        for parameter in self.all():
            parameter.choose(self._capture)

    def rename(self, plan: Plan) -> None:
        """The module of this plan has another path: so do the rows of its parameters."""
        for parameter in self.all():
            if parameter.plan is plan:
                parameter.choose(self._capture)

    def all(self) -> list[Parameter]:
        """Every watched parameter."""
        return list(self._known.values())

    def owned(self, optimizer: Optimizer) -> list[Parameter]:
        """The watched parameters that this optimizer steps."""
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        if any(self.find(tensor) is None for tensor in tensors):
            # Another model's, or one that was replaced or added since: look again.
            for plan in list(self._capture.plans.values()):
                self.adopt(plan)
        return [found for tensor in tensors if (found := self.find(tensor)) is not None]

    def before_step(self, owned: list[Parameter], with_gradients: bool, stepper: int = 0) -> None:
        """Read weights, and gradients unless they only come inside the step, as the optimizer is about to use them."""
        if not self._wanted:
            self.read = self.read or with_gradients
            return
        before: list[tuple[Parameter, Tensor]] = []
        for parameter in owned:
            tensor = parameter.ref()
            if tensor is None:
                continue
            if parameter.norm_slot >= 0:
                self._capture.add_safely(parameter.plan, tensor, parameter.norm_slot)
            if parameter.update_slot >= 0:
                with unseen():
                    before.append((parameter, tensor.detach().clone()))
        if before:
            self._before[stepper] = before
        if with_gradients:
            self.read_gradients(owned)

    def read_gradients(self, owned: list[Parameter]) -> None:
        """Read the gradients as they are now."""
        self.read = True
        if not self._wanted:
            return
        for parameter in owned:
            tensor = parameter.ref()
            if tensor is not None and parameter.grad_slot >= 0 and tensor.grad is not None:
                self._capture.add_safely(parameter.plan, tensor.grad, parameter.grad_slot)

    def after_step(self, stepper: int) -> None:
        """Observe what the step changed."""
        before = self._before.pop(stepper, None)
        if before is None:
            return
        with unseen():
            for parameter, old in before:
                now = parameter.ref()
                if now is not None and now.shape == old.shape:
                    self._capture.add(parameter.plan, now.detach() - old, parameter.update_slot)

    def read_all(self) -> None:
        """Read everything where no optimizer of torch's steps."""
        self.before_step(list(self._known.values()), with_gradients=True)
        self._before.pop(0, None)

    def ratios(self) -> tuple[tuple[int, int], ...]:
        """The rows of each update and of the weights it changed."""
        return tuple((p.update_slot, p.norm_slot) for p in self._known.values() if p.update_slot >= 0)


def _reads_parameters(kinds: frozenset[Kind]) -> bool:
    return not kinds.isdisjoint(("param", "param_grad", "update"))


def _forget(known: dict[int, Parameter], key: int, gone: object) -> None:
    if key in known and known[key].ref is gone:
        del known[key]


class ScaleFinder:
    """Finds the GradScaler that drives a step, and reads its scale without a device synchronisation."""

    def __init__(self) -> None:
        self._scaler: weakref.ref[GradScaler] | None = None

    @property
    def known(self) -> bool:
        """Whether a scaler was found."""
        return self._scaler is not None and self._scaler() is not None

    def never_changed(self) -> bool:
        """Whether the scale still is the one that the scaler began with, so that no step can have been skipped."""
        scaler = self._scaler() if self._scaler is not None else None
        return scaler is None or self.scale() == scaler._init_scale

    def look_up_the_stack(self) -> None:
        """Called from an optimizer's hook: the scaler is one of the callers, if there is one."""
        if self.known:
            return
        frame: Any = sys._getframe(1)
        for _ in range(_STACK_DEPTH):
            frame = frame.f_back
            if frame is None:
                return
            if frame.f_code is GradScaler._maybe_opt_step.__code__:
                scaler = frame.f_locals.get("self")
                if isinstance(scaler, GradScaler):
                    self._scaler = weakref.ref(scaler)
                return

    def scale(self) -> float | None:
        """The loss scale now in force; None where no scaler is known or its scale is not on the CPU."""
        scaler = self._scaler() if self._scaler is not None else None
        if scaler is None or not scaler.is_enabled():
            return None
        scale = scaler._scale
        if isinstance(scale, Tensor):
            if not scale.is_cpu:
                return None
            with unseen():
                return float(scale)
        return float(scaler._init_scale)


def applied_scale(optimizer: Optimizer) -> Tensor | None:
    """The scale that a fused optimizer divides out itself: its gradients are still scaled when its hook runs."""
    scale = optimizer.__dict__.get("grad_scale")
    return scale if isinstance(scale, torch.Tensor) else None
