"""Notifications about the incidents of a server's runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from hookcore.notify import Note, Notifier, note_about, targets_of

from .runs import Runs
from .settings import ServerSettings

logger = logging.getLogger("hookcore")

TOLD: Final = ("error", "warning")


@dataclass(slots=True)
class Lookout:
    """Finds new incidents in the runs whose trainers have sent something to this server."""

    _runs: Runs
    url: str = ""  # of the server, once it listens
    _seen: dict[str, int] = field(default_factory=dict)  # versions of incidents by run

    def news(self) -> list[Note]:
        """Return a note for each incident of a run whose incidents have changed."""
        runs = [run for run in self._runs.all() if run.loaded and not run.from_disk]
        changed = [(run, run.store.incidents_version) for run in runs]
        changed = [(run, version) for run, version in changed if self._seen.get(run.id, 0) != version]
        self._seen = {run.id: self._seen.get(run.id, 0) for run in runs} | {run.id: version for run, version in changed}
        return [
            note_about(incident, run.id, run.name, f"{self.url}/runs/{run.id}" if self.url else "")
            for run, _ in changed
            for incident in run.store.incidents()
            if incident.severity in TOLD and incident.told > run.known_until
        ]


@dataclass(slots=True)
class Notifications:
    """The notifier of a server, and what it looks at."""

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
