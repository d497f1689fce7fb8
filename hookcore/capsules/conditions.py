"""The conditions that a step's results depend on, in addition to the model and its arguments."""

from __future__ import annotations

import importlib
import platform

import torch


def versions() -> dict[str, str]:
    """Return the versions and settings that bit-for-bit results depend on."""
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
