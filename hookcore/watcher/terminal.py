"""What a training says in its terminal: one line when an error begins, and its problems at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from hookcore.delivery.notify import note_about
from hookcore.records import SEVERITIES
from hookcore.records.vocabulary import counted

if TYPE_CHECKING:
    from hookcore.reading.answers import Incident

POLL_S: Final = 0.5  # nobody waits for a line
PAUSE_S: Final = 2.0
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

    def begin(self, incident: Incident) -> None:
        """Print a line about an error that has begun."""
        now = self._clock()
        if len(self._said) == MAX_LINES and now - self._said[0] < MINUTE_S:
            return
        self._said.append(now)
        note = note_about(incident, "", "", self._page())
        self._say(f"{note.sentence} {note.link}")

    def sum_up(self, incidents: Sequence[Incident]) -> None:
        """Print the run's problems, worst first; nothing if there are none. A second call does nothing."""
        problems = [each for each in incidents if each.severity in ("error", "warning") and not each.muted]
        if self._summed_up or not problems:
            return
        self._summed_up = True
        problems.sort(key=lambda each: (SEVERITIES.index(each.severity), each.first_step))
        self._say(f"{counted(len(problems), 'problem')} - {self._page()}")
        for each in problems[:MAX_PROBLEMS]:
            self._say(f"  {each.severity}: {each.sentence}")
        if len(problems) > MAX_PROBLEMS:
            self._say(f"  and {len(problems) - MAX_PROBLEMS:,} more")
