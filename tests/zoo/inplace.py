# mypy: disable-error-code="no-untyped-call"
"""Tensors that change after a module has returned them, or while it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Trial, noise, training, zoo


class Residual(nn.Module):
    """Adds its input to a child's output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(x))
        out += x
        return torch.relu_(out)


class IgnoredInPlace(nn.Module):
    """Uses only the effect of an in-place activation, not its result."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        torch.relu_(hidden)
        return self.last(hidden)


class Doubler(nn.Module):
    """Doubles its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sin()


class Viewer(nn.Module):
    """Returns a view of its child's output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out.view(-1, 4)


class ViewChanger(nn.Module):
    """Changes a child's view in place."""

    def __init__(self) -> None:
        super().__init__()
        self.viewer = Viewer()
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        view = self.viewer(x)
        view.mul_(3)
        return self.last(view)


class SliceWriter(nn.Module):
    """Overwrites a slice of a child's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        hidden[:, 0] = 0.5
        return self.last(hidden)


class Chunker(nn.Module):
    """Returns views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        out: Tensor = self.inner(x)
        return out.chunk(3, dim=-1)


class ChunkUser(nn.Module):
    """Uses two of three chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.chunker = Chunker()

    def forward(self, x: Tensor) -> Tensor:
        query, key, _ = self.chunker(x)
        product: Tensor = query @ key.T
        return product


class Scale(torch.autograd.Function):
    """An autograd Function that works in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


class DirtyFunction(nn.Module):
    """Runs an in-place Function on a child's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Any:
        return Scale.apply(self.first(x))


class Buffered(nn.Module):
    """Returns the same buffer at every call, with new values in it."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.register_buffer("cache", torch.zeros(5, 4))

    def forward(self, x: Tensor) -> tuple[Any, Tensor]:
        out = self.first(x)
        with torch.no_grad():
            self.cache.copy_(out)
        return out, self.cache


class Freed(nn.Module):
    """Frees the memory of a child's output before the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        out = self.last(hidden.exp())  # neither differentiates through `hidden`
        hidden.detach().untyped_storage().resize_(0)
        return out


@zoo()
def in_place_relu_after_a_module() -> Trial:
    return training(nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), noise(5, 6))


@zoo()
def in_place_dropout_after_batch_norm() -> Trial:
    layers = (
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Hardtanh(inplace=True),
        nn.Flatten(),
        nn.Linear(64, 3),
        nn.Dropout(0.3, inplace=True),
    )
    return training(nn.Sequential(*layers), noise(2, 3, 6, 6))


@zoo()
def residual_added_in_place() -> Trial:
    return training(nn.Sequential(Residual(), Residual()), noise(2, 3, 5, 5))


@zoo()
def result_of_in_place_relu_ignored() -> Trial:
    return training(IgnoredInPlace(), noise(5, 6))


@zoo()
def module_changes_its_input() -> Trial:
    return training(nn.Sequential(nn.Linear(6, 4), Doubler(), nn.Linear(4, 2)), noise(5, 6))


@zoo("no-twin")
def view_changed_in_place_afterwards() -> Trial:
    return training(ViewChanger(), noise(5, 6))


@zoo()
def slice_of_an_output_overwritten() -> Trial:
    return training(SliceWriter(), noise(5, 6))


@zoo()
def chunks_of_one_tensor_returned() -> Trial:
    return training(ChunkUser(), noise(5, 6))


@zoo()
def function_that_marks_its_input_dirty() -> Trial:
    return training(DirtyFunction(), noise(5, 6))


@zoo()
def same_buffer_returned_every_time() -> Trial:
    return training(Buffered(), noise(5, 6))


@zoo("no-twin")
def memory_of_an_output_freed_early() -> Trial:
    return training(Freed(), noise(5, 6))
