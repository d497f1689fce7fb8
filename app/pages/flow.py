"""The page Gradient flow: activations and gradients from input to output at one step, and over steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Final

from fastapi import Query

from hookcore.records import KINDS, Kind, Tap
from hookcore.store import STAT_NAMES, Store, checks

from ..analysis.coverage import why_empty
from ..analysis.selection import finder_of
from .page import FindText, RowNumber, RunPage, Short, first_row_of_page
from .views.moment import nothing_in

ROWS: Final = 100  # of the table on one page
ACTIVATIONS: Final[Kind] = "output"
GRADIENTS: Final[Kind] = "output_grad"
NAMED: Final = {ACTIVATIONS: "activation", GRADIENTS: "gradient"}
NONFINITE: Final = STAT_NAMES.index("nonfinite")


@dataclass(frozen=True, slots=True)
class FlowLayer:
    """A row of the table: a module's call, its output, and the gradient of the output."""

    tap: Tap
    type: str
    first_step: int  # the steps of these values: several if they are merged
    step: int
    activation: float | None
    gradient: float | None
    nonfinite: bool


def layers_in(store: Store, first: int | None, last: int | None, act: str, grad: str) -> list[FlowLayer]:
    """Return the layers with their newest values in these steps, from input to output."""
    every = store.taps()
    places = [place for place, tap in enumerate(every.taps) if tap.kind in (ACTIVATIONS, GRADIENTS)]
    wanted = every.at(places)
    latest = store.newest(first=first, last=last, wanted=wanted)
    column = {ACTIVATIONS: STAT_NAMES.index(act), GRADIENTS: STAT_NAMES.index(grad)}
    types = store.module_types()
    layers: dict[tuple[str, str, int, str], FlowLayer] = {}
    for tap, since, at, values in zip(latest.taps, latest.first_steps, latest.steps, latest.values, strict=True):
        key = tap.module, tap.index, tap.call, tap.phase
        begun = FlowLayer(tap, types.get(tap.module, ""), int(since), int(at), None, None, False)
        layer = layers.setdefault(key, begun)
        value: dict[str, Any] = {NAMED[tap.kind]: float(values[column[tap.kind]])}
        bad = layer.nonfinite or bool(values[NONFINITE])
        ends = min(layer.first_step, int(since)), max(layer.step, int(at))
        layers[key] = replace(layer, **value, first_step=ends[0], step=ends[1], nonfinite=bad)
    return list(layers.values())


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
        store = self.run.store
        known = {tap.kind for tap in store.taps().taps}
        return {
            "asked": self.asked,
            "types": sorted({module.type for module in store.modules()}),
            "known_kinds": [each for each in KINDS if each in known],
            "empty": why_empty(store, self.asked["kind"]),
            "no_updates": why_empty(store, "update"),
        }

    def part_layers(self) -> dict[str, Any]:
        """Return the table of layers."""
        fits = finder_of(self.run, self.f).fits
        store, span = self.run.store, self.span
        every = layers_in(store, *self.values_in, self.asked["act"], self.asked["grad"])
        layers = [each for each in every if self.type in ("", each.type) and fits(each.tap.module)]
        first = first_row_of_page(self.row, len(layers), ROWS)
        nothing = nothing_in(store, span, "No layer was captured in") if span and span.held and not every else ""
        return {
            "nothing": nothing,
            "layers": layers[first : first + ROWS],
            "rows_first": first,
            "rows_total": len(layers),
            "rows_a_page": ROWS,
        }


def _stat_of(given: str, usual: str) -> str:
    checks.require("stat", given or usual, STAT_NAMES)
    return given or usual
