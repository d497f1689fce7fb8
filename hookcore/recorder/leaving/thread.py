"""The recorder's thread, and its duties, also while no step ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from hookcore.recorder.capture import Capture
from hookcore.recorder.clock.steady import Steady
from hookcore.recorder.clock.steps import Steps
from hookcore.recorder.context import Context
from hookcore.recorder.known.description import Describer
from hookcore.recorder.leaving.frames import FrameQueue, Light, RawFrame
from hookcore.recorder.leaving.shipping import Shipper
from hookcore.recorder.measured.snapshots import Outgoing

IDLE_S: Final = 1.0  # after this time without a step
LOCK_WAIT_S: Final = 1.0
GROWTH: Final = 1.02  # of the idle time between two samples of the machine, so that a day without a step sends hundreds


class Idle:
    """Acts between two steps."""

    def __init__(self, context: Context, capture: Capture, steady: Steady) -> None:
        self._context, self._now, self._steady = context, context.now, steady
        self._commands, self._control, self._collector = capture.commands, capture.control, capture.collector
        self._sampled_after_s = 0.0  # of this idle time

    def tick(self) -> None:
        """Act if there is something to do. Called in each round."""
        idle_s = self._now() - self._context.ended.at  # NaN before the first step
        if idle_s < IDLE_S:
            self._sampled_after_s = 0.0
        elif (self._commands.changes or self._has_news(idle_s)) and self._context.lock.acquire(timeout=LOCK_WAIT_S):
            try:
                self._steady.leave()
                self._control.apply_while_idle()
                if self._has_news(idle_s):
                    self._sampled_after_s = idle_s
                    self._collector.queue.put(self.take())
            finally:
                self._context.lock.release()

    def take(self) -> RawFrame:
        """Take what waits, as a part of the step that ended last, at the time at which it ended."""
        idle_s = self._now() - self._context.ended.at
        return self._collector.take_between(time.time() - (0.0 if idle_s != idle_s else idle_s))

    def _has_news(self, idle_s: float) -> bool:
        """Return whether something waits for a frame. Before the first step, the machine has none to belong to."""
        has_sample = self._collector.machine.has_news and idle_s >= GROWTH * self._sampled_after_s
        return bool(self._context.events) or has_sample


class Rounds:
    """Sends what waits, and looks for changes, problems, and stalls."""

    def __init__(
        self, context: Context, capture: Capture, steps: Steps, shipper: Shipper, description: Describer
    ) -> None:
        self._context, self._steps, self._shipper, self._description = context, steps, shipper, description
        self._commands, self._queue, self._sentinel = capture.commands, capture.collector.queue, capture.sentinel
        observers = capture.observers
        waiting = observers.snapshots.copies, observers.probes.channels, capture.media, capture.moments, capture.samples
        self._outgoing: tuple[Outgoing[Any], ...] = waiting
        self.hurry = capture.samples.hurry
        self._idle = Idle(context, capture, steps.steady)
        self._machine, self._spent_s = capture.collector.machine, 0.0
        self.comes_soon = False  # whether the next round is due soon: there is more to do than to send frames

    def ship(self, raws: list[RawFrame | Light]) -> None:
        """Send frames, and the place of this process before the first frame that it is about."""
        self._description.send_place()
        self._shipper.ship(raws)
        self._description.send_if_due()

    def make(self) -> None:
        """Make a round."""
        self._report_errors()
        self._sentinel.read_late(self._steps.clock)
        had_more = any(each.waiting for each in self._outgoing)
        for each in self._outgoing:
            each.ship(self._context.sink.send)
        self._description.send_if_requested()
        self._description.send_news()
        self._description.problems.say_refused()
        self._idle.tick()
        self._steps.stalls.look(self._context.ended.at)
        self.comes_soon = had_more or self.has_more

    def count(self) -> None:
        """Let the cadence know for how long all of hookcore's threads have worked since the last frames.

        What they do while the training rests, or hasn't begun, isn't for any frame.
        """
        spent_s = time.thread_time() + self._machine.spent_s + self._context.sink.spent_s
        captured, others = self._shipper.take_counts()
        if captured or others:
            self._context.cadence.took(max(0.0, spent_s - self._spent_s), captured, others)  # another sink knows less
        elif self._context.now() - self._context.ended.at < IDLE_S:
            return
        self._spent_s = spent_s

    @property
    def has_more(self) -> bool:
        """Whether the next round has something that a flush waits for."""
        return self._commands.wants_description or self._sentinel.waits or any(each.waiting for each in self._outgoing)

    def _report_errors(self, is_last: bool = False) -> None:
        """Make the errors events of the run."""
        events = self._context.errors.news(is_last)
        if events:
            self._context.add_events(events)

    def end(self) -> None:
        """Queue the last events: they were emitted as the last frames were shipped, or have not been yet."""
        self._sentinel.read_late(self._steps.clock, is_last=True)
        self._description.send_news(ended=True)
        self._description.problems.emit_new()
        self._report_errors(is_last=True)  # after all that can fail
        if self._context.events:
            self._queue.put(self._idle.take())


POLL_S: Final = 0.1
SOON_S: Final = 0.02  # if there is more than frames: snapshots, or what a device computes


class Worker:
    """A daemon thread that polls the queue, because waking it would cost the training a thread switch.

    It is woken only by what can't wait: events, commands, many frames, and a flush. Exceptions of its work, the rounds,
    are counted, and it continues.
    """

    def __init__(self, context: Context, queue: FrameQueue, rounds: Rounds, steady: Steady) -> None:
        self._errors, self.queue = context.errors, queue
        self._rounds, self._steady = rounds, steady
        self._busy = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hookcore-recorder", daemon=True)

    def start(self) -> None:
        """Start the thread. A second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued so far is in the sink. Return False if the time ran out."""
        deadline = time.monotonic() + timeout_s
        self._rounds.hurry()
        self.queue.wake()
        while self._has_work():
            if not self._thread.is_alive():
                return not (self._steady.has_notes or self.queue.frames)
            if time.monotonic() > deadline:
                return not self._has_work()
            time.sleep(0.001)
        return True

    def _has_work(self) -> bool:
        return self._steady.has_notes or bool(self.queue.frames) or self._busy or self._rounds.has_more

    def close(self, timeout_s: float) -> None:
        """Handle everything that waits, then end the thread. Its last errors are among what it sends last."""
        if self._thread.ident is None:
            return
        deadline = time.monotonic() + timeout_s
        self.flush(timeout_s)
        self._stopping = True
        self.queue.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def has_ended(self) -> bool:
        """Whether the thread makes no more rounds."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._rests():
            self._busy = True  # during a round too: it may describe the model, and a flush waits for that
            self._attempt(self._ship)
            self._attempt(self._rounds.make)
            self._attempt(self._steady.check)
            self._attempt(self._rounds.count)
            self._busy = False
        self._attempt(self._rounds.end)
        self._attempt(self._ship)

    def _rests(self) -> bool:
        """Wait for the next round. Return whether there is none."""
        self.queue.wait(SOON_S if self._rounds.comes_soon else POLL_S)
        return self._stopping

    def _ship(self) -> None:
        self._steady.sync()
        while self.queue.frames:
            self._attempt(self._rounds.ship, self.queue.take())

    def _attempt(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._errors.record("recorder thread", error)
