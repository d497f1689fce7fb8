"""Probes of gradients that remember: the cosine of successive ones, and their noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import torch
import torch.distributed
from torch import Tensor

MAX_SAMPLE: Final = 4096  # values of a tensor
MAX_SAMPLES: Final = 2**22  # values of all of a model's parameters
DECAY: Final = 0.9  # of the averages of the noise scale, with each result
_SCATTER: Final = 2654435761  # a prime near the golden section of 2**32: its multiples hit rows and columns evenly


class GradientCosine:
    """The cosine between a parameter's gradients in two successive steps: 1 if they agree, below 0 if they oppose.

    Of more than 4,096 values, a fixed sample of 4,096 is compared, which estimates it within about 0.02. NaN if a
    gradient is zero everywhere, or isn't finite. A sparse gradient has none.
    """

    in_a_row: ClassVar = 2  # steps that belong together; in each of them, the object gets its tensor once

    def __init__(self) -> None:
        self._previous: Tensor | None = None

    def __call__(self, gradient: Tensor) -> Tensor | None:
        """Return the cosine, or None for the first gradient."""
        now = sample(gradient, MAX_SAMPLE)
        previous, self._previous = self._previous, now
        if now is None or previous is None or previous.shape != now.shape or previous.device != now.device:
            return None
        product: Tensor = torch.dot(_unit(previous), _unit(now))
        return product.clamp(-1.0, 1.0)


class NoiseScale:
    """The simple noise scale of a model's gradients, in micro-batches: tr(S) / |G|² of McCandlish et al. (2018).

    If a step has far fewer micro-batches than that, its gradient is mostly noise. Both parts are estimated without
    bias, from the gradient of each micro-batch and from their mean, in steps with at least two backward passes on
    micro-batches of the same size. They are averaged over about the last ten results, because those of one step are
    very noisy. NaN if the gradient can't be told from noise. Of parameters with more than 4,096 values, a fixed sample
    is used.
    """

    def __init__(self) -> None:
        self._before: Tensor | None = None  # the pass
        self._marks: list[tuple[int, int]] = []  # which gradients there were before it
        self._sum: Tensor | None = None  # of the gradients of this step's passes
        self._squares: Tensor | None = None  # of their norms, summed
        self._passes = 0
        self._why = ""  # this step has no result
        self._averages: tuple[int, Tensor] | None = None  # the number of values; of noise and signal

    def begin_pass(self, parameters: Sequence[Tensor]) -> None:
        """Remember the gradients before a backward pass."""
        self._before, self._marks = self._read(parameters), _marks_of(parameters)

    def end_pass(self, parameters: Sequence[Tensor]) -> None:
        """Add what the pass has added."""
        before, now = self._before, self._read(parameters)
        self._before = None
        if before is None or now is None or self._marks == _marks_of(parameters):  # a pass of another model
            return
        if before.shape != now.shape or (self._sum is not None and self._sum.shape != now.shape):
            self._why = "its parameters changed within a step"
            return
        gradient = now - before
        square = gradient.square().sum(dtype=_wide(gradient))
        self._passes += 1
        self._sum = gradient if self._sum is None else self._sum + gradient
        self._squares = square if self._squares is None else self._squares + square

    def end_step(self) -> Tensor | str:
        """Return the noise scale, or why it is unknown."""
        passes, total, squares, why = self._passes, self._sum, self._squares, self._why
        self._before = self._sum = self._squares = None
        self._passes, self._why = 0, ""
        if _ranks() > 1:
            return "gradients of several ranks (torch.distributed) aren't supported"
        if why or total is None or squares is None or passes < 2:
            return (
                why or "it needs steps that accumulate the gradients of several micro-batches, each in a backward pass"
            )
        small = squares / passes
        big = (total / passes).square().sum(dtype=small.dtype)
        noise = (small - big) * passes / (passes - 1)
        signal = (passes * big - small) / (passes - 1)
        new = torch.stack([noise, signal]) / small  # so that neither the loss scale nor a large step counts more
        if self._averages is None or self._averages[0] != total.numel() or self._averages[1].device != new.device:
            self._averages = total.numel(), torch.zeros_like(new)
        count, old = self._averages
        average = torch.where(torch.isfinite(new).all(), old * DECAY + new, old)
        self._averages = count, average
        return torch.where(average[1] > 0, average[0] / average[1], torch.nan)

    def _read(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """Return the gradients as one vector. Samples are weighted: sums of squares stand for all values."""
        most = max(64, min(MAX_SAMPLE, MAX_SAMPLES // max(1, len(parameters))))
        parts = []
        for parameter in parameters:
            count = min(most, parameter.numel())
            if parameter.grad is None:
                parts.append(torch.zeros(count, device=parameter.device))
                continue
            part = sample(parameter.grad, most)
            if part is None or len(part) != count:
                self._why = "sparse, complex, or sharded gradients aren't supported"
                return None
            parts.append(part * (parameter.numel() / max(1, count)) ** 0.5)
        return torch.cat(parts) if parts else None


def _marks_of(parameters: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return what changes if a gradient does; reading it waits for no device."""
    return [(id(each.grad), -1 if each.grad is None else each.grad._version) for each in parameters]


def _ranks() -> int:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 1


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the type for sums: double precision, where the device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def sample(tensor: Tensor, most: int) -> Tensor | None:
    """Return a flat copy of a tensor, or of `most` of its values, always those at the same places.

    A sparse tensor has none.
    """
    tensor = getattr(tensor, "_local_tensor", tensor)  # this rank's shard
    if tensor.layout is not torch.strided:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    count = tensor.numel()
    if count <= most:
        return tensor.detach().reshape(-1).to(torch.float32, copy=True)
    places = torch.arange(most, device=tensor.device) * _SCATTER % count
    return tensor.detach().take(places).float()


def _unit(vector: Tensor) -> Tensor:
    """Return a vector of length 1. It is scaled first, because squares of tiny values would be zero."""
    scaled = vector / vector.abs().amax()
    unit: Tensor = scaled / torch.linalg.vector_norm(scaled)
    return unit
