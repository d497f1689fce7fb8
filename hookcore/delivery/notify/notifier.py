"""Sends notes about incidents and crashes from its own thread, to places whose addresses are secrets."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final, Protocol
from urllib.parse import quote

from hookcore.delivery.notify.child import ask
from hookcore.errors import ArgumentError
from hookcore.records import SEVERITIES, Event, Severity

# The places that notifications go to. Their addresses contain secrets, so nothing shows more than a service's name.

_KINDS: Final[dict[Severity, str]] = {"error": "failure", "warning": "warning", "info": "info"}  # in apprise's words
_NO_ANSWER: Final = (OSError, ValueError, subprocess.TimeoutExpired)


@dataclass(slots=True, eq=False)
class Target:
    """One place, and how many messages it has received."""

    name: str  # of the service, numbered if there are several
    address: str = field(repr=False)
    sent: int = 0
    failed: int = 0
    works: bool | None = None  # whether it received the newest message


def send_to(targets: Sequence[Target], title: str, body: str, severity: Severity) -> list[Target]:
    """Send a message and return the targets that did not accept it. May take many seconds."""
    message = {"title": title, "body": body, "notify_type": _KINDS[severity]}
    try:
        arrived = ask([each.address for each in targets], message)
    except _NO_ANSWER:
        arrived = [False] * len(targets)
    for target, well in zip(targets, arrived, strict=True):
        target.works = well is True
    return [each for each in targets if not each.works]


def targets_of(addresses: Sequence[str]) -> tuple[Target, ...]:
    """Return the targets for addresses. Raise ArgumentError for a wrong one, or if apprise is not installed."""
    if not addresses:
        return ()
    if find_spec("apprise") is None:
        raise ArgumentError("notify needs apprise, which is not installed: pip install apprise")
    names = _names_of(addresses)
    total, seen = Counter(names), Counter[str]()
    targets = []
    for name, address in zip(names, addresses, strict=True):
        seen[name] += 1
        targets.append(Target(f"{name} {seen[name]}" if total[name] > 1 else name, address))
    return tuple(targets)


def _names_of(addresses: Sequence[str]) -> list[str]:
    try:
        names: list[Any] = ask(addresses)
    except _NO_ANSWER as error:
        why = type(error).__name__  # its text may contain addresses
        raise ArgumentError(
            f"the addresses of notify can't be checked ({why}): does `apprise --version` work?"
        ) from None
    for number, (name, address) in enumerate(zip(names, addresses, strict=True), start=1):
        if name is None:
            scheme = address.partition("://")[0][:20] if "://" in address else ""
            shown = f", which begins with {scheme!r}," if scheme.isalnum() else ""
            raise ArgumentError(
                f"address {number} of notify{shown} is not an apprise address: use one such as "
                "slack://TOKEN_A/TOKEN_B/TOKEN_C or json://HOST/PATH, see https://appriseit.com/services/"
            )
    return names


POLL_S: Final = 0.5
PAUSE_S: Final = 60.0  # between two messages
ATTEMPTS: Final = 3
RETRY_S: Final = 2.0  # before the second attempt; longer before the next
CLOSE_S: Final = 5.0
MAX_WAITING: Final = 100
MAX_SHOWN: Final = 10  # notes in one message
MAX_REPORTED: Final = 10_000  # incidents that are remembered
MAX_SENTENCE: Final = 500


class About(Protocol):
    """The part of an incident that a note is made of."""

    @property
    def id(self) -> str: ...
    @property
    def severity(self) -> Severity: ...
    @property
    def sentence(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Note:
    """An incident or an event of a run, in words."""

    key: tuple[str, str]  # the ids of the run, and of the incident or the event
    run: str  # its name
    severity: Severity
    sentence: str
    link: str = ""


def note_about(incident: About, run: str, name: str, page: str) -> Note:
    """Return the note about an incident of a run with this id and name. `page` is the address of the run, if any."""
    link = f"{page}/problems/incident?id={quote(incident.id)}" if page else ""
    return Note((run, incident.id), name, incident.severity, incident.sentence, link)


def note_about_event(event: Event, run: str, name: str, page: str) -> Note:
    """Return the note about an event of a run, such as its crash."""
    link = f"{page}/problems?name={quote(event.name)}" if page else ""
    return Note((run, f"{event.key}@{event.step}"), name, event.severity, event.message, link)


@dataclass(frozen=True, slots=True)
class Counters:
    """The notes that wait for the next message, and those for which there was no room."""

    waiting: int
    dropped: int


class Notifier:
    """Sends notes to targets. `look` is called regularly, and may put notes; `failed` gets a sentence."""

    def __init__(
        self,
        targets: Sequence[Target],
        failed: Callable[[str], None],
        look: Callable[[], None] = lambda: None,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.targets = tuple(targets)
        self._failed, self._look, self._pause_s = failed, look, pause_s
        self._waiting: deque[Note] = deque()
        self._reported: dict[tuple[str, str], None] = {}
        self._dropped = 0
        self._unmentioned = 0  # dropped since the last message
        self._due = 0.0
        self._look_failed = False
        self._lock = threading.Lock()
        self.testing = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def counters(self) -> Counters:
        """The state of the queue."""
        return Counters(len(self._waiting), self._dropped)

    def put(self, note: Note) -> None:
        """Queue a note, unless there was one about this incident. Never waits."""
        with self._lock:
            if note.key in self._reported:
                return
            self._reported[note.key] = None
            if len(self._reported) > MAX_REPORTED:
                del self._reported[next(iter(self._reported))]
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(note)
            else:
                self._dropped += 1
                self._unmentioned += 1

    def start(self) -> None:
        """Start to send, if there is a target."""
        if self.targets and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hookcore-notify", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Send what waits, and end the thread. What takes longer than the timeout is given up."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def test(self) -> bool:
        """Send a message to each target now. Return False if another test is running."""
        if not self.testing.acquire(blocking=False):
            return False
        try:
            failed = send_to(self.targets, "hookcore: test", "Notifications from hookcore arrive here.", "info")
            self._count(self.targets, failed)
        finally:
            self.testing.release()
        return True

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            self._take_turn()
        self._due = 0.0
        self._take_turn()

    def _take_turn(self) -> None:
        try:
            self._look()
        except Exception as error:
            if not self._look_failed:
                self._look_failed = True
                self._failed(f"incidents could not be read for notifications: {type(error).__name__}: {error}")
        if self._waiting and time.monotonic() >= self._due:
            self._send_all()
            self._due = time.monotonic() + self._pause_s

    def _send_all(self) -> None:
        with self._lock:
            notes, self._waiting = list(self._waiting), deque()
            dropped, self._unmentioned = self._unmentioned, 0
        title, body, severity = message_of(notes, dropped)
        failed = send_to(self.targets, title, body, severity)
        for attempt in range(1, ATTEMPTS):
            if not failed or self._stopping.wait(RETRY_S * 2**attempt):
                break
            failed = send_to(failed, title, body, severity)
        self._count(self.targets, failed)

    def _count(self, targets: Sequence[Target], failed: Sequence[Target]) -> None:
        for target in targets:
            with self._lock:
                target.sent += target not in failed
                target.failed += target in failed
                is_first = target in failed and target.failed == 1
            if is_first:
                self._failed(
                    f"a notification to {target.name} failed: check its address with `apprise -vv -b test ADDRESS`; "
                    "further failures are only counted"
                )


def message_of(notes: Sequence[Note], dropped: int) -> tuple[str, str, Severity]:
    """Return the title and the text of a message about notes, and the worst severity."""
    runs = {note.key[0]: note.run for note in notes}
    count, worst = len(notes) + dropped, min((note.severity for note in notes), key=SEVERITIES.index)
    what = worst if count == 1 else f"{count:,} incidents"
    where = next(iter(runs.values())) if len(runs) == 1 else f"{len(runs)} runs"
    lines = []
    for note in notes[:MAX_SHOWN]:
        name = f"{note.run}: " if len(runs) > 1 else ""
        lines.append(f"{note.severity}: {name}{_short(note.sentence)}")
        lines += [note.link] if note.link else []
    rest = count - min(len(notes), MAX_SHOWN)
    lines += [f"and {rest:,} more"] if rest else []
    return f"hookcore: {what} in {_short(where)}", "\n".join(lines), worst


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_SENTENCE else f"{text[: MAX_SENTENCE - 1]}…"
