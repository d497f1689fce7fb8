"""Reads what the ranks of one attempt have stored, in portions, and adds it up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hookcore.records import STATS

from .asked import Asked
from .rankrows import Sums, add_up
from .rankshares import RankShares

PORTION: Final = 250_000  # rows that are read at once
SKETCH_PORTION: Final = 20_000


def sums_of(asked: Asked, columns: Sequence[str], shares: RankShares, with_sketches: bool = False) -> Iterator[Sums]:
    """Yield the sums of some taps over the ranks in portions, oldest first. Steps are those of the attempt."""
    portions = -(-asked.rows // PORTION)
    if with_sketches:
        portions = max(portions, -(-asked.sketches // SKETCH_PORTION))
    needed = STATS if asked.has_unowned else columns  # rows without an owner count once if all are equal
    for steps in _divided(asked.steps, portions):
        if (rows := asked.read(needed, steps)) is not None:
            block = asked.read_sketches(rows, steps) if with_sketches else None
            yield add_up(rows, shares.of(asked, steps, rows, block), block)


def _divided(steps: tuple[int, int], portions: int) -> Iterator[tuple[int, int]]:
    first, last = steps
    width = -(-(last - first + 1) // portions)
    for begin in range(first, last + 1, width):
        yield begin, min(begin + width - 1, last)
