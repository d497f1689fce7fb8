"""Processors, memory, disks, and network of this process and of its machine, read with psutil."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from hookcore.recorder.machine.samples import Sample
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
)

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
            counters[NET_RECEIVED] = float(sum(each.bytes_recv for each in cards))
            counters[NET_SENT] = float(sum(each.bytes_sent for each in cards))

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
