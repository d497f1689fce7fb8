"""The progress of a run, and of a follower: numbers and words, which are compared."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from hookcore.reading import answers
from hookcore.store import Store

from ..runs import Run

_ALL: Final = 2**62
_tokens: WeakKeyDictionary[Store, str] = WeakKeyDictionary()


class Steps(NamedTuple):
    """The newest step, the number of different steps, and the number of their frames."""

    newest: int = -1
    different: int = 0
    frames: int = 0


class Mark(NamedTuple):
    """The progress of a run."""

    steps: Steps
    events: int
    taps: int
    state: str
    incidents: int = 0
    edits: int = 0  # of name, notes, acknowledgements, and mutes
    paused: bool = False  # capture
    flow_step: int | None = None  # in which the data flow was learned last
    snapshots: int = 0
    waiting: tuple[int, ...] = ()  # the commands that the trainer hasn't received
    time_s: float | None = None  # when the newest step ended, by the trainer's clock
    store: str = ""  # names the store to which the counts refer; empty if the run is on disk only


class Cursor(NamedTuple):
    """The progress of one follower. `store` names the store to which the counts refer."""

    run: str
    store: str
    frames: Steps = Steps()
    scalars: Steps = Steps()
    events: int = 0
    taps: int = 0
    incidents: int = 0
    state: str = ""

    def as_text(self) -> str:
        """Return the id of an event."""
        steps = (".".join(map(str, each)) for each in (self.frames, self.scalars))
        return ":".join(
            [self.run, self.store, *steps, str(self.events), str(self.taps), str(self.incidents), self.state]
        )

    @classmethod
    def read(cls, text: str) -> Cursor | None:
        """Parse the id of an event; None if it is invalid."""
        parts = text.split(":")
        if len(parts) != 8 or len(text) > 1000:
            return None
        try:
            counts = [int(number) for part in parts[2:7] for number in part.split(".")]
        except ValueError:
            return None
        if len(counts) != 9 or not all(-1 <= number < 2**53 for number in counts):
            return None
        return cls(
            parts[0], parts[1], Steps(*counts[:3]), Steps(*counts[3:6]), counts[6], counts[7], counts[8], parts[7]
        )


def mark_of(run: Run, present: bool = True) -> Mark:
    """Return the progress of a run. `present` says whether the server still has it."""
    # In this order, because a run that has ended then has its last step, and a step has its taps.
    state = run.state if present else "removed"
    known = run.store.steps()
    steps = Steps(-1 if known.newest is None else known.newest, known.count, known.frames)
    taken, _ = run.store.events_after(_ALL)
    flows = run.store.flows()
    return Mark(
        steps,
        taken,
        run.store.taps_announced,
        state,
        run.store.incidents_version,
        run.edits.count,
        run.is_paused,
        flows[-1].step if flows else None,
        run.store.snapshots_after(_ALL)[0],
        run.commands.waiting,
        known.time_s,
        token_of(run.store) if run.loaded else "",
    )


def token_of(store: Store) -> str:
    """Return a name for this store. Counts of another store, even of the same run, don't apply to it."""
    return _tokens.setdefault(store, secrets.token_hex(4))


def events_between(run: Run, sent: int, now: int) -> tuple[answers.Event, ...]:
    """Return the events after one cursor up to another; later ones are sent next time."""
    taken, events = run.store.events_after(sent)
    return run.reader.events_of(events[: max(0, len(events) - max(0, taken - now))])


def new_steps(sent: Steps, now: Steps) -> tuple[int, int] | None:
    """Return the first and last step that are new to a follower.

    If more frames than steps arrived, the newest sent step may have another part, so it is sent again.
    """
    if now.frames == sent.frames or now.newest < 0:
        return None
    again = sent.newest >= 0 and now.frames - sent.frames > now.different - sent.different
    first = sent.newest if again else sent.newest + 1
    return (first, now.newest) if first <= now.newest else None
