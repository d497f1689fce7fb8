"""The user's callbacks for incidents, what a training says in its terminal, and the replay of its first error."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from hookcore.config import Explain, did_you_mean
from hookcore.delivery.dashboard.capsules import Saved, saved
from hookcore.delivery.notify import note_about
from hookcore.errors import ArgumentError, StopTraining
from hookcore.platform import lock_file
from hookcore.reading.replaying import FAILED, Kept, Replaying, events_of
from hookcore.recorder.clock.clock import Boundary
from hookcore.records import SEVERITIES, Event, Severity, worst_first
from hookcore.records.vocabulary import counted

if TYPE_CHECKING:
    from hookcore.reading.answers import Incident

# The user's callbacks for incidents: a thread notices incidents, and calls back or defers the call to a step's end.

POLL_S: Final = 0.05
PAUSE_S: Final = 0.25  # after each time that the incidents were read
MAX_PAUSE_S: Final = 10.0  # while they can't be
CLOSE_S: Final = 1.0
MAX_REPORTED: Final = 4096  # ids that a subscriber remembers; a store keeps about fifty incidents

Callback = Callable[["Incident"], object]
At = Literal["found", "step"]
PLACES: Final[tuple[At, ...]] = ("found", "step")


@dataclass(frozen=True, slots=True)
class Report:
    """Reports problems of callbacks, and what they do to the training: to the watcher's errors, and as events."""

    _record: Callable[[str, BaseException], None]
    _emit: Callable[[str, str, Severity], None]

    def failed(self, where: str, error: BaseException, first: bool) -> None:
        """Count an error. The `first` of a callback is also an event of the run."""
        self._record(f"on_incident: {where}", error)
        if first:
            message = f"the on_incident callback {where} failed: {type(error).__name__}: {error}"
            self._emit("callback-failed", message, "warning")

    def not_notified(self, why: str) -> None:
        """Count a notification that failed."""
        self._record("notify", RuntimeError(why))
        self._emit("notify-failed", why, "warning")

    def stopped(self, where: str, reason: StopTraining) -> None:
        """Add an event that says that a callback stopped the training."""
        self._emit("training-stopped", f"the on_incident callback {where} stopped the training: {reason}", "info")


@dataclass(slots=True, eq=False)
class Subscriber:
    """A callback, and the incidents that it was called for."""

    callback: Callback
    at: At
    severity: Severity
    _reported: dict[str, None] = field(default_factory=dict)
    _failed: bool = False

    @property
    def name(self) -> str:
        """The name of the callback in messages."""
        return str(getattr(self.callback, "__qualname__", type(self.callback).__name__))

    def news_of(self, incidents: Iterable[Incident]) -> list[Incident]:
        """Return the incidents to call the callback for now, each only once, without muted ones."""
        worst = SEVERITIES[: SEVERITIES.index(self.severity) + 1]
        news = [incident for incident in incidents if incident.severity in worst and incident.id not in self._reported]
        self._reported |= dict.fromkeys(each.id for each in news)
        while len(self._reported) > MAX_REPORTED:
            del self._reported[next(iter(self._reported))]
        return [each for each in news if not each.muted]

    def call(self, incident: Incident, report: Report) -> None:
        """Call back. Only StopTraining leaves this method, and only if it ends a step."""
        try:
            self.callback(incident)
        except StopTraining as reason:
            if self.at == "step":
                report.stopped(self.name, reason)
                raise
            self._fail(report, ArgumentError("StopTraining can only stop a step: use on_incident(at='step')"))
        except Exception as error:
            self._fail(report, error)
        except BaseException as error:  # sys.exit() would end the thread without a trace
            if self.at == "step":
                raise
            self._fail(report, error)

    def _fail(self, report: Report, error: BaseException) -> None:
        first, self._failed = not self._failed, True
        report.failed(self.name, error, first)


