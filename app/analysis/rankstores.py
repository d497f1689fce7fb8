"""The stores of the ranks of a training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.store import Store

from ..runs import JointRun
from ..runs.ranked import members_at, shift_of

NO_LANE: Final = np.iinfo(np.int64).max  # of a tap that the run of all ranks doesn't have


@dataclass(frozen=True, slots=True)
class OfRank:
    """The store of a rank, and by how much its steps are shifted in the run of all ranks."""

    rank: int
    store: Store
    shift: int = 0
    lanes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # of its taps in the run of all


def stores_of(joint: JointRun) -> list[OfRank]:
    """Return the stores of the ranks of the newest attempt, by rank, as far as the sum of all ranks has begun it."""
    joined = joint.joined  # first: until a rank's new run has joined, what is known of the rank is about its last one
    known = joint.assembly.ranks
    return [
        OfRank(rank, each.run.store, shift, known[rank].lanes)
        for each in joint.current()
        if each.run.loaded and each.run.id in joined and (rank := each.place.rank) in known
        if (shift := shift_of(joint, each)) is not None
    ]


def stores_at(joint: JointRun, step: int) -> list[OfRank]:
    """Return the stores of the ranks of the attempt that a step of the run of all ranks belongs to, by rank."""
    members, shift = members_at(joint, step)
    if members == joint.current():
        return stores_of(joint)
    numbers = {tap: number for number, tap in joint.store.taps()}
    found = []
    for each in members:
        if each.run.loaded:
            lanes = [numbers.get(tap, NO_LANE) for tap in each.run.store.taps().taps]
            found.append(OfRank(each.place.rank, each.run.store, shift, np.array(lanes, np.int64)))
    return found


def every_store_of(joint: JointRun) -> list[OfRank]:
    """Return the stores of all ranks of all attempts, the newest last."""
    members = sorted(joint.members.values(), key=lambda each: (each.round, each.place.rank))
    shifts = joint.shifts
    return [
        OfRank(each.place.rank, each.run.store, shifts[each.round])
        for each in members
        if each.run.loaded and each.round in shifts
    ]
