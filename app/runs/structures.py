"""Module trees of ranks: which modules consist of different parts in different ranks, such as stages of a pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hookcore.records import ModuleRecord


class Structures:
    """Compares what ranks say of their modules. A module is known by the paths of all modules inside it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}  # by path: a digest, and the rank that was first
        self._others: dict[int, dict[str, int]] = {}  # by rank: what differed from the first one

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

    @property
    def parted(self) -> frozenset[str]:
        """The paths of modules that have different parts in different ranks."""
        return frozenset(
            path for each in self._others.values() for path, digest in each.items() if digest != self._known[path][0]
        )


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
