"""The newest values of the machine, in words: of the System page, and in a line for the Overview."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hookcore.findings.keyfigures import Reading, newest_of
from hookcore.findings.times import PARTS
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
    SAMPLES_RATE,
    SENSORS_LABEL,
    STEPS_RATE,
    SYSTEM,
    TIME_FORWARD,
    TIME_LOADING,
    TOKENS_RATE,
)

from ...analysis.cost import run_rates
from ...analysis.numerals import duration, shown, size
from ...runs import JointRun, Run

Write = Callable[[float], str]
Detail = tuple[str, Write]  # the name of a scalar, and how its value is said

_GPU: Final = re.compile(re.escape(SYSTEM) + r"(gpu(\d+))/")


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value of the machine, and a line of detail."""

    key: str
    title: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the time of a step, and where it begins in a bar, in percent."""

    key: str
    words: str
    text: str
    share: str
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of the newest measured step, and its parts."""

    step: int
    text: str
    parts: tuple[Share, ...]

    @property
    def has_loading(self) -> bool:
        return any(part.words == PARTS[TIME_LOADING] for part in self.parts)

    @property
    def longest(self) -> Share:
        return max(self.parts, key=lambda part: part.width)


@dataclass(frozen=True, slots=True)
class Machine:
    """The newest values up to a step, and known facts about the machine."""

    gauges: tuple[Gauge, ...]
    names: tuple[str, ...]  # of all scalars of the page: those that are sampled, and the parts of steps
    step: int | None  # of the newest sample
    facts: tuple[str, ...]  # how large it is, and which GPUs it has
    missing: str  # why the GPUs' sensors aren't read
    time: StepTime | None

    @property
    def sampled(self) -> tuple[str, ...]:
        """The scalars that are sampled now and then; the parts of a step are measured at its end."""
        return tuple(name for name in self.names if name not in PARTS)


def machine_of(run: Run, first: int | None = None, last: int | None = None) -> Machine:
    """Return the samples of a run's machine in these steps."""
    names = tuple(name for name in run.reader.scalars().names if name.startswith(SYSTEM))
    read = {name: found for name in names if (found := newest_of(run.store, name, last, first)) is not None}
    rates = run_rates(run, first, last)
    speeds = {STEPS_RATE: rates.steps, SAMPLES_RATE: rates.samples, TOKENS_RATE: rates.tokens}
    values = {name: found.value for name, found in read.items() if name not in speeds}
    values |= {name: rate for name, rate in speeds.items() if rate is not None and name in read}
    gpus = sorted({(int(match[2]), match[1]) for name in names if (match := _GPU.match(name))})
    gauges = [
        *_speeds(values, _about_rates(run)),
        *(_gpu(values, number, gpu) for number, gpu in gpus),
        *_loads(values),
    ]
    labels = run.labels
    facts = [labels[MACHINE_LABEL]] if MACHINE_LABEL in labels else []
    facts += [f"GPU {number}: {labels[key]}" for number, gpu in gpus if (key := f"{MACHINE_LABEL} {gpu}") in labels]
    step = max((found.step for name, found in read.items() if name not in PARTS), default=None)
    shown = tuple(each for each in gauges if each is not None)
    return Machine(shown, names, step, tuple(facts), labels.get(SENSORS_LABEL, ""), _time_of(read))


def summary_of(run: Run, first: int | None = None, last: int | None = None) -> Gauge | None:
    """Return the value that says most about the machine in these steps, with others; None if nothing is known."""
    found = machine_of(run, first, last)
    by_key = {gauge.key: gauge for gauge in found.gauges}
    head = next((gauge for gauge in found.gauges if gauge.key.startswith("gpu")), by_key.get("cpu"))
    words = {"samples": "samples/s", "tokens": "tokens/s", "memory": "of memory"}
    others = [f"{by_key[key].text} {after}" for key, after in words.items() if key in by_key]
    if (time := found.time) is not None:
        part = f"{time.longest.share} of it {time.longest.words}{' work' if time.longest.key == 'other' else ''}"
        if head is None:
            return Gauge("machine", f"Time of step {time.step:,}:", time.text, ", ".join([part, *others]))
        others.append(f"{time.text} for step {time.step:,}, {part}")
    if head is None:
        return Gauge("machine", "", others[0], ", ".join(others[1:])) if others else None
    return Gauge("machine", head.title, head.text, ", ".join(others))


