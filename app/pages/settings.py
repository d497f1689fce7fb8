"""The pages about hookcore itself: Hooks, with the capture settings; Settings, Help, and errors."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import blake2b
from importlib import metadata
from typing import Annotated, Any, Final

import orjson
from fastapi import Query, Request
from starlette.responses import Response

import hookcore
from hookcore.config import LIVE, Setting
from hookcore.findings import RULES, THRESHOLDS
from hookcore.records import Coverage, HookRecord
from hookcore.store import STAT_NAMES

from .. import assets
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
from ..analysis.numerals import size
from ..assets import Package
from ..formats import plain
from ..runs import Run, Runs, why_gone
from ..runs.edits import rules_of
from ..settings import SERVER, ServerSettings
from .frame import PLACES, address_of, no_change_words, render
from .page import FindText, Page, RowNumber, RunPage, Short, TablePage, Text
from .views.events import every_event
from .views.words import BEGIN, KEYS, KIND_WORDS, NOTHING, PATTERN_WORDS, STAT_WORDS, WORDS

# The page Settings: of the reader, of the server; and diagnostics for a bug report.

ADDRESSES: Final = frozenset({"store"})  # they may have a password in them
PACKAGES: Final = (
    "fastapi",
    "starlette",
    "uvicorn",
    "websockets",
    "jinja2",
    "numpy",
    "pyarrow",
    "msgspec",
    "plotly",
    "torch",
    "apprise",
)


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """A run's memory, and its dropped data."""

    run: Run
    nbytes: int
    max_bytes: int
    dropped: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class SettingsPage(Page):
    """The settings of the reader and of the server; for those of a trainer it has links to the Hooks pages."""

    name = "settings"
    path = "/settings"

    run: Text = ""  # the one that the reader comes from

    def values(self) -> dict[str, Any]:
        """Return the live runs, the server's settings, memory, packages, and diagnostics."""
        runs, state = self.runs, self.request.app.state
        every = sorted(runs.all(), key=lambda each: each.id != self.run)
        shares = [share_of(each) for each in every if each.loaded]
        diagnostics = diagnostics_of(state.settings, shares)
        return {
            "trainings": [each for each in every if each.state == "live" or each.id == self.run] or every[:1],
            "shares": shares,
            "taken": sum(share.nbytes for share in shares),
            "memory": state.settings.memory,
            "removed": runs.removed,
            "refused": state.intake.refused,
            "notifier": state.notifications.notifier,
            "server": server_settings(state.settings),
            "packages": packages(),
            "diagnostics": orjson.dumps(diagnostics, option=orjson.OPT_INDENT_2).decode(),
        }


def share_of(run: Run) -> MemoryShare:
    """Return a run's memory, and its lost data."""
    usage = run.store.usage()
    return MemoryShare(run, usage.nbytes, usage.max_bytes, losses_of(run))


def server_settings(settings: ServerSettings) -> list[tuple[str, str, str]]:
    """Return name, value, and help of each server setting; for a secret only whether it is set."""
    return [(each.name, _value_of(each, getattr(settings, each.name)), each.help) for each in SERVER]


def _value_of(setting: Setting, value: Any) -> str:
    if setting.secret:
        return "set" if value else "not set"
    if setting.name in ADDRESSES and value:
        from ..clickhouse.client import without_password  # only a server with a store needs it

        return without_password(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and isinstance(setting.default, str):
        return size(value)
    if isinstance(value, float):
        return f"{value:g}"  # as in a flag
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value) or "none"


@cache
def packages() -> tuple[Package, ...]:
    """Return the installed packages with their licenses."""
    found = [Package("hookcore", hookcore.__version__, "Apache-2.0")]
    found += [replace(each, name=f"{each.name} (in the pages)") for each in assets.vendored()]
    for name in PACKAGES:
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        found.append(Package(name, about["Version"], _license_of(about)))
    return tuple(found)


def _license_of(about: metadata.PackageMetadata) -> str:
    """Return the short name of a license; some packages have the whole text in its place."""
    for field in ("License-Expression", "License"):
        if field in about and about[field] and "\n" not in about[field]:
            return str(about[field])
    classes = [value for value in about.get_all("Classifier") or () if value.startswith("License ::")]
    return classes[0].rpartition(":: ")[2] if classes else "see the package"


