"""The pages of the model and its layers: Picture, Layers, Gradient flow, and the drawer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, cast

import numpy as np
from fastapi import Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from hookcore.reading import Reader, answers
from hookcore.reading.answers import Model, ModelBox
from hookcore.reading.local import MAX_CAST
from hookcore.records import KINDS, TENSOR_KINDS, Kind, Phase
from hookcore.store import STAT_NAMES, checks
from hookcore.store.incidents import Incident

from ..analysis.distributed import layers_of, spreads_of, stores_at
from ..analysis.modules import calls_of, finder_of, losses_of, sparks_of, types_of, why_empty, why_uncaptured
from ..analysis.numerals import why_not
from ..formats import words_of
from ..runs import Run
from ..runs.answering import tap_list, taps_of_all_values
from ..runs.joint import is_unsure, joint_of, local_kinds
from .compare import drawn_magnitudes
from .frame import address_of
from .overview import usual_kind
from .page import FindText, Page, PartsPage, RowNumber, RunPage, Short, TablePage
from .tensors import nearest_of
from .views.events import SIGNS
from .views.layer import (
    SHOWN_STATS,
    LayerCharts,
    LayerView,
    box_id,
    box_of,
    call_of,
    experts_of,
    feeds_of,
    flops_words,
    forms_words,
    hooks_of,
    incident_of,
    layer_of,
    lines_of,
    near,
    nothing_in,
    placement_note,
    snapshots_of,
    values_of,
)
from .views.span import SHARED
from .views.words import KIND_WORDS, STAT_WORDS

# The page Model: the model as boxes with what flows between them, as a picture and as a table.

ROWS: Final = 50  # of the table on one page
SCALES: Final = ("log", "linear", "symlog")


def usual_color(reader: Reader) -> str:
    """Return the kind of the colors if the user chose none."""
    return "output" if any(tap.kind == "output" for tap in reader.taps().taps) else usual_kind(reader)


@dataclass(frozen=True, kw_only=True)
class ModelPage(RunPage):
    """The model as a picture."""

    name = "model"
    parts = ("onset", "why", "boxes")

    f: FindText = ""
    kind: Annotated[str, Query(max_length=50, description="the kind of the colors; empty: the usual one")] = ""
    stat: Short = ""
    row: RowNumber = 0

    @cached_property
    def model(self) -> Model:
        """The boxes, as they were in the steps of the page."""
        return self.run.reader.model(self.values_in[1])

    def values(self) -> dict[str, Any]:
        checks.require_kind(self.kind or None)
        if self.stat:
            checks.require("stat", self.stat, STAT_NAMES)
        known = {tap.kind for tap in self.run.reader.taps().taps}
        return {
            "usual_kind": usual_color(self.run.reader),
            "known_kinds": [kind for kind in KINDS if kind in known],
            "shown_kinds": TENSOR_KINDS,
            "asked_stat": self.stat or "norm",
            "scales": SCALES,
        }

    def part_boxes(self) -> dict[str, Any]:
        fits = finder_of(self.run, self.f).fits
        boxes = [box for box in self._in_order() if fits(box.module)]
        table = TablePage.at(self.row, ROWS, len(boxes))
        return {
            "table": table,
            "boxes": table.cut(boxes),
            "learned": self.model.step,
            "why_unknown": self.model.why,
            "flops_words": flops_words,
            "forms_words": forms_words,
        }

    def part_why(self) -> dict[str, Any]:
        """Return why all boxes are gray, if they are."""
        kind = self.kind or usual_color(self.run.reader)
        return {"why_gray": why_uncaptured(self.run.store, kind, self.run.state == "live", *self.values_in)}

    def part_onset(self) -> dict[str, Any]:
        """Return the first incident of non-finite values, and its box if the picture has values of it."""
        found: Incident | None = incident_of(self.run)
        is_shown = found is not None and found.culprit_known and found.source != "replay"
        return {"onset": found, "onset_box": box_id(found.culprit.tap) if found is not None and is_shown else ""}

    def _in_order(self) -> list[ModelBox]:
        """Return the boxes but repeats, each before its parts."""
        found: list[ModelBox] = []
        waiting = list(reversed(self.model.parts))
        while waiting:
            box = self.model.boxes[waiting.pop()]
            if box.kind != "repeat":
                found.append(box)
            waiting += reversed(box.parts)
        return found


def taps_in_order(taps: Sequence[answers.Tap], modules: Iterable[str]) -> Iterator[answers.Tap]:
    """Yield taps in the order of the model's modules, with each module's kinds together."""
    of_module: dict[str, list[answers.Tap]] = {path: [] for path in modules}
    for tap in taps:
        of_module.setdefault(tap.module, []).append(tap)
    for mine in of_module.values():
        yield from sorted(mine, key=_order_of)


def _order_of(tap: answers.Tap) -> tuple[int, str, str, int]:
    return KINDS.index(tap.kind), tap.phase, tap.index, tap.call


VALUE_ROWS: Final = 50  # of the table of newest values on one page
MAX_UNCAPTURED: Final = 100
VALUE_STATS: Final = ("norm", "mean", "std", "min", "max")
LAYER_ROWS: Final = 100  # modules per page of the list
SPARKS: Final[tuple[tuple[Kind, str], ...]] = (("output", "rms"), ("output_grad", "norm"))  # of each module
MAX_LINES: Final = 30  # of findings and events
HALF_LIVES: Final = (5, 20, 100, 500)
LAYER_SCALES: Final = ("log", "symlog", "linear")
KEPT: Final = ("kind", "index", "phase", "smooth", "y", "order", *SHARED)  # when the module changes


@dataclass(frozen=True, kw_only=True)
class LayerPage(RunPage):
    """One module, or a list of modules to choose from. The root's path is empty."""

    name = "layer"
    parts = ("facts", "experts", "values", "ranks", "alerts", "hooks", "pickers", "found", "list", "numbers")
    of_list: ClassVar = {"found", "list", "numbers"}  # parts of the choice

    module: Annotated[str | None, Query(max_length=1000)] = None
    f: FindText = ""
    row: RowNumber = 0
    match: Annotated[str, Query(max_length=1000, description="a glob on the module's path, for the table")] = ""
    row_kind: Short = ""
    value_row: RowNumber = 0
    spread: Short = "rms"

    @cached_property
    def layer(self) -> LayerView | None:
        """The module's facts; None if there is no such module."""
        return None if self.module is None else layer_of(self.run.reader, self.module)

    def respond(self) -> Response:
        """Render the module, or the choice."""
        if self.layer is not None or (self.module is None and self.part and self.of_list.issuperset(self.part)):
            return Page.respond(self)
        list_: dict[str, Any] = {"layer": None, **self.part_numbers()}
        if self.module is None:
            return self.render("layer", list_ | self.part_list())
        unknown = {"unknown": self.module, "near": near(self.run.reader, self.module)}
        answer = self.render("layer", list_ | _choice(self.run, "", 0, *self._shown) | unknown)
        answer.status_code = 404
        return answer

    def values(self) -> dict[str, Any]:
        """Return the module, its words, and the way to others."""
        words = {"kind_words": KIND_WORDS, "stat_words": STAT_WORDS, "half_lives": HALF_LIVES, "scales": LAYER_SCALES}
        way = _way(self.request, self.run)
        asked = {"query": self.request.query_params, "is_joint": self.run.is_derived}
        return {"layer": self.layer, "to": way, **asked, **words}

    @property
    def _shown(self) -> tuple[int | None, int | None]:
        """The first and the last step on the axis."""
        return (None, None) if self.span is None else (self.span.first, self.span.last)

    @property
    def shown(self) -> LayerView:
        """The module, which exists if its parts are requested."""
        assert self.layer is not None
        return self.layer

    def part_facts(self) -> dict[str, Any]:
        """Return the module's shapes, and its neighbors in the data flow."""
        path = self.shown.module.path
        step = None if self.span is None else self.span.step
        feeds = feeds_of(self.run.reader, path, step) if path else None
        spread = {"placements": self.shown.module.placements, "placement_note": placement_note(self.run, self.shown)}
        calls = calls_of(self.run.store, self.shown.taps, *self.values_in)[path]
        return {"shapes": self.shown.module.shapes, "calls": calls, "feeds": feeds, **spread}

    def part_experts(self) -> dict[str, Any]:
        """Return the loads of all routers of the model, if this module is one."""
        if self.layer is None:
            return {"experts": []}
        return {"experts": experts_of(self.run.reader, self.shown.module.path, *self.values_in)}

    def part_values(self) -> dict[str, Any]:
        """Return the newest values, or those of the steps that the page is about."""
        rows = values_of(self.run.reader, self.shown.taps, *self.values_in)
        nothing = ""
        if self.span is not None and self.span.held and all(row.step is None for row in rows):
            nothing = nothing_in(self.run.reader, self.span, "No tensor of this layer was captured in")
        unsure = {each for each in self.shown.taps.numbers.tolist() if is_unsure(self.run, each)}
        return {"rows": rows, "nothing": nothing, "shown_stats": SHOWN_STATS, "unsure": unsure}

    def part_ranks(self) -> dict[str, Any]:
        """Return how far the ranks of a training are apart in this module."""
        wanted = self.shown.taps
        stat = self.spread if self.spread in STAT_NAMES else "rms"
        if not self.run.is_derived:
            return {"spread_steps": "", "spreads": (), "spread": stat, "no_spread": ""}
        joint = joint_of(self.run)
        self.runs.read_ranks(joint)
        found = layers_of(self.run.store, partial(stores_at, joint), wanted, stat, *self.values_in)
        spreads = () if found is None else spreads_of(found, range(len(found.taps.taps)))
        steps, nothing = "", "No step of this module was captured by all ranks."
        if found is not None:
            steps = words_of(found.first_step, found.step)
        elif self.span is not None and self.span.held:
            nothing = nothing_in(self.run.reader, self.span, "No tensor of this module was captured by all ranks in")
        return {"spread_steps": steps, "spreads": spreads, "spread": stat, "no_spread": nothing}

    def part_alerts(self) -> dict[str, Any]:
        lines = lines_of(self.run, self.shown.module.path, *self.listed_in)
        return {"lines": lines[:MAX_LINES], "lines_total": len(lines), "signs": SIGNS}

    def part_pickers(self) -> dict[str, Any]:
        """Return the charts, and what chooses their tensors."""
        if self.layer is None:
            return {}
        taps = [answers.Tap.of(number, tap) for number, tap in self.layer.taps]
        asked = {name: self.request.query_params.get(name, "") for name in ("kind", "index", "call", "phase")}
        return {"charts": LayerCharts(taps, asked, local_kinds(self.run))}

    def part_found(self) -> dict[str, Any]:
        return self.part_list()

    def part_list(self) -> dict[str, Any]:
        """Return the modules to choose from."""
        return {} if self.layer is not None else _choice(self.run, self.f, self.row, *self._shown)

    def part_numbers(self) -> dict[str, Any]:
        """Return the table of the newest values of all tensors, which only the list of layers shows."""
        if self.layer is not None:
            return {}
        reader = self.run.reader
        every = reader.taps(self.match or None, cast("Kind | None", self.row_kind or None)).taps
        if self.f.strip():
            fits = finder_of(self.run, self.f).fits
            every = tuple(tap for tap in every if fits(tap.module))
        table, coverage = TablePage.at(self.value_row, VALUE_ROWS, len(every)), reader.coverage()
        types = {each.path: each.type for each in coverage}
        wanted = list(islice(taps_in_order(every, types), table.first, table.last))
        rows = [row for row in values_of(reader, tap_list(wanted), *self.values_in) if row.step is not None]
        left_out = len(wanted) - len(rows)
        not_captured = [each for each in coverage if not each.captured]
        found = {
            "match": self.match,
            "kind": self.row_kind,
            "rows": rows,
            "types": types,
            "left_out": left_out,
            "nothing": nothing_in(reader, self.span, "Nothing was captured in") if self.span and left_out else "",
            "table": table,
            "not_captured": not_captured[:MAX_UNCAPTURED],
            "not_captured_left_out": max(0, len(not_captured) - MAX_UNCAPTURED),
            "usage": self.run.store.usage(),
            "lost": losses_of(self.run),
            "stats": VALUE_STATS,
        }
        return {"numbers": found}

    def part_hooks(self) -> dict[str, Any]:
        """Return the hooks on the module and its parameters, and the number of those that run for every module."""
        own, everywhere = hooks_of(self.run.reader, self.shown)
        return {"hooks": own, "hooks_everywhere": everywhere}


