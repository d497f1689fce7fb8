"""What a step's results depend on besides the model and its arguments."""

from __future__ import annotations

import importlib
import platform
import random
import sys
from typing import Any

import torch


def device_generators() -> dict[str, Any]:
    """Return the states of torch's random number generators. Reading them waits for no device."""
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def generators() -> dict[str, Any]:
    """Return the states of all random number generators."""
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


def versions() -> dict[str, str]:
    """Return what results to the bit depend on."""
    on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    device = torch.cuda.get_device_name() if on_cuda else platform.machine()
    return {
        "hookcore": importlib.import_module("hookcore").__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": device,
        "threads": str(torch.get_num_threads()),
    }


def autocast_types() -> dict[str, torch.dtype]:
    """Return the type of each device for which autocast is on."""
    return {device: torch.get_autocast_dtype(device) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)}
