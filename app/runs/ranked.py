"""The way from a run to its ranks, and back."""

from __future__ import annotations

from typing import Final

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.records import Kind

from .joint import Joint, joint_in, ranks_in
from .rounds import Member
from .run import Run
from .runs import Runs

MAX_MISSING: Final = 100  # that are listed


def joint_of(run: Run) -> Joint:
    """Return the training that a run is a rank of, or the sum of all. Raises ArgumentError for a single process."""
    joint = joint_in(run)
    if joint is None:
        raise ArgumentError(f"the run {run.id} is a single process: only distributed trainings have ranks")
    return joint


def read_every(runs: Runs, joint: Joint) -> None:
    """Load the runs of all ranks, of all attempts, that are on disk only."""
    for run in joint.runs():
        runs.read(run)


def members_at(joint: Joint, step: int) -> tuple[list[Member], int]:
    """Return the runs of the attempt that a step belongs to, by rank, and by how much its steps are shifted."""
    begun = {each: shift for each, shift in joint.sum.shifts.items() if shift <= step}
    turn = max(begun, default=None)
    if turn is None:
        return joint.current(), joint.sum.shift
    by_rank = {each.place.rank: each for each in joint.members.values() if each.round == turn}
    return [by_rank[rank] for rank in sorted(by_rank)], begun[turn]


def shift_of(joint: Joint, member: Member) -> int | None:
    """Return by how much the steps of a rank's run are shifted; None if the sum has not begun its round."""
    return joint.sum.shifts.get(member.round, None if joint.sum.shifts else 0)


def rank_of(run: Run, rank: int) -> Run:
    """Return the run of one rank. Raises ArgumentError if there is none."""
    joint = joint_of(run)
    found = next((each.run for each in joint.current() if each.place.rank == rank), None)
    if found is None:
        seen = ", ".join(str(each.place.rank) for each in joint.current()[:20])
        raise ArgumentError(f"rank {rank} of {joint.id} has sent nothing yet; seen were {seen or 'none'}")
    return found


def local_kinds(run: Run) -> frozenset[Kind]:
    """Return the kinds of gradients that each rank has of its own loss, before any reduction."""
    joint = joint_in(run)
    return frozenset() if joint is None else joint.sum.assembly.local_kinds


def is_unsure(run: Run, number: int) -> bool:
    """Return whether it isn't known if the ranks have parts or copies of a tap of the run of all ranks."""
    joint = ranks_in(run)
    return joint is not None and joint.sum.assembly.shares.is_unknown(number)


def summary_of(run: Run) -> answers.RankSummary | None:
    """Return how many ranks a run is the sum of; None for any other."""
    joint = ranks_in(run)
    return None if joint is None else summary_of_ranks(joint)


def summary_of_ranks(joint: Joint) -> answers.RankSummary:
    """Return how many ranks a training has."""
    current = joint.current()
    live = sum(each.run.state == "live" for each in current)
    attempts = 1 + max((each.round for each in current), default=0)
    missing = tuple(joint.missing()[:MAX_MISSING])
    return answers.RankSummary(joint.world, len(current), live, missing, attempts)
