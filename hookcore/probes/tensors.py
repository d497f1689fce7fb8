"""Functions of a tensor for `watcher.probe`.

They change nothing, draw no random numbers, and return a number or a 1-D tensor. Where a tensor has channels, they are
its second dimension if it has more than three (as in N, C, H, W), else its last (as in N, T, C).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

MAX_ROWS: Final = 512  # of the matrix whose rank is computed
MAX_CHANNELS: Final = 4096  # as many numbers as a probe may return


class PerChannel:
    """A function with one number for each channel; of more than 4,096 channels, the largest one of each group."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the numbers."""
        values = self._function(_by_channel(tensor))
        group = -(-len(values) // MAX_CHANNELS) or 1
        if group == 1:
            return values
        padded = torch.nn.functional.pad(values, (0, -len(values) % group), value=-torch.inf)
        return padded.reshape(-1, group).amax(dim=1)

    def channels(self, tensor: Tensor) -> int:
        return len(_by_channel(tensor))


def effective_rank(tensor: Tensor) -> Tensor:
    """Return in how many directions the vectors of a tensor vary: e to the entropy of its normalized singular values.

    1 means that all vectors are multiples of one, and the number of features that they use all directions alike; NaN
    that a value is not finite, or all are zero. The vectors are the tensor's last dimension, or its channels; of many,
    512 evenly spaced ones are used.
    """
    rows = _vectors(tensor)
    rows = rows[:: max(1, -(-len(rows) // MAX_ROWS))]
    rows = rows[:, :: max(1, -(-rows.shape[1] // MAX_ROWS))]
    values = torch.linalg.svdvals(rows.nan_to_num(0.0, 0.0, 0.0))
    shares = values / values.sum()
    rank = torch.special.entr(shares).sum().exp()
    return torch.where(torch.isfinite(rows).all(), rank, torch.nan)


def saturation(tensor: Tensor, low: float = -0.97, high: float = 0.97) -> Tensor:
    """Return the share of values outside of a range, as those of a tanh that hardly lets a gradient through.

    For a sigmoid, use `functools.partial(saturation, low=0.03)`.
    """
    return ((tensor < low) | (tensor > high)).float().mean()


def dead_channels(tensor: Tensor) -> Tensor:
    """Return the share of channels that are zero everywhere."""
    return (_by_channel(tensor) == 0).all(dim=1).float().mean()


@PerChannel
def channel_rms(channels: Tensor) -> Tensor:
    """Return the root mean square of each channel of a tensor."""
    return channels.float().pow(2).mean(dim=1).sqrt()


@PerChannel
def channel_zeros(channels: Tensor) -> Tensor:
    """Return the share of each channel's values that are zero: 1 for a dead channel."""
    return (channels == 0).float().mean(dim=1)


def attention_entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy of each head's attention, as a share of the largest possible: 0 looks at one token only.

    `weights` are probabilities: batch, heads, queries, keys. Without a dimension of heads, one number is returned.
    """
    keys = weights.shape[-1]
    entropy = torch.special.entr(weights.float()).sum(dim=-1) / torch.tensor(float(max(2, keys))).log()
    if entropy.dim() < 3:
        mean: Tensor = entropy.mean()
        return mean
    heads: Tensor = entropy.transpose(0, -2).reshape(entropy.shape[-2], -1).mean(dim=1)
    return heads


def _vectors(tensor: Tensor) -> Tensor:
    wide = tensor.float()
    if wide.dim() > 3:  # channels of pictures
        wide = wide.movedim(1, -1)
    return wide.reshape(-1, wide.shape[-1]) if wide.dim() > 1 else wide.reshape(1, -1)


def _by_channel(tensor: Tensor) -> Tensor:
    """Return one row for each channel."""
    place = 1 if tensor.dim() > 3 else -1
    return tensor.movedim(place, 0).flatten(1) if tensor.dim() > 1 else tensor.reshape(-1, 1)
