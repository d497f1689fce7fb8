"""The page Layer: everything about one module, or a list of modules to choose from. Parts can be requested alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Final

from fastapi import Query, Request
from starlette.responses import Response

from hookcore.store import STAT_NAMES

from ..analysis.modulerows import calls_of
from ..analysis.rankstores import stores_at
from ..analysis.selection import finder_of
from ..analysis.spreads import layers_of, spreads_of
from ..formats import words_of
from ..runs import JointRun, Run
from ..runs.ranked import is_unsure, read_every
from .frame import address_of
from .page import FindText, Page, RowNumber, RunPage, Short, TablePage
from .views.event_list import SIGNS
from .views.layer import SHOWN_STATS, LayerView, feeds_of, hooks_of, layer_of, lines_of, near, placement_note, values_of
from .views.moment import nothing_in
from .views.span import SHARED
from .views.words import KIND_WORDS, STAT_WORDS

ROWS: Final = 100  # modules per page of the list
MAX_LINES: Final = 30  # of findings and events
HALF_LIVES: Final = (5, 20, 100, 500)
SCALES: Final = ("log", "symlog", "linear")
KEPT: Final = ("kind", "index", "phase", "smooth", "y", "order", *SHARED)  # when the module changes


@dataclass(frozen=True, kw_only=True)
class LayerPage(RunPage):
    """One module, or a list of modules to choose from. The root's path is empty."""

    name = "layer"
    parts = ("facts", "values", "ranks", "alerts", "hooks")

    module: Annotated[str | None, Query(max_length=1000)] = None
    f: FindText = ""
    row: RowNumber = 0
    spread: Short = "rms"

    @cached_property
    def layer(self) -> LayerView | None:
        """The module's facts; None if there is no such module."""
        return None if self.module is None else layer_of(self.run.reader, self.module)

    def respond(self) -> Response:
        """Render the module, or the choice."""
        if self.layer is not None:
            return Page.respond(self)
        if self.module is None:
            return self.render("layer", {"layer": None, **_choice(self.run, self.f, self.row)})
        unknown = {"unknown": self.module, "near": near(self.run.reader, self.module)}
        answer = self.render("layer", {"layer": None, **_choice(self.run, "", 0), **unknown})
        answer.status_code = 404
        return answer

    def values(self) -> dict[str, Any]:
        """Return the module, its words, and the way to others."""
        words = {"kind_words": KIND_WORDS, "stat_words": STAT_WORDS, "half_lives": HALF_LIVES, "scales": SCALES}
        way = _way(self.request, self.run)
        asked = {"query": self.request.query_params, "is_joint": isinstance(self.run, JointRun)}
        return {"layer": self.layer, "to": way, **asked, **words}

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
        joint, wanted = self.run, self.shown.taps
        stat = self.spread if self.spread in STAT_NAMES else "rms"
        if not isinstance(joint, JointRun):
            return {"spread_steps": "", "spreads": (), "spread": stat, "no_spread": ""}
        read_every(self.runs, joint)
        found = layers_of(joint.store, partial(stores_at, joint), wanted, stat, *self.values_in)
        spreads = () if found is None else spreads_of(found, range(len(found.taps.taps)))
        steps, nothing = "", "No step of this module was captured by all ranks."
        if found is not None:
            steps = words_of(found.first_step, found.step)
        elif self.span is not None and self.span.held:
            nothing = nothing_in(joint.reader, self.span, "No tensor of this module was captured by all ranks in")
        return {"spread_steps": steps, "spreads": spreads, "spread": stat, "no_spread": nothing}

    def part_alerts(self) -> dict[str, Any]:
        lines = lines_of(self.run, self.shown.module.path, *self.listed_in)
        return {"lines": lines[:MAX_LINES], "lines_total": len(lines), "signs": SIGNS}

    def part_hooks(self) -> dict[str, Any]:
        """Return the hooks on the module and its parameters, and the number of those that run for every module."""
        own, everywhere = hooks_of(self.run.reader, self.shown)
        return {"hooks": own, "hooks_everywhere": everywhere}


def _way(request: Request, run: Run) -> Callable[[str], str]:
    """Return a function for the address of another module in the same view. The root has an empty path."""
    kept = {name: request.query_params[name] for name in KEPT if name in request.query_params}
    return lambda path: address_of(run, "layer", module=path, **kept)


def _choice(run: Run, f: str, row: int) -> dict[str, Any]:
    """Return the matching modules to choose from."""
    finder, modules = finder_of(run, f), run.reader.modules(taps=False)
    fitting = [each for each in modules if finder.fits(each.path)]
    table = TablePage.at(row, ROWS, len(fitting))
    common: dict[str, Any] = {"unknown": None, "near": [], "asked": f, "problem": finder.problem}
    return {**common, "rows": table.cut(fitting), "table": table, "many": len(modules)}
