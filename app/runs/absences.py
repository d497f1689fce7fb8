"""The gaps in the sum of all ranks: ranks that are late, missing, silent, or gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from .pending import RankProgress

LATE_S: Final = 15.0  # to wait for the other ranks of a step
UNSEEN: Final = -1  # stands for unknown ranks


class Absences:
    """Counts missing data, and reports each kind once for each rank."""

    def __init__(self, ranks: Callable[[], Mapping[int, RankProgress]]) -> None:
        self._ranks = ranks
        self.incomplete = 0  # steps without some rank
        self._without: set[int] = set()  # the ranks that the newest step lacks
        self.trouble: list[tuple[str, str]] = []  # names and messages of events to add
        self._reported: set[tuple[str, int]] = set()

    def report(self, name: str, rank: int, message: str) -> None:
        """Report something about a rank once."""
        if (name, rank) not in self._reported:
            self._reported.add((name, rank))
            self.trouble.append((name, message))

    def note_late(self, rank: int, step: int, newest: int) -> None:
        """Count a frame of a step that was added up before it came."""
        self._ranks()[rank].late += 1
        self.report(
            "rank-late",
            rank,
            f"rank {rank} sent step {step:,} after step {newest:,} had been added up: the sum of all ranks doesn't "
            "include it. The rank's own run has it",
        )

    def note_away(self, rank: int, frames: int) -> None:
        """Count frames of a rank as too late, which aren't read because there are too many."""
        self._ranks()[rank].late += frames
        self.report(
            "rank-away",
            rank,
            f"rank {rank} was away for {frames:,} frames: the sum of all ranks doesn't include them. The rank's own "
            "run has them",
        )

    def note_step(self, step: int, sent: Collection[int], world: int) -> None:
        """Count a step that is added up now, with these ranks, if any is missing."""
        missing = [each for each in self._ranks().values() if each.open and each.newest < step]
        for each in missing:
            self.report(
                "rank-missing",
                each.rank,
                f"step {step:,} was added up without rank {each.rank}: its data had not arrived within "
                f"{LATE_S:g} s, or before the memory for waiting steps filled up",
            )
        unseen = world - len(self._ranks())
        if unseen > 0:
            sums = f"the sums from step {step:,} on don't include them"
            self.report("ranks-unseen", UNSEEN, f"{unseen:,} of {world:,} ranks have sent nothing yet: {sums}")
        absent = {rank: found for rank, each in self._ranks().items() if (found := each.absence(step)) is not None}
        for rank, (name, why) in absent.items():
            self.report(name, rank, f"rank {rank} {why}")
        lacking = [each for each in self._ranks().values() if step < each.begins and each.rank not in sent]
        self._without = absent.keys() | {each.rank for each in (*missing, *lacking)} | {UNSEEN for _ in range(unseen)}
        self.incomplete += bool(self._without)
        for rank in self._without - {UNSEEN}:
            self._ranks()[rank].missed += 1

    def fill(self, rank: int) -> None:
        """Note that the newest step has come of a rank after all."""
        if rank in self._without:
            self._without.remove(rank)
            self._ranks()[rank].missed -= 1
            self.incomplete -= not self._without