def _way(request: Request, run: Run) -> Callable[[str], str]:
    """Return a function for the address of another module in the same view. The root has an empty path."""
    kept = {name: request.query_params[name] for name in KEPT if name in request.query_params}
    return lambda path: address_of(run, "layer", module=path, **kept)


def _choice(run: Run, f: str, row: int, first: int | None, last: int | None) -> dict[str, Any]:
    """Return the matching modules to choose from: the tree of the model, or a list if some are searched."""
    finder, modules = finder_of(run, f), run.reader.modules(taps=False)
    fitting = [module for module in modules if finder.fits(module.path)]
    table = TablePage.at(row, LAYER_ROWS, len(fitting))
    common: dict[str, Any] = {"unknown": None, "near": [], "asked": f, "problem": finder.problem}
    rows = table.cut(fitting)
    sparks = {
        kind: sparks_of(run.store, {each.path for each in rows}, kind, stat, first, last) for kind, stat in SPARKS
    }
    return {**common, "rows": rows, "sparks": sparks, "is_tree": not f.strip(), "table": table, "many": len(modules)}


@dataclass(frozen=True, kw_only=True)
class DrawerPage(PartsPage):
    """A module, or one of its calls."""

    name = "drawer"
    instead = "layer"
    parts = ("about", "numbers", "kept", "happened")

    module: Annotated[str, Query(max_length=1000)] = ""
    call: Annotated[int, Query(ge=0, le=2**31)] = 0
    phase: Annotated[Phase, Query()] = "train"

    def kept(self) -> dict[str, Any]:
        return {"module": self.module}

    @cached_property
    def layer(self) -> LayerView:
        """The module's facts."""
        found = layer_of(self.run.reader, self.module)
        if found is None:
            raise HTTPException(404, f"this run has no module {self.module[:200]!r}: reload the page")
        return found

    def values(self) -> dict[str, Any]:
        is_one_of_several = any(tap.call or tap.phase == "eval" for tap in self.layer.taps.taps)
        this = "this call" if is_one_of_several else "this layer"  # that its tensors are of
        return {"layer": self.layer, "this": this, "flops_words": flops_words, "forms_words": forms_words}

    def part_about(self) -> dict[str, Any]:
        box = box_of(self.run.reader.model(self.values_in[1]), self.module, self.call, self.phase)
        calls = calls_of(self.run.store, self.layer.taps, *self.values_in)[self.module]
        return {"box": box, "calls": calls, "placement_note": placement_note(self.run, self.layer)}

    def part_numbers(self) -> dict[str, Any]:
        taps = call_of(self.layer.taps, self.call, self.phase)
        rows = values_of(self.run.reader, taps, *self.values_in)
        return {"rows": sorted(rows, key=lambda row: KINDS.index(row.tap.kind))}

    def part_happened(self) -> dict[str, Any]:
        return {"lines": lines_of(self.run, self.module, *self.listed_in)}

    def part_kept(self) -> dict[str, Any]:
        """Return the snapshot of one of its tensors that is nearest to the steps of the page."""
        kept = nearest_of(snapshots_of(self.run.reader, self.module, self.call), self.span)
        first, last = self.values_in
        is_about = kept is None or first is None or last is None or first <= kept.step <= last
        return {"kept": kept, "is_about": is_about}


