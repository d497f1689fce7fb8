"""What torch and the steps say about the machine: the GPUs in use, and the speed of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import torch

from hookcore.recorder.known.roots import Root
from hookcore.recorder.machine import Device, Gpus, Sample, Sampler, open_host, open_nvml
from hookcore.records.vocabulary import EVALUATED, SAMPLES_RATE, STEPS_RATE, TOKENS_RATE

_IN_USE: Final = "reserved_bytes.all.peak"


def cuda_devices() -> list[Device]:
    """Return the GPUs on which torch has reserved memory in this process. Initializes nothing."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.memory_stats(index)
        if memory.get(_IN_USE, 0):
            known = torch.cuda.get_device_properties(index)
            found.append(Device(index, known.name, f"GPU-{known.uuid}", known.total_memory, memory))
    return found


class Ended(NamedTuple):
    """How many steps have ended, and when the newest one did, in seconds."""

    steps: int = 0
    at: float = float("nan")


class Throughput:
    """Steps per second, and samples if the batch is known: the rows that the model was given in the newest step.

    A rate is a number of steps, divided by the time between the ends of the first and the last of them. So a step may
    take longer than the time between two samples of the machine. Of several models, the one that was given the fewest
    rows counts: a discriminator sees real and generated samples.
    """

    def __init__(self, ended: Callable[[], Ended], roots: Callable[[], Iterable[Root]]) -> None:
        self._ended, self._roots = ended, roots
        self._last = Ended()

    def read(self, _now: float) -> Sample:
        """Return the rates of the steps that have ended since the last call; none if no step has."""
        ended, last = self._ended(), self._last
        if ended.steps == last.steps:
            return Sample()
        self._last = ended
        if not last.steps or not ended.at > last.at:
            return Sample()
        rate = (ended.steps - last.steps) / (ended.at - last.at)
        given = [root for root in list(self._roots()) if root.samples]
        fewest = min(given, key=lambda root: root.samples, default=None)
        found = {STEPS_RATE: rate}
        if fewest is not None:
            found[SAMPLES_RATE] = rate * fewest.samples
            if fewest.tokens:
                found[TOKENS_RATE] = rate * fewest.tokens
        return Sample(found)


class Evaluations:
    """The seconds in which a model that trains was in evaluation mode.

    A sample stands for the time since the last one, so the training's thread reads no clock for it.
    """

    def __init__(self, roots: Callable[[], Iterable[Root]]) -> None:
        self._roots = roots
        self._last: float | None = None
        self._total_s = 0.0

    def read(self, now: float) -> Sample:
        """Return the seconds so far; none before the first evaluation."""
        last, self._last = self._last, now
        if last is not None and any(root.evaluates for root in list(self._roots())):
            self._total_s += now - last
        return Sample({EVALUATED: self._total_s}) if self._total_s else Sample()


def sampler_of(
    ended: Callable[[], Ended], roots: Callable[[], Iterable[Root]], failed: Callable[[str, BaseException], None]
) -> Sampler:
    """Return what samples the machine and the speed of the training, once it is started."""
    speed, evaluations = Throughput(ended, roots), Evaluations(roots)
    gpus = Gpus(cuda_devices, open_nvml)
    return Sampler((open_host, lambda: gpus.read, lambda: speed.read, lambda: evaluations.read), failed)
