"""The page Gradient flow: activations and gradients from input to output at one step, and over steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from hookcore.records import GRADIENT_KINDS, KINDS, Kind, Tap
from hookcore.store import STAT_NAMES, Store, checks

from ..analysis.facts import Finder, finder_of
from ..runs import Run
from .frame import render, run_of

ROWS: Final = 100  # of the table on one page
ACTIVATIONS: Final[Kind] = "output"
GRADIENTS: Final[Kind] = "output_grad"
NAMED: Final = {ACTIVATIONS: "activation", GRADIENTS: "gradient"}
NONFINITE: Final = STAT_NAMES.index("nonfinite")

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Layer:
    """A row of the table: a module's call, its output, and the gradient of the output."""

    tap: Tap
    type: str
    step: int  # the step of these values
    activation: float | None
    gradient: float | None
    nonfinite: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """The query of the page."""

    step: int | None
    f: str
    type: str
    kind: str
    stat: str
    act: str
    grad: str


def layers_at(store: Store, asked: Asked, finder: Finder) -> list[Layer]:
    """Return the layers with their values at a step (default: the newest), from input to output."""
    every = store.taps()
    places = [place for place, tap in enumerate(every.taps) if tap.kind in (ACTIVATIONS, GRADIENTS)]
    wanted = every.at(places)
    latest = store.latest(last=asked.step, wanted=wanted)
    column = {ACTIVATIONS: STAT_NAMES.index(asked.act), GRADIENTS: STAT_NAMES.index(asked.grad)}
    types = store.module_types()
    layers: dict[tuple[str, str, int, str], Layer] = {}
    for tap, step, values in zip(latest.taps, latest.steps, latest.values, strict=True):
        key = tap.module, tap.index, tap.call, tap.phase
        layer = layers.setdefault(key, Layer(tap, types.get(tap.module, ""), int(step), None, None, False))
        value: dict[str, Any] = {NAMED[tap.kind]: float(values[column[tap.kind]])}
        bad = layer.nonfinite or bool(values[NONFINITE])
        layers[key] = replace(layer, **value, step=max(layer.step, int(step)), nonfinite=bad)
    return [layer for layer in layers.values() if asked.type in ("", layer.type) and finder.fits(layer.tap.module)]


def why_empty(run: Run, kind: str) -> str:
    """Return why there is no data of a kind, or an empty string."""
    store = run.store
    if len(store.taps(None, kind).taps):
        return ""
    if store.steps().newest is None:
        return "No steps yet. The heatmap starts with the first step."
    if kind == "update":
        return (
            "Updates are not captured, because they need a copy of every parameter. "
            "To capture them, select update on the Hooks page."
        )
    if kind in GRADIENT_KINDS:
        return (
            f"No {kind} was captured: no module has run a backward pass yet (model.eval()? torch.no_grad()?), "
            "or this kind is not selected on the Hooks page."
        )
    return f"No {kind} was captured: no module has run yet, or this kind is not selected on the Hooks page."


def _stat_of(given: str, usual: str) -> str:
    checks.require("stat", given or usual, STAT_NAMES)
    return given or usual


@router.get("/runs/{run_id}/flow", response_class=HTMLResponse)
def flow_page(
    request: Request,
    run_id: str,
    step: Annotated[str, Query(max_length=20, description="the step to hold; empty for the newest")] = "",
    f: Annotated[str, Query(max_length=1000, description="the content of the find box")] = "",
    type: Annotated[str, Query(max_length=1000, description="only modules of this class")] = "",
    kind: Annotated[str, Query(max_length=50, description="the kind of the heatmap over steps")] = "",
    stat: Annotated[str, Query(max_length=50)] = "",
    act: Annotated[str, Query(max_length=50, description="the stat of the activations")] = "",
    grad: Annotated[str, Query(max_length=50, description="the stat of the gradients")] = "",
    row: Annotated[int, Query(ge=0, le=10**9, description="the first row of the table")] = 0,
) -> HTMLResponse:
    run = run_of(request, run_id)
    checks.require_kind(kind or None)
    held = int(step) if step.isdecimal() else None
    stats = _stat_of(stat, "norm"), _stat_of(act, "rms"), _stat_of(grad, "norm")
    asked = Asked(held, f, type, kind or GRADIENTS, *stats)
    finder = finder_of(run, f)
    layers = layers_at(run.store, asked, finder)
    first = row - row % ROWS
    known = {tap.kind for tap in run.store.taps().taps}
    return render(
        request,
        "flow",
        run=run,
        asked=asked,
        problem=finder.problem,
        layers=layers[first : first + ROWS],
        rows_first=first,
        rows_total=len(layers),
        rows_a_page=ROWS,
        types=sorted({module.type for module in run.store.modules()}),
        known_kinds=[each for each in KINDS if each in known],
        empty=why_empty(run, asked.kind),
        no_updates=why_empty(run, "update"),
    )