# The page Precision: what casts to formats of low precision would make of the values of layers.

CAST_ROWS: Final = 50  # of the table on one page
MAGNITUDE_BINS: Final = 120
FORMAT_TITLES: Final = {"e4m3": "E4M3", "e5m2": "E5M2", "e2m1": "E2M1", "fp16": "fp16", "bf16": "bf16"}
SCALE_TITLES: Final = {"max": "largest value", "p99.9": "99.9th percentile"}


@dataclass(frozen=True, kw_only=True)
class PrecisionPage(RunPage):
    """Layers by formats. Invalid query parameters fall back to defaults."""

    name = "precision"
    parts = ("verdict", "layers")

    kind: str = ""
    format: str = ""
    scale: str = ""
    f: FindText = ""
    row: RowNumber = 0
    tap: str = ""

    def values(self) -> dict[str, Any]:
        return {"formats": FORMAT_TITLES, "scales": SCALE_TITLES, "asked": self.asked, "why_not": why_not}

    @property
    def asked(self) -> dict[str, str]:
        """What is shown."""
        return {
            "kind": self.kind if self.kind in KINDS else "",
            "format": self.format if self.format in FORMAT_TITLES else next(iter(FORMAT_TITLES)),
            "scale": self.scale if self.scale in SCALE_TITLES else next(iter(SCALE_TITLES)),
            "f": self.f,
        }

    @cached_property
    def found(self) -> answers.Precision:
        """What casts would make of all tensors."""
        asked, kind = self.asked, cast(Kind, self.asked["kind"]) or None
        return self.run.reader.precision(asked["format"], asked["scale"], None, kind, *self.values_in, MAX_CAST)

    @cached_property
    def layers(self) -> list[answers.PrecisionTap]:
        """What is shown, the worst first."""
        fits = finder_of(self.run, self.f).fits
        return [each for each in self.found.taps if fits(each.module)]

    def part_verdict(self) -> dict[str, Any]:
        """Return which tensors should stay in bf16, and the histogram of one."""
        chosen = next((each for each in self.layers if str(each.number) == self.tap), next(iter(self.layers), None))
        stay = [each for each in self.layers if not each.formats[self.asked["format"]].fits]
        return {"layers": self.layers, "stay": stay, "chosen": chosen, "drawn": chosen and self._drawn(chosen)}

    def _drawn(self, tap: answers.PrecisionTap) -> dict[str, Any] | None:
        """Return a tensor's histogram, and the limits of the format in it."""
        counted = self.run.reader.histograms(tap.number or 0, *self.values_in, 1, MAGNITUDE_BINS)
        if not len(counted.counts):
            return None
        limits = tap.formats[self.asked["format"]].limits
        return drawn_magnitudes(counted.edges, counted.counts[0].astype(np.float64), limits)

    def part_layers(self) -> dict[str, Any]:
        table = TablePage.at(self.row, CAST_ROWS, len(self.layers))
        return {"found": self.found, "layers": table.cut(self.layers), "table": table, "most": MAX_CAST}


