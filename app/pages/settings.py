"""The pages about hookcore itself: Settings, with the server and its memory, and Help."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from typing import Any, Final

import orjson

import hookcore
from hookcore.config import Setting
from hookcore.findings import RULES, THRESHOLDS
from hookcore.store import STAT_NAMES

from .. import assets
from ..analysis.cost import cost_of
from ..analysis.modules import losses_of
from ..analysis.numerals import size
from ..assets import Package
from ..formats import plain
from ..runs import Run
from ..settings import HELP_LINK, SERVER, ServerSettings
from .frame import ENTRIES
from .page import Page, Text
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
    """The settings of the reader and of the server; for those of a trainer it has links to the Capture pages."""

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
    """Return name, value, and help without links of each server setting; for a secret only whether it is set."""
    return [
        (each.name, _value_of(each, getattr(settings, each.name)), HELP_LINK.sub(r"\1", each.help)) for each in SERVER
    ]


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
    *((tab.key, name) for entry in ENTRIES for tab, name in entry.names),
    ("v", "Compare"),
    (",", "Settings"),
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
            "has_site": assets.site() is not None,
            "nothing": NOTHING,
        }
