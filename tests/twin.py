# mypy: disable-error-code="no-untyped-call"
"""Twins: the same training recorded by torch's own hooks, without hookcore."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.harness import Key


@dataclass
class Twin:
    """The same model in another run, with every output cloned and its gradient retained by torch itself."""

    outputs: dict[Key, list[Tensor]]
    gradients: dict[Key, list[Tensor]]


class TwinHooks:
    """Plain hooks per module, without hookcore. They run after the hooks that the module already has.

    Each output is kept as a copy, and its gradient by `retain_grad`. The model continues with a clone, so that no
    in-place operation can change the tensor that the module returned.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._trained = model, model.training
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._calls: dict[str, int] = {}
        self._copies: dict[Key, list[Tensor]] = {}
        self._live: dict[Key, list[Tensor]] = {}
        self._handles = [module.register_forward_hook(self._saw) for module in model.modules()]

    def _saw(self, module: nn.Module, args: Any, output: Any) -> Any:
        path = self._paths.get(id(module))
        if path is None or self._model.training != self._trained:
            return None
        call = self._calls[path] = self._calls.get(path, -1) + 1
        return self._replaced(path, output, "", call)

    def _replaced(self, path: str, value: Any, place: str, call: int) -> Any:
        if isinstance(value, Tensor):
            return self._kept(path, value, place, call)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            names: Any = value._fields
            return type(value)(
                *(self._replaced(path, v, _in(place, n), call) for n, v in zip(names, value, strict=True))
            )
        if type(value) in (tuple, list):
            return type(value)(self._replaced(path, v, _in(place, i), call) for i, v in enumerate(value))
        if isinstance(value, dict):
            for name, item in list(value.items()):
                value[name] = self._replaced(path, item, _in(place, name), call)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            parts = {name: self._replaced(path, getattr(value, name), _in(place, name), call) for name in names}
            return dataclasses.replace(value, **parts)
        return value

    def _kept(self, path: str, tensor: Tensor, place: str, call: int) -> Tensor:
        self._copies.setdefault((path, "output", place, call), []).append(tensor.detach().clone())
        if not tensor.requires_grad or tensor.is_leaf or torch.is_inference_mode_enabled():
            return tensor
        tensor.retain_grad()
        self._live.setdefault((path, "output_grad", place, call), []).append(tensor)
        return tensor.clone()

    def end_backward(self) -> None:
        """Restart counting calls at zero."""
        self._calls.clear()

    def close(self) -> Twin:
        """Remove the hooks and return what they recorded."""
        for handle in self._handles:
            handle.remove()
        gradients = {
            key: [tensor.grad for tensor in tensors if tensor.grad is not None] for key, tensors in self._live.items()
        }
        return Twin(self._copies, {key: kept for key, kept in gradients.items() if kept})


def _in(place: str, name: Any) -> str:
    return f"{place}.{name}" if place else str(name)


@contextlib.contextmanager
def counting_backwards(hooks: TwinHooks) -> Iterator[None]:
    """Tell the twin when a backward pass of the training has ended."""
    backward = torch.autograd.backward

    def counted(*args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        hooks.end_backward()

    torch.autograd.backward = counted
    try:
        yield
    finally:
        torch.autograd.backward = backward


class OptimizerTwin:
    """Copies of an optimizer's inputs and of its result, made by torch's own hooks."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.steps: list[dict[tuple[str, str], Tensor]] = []
        self._handles = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]

    def _named(self, optimizer: Any) -> list[tuple[str, Tensor]]:
        stepped = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        return [(name, tensor) for name, tensor in self._model.named_parameters() if id(tensor) in stepped]

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        seen: dict[tuple[str, str], Tensor] = {}
        for name, tensor in self._named(optimizer):
            seen["param", name] = tensor.detach().clone()
            if tensor.grad is not None:
                seen["param_grad", name] = tensor.grad.detach().clone()
        self.steps.append(seen)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for name, tensor in self._named(optimizer):
            self.steps[-1]["update", name] = tensor.detach() - self.steps[-1]["param", name]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
