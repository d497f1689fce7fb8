"""How far a run is, and how far a follower was told. Numbers only: they are compared, and travel as text."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from hookcore.store import Store

from ..runs import Run

_ALL: Final = 2**62
_tokens: WeakKeyDictionary[Store, str] = WeakKeyDictionary()


class Steps(NamedTuple):
    """The newest step, how many different ones came, and in how many frames."""

    newest: int = -1
    different: int = 0
    frames: int = 0


class Mark(NamedTuple):
    """How far a run is."""

    steps: Steps
    events: int
    taps: int
    state: str


class Cursor(NamedTuple):
    """How far one follower was told. `store` names the store in which the counts are true."""

    run: str
    store: str
    frames: Steps = Steps()
    logs: Steps = Steps()
    events: int = 0
    taps: int = 0
    state: str = ""

    def as_text(self) -> str:
        """As the id of an event."""
        steps = (".".join(map(str, each)) for each in (self.frames, self.logs))
        return ":".join([self.run, self.store, *steps, str(self.events), str(self.taps), self.state])

    @classmethod
    def read(cls, text: str) -> Cursor | None:
        """From the id of an event; None where it is none of ours."""
        parts = text.split(":")
        if len(parts) != 7 or len(text) > 1000:
            return None
        try:
            counts = [int(number) for part in parts[2:6] for number in part.split(".")]
        except ValueError:
            return None
        if len(counts) != 8 or not all(-1 <= number < 2**53 for number in counts):
            return None
        return cls(parts[0], parts[1], Steps(*counts[:3]), Steps(*counts[3:6]), counts[6], counts[7], parts[6])


def mark_of(run: Run, present: bool = True) -> Mark:
    """How far a run is now; `present` says whether the server still has it."""
    # In this order: a run that is seen to have ended has its last step, and a step that is seen has its taps.
    state = run.state if present else "removed"
    steps = steps_of(run.store)
    taken, _ = run.store.events_after(_ALL)
    return Mark(steps, taken, run.store.taps_announced, state)


def steps_of(store: Store) -> Steps:
    """How far a store's steps are."""
    steps = store.steps()
    return Steps(-1 if steps.newest is None else steps.newest, steps.count, steps.frames)


def token_of(store: Store) -> str:
    """A name of this very store: counts of another one, of the same run, mean nothing in it."""
    return _tokens.setdefault(store, secrets.token_hex(4))


def new_steps(told: Steps, now: Steps) -> tuple[int, int] | None:
    """The first and last step that are new to a follower.

    Where more frames than steps came, the newest step that was told may have got a further part: it comes again.
    """
    if now.frames == told.frames or now.newest < 0:
        return None
    again = told.newest >= 0 and now.frames - told.frames > now.different - told.different
    first = told.newest if again else told.newest + 1
    return (first, now.newest) if first <= now.newest else None
