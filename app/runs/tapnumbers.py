"""The taps of all ranks of a training, numbered in the order in which the ranks bring them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import ACTIVATION_KINDS, PARAMETER_KINDS, Kind, Tap

LOCAL_KINDS: Final[frozenset[Kind]] = frozenset(("output_grad", "input_grad"))


class TapNumbers:
    """The numbers of taps in the sum of all ranks, and which of them have no sum. Not thread-safe."""

    def __init__(self) -> None:
        self.left_out = np.zeros(0, bool)  # taps of modules that are something else in each rank
        self.of_batches = np.zeros(0, bool)  # taps of activations and their gradients
        self._numbers: dict[Tap, int] = {}
        self._new: list[Tap] = []
        self._parted: frozenset[str] = frozenset()  # modules that are something else in each rank

    def part(self, paths: frozenset[str]) -> None:
        """Leave out the outputs and inputs of modules that consist of different parts in different ranks."""
        if paths != self._parted:
            self._parted = paths
            self.left_out = np.array([self.leaves_out(tap) for tap in self._numbers], bool)

    def leaves_out(self, tap: Tap) -> bool:
        """Return whether a tap is something else in each rank, so that there is no sum."""
        return tap.module in self._parted and tap.kind not in PARAMETER_KINDS

    def add(self, taps: Sequence[Tap]) -> list[int]:
        """Return the numbers of a rank's taps, which are new if no other rank has them."""
        for tap in taps:
            if tap not in self._numbers:
                self._numbers[tap] = len(self._numbers)
                self._new.append(tap)
        fresh = [*self._numbers][len(self.left_out) :]
        self.left_out = np.append(self.left_out, [self.leaves_out(tap) for tap in fresh]).astype(bool)
        batches = [tap.kind in ACTIVATION_KINDS for tap in fresh]
        self.of_batches = np.append(self.of_batches, batches).astype(bool)
        return [self._numbers[tap] for tap in taps]

    def take_new(self) -> tuple[Tap, ...]:
        """Return the taps that were numbered since the last call."""
        taps, self._new = tuple(self._new), []
        return taps

    @property
    def local_gradients(self) -> dict[Kind, NDArray[np.int64]]:
        """The numbers of gradients of activations, by kind."""
        kinds: dict[Kind, list[int]] = {}
        for tap, number in list(self._numbers.items()):
            if tap.kind in LOCAL_KINDS:
                kinds.setdefault(tap.kind, []).append(number)
        return {kind: np.array(numbers, np.int64) for kind, numbers in kinds.items()}