def diagnostics_of(settings: ServerSettings, shares: list[MemoryShare]) -> dict[str, Any]:
    """Return data for a bug report: versions, settings, sizes. No secrets, module names, or numbers of a model."""
    runs = [
        {
            "state": share.run.state,
            "steps": share.run.steps,
            "taps": share.run.store.taps_announced,
            "nbytes": share.nbytes,
            "max_bytes": share.max_bytes,
            "dropped": share.dropped,
            "versions": share.run.info.versions,
            "cost": cost_of(share.run).sentence,
        }
        for share in shares
    ]
    return {
        "hookcore": hookcore.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {package.name: package.version for package in packages()},
        "settings": {name: value for name, value, _ in server_settings(settings)},
        "runs": plain(runs),
    }


GO: Final = (
    ("r", "Runs"),
    *((place.key, place.title) for place in PLACES if place.key),
    ("c", "Compare"),
    ("s", "Settings"),
    ("?", "Help"),
)


@dataclass(frozen=True, kw_only=True)
class HelpPage(Page):
    """Each stat, kind, rule, and word has an anchor: `help#stat-rms`, `help#rule-dead`."""

    name = "help"
    path = "/help"

    def values(self) -> dict[str, Any]:
        return {
            "keys": (*KEYS, ("Go to", tuple((f"g {key}", title) for key, title in GO))),
            "pattern_words": PATTERN_WORDS,
            "words": WORDS,
            "kind_words": KIND_WORDS,
            "stat_words": {name: STAT_WORDS[name] for name in STAT_NAMES},
            "rules": RULES.values(),
            "thresholds": THRESHOLDS,
            "begin": BEGIN,
            "nothing": NOTHING,
        }


# The error page for people; scripts get JSON.

TITLES: Final = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    422: "Invalid request",
}


def wants_page(request: Request) -> bool:
    """Return whether a browser asks for a page."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    first = request.headers.get("accept", "").partition(",")[0].partition(";")[0].strip()
    return first == "text/html" and not path.startswith(("/api/", "/static/"))


def error_page(request: Request, sentence: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Render a page that says what was wrong and where to go next."""
    runs: Runs = request.app.state.runs
    newest = next(iter(runs.all()), None)
    run_id = request.path_params.get("run_id", "")
    run = runs.get(run_id)
    page = render(
        request,
        "error",
        code=status,
        title=TITLES.get(status, "Something went wrong"),
        sentence="There is no page at this address."
        if sentence == "Not Found"
        else f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}.",
        newest=address_of(newest) if newest is not None else "",
        here=address_of(run) if run is not None else "",
        # Readers follow a trainer's link before its first batch has arrived.
        awaited=run_id if status == 404 and run is None and not why_gone(runs.gone(), run_id) else "",
    )
    page.status_code = status
    page.headers.update(headers or {})
    return page


# The page Hooks: the captured tensors of each module, their cost, all hooks, and the capture settings.

ROWS: Final = 200  # of modules on a page of their table
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
class HooksPage(RunPage):
    """The captured modules, their cost, and all hooks. The settings aren't live."""

    name = "hooks"
    parts = ("figures", "reasons", "rules", "modules", "lists")

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
        return {} if self.part else {"trainer": trainer_settings(self.run)}

    def part_modules(self) -> dict[str, Any]:
        """Return a page of the table of modules, and what its rows can be chosen by."""
        rows, folds = rows_of(self.run.store, *self.values_in), Folds.read(self.folds)
        roots = grow(rows)
        shown, matching = shown_rows(
            fold_alike(roots) if self.fold == "1" else roots, finder_of(self.run, self.f).fits, self.sort, folds
        )
        table = TablePage.at(self.row, ROWS, len(shown))
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

    def part_rules(self) -> dict[str, Any]:
        """Return the rules with their thresholds."""
        rules = rules_of(self.run)
        return {
            "run_rules": rules.rules,
            "own_rules": rules.own,
            "changed_rules": self.run.rules,
            "no_change_words": no_change_words(self.run),
        }

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
