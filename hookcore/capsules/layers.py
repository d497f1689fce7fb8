"""The layers of a replayed step: what each of them returned, and the gradients that arrived, in their order."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore import hooks
from hookcore.hooks.internals import next_node_number, node_number
from hookcore.observe.plain import make_plain, unseen
from hookcore.recorder.outputs import find_tensors
from hookcore.records.replayed import MAX_LAYERS, ReplayedTap

_FED: Final = 2  # finite tensors right before the first bad one of a pass


class Layers:
    """Hooks on all modules of a model, for one run of it."""

    def __init__(self, model: nn.Module) -> None:
        self._seen: list[ReplayedTap] = []
        self._running: list[str] = []
        self._calls: dict[str, int] = {}
        self._nodes: list[
            tuple[int, int, str]
        ] = []  # the numbers of autograd's nodes that a call made; inner ones first
        self._begun: list[int] = []
        self._handles: list[hooks.HookHandle] = []
        for path, module in model.named_modules():
            try:
                self._handles += [
                    hooks.on_forward_pre(module, partial(self._enter, path)),
                    hooks.on_forward(module, partial(self._leave, path)),
                ]
            except (RuntimeError, AttributeError):  # a scripted module takes no hook
                continue

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def module_of(self, node: Any) -> str:
        """Return the innermost module that runs now, or that made a node of autograd."""
        if node is None:
            return self._running[-1] if self._running else ""
        number = node_number(node)
        return next((path for first, last, path in self._nodes if first <= number < last), "")

    def found(self) -> tuple[ReplayedTap, ...]:
        """Return all affected tensors in their order, each pass with the finite ones right before its first."""
        chosen: list[ReplayedTap] = []
        for kind in ("output", "output_grad"):
            taps = [each for each in self._seen if each.kind == kind]
            first = next((place for place, each in enumerate(taps) if each.is_bad), None)
            if first is not None:
                chosen += taps[max(0, first - _FED) : first]
                chosen += [each for each in taps[first:] if each.is_bad]
        return tuple(chosen[:MAX_LAYERS])

    def _enter(self, path: str, *_: Any) -> None:
        self._running.append(path)
        self._begun.append(_next_number())

    def _leave(self, path: str, _module: nn.Module, _args: Any, output: Any) -> None:
        while self._running and self._running.pop() != path:  # modules that raised
            self._begun.pop()
        self._nodes.append((self._begun.pop() if self._begun else 0, _next_number(), path))
        call = self._calls[path] = self._calls.get(path, -1) + 1
        for index, tensor in find_tensors(output):
            if type(tensor) is not Tensor:  # to read an attribute of a subclass may run the user's code
                continue
            self._add(path, "output", index, call, tensor)
            if tensor.requires_grad and tensor.grad_fn is not None:
                self._handles.append(hooks.on_gradient(tensor, partial(self._saw_gradient, path, index, call)))

    def _saw_gradient(self, path: str, index: str, call: int, gradient: Tensor | None) -> None:
        if gradient is None:  # of a tensor that the results don't depend on
            return
        self._add(path, "output_grad", index, call, gradient)

    def _add(self, path: str, kind: str, index: str, call: int, tensor: Tensor) -> None:
        with unseen():
            plain = make_plain(tensor)
            if isinstance(plain, Tensor) and plain.numel():
                self._seen.append(ReplayedTap(path, kind, index, call, _measured(plain)))


def _measured(tensor: Tensor) -> tuple[float, ...]:
    values = (tensor.abs() if tensor.is_complex() else tensor).detach().reshape(-1).to("cpu", torch.float64)
    finite = values[torch.isfinite(values)]
    counts = values.numel(), int(values.isnan().sum()), int(values.isinf().sum()), int((values == 0).sum())
    if not finite.numel():
        return (*map(float, counts), *[float("nan")] * 6)
    mean, square = float(finite.mean()), float((finite * finite).mean())
    std, norm = float(finite.std(unbiased=False)), float(finite.norm())
    return (*map(float, counts), mean, std, float(finite.min()), float(finite.max()), square**0.5, norm)


def _next_number() -> int:
    return 0 if next_node_number is None else next_node_number()
