"""The page Overview: a summary of the run and every layer's newest values. Its parts can be requested alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import Query

from hookcore.findings import key_figures_of
from hookcore.records import KINDS, Kind, Tap
from hookcore.store import STAT_NAMES, Latest, Store, TapList
from hookcore.store.checks import require, require_kind

from ..analysis.coverage import losses_of
from .page import RowNumber, RunPage, first_row_of_page
from .views.event_list import all_lines, finding_lines
from .views.overview import SHOWN_SCALARS, scalar_lines, shown_alerts, tiles_of, why_empty
from .views.saved_steps import capsules_of
from .views.span import Span, span_of
from .views.verdict import claim_of, progress_of, stop_of

ROWS: Final = 50  # of the table on one page
NEWS: Final = 6
ALERTS: Final = 8
MAX_UNCAPTURED: Final = 100
MAX_REFRESH_S: Final = 3600
PICTURED: Final[tuple[Kind, ...]] = ("output_grad", "param_grad", "output", "input_grad", "input", "update", "param")
SHOWN_STATS: Final = ("norm", "mean", "std", "min", "max")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: the newest values of one tap."""

    tap: Tap
    type: str
    step: int
    stats: tuple[float, ...]  # in the order of SHOWN_STATS
    zero_fraction: float
    nan: int
    inf: int

    @property
    def has_nonfinite(self) -> bool:
        """Whether the tensor had a NaN or an infinity."""
        return bool(self.nan or self.inf)


def taps_in_order(store: Store, match: str | None = None, kind: str | None = None) -> TapList:
    """Return the taps in the order of the model's modules, with each module's kinds together."""
    found = store.taps(match, kind)
    paths = dict.fromkeys([*store.module_types(), *(tap.module for tap in found.taps)])
    places = {path: place for place, path in enumerate(paths)}
    order = range(len(found.taps))
    return found.at(sorted(order, key=lambda each: (places[found.taps[each].module], _order_of(found.taps[each]))))


def overview_rows(store: Store, wanted: TapList, last: int | None = None) -> list[Row]:
    """Return the newest values of taps up to step `last`."""
    latest = store.latest(wanted=wanted.at(np.argsort(wanted.numbers).tolist()), last=last)
    rows = {row.tap: row for row in _rows(latest, store.module_types())}
    return [rows[tap] for tap in wanted.taps if tap in rows]


def _order_of(tap: Tap) -> tuple[int, str, str, int]:
    return KINDS.index(tap.kind), tap.phase, tap.index, tap.call


def _rows(latest: Latest, types: dict[str, str]) -> list[Row]:
    column = {name: place for place, name in enumerate(latest.stats)}
    chosen = [column[name] for name in SHOWN_STATS]
    return [
        Row(
            tap,
            types.get(tap.module, ""),
            int(step),
            tuple(values[chosen].tolist()),
            float(values[column["zero_fraction"]]),
            int(values[column["nan"]]),
            int(values[column["inf"]]),
        )
        for tap, step, values in zip(latest.taps, latest.steps, latest.values, strict=True)
    ]


def usual_kind(store: Store) -> Kind:
    """Return the default kind of the heatmap: gradients, if there are any."""
    known = {tap.kind for tap in store.taps().taps}
    return next((kind for kind in PICTURED if kind in known), PICTURED[0])


@dataclass(frozen=True, kw_only=True)
class OverviewPage(RunPage):
    """A summary of the run, and every layer's newest values. Empty form fields are ignored."""

    name = "overview"

    match: Annotated[str, Query(max_length=1000, description="a glob on the module's path")] = ""
    kind: Annotated[str, Query(max_length=50, description="the kind in the heatmap of all layers")] = ""
    row_kind: Annotated[str, Query(max_length=50, description="the kind in the table")] = ""
    stat: Annotated[str, Query(max_length=50, description="the stat in the heatmap of all layers")] = ""
    refresh: Annotated[str, Query(max_length=20, description="seconds after which the page reloads")] = ""
    row: RowNumber = 0
    scalar: Annotated[str, Query(max_length=1000, description="the scalar in the large chart")] = ""
    scalars: Annotated[Literal["", "all"], Query(description="all of them, not only the first few")] = ""
    steps: Annotated[str, Query(max_length=50, description="the steps shown: 100-200, or live:500")] = ""
    step: Annotated[str, Query(max_length=20, description="the step that the page is held at")] = ""

    @cached_property
    def span(self) -> Span | None:
        """The steps shown."""
        return span_of(self.run, self.steps, self.step)

    @property
    def last(self) -> int | None:
        """The step that the page is held at, if any."""
        return self.span.last if self.span is not None and self.span.held else None

    @property
    def refresh_s(self) -> int | None:
        """The seconds after which the page reloads, if any."""
        text = self.refresh
        return min(int(text), MAX_REFRESH_S) if text.isdecimal() and int(text) > 0 else None

    def values(self) -> dict[str, Any]:
        """Return what the heatmap shows, and the steps."""
        require_kind(self.kind or None)
        if self.stat:
            require("stat", self.stat, STAT_NAMES)
        usual = usual_kind(self.run.store)
        heat = {"heat_stat": self.stat or "norm", "usual_kind": usual, "heat_kind": self.kind or usual}
        return heat | {"span": self.span, "held_at": self.last}

    def part_figures(self) -> dict[str, Any]:
        """Return the key figures."""
        run, figures = self.run, key_figures_of(self.run.store, self.last)
        return {
            "tiles": tiles_of(run, figures, self.span.last if self.span is not None else None),
            "progress": progress_of(run),
            "stop": stop_of(run),
            "labels": run.labels,
            "empty": why_empty(run, figures),
        }

    def part_findings(self) -> dict[str, Any]:
        """Return the worst findings."""
        listed, alerts, notes = shown_alerts(self.run, self.last, ALERTS, capsules_of(self.request, self.run))
        muted = sum(line.muted is not None for line in finding_lines(self.run))
        claim = claim_of(self.run, self.last)
        return {
            "listed": listed,
            "alerts_total": alerts,
            "notes_total": notes,
            "muted_total": muted,
            "claim": claim,
        }

    def part_scalars(self) -> dict[str, Any]:
        """Return the logged scalars."""
        lines, total = scalar_lines(self.run.store, None if self.scalars else SHOWN_SCALARS, self.span)
        chosen = self.scalar or next((line.name for line in lines), "")
        return {"scalar_lines": lines, "scalars_total": total, "chosen_scalar": chosen}

    def part_news(self) -> dict[str, Any]:
        """Return the newest findings and events."""
        lines = all_lines(self.run)
        shown = [line for line in lines if self.last is None or line.step <= self.last]
        return {"news": shown[:NEWS], "events_total": len(lines)}

    def part_values(self) -> dict[str, Any]:
        """Return the table of the newest values."""
        store = self.run.store
        every = taps_in_order(store, self.match or None, self.row_kind or None)
        first = first_row_of_page(self.row, len(every.taps), ROWS)
        rows = overview_rows(store, every.at(range(len(every.taps))[first : first + ROWS]), self.last)
        not_captured = [each for each in store.coverage() if not each.captured]
        return {
            "rows": rows,
            "rows_first": first,
            "rows_total": len(every.taps),
            "rows_a_page": ROWS,
            "not_captured": not_captured[:MAX_UNCAPTURED],
            "not_captured_left_out": max(0, len(not_captured) - MAX_UNCAPTURED),
            "usage": store.usage(),
            "lost": losses_of(self.run),
            "stats": SHOWN_STATS,
        }
