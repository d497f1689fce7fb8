"""The numbers of runs and lanes in the tables. They are computed from the names, not assigned."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from functools import lru_cache
from typing import Final

from hookcore.records import Tap

from .tables import MARK

DAY_S: Final = 86_400
_LAST_DAY: Final = 2**16 - 1
SCALARS: Final = 2**63  # lanes of scalars begin here; those of taps are the taps' numbers


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=10_000)
def number_of_run(run_id: str) -> int:
    """Return the number of a run, or of a spool."""
    return _hash(run_id)


@lru_cache(maxsize=100_000)
def lane_of_scalar(name: str) -> int:
    """Return the lane of a scalar. That of a tap is the tap's number."""
    lane = _hash(name) | SCALARS
    return lane if lane != MARK else MARK - 1


@lru_cache(maxsize=100_000)
def lane_of_sum(tap: Tap) -> int:
    """Return the lane of a tap in the sums of ranks, each of which numbers its taps as it met them."""
    return _hash(repr(astuple(tap))) & ~SCALARS


def day_of(started_s: float) -> int:
    """Return the day on which a run began, since 1970, as ClickHouse counts them."""
    return min(int(started_s) // DAY_S, _LAST_DAY)


def rank_shards(run_id: str, shards: int) -> list[int]:
    """Return the shards in the order in which a new run prefers them. A shard that is added takes its share of runs."""
    return sorted(range(shards), key=lambda shard: _hash(f"{shard} {run_id}"), reverse=True)
