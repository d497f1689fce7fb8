"""The demo's two networks, with a few thousand weights each."""

from __future__ import annotations

from typing import Final, cast

import torch
from torch import Tensor, nn

from hookcore.commands.demo.digits import CLASSES, SIDE

WIDTH: Final = 16  # channels of the CNN
TOKEN: Final = 32  # size of a token of the transformer
DEPTH: Final = 6


class Standardize(nn.Module):
    """Gives every image mean 0 and standard deviation 1. A uniform image has no standard deviation to divide by."""

    def forward(self, pictures: Tensor) -> Tensor:
        deviation, mean = torch.std_mean(pictures, dim=(1, 2, 3), keepdim=True)
        return (pictures - mean) / deviation


class ConvBlock(nn.Module):
    """A convolution and a ReLU with a skip connection; the plain variant has neither skip connection nor norm."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.Identity() if plain else nn.GroupNorm(4, WIDTH)
        self.relu = nn.ReLU()
        self.plain = plain

    def forward(self, features: Tensor) -> Tensor:
        found = cast(Tensor, self.relu(self.norm(self.conv(features))))
        return found if self.plain else features + found


class DigitsCNN(nn.Module):
    """Convolutions, pooling at half depth, and a linear head."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.standardize = Standardize()
        self.stem = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(plain) for _ in range(DEPTH)))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(WIDTH * (SIDE // 2) ** 2, CLASSES)
        _start(self)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return a score for each digit."""
        features = self.blocks(self.stem(self.standardize(pictures)))
        return cast(Tensor, self.head(self.pool(features).flatten(1)))


class AttentionBlock(nn.Module):
    """Attention and an MLP, each with a skip connection; the plain variant has neither skip connections nor norms."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.norm1 = nn.Identity() if plain else nn.LayerNorm(TOKEN)
        self.attention = nn.MultiheadAttention(TOKEN, 4, batch_first=True)
        self.norm2 = nn.Identity() if plain else nn.LayerNorm(TOKEN)
        self.wide = nn.Linear(TOKEN, 2 * TOKEN)
        self.relu = nn.ReLU()
        self.narrow = nn.Linear(2 * TOKEN, TOKEN)
        self.plain = plain

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        mixed, _ = self.attention(normed, normed, normed, average_attn_weights=False)
        tokens = mixed if self.plain else tokens + mixed
        found = cast(Tensor, self.narrow(self.relu(self.wide(self.norm2(tokens)))))
        return found if self.plain else tokens + found


class DigitsTransformer(nn.Module):
    """Sixteen patches of 2 by 2 pixels that attend to each other."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.standardize = Standardize()
        self.cut = nn.Unfold(2, stride=2)
        self.embed = nn.Linear(4, TOKEN)
        self.places = nn.Parameter(torch.zeros((SIDE // 2) ** 2, TOKEN))
        self.blocks = nn.Sequential(*(AttentionBlock(plain) for _ in range(DEPTH // 2)))
        self.head = nn.Linear(TOKEN * (SIDE // 2) ** 2, CLASSES)
        _start(self)
        nn.init.normal_(self.places, std=0.5)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return a score for each digit."""
        tokens = self.embed(self.cut(self.standardize(pictures)).transpose(1, 2)) + self.places
        return cast(Tensor, self.head(self.blocks(tokens).flatten(1)))


MODELS: Final = {"cnn": DigitsCNN, "transformer": DigitsTransformer}
CALLED: Final = {"cnn": "CNN", "transformer": "transformer"}


def _start(model: nn.Module) -> None:
    """Initialize the weights so that signals keep their scale through ReLUs."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
