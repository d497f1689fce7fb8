"""Warnings about data that the server didn't receive."""

from __future__ import annotations

from typing import Final

from hookcore.delivery.http.spooling import Spooling
from hookcore.records.wire import DeliveryCounters

_LOSSES: Final[dict[str, str]] = {
    "queue-full": "dropped because too many were waiting",
    "refused": "rejected",
    "too-large": "too large",
    "unsendable": "could not be encoded",
    "closed": "not sent in time",
}
_NO_ANSWER: Final = "it didn't answer"
_WRITES: Final = "it is still writing"


def absence_message(trouble: str, spooling: Spooling) -> str:
    """Return the warning about a server that accepts nothing."""
    return (
        f"hookcore: the server isn't accepting frames ({trouble or _NO_ANSWER}). Training continues. "
        f"{_meanwhile(spooling)}"
    )


def _meanwhile(spooling: Spooling) -> str:
    if spooling.path is not None:
        return f"Until it does, frames are kept in {spooling.path}."
    why = f" They can't be kept on disk: {spooling.trouble}." if spooling.trouble else ""
    return (
        f"If the queue fills up, the oldest frames are dropped. Frames still waiting when the run ends are lost.{why}"
    )


def return_message(counters: DeliveryCounters) -> str:
    """Return the words about a server that accepts frames again."""
    dropped = counters.dropped.get("queue-full", 0)
    what = f"{dropped:,} of {counters.produced:,} frames and snapshots were {_LOSSES['queue-full']}"
    return f"hookcore: the server is accepting frames again.{f' {what}.' if dropped else ''}"


def loss_message(
    counters: DeliveryCounters, trouble: str, answered: bool, unsaved: int | None, given_up: str, spooling: Spooling
) -> str:
    """Return a warning about the data of an ended run that is or may be lost, or an empty string if all of it is saved.

    `unsaved`: the number of items that the server acknowledged but may not have saved; 0 if only the end is unsaved.
    `given_up`: why the server will not save them.
    """
    parts = [(count, _LOSSES[reason]) for reason, count in counters.dropped.items() if count]
    parts += [(counters.waiting, _LOSSES["closed"])] if counters.waiting else []  # they are in the spool
    parts += [(counters.in_flight, "sent without an answer")] if counters.in_flight else []
    kept = _kept_message(spooling)
    if not parts and answered:
        return "" if unsaved is None else _unsaved_message(counters, trouble, unsaved, given_up, kept)
    why = ", ".join(f"{count:,} {why}" for count, why in parts) or "only its description was not sent"
    also = f" Of those that did, the server may not have saved the last {unsaved:,}." if unsaved else ""
    return (
        f"hookcore: the run has ended, and {sum(count for count, _ in parts):,} of its {counters.produced:,} frames "
        f"and snapshots did not reach the server ({trouble or _NO_ANSWER}): {why}.{also}{kept}"
    )


def _kept_message(spooling: Spooling) -> str:
    """Return where the undelivered items are, with a leading space; empty if they are nowhere."""
    if spooling.path is None:
        return f" They are lost: {spooling.trouble}." if spooling.trouble else ""
    lost = f" {spooling.lost:,} of them could not be written and are lost." if spooling.lost else ""
    return (
        f" What it hasn't saved is in {spooling.path}.{lost} Your next dashboard takes it in, and `hookcore open` "
        "shows it."
    )


def _unsaved_message(counters: DeliveryCounters, trouble: str, unsaved: int, given_up: str, kept: str) -> str:
    last = f"the last {unsaved:,} of the {counters.acknowledged:,} frames and snapshots that it acknowledged"
    if given_up:
        return (
            f"hookcore: the run has ended, but the server couldn't save {last if unsaved else 'all of it'}: "
            f"{given_up}. That data is lost when the server stops."
        )
    what = last if unsaved else "how it ended"
    return (
        f"hookcore: the run has ended, but the server didn't confirm in time ({trouble or _WRITES}) that it saved "
        f"{what}.{kept or ' If the server was killed or its disk is full, that data is lost.'}"
    )
