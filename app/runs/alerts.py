"""What a server does by itself about incidents: notifications, and explanations of saved steps."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hookcore.delivery.dashboard.capsules import Saved, folder_of, remove_unfinished, saved
from hookcore.delivery.notify import Note, Notifier, note_about, note_about_event, targets_of
from hookcore.errors import HookcoreError, ServerError
from hookcore.platform import background
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.reading.replaying import MAX_S, Kept, Replaying, events_of, read
from hookcore.records import Event

from ..settings import ServerSettings
from . import Runs
from .run import Run

# Notifications about the incidents of a server's runs, and about runs that crashed or went silent.

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
            incident
            for incident in run.store.incidents()
            if incident.severity in REPORTED and incident.found_step > run.saved.known_until
        )
        heard = (incident for incident in new if muting(incident.rule, incident.culprit.tap.module) is None)
        return [note_about(incident, run.id, run.name, self._page_of(run)) for incident in heard]

    def _of_events(self, run: Run, events: Iterable[Event]) -> list[Note]:
        new = (event for event in events if event.name in REPORTED_EVENTS)
        muting = run.edits.quiet.muting(run.store)
        heard = (event for event in new if muting(event.name, event.module) is None)
        return [note_about_event(event, run.id, run.name, self._page_of(run)) for event in heard]

    def _page_of(self, run: Run) -> str:
        return f"{self.url}/runs/{run.id}" if self.url else ""


@dataclass(slots=True)
class Notifications:
    """The notifier of a server, and the runs that it watches."""

    notifier: Notifier
    lookout: Lookout

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
        self.lookout.url = url
        self.notifier.start()


# Explains saved steps: a child process replays a capsule, because opening one runs code from it.

MAX_RUNNING: Final = 2
CLOSE_S: Final = 5.0


class BusyError(HookcoreError):
    """As many steps are being explained as may be at the same time."""


class Explainer:
    """The capsules of this server's user, and the replays that run now."""

    def __init__(self, environment: Mapping[str, str] = os.environ, max_s: float = MAX_S) -> None:
        self._environment, self._max_s = environment, max_s
        self.running: dict[Path, Replaying] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        if left := remove_unfinished(environment):
            logger.warning("hookcore: removed %d unfinished capsule files that killed processes left", left)

    def capsules_of(self, run: Run) -> list[answers.Capsule]:
        """Return the capsules of a run that are on this machine."""
        return [self._answer(saved) for saved in self._saved(run)]

    def explain(self, run: Run, id: str) -> answers.Capsule | None:
        """Start to replay a capsule, unless that runs already. Return it, or None if there is no such capsule."""
        saved = next((capsule for capsule in self._saved(run) if capsule.id == id), None)
        if saved is None:
            return None
        with self._lock:
            if not saved.trouble and saved.path not in self.running:
                if self._closed or len(self.running) >= MAX_RUNNING:
                    raise BusyError(f"{MAX_RUNNING} steps are being explained: try again when one is finished")
                replaying = self.running[saved.path] = Replaying(saved, self._environment)
                thread = background("hookcore-explain", self._replay, run, saved, replaying)
                self._threads = [*(old for old in self._threads if old.is_alive()), thread]
                thread.start()
        return self._answer(saved)

    def close(self) -> None:
        """End all replays."""
        with self._lock:
            self._closed = True
            for replaying in self.running.values():
                replaying.kill()
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _saved(self, run: Run) -> list[Saved]:
        with contextlib.suppress(ServerError):  # without a private folder, nothing can be in it
            return saved(folder_of(run.id, self._environment))
        return []

    def _answer(self, saved: Saved) -> answers.Capsule:
        kept, about = Kept(saved.trouble) if saved.trouble else read(saved.explained), saved.described
        state: Any = "saved" if kept is None else "failed" if kept.failure else "explained"
        with self._lock:
            state = "running" if saved.path in self.running else state
        return answers.Capsule(
            id=saved.id,
            step=about.step,
            reason=about.reason,
            model=about.model,
            weights=about.weights,
            time_s=Number(about.time_s),
            size=saved.size,
            path=str(saved.path),
            state=state,
            failure="" if kept is None or state == "running" else kept.failure,
            explanation=None if kept is None or state == "running" else kept.explanation,
            incident="" if about.occasion is None else about.occasion.incident,
        )

    def _replay(self, run: Run, saved: Saved, replaying: Replaying) -> None:
        kept = replaying.run(self._max_s)
        with self._lock:
            self.running.pop(saved.path, None)
        if self._closed or replaying.was_elsewhere:
            return
        for event in events_of(saved, kept):
            run.store.add_event(event)
        run.changes.tell()
