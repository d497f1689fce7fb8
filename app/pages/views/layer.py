"""One module for the pages Layer and Model: its facts, its neighbors, and its values at a step."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from hookcore.config.patterns import literal
from hookcore.findings import Reading
from hookcore.findings.keyfigures import newest_of
from hookcore.reading import Reader, answers
from hookcore.reading.answers import Flow, FlowCall, Model, ModelBox, ModelTensor, Module, Snapshot
from hookcore.reading.pictures import address_of as address_of_image
from hookcore.reading.pictures import image_of
from hookcore.records import KINDS, PARAMETER_KINDS, ROOT, TENSOR_KINDS, Coverage, HookRecord, Kind, Phase, Tap, adds_up
from hookcore.records.vocabulary import KIND_WORDS
from hookcore.store import TapList
from hookcore.store.incidents import NONFINITE, Incident

from ...analysis.tiles import colors_of
from ...formats import words_of
from ...runs import Run
from ...runs.answering import tap_list, taps_of_all_values
from ...runs.joint import is_unsure, joint_of
from .events import Line, all_lines
from .span import Span

# One module for the page Layer: its facts, its neighbors, and its newest values. Reads, never draws.

SHOWN_STATS: Final = ("count", "mean", "std", "min", "max", "rms", "norm", "zero_fraction", "nan", "inf", "ratio")
MAX_NEAR: Final = 8
CALL_POINTS: Final = ("forward", "forward pre", "backward", "backward pre")  # the ends of the names of hook points


@dataclass(frozen=True, slots=True)
class Values:
    """A row of the stat table: a tap in its newest step; without values if there is none in the steps of the page."""

    tap: Tap
    number: int
    first_step: int | None  # another one than `step` if the values are means of merged steps
    step: int | None
    values: dict[str, float]

    @property
    def has_nonfinite(self) -> bool:
        """Whether the tensor had a NaN or an infinity."""
        return bool(self.values.get("nan") or self.values.get("inf"))


@dataclass(frozen=True, slots=True)
class LayerView:
    """Everything about one module except its charts."""

    module: Module
    place: int  # among all modules, from 1
    many: int
    crumbs: tuple[tuple[str, str], ...]  # its parent modules, the outermost first: name and path
    children: tuple[Module, ...]
    previous: str | None
    next: str | None
    taps: TapList
    missing: tuple[str, ...]  # kinds that are not captured here

    @property
    def name(self) -> str:
        """The path, or the class of the root."""
        return self.module.path or self.module.type

    @property
    def coverage(self) -> Coverage | None:
        """Whether it is captured; None if that isn't known."""
        return self.module.coverage

    @property
    def pattern(self) -> str:
        """A pattern that matches this module alone."""
        return literal(self.module.path)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if any(tap.kind == kind for tap in self.taps.taps))

    @property
    def frozen(self) -> bool:
        """Whether it has parameters but none of them is trainable."""
        return bool(self.module.parameters) and not self.module.trainable


def layer_of(reader: Reader, path: str) -> LayerView | None:
    """Return the module at a path, or None."""
    modules = reader.modules(taps=False)
    place = next((place for place, each in enumerate(modules) if each.path == path), None)
    if place is None:
        return None
    module, by_path = modules[place], {each.path: each for each in modules}
    taps = taps_of(reader, path)
    seen = {tap.kind for tap in taps.taps}
    return LayerView(
        module,
        place + 1,
        len(modules),
        _crumbs(module, by_path),
        tuple(each for each in modules if each.parent == path and each is not module),
        modules[place - 1].path if place else None,
        modules[place + 1].path if place + 1 < len(modules) else None,
        taps,
        tuple(kind for kind in TENSOR_KINDS if kind not in seen and _could_have(module, kind)),
    )


def _could_have(module: Module, kind: str) -> bool:
    """Return whether a module can have this kind: containers have no parameters of their own."""
    own = {name for name in module.shapes if not name.startswith(("input", "output"))}
    return bool(own) or kind not in PARAMETER_KINDS