# The page Gradient flow: activations and gradients from input to output at one step, and over steps.

FLOW_ROWS: Final = 100  # of the table on one page
ACTIVATIONS: Final[Kind] = "output"
GRADIENTS: Final[Kind] = "output_grad"
NONFINITE: Final = STAT_NAMES.index("nonfinite")

Call = tuple[str, str, int, str]  # module, index, call, and phase
Found = dict[Kind, answers.LatestTap]  # the output of a call, the gradient of the output, or both


@dataclass(frozen=True, slots=True)
class FlowLayer:
    """A row of the table: a module's call, its output, and the gradient of the output."""

    tap: answers.Tap
    type: str
    first_step: int  # the steps of these values: several if they are merged
    step: int
    activation: float | None
    gradient: float | None
    nonfinite: bool


def layers_in(reader: Reader, first: int | None, last: int | None) -> list[tuple[Call, Found]]:
    """Return what the layers have in their newest step of these, from input to output."""
    layers: dict[Call, Found] = {}
    most = max(1, len(reader.taps().taps))
    for kind in (ACTIVATIONS, GRADIENTS):
        for tap in taps_of_all_values(reader.latest(kind=kind, first=first, last=last, limit=most)):
            layers.setdefault((tap.module, tap.index, tap.call, tap.phase), {})[kind] = tap
    return sorted(layers.items(), key=lambda layer: min(each.number or 0 for each in layer[1].values()))