class Callbacks:
    """The callbacks of one watcher. Starts a thread with the first one.

    The thread compares a version number, and reads the incidents only if it has changed. If they are at a server, it is
    this thread that waits for the answer.
    """

    def __init__(
        self, version: Callable[[], int], read: Callable[[], Iterable[Incident]], boundary: Boundary, report: Report
    ) -> None:
        self._version, self._read = version, read
        self._boundary, self._report = boundary, report
        self._subscribers: tuple[Subscriber, ...] = ()
        self._seen = 0  # the version that all subscribers know
        self._failures = 0  # to read the incidents, since the last success
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._poll_s = self._pause_s = MAX_PAUSE_S  # the shortest that a subscriber asks for
        self.newest: tuple[Incident, ...] = ()  # as they were read last
        self._woken = threading.Event()  # to look now

    def add(
        self, callback: Callback, at: At, severity: Severity, poll_s: float = POLL_S, pause_s: float = PAUSE_S
    ) -> None:
        """Call a function once for each incident.

        The version is compared after each `poll_s`, and for `pause_s` after the incidents were read, it isn't.
        """
        _require("at", at, PLACES)
        require_severity("severity", severity)
        if not callable(callback):
            raise ArgumentError(f"on_incident() was given a {type(callback).__name__}; it takes a function(incident)")
        with self._lock:
            self._subscribers += (Subscriber(callback, at, severity),)
            self._seen = 0
            self._poll_s, self._pause_s = min(self._poll_s, poll_s), min(self._pause_s, pause_s)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hookcore-incidents", daemon=True)
                self._thread.start()
        self._woken.set()

    def close(self) -> None:
        """Call back for the last incidents, and end the thread."""
        self._stopping.set()
        self._woken.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)
        if self._thread is None or not self._thread.is_alive():
            self._version, self._read = lambda: 0, tuple  # those of the watcher would keep it in a circle

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.wait(self.look())
            self._woken.clear()
        self.look()

    def look(self) -> float:
        """Call back if there is news. Return how long to wait."""
        with self._lock:
            subscribers, seen = self._subscribers, self._seen
        version = self._version()
        if version == seen:
            return self._poll_s
        try:
            incidents = self._read()
        except Exception as error:
            self._failures += 1
            if self._failures == 1:  # once for each time that a server is away
                self._report.failed("reading the incidents", error, first=False)
            return min(MAX_PAUSE_S, PAUSE_S * 2.0 ** min(self._failures, 10))
        self._failures, self.newest = 0, tuple(incidents)
        with self._lock:
            if self._subscribers is subscribers:  # a new one gets all incidents next time
                self._seen = version
        for subscriber in subscribers:
            for incident in subscriber.news_of(incidents):
                self._pass_on(subscriber, incident)
        return self._pause_s

    def _pass_on(self, subscriber: Subscriber, incident: Incident) -> None:
        if subscriber.at == "found":
            subscriber.call(incident, self._report)
        elif not self._boundary.put(partial(subscriber.call, incident, self._report)):
            error = RuntimeError(f"too many incidents wait for the end of a step: {incident.id} is not passed on")
            self._report.failed(subscriber.name, error, first=False)


def require_severity(name: str, value: str) -> None:
    """Raise ArgumentError if an argument is not a severity."""
    _require(name, value, SEVERITIES)


