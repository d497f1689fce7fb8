"""A run as a whole: its summary, machine, capture, rules, and hooks, and its timeline by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from hookcore.config import LIVE
from hookcore.findings import KeyFigures, key_figures_of
from hookcore.reading import Reader
from hookcore.records import Coverage, HookRecord, Kind
from hookcore.records.vocabulary import FORMAT, MACHINE_LABEL, found_words, losses_among
from hookcore.store import STAT_NAMES
from hookcore.store.checks import require, require_kind

from ..analysis.cost import cost_of
from ..analysis.modules import (
    MAX_FOLDS,
    ON_MODEL,
    Folds,
    finder_of,
    fold_alike,
    grow,
    losses_of,
    rows_of,
    shown_rows,
)
from ..formats import script_json
from ..runs import Run
from .frame import address_of, no_change_words
from .page import FindText, PartsPage, RowNumber, RunPage, Short, TablePage, timeline_view
from .settings import share_of
from .views.events import counts_of, every_event, problem_lines
from .views.incident import capsules_of
from .views.layer import nearest_sampled, note_of
from .views.overview import (
    SHOWN_SCALARS,
    ScalarLine,
    cost_words,
    machine_of,
    scalar_lines,
    shown_alerts,
    summary_of,
    tiles_of,
    watched_words,
    why_empty,
)
from .views.span import ALL, Shared, claim_of, progress_of

# The page Summary. Its parts can be requested alone.

ALERTS: Final = 5
FIRST_POINTS: Final = 500  # of the line that comes with the page
MAX_LINES: Final = 8  # of losses in the large chart
MAX_REFRESH_S: Final = 3600
PICTURED: Final[tuple[Kind, ...]] = ("output_grad", "param_grad", "output", "input_grad", "input", "update", "param")


def usual_kind(reader: Reader) -> Kind:
    """Return the default kind of the heatmap: gradients, if any were ever captured."""
    known = {tap.kind for tap in reader.taps().taps}
    there = [kind for kind in PICTURED if kind in known]
    # Gradients that only `torch.autograd.grad` computes have taps, and no values.
    return next(
        (kind for kind in there if reader.latest(kind=kind, stat="count", limit=1).total), (*there, *PICTURED)[0]
    )


@dataclass(frozen=True, kw_only=True)
class OverviewPage(RunPage):
    """A summary of the run. Empty form fields are ignored."""

    name = "overview"
    parts = ("figures", "findings", "scalars")

    f: FindText = ""
    match: Annotated[str, Query(max_length=1000, description="of the table of newest values, now with Layers")] = ""
    kind: Annotated[str, Query(max_length=50, description="the kind in the heatmap of all layers")] = ""
    row_kind: Annotated[str, Query(max_length=50, description="of that table")] = ""
    stat: Annotated[str, Query(max_length=50, description="the stat in the heatmap of all layers")] = ""
    refresh: Annotated[str, Query(max_length=20, description="seconds after which the page reloads")] = ""
    row: RowNumber = 0
    scalar: Annotated[str, Query(max_length=1000, description="the scalar in the large chart")] = ""
    scalars: Annotated[Literal["", "all"], Query(description="all of them, not only the first few")] = ""

    def respond(self) -> Response:
        """Render the page, or lead to the table of newest values, which was on this page."""
        if self.part or not (self.match or self.row_kind or self.row):
            return RunPage.respond(self)
        wanted = {"f": self.f, "match": self.match, "row_kind": self.row_kind, "value_row": self.row}
        address = address_of(self.run, "layer", **wanted, **dict(self.shared.parts))
        return RedirectResponse(f"{self.request.scope.get('root_path', '')}/{address}#values", 307)

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
        usual = usual_kind(self.run.reader)
        heat: dict[str, Any] = {"heat_stat": self.stat or "norm", "usual_kind": usual, "heat_kind": self.kind or usual}
        heat["imported"] = str(self.run.info.facts.get(FORMAT, ""))
        heat["has_layers"] = not heat["imported"] or bool(self.key_figures.taps)
        return heat | {"first_series": "" if self.part else self._first_series()}

    def _first_series(self) -> Markup:
        """Return the lines of the large chart as JSON, so that its first drawing needs no request."""
        reader, span, names = self.run.reader, self.span, self._chosen_scalars
        if span is None or not names or not set(names) <= set(reader.scalars().names):
            return Markup("")
        return script_json(reader.scalars(names, span.first, span.last, FIRST_POINTS).series)

    @cached_property
    def _scalar_lines(self) -> tuple[list[ScalarLine], int]:
        """The first logged scalars, and the number of all."""
        return scalar_lines(self.run, None if self.scalars else SHOWN_SCALARS, self.span)

    @property
    def _usual_scalars(self) -> list[str]:
        """The scalars in the large chart, unless one is chosen: the losses, or else the first one."""
        names = [line.name for line in self._scalar_lines[0]]
        return losses_among(names)[:MAX_LINES] or names[:1]

    @property
    def _chosen_scalars(self) -> list[str]:
        """The scalars in the large chart."""
        return [self.scalar] if self.scalar else self._usual_scalars

    @cached_property
    def key_figures(self) -> KeyFigures:
        return key_figures_of(self.run.store, *self.values_in, is_live=self.run.state == "live")

    def part_figures(self) -> dict[str, Any]:
        """Return how far the run is, and its verdict."""
        run = self.run
        return {
            "progress": progress_of(run),
            "course": run.findings.course() if self.span is None or not self.span.held else None,
            "labels": {name: text for name, text in run.labels.items() if not name.startswith(MACHINE_LABEL)},
            "machine": summary_of(run, *self.values_in),
            "watched": watched_words(self.key_figures),
            "cost": cost_words(run, self.span),
            "lost": losses_of(run),
            "empty": why_empty(run, self.key_figures, self.span),
        }

    def part_findings(self) -> dict[str, Any]:
        """Return the worst problems."""
        lines = problem_lines(self.run, *self.values_in)
        (alerts, notes), shown = counts_of(lines), [line for line in lines if not line.is_quiet][:ALERTS]
        return {
            "listed": shown_alerts(self.run, shown, capsules_of(self.request, self.run)),
            "alerts_total": alerts,
            "count_words": found_words(alerts, notes),
            "more": alerts + notes - len(shown),
            "quiet_total": sum(line.is_quiet for line in lines),
            "claim": claim_of(self.run, self.span),
        }

    def part_scalars(self) -> dict[str, Any]:
        """Return the logged scalars, and the key figures of the layers."""
        lines, total = self._scalar_lines
        tiles = tiles_of(self.run, self.key_figures, self.span)
        chosen = {"usual_scalars": json.dumps(self._usual_scalars), "chosen_scalars": self._chosen_scalars}
        return {"scalar_lines": lines, "scalars_total": total, "tiles": tiles, **chosen}


@dataclass(frozen=True, kw_only=True)
class SystemPage(RunPage):
    """The time of steps, the cost of watching, and the machine over the steps, with their newest values."""

    name = "system"
    parts = ("newest", "cost")

    @property
    def usual(self) -> Shared:
        """All steps, because samples are seldom."""
        return Shared(ALL)

    def part_newest(self) -> dict[str, Any]:
        """Return the newest values in the steps that the page is about, or the nearest steps with samples."""
        imported = FORMAT in self.run.info.facts
        machine, span = machine_of(self.run, *self.values_in), self.span
        near = None
        if not machine.gauges and span is not None and span.step is not None:
            near = nearest_sampled(self.run, machine.sampled, span.step)
        return {"machine": machine, "near": near, "imported": imported}

    def part_cost(self) -> dict[str, Any]:
        """Return what watching costs as it is now, or was at the end."""
        return {"cost": cost_of(self.run)}


@dataclass(frozen=True, kw_only=True)
class TimelinePage(PartsPage):
    """The line, and the note about the held step."""

    name = "timeline"
    instead = "overview"
    parts = ("line", "note")

    def part_line(self) -> dict[str, Any]:
        timeline = timeline_view(self.run)
        if timeline is None:
            raise HTTPException(404, "This run has no step")
        return {"timeline": timeline}

    def part_note(self) -> dict[str, Any]:
        return {"note": note_of(self.run.reader, self.span)}


# The pages of the entry Capture: the captured tensors of each module, their cost, and the settings; rules; all hooks.

HOOKS_ROWS: Final = 200  # of modules on a page of their table
MAX_TYPES: Final = 200  # to choose from
MAX_HOOKS: Final = 500  # of each list

COLUMNS: Final = (  # key, title, and help
    ("path", "Module", ""),
    ("type", "Type", ""),
    ("captured", "Captured", "If not, the reason. A collapsed group shows the first uncaptured module in it."),
    ("kinds", "Kinds", ""),
    ("calls", "Calls", "Calls per step"),
    ("values", "Values", "Values read in the newest captured step, or in the chosen steps"),
    ("hooks", "Hooks", "Hooks on the module and its parameters that are not from hookcore"),
)
NUMBERS: Final = frozenset({"calls", "values", "hooks"})  # of these columns, the largest come first


@dataclass(frozen=True, slots=True)
class Reason:
    """Why some modules are not captured."""

    words: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CapturePage(RunPage):
    """The captured modules and their cost. The settings aren't live."""

    name = "capture"
    parts = ("figures", "reasons", "modules")

    f: FindText = ""
    row: RowNumber = 0
    sort: Short = ""
    fold: Short = ""
    folds: Annotated[str, Query(max_length=MAX_FOLDS, description="the groups that are open or closed")] = ""

    @cached_property
    def coverage(self) -> list[Coverage]:
        """The coverage of each module."""
        return self.run.reader.coverage()

    def values(self) -> dict[str, Any]:
        """Return the settings, which only the whole page shows."""
        return (
            {} if self.part else {"trainer": trainer_settings(self.run), "no_change_words": no_change_words(self.run)}
        )

    def part_modules(self) -> dict[str, Any]:
        """Return a page of the table of modules, and what its rows can be chosen by."""
        rows, folds = rows_of(self.run.store, *self.values_in), Folds.read(self.folds)
        roots = grow(rows)
        shown, matching = shown_rows(
            fold_alike(roots) if self.fold == "1" else roots, finder_of(self.run, self.f).fits, self.sort, folds
        )
        table = TablePage.at(self.row, HOOKS_ROWS, len(shown))
        return {
            "modules": len(rows),
            "matching": matching,
            "rows": table.cut(shown),
            "table": table,
            "folds": folds,
            "types": Counter(row.type for row in rows).most_common(MAX_TYPES),
            "columns": COLUMNS,
            "numbers": NUMBERS,
        }

    def address(self, **changes: object) -> str:
        """Return the address of this page with other choices, from the first row on unless one is given."""
        chosen = {"f": self.f, "sort": self.sort, "fold": self.fold, "folds": self.folds} | changes
        return address_of(self.run, self.name, **chosen, **dict(self.shared.parts))

    def next_sort(self, column: str) -> str:
        """Return the order after a click on a heading: largest numbers or A first, reversed, and the model's."""
        once, twice = (f"-{column}", column) if column in NUMBERS else (column, f"-{column}")
        if self.sort.removeprefix("-") != column:
            return once
        return twice if self.sort == once else ""

    def part_figures(self) -> dict[str, Any]:
        """Return the coverage, the cost, the memory, and the errors."""
        share = share_of(self.run)
        return {
            "captured": sum(each.captured for each in self.coverage),
            "modules": len(self.coverage),
            "coverage_tag": blake2b(repr(self.coverage).encode("utf-8", "replace"), digest_size=8).hexdigest(),
            "cost": cost_of(self.run),
            "hook_errors": sum(event.count for event in every_event(self.run.reader, "hook-error")),
            "share": share,
            "lost": sum(share.dropped.values()),
        }

    def part_reasons(self) -> dict[str, Any]:
        """Return why modules are not captured."""
        return {"modules": len(self.coverage), "reasons": reasons_of(self.coverage)}


