"""One call of a model in an uncaptured step, held by reference: cheap enough for every step.

Nothing is copied but the state of the generator. What can't be held at this price is said in the capsule.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.capsules.arrival import Arrival
from hookcore.capsules.call import Call, Members, alias_of, aliases_in, bytes_of, has_data
from hookcore.capsules.conditions import autocast_types
from hookcore.capsules.numbers import Numbers
from hookcore.hooks.internals import any_autocast, dispatch_modes, function_modes
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe.generators import device_generators
from hookcore.observe.plain import unseen
from hookcore.recorder.outputs import find_tensors

HELD_BYTES: Final = 64 << 20  # of outputs and their gradients, if a call's arguments take less
_NORMS: Final = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_NUMBERS: Final = frozenset((int, float, bool, str, type(None)))
_PLAIN: Final = (Tensor, nn.Parameter)
_cpu: Final = torch.default_generator
_RESET: Final = (
    "the running statistics of batch norm start at 0 and 1: they weren't held, and in training mode the results don't "
    "depend on them"
)


class NotHeldError(Exception):
    """The reason why a call can't be held."""


class Held:
    """A call that was held. Torch's graph refers to it only weakly, so nothing outlives the step."""

    __slots__ = (
        "__weakref__",
        "args",
        "autocast",
        "generators",
        "gradients",
        "kwargs",
        "numbers",
        "outputs",
        "unkept",
        "updates",
        "versions",
    )

    def __init__(self, args: tuple[Any, ...], updates: int, numbers: Numbers) -> None:
        self.versions: list[tuple[str, Any, Tensor, int]] = []  # what it is, its place, and its version
        self.args = self._hold(args, "argument")
        self.kwargs: dict[str, Any] | None = None  # known when the call has returned
        self.updates = updates  # of any weights before
        self.numbers = numbers
        on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self.generators: Any = device_generators() if on_device else _cpu.get_state()
        self.autocast = autocast_types() if any_autocast() else {}
        self.outputs: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.unkept: list[str] = []

    def _hold(self, values: Any, what: str) -> Any:
        """Return the values to hold, and note the versions of their tensors, which changes in place increment."""
        for key, each in values.items() if type(values) is dict else enumerate(values):
            if type(each) in _PLAIN and not each.requires_grad and not each.is_inference():
                self.versions.append((what, key, each, each._version))
            elif type(each) not in _NUMBERS:
                return self._hold_nested(values, what)
        return values

    def _hold_nested(self, values: Any, what: str) -> Any:
        with unseen():
            for place, tensor in find_tensors(values):
                if not has_data(tensor):
                    raise NotHeldError("its arguments are of a custom tensor class, or the model is being traced")
                if not tensor.is_inference():
                    self.versions.append((what, place, tensor.detach(), tensor._version))
            return aliases_in(values)

    def returned(self, kwargs: dict[str, Any] | None, output: Any) -> None:
        """Hold the keyword arguments and the outputs, and wait for the gradients of these."""
        self.kwargs = self._hold(kwargs, "argument") if kwargs else kwargs
        if type(output) is Tensor and output.grad_fn is not None and not dispatch_modes() and not function_modes():
            if output.numel() * output.element_size() <= HELD_BYTES or self._is_small([output]):
                self.outputs[""] = output.detach()
                hook_gradient(output, Arrival(self, ""))
            return
        with unseen():
            outputs = [(place, each) for place, each in find_tensors(output) if has_data(each)]
            if not self._is_small([each for _, each in outputs]):
                return
            for place, each in outputs:
                self.outputs[place] = alias_of(each)
                if each.requires_grad and not each.is_leaf:
                    hook_gradient(each, Arrival(self, place))

    def _is_small(self, outputs: list[Tensor]) -> bool:
        limit, used = HELD_BYTES, bytes_of(outputs)
        if used > limit:
            limit = max(limit, bytes_of(each for _, each in find_tensors((self.args, self.kwargs))))
        if used > limit:
            self.unkept.append(f"the activations and their gradients, which take more than {limit >> 20} MiB")
        return used <= limit

    def saw_gradient(self, place: str, gradient: Tensor) -> None:
        """Hold the gradient that arrived at an output."""
        self.gradients[place] = alias = gradient.detach()
        if not alias.is_inference():
            self.versions.append(("activation gradient", place, alias, alias._version))

    def as_call(self, model: nn.Module, is_updated: bool, moved: Callable[[Container[str]], list[str]]) -> Call:
        """Return the call with all that a capsule needs. Called at most a few times in a run.

        `is_updated`: whether the weights were updated since. `moved` returns what to say of changed buffers.
        """
        members = Members(model)
        reset = {
            f"{path}.{name}" if path else name: value
            for path, module in model.named_modules()
            for name, value in _reset_statistics(module).items()
        }
        now = members.versions()
        generators = self.generators if isinstance(self.generators, dict) else {"cpu": self.generators}
        return Call(
            args=self.args,
            kwargs=self.kwargs or {},
            training={},  # a model is pickled with its modes
            buffers=reset,
            generators=generators,
            autocast=self.autocast,
            grad_enabled=True,
            members=members,
            weight_versions=[] if is_updated else now,
            versions={f"{what} {place}".rstrip(): (tensor, version) for what, place, tensor, version in self.versions},
            outputs=self.outputs,
            gradients=self.gradients,
            numbers=self.numbers,
            unkept=[*self.unkept, *moved(reset)],
            notes=[_RESET] if reset else [],
        )


def _reset_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of a batch norm in training mode as they are at first."""
    if not (isinstance(module, _NORMS) and module.training and module.track_running_stats):
        return {}
    found = {name: module._buffers.get(name) for name in ("running_mean", "running_var", "num_batches_tracked")}
    make = {"running_var": torch.ones_like}
    return {name: make.get(name, torch.zeros_like)(each) for name, each in found.items() if each is not None}
