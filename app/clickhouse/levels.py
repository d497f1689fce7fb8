"""Which rows of ClickHouse answer a question: exact ones, or enough buckets, but not too many. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

EXACT: Final = 0  # the level of single steps


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps that are read on one level: buckets, or single steps, from `first` to `last`."""

    level: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of what is read of one lane: the fewest buckets, the most exact rows, and the most buckets."""

    least: int
    exact: int
    buckets: int

    def level(self, steps: int, levels: Sequence[int], spread: float = 1.0) -> int:
        """Return the level for so many steps, of which one in `spread` is captured: the finest that isn't too much."""
        if steps <= self.exact * spread:
            return EXACT
        enough = [level for level in levels if steps >> level >= self.least]
        cheap = [level for level in enough if steps >> level <= self.buckets]
        return min(cheap) if cheap else max(enough, default=EXACT)


def pieces_of(first: int, last: int, level: int, levels: Sequence[int]) -> Iterator[Piece]:
    """Split a span into whole buckets of a level, and what is left at its ends, on finer levels."""
    if level == EXACT:
        yield Piece(EXACT, first, last)
        return
    begin, end = (first + (1 << level) - 1) >> level, (last + 1) >> level
    finer = max((each for each in levels if each < level), default=EXACT)
    if begin >= end:
        yield from pieces_of(first, last, finer, levels)
        return
    if first < begin << level:
        yield from pieces_of(first, (begin << level) - 1, finer, levels)
    yield Piece(level, begin << level, (end << level) - 1)
    if end << level <= last:
        yield from pieces_of(end << level, last, finer, levels)
