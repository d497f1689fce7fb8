"""A row for each module: its captured tensors, its number of calls, and its hooks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from hookcore.reading import Reader
from hookcore.records import HookRecord, Kind, Phase, Tap
from hookcore.store import Latest, Store, TapList

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
    latest = store.latest(stat="count", first=first, last=last, merged=True)
    calls, values = _calls_in(latest), _values_in(latest)
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


def calls_of(store: Store, taps: TapList, first: int | None = None, last: int | None = None) -> Counter[str]:
    """Return how often each module of these taps was called in its newest captured step, up to the limit of calls."""
    return _calls_in(store.latest(stat="count", first=first, last=last, wanted=taps, merged=True))


def _fresh(latest: Latest) -> Iterator[tuple[Tap, float]]:
    """Yield the taps and values of each module's newest step.

    Earlier steps may have had more calls: the forward pass of a loss that was given up belongs to the next step.
    """
    newest: dict[tuple[str, str, str], int] = {}
    every = [*zip(latest.taps, latest.steps.tolist(), latest.values[:, 0].tolist(), strict=True)]
    for tap, step, _ in every:
        key = tap.module, tap.kind, tap.phase
        newest[key] = max(step, newest.get(key, step))
    return ((tap, value) for tap, step, value in every if step == newest[tap.module, tap.kind, tap.phase])


def _calls_in(latest: Latest) -> Counter[str]:
    """Return the number of each module's calls in training, or in evaluation if it had none in training."""
    calls: dict[Phase, Counter[str]] = {"train": Counter(), "eval": Counter()}
    for tap, _ in _fresh(latest):
        if tap.kind == "output":
            calls[tap.phase][tap.module] = max(calls[tap.phase][tap.module], tap.call + 1)
    return Counter({**calls["eval"], **calls["train"]})


def _values_in(latest: Latest) -> Counter[str]:
    values: Counter[str] = Counter()
    for tap, count in _fresh(latest):
        values[tap.module] += 0 if math.isnan(count) else int(count)
    return values


def _module_of(hook: HookRecord, paths: Iterable[str]) -> str:
    """Return the module of a hook; for a hook on a parameter, the module that has the parameter."""
    return hook.owner if hook.scope == "module" or hook.owner in paths else hook.owner.rpartition(".")[0]
