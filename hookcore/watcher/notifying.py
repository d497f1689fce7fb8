"""Notifications about the incidents and the crash of a watcher's run, sent by the training process itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hookcore.config import Settings, rank
from hookcore.delivery.failures import CRASHED, event_of
from hookcore.delivery.notify import Notifier, Target, note_about, note_about_event, targets_of
from hookcore.records import Failure
from hookcore.records.wire import RunInfo

if TYPE_CHECKING:
    from hookcore.reading.answers import Incident


def targets_for(settings: Settings) -> tuple[Target, ...]:
    """Return the targets in the settings; in a distributed training, only for rank 0."""
    return targets_of(settings.notify if rank() == "0" else ())


def noting(notifier: Notifier, run: RunInfo, page: Callable[[], str | None]) -> Callable[[Incident], None]:
    """Return a callback that queues a note about an incident, with a link if the run has a page."""

    def note(incident: Incident) -> None:
        notifier.put(note_about(incident, run.id, run.name, page() or ""))

    return note


def note_failure(notifier: Notifier, run: RunInfo, page: str | None, failure: Failure) -> None:
    """Queue a note about a crash. Interrupted runs get no message."""
    if failure.outcome == CRASHED:
        notifier.put(note_about_event(event_of(failure), run.id, run.name, page or ""))
