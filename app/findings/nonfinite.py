"""The tensor that was non-finite first, and the number of affected modules. Reads the store's exact ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records import GRADIENT_KINDS, Severity, Tap
from hookcore.records.vocabulary import KIND_WORDS
from hookcore.store import Episode, NonfiniteTaps, Store, TapList

from .finding import Finding
from .order import around, rank_of

MAX_PAST: Final = 10  # the newest past episodes to show
STAT: Final = "rms"

Spark = Callable[[int], tuple[float, ...]]  # the newest finite values of a tap, by its number


@dataclass(frozen=True, slots=True)
class _Leader:
    """The tap that was non-finite first in an episode, with its entries in the ledger."""

    number: int
    tap: Tap
    first_step: int
    last_step: int
    streaks: int
    steps: int
    nan: int
    inf: int
    is_over: bool


def find_nonfinite(store: Store, taps: TapList, window_first: int, spark: Spark) -> list[Finding]:
    """Return one finding for the first tap of each episode; if a tap is first in several, for its newest one.

    An episode that ended before the window is a note: its step is known, but it doesn't affect the present.
    """
    episodes = store.episodes()
    if not episodes:
        return []
    known, names = store.nonfinite_taps(), dict(taps)
    past = [each for each in episodes if each.is_over][-MAX_PAST:]
    found: dict[int, Finding] = {}
    for episode in reversed([*past, *(each for each in episodes if not each.is_over)]):
        leader = _leader_of(episode, known, names)
        if leader is not None and leader.number not in found:
            found[leader.number] = _finding(store, episode, leader, names, window_first, spark(leader.number))
    return list(found.values())


def _leader_of(episode: Episode, known: NonfiniteTaps, names: dict[int, Tap]) -> _Leader | None:
    """Return the first step's tap that can have caused the others; None if the store has none of their names."""
    numbers = [number for number in episode.first.tolist() if number in names]
    if not numbers:
        return None
    holders = around({names[number].module for number in numbers})
    number = min(numbers, key=lambda each: rank_of(episode.begin, each, names[each], holders))
    place = int(np.searchsorted(known.numbers, number))
    return _Leader(
        number,
        names[number],
        first_step=int(known.first_step[place]),
        last_step=int(known.last_step[place]),
        streaks=int(known.streaks[place]),
        steps=int(known.steps[place]),
        nan=int(known.nan[place]),
        inf=int(known.inf[place]),
        is_over=bool(known.is_over[place]),
    )


def _finding(
    store: Store, episode: Episode, leader: _Leader, names: dict[int, Tap], window_first: int, spark: tuple[float, ...]
) -> Finding:
    until = episode.last if episode.is_over else None
    skipped = episode.is_over and episode.skipped and leader.tap.kind in GRADIENT_KINDS
    is_note = skipped or (episode.is_over and episode.last < window_first)
    severity: Severity = "info" if is_note else "warning" if episode.is_over else "error"
    infinite = _is_infinite(store, episode, leader)
    modules = {names[number].module for number in episode.taps.tolist() if number in names} - {leader.tap.module}
    return Finding(
        "nonfinite",
        severity,
        leader.number,
        leader.tap,
        STAT,
        float("inf") if infinite else float("nan"),
        float("nan"),
        episode.begin,
        until,
        _message(episode, leader, "an infinity" if infinite else "NaN", skipped),
        spark,
        len(modules),
        leader.last_step if leader.is_over else None,
        _unseen(episode),
    )


def _is_infinite(store: Store, episode: Episode, leader: _Leader) -> bool:
    """Return whether the tap had infinities and no NaN."""
    if not leader.nan or not leader.inf:
        return not leader.nan
    seen = store.series(leader.number, "nan", episode.begin, episode.last, 1)  # it had both: find out when
    return not (len(seen.max) and seen.max[0] > 0)


def _unseen(episode: Episode) -> int:
    """Return the number of uncaptured steps right before an episode."""
    return 0 if episode.previous is None else episode.begin - episode.previous - 1


def _message(episode: Episode, leader: _Leader, what: str, skipped: bool) -> str:
    begin, name = episode.begin, KIND_WORDS[leader.tap.kind]
    if episode.is_over:
        when = f"at step {begin}" if episode.last <= begin else f"between steps {begin} and {episode.last}"
        tail = "; the gradient scaler skipped the step" if skipped else "; finite again"
    elif leader.is_over and leader.first_step >= begin:
        last = leader.last_step
        when = f"at step {begin}" if last <= begin else f"between steps {begin} and {last}"
        tail = "; finite again there, but not in the layers that it reached"
    else:
        when, tail = f"since step {begin}", ""
    unseen = _unseen(episode)
    steps = "the step before it was" if unseen == 1 else f"the {unseen:,} steps before it were"
    gap = f" ({steps} not captured, so another layer may have been first)" if unseen > 0 else ""
    message = f"{what} in the {name} {when}{gap}{tail}"
    if leader.streaks > 1:
        message += f"; non-finite in {leader.steps:,} captured steps since step {leader.first_step}"
    return message
