"""The training machine: its processors, memory, disks, network, and GPUs, sampled by a separate thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hookcore.records.vocabulary import (
    CPU_MACHINE,
    CPU_PROCESS,
    DISK_READ,
    DISK_WRITTEN,
    MACHINE_LABEL,
    MEMORY_MACHINE,
    MEMORY_PROCESS,
    NET_RECEIVED,
    NET_SENT,
    SENSORS_LABEL,
    SYSTEM,
)

# A sample of the machine, and the mean of several.


@dataclass(frozen=True, slots=True)
class Sample:
    """Numbers by the name of their scalar, and facts in words, which readers of the numbers need."""

    numbers: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


class Mean:
    """The mean of each number in the samples so far; a number that some samples lack is the mean of the others."""

    __slots__ = ("_counts", "_facts", "_sums")

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._facts: dict[str, str] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        for name, number in sample.numbers.items():
            self._sums[name] = self._sums.get(name, 0.0) + number
            self._counts[name] = self._counts.get(name, 0) + 1
        self._facts |= sample.facts

    def take(self) -> Sample:
        """Return the mean, and begin again."""
        taken = Sample({name: total / self._counts[name] for name, total in self._sums.items()}, self._facts)
        self._sums, self._counts, self._facts = {}, {}, {}
        return taken


# The GPUs that this process uses: torch's allocator, and the sensors that NVML reads.

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


# Processors, memory, disks, and network of this process and of its machine, read with psutil.

_BUSY: Final = ("user", "nice", "system", "irq", "softirq", "steal", "interrupt", "dpc")  # "guest" is part of "user"
_LOOPBACK: Final = ("lo", "lo0", "Loopback Pseudo-Interface 1")


class Host:
    """Reads what psutil knows. What this system doesn't have, such as counters of disks, is left out."""

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self._process = psutil.Process()
        self._counters: dict[str, float] = {}  # of the last reading; they only grow
        self._read_at = 0.0
        self._reported = False

    def read(self, now: float) -> Sample:
        """Return what holds now, and the rates since the last reading; the first one has no rates."""
        counters: dict[str, float] = {}
        numbers: dict[str, float] = {}
        for read, taken in (
            (self._read_processors, counters),
            (self._read_disks, counters),
            (self._read_network, counters),
            (self._read_memory, numbers),
        ):
            with contextlib.suppress(self._psutil.Error, NotImplementedError, AttributeError, OSError):
                read(taken)
        elapsed, last = now - self._read_at, self._counters
        self._counters, self._read_at = counters, now
        if last and elapsed > 0:  # a counter that shrank began again: its device is another one
            rates = {name: (counters[name] - last[name]) / elapsed for name in counters if name in last}
            numbers |= {name: rate for name, rate in rates.items() if rate >= 0}
        return Sample(numbers, self._facts())

    def _read_processors(self, counters: dict[str, float]) -> None:
        own, all_times = self._process.cpu_times(), self._psutil.cpu_times()
        counters[CPU_PROCESS] = own.user + own.system
        counters[CPU_MACHINE] = sum(getattr(all_times, name, 0.0) for name in _BUSY)

    def _read_disks(self, counters: dict[str, float]) -> None:
        disks = self._psutil.disk_io_counters()
        if disks is not None:
            counters[DISK_READ], counters[DISK_WRITTEN] = float(disks.read_bytes), float(disks.write_bytes)

    def _read_network(self, counters: dict[str, float]) -> None:
        cards = [each for name, each in self._psutil.net_io_counters(pernic=True).items() if name not in _LOOPBACK]
        if cards:
            counters[NET_RECEIVED] = float(sum(card.bytes_recv for card in cards))
            counters[NET_SENT] = float(sum(card.bytes_sent for card in cards))

    def _read_memory(self, numbers: dict[str, float]) -> None:
        numbers[MEMORY_PROCESS] = float(self._process.memory_info().rss)
        memory = self._psutil.virtual_memory()
        numbers[MEMORY_MACHINE] = float(memory.total - memory.available)

    def _facts(self) -> dict[str, str]:
        """Say once how large the machine is."""
        if self._reported:
            return {}
        self._reported = True
        cores, memory = self._psutil.cpu_count(), self._psutil.virtual_memory().total
        return {MACHINE_LABEL: f"{cores} cores, {memory / 1e9:.3g} GB of memory"}


def open_host() -> Callable[[float], Sample]:
    """Return the reader of this machine. Raise ImportError without psutil."""
    import psutil

    return Host(psutil).read


EVERY_S: Final = 2.0
FIRST_S: Final = 0.25  # before the first samples, so that a short training has some; then twice as long each time
REST: Final = 100  # between two samples, in multiples of the time that a sample took
CLOSE_S: Final = 0.5
MAX_FAILURES: Final = 3  # of a source one after the other, before it is given up

Read = Callable[[float], Sample]  # what holds now, given the time in seconds
Open = Callable[[], Read]  # is called on the thread, because opening a source may import or wait


class Sampler:
    """Reads sources every two seconds, and keeps the mean of samples that were not taken yet. `take` never waits.

    Calls `failed` with a failed source and the reason. A source that can't be opened or that keeps failing is dropped.
    """

    def __init__(
        self,
        sources: Sequence[Open],
        failed: Callable[[str, Exception], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sources = sources
        self._failed = failed
        self._now = clock
        self._reads: dict[Read, int] = {}  # with the failures since it last succeeded
        self._mean = Mean()
        self.lock = threading.Lock()  # held while a sample is added
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookcore-machine", daemon=True)
        self.has_news = False
        self.spent_s = 0.0  # processor time of the thread

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def take(self) -> Sample | None:
        """Return the mean of the samples since the last call, or None if there is none. Never waits."""
        if not self.has_news or not self.lock.acquire(blocking=False):
            return None
        try:
            self.has_news = False
            return self._mean.take()
        finally:
            self.lock.release()

    def close(self) -> None:
        """End the thread. Wait for a sample that it takes just now, but not for a sensor that doesn't answer."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def open(self) -> None:
        """Open the sources. Called by the thread."""
        for source in self._sources:
            try:
                self._reads[source()] = 0
            except Exception as error:
                self._failed("opening a source of system metrics", error)

    def sample(self) -> None:
        """Read every source once. Called by the thread."""
        for read in list(self._reads):
            try:
                found = read(self._now())
                self._reads[read] = 0
            except Exception as error:
                self._failed("reading system metrics", error)
                self._reads[read] += 1
                if self._reads[read] >= MAX_FAILURES:
                    del self._reads[read]
                continue
            if found.numbers or found.facts:
                with self.lock:
                    self._mean.add(found)
                    self.has_news = True

    def _run(self) -> None:
        self.open()
        pause = FIRST_S
        while self._reads and not self._stopping.is_set():
            began = self._now()
            self.sample()
            self.spent_s = time.thread_time()
            if self._stopping.wait(max(pause, REST * (self._now() - began))):
                return
            pause = min(EVERY_S, 2 * pause)
