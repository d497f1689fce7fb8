"""The overview's key figures as tiles, its findings and scalars with sparklines, and the machine in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypedDict

import numpy as np

from hookcore.findings import Finding, KeyFigures, Reading
from hookcore.findings.keyfigures import newest_of
from hookcore.findings.times import PARTS
from hookcore.reading import Reader, answers
from hookcore.reading.answers import Capsule, Explanation, Series
from hookcore.records import ROOT, Tap
from hookcore.records.vocabulary import (
    CPU_MACHINE,
    CPU_PROCESS,
    DISK_READ,
    DISK_WRITTEN,
    EFFECTIVE_COST,
    FORMAT,
    KIND_TITLES,
    MACHINE_LABEL,
    MEMORY_MACHINE,
    MEMORY_PROCESS,
    NET_RECEIVED,
    NET_SENT,
    OWN,
    SAMPLES_RATE,
    SENSORS_LABEL,
    STEPS_RATE,
    SYSTEM,
    TIME_FORWARD,
    TIME_HOOKCORE,
    TIME_LOADING,
    TOKENS_RATE,
    counted,
    loss_rank,
)

from ...analysis.cost import cost_of, run_rates
from ...analysis.figures.lines import Spark, spark_of
from ...analysis.modules import types_of
from ...analysis.numerals import duration, percent, shown, size, thousands
from ...formats import words_of
from ...runs import Run, ranks_in
from ..frame import address_of
from .events import Line
from .incident import explained_by
from .layer import about_reading, nothing_in
from .span import Span

# The newest values of the machine, in words: of the page Performance, and in a line for the Summary.

Write = Callable[[float], str]
Detail = tuple[str, Write]  # the name of a scalar, and how its value is said

# The charts of the page Performance, with the names of their lines. Values are divided by the unit.
COLORS: Final = dict(
    zip(PARTS, ("#0e97a7", "#e07b17", "#2f7ed8", "#7b61d9", "#1f9d55", "#7a8794", "#d03b3b"), strict=True)
)
CHARTS: Final[tuple[tuple[str, str, float, Mapping[str, str]], ...]] = (
    ("samples", "Samples per second", 1, {SAMPLES_RATE: "samples per second"}),
    ("tokens", "Tokens per second", 1, {TOKENS_RATE: "tokens per second"}),
    ("time", "Step time, ms", 1e-3, PARTS),
    ("steps", "Steps per second", 1, {STEPS_RATE: "steps per second"}),
    ("cpu", "CPU: busy cores", 1, {CPU_PROCESS: "this process", CPU_MACHINE: "all processes"}),
    ("memory", "Memory in use, GB", 1e9, {MEMORY_PROCESS: "this process", MEMORY_MACHINE: "all processes"}),
    ("disk", "Disks, MB per second", 1e6, {DISK_READ: "read", DISK_WRITTEN: "written"}),
    ("network", "Network, MB per second", 1e6, {NET_RECEIVED: "received", NET_SENT: "sent"}),
)
OF_GPUS: Final = {  # a line for each GPU
    "utilization": "GPU utilization, %",
    "power": "GPU power, W",
    "temperature": "GPU temperature, \u00b0C",
}
GPU_MEMORY: Final = {  # a chart for each GPU
    "memory": "all processes",
    "reserved": "torch: reserved",
    "allocated": "torch: in tensors",
    "peak": "torch: peak in tensors",
}

_GPU: Final = re.compile(re.escape(SYSTEM) + r"(gpu(\d+))/")


class ChartPlan(TypedDict):
    """A chart of the machine, as scripts read it."""

    id: str
    title: str
    unit: float
    parts: list[dict[str, str]]  # the lines: name, words, and perhaps a color


def plans_of(names: Collection[str]) -> list[ChartPlan]:
    """Return the charts that have at least one line."""
    gpus = _gpus_in(names)
    charts = [
        *(
            (f"gpu-{part}", title, 1.0, {f"{SYSTEM}{gpu}/{part}": f"GPU {number}" for number, gpu in gpus})
            for part, title in OF_GPUS.items()
        ),
        *(
            (
                f"{gpu}-memory",
                f"Memory of GPU {number}, GB",
                1e9,
                {f"{SYSTEM}{gpu}/{part}": words for part, words in GPU_MEMORY.items()},
            )
            for number, gpu in gpus
        ),
        *CHARTS,
    ]
    plans = [
        ChartPlan(
            id=key,
            title=title,
            unit=unit,
            parts=[
                {"name": name, "words": words, **({"color": COLORS[name]} if name in COLORS else {})}
                for name, words in lines.items()
                if name in names
            ],
        )
        for key, title, unit, lines in charts
    ]
    return [plan for plan in plans if plan["parts"]]


def _gpus_in(names: Iterable[str]) -> list[tuple[int, str]]:
    """Return the numbers and the names of the GPUs, in their order."""
    return sorted({(int(match[2]), match[1]) for name in names if (match := _GPU.match(name))})


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
    def has_hookcore(self) -> bool:
        return any(part.words == PARTS[TIME_HOOKCORE] for part in self.parts)

    @property
    def longest(self) -> Share:
        """The longest part of the training's own. What hookcore adds to captured steps is said once, as its cost."""
        own = [part for part in self.parts if part.words != PARTS[TIME_HOOKCORE]] or self.parts
        return max(own, key=lambda part: part.width)


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
    def plans(self) -> list[ChartPlan]:
        """The charts of the page."""
        return plans_of(self.names)

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
    gpus = _gpus_in(names)
    gauges = [
        *_speeds(values, _about_rates(run)),
        *(_gpu(values, number, gpu) for number, gpu in gpus),
        *_loads(values),
    ]
    labels = run.labels
    facts = [labels[MACHINE_LABEL]] if MACHINE_LABEL in labels else []
    facts += [f"GPU {number}: {labels[key]}" for number, gpu in gpus if (key := f"{MACHINE_LABEL} {gpu}") in labels]
    step = max((found.step for name, found in read.items() if name not in PARTS), default=None)
    shown = tuple(gauge for gauge in gauges if gauge is not None)
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
    joint = ranks_in(run)
    if joint is None:
        return ""
    summed = joint.sum.assembly.logged.summed
    return f"{summed:,} ranks together" if summed > 1 else "one rank" if summed else "mean of the ranks"


