"""When a sink may send its next request, and until when: growing pauses after failures, and deadlines at the end."""

from __future__ import annotations

import random
import time
from typing import Final

PATIENCE: Final = 10  # times as long, if a local server holds the connection: it is slow, not absent
WRITING: Final = 5  # times as long as any close, if the receiver answers and only has to write its data
SIGN_OF_LIFE_S: Final = 1.0
FIRST_LOOK_S: Final = 0.005  # before the server of an ended run is asked whether it has saved everything; doubles
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 30.0
MAX_PAUSE_HERE_S: Final = 1.0  # for a local server: a refused connection costs nothing there
MAX_PAUSE_AT_END_S: Final = 0.2
WARN_AFTER_S: Final = 10.0  # without an answer


class Retries:
    """The times of one sink's requests. Those at the end are set by the thread that closes it."""

    def __init__(self) -> None:
        self.failures = 0  # since the last success
        self.not_before = 0.0  # when the pause ends
        self._was_absent = False  # whether the newest request found no server
        self.is_slow = False  # whether a local server accepted the newest request and let it time out
        self._fine_at = 0.0  # time of the last answer
        self._sent_at = float("-inf")
        self._news_at = float("-inf")  # time of the last request that was more than a sign of life
        self._look_s = FIRST_LOOK_S
        self._random = random.Random()  # a separate generator, because the global one belongs to the training
        self._writing_s = 0.0
        self._ends_at = float("inf")
        self._gives_up_at = float("inf")

    def due_at(self, has_news: bool) -> float:
        """Return when the next request is due."""
        now = time.monotonic()
        if self.not_before > now:
            return self.not_before
        return now if has_news else self._sent_at + (self._look_s if self.is_ending else SIGN_OF_LIFE_S)

    def note_sent(self, has_news: bool) -> None:
        """Note that a request is sent now, which may be only a sign of life."""
        self._sent_at = time.monotonic()
        if has_news:
            self._news_at, self._look_s = self._sent_at, FIRST_LOOK_S
        else:
            self._look_s = min(2 * self._look_s, MAX_PAUSE_AT_END_S)

    def note_answer(self) -> None:
        """Note that the server has answered, or that waiting for it begins."""
        self._fine_at = time.monotonic()

    def succeed(self) -> None:
        """End the pauses."""
        self.failures, self.not_before, self._was_absent = 0, 0.0, False

    def fail(self, at_least_s: float, longest_s: float, is_absent: bool) -> bool:
        """Begin a pause: random, up to a limit that doubles. Return whether the server has been absent for long.

        A server that has just come back is asked again soon, however long it was absent: it may still be starting.
        """
        if self._was_absent and not is_absent:
            self.failures = 0
        self._was_absent = is_absent
        limit = min(longest_s, FIRST_PAUSE_S * 2.0 ** min(self.failures, 20))
        longest = MAX_PAUSE_AT_END_S if self.is_ending else MAX_PAUSE_S
        self.failures += 1
        now = time.monotonic()
        self.not_before = now + min(longest, max(self._random.uniform(0, limit), at_least_s))
        return now - self._fine_at > WARN_AFTER_S

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """Whether the sink is being closed."""
        return self._ends_at != float("inf")

    def end(self, close_s: float, writing_s: float) -> None:
        """Set the deadlines of a sink that is closed now, and end its pause."""
        now, self._writing_s = time.monotonic(), writing_s
        self._ends_at = min(self._ends_at, now + close_s)
        self._gives_up_at = self._ends_at + (PATIENCE - 1) * close_s
        self.not_before = min(self.not_before, now)

    def deadline(self, is_held: bool, has_news: bool) -> float:
        """Return until when to send. `is_held`: whether a local server holds the connection."""
        if not (is_held or self.is_slow):
            return self._ends_at
        # One that has everything may just be starting to write, but its disk may also take nothing more.
        return self._gives_up_at if has_news else max(self._ends_at, self._news_at + self._writing_s)
