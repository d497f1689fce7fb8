"""The page Layer: everything about one module, or a list of modules to choose from. Parts can be requested alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final

from fastapi import Query, Request
from starlette.responses import Response

from ..analysis.selection import finder_of
from ..runs import Run
from .frame import address_of
from .page import FindText, Page, RowNumber, RunPage, first_row_of_page
from .views.event_list import SIGNS
from .views.feeds import feeds_of
from .views.layer import SHOWN_STATS, LayerView, hooks_of, layer_of, lines_of, near, values_of
from .views.span import step_in
from .views.words import KIND_WORDS, STAT_WORDS

ROWS: Final = 100  # modules per page of the list
HALF_LIVES: Final = (5, 20, 100, 500)
SCALES: Final = ("linear", "log", "symlog")
KEPT: Final = ("kind", "index", "phase", "smooth", "y", "order", "steps", "step")  # when the module changes

STEP: Final = r"^\d{0,15}$"


@dataclass(frozen=True, kw_only=True)
class LayerPage(RunPage):
    """One module, or a list of modules to choose from. The root's path is empty."""

    name = "layer"

    module: Annotated[str | None, Query(max_length=1000)] = None
    step: Annotated[str, Query(pattern=STEP, description="the values in this step; empty: the newest")] = ""
    f: FindText = ""
    row: RowNumber = 0

    @cached_property
    def layer(self) -> LayerView | None:
        """The module's facts; None if there is no such module."""
        return None if self.module is None else layer_of(self.run.store, self.module)

    def respond(self) -> Response:
        """Render the module, or the choice."""
        if self.layer is not None:
            return Page.respond(self)
        if self.module is None:
            return self.render("layer", {"layer": None, **_choice(self.run, self.f, self.row)})
        unknown = {"unknown": self.module, "near": near(self.run.store, self.module)}
        answer = self.render("layer", {"layer": None, **_choice(self.run, "", 0), **unknown})
        answer.status_code = 404
        return answer

    def values(self) -> dict[str, Any]:
        """Return the module, its words, and the way to others."""
        words = {"kind_words": KIND_WORDS, "stat_words": STAT_WORDS, "half_lives": HALF_LIVES, "scales": SCALES}
        way = _way(self.request, self.run)
        return {"layer": self.layer, "to": way, "held": self.step, "query": self.request.query_params, **words}

    @property
    def shown(self) -> LayerView:
        """The module, which exists if its parts are requested."""
        assert self.layer is not None
        return self.layer

    def part_facts(self) -> dict[str, Any]:
        """Return the module's shapes, and its neighbors in the data flow."""
        path = self.shown.module.path
        feeds = feeds_of(self.run.store, path) if path else None
        return {"shapes": self.shown.module.shapes, "feeds": feeds}

    def part_values(self) -> dict[str, Any]:
        """Return the newest values."""
        return {"rows": values_of(self.run.store, self.shown.taps, step_in(self.step)), "shown_stats": SHOWN_STATS}

    def part_alerts(self) -> dict[str, Any]:
        """Return its findings and events."""
        return {"lines": lines_of(self.run, self.shown.module.path), "signs": SIGNS}

    def part_hooks(self) -> dict[str, Any]:
        """Return the hooks on it."""
        own, everywhere = hooks_of(self.run.store, self.shown)
        return {"hooks": own, "hooks_everywhere": everywhere}


def _way(request: Request, run: Run) -> Callable[[str], str]:
    """Return a function for the address of another module in the same view. The root has an empty path."""
    kept = {name: request.query_params[name] for name in KEPT if name in request.query_params}
    others, root = address_of(run, "layer", **kept).partition("?")[2], f"{address_of(run, 'layer')}?module="
    return lambda path: "&".join(filter(None, [address_of(run, "layer", module=path) if path else root, others]))


def _choice(run: Run, f: str, row: int) -> dict[str, Any]:
    """Return the matching modules to choose from."""
    finder, modules = finder_of(run, f), run.store.modules()
    captured = {each.path: each for each in run.store.coverage()}
    fitting = [each for each in modules if finder.fits(each.path)]
    first = first_row_of_page(row, len(fitting), ROWS)
    rows = [(each, captured.get(each.path)) for each in fitting[first : first + ROWS]]
    common: dict[str, Any] = {"unknown": None, "near": [], "asked": f, "problem": finder.problem}
    return {**common, "rows": rows, "fitting": len(fitting), "many": len(modules), "first": first, "a_page": ROWS}