def _speeds(values: dict[str, float], about: str) -> list[Gauge | None]:
    return [
        _gauge(values, "samples", "Samples per second", SAMPLES_RATE, _rounded, (SAMPLES_RATE, lambda rate: about)),
        _gauge(values, "tokens", "Tokens per second", TOKENS_RATE, _rounded, (TOKENS_RATE, lambda rate: about)),
        _gauge(values, "steps", "Steps per second", STEPS_RATE, _rounded),
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


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else shown(float(f"{rate:.2g}"))


SHOWN_SCALARS: Final = 12
POINTS: Final = 90  # of a sparkline
AROUND: Final = 60  # steps before and after the onset of a finding, in its sparkline
_KINDS: Final = {"param_grad": KIND_TITLES["param"], "output_grad": KIND_TITLES["output"]}


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure: its number, a line of detail, and the target of its link."""

    key: str
    title: str
    text: str
    detail: str = ""
    address: str = ""
    value: float | None = None  # of a plain number, formatted as the reader prefers
    tone: str = ""  # bad, nan: always with words
    help: str = ""
    is_words: bool = False
    module: str | None = None  # whose number it is; its name comes before the detail


@dataclass(frozen=True, slots=True)
class AlertLine:
    """An alert with its sparkline."""

    line: Line
    spark: Spark | None
    address: str  # of its page
    layer: str  # the address of its layer
    type: str
    replay: Explanation | None  # what one found

    @property
    def finding(self) -> Finding | None:
        return self.line.finding


@dataclass(frozen=True, slots=True)
class ScalarLine:
    """A scalar that the user logged: its newest value in the steps of the page, and its sparkline."""

    name: str
    reading: Reading | None  # None if it wasn't logged in these steps
    spark: Spark | None


def tiles_of(run: Run, figures: KeyFigures, span: Span | None) -> list[Tile]:
    """Return the key figures of a run's layers, of the steps that the page is about; none if it has no layers."""
    if not figures.taps:
        return []
    return [
        _norm(run, figures, span),
        _gradient(run, figures, "smallest", figures.smallest_gradient, span),
        _gradient(run, figures, "largest", figures.largest_gradient, span),
        _nonfinite(run, figures, span),
    ]


def _norm(run: Run, figures: KeyFigures, span: Span | None) -> Tile:
    norm, kind = figures.gradient_norm, figures.gradient_kind or ""
    tile = Tile(
        "norm",
        "Gradient norm",
        "-",
        f"of all {_KINDS[kind]}{_before(figures)}{_older(norm, span)}" if norm else _no_gradients(figures, span),
        address_of(run, "flow", kind=kind, stat="norm"),
        help="Square root of the sum of squares of all gradients captured in one step, as the optimizer used them.",
    )
    return tile if norm is None else _number(tile, norm.value)


def _before(figures: KeyFigures) -> str:
    raw = figures.raw_norm
    return "" if raw is None else f", after clipping ({shown(raw.value)} before it)"


def _gradient(run: Run, figures: KeyFigures, which: str, found: Reading | None, span: Span | None) -> Tile:
    tile = Tile(
        which,
        f"{which.capitalize()} gradient (RMS)",
        "-",
        "all NaN/Inf" if figures.gradient_norm else _no_gradients(figures, span),
        help="The root mean square (RMS) of one gradient: its norm, divided by the square root of its size.",
    )
    if found is None or found.tap is None:
        return tile
    module, address = found.tap.module, layer_address(run, found.tap)
    return _number(replace(tile, detail=_older(found, span), address=address, module=module), found.value)


def _no_gradients(figures: KeyFigures, span: Span | None) -> str:
    """Return why there is no number about gradients."""
    if figures.merged is not None:
        return f"{words_of(*figures.merged)} have been merged"
    return _unknown("not captured", span) if span is not None and span.held else "no backward pass"


def _unknown(words: str, span: Span | None) -> str:
    return words if span is None or not span.held else f"{words} in {span.values_words}"


def _older(reading: Reading | None, span: Span | None) -> str:
    """Return the step of a value if the page shows another one: not every step is captured."""
    words = "" if reading is None else about_reading(reading, span)
    return f", {words}" if words else ""


def _nonfinite(run: Run, figures: KeyFigures, span: Span | None) -> Tile:
    found, held = figures.nonfinite_modules, span is not None and span.held
    address = address_of(run, "flow", f="is:nan") if found else address_of(run, "flow")
    title = "Layers with NaN/Inf"
    if held and not figures.seen:
        return Tile("nonfinite", title, "-", _unknown("not captured", span), address)
    detail = ""
    if found:
        first = None if held else next((each for each in run.findings.current() if each.rule == "nonfinite"), None)
        detail = _few(run, found) if first is None else f"first: {first.module or _root_of(run)}"
        if first is not None and not first.culprit_known:
            detail = "the first one isn't known"
    elif figures.newest_step is not None:
        detail = "all captured values are finite" if held else "all newest values are finite"
    return Tile("nonfinite", title, thousands(len(found)), detail, address, tone="nan" if found else "")


def _root_of(run: Run) -> str:
    """Return the model's class, which is the name of the root."""
    return types_of(run.reader).get("") or ROOT


def _few(run: Run, paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{paths[0] or _root_of(run)}{more}"


def watched_words(figures: KeyFigures) -> str:
    """Return how many modules were captured."""
    captured = thousands(figures.modules_captured)
    return f"{captured} of {counted(figures.modules, 'module')} captured" if figures.modules else ""


def cost_words(run: Run, span: Span | None) -> str:
    """Return what watching costs, in one sentence; of a held page, as it was measured by then."""
    if span is None or not span.held:
        return cost_of(run).sentence
    measured = newest_of(run.store, EFFECTIVE_COST, *reversed(span.values))
    if measured is None:
        return _unknown("cost not measured", span)
    return f"adds {percent(measured.value)} on average, as measured up to step {measured.step:,}"


def _number(tile: Tile, value: float) -> Tile:
    tone = tile.tone if math.isfinite(value) else "nan"
    return replace(tile, text=shown(value), value=value, tone=tone)


def problem_address(run: Run, line: Line) -> str:
    """Return the address of the page of a line; what a reader wrote leads to its step."""
    if line.is_annotation:
        return address_of(run, "overview", step=line.step)
    return address_of(run, "incident", id=line.page_id)


def layer_address(run: Run, tap: Tap | answers.Tap, step: int | None = None) -> str:
    """Return the address of a tap's layer, held at a step or as the page is."""
    phase = "" if tap.phase == "train" else tap.phase
    return address_of(
        run, "layer", module=tap.module, kind=tap.kind, index=tap.index, call=tap.call or "", phase=phase, step=step
    )


def shown_alerts(run: Run, lines: Sequence[Line], capsules: Sequence[Capsule] = ()) -> list[AlertLine]:
    """Return lines with what their pages begin with."""
    types = types_of(run.reader) if lines else {}
    return [_alert(run, line, types, capsules) for line in lines]


def _alert(run: Run, line: Line, types: Mapping[str, str], capsules: Sequence[Capsule]) -> AlertLine:
    type_ = types.get(line.module, "") if line.module and not line.is_of_loss else ""
    spark = None if line.tap is None else _spark_of_line(run.reader, line)
    replay = explained_by(line, capsules)
    return AlertLine(line, spark, problem_address(run, line), line_layer(run, line), type_, replay)


def line_layer(run: Run, line: Line) -> str:
    """Return the address of the layer that a line is about; "" if it is about none."""
    if not line.is_of_layer:
        return ""
    if line.tap is not None:
        return layer_address(run, line.tap, line.step)
    return address_of(run, "layer", module=line.module, step=line.step)


def _spark_of_line(reader: Reader, line: Line) -> Spark | None:
    """Return the sparkline around an onset, with marks at non-finite values."""
    if line.finding is not None:
        return spark_of_finding(reader, line.finding)
    if line.incident is None or line.is_of_loss or line.incident.culprit.number < 0:
        return None
    return _spark_around(reader, line.incident.culprit.number, "rms", line.step)


def spark_of_finding(reader: Reader, finding: Finding) -> Spark | None:
    """Return the sparkline around the onset of a finding, with marks at non-finite values."""
    if finding.is_of_loss:
        return spark_of(np.arange(len(finding.spark)), np.array(finding.spark, float), None, may_be_log=True)
    if finding.number < 0:
        return None
    return _spark_around(reader, finding.number, finding.stat, finding.since_step)


def _spark_around(reader: Reader, number: int, stat: str, step: int) -> Spark | None:
    series = reader.series(number, stat, max(0, step - AROUND), step + AROUND, POINTS)
    values = np.where(np.asarray(series.nonfinite) > 0, np.nan, series.mean)
    return spark_of(series.last_step, values, step, may_be_log=True)


def scalar_lines(run: Run, most: int | None, span: Span | None) -> tuple[list[ScalarLine], int]:
    """Return the user's scalars in these steps, the loss first, and their number."""
    names = [name for name in run.reader.scalars().names if not name.startswith(OWN)]
    names.sort(key=loss_rank)
    first, last, mark = (None, None, None) if span is None else (span.first, span.last, span.step)
    shown = run.reader.scalars(names[:most], first, last, POINTS).series
    return [_scalar_line(run, each, span, mark) for each in shown], len(names)


def _scalar_line(run: Run, series: Series, span: Span | None, mark: int | None) -> ScalarLine:
    first, last = (None, None) if span is None else span.values
    spark = spark_of(series.last_step, series.mean, mark) if len(series.mean) else None
    return ScalarLine(series.name, newest_of(run.store, series.name, last, first), spark)


def why_empty(run: Run, figures: KeyFigures, span: Span | None) -> str:
    """Return why there is no data and what to do, or an empty string."""
    if (origin := run.info.facts.get(FORMAT)) and not figures.taps:
        return f"This run was imported from {origin}. Its log has no layers."
    if span is not None and span.held and not figures.seen:
        return nothing_in(run.reader, span, "Nothing was captured in")
    if figures.newest_step is None:
        if run.state == "live":
            return "No step has been captured yet. Numbers appear after the first optimizer step or watcher.step()."
        return "No step was captured: the run ended before its first step did."
    if origin:
        return ""
    if figures.taps == 0:
        return "No module has run a forward pass under this watcher. Was the model replaced, or compiled earlier?"
    if figures.gradient_kind is None:
        return (
            "No backward pass was seen (model.eval()? torch.no_grad()? kinds without gradients?). "
            "Activations are shown; gradients need a loss.backward()."
        )
    return ""
