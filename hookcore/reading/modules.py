"""The modules of a run as answers, with what was seen of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.records import ModuleRecord
from hookcore.store import Store

_SAME: Final = ("path", "parent", "type", "parameters", "trainable", "aliases", "source")  # as in the record


def modules_of(store: Store, modules: Sequence[ModuleRecord], *, taps: bool) -> list[answers.Module]:
    """Return these modules with their coverage and, if wanted, their taps."""
    coverage = {each.path: each for each in store.coverage()}
    found = _taps_in(store, modules) if taps else {}
    return [
        answers.Module(
            **{name: getattr(module, name) for name in _SAME},
            shapes=dict(module.shapes),
            coverage=coverage.get(module.path),
            taps=tuple(found.get(module.path, ())),
            placements=dict(module.placements),
        )
        for module in modules
    ]


def _taps_in(store: Store, modules: Sequence[ModuleRecord]) -> dict[str, list[answers.ModuleTap]]:
    """Return the taps of some modules, by path."""
    latest = store.latest(stat="count")
    counts = dict(zip(latest.numbers.tolist(), map(Number, latest.values[:, 0].tolist()), strict=True))
    snapshots = {each.tap: each.shape for each in store.snapshots()}
    shapes = {module.path: dict(module.shapes) for module in modules}
    found: dict[str, list[answers.ModuleTap]] = {module.path: [] for module in modules}
    for number, tap in store.taps():
        if tap.module in found:
            shape = snapshots.get(tap, shapes[tap.module].get(tap.tensor))
            found[tap.module].append(answers.ModuleTap.of(number, tap, values=counts.get(number), shape=shape))
    return found
