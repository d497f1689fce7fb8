"""The page Layer: everything about one module, or a list of modules to choose from. Parts can be requested alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from ..analysis.facts import finder_of
from ..runs import Run
from .frame import address_of, render, run_of
from .views.event_list import SIGNS
from .views.layer import SHOWN_STATS, Layer, alerts_of, hooks_of, layer_of, near, values_of
from .views.words import KIND_WORDS, STAT_WORDS

ROWS: Final = 100  # modules per page of the list
HALF_LIVES: Final = (5, 20, 100, 500)
SCALES: Final = ("linear", "log", "symlog")
KEPT: Final = ("kind", "index", "phase", "smooth", "y", "steps", "step")  # of the query, when the module changes

Part = Literal["facts", "values", "alerts", "hooks"]
PARTS: Final[tuple[Part, ...]] = ("facts", "values", "alerts", "hooks")
STEP: Final = r"^\d{0,15}$"

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/layer", response_class=HTMLResponse)
def layer_page(
    request: Request,
    run_id: str,
    module: Annotated[str | None, Query(max_length=1000, description="its path; the root's is empty")] = None,
    step: Annotated[str, Query(pattern=STEP, description="the values in this step; empty: the newest")] = "",
    f: Annotated[str, Query(max_length=1000, description="the content of the find box")] = "",
    row: Annotated[int, Query(ge=0, le=10**9, description="the first module on this page of the list")] = 0,
    part: Annotated[list[Part] | None, Query(max_length=9, description="only these parts, without the frame")] = None,
) -> HTMLResponse:
    """Show one module. Empty form fields are ignored."""
    run = run_of(request, run_id)
    if module is None:
        return render(request, "layer", run=run, layer=None, **_choice(run, f, row))
    layer = layer_of(run.store, module)
    if layer is None:
        unknown = {"unknown": module, "near": near(run.store, module)}
        answer = render(request, "layer", run=run, layer=None, **(_choice(run, "", 0) | unknown))
        answer.status_code = 404
        return answer
    values: dict[str, Any] = {"layer": layer, "parts": part or PARTS, "to": _way(request, run), "held": step}
    for name in part or PARTS:
        values |= _MAKERS[name](run, layer, int(step) if step else None)
    words = {"kind_words": KIND_WORDS, "stat_words": STAT_WORDS, "half_lives": HALF_LIVES, "scales": SCALES}
    return render(request, "layer/parts" if part else "layer", run=run, query=request.query_params, **words, **values)


def _way(request: Request, run: Run) -> Callable[[str], str]:
    """Return a function for the address of another module in the same view. The root has an empty path."""
    kept = {name: request.query_params[name] for name in KEPT if name in request.query_params}
    others = address_of(run, "layer", **kept).partition("?")[2]
    return lambda path: "&".join(filter(None, [address_of(run, "layer", module=path) if path else _root(run), others]))


def _root(run: Run) -> str:
    return f"{address_of(run, 'layer')}?module="


def _facts(run: Run, layer: Layer, step: int | None) -> dict[str, Any]:
    return {"shapes": layer.module.shapes}


def _values(run: Run, layer: Layer, step: int | None) -> dict[str, Any]:
    return {"rows": values_of(run.store, layer.taps, step), "shown_stats": SHOWN_STATS}


def _alerts(run: Run, layer: Layer, step: int | None) -> dict[str, Any]:
    return {"lines": alerts_of(run, layer.module.path), "signs": SIGNS}


def _hooks(run: Run, layer: Layer, step: int | None) -> dict[str, Any]:
    own, everywhere = hooks_of(run.store, layer)
    return {"hooks": own, "hooks_everywhere": everywhere}


_MAKERS: Final[dict[Part, Callable[[Run, Layer, int | None], dict[str, Any]]]] = {
    "facts": _facts,
    "values": _values,
    "alerts": _alerts,
    "hooks": _hooks,
}


def _choice(run: Run, f: str, row: int) -> dict[str, Any]:
    """Return the matching modules to choose from."""
    finder, modules = finder_of(run, f), run.store.modules()
    captured = {each.path: each for each in run.store.coverage()}
    fitting = [each for each in modules if finder.fits(each.path)]
    first = min(row - row % ROWS, max(0, (len(fitting) - 1) // ROWS * ROWS))
    rows = [(each, captured.get(each.path)) for each in fitting[first : first + ROWS]]
    common: dict[str, Any] = {"unknown": None, "near": [], "asked": f, "problem": finder.problem}
    return {**common, "rows": rows, "fitting": len(fitting), "many": len(modules), "first": first, "a_page": ROWS}
