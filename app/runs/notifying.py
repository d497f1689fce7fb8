"""Notifications about the incidents of a server's runs, and about runs that crashed or went silent."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from hookcore.delivery.notify import Note, Notifier, note_about, note_about_event, targets_of
from hookcore.records import Event

from ..settings import ServerSettings
from . import Run, Runs

logger = logging.getLogger("hookcore")

REPORTED: Final = ("error", "warning")
REPORTED_EVENTS: Final = frozenset({"crashed", "lost"})


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of a run at the last look."""

    incidents: int = 0  # their version
    events: int = 0  # the cursor behind the newest


@dataclass(slots=True)
class Lookout:
    """Finds news in the runs whose trainers have sent data to this server."""

    _runs: Runs
    url: str = ""  # of the server, once it listens
    _seen: dict[str, _Seen] = field(default_factory=dict)  # by run

    def news(self) -> list[Note]:
        """Return a note for each incident of a run whose incidents have changed, and for each run that broke off."""
        notes: list[Note] = []
        runs = [run for run in self._runs.all() if run.loaded and not run.saved.from_disk]
        seen = {}
        for run in runs:
            before = self._seen.get(run.id, _Seen(events=run.saved.seen_events))
            version = run.store.incidents_version
            if version != before.incidents:
                notes += self._of_incidents(run)
            cursor, events = run.store.events_after(before.events)
            notes += self._of_events(run, events)
            seen[run.id] = _Seen(version, cursor)
        self._seen = seen
        return notes

    def _of_incidents(self, run: Run) -> list[Note]:
        muting = run.edits.quiet.muting(run.store)
        new = (
            each
            for each in run.store.incidents()
            if each.severity in REPORTED and each.found_step > run.saved.known_until
        )
        heard = (each for each in new if muting(each.rule, each.culprit.tap.module) is None)
        return [note_about(each, run.id, run.name, self._page_of(run)) for each in heard]

    def _of_events(self, run: Run, events: Iterable[Event]) -> list[Note]:
        new = (each for each in events if each.name in REPORTED_EVENTS)
        muting = run.edits.quiet.muting(run.store)
        heard = (each for each in new if muting(each.name, each.module) is None)
        return [note_about_event(each, run.id, run.name, self._page_of(run)) for each in heard]

    def _page_of(self, run: Run) -> str:
        return f"{self.url}/runs/{run.id}" if self.url else ""


@dataclass(slots=True)
class Notifications:
    """The notifier of a server, and the runs that it watches."""

    notifier: Notifier
    _lookout: Lookout

    @classmethod
    def of(cls, runs: Runs, settings: ServerSettings) -> Notifications:
        """Return the notifications for the settings. Raises ArgumentError for a wrong address."""
        lookout = Lookout(runs)

        def look() -> None:
            for note in lookout.news():
                notifier.put(note)

        notifier = Notifier(targets_of(settings.notify), lambda why: logger.warning("hookcore: %s", why), look)
        return cls(notifier, lookout)

    def start(self, url: str) -> None:
        """Start to send, with links to this address."""
        self._lookout.url = url
        self.notifier.start()
