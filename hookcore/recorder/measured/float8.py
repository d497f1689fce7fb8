"""Scales of float8: what layers that cast to it keep, and how far the largest values reach into the format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from hookcore.hooks.internals import DisableTorchFunction
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe.copies import is_capturing
from hookcore.observe.plain import unseen
from hookcore.recorder.calls.plans import Call, Plan
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import Parameter
from hookcore.records import PROBE, Tap
from hookcore.records.vocabulary import FLOAT8

# TransformerEngine's layers with delayed scaling keep, for each product of matrices, three scales of the forward pass
# and two of the backward pass, and a history of the largest magnitudes. A cast writes into the first row. When the pass
# has ended, the rows move up by one, so that the newest is the last one, and the scales follow. So a scale is read
# before the cast, or with its magnitude, and never after the pass. Scales that torchao computes ahead are of weights.

_FORWARD: Final = ("input", "weight", "output")
_BACKWARD: Final = ("grad_output", "grad_input")
_CAST: Final = ("input", "weight", "grad_output")  # what a product takes; others aren't cast as a rule


class _Slots(NamedTuple):
    """The scales of one tensor of a module, of each of its products of matrices."""

    role: str
    scale: Tensor
    history: Tensor  # [row, product]
    largest: float | None  # number of the format; None if that isn't known

    def newest(self) -> Tensor:
        """Return the largest magnitudes of the newest cast, whether or not the rows have moved since."""
        return torch.where(self.history[0] > 0, self.history[0], self.history[-1])


def _slots_of(module: nn.Module, backward: bool) -> Iterator[_Slots]:
    """Yield what a layer of TransformerEngine keeps for the casts of a pass."""
    meta: Any = vars(module).get("fp8_meta")
    names = _BACKWARD if backward else _FORWARD
    if not isinstance(meta, dict) or not any("weight" in name for name in module._parameters):
        return
    state = meta.get("scaling_bwd" if backward else "scaling_fwd")
    scale, history = getattr(state, "scale", None), getattr(state, "amax_history", None)
    products = meta.get("num_gemms")
    if not isinstance(scale, Tensor) or not isinstance(history, Tensor) or type(products) is not int:
        return  # with another kind of scaling, nothing is kept
    if (
        scale.shape != (products * len(names),)
        or history.dim() != 2
        or history.shape[1:] != scale.shape
        or not products
    ):
        return
    limits = getattr(getattr(meta.get("recipe"), "fp8_format", None), "value", None)
    largest = getattr(limits, "max_bwd" if backward else "max_fwd", None)
    known = float(largest) if isinstance(largest, int | float) and largest > 0 else None
    for place, role in enumerate(names):
        if role in _CAST:
            yield _Slots(role, scale.detach()[place :: len(names)], history.detach()[:, place :: len(names)], known)


def _ahead_of(tensor: Tensor) -> tuple[Tensor, Tensor, float] | None:
    """Return this rank's part of a weight of torchao, the scale that was computed ahead, and the format's largest."""
    part: Any = getattr(tensor, "_local_tensor", tensor)
    known = getattr(part, "__dict__", {})
    scale, values, dtype = (known.get(name) for name in ("_precomputed_scale", "_tensor", "_dtype"))
    if not isinstance(scale, Tensor) or not isinstance(values, Tensor) or type(dtype) is not torch.dtype:
        return None
    if type(values) is not Tensor or not values.numel() or not dtype.is_floating_point or dtype.itemsize != 1:
        return None
    return values.detach(), scale.detach(), torch.finfo(dtype).max


class Float8Scales:
    """Reads scales in a few steps: an observer of the calls of layers that have some."""

    wants_inputs = False

    def __init__(self, context: Context) -> None:
        self._plans, self._statistics, self._current = context.plans, context.statistics, context.current
        self._errors = context.errors
        self.due = False
        self._before: dict[str, tuple[Plan, list[_Slots]]] = {}  # by path: the scales that the gradient is cast with

    def begin_step(self, due: bool) -> None:
        """Look at the step that begins, or no more."""
        self.due, self._before = due, {}

    def wants(self, plan: Plan) -> bool:
        """Return whether a module may have scales."""
        module = plan.ref() if self.due else None
        return module is not None and isinstance(vars(module).get("fp8_meta"), dict)

    def saw_inputs(self, call: Call) -> None:
        """Do nothing: what is cast has been cast when the module returns."""

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Do nothing: these layers aren't compiled."""

    def saw_outputs(self, call: Call) -> None:
        """Read what the forward pass was cast with, and let the output's gradient say when the backward pass comes."""
        module = call.plan.ref()
        if not self.due or call.phase != "train" or call.again or call.traced or module is None or is_capturing():
            return
        with unseen():
            for slots in _slots_of(module, backward=False):
                self._add(call.plan, slots, slots.history[0])
        for _, tensor in call.tensors:
            if tensor.requires_grad and not tensor.is_leaf:
                hook_gradient(tensor, _ScaleHook(self, call.plan))
                break

    def saw_arriving(self, plan: Plan) -> None:
        """Note the scales of the cast that comes, from inside the hook of a gradient; let no exception out."""
        module = plan.ref()
        if not self.due or module is None or not self._current.captured or not self._current.reach():
            return
        try:
            with DisableTorchFunction(), unseen():
                self._finish(plan.path)
                found = [each._replace(scale=each.scale.clone()) for each in _slots_of(module, backward=True)]
                self._before[plan.path] = plan, found
        except Exception as error:
            self._errors.record("scales of float8", error, plan)

    def before_step(self, owned: Sequence[Parameter]) -> None:
        """Read the scales of weights, before the optimizer changes these."""
        for parameter in owned:
            tensor = parameter.tensor
            known = None if tensor is None else _ahead_of(tensor)
            if known is not None:
                values, scale, largest = known
                with unseen():
                    history = values.abs().amax().float().reshape(1, 1)
                    slots = _Slots("weight", scale.reshape(-1)[:1], history, largest)
                    self._add(parameter.plan, slots, history[0])

    def end_step(self) -> None:
        """Read what the last backward pass was cast with."""
        with unseen():
            for path in list(self._before):
                self._finish(path)

    def _finish(self, path: str) -> None:
        plan, found = self._before.pop(path, (None, ()))
        for slots in found if plan is not None else ():
            self._add(plan, slots, slots.newest())

    def _add(self, plan: Any, slots: _Slots, newest: Tensor) -> None:
        """Add the numbers of a cast to the rows of its module. A cast that isn't there has none: it counts as NaN."""
        amax = torch.where(newest > 0, newest, torch.nan)
        found: Iterable[tuple[str, Tensor]] = (("scale", slots.scale), ("amax", amax))
        if slots.largest is not None:
            found = (*found, ("reach", amax * (slots.scale / slots.largest)))
        for name, values in found:
            slot = self._statistics.table.add(Tap(plan.path, PROBE, f"{FLOAT8} {name} {slots.role}"))
            if slot >= 0:
                self._statistics.add(plan, values.contiguous(), slot)


class _ScaleHook:
    """The hook on the gradient of an output, which a backward pass of the module is about to cast."""

    __slots__ = ("_plan", "_scales")
    __torch_unserializable__ = True

    def __init__(self, scales: Float8Scales, plan: Plan) -> None:
        self._scales, self._plan = scales, plan

    def __call__(self, gradient: Any) -> None:
        self._scales.saw_arriving(self._plan)