def _crumbs(module: Module, by_path: dict[str, Module]) -> tuple[tuple[str, str], ...]:
    above: list[tuple[str, str]] = []
    at = module.parent
    while at is not None and at in by_path and len(above) < len(by_path):
        above.append((at.rpartition(".")[2] or ROOT, at))
        at = by_path[at].parent
    return tuple(reversed(above))


def taps_of(reader: Reader, path: str) -> TapList:
    """Return the taps of one module, by kind."""
    own = [tap for tap in reader.taps().taps if tap.module == path]
    return tap_list(sorted(own, key=lambda tap: (KINDS.index(tap.kind), tap.phase, tap.call)))


def values_of(reader: Reader, taps: TapList, first: int | None = None, last: int | None = None) -> list[Values]:
    """Return the newest values of each tap in these steps."""
    numbers = taps.numbers.tolist()
    latest = reader.latest(first=first, last=last, taps=numbers, limit=max(1, len(numbers)))
    found = {
        each.number: (each.first_step, each.step, dict(zip(latest.stats, each.values.tolist(), strict=True)))
        for each in taps_of_all_values(latest)
    }
    return [Values(tap, number, *found.get(number, (None, None, {}))) for number, tap in taps]


def placement_note(run: Run, layer: LayerView) -> str | None:
    """Say what the values of tensors that torch has spread over ranks cover; None if there are none."""
    placed = layer.module.placements
    taps = [(number, tap.tensor) for number, tap in layer.taps if tap.tensor in placed]
    if not taps:
        return None
    values = f"In this run, values of {', '.join(dict.fromkeys(name for _, name in taps))} are"
    if not run.is_derived:
        return f"{values} those of this rank's part."
    but = ', except where they are labeled "parts or copies"' if any(is_unsure(run, each) for each, _ in taps) else ""
    lacks = " Some ranks are missing, and so are their parts." if joint_of(run).rounds.missing() else ""
    return f"{values} those of the whole tensor: parts are added up, and copies count once{but}.{lacks}"


MAX_ROUTERS: Final = 256  # in one table


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """The load of each expert of one router, as a strip of pixels from black (none) to white (the largest)."""

    module: str
    experts: int
    strip: str  # an address
    most: tuple[int, float]  # an expert, and its load as a multiple of an even share
    least: tuple[int, float]


def experts_of(reader: Reader, path: str, first: int | None, last: int | None) -> list[ExpertRow]:
    """Return the loads of all routers in these steps, by layer, if the module is one of them."""
    routers = [tap for tap in reader.channel_taps().taps if adds_up(tap.record)]
    if all(tap.module != path for tap in routers):
        return []
    found = []
    for tap in routers[:MAX_ROUTERS]:
        answer = reader.channels(tap, first, last, columns=1)
        if answer.values.size:
            found.append((tap.module, answer.values[:, 0] * len(answer.values)))
    if not found:
        return []
    pixels = colors_of(np.concatenate([[0.0], *(shares for _, shares in found)])[None])[:, 1:]
    strips = np.split(pixels, np.cumsum([len(shares) for _, shares in found])[:-1], axis=1)
    return [
        ExpertRow(
            module,
            len(shares),
            address_of_image(image_of(strip)),
            _at(shares, shares.argmax()),
            _at(shares, shares.argmin()),
        )
        for (module, shares), strip in zip(found, strips, strict=True)
    ]


def _at(shares: NDArray[np.float64], place: np.intp) -> tuple[int, float]:
    return int(place), float(shares[place])


def hooks_of(reader: Reader, layer: LayerView) -> tuple[list[HookRecord], int]:
    """Return the hooks on the module and its own parameters, and the number of those that run for every module."""
    path = layer.module.path
    parameters = {f"{path}.{name}".lstrip(".") for name in layer.module.shapes}
    hooks = reader.hooks()
    own = [
        hook
        for hook in hooks
        if (hook.scope == "module" and hook.owner == path) or (hook.scope != "process" and hook.owner in parameters)
    ]
    return own, sum(hook.scope == "process" and hook.point.endswith(CALL_POINTS) for hook in hooks)


