"""The GPUs that this process uses: torch's allocator, and the sensors that NVML reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hookcore.recorder.machine.samples import Sample
from hookcore.records.vocabulary import MACHINE_LABEL, SENSORS_LABEL, SYSTEM

MAX_DEVICES: Final = 16
_MISSING: Final = "not read: the package nvidia-ml-py is not installed"

# What torch calls a statistic of its allocator, and what we call it.
ALLOCATOR: Final = {
    "allocated_bytes.all.current": "allocated",
    "reserved_bytes.all.current": "reserved",
    "allocated_bytes.all.peak": "peak",
    "num_alloc_retries": "retries",
}


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as torch knows it. `memory` is the allocator's statistics."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    memory: Mapping[str, Any]


class Gpus:
    """Reads the devices that torch reports. Without NVML, only the allocator's statistics, and a fact says why.

    `open_nvml` returns the module pynvml, initialized. It is called when there is a first device.
    """

    def __init__(self, devices: Callable[[], Sequence[Device]], open_nvml: Callable[[], Any]) -> None:
        self._devices = devices
        self._open_nvml = open_nvml
        self._nvml: Any = None
        self._opened = False
        self._handles: dict[int, Any] = {}  # None if NVML doesn't know the device

    def read(self, now: float) -> Sample:
        """Return what holds now."""
        found = Sample()
        for device in self._devices()[:MAX_DEVICES]:
            prefix = f"{SYSTEM}gpu{device.index}/"
            for name, ours in ALLOCATOR.items():
                if name in device.memory:
                    found.numbers[prefix + ours] = float(device.memory[name])
            if device.index not in self._handles:
                self._handles[device.index] = self._meet(device, found.facts)
            if self._handles[device.index] is not None:
                self._sense(prefix, self._handles[device.index], found.numbers)
        return found

    def _meet(self, device: Device, facts: dict[str, str]) -> Any:
        """Return NVML's handle of a device, and say what the device is, or why its sensors aren't read."""
        facts[f"{MACHINE_LABEL} gpu{device.index}"] = f"{device.name}, {device.total_bytes / 1e9:.3g} GB"
        try:
            if not self._opened:
                self._opened = True
                self._nvml = self._open_nvml()
            # torch numbers the devices that CUDA_VISIBLE_DEVICES lets it see, and NVML those of the machine.
            return None if self._nvml is None else self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        except ImportError:
            facts[SENSORS_LABEL] = _MISSING
        except Exception as error:  # no driver, or a part of a GPU (MIG) that NVML doesn't know by this name
            facts[SENSORS_LABEL] = f"not read: {error}"
        return None

    def _sense(self, prefix: str, handle: Any, numbers: dict[str, float]) -> None:
        """Read each sensor that this device has."""
        nvml = self._nvml
        sensors: dict[str, Callable[[], float]] = {
            "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        for name, read in sensors.items():
            with contextlib.suppress(nvml.NVMLError):
                numbers[prefix + name] = float(read())


def open_nvml() -> Any:
    """Return the module pynvml, initialized. Raise ImportError without it, and NVMLError without a driver."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml
