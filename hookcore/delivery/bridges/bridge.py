"""A bridge of one run: what it writes for each step, from its own thread."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from typing import Final

from hookcore.config import rank
from hookcore.delivery.bridges.summary import Step, Summary
from hookcore.delivery.bridges.writers import WRITERS, Writer
from hookcore.errors import ArgumentError
from hookcore.records import Frame

logger = logging.getLogger("hookcore")

THREAD: Final = "hookcore-bridge"
MAX_WAITING: Final = 1000  # steps; later ones are dropped and counted
FLUSH_S: Final = 2.0
CLOSE_S: Final = 2.0

Failed = Callable[[str, Exception], None]
Lost = Callable[[str, str, str], None]  # the name of an event, what was lost, and why


class Bridge:
    """Writes a summary of each step. Its failures are reported, and stop neither the training nor the run."""

    def __init__(self, open_writer: Callable[[], Writer], failed: Failed, lost: Lost) -> None:
        self._open, self._failed, self._lost = open_writer, failed, lost
        self._warned = False
        self._summary = Summary()
        self._steps: queue.Queue[Step | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def take(self, frame: Frame) -> None:
        """Take a frame; never wait for the tool."""
        if self._thread.is_alive():
            self._guarded(lambda: self._put(self._summary.add(frame)))

    def _put(self, steps: Iterable[Step]) -> None:
        for step in steps:
            try:
                self._steps.put_nowait(step)
            except queue.Full:
                self._lost("bridge-dropped", "step", "dropped: too many were waiting for the bridge")

    def close(self) -> None:
        """End the thread, which has a few seconds to write waiting data."""
        if self._thread.is_alive():
            self._guarded(lambda: self._put(self._summary.end()))
            with contextlib.suppress(queue.Full):
                self._steps.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)

    # -- on the bridge's own thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            writer = self._open()
        except Exception as error:
            self._report(error)
            return
        flushed = time.monotonic()
        while (step := self._steps.get()) is not None:
            self._guarded(partial(writer.write, *step))
            if time.monotonic() - flushed > FLUSH_S:
                self._guarded(writer.flush)
                flushed = time.monotonic()
        self._guarded(writer.close)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        self._failed("bridge", error)
        if not self._warned:
            self._warned = True
            logger.warning("hookcore: the bridge failed: %s. Training and the run continue.", error)


def bridge_for(given: str | None, name: str) -> Callable[[], Writer] | None:
    """Return a function that opens the bridge in a setting such as "tensorboard:runs/x", or None.

    Raises ArgumentError if the tool is not installed. In a distributed training, only rank 0 has a bridge.
    """
    if given is None or rank() != "0":
        return None
    tool, _, target = given.partition(":")
    module, package, make = WRITERS[tool]
    if find_spec(module) is None:
        raise ArgumentError(f"bridge={given!r} needs {package}, which is not installed: pip install {package}")
    return lambda: make(target, name)