def _time_of(read: Mapping[str, Reading]) -> StepTime | None:
    """Return the parts of the newest measured step; an older one may have had others."""
    if TIME_FORWARD not in read:
        return None
    step = read[TIME_FORWARD].step
    seconds = {name: read[name].value for name in PARTS if name in read and read[name].step == step}
    total, start, parts = sum(seconds.values()), 0.0, []
    for name, part in seconds.items():
        width = 100 * part / total if total > 0 else 0.0
        parts.append(Share(name.rpartition("/")[2], PARTS[name], duration(part), _percent(width), start, width))
        start += width
    return StepTime(step, duration(total), tuple(parts))


def _percent(width: float) -> str:
    return "<1%" if 0 < width < 1 else f"{width:.0f}%"


def _about_rates(run: Run) -> str:
    """Return what the throughput of all ranks is; empty for a single process."""
    if not isinstance(run, JointRun):
        return ""
    summed = run.assembly.logged.summed
    return f"{summed:,} ranks together" if summed > 1 else "one rank" if summed else "mean of the ranks"


def _speeds(values: dict[str, float], about: str) -> list[Gauge | None]:
    return [
        _gauge(values, "samples", "Samples per second", SAMPLES_RATE, _few, (SAMPLES_RATE, lambda rate: about)),
        _gauge(values, "tokens", "Tokens per second", TOKENS_RATE, _few, (TOKENS_RATE, lambda rate: about)),
        _gauge(values, "steps", "Steps per second", STEPS_RATE, _few),
    ]


def _loads(values: dict[str, float]) -> list[Gauge | None]:
    return [
        _gauge(values, "cpu", "CPU", CPU_PROCESS, _cores, _all(CPU_MACHINE, _cores)),
        _gauge(values, "memory", "Memory", MEMORY_PROCESS, size, _all(MEMORY_MACHINE, size)),
        _gauge(values, "disk", "Disks, read", DISK_READ, _flow, (DISK_WRITTEN, lambda rate: f"{_flow(rate)} written")),
        _gauge(
            values, "network", "Network, received", NET_RECEIVED, _flow, (NET_SENT, lambda rate: f"{_flow(rate)} sent")
        ),
    ]


def _gpu(values: dict[str, float], number: int, gpu: str) -> Gauge | None:
    """Return what a GPU does: its utilization, or without sensors the memory of torch."""
    details: tuple[Detail, ...] = (
        (f"{SYSTEM}{gpu}/memory", lambda used: f"{size(used)} in use"),
        (f"{SYSTEM}{gpu}/allocated", lambda used: f"{size(used)} in tensors"),
        (f"{SYSTEM}{gpu}/power", lambda watts: f"{watts:.0f} W"),
        (f"{SYSTEM}{gpu}/temperature", lambda degrees: f"{degrees:.0f} \u00b0C"),
        (f"{SYSTEM}{gpu}/retries", lambda count: f"{count:.0f} allocator retries" if count else ""),
    )
    title = f"GPU {number}"
    found = _gauge(values, gpu, title, f"{SYSTEM}{gpu}/utilization", lambda share: f"{share:.0f}%", *details)
    return found or _gauge(
        values, gpu, title, f"{SYSTEM}{gpu}/reserved", lambda held: f"{size(held)} reserved", *details
    )


def _gauge(values: dict[str, float], key: str, title: str, name: str, write: Write, *others: Detail) -> Gauge | None:
    """Return a gauge if its value was sampled, with those other values that were."""
    if name not in values:
        return None
    said = (how(values[other]) for other, how in others if other in values)
    return Gauge(key, title, write(values[name]), ", ".join(filter(None, said)))


def _all(name: str, write: Write) -> Detail:
    return name, lambda value: f"{write(value)} by all processes"


def _cores(busy: float) -> str:
    return "<0.1 cores" if 0 < busy < 0.05 else f"{busy:.1f} cores"


def _flow(rate: float) -> str:
    return f"{size(rate)}/s"


def _few(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else shown(float(f"{rate:.2g}"))
