"""A CPU that behaves like a device: what the sentinel looks at becomes known steps later, and never by waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from hookcore.capsules import keeper
from hookcore.observe import finite
from hookcore.observe.plain import unseen
from tests.inside import class_of, module_of

LATENESS: Final = 2  # later passes until a value is known,
IDLE_S: Final = 0.1  # or this time without one


class Device:
    """The state of a pretended device: how many passes were started, and after how many more one of them is done."""

    def __init__(self, lateness: int) -> None:
        self.lateness, self.started, self._last_s = lateness, 0, 0.0
        self.trains = threading.get_ident()
        self.waits: list[str] = []  # of the thread that trains, for values that were not known yet

    def finish(self) -> None:
        """Compute everything that was started."""
        self.lateness = 0

    def start(self) -> int:
        """Start a pass, and return its number."""
        self.started, self._last_s = self.started + 1, time.monotonic()
        return self.started

    def has_computed(self, number: int) -> bool:
        is_idle = time.monotonic() - self._last_s > IDLE_S
        return self.started - number >= self.lateness or (is_idle and self.lateness <= LATENESS)

    def wait_for(self, number: int, what: str) -> None:
        if threading.get_ident() == self.trains:
            self.waits += [] if self.has_computed(number) else [what]
        else:
            while not self.has_computed(number):
                time.sleep(0.001)


class Number:
    """A loss on its way to the host."""

    def __init__(self, device: Device, loss: Tensor, weight: Tensor) -> None:
        with unseen():
            self._device, self._number = device, float(loss * weight)
        self._started = device.start()

    @property
    def is_done(self) -> bool:
        return self._device.has_computed(self._started)

    def resolve(self) -> float:
        self._device.wait_for(self._started, "a loss")
        return self._number


class Reading:
    """Sums of magnitudes on their way to the host."""

    def __init__(self, device: Device, tensors: list[Tensor]) -> None:
        with unseen():
            self._sums = [float(each.detach().abs().sum(dtype=torch.float64)) for each in tensors]
        self._device, self._started = device, device.started  # of the same pass

    @property
    def is_done(self) -> bool:
        return self._device.has_computed(self._started)

    def finish(self) -> list[float]:
        self._device.wait_for(self._started, "gradients")
        return self._sums


@contextmanager
def late_device(monkeypatch: pytest.MonkeyPatch, lateness: int = LATENESS) -> Iterator[Device]:
    """Let the values of CPU tensors be known late, as if they were on a device."""
    device = Device(lateness)

    def number_of(loss: Any, weight: Any) -> Number | None:
        is_one = all(isinstance(each, Tensor) and each.numel() == 1 for each in (loss, weight))
        return Number(device, loss, weight) if is_one else None

    with monkeypatch.context() as patches:
        patches.setattr(finite.Tally, "sees", lambda self, tensor: False)
        sentinel = module_of("Sentinel")
        patches.setattr(class_of("Statistics"), "first_bad", lambda *_: None)
        patches.setattr(sentinel, "is_finite", lambda tensor: False)
        for module in (sentinel, keeper):
            patches.setattr(module, "is_elsewhere", lambda tensor: True)
        patches.setattr(sentinel, "start_reading", partial(Reading, device))
        patches.setattr(module_of("FoundLoss"), "_number", number_of)
        patches.setattr(module_of("FoundLoss"), "product_of", lambda *values: None)
        patches.setattr(module_of("Steady"), "product_of", lambda *_: None)
        yield device
