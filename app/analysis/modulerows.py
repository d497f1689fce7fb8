"""A row for each module: its captured tensors, its number of calls, and its hooks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hookcore.reading import Reader
from hookcore.records import HookRecord, Kind
from hookcore.store import Store

ON_MODEL: Final = frozenset({"module", "parameter"})


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module: its captured tensors, and its number of calls in a step."""

    path: str
    type: str
    parent: str | None
    captured: bool
    kinds: tuple[Kind, ...]
    reason: str
    calls: int
    values: int  # number of values in its newest step, or in that of the steps asked for
    hooks: int  # not from hookcore


def types_of(reader: Reader) -> dict[str, str]:
    """Return the class of each module by path, in the model's order."""
    return {each.path: each.type for each in reader.coverage()}


def rows_of(store: Store, first: int | None = None, last: int | None = None) -> list[ModuleRow]:
    """Return a row for each module, in the model's order. With bounds, values are counted in these steps."""
    coverage = store.coverage()
    parents = {module.path: module.parent for module in store.modules()}
    calls, values = _counts(store, first, last)
    paths = {each.path for each in coverage}
    foreign = Counter(_module_of(each, paths) for each in store.hooks() if not each.ours and each.scope in ON_MODEL)
    return [
        ModuleRow(
            each.path,
            each.type,
            parents.get(each.path),
            each.captured,
            each.kinds,
            each.reason,
            calls[each.path],
            values[each.path],
            foreign[each.path],
        )
        for each in coverage
    ]


def _counts(store: Store, first: int | None, last: int | None) -> tuple[Counter[str], Counter[str]]:
    """Return each module's calls per step, and its number of values in its newest step."""
    calls: Counter[str] = Counter()
    for tap in store.taps().taps:
        calls[tap.module] = max(calls[tap.module], tap.call + 1 if tap.kind == "output" else 0)
    values: Counter[str] = Counter()
    latest = store.newest(stat="count", first=first, last=last)
    for tap, (count,) in zip(latest.taps, latest.values.tolist(), strict=True):
        values[tap.module] += 0 if math.isnan(count) else int(count)
    return calls, values


def _module_of(hook: HookRecord, paths: Iterable[str]) -> str:
    """Return the module of a hook; for a hook on a parameter, the module that has the parameter."""
    return hook.owner if hook.scope == "module" or hook.owner in paths else hook.owner.rpartition(".")[0]
