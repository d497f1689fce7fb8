"""Which process inserts a run: the one that has its first item, until another one claims the run.

A trainer that goes to another process repeats items that the first one may have written to its spool. So a process that
takes a run over claims it, and waits until whatever the first one had begun to insert must be there, or never will be.
A process checks the claims before it inserts a run. So an item is stored once, however many processes have it.

If the answer to the very first batch was lost, several processes have the first item. So before a process inserts
anything of such a run, it says that it has it, and then looks who else did: of two, at least one sees the other, and
takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..clickhouse.client import Shard
from ..clickhouse.names import number_of_run
from ..clickhouse.sharing import versions_of
from ..clickhouse.tables import CLAIMS, RUNS
from ..clickhouse.writing import BEGUN, Claim, are_stored, begun_elsewhere, claims_block, claims_of, known_of
from .feed import Feed

CLAIM_S: Final = 60  # from a claim to the first insert, and twice from one claim to the next


def hear_signs(shard: Shard, feeds: Sequence[Feed]) -> None:
    """Note the versions of the newest signs of life of runs that other processes may have given."""
    versions = versions_of(shard, RUNS, [feed.run for feed in feeds])
    for feed in feeds:
        feed.version = max(feed.version, versions.get(feed.run, 0))


class Homes:
    """Looks after the claims of one spool. Called by the thread that cuts segments."""

    def __init__(self, spool: str) -> None:
        self.spool = number_of_run(spool)

    def find(self, shards: Sequence[Shard], feed: Feed, first: int) -> int | None:
        """Return the shard that has something of a run whose first item here is `first`; note if the run began here."""
        for shard in shards:
            hear_signs(shard, [feed])
            known = known_of(shard, feed.run, first)
            if known is not None:
                feed.before = max(feed.before, known.newest_step)
                feed.first_step, feed.steps = known.first_step, known.steps
                feed.began_here = known.spool == self.spool
                return shard.number
        return None

    def ours(self, shard: Shard, feeds: Sequence[Feed]) -> list[Feed]:
        """Return the runs that may be inserted from here now, and claim others that have something to insert."""
        self._say_which_began(shard, [feed for feed in feeds if feed.began_here and not feed.has_said_so])
        claims = claims_of(shard, [feed.run for feed in feeds])
        found = []
        for feed in feeds:
            claim = claims.get(feed.run)
            feed.is_contested = claim is not None or not feed.began_here
            if self._is_ours(feed, claim):
                found.append(feed)
            elif claim is None or (claim.spool != self.spool and claim.age_s >= 2 * CLAIM_S):
                if are_stored(shard, feed.run, feed.items[: feed.complete()]):
                    found.append(feed)  # nothing is left to insert, so that the run's new owner needn't wait
                    continue
                term = 1 if claim is None else claim.term + 1
                shard.insert(CLAIMS.name, claims_block([(feed.run, feed.day)], term, self.spool))
        hear_signs(shard, [feed for feed in feeds if feed.is_contested])
        return found

    def _say_which_began(self, shard: Shard, feeds: Sequence[Feed]) -> None:
        """Say for other processes that runs began here, and note those that also began there."""
        if feeds:
            shard.insert(CLAIMS.name, claims_block([(feed.run, feed.day) for feed in feeds], BEGUN, self.spool))
            others = begun_elsewhere(shard, [feed.run for feed in feeds], self.spool)
            for feed in feeds:
                feed.has_said_so, feed.began_here = True, feed.run not in others

    def _is_ours(self, feed: Feed, claim: Claim | None) -> bool:
        return feed.began_here if claim is None else claim.spool == self.spool and claim.age_s >= CLAIM_S