def lines_of(run: Run, path: str, first: int | None = None, last: int | None = None) -> list[Line]:
    """Return the module's findings, then its events, newest first; with bounds, those of these steps."""
    lines = [line for line in all_lines(run, first, last) if line.module == path]
    return sorted(lines, key=lambda line: line.is_event)


def near(reader: Reader, path: str) -> list[str]:
    """Return modules with a similar path."""
    paths = [each.path for each in reader.coverage()]
    inside = [each for each in paths if path.lower() in each.lower()] if path else []
    return list(dict.fromkeys([*difflib.get_close_matches(path, paths, MAX_NEAR, 0.5), *inside]))[:MAX_NEAR]


@dataclass(frozen=True, slots=True)
class Feed:
    """A module at the other end. `guessed` says that only the order of execution is known."""

    path: str
    guessed: bool

    @property
    def name(self) -> str:
        """The path, or "(root)"."""
        return self.path or ROOT


@dataclass(frozen=True, slots=True)
class Feeds:
    """The modules outside of one whose outputs go into it or something in it, and those that get an output of these."""

    fed_by: tuple[Feed, ...]
    feeds: tuple[Feed, ...]


def feeds_of(reader: Reader, path: str, step: int | None = None) -> Feeds | None:
    """Return what feeds a module, in the newest structure up to a step in which it ran; None if that isn't known."""
    flow = reader.flow(step)
    while not any(_is_in(call, path) for call in flow.calls):
        earlier = [each for each in flow.steps if flow.step is not None and each < flow.step]
        if not earlier:
            return None
        flow = reader.flow(earlier[-1])
    return _feeds(flow, path)


def _feeds(flow: Flow, path: str) -> Feeds:
    inside = [_is_in(call, path) for call in flow.calls]
    fed_by: dict[str, bool] = {}
    feeds: dict[str, bool] = {}
    for place, call in enumerate(flow.calls):
        for source in call.fed_by:
            if inside[place] != inside[source]:
                ends, other = (fed_by, flow.calls[source]) if inside[place] else (feeds, call)
                ends[other.module] = ends.get(other.module, True) and call.how == "order"
    return Feeds(*(tuple(Feed(name, guessed) for name, guessed in each.items()) for each in (fed_by, feeds)))


def _is_in(call: FlowCall, path: str) -> bool:
    return not path or call.module == path or call.module.startswith((f"{path}.", f"{path}/"))


def box_of(model: Model, module: str, call: int, phase: str) -> ModelBox | None:
    """Return the box of a call of a module, or of the module."""
    boxes = [box for box in model.boxes if box.module == module and box.kind != "repeat"]
    exact = (box for box in boxes if (box.call, box.phase) == (call, phase))
    return next(exact, boxes[0] if boxes else None)


def call_of(taps: TapList, call: int, phase: Phase) -> TapList:
    """Return the taps of one call of a module, and of the module's parameters."""
    return taps.at([place for place, tap in enumerate(taps.taps) if _belongs(tap, call) and _is_of_phase(tap, phase)])


def snapshots_of(reader: Reader, module: str, call: int) -> list[Snapshot]:
    """Return the snapshots of a call's tensors and of the module's parameters, newest step first."""
    found = [
        snapshot for snapshot in reader.snapshots() if snapshot.tap.module == module and _belongs(snapshot.tap, call)
    ]
    return sorted(found, key=lambda each: -each.step)


def _belongs(tap: Tap | answers.Tap, call: int) -> bool:
    return _is_of_parameters(tap) or tap.call == call


def _is_of_phase(tap: Tap, phase: Phase) -> bool:
    return _is_of_parameters(tap) or tap.phase == phase


def _is_of_parameters(tap: Tap | answers.Tap) -> bool:
    return tap.kind in PARAMETER_KINDS


# Words about boxes for the page Model and the drawer.

