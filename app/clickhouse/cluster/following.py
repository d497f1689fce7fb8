"""The order in which the items of several runs are read and taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookcore.records.wire import Item

from ..client import Shard
from ..reading import Completed, Stored, complete


def in_order(stored: Sequence[Stored], attempts: Mapping[int, int]) -> list[Stored]:
    """Return items by the attempts of their trainings and by their steps, those of each run in their order.

    So the ranks of a training come together, as they would have come to a server without ClickHouse.
    """
    reached: dict[int, int] = {}
    places = []
    for each in stored:
        reached[each.run] = max(reached.get(each.run, -1), each.step)
        places.append((attempts.get(each.run, 0), reached[each.run]))
    return [each for _, each in sorted(zip(places, stored, strict=True), key=lambda pair: pair[0])]


def read_all(
    shard: Shard, part: Sequence[Stored], halted: set[int], lost_until: Mapping[int, int]
) -> tuple[list[tuple[int, Item]], dict[int, Completed]]:
    """Return items with the numbers of their runs, in their order, and what was read of each run.

    Runs of which something isn't here yet are halted.
    """
    read: dict[int, Completed] = {}
    for run in dict.fromkeys(each.run for each in part):
        if run not in halted:
            read[run] = complete(shard, [each for each in part if each.run == run], lost_until[run])
    found = {(run, item.number): item for run, each in read.items() for item in each.items}
    halted |= {run for run, each in read.items() if each.waits is not None}
    keys = ((each.run, each.number) for each in part)
    return [(run, found[run, number]) for run, number in keys if (run, number) in found], read
