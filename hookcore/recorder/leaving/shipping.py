"""Frames are built from the training thread's data, and sent to the sink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.recorder.capture import Capture
from hookcore.recorder.context import Context
from hookcore.recorder.known.ownership import UnusedForwards
from hookcore.recorder.leaving.frames import (
    MAX_KEPT_EVENTS,
    Clipping,
    Light,
    RawFrame,
    ShownRows,
    build_frames,
    light_frame,
    newest_events,
    skipped_step,
    whole_frame,
)
from hookcore.recorder.measured.scalars import Sum, number_of
from hookcore.records import STATS, Event, Frame, Tap, escaped_in
from hookcore.records.flow import Flow
from hookcore.records.masks import Masks, no_masks
from hookcore.records.vocabulary import SKIPPED, counted

_NONFINITE: Final = slice(STATS.index("nan"), STATS.index("inf") + 1)  # two columns side by side


Examine = Callable[[Frame, Sequence[Tap]], Frame]  # a frame, and all taps by their numbers


class Shipper:
    """Counts lost data, and captures another step if values were non-finite."""

    def __init__(self, context: Context, capture: Capture, examine: Examine | None) -> None:
        self._context, self._table, self._cadence = context, context.statistics.table, context.cadence
        self._queue, self._flows, self._keeping = capture.collector.queue, capture.observers.flows, capture.keeping
        self._examine = examine  # runs the user's own rules
        self._rows, self._unused, self._masks = ShownRows(self._table.numbers), UnusedForwards(context.plans), Masks()
        self._clipping = Clipping()
        self._was_bad = False
        self._captured = self._shipped = 0  # frames of captured steps, and all of them, since they were counted last
        self._known = 0  # taps before this frame
        self._unsent_taps: tuple[Tap, ...] = ()  # without their names, later numbers would be wrong
        self._unsent_events: tuple[Event, ...] = ()
        self._unsent_flow: Flow | None = None
        self._failed = 0  # frames that couldn't be built or sent, since the last report
        self._failed_events = 0  # of these frames, beyond those that are sent later
        self._reported_drops = 0
        self._reported_events = 0  # dropped ones
        self._reported_escape = False

    def let_go(self) -> None:
        """Let go of the user's rules, after the last frame."""
        self._examine = None

    def ship(self, waiting: Sequence[RawFrame | Light]) -> None:
        """Send these steps or parts of steps."""
        built, frames = list[Frame](), list[Frame]()
        self._context.parameters.note_changed(self._clipping.changed)
        try:
            raws = self._resolve_all(waiting)
            try:
                for frame in build_frames(raws, self._table.taps, self._rows, self._clipping):
                    built.append(frame)
                    if self._clipping.changed and len(frame.taps):
                        self._context.parameters.note_changed(self._clipping.changed)
            finally:
                for alike in _in_groups(built):
                    frames += self._with_what_rows_tell(alike) if len(alike[0].taps) else alike
                    self._known += sum(len(frame.new_taps) for frame in alike)
        except Exception:
            self._send_all(frames)
            for unsent in waiting[len(frames) :]:
                self._keep_unsent(whole_frame(unsent))
            raise
        self._send_all(frames)
        self._captured += sum(isinstance(raw, RawFrame) and raw.has_rows for raw in raws)
        self._shipped += len(raws)

    def take_counts(self) -> tuple[int, int]:
        """Return of how many captured steps, and how many others, frames were sent since the last call."""
        captured, others = self._captured, self._shipped - self._captured
        self._captured = self._shipped = 0
        return captured, others

    def _keep_unsent(self, lost: RawFrame | Frame) -> None:
        """Count a lost frame, and send its taps and events with the next one."""
        self._failed += 1
        self._unsent_taps += lost.new_taps
        self._unsent_flow = lost.flow or self._unsent_flow
        self._unsent_events, lost_events = newest_events(self._unsent_events + lost.events)
        self._failed_events += lost_events

    def _resolve_all(self, waiting: Sequence[RawFrame | Light]) -> list[RawFrame | Frame]:
        """Wait for numbers on a device. Return a frame of each step of which that is all that is to do."""
        resolved, awaited = list[RawFrame | Frame](), list[dict[str, float]]()
        for each in waiting:
            if type(each) is tuple and each[3] is None:
                frame = light_frame(each)
                resolved.append(frame)
                awaited.append(frame.scalars)
            else:
                raw = whole_frame(each)
                resolved.append(raw)
                awaited.append(self.resolve(raw))
        self._cadence.look_for_jumps(*awaited)
        return resolved

    def resolve(self, raw: RawFrame) -> dict[str, float]:
        """Wait for the numbers of a step that were not known yet, and return them."""
        raw.scale = None if raw.scale is None else number_of(raw.scale)
        awaited = {
            name: value.resolve(raw.scale) if isinstance(value, Sum) else number_of(value)
            for name, value in raw.scalars.items()
            if not isinstance(value, float)
        }
        raw.scalars |= awaited
        if SKIPPED in awaited:
            if not awaited[SKIPPED]:
                del raw.scalars[SKIPPED]
            else:
                raw.events += (skipped_step(raw.step),)
        return awaited

    def _with_what_rows_tell(self, frames: Sequence[Frame]) -> list[Frame]:
        """Return frames of the same taps with the events that their rows tell of."""
        self._table.saw_frame(max(frame.step for frame in frames), frames[0].taps)
        self._flows.saw_frame(frames[0])
        stats = np.concatenate([frame.stats for frame in frames]).reshape(-1, *frames[0].stats.shape)
        if not np.count_nonzero(stats[:, :, _NONFINITE]):  # which takes a fraction of what `any` takes for so few
            self._was_bad = False
        else:
            for frame in frames:
                self._alarm_if_bad(frame)
        return self._with_unused(frames, stats)

    def _alarm_if_bad(self, frame: Frame) -> None:
        bad = self._is_bad(frame)
        if bad and not self._was_bad:
            self._cadence.alarm(f"step {frame.step} had non-finite values")
            self._keeping.alarm(frame.step)
        self._was_bad = bad

    def _is_bad(self, frame: Frame) -> bool:
        found = frame.stats[:, _NONFINITE]
        if not np.count_nonzero(found):  # which takes a fraction of what `any` takes for so few
            return False
        taps, rows = self._table.shown_taps(), np.flatnonzero((found > 0).any(axis=1))
        bad = dict(zip(frame.taps[rows].tolist(), no_masks(frame.stats[rows]).tolist(), strict=True))
        fine = np.delete(frame.taps, rows).tolist
        return bool(self._masks.harmful(frame.step, bad, fine, lambda number: taps[number].kind, self._known))

    def _with_unused(self, frames: Sequence[Frame], stats: NDArray[np.float64]) -> list[Frame]:
        try:
            found = self._unused.find(frames, stats, self._table.shown_taps())
        except Exception as error:  # never a reason to lose a frame
            self._context.errors.record("recorder thread", error)
            return list(frames)
        return [
            replace(frame, events=frame.events + events) if events else frame
            for frame, events in zip(frames, found, strict=True)
        ]

    def _send_all(self, frames: Sequence[Frame]) -> None:
        """Send frames, together if nothing was lost that the first one has to bring, and no rule examines each."""
        if len(frames) > 1 and self._examine is None and not self._has_losses:
            try:
                self._check_names(frames)
                if self._context.sink.send_together(frames):
                    self._keeping.remember(frames)
                    return
            except Exception as error:
                for frame in frames:
                    self._keep_unsent(frame)
                self._context.errors.record("sink", error)
                return
        for frame in frames:
            self._send(frame)

    @property
    def _has_losses(self) -> bool:
        return bool(self._failed) or self._queue.dropped > self._reported_drops

    def _send(self, frame: Frame) -> None:
        if self._has_losses:
            frame = self._with_what_was_lost(frame)
        if self._examine is not None:
            try:
                frame = self._examine(frame, self._table.shown_taps())
            except Exception as error:  # never a reason to lose a frame
                self._context.errors.record("own rules", error)
        try:
            self._check_names((frame,))
            self._context.sink.send(frame)
            self._keeping.remember((frame,))
        except Exception as error:
            self._keep_unsent(frame)
            self._context.errors.record("sink", error)

    def _check_names(self, frames: Sequence[Frame]) -> None:
        names = {name for frame in frames for name in frame.scalars}
        self.report_escapes(
            *names, *(part for each in frames for tap in each.new_taps for part in (tap.module, tap.index))
        )

    def report_escapes(self, *names: str) -> None:
        """Emit one event if a name is not valid Unicode, and is therefore shown escaped."""
        name = None if self._reported_escape else escaped_in(names)
        if name is not None:
            self._reported_escape = True
            message = f"a name is not valid Unicode, so it is shown as '{name}'; the same applies to others"
            self._context.emit("name-escaped", message, "warning")

    def _with_what_was_lost(self, frame: Frame) -> Frame:
        """Add the taps and events of lost frames, and events that count those frames."""
        taps, events = self._unsent_taps + frame.new_taps, self._unsent_events + frame.events
        dropped, failed = self._queue.dropped - self._reported_drops, self._failed
        dropped_events = self._queue.dropped_events - self._reported_events
        lost = dropped_events + self._failed_events
        losses = (
            ("frame-dropped", dropped, f"{_frames(dropped)} dropped: the recorder's thread could not keep up"),
            ("frame-dropped", failed, f"{_frames(failed)} dropped: building or sending failed"),
            (
                "event-dropped",
                lost,
                f"{counted(lost, 'event')} dropped: only the newest {MAX_KEPT_EVENTS} events of dropped frames are "
                "kept",
            ),
        )
        for name, count, message in losses:
            if count:
                events += (Event(frame.step, time.time(), name, message, "warning", count=count),)
        self._reported_drops += dropped
        self._reported_events += dropped_events
        flow = None if self._unsent_flow is None else replace(self._unsent_flow, step=frame.step)
        self._unsent_taps, self._unsent_events, self._unsent_flow = (), (), None
        self._failed = self._failed_events = 0
        return replace(frame, new_taps=taps, events=events, flow=frame.flow or flow)


def _in_groups(frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    """Return frames that follow each other and have the same taps together, and those that bring new ones alone."""
    first = 0
    for at in range(1, len(frames) + 1):
        one, next_one = frames[first], frames[at] if at < len(frames) else None
        if next_one is None or next_one.taps is not one.taps or one.new_taps or next_one.new_taps:
            yield frames[first:at]
            first = at


def _frames(many: int) -> str:
    return f"{counted(many, 'frame')} {'was' if many == 1 else 'were'}"