_PLAIN: Final = "!'()*-._~"  # what encodeURIComponent leaves as it is, other than letters and digits
_UNITS: Final = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def flops_words(box: ModelBox) -> str:
    """Return the operations of a box: "1.2 GFLOP", "at least 1.2 GFLOP", or "unknown"."""
    if box.flops is None:
        return "unknown"
    size, unit = float(box.flops), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size /= 1000
        unit += 1
    words = f"{size:.3g} {_UNITS[unit]}"
    return f"at least {words}" if box.flops_unknown else words


def forms_words(tensors: Sequence[ModelTensor]) -> str:
    """Return the shapes and dtypes of tensors, with their places if there are several."""
    places = [tensor.place if len(tensors) > 1 else "" for tensor in tensors]
    return ", ".join(
        " ".join(filter(None, (place, " \u00d7 ".join(map(str, each.shape)) or "one value", each.dtype)))
        for place, each in zip(places, tensors, strict=True)
    )


def incident_of(run: Run) -> Incident | None:
    """Return the first incident of non-finite values."""
    return next((incident for incident in run.store.incidents() if incident.rule == NONFINITE), None)


def box_id(tap: Tap) -> str:
    """Return the name of a tap's box in the address of the page, as `idOf` in js/model/tree.js makes it."""
    call = f";{tap.call}" if tap.call and tap.kind not in PARAMETER_KINDS else ""
    return f"{quote(tap.module, safe=_PLAIN) or '.'}{call}{';e' if tap.phase == 'eval' else ''}"


# Values at a step, and notes if there are none: the steps that a value covers, and the nearest captured steps.


@dataclass(frozen=True, slots=True)
class Nearest:
    """The captured steps before and after one, or None."""

    before: int | None
    after: int | None

    verb: str = "captured"

    @property
    def words(self) -> str | None:
        """Where to look instead, as a sentence; None if there is nowhere."""
        near = [f"{each:,}" for each in (self.before, self.after) if each is not None]
        if not near:
            return None
        return f"The nearest {self.verb} step{' is' if len(near) == 1 else 's are'} {' and '.join(near)}."


@dataclass(frozen=True, slots=True)
class HeldNote:
    """A note about a held step, and the steps to look at instead."""

    words: str
    instead: tuple[int, ...] = ()


def note_of(reader: Reader, span: Span | None) -> HeldNote | None:
    """Return what must be known of the held step; None if it was captured and is still exact."""
    if span is None or span.step is None:
        return None
    near = reader.nearest(span.step)
    if near.first_step is None or near.last_step is None:
        words = f"No tensor was captured in step {span.step:,}."
        return HeldNote(words, tuple(each for each in (near.before, near.after) if each is not None))
    if near.first_step == near.last_step:
        return None
    return HeldNote(
        f"{words_of(near.first_step, near.last_step).capitalize()} have been merged: values are their means."
    )


def nearest_captured(reader: Reader, step: int) -> Nearest:
    """Return the captured steps around a step, without it."""
    near = reader.nearest(step)
    return Nearest(near.before, near.after)


def nearest_sampled(run: Run, names: Sequence[str], step: int) -> Nearest:
    """Return the steps around one in which some scalars have values, without it."""
    before = [found.step for name in names if (found := newest_of(run.store, name, step - 1)) is not None]
    later = run.reader.scalars(names, step + 1, None, 10_000).series
    after = [int(each.first_step[0]) for each in later if len(each.first_step)]
    return Nearest(max(before, default=None), min(after, default=None), "sampled")


def nothing_in(reader: Reader, span: Span, words: str) -> str:
    """Return a sentence that there is nothing in the steps of a page: "Nothing was captured in" step 7."""
    near = "" if span.step is None else nearest_captured(reader, span.step).words
    return f"{words} {span.values_words}. {near}".rstrip()


def steps_of(first: int, last: int, span: Span | None) -> str:
    """Return the steps of a value, if the reader can't know them: they aren't those that the page is about."""
    if first < last:
        return f"mean of {words_of(first, last)}"
    about = None if span is None else span.step if span.step is not None else span.last
    return "" if last == about else words_of(last, last)


