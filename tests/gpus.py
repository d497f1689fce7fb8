"""Simulated GPUs: what NVML and torch report about them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from hookcore.recorder.machine import Device

GIB: Final = 2**30


class NvmlError(Exception):
    """An error as NVML raises it."""


class Nvml:
    """The sensors of two GPUs. The second one has no fan, and doesn't report its power."""

    NVMLError = NvmlError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, known: Sequence[str] = ("GPU-a", "GPU-b")) -> None:
        self.known = known

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self.known:
            raise NvmlError("Not Found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(used=20 * GIB)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        if handle == "GPU-b":
            raise NvmlError("Not Supported")
        return 312_500

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        return 61


def device(index: int, uuid: str) -> Device:
    memory = {
        "allocated_bytes.all.current": 5 * GIB,
        "reserved_bytes.all.current": 8 * GIB,
        "allocated_bytes.all.peak": 7 * GIB,
        "num_alloc_retries": 2,
        "segment.all.current": 1,
    }
    return Device(index, "NVIDIA H100", uuid, 80 * GIB, memory)
