"""Trainings that wait for some seconds, in a world in which the rule about it counts seconds instead of minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from torch import nn

from hookcore.recorder.clock import pace

from .case import Case, Training
from .models import mlp
from .trainings import classifier

AT: Final = 100
WAIT_S: Final = 8.0
_SHORT: Final = {"MIN_S": 3.0, "QUIET_S": 0.5, "LOOK_S": 0.3}


@contextmanager
def in_seconds() -> Iterator[None]:
    """Let a training count as stalled after three seconds."""
    usual = {name: getattr(pace, name) for name in _SHORT}
    try:
        for name, value in _SHORT.items():
            setattr(pace, name, value)
        yield
    finally:
        for name, value in usual.items():
            setattr(pace, name, value)


def _wait() -> None:
    threading.Event().wait(WAIT_S)


def save_checkpoint() -> None:
    """Wait, as for a slow disk."""
    _wait()


def _waiting(wait: Callable[[nn.Module], None]) -> Training:
    model = mlp()

    def before(number: int) -> None:
        if number == AT:
            wait(model)

    return classifier(model, before=before)


def _evaluate_quietly(model: nn.Module) -> None:
    model.eval()
    _wait()
    model.train()


def _compute(_: nn.Module) -> None:
    for _step in range(int(20 * WAIT_S)):
        threading.Event().wait(0.05)
        sum(range(10_000))


WAITING: Final = {"data that doesn't arrive": Case(lambda: _waiting(lambda _: _wait()), ("stalled-training",), at=AT)}
BUSY: Final = {
    "long evaluation": Case(lambda: _waiting(_evaluate_quietly)),
    "slow checkpoint": Case(lambda: _waiting(lambda _: save_checkpoint())),
    "long computation between two steps": Case(lambda: _waiting(_compute)),
}
