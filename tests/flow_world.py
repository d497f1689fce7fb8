# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Small models whose data flow is known, and a watcher that learns it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import hookcore


def watch(model: nn.Module | None, **settings: Any) -> hookcore.Watcher:
    return hookcore.watch(model, **{"server": None, "budget": None, **settings})


def batch() -> Tensor:
    return torch.randn(3, 4)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.act(self.a(x)))


class BasicBlock(nn.Module):
    """A block as in torchvision: it adds in place, and runs the same activation twice."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, wide, 3, padding=1), nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide)
        self.downsample = nn.Sequential(nn.Conv2d(width, wide, 1), nn.BatchNorm2d(wide)) if width != wide else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        last: Tensor = self.relu(out)
        return last


class Mask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1)
