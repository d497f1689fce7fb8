"""Module trees of ranks: which modules consist of different parts in different ranks, such as stages of a pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hookcore.records import PARAMETER_KINDS, Coverage, ModuleRecord

IN_PARTS: Final = (
    "its parts differ between ranks, so its inputs and outputs can't be added up; the ranks' own runs have them"
)


class Structures:
    """Compares what ranks say of their modules. A module is known by the paths of all modules inside it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}  # by path: a digest, and the rank that was first
        self._others: dict[int, dict[str, int]] = {}  # by rank: what differed from the first one
        self.parted: frozenset[str] = frozenset()  # paths of modules that have different parts in different ranks
        self._changed: frozenset[str] = frozenset()  # paths that have become such, or no longer are
        self._coverage: dict[str, Coverage] = {}

    def note(self, rank: int, modules: Sequence[ModuleRecord]) -> None:
        """Take the newest description of a rank's modules."""
        other = {}
        for path, digest in _digests(modules).items():
            known, first = self._known.setdefault(path, (digest, rank))
            if first == rank:
                self._known[path] = digest, rank
            elif known != digest:
                other[path] = digest
        self._others[rank] = other
        parted = frozenset(
            path for each in self._others.values() for path, digest in each.items() if digest != self._known[path][0]
        )
        self._changed |= parted ^ self.parted
        self.parted = parted

    def cover(self, coverage: Sequence[Coverage]) -> list[Coverage]:
        """Return what the run of all ranks covers: these modules, and those whose parts differ since the last call."""
        changed, self._changed = self._changed, frozenset()
        self._coverage |= {each.path: each for each in coverage}
        listed = dict.fromkeys([*(each.path for each in coverage), *(changed & self._coverage.keys())])
        return [self._covered(self._coverage[path]) for path in listed]

    def _covered(self, coverage: Coverage) -> Coverage:
        kinds = tuple(kind for kind in coverage.kinds if kind in PARAMETER_KINDS)
        if coverage.path not in self.parted or kinds == coverage.kinds:
            return coverage
        return replace(coverage, captured=False, kinds=kinds, reason=IN_PARTS)


def _digests(modules: Sequence[ModuleRecord]) -> dict[str, int]:
    """Return a number for each module that depends on the paths of all modules inside it."""
    listed = {each.path: each for each in modules}
    inside: defaultdict[str, list[str]] = defaultdict(list)
    for each in listed.values():
        if each.parent is not None and each.parent in listed:
            inside[each.parent].append(each.path)
    outside_in = [each.path for each in listed.values() if each.parent not in listed]
    for path in outside_in:
        outside_in += inside[path]
    found: dict[str, int] = {}
    for path in reversed(outside_in):
        found[path] = hash(tuple(sorted((child, found[child]) for child in inside[path])))
    return found