@dataclass(frozen=True, kw_only=True)
class HooksPage(RunPage):
    """All hooks: hookcore's, the user's, and those of libraries."""

    name = "hooks"
    parts = ("lists",)

    def part_lists(self) -> dict[str, Any]:
        """Return the hooks."""
        hooks = self.run.reader.hooks()
        on_model = [hook for hook in hooks if hook.scope in ON_MODEL]
        elsewhere = [hook for hook in hooks if hook.scope not in ON_MODEL]
        return {
            "lists": (("On modules and parameters", on_model), ("On optimizers, tensors and the process", elsewhere)),
            "most_hooks": MAX_HOOKS,
            "whose": whose(hooks),
            "legacy": [hook for hook in hooks if hook.legacy],
            "warned": [hook for hook in hooks if hook.warning and not hook.legacy],
        }


def trainer_settings(run: Run) -> dict[str, Any]:
    """Return the trainer's settings as last reported, one pattern per line; missing ones have their defaults."""
    reported = run.info.settings
    given = {name: reported.get(name, setting.default) for name, setting in LIVE.items()}
    lines = {name: "\n".join(map(str, _listed(given[name]))) for name in ("include", "exclude")}
    return {
        **given,
        **lines,
        "kinds": _listed(given["kinds"]),
        "paused": run.is_paused,
    }


def _listed(patterns: object) -> list[object]:
    if patterns is None:
        return []
    return list(patterns) if isinstance(patterns, list | tuple) else [patterns]


def reasons_of(coverage: Iterable[Coverage]) -> list[Reason]:
    """Return why modules are not captured, the most frequent reason first."""
    found: dict[str, list[str]] = {}
    for each in coverage:
        if not each.captured:
            found.setdefault(each.reason or "no reason given", []).append(each.path)
    reasons = [Reason(words, len(paths), tuple(paths[:3])) for words, paths in found.items()]
    return sorted(reasons, key=lambda reason: -reason.count)


def whose(hooks: Iterable[HookRecord]) -> tuple[int, int]:
    """Return how many hooks are hookcore's, and how many are not."""
    counted = Counter(hook.ours for hook in hooks)
    return counted[True], counted[False]
