"""Handwritten digits of 8 by 8 pixels, as scikit-learn ships them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import torch
from torch import Tensor

from hookcore.errors import ArgumentError

SIDE: Final = 8
CLASSES: Final = 10
BATCH: Final = 64
_TESTED: Final = 297  # of the 1797 images, held out
_MOVES: Final = (-1, 0, 1)  # pixels


@dataclass(frozen=True, slots=True)
class Digits:
    """Images with values from 0 to 1, and the digit that each one shows."""

    pictures: Tensor
    labels: Tensor
    test_pictures: Tensor
    test_labels: Tensor


def load() -> Digits:
    """Load the digits, shuffled and split the same way every time."""
    try:
        found = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise ArgumentError(
            f"the demo's images come with scikit-learn, which cannot be imported ({error}): "
            "run `pip install scikit-learn`"
        ) from None
    pictures = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, rest = order[:_TESTED], order[_TESTED:]
    return Digits(pictures[rest], labels[rest], pictures[test], labels[test])


def batches(digits: Digits, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield endless batches. Each image is shifted by up to one pixel, so there is always something left to learn."""
    moved = torch.stack([digits.pictures.roll((down, right), (2, 3)) for down in _MOVES for right in _MOVES])
    while True:
        order = torch.randperm(len(digits.labels), generator=generator)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield moved[torch.randint(len(moved), (BATCH,), generator=generator), chosen], digits.labels[chosen]
