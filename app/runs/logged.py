"""The logged values of all ranks in a step, as one value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from hookcore.records.vocabulary import SAMPLES_RATE, TOKENS_RATE

RATES: Final = (SAMPLES_RATE, TOKENS_RATE)


class Logged:
    """The mean of the ranks that logged a value in a step, except for the throughput.

    That is the sum over the ranks that are known to have batches of their own. Ranks sample it in different steps, so a
    step has the sum of the newest value of each rank, and none before all have one.
    """

    def __init__(self) -> None:
        self.summed = 0  # how many ranks the newest throughput is the sum of; 0 for a mean
        self._rates: dict[str, dict[int, float]] = {}  # the newest of each rank

    def begin(self) -> None:
        """Forget the rates of the ranks, since the training was restarted."""
        self._rates = {}

    def merge(self, scalars: Mapping[int, Mapping[str, float]], ranks: Collection[int] | None) -> dict[str, float]:
        """Return the values of a step. `ranks` have batches of their own; None if that isn't known."""
        found = _mean_of(scalars[rank] for rank in sorted(scalars))
        for name in RATES:
            if name in found:
                newest = self._rates.setdefault(name, {})
                newest |= {rank: logged[name] for rank, logged in scalars.items() if name in logged}
                self.summed = 0 if ranks is None else len(ranks)
                if ranks and all(rank in newest for rank in ranks):
                    found[name] = sum(newest[rank] for rank in sorted(ranks))
                elif ranks is not None:
                    del found[name]
        return found


def _mean_of(scalars: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of what several ranks logged under one name."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for each in scalars:
        for name, value in each.items():
            values[name].append(value)
    # Equal values stay as they are: their sum may be rounded.
    return {name: all_[0] if len(set(all_)) == 1 else sum(all_) / len(all_) for name, all_ in values.items()}
