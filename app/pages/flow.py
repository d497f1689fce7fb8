"""The page Gradient flow: activations and gradients from input to output at one step, and over steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final

from fastapi import Query

from hookcore.reading import Reader, answers
from hookcore.records import KINDS, Kind
from hookcore.store import STAT_NAMES, checks

from ..analysis.modules import finder_of, types_of, why_empty
from .page import FindText, RowNumber, RunPage, Short, TablePage
from .views.layer import nothing_in

ROWS: Final = 100  # of the table on one page
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
        for each in reader.latest(kind=kind, first=first, last=last, limit=most).taps:
            layers.setdefault((each.module, each.index, each.call, each.phase), {})[kind] = each
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
            "known_kinds": [each for each in KINDS if each in known],
            "empty": why_empty(store, self.asked["kind"], live),
            "no_updates": why_empty(store, "update", live),
        }

    def part_layers(self) -> dict[str, Any]:
        fits = finder_of(self.run, self.f).fits
        reader, span = self.run.reader, self.span
        every, types = layers_in(reader, *self.values_in), types_of(reader)
        layers = [found for (path, *_), found in every if self.type in ("", types.get(path, "")) and fits(path)]
        table = TablePage.at(self.row, ROWS, len(layers))
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
