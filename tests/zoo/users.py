# mypy: disable-error-code="no-untyped-call"
"""The user's own hooks, in addition to hookcore's."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Trial, mlp, noise, training, zoo


class Adds:
    """A forward hook that replaces the output."""

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output + 1


class AddsBefore:
    """A forward pre-hook that replaces the input."""

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0] * 2,)


class Halves:
    """A full backward hook that replaces the gradient."""

    def __call__(self, module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return tuple(None if grad is None else grad * 0.5 for grad in grad_input)


class ScalesGradient(nn.Module):
    """Puts tensor hooks that replace the gradient on its child's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        hidden.register_hook(lambda grad: grad * 3)
        hidden.retain_grad()
        return self.last(hidden.sin())


class Keeps(nn.Module):
    """Keeps its last output, graph and all, until the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        out = self.inner(x)
        self.last = out
        return out


@zoo()
def users_forward_hook_replaces_the_output() -> Trial:
    model = mlp()
    model[0].register_forward_hook(Adds())
    return training(model, noise(5, 6))


@zoo()
def users_pre_hook_replaces_the_input() -> Trial:
    model = mlp()
    model[3].register_forward_pre_hook(AddsBefore())
    return training(model, noise(5, 6))


@zoo("no-twin")
def users_full_backward_hook() -> Trial:
    model = mlp()
    model[3].register_full_backward_hook(Halves())
    return training(model, noise(5, 6))


@zoo("no-twin")
def users_legacy_backward_hook() -> Trial:
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model[1].register_backward_hook(Halves())
    return training(model, noise(5, 6))


@zoo("no-twin")
def users_tensor_hooks() -> Trial:
    return training(ScalesGradient(), noise(5, 6))


@zoo()
def users_post_accumulate_hook() -> Trial:
    model = mlp()

    def halve(parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)

    model.get_parameter("0.weight").register_post_accumulate_grad_hook(halve)
    return training(model, noise(5, 6))


@zoo("no-twin")
def users_hooks_on_the_whole_process() -> Trial:
    from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook

    model, inputs = mlp(), noise(5, 6)
    trial = training(model, inputs)
    seen: list[str] = []

    def saw(module: nn.Module, args: Any, output: Any) -> None:
        seen.append(type(module).__name__)

    def step(number: int) -> Any:
        seen.clear()
        handles = [register_module_forward_hook(saw), register_module_full_backward_hook(saw)]
        try:
            loss = trial.step(number)
        finally:
            for handle in handles:
                handle.remove()
            torch.nn.modules.module._global_is_full_backward_hook = None  # torch itself doesn't reset it
        return loss, list(seen)

    return Trial(model, step)


@zoo()
def module_that_keeps_its_output() -> Trial:
    return training(nn.Sequential(Keeps(), nn.ReLU(inplace=False), nn.Linear(6, 2)), noise(5, 6))


@zoo()
def gradient_wanted_of_the_input() -> Trial:
    inputs = noise(5, 6).requires_grad_()
    trial = training(mlp(), inputs)

    def step(number: int) -> Any:
        inputs.grad = None
        return trial.step(number), inputs.grad, len(inputs._backward_hooks or ())

    return Trial(trial.model, step)


@zoo()
def one_dropout_mask_for_all() -> Trial:
    generator = torch.Generator().manual_seed(3)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Any:
            return self.first(x) * torch.bernoulli(torch.full((6,), 0.5), generator=generator)

    return training(Masked(), noise(5, 6))