def _layer_of(found: Found, types: Mapping[str, str], stats: Mapping[Kind, str]) -> FlowLayer:
    tap, *_ = found.values()
    value = {kind: float(each.values[STAT_NAMES.index(stats[kind])]) for kind, each in found.items()}
    return FlowLayer(
        tap,
        types.get(tap.module, ""),
        min(each.first_step for each in found.values()),
        max(each.step for each in found.values()),
        value.get(ACTIVATIONS),
        value.get(GRADIENTS),
        any(each.values[NONFINITE] for each in found.values()),
    )


@dataclass(frozen=True, kw_only=True)
class FlowPage(RunPage):
    """Activations and gradients from input to output."""

    name = "flow"
    parts = ("layers",)

    f: FindText = ""
    type: Annotated[str, Query(max_length=1000, description="only modules of this class")] = ""
    kind: Annotated[str, Query(max_length=50, description="the kind of the heatmap over steps")] = ""
    stat: Short = ""
    act: Annotated[str, Query(max_length=50, description="the stat of the activations")] = ""
    grad: Annotated[str, Query(max_length=50, description="the stat of the gradients")] = ""
    row: RowNumber = 0

    @cached_property
    def asked(self) -> dict[str, Any]:
        """The query, with defaults."""
        checks.require_kind(self.kind or None)
        return {
            "f": self.f,
            "type": self.type,
            "kind": self.kind or GRADIENTS,
            "stat": _stat_of(self.stat, "norm"),
            "act": _stat_of(self.act, "rms"),
            "grad": _stat_of(self.grad, "norm"),
        }

    def values(self) -> dict[str, Any]:
        """Return the query, the choices, and why charts are empty."""
        store, reader, live = self.run.store, self.run.reader, self.run.state == "live"
        known = {tap.kind for tap in reader.taps().taps}
        return {
            "asked": self.asked,
            "types": sorted(set(types_of(reader).values())),
            "known_kinds": [kind for kind in KINDS if kind in known],
            "empty": why_empty(store, self.asked["kind"], live),
            "no_updates": why_empty(store, "update", live),
        }

    def part_layers(self) -> dict[str, Any]:
        fits = finder_of(self.run, self.f).fits
        reader, span = self.run.reader, self.span
        every, types = layers_in(reader, *self.values_in), types_of(reader)
        layers = [found for (path, *_), found in every if self.type in ("", types.get(path, "")) and fits(path)]
        table = TablePage.at(self.row, FLOW_ROWS, len(layers))
        nothing = ""
        if span and span.held and not every:
            nothing = nothing_in(self.run.reader, span, "No layer was captured in")
        stats = {ACTIVATIONS: self.asked["act"], GRADIENTS: self.asked["grad"]}
        return {
            "nothing": nothing,
            "table": table,
            "layers": [_layer_of(found, types, stats) for found in table.cut(layers)],
        }


def _stat_of(given: str, usual: str) -> str:
    checks.require("stat", given or usual, STAT_NAMES)
    return given or usual
