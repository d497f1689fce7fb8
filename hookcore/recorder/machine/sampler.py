"""The thread that samples the machine, so that the training never waits for a sensor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from hookcore.recorder.machine.samples import Mean, Sample

EVERY_S: Final = 2.0
FIRST_S: Final = 0.25  # before the first samples, so that a short training has some; then twice as long each time
REST: Final = 100  # between two samples, in multiples of the time that a sample took
CLOSE_S: Final = 0.5
MAX_FAILURES: Final = 3  # of a source one after the other, before it is given up

Read = Callable[[float], Sample]  # what holds now, given the time in seconds
Open = Callable[[], Read]  # is called on the thread, because opening a source may import or wait


class Sampler:
    """Reads sources every two seconds, and keeps the mean of samples that were not taken yet. `take` never waits.

    Calls `failed` with a failed source and the reason. A source that can't be opened or that keeps failing is dropped.
    """

    def __init__(
        self,
        sources: Sequence[Open],
        failed: Callable[[str, Exception], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sources = sources
        self._failed = failed
        self._now = clock
        self._reads: dict[Read, int] = {}  # with the failures since it last succeeded
        self._mean = Mean()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookcore-machine", daemon=True)
        self.has_news = False

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def take(self) -> Sample | None:
        """Return the mean of the samples since the last call, or None if there is none. Never waits."""
        if not self.has_news or not self._lock.acquire(blocking=False):
            return None
        try:
            self.has_news = False
            return self._mean.take()
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the thread. Wait for a sample that it takes just now, but not for a sensor that doesn't answer."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def open(self) -> None:
        """Open the sources. Called by the thread."""
        for source in self._sources:
            try:
                self._reads[source()] = 0
            except Exception as error:
                self._failed("opening a source of system metrics", error)

    def sample(self) -> None:
        """Read every source once. Called by the thread."""
        for read in list(self._reads):
            try:
                found = read(self._now())
                self._reads[read] = 0
            except Exception as error:
                self._failed("reading system metrics", error)
                self._reads[read] += 1
                if self._reads[read] >= MAX_FAILURES:
                    del self._reads[read]
                continue
            if found.numbers or found.facts:
                with self._lock:
                    self._mean.add(found)
                    self.has_news = True

    def _run(self) -> None:
        self.open()
        pause = FIRST_S
        while self._reads and not self._stopping.is_set():
            began = self._now()
            self.sample()
            if self._stopping.wait(max(pause, REST * (self._now() - began))):
                return
            pause = min(EVERY_S, 2 * pause)
