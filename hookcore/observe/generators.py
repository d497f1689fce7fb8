"""The states of the random number generators, so that hookcore's and the user's functions draw nothing from them."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def device_generators() -> dict[str, Any]:
    """Return the states of torch's generators. Reading them waits for no device."""
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def generators() -> dict[str, Any]:
    """Return the states of all generators."""
    states = {**device_generators(), "python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Set the states of the generators."""
    torch.set_rng_state(states["cpu"])
    if "python" in states:
        random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        importlib.import_module("numpy").random.set_state(states["numpy"])


@contextmanager
def generators_kept() -> Iterator[None]:
    """Set the generators back to where they were, after a block that may draw from them."""
    before = generators()
    try:
        yield
    finally:
        set_generators(before)