def _require(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        words = ", ".join(map(repr, allowed))
        hint = did_you_mean(str(value), allowed)
        raise ArgumentError(f"{name}={value!r} is invalid: use one of {words}.{hint}")


TERMINAL_POLL_S: Final = 0.5  # nobody waits for a line
TERMINAL_PAUSE_S: Final = 2.0
MAX_LINES: Final = 5  # of errors in a minute; the others are counted at the end
MINUTE_S: Final = 60.0
MAX_PROBLEMS: Final = 3  # lines at the end
LEVEL: Final = "error"  # the severity of what is worth a line at once


class Terminal:
    """The lines of one run. `say` prints one; `page` returns the address of the training's page."""

    def __init__(
        self, say: Callable[[str], None], page: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._page, self._clock = say, page, clock
        self._said: deque[float] = deque(maxlen=MAX_LINES)
        self._summed_up = False
        self.crash = ""  # how the run crashed, in words

    def begin(self, incident: Incident) -> None:
        """Print a line about an error that has begun."""
        now = self._clock()
        if len(self._said) == MAX_LINES and now - self._said[0] < MINUTE_S:
            return
        self._said.append(now)
        note = note_about(incident, "", "", self._page())
        self._say(f"{note.sentence} {note.link}")

    def sum_up(self, incidents: Sequence[Incident]) -> None:
        """Print how the run crashed, and its problems, worst first, if there are any. A second call does nothing."""
        problems = [
            incident for incident in incidents if incident.severity in ("error", "warning") and not incident.muted
        ]
        if self._summed_up or not (problems or self.crash):
            return
        self._summed_up = True
        if self.crash:
            self._say(f"{self.crash} - {self._page()}")
        if not problems:
            return
        problems.sort(key=lambda each: worst_first(each.severity, each.earliest_step, is_of_loss=each.rule == "loss"))
        self._say(f"{counted(len(problems), 'problem')} - {self._page()}")
        for each in problems[:MAX_PROBLEMS]:
            self._say(f"  {each.severity}: {each.sentence}")
        if len(problems) > MAX_PROBLEMS:
            self._say(f"  and {len(problems) - MAX_PROBLEMS:,} more")


logger = logging.getLogger("hookcore")

MAX_BYTES: Final = 512 << 20  # of the capsule
WAIT_S: Final = 30.0  # for a running replay, when the training ends
_TURN_S: Final = 60.0  # for those of other processes, such as the other ranks: one runs at a time
_POLL_S: Final = 0.2
_LOCK: Final = "explaining.lock"


class SelfExplainer:
    """Replays the first capsule that it is told of, and emits what was found as events of the run."""

    def __init__(self, explain: Explain) -> None:
        self._wanted = explain == "auto"
        self.emit: Callable[[Sequence[Event]], None] = lambda _: None  # set once there is a recorder
        self._replaying: Replaying | None = None
        self._thread: threading.Thread | None = None
        self._step = 0
        self._stopped = False

    def saw_error(self, path: Path) -> None:
        """Start the replay of a capsule that was just written. Called on the training thread."""
        if not self._wanted or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._explain, args=(path,), name="hookcore-explain", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for a running replay at the end of the training, but not long; then stop it."""
        thread = self._thread
        if thread is None or self._stopped or not thread.is_alive():
            return
        logger.warning(
            "hookcore: waiting up to %.0f s for the replay of step %s, the run's first error", WAIT_S, f"{self._step:,}"
        )
        with contextlib.suppress(KeyboardInterrupt):
            thread.join(WAIT_S)
        if thread.is_alive():
            self._stopped = True
            if self._replaying is not None:
                self._replaying.kill()

    def _explain(self, path: Path) -> None:
        found = next((each for each in saved(path.parent) if each.path == path), None)
        if found is None:
            return
        self._step = found.described.step
        if found.size > MAX_BYTES:
            limit = f"{MAX_BYTES >> 20} MiB"
            why = f"the capsule of step {self._step:,} has more than {limit}, so it isn't replayed by itself"
            self.emit([Event(self._step, time.time(), FAILED, why)])
            return
        with _turn(path.parent.parent / _LOCK):
            self._replay(found)

    def _replay(self, found: Saved) -> None:
        self._replaying = Replaying(found, os.environ, by_itself=True)
        kept: Kept = self._replaying.run()
        if not self._stopped:
            self.emit(events_of(found, kept))


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait until no other process of this user explains a step by itself, but not forever."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("wb"))
            until = time.monotonic() + _TURN_S
            while time.monotonic() < until:
                try:
                    lock_file(file)
                except BlockingIOError:
                    time.sleep(_POLL_S)
                else:
                    break
        yield