def about_reading(reading: Reading, span: Span | None) -> str:
    """Return of which steps a reading is, unless the page says so."""
    return steps_of(reading.first_step if reading.is_mean else reading.step, reading.step, span)


# The charts of the page Layer: what its script draws, and of which tensors.

MAX_LINES: Final = 4  # of a chart
QUANTILES: Final = ("p1", "p5", "p25", "p50", "p75", "p95", "p99")
GRADIENTS: Final[tuple[Kind, ...]] = ("output_grad", "param_grad", "raw_grad", "input_grad")
DISTRIBUTIONS: Final[tuple[Kind, ...]] = ("output", "output_grad", "param", "param_grad", "update")
PHASE_WORDS: Final = {"train": "training", "eval": "evaluation"}

Parts = list[tuple[answers.Tap, str]]  # tensors, and the names of their lines


class LayerChart(TypedDict):
    """A chart as the script reads it: `make` of a part says which lines it is (js/layer/plan.js)."""

    id: str
    title: str
    y: dict[str, Any]
    stats: Sequence[str]
    parts: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Picker:
    """A choice among the tensors of a kind: value and words."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...]
    chosen: str
    hidden: bool


@dataclass(frozen=True, slots=True)
class LayerCharts:
    """The charts of a module's tensors, those that the address asks for: `kind`, `index`, `call`, and `phase`."""

    taps: Sequence[answers.Tap]
    asked: Mapping[str, str]
    local: Collection[str]  # the kinds that are of a rank's own loss

    @property
    def tensor(self) -> answers.Tap | None:
        """The one tensor that is looked at: the one that is most like what is asked for; None at a glance."""
        some = [tap for tap in self.taps if tap.kind == self.asked["kind"]]
        wanted = [(name, value) for name, value in self.asked.items() if value]
        return max(some, key=lambda tap: sum(str(getattr(tap, name)) == value for name, value in wanted), default=None)

    def _of(self, *kinds: Kind) -> list[answers.Tap]:
        """The tensors of kinds, in one call and phase."""
        call, phase = self._asked_or("call", "0"), self._asked_or("phase", "train")
        own = [tap for tap in self.taps if str(tap.call) == call and tap.phase == phase]
        return [tap for kind in kinds for tap in own if tap.kind == kind]

    def _asked_or(self, name: str, usual: str) -> str:
        """What is asked for; without that, the usual value, or the first one of a module that never has it."""
        values = [str(getattr(tap, name)) for tap in self.taps]
        return self.asked[name] or (usual if usual in values else next(iter(values), usual))

    def short(self, tap: answers.Tap) -> str:
        """Return a tensor within its module, in short: `activation`, `bias gradient`."""
        words = f"{KIND_WORDS[tap.kind]}{' (local)' if tap.kind in self.local else ''}"
        if not tap.index:
            return words
        if tap.kind in ("probe", "state"):
            return tap.index
        if tap.kind == "update" or tap.kind.startswith("exp_avg"):
            return f"{tap.index} {words}"
        return words.replace("weight", tap.index, 1) if tap.kind in PARAMETER_KINDS else f"{words} {tap.index}"

    @property
    def distributions(self) -> list[dict[str, Any]]:
        """The tensors whose histograms are shown: the one that is looked at, or the first of each kind."""
        tensor = self.tensor
        some = [tensor] if tensor else [tap for kind in DISTRIBUTIONS for tap in self._of(kind)[:1]]
        return [_as_read(tap) for tap in some]

    @property
    def pickers(self) -> list[Picker]:
        """What tells the tensors of a kind apart."""
        kind, tensor = self.asked["kind"], self.tensor
        some = [tap for tap in self.taps if tap.kind == (kind or "output")]
        found = []
        for name, label in (("index", "Of"), ("call", "Call"), ("phase", "Phase")):
            values = list(dict.fromkeys(str(getattr(tap, name)) for tap in some))
            chosen = str(getattr(tensor, name)) if tensor else self.asked[name]
            options = tuple((value, PHASE_WORDS.get(value, value or "single tensor")) for value in values)
            hidden = len(values) < 2 or (not kind and name == "index")
            found.append(Picker(name, label, options, chosen if chosen in values else next(iter(values), ""), hidden))
        return found

    @property
    def plans(self) -> list[LayerChart]:
        """The charts, at most four."""
        tensor = self.tensor
        return self._at_a_glance() if tensor is None else _of_tensor(tensor)

    def _at_a_glance(self) -> list[LayerChart]:
        main = self._of("output")[:1] or self._of("input", "param", "param_grad", "update")[:1]
        shown, word = self._named(main), self.short(main[0]) if main else ""
        word = word[:1].upper() + word[1:]
        gradients, updates, probes = self._of(*GRADIENTS), self._of("update"), self._of("probe")
        plans = [_values(shown, f"{word}: mean, min, and max")] if main else []
        if gradients:
            lines = _parts("norm", self._named(gradients))
            plans.append(_chart("gradients", _counted("Gradients: norm", gradients), _log("norm"), ["norm"], lines))
        if updates:
            plans.append(_ratio(self._named(updates), _counted("Update-to-weight ratio", updates)))
        elif main:
            plans.append(_percentiles(shown, f"{word}: percentiles"))
        if probes:
            lines, title = _parts("mean", self._named(probes)), _counted("Probes: mean", probes)
            plans.append(_chart("probes", title, {"title": "value", "scale": "linear"}, ["mean"], lines))
        elif main:
            plans.append(_shares(self._named([*main, *self._of("output_grad")[:1]])))
        return plans

    def _named(self, taps: Sequence[answers.Tap]) -> Parts:
        return [(tap, self.short(tap)) for tap in taps[:MAX_LINES]]


