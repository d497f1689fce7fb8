"""What all ranks of a training have logged under a name, as one value for each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hookcore.records.vocabulary import GRAD_SCALE, TIME
from hookcore.store.rows import Rows

from .attempts import Attempt, by_shard, of_runs
from .levels import Budget
from .names import lane_of_scalar
from .questions import in_steps
from .rankanswers import in_time, rows_of_scalar
from .rankrates import RATES, RankRates
from .rankrows import Logged, merge_scalar
from .rankshares import RankShares
from .ranksums import OfAttempt, RankSums
from .tables import PART
from .toomany import check


@dataclass(frozen=True, slots=True)
class RankLogged:
    """Reads it: sums over steps where they are stored, and what each rank has logged elsewhere."""

    shares: RankShares
    sums: RankSums
    rates: RankRates

    def rows(self, name: str, within: Iterable[OfAttempt], budget: Budget, most: int) -> Rows:
        """Return the rows of some steps. Raises TooManyError if more than `most` values would have to be added up."""
        lane = lane_of_scalar(name)
        parts, left = ([], [*within]) if name in RATES else self.sums.rows("mean", [lane], within, budget, most)
        for attempt, steps in left:
            said = self.shares.without_lost(attempt.ranks, steps, _logged(attempt, name, steps, most))
            if name in RATES:
                at, value = self.rates.add_up(name, attempt, steps[0], said)
            else:
                frames = _logged(attempt, TIME, steps, most) if name == GRAD_SCALE else said
                at, value = merge_scalar(name, said, np.unique(frames.step, return_counts=True))
            parts.append(rows_of_scalar(at + attempt.shift, value))
        return in_time(parts, 1)


def _logged(attempt: Attempt, name: str, steps: tuple[int, int], most: int) -> Logged:
    """Return the values of a scalar that the ranks of an attempt logged, by step and rank."""
    lane = lane_of_scalar(name)
    where = f"lane = {lane} AND {in_steps(*steps)} AND role > {PART}"
    asked = [(shard, f"FROM rows WHERE {of_runs(ranks)} AND {where}") for shard, ranks in by_shard(attempt.ranks)]
    check(sum(shard.read(f"SELECT count() AS found {rest}").one("found") for shard, rest in asked), most, "values")
    found = [shard.read(f"SELECT rank, step, mean {rest}") for shard, rest in asked]
    rank, step = (np.concatenate([each.numbers(name) for each in found]).astype(np.int64) for name in ("rank", "step"))
    value = np.concatenate([each.numbers("mean") for each in found]).astype(np.float64)
    return Logged.of(rank, step, value)
