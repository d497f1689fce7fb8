"""What ranks have in common or not, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from hookcore.records import Event, Tap
from hookcore.records.vocabulary import DESYNC, counted
from hookcore.store.copies import Difference
from hookcore.store.incidents import Found

MAX_GROUPS: Final = 4  # of ranks with the same value, that a message names


def words_of(ranks: Iterable[int], world: int) -> str:
    """Name ranks: "rank 3", "ranks 0-3 and 7", "all 8 ranks"."""
    known = sorted(set(ranks))
    if len(known) == world:
        return f"all {world:,} ranks"
    parts: list[str] = []
    begin = 0
    for place, rank in enumerate(known):
        if place + 1 == len(known) or known[place + 1] != rank + 1:
            few = [str(each) for each in known[begin : place + 1]]
            parts += few if len(few) < 3 else [f"{few[0]}-{few[-1]}"]
            begin = place + 1
    shown = parts if len(parts) <= 8 else [*parts[:7], f"{len(parts) - 7} more"]
    text = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else "no rank"
    return text if not known else f"rank{'' if len(known) == 1 else 's'} {text}"


def of_rank(event: Event, rank: int) -> Event:
    """Return an event of a rank that says so."""
    return replace(event, message=f"{event.message.rstrip('.')} (rank {rank})")


def events_of(events: Sequence[tuple[int, Event]], world: int) -> Iterable[Event]:
    """Return each event once, with the ranks that had it."""
    ranks: dict[Event, list[int]] = {}
    for rank, event in events:
        ranks.setdefault(replace(event, time_s=0.0), []).append(rank)
    times = {replace(event, time_s=0.0): event.time_s for _, event in reversed(events)}
    for event, its_ranks in ranks.items():
        message = f"{event.message.rstrip('.')} ({words_of(its_ranks, world)})"
        yield replace(event, time_s=times[event], message=message)


def desync_of(step: int, differences: Sequence[Difference], taps: Sequence[Tap]) -> Found:
    """Return what is found in a step in which ranks differ in what they should have in common."""
    first = differences[0]
    others = len(differences) - 1
    more = f"; {counted(others, 'other tensor')} {'differs' if others == 1 else 'differ'}, too" if others else ""
    found = [f"{value:.9g} in {words_of(ranks, -1)}" for ranks, value in first.groups]
    if len(found) > MAX_GROUPS:
        found[MAX_GROUPS:] = [f"other values in {len(found) - MAX_GROUPS:,} more"]
    what = f"{first.stat} of {taps[first.lane].label} is {', '.join(found)}{more}"
    if first.odd:
        who = words_of(first.odd, -1)
        verb = "differs" if len(first.odd) == 1 else "differ"
        message = f"{who} {verb} from the others, although all should have the same values: at step {step:,}, {what}"
    else:
        ranks = sorted(rank for ranks, _ in first.groups for rank in ranks)
        message = f"{words_of(ranks, -1)} should have the same values, but don't: at step {step:,}, {what}"
    members = tuple((each.lane, step) for each in differences)
    value, expected = first.groups[-1][1], first.groups[0][1]
    return Found(DESYNC, "error", first.lane, value, expected, step, None, message, members)