def _of_tensor(tap: answers.Tap) -> list[LayerChart]:
    one: Parts = [(tap, "")]
    sizes = [*_parts("rms", one), *_parts("norm", one)]
    size = _chart("size", "Size: rms and norm", _log("rms, norm"), ["rms", "norm"], sizes)
    return [
        _values(one, "Mean, min, and max"),
        _ratio(one, "Update-to-weight ratio") if tap.kind == "update" else size,
        _percentiles(one, "Percentiles"),
        _shares(one),
    ]


def _chart(key: str, title: str, y: dict[str, Any], stats: Sequence[str], parts: list[dict[str, Any]]) -> LayerChart:
    return LayerChart(id=key, title=title, y=y, stats=stats, parts=parts)


def _values(parts: Parts, title: str) -> LayerChart:
    lines, y = _parts("values", parts), {"title": "value", "scale": "linear"}
    return _chart("values", title, y, ["mean", "min", "max"], lines)


def _percentiles(parts: Parts, title: str) -> LayerChart:
    return _chart("percentiles", title, {"title": "value", "scale": "linear"}, QUANTILES, _parts("fan", parts))


def _ratio(parts: Parts, title: str) -> LayerChart:
    return _chart("ratio", title, _log("norm of the update / norm of the weight"), ["ratio"], _parts("ratio", parts))


def _shares(parts: Parts) -> LayerChart:
    y = {"title": "share of the values", "scale": "linear", "fixed": True, "low": 0, "high": 1}
    stats = ["zero_fraction", "nan", "inf", "count"]
    return _chart("shares", "Share of zeros, NaN, and infinities", y, stats, _parts("shares", parts))


def _log(title: str) -> dict[str, Any]:
    return {"title": title, "scale": "log"}


def _parts(make: str, parts: Parts) -> list[dict[str, Any]]:
    return [{"tap": _as_read(tap), "name": name, "make": make} for tap, name in parts]


def _counted(words: str, some: Sequence[answers.Tap]) -> str:
    return f"{words}, {MAX_LINES} of {len(some)}" if len(some) > MAX_LINES else words


def _as_read(tap: answers.Tap) -> dict[str, Any]:
    return {name: getattr(tap, name) for name in ("number", "kind", "index", "call", "phase", "label")}
