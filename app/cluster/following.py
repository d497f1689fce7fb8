"""The order in which the items of several runs are read and taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hookcore.wire import Item

from ..clickhouse.client import Shard
from ..clickhouse.reading import Stored, complete


def in_order(stored: Sequence[Stored]) -> list[Stored]:
    """Return items by their steps, those of each run in their order.

    So the ranks of a training come together, as they would have come to a server without ClickHouse.
    """
    reached: dict[int, int] = {}
    steps = []
    for each in stored:
        reached[each.run] = max(reached.get(each.run, -1), each.step)
        steps.append(reached[each.run])
    return [each for _, each in sorted(zip(steps, stored, strict=True), key=lambda pair: pair[0])]


def read_all(shard: Shard, part: Sequence[Stored], halted: set[int]) -> Iterator[tuple[int, Item]]:
    """Yield items with the numbers of their runs, in their order. Runs of which something isn't here yet are halted."""
    found: dict[tuple[int, int], Item] = {}
    short: set[int] = set()
    for run in dict.fromkeys(each.run for each in part):
        mine = [each for each in part if each.run == run and run not in halted]
        items = complete(shard, mine) if mine else []
        found |= {(run, item.number): item for item in items}
        short |= {run} if len(items) < len(mine) else set()
    for each in part:
        item = found.get((each.run, each.number))
        if item is not None:
            yield each.run, item
    halted |= short
