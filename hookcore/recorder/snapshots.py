"""Snapshots: requested raw tensors, copied in the hook and sent by the recorder's thread.

While none is pending, nothing here is called: the hooks that look for a tensor are registered on request, and removed
when it was found.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor, nn

from hookcore.hooks.internals import DisableTorchFunction
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe.copies import MAX_BYTES, first_part
from hookcore.observe.plain import unseen
from hookcore.recorder.calls import Call
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.parameters import Parameter
from hookcore.recorder.plans import Plan, PlanTable
from hookcore.recorder.snapshot_copies import MAX_WAITING_BYTES, Request, WaitingCopies
from hookcore.records import Tap

MAX_PENDING: Final = 64
MAX_STEPS: Final = 100  # then a missing tap is given up
HURRY_STEPS: Final = 8  # steps that are captured for a snapshot, whatever the cadence says

PARAMETER_KINDS: Final = frozenset(("param", "param_grad", "update"))
INPUT_KINDS: Final = frozenset(("input", "input_grad"))


class Snapshots:
    """The requests of one watcher."""

    def __init__(self, plans: PlanTable, copies: WaitingCopies, current: CurrentStep, errors: ErrorLog) -> None:
        self._plans = plans
        self.copies = copies
        self._current = current
        self._errors = errors
        self._lock = threading.Lock()
        self._asked: list[Request] = []  # from the next step on
        self._pending: list[Request] = []
        self._by_path: dict[str, list[Request]] = {}  # the current targets; replaced, never changed
        self.active = False  # whether anything is requested, which is all that the training thread reads in a step

    # -- asking -----------------------------------------------------------------------------------------------------

    def ask(self, tap: Tap, number: int = -1) -> bool:
        """Look for a tensor from the next step on. Return False if too many are pending."""
        with self._lock:
            if len(self._asked) + len(self._pending) >= MAX_PENDING:
                return False
            self._asked.append(Request(tap, number))
            self.active = True
            return True

    def begin(self) -> None:
        """Start to look for new requests, at the beginning of a step."""
        with self._lock:
            self._pending = [request for request in self._pending if not request.taken] + self._asked
            self._asked = []
            self._index()

    def end_step(self, hint: str = "") -> None:
        """Give up overdue requests, at the end of a step."""
        self._take_quiet_parameters()
        for request in self._pending:
            request.steps += 1
            request.hint = hint or request.hint
            if request.steps >= MAX_STEPS and not request.taken:
                self.copies.miss(request, f"it did not arrive within {MAX_STEPS} steps")

    def give_up(self, reason: str) -> None:
        """Give up everything, because the training ends."""
        for request in [*self._pending, *self._asked]:
            if not request.taken:
                self.copies.miss(request, reason)
        self._asked = []
        self.begin()

    @property
    def hurries(self) -> bool:
        """Return whether to capture the next step for a snapshot."""
        return any(request.steps < HURRY_STEPS for request in self._pending)

    def _index(self) -> None:
        by_path: dict[str, list[Request]] = {}
        for request in self._pending:
            by_path.setdefault(request.tap.module, []).append(request)
        self._by_path = by_path
        self.active = bool(self._pending or self._asked)

    # -- modules ----------------------------------------------------------------------------------------------------

    @property
    def looks_at_calls(self) -> bool:
        """Whether anything is looked for now."""
        return bool(self._by_path)

    def wants(self, plan: Plan) -> bool:
        """Return whether a tensor of this module is looked for."""
        return plan.path in self._by_path

    @property
    def wants_inputs(self) -> bool:
        """Whether an input is looked for."""
        return any(request.tap.kind in INPUT_KINDS for request in self._pending)

    def saw_inputs(self, call: Call) -> None:
        """Check the inputs that a module is about to get."""
        self._look(self._by_path.get(call.plan.path, ()), "input", call)

    def saw_outputs(self, call: Call) -> None:
        """Check the outputs of a module."""
        requests = self._by_path.get(call.plan.path, ())
        if call.again or call.traced:
            kind = "output_grad" if call.again else "output"
            requests = [request for request in requests if request.tap.kind == kind]
        self._look(requests, "output", call)

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Check a gradient that a compiled graph reports."""
        for request in self._by_path.get(plan.path, ()):
            if request.tap == tap and self._current.reach():
                self.copies.take(request, gradient)

    def saw_requested_gradient(self, request: Request, gradient: Tensor) -> None:
        """Copy a gradient from inside its hook; let no exception out."""
        if not self._current.captured:
            return
        try:
            if self._current.reach():
                with DisableTorchFunction():
                    self.copies.take(request, gradient)
        except Exception as error:
            self._errors.record("snapshot of a gradient", error)

    def _look(self, requests: Sequence[Request], kind: str, call: Call) -> None:
        for request in requests:
            tap = request.tap
            if (
                request.taken
                or tap.kind not in (kind, f"{kind}_grad")
                or (tap.call, tap.phase) != (call.number, call.phase)
            ):
                continue
            tensor = next((tensor for index, tensor in call.tensors if index == tap.index), None)
            if tensor is None:
                places = ", ".join(repr(index) for index, _ in call.tensors[:8]) or "none"
                request.hint = f"there is no {kind} {tap.index!r}; the module has {places}"
            elif tap.kind == kind:
                self.copies.take(request, tensor)
            else:
                self._hook(request, tensor)

    def _hook(self, request: Request, tensor: Tensor) -> None:
        if not tensor.requires_grad:
            request.hint = "the tensor needs no gradient (frozen, detached, or not differentiable)"
        elif not tensor.is_leaf:
            hook_gradient(tensor, SnapshotHook(self, request))
        elif request.tap.kind == "input_grad" and not isinstance(tensor, nn.Parameter):
            self._current.hook_leaf(tensor, SnapshotHook(self, request))
        else:
            request.hint = "the tensor is a leaf: see its parameter's gradient"

    # -- parameters -------------------------------------------------------------------------------------------------

    def before_step(self, owned: Sequence[Parameter], with_gradients: bool) -> None:
        """Copy weights and gradients as the optimizer is about to use them."""
        for request, tensor in self._parameters({"param", "update"}, owned):
            if request.tap.kind == "param":
                self.copies.take(request, tensor)
            else:
                self._remember(request, tensor)
        if with_gradients:
            self.read_gradients(owned)

    def _remember(self, request: Request, tensor: Tensor) -> None:
        held = sum(other.before.nbytes for other in self._pending if other.before is not None)
        if held > MAX_WAITING_BYTES - MAX_BYTES:
            request.hint = "other pending updates already take too many bytes"
            return
        with unseen():
            request.before = first_part(tensor.detach()).clone()

    def read_gradients(self, owned: Sequence[Parameter]) -> None:
        """Copy the current gradients."""
        for request, tensor in self._parameters({"param_grad"}, owned):
            if tensor.grad is None:
                request.hint = "the parameter has no gradient"
            else:
                self.copies.take(request, tensor.grad)

    def after_step(self, owned: Sequence[Parameter]) -> None:
        """Copy the results of the optimizer's step."""
        for request, tensor in self._parameters({"update"}, owned):
            before, request.before = request.before, None
            if before is not None:
                with unseen():
                    change = first_part(tensor.detach()) - before
                self.copies.take(request, change, tuple(tensor.shape))

    def _parameters(self, kinds: set[str], owned: Sequence[Parameter]) -> list[tuple[Request, Tensor]]:
        wanted = [request for request in self._pending if request.tap.kind in kinds and not request.taken]
        if not wanted:
            return []
        mine = {id(tensor) for parameter in owned if (tensor := parameter.tensor) is not None}
        found = ((request, self._parameter_of(request)) for request in wanted)
        return [(request, tensor) for request, tensor in found if tensor is not None and id(tensor) in mine]

    def _parameter_of(self, request: Request) -> Tensor | None:
        plan = self._plans.at(request.tap.module)
        module = plan.ref() if plan is not None else None
        if module is None:
            return None
        own = dict(module._parameters.items())  # a scripted module's table supports little more
        tensor = own.get(request.tap.index)
        if tensor is None:
            names = ", ".join(map(repr, list(own)[:8])) or "none"
            request.hint = f"there is no parameter {request.tap.index!r}; the module has {names}"
        return tensor

    def _take_quiet_parameters(self) -> None:
        """Copy weights that no optimizer stepped, which are unchanged."""
        for request in self._pending:
            if request.tap.kind == "param" and not request.taken and self._current.captured:
                tensor = self._parameter_of(request)
                if tensor is not None:
                    self.copies.take(request, tensor)
            elif request.tap.kind in PARAMETER_KINDS and not request.taken and not request.hint:
                request.hint = "no torch optimizer steps this parameter"


class SnapshotHook:
    """The tensor hook that copies a gradient. It holds no tensor, so it extends no graph's life."""

    __slots__ = ("request", "snapshots")
    __torch_unserializable__ = True

    def __init__(self, snapshots: Snapshots, request: Request) -> None:
        self.snapshots = snapshots
        self.request = request

    def __call__(self, grad: Any) -> None:
        snapshots, request = self.snapshots, self.request
        if grad is not None and not request.taken:
            snapshots.saw_requested_gradient(request, grad)
