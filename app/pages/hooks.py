"""The page Hooks: the captured tensors of each module, their cost, all hooks, and the capture settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from hookcore.config import LIVE
from hookcore.records import Coverage, HookRecord

from ..analysis.cost import cost_of
from ..analysis.modules import ON_MODEL, finder_of, rows_of
from ..runs import Run
from ..runs.edits import rules_of
from .frame import no_change_words
from .page import FindText, RowNumber, RunPage, TablePage
from .settings import share_of
from .views.events import every_event

ROWS: Final = 200  # modules in the table without scripts
MAX_HOOKS: Final = 500  # of each list


@dataclass(frozen=True, slots=True)
class Reason:
    """Why some modules are not captured."""

    words: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HooksPage(RunPage):
    """The captured modules, their cost, and all hooks. The table and the settings aren't live."""

    name = "hooks"
    parts = ("figures", "reasons", "rules", "lists")

    f: FindText = ""
    row: RowNumber = 0

    @cached_property
    def coverage(self) -> list[Coverage]:
        """The coverage of each module."""
        return self.run.reader.coverage()

    def values(self) -> dict[str, Any]:
        """Return the table and the settings of the whole page."""
        return {} if self.part else self._table() | {"trainer": trainer_settings(self.run)}

    def _table(self) -> dict[str, Any]:
        fits = finder_of(self.run, self.f).fits
        rows = [each for each in rows_of(self.run.store, *self.values_in) if fits(each.path)]
        table = TablePage.at(self.row, ROWS, len(rows))
        return {"rows": table.cut(rows), "table": table}

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
        on_model = [each for each in hooks if each.scope in ON_MODEL]
        elsewhere = [each for each in hooks if each.scope not in ON_MODEL]
        return {
            "lists": (("On modules and parameters", on_model), ("On optimizers, tensors and the process", elsewhere)),
            "most_hooks": MAX_HOOKS,
            "whose": whose(hooks),
            "legacy": [each for each in hooks if each.legacy],
            "warned": [each for each in hooks if each.warning and not each.legacy],
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
    counted = Counter(each.ours for each in hooks)
    return counted[True], counted[False]
