"""The store of a run's frames, in bounded memory. One thread writes, many read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import (
    PROBE,
    STAT_COLUMN,
    Coverage,
    Event,
    Frame,
    HookRecord,
    ModuleRecord,
    SketchBlock,
    Snapshot,
    Tap,
    is_shared,
)
from hookcore.records.masks import no_masks
from hookcore.records.replayed import REPLAYED
from hookcore.records.sketch import rows_of
from hookcore.records.vocabulary import NONFINITE_STEP, SYSTEM
from hookcore.store.answers import StepRange, Usage
from hookcore.store.bounded import bytes_of, scalars_of, texts_bytes
from hookcore.store.incidents import Alarm, Found, Replay, replay_of
from hookcore.store.parts import MIN_BYTES, NAMES_BYTES, Follower, Parts, ascending_parts, require_shapes
from hookcore.store.past import Past
from hookcore.store.queries import Queries
from hookcore.store.segments import SKIPPED_STEP, Floats, Lanes, Steps, lanes_of, merge_ranks, merge_stats

DEFAULT_BYTES: Final = 512 * 2**20


class Store(Queries):
    """The frames of one run within `max_bytes`, and names within `names_bytes`. See docs/store.md.

    Adding a frame never raises, even if it is late or there is no room. Such frames are counted, and an event reports
    the first.
    """

    def __init__(
        self, max_bytes: int = DEFAULT_BYTES, *, names_bytes: int = NAMES_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(Parts(max_bytes, names_bytes))
        self._clock = clock
        self._writer = threading.Lock()  # frames from several threads are added one after the other
        self._last: tuple[NDArray[np.uint32] | None, Lanes] = None, slice(0)  # the newest taps, known and in order
        self._reported: set[str] = set()
        self._ahead: set[Event] = set()
        self.follower: Follower | None = None  # runs the rules
        self.of_ranks = False  # adds up the ranks of a distributed training
        self.rules: Mapping[str, Mapping[str, float] | bool] = {}  # thresholds that were chosen; see hookcore.findings

    @property
    def past(self) -> Past | None:
        """Where the whole run is, if anywhere."""
        return self._parts.past

    def recall_from(self, past: Past) -> None:
        """Answer for steps that memory has merged, or never had, from a past."""
        self._parts.past = past

    def attach(self, follower: Follower) -> None:
        """Let something run the rules on this store."""
        self.follower = follower

    def choose(self, rules: Mapping[str, Mapping[str, float] | bool]) -> None:
        """Use other thresholds from now on."""
        self.rules = rules

    @classmethod
    def outline(cls, steps: StepRange) -> Store:
        """Return a store without values that has the range of steps of another one."""
        outline = cls(MIN_BYTES)
        outline._parts.steps = steps
        return outline

    def append(self, frame: Frame) -> None:
        """Add a frame: a new step, or another part of the newest one.

        The arrays of `frame.sketches` are not copied if they own their memory, so don't write to them afterwards.
        """
        require_shapes(frame)
        with self._writer:
            self._take_names(frame)
            newest = self._parts.steps.newest
            if newest is not None and frame.step < newest:
                self._parts.dropped["too_late"] += 1
                self._report(
                    "too-late", f"a frame of step {frame.step} arrived after one of step {newest} and was dropped"
                )
                return
            if frame.flow is not None:
                self._parts.put_flow(frame.flow)
            self._take_stats(frame)
            self._take_scalars(frame)
            self._parts.incidents.settle(frame.step, frame.scalars)
            self._note_step(frame)
            if self.follower is not None:
                self.follower.take(frame)

    def begin_after(
        self, steps: StepRange, captured: int, scalars: Sequence[str], latest: tuple[Steps, Floats] | None = None
    ) -> None:
        """Begin after steps that only the past has, with the taps announced and nothing stored.

        Of these steps, `captured` have values of taps. `latest` is what each tap had last: its step, -1 for none, and
        its stats [stat, tap].
        """
        with self._writer:
            self._parts.steps, self._parts.whole_since = steps, (steps.newest or 0) + 1
            self._parts.ledger.begin_after(captured)
            for name in scalars:
                self._parts.log_of(name).add_name(name)
            if latest is not None:
                self._parts.stats.recall_latest(*latest)

    def settle(self) -> None:
        """Run the rules once more, because no more frames are expected."""
        if self.follower is not None:
            with self._writer:
                self.follower.look()

    def hear(self, event: Event) -> None:
        """Tell the rules and the incidents of an event whose frame is still to come, as when a run is read."""
        with self._writer:
            if event.name == NONFINITE_STEP:
                self._parts.incidents.alarm(Alarm.of(event))
            elif self.follower is not None:
                self.follower.hear(event)

    def judge(self, found: Sequence[Found], per_frame: bool = False) -> None:
        """Follow the findings of the rules about all steps so far, or the findings about each frame."""
        if self._parts.steps.newest is not None:
            self._parts.incidents.judge(self._parts.steps.newest, found, per_frame)

    def explain(self, replay: Replay) -> None:
        """Take what the replay of a step found, for the incident that began in that step."""
        self._parts.incidents.explain(replay)

    def name_ranks(self, whose: Callable[[int, int], str]) -> None:
        """Let incidents say in which ranks the values of a tap, by its number, were not finite in a step."""
        self._parts.incidents.whose = whose
        self.of_ranks = True

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Update the modules and their coverage; known paths are replaced.

        Hooks, if given, replace all earlier ones.
        """
        with self._writer:
            if hooks:
                self._parts.put_hooks(hooks)
            for module in modules:
                self._parts.modules.put(module.path, module, bytes_of(module))
            for covered in coverage:
                self._parts.coverage.put(covered.path, covered, bytes_of(covered))

    def add_event(self, event: Event) -> None:
        """Keep an event, and drop the oldest ones to make room."""
        if event.name == SKIPPED_STEP:
            self.note_skipped(event.step)
        if event.name == NONFINITE_STEP:
            self._parts.incidents.alarm(Alarm.of(event))
        if event.name == REPLAYED and (replay := replay_of(event)) is not None:
            self.explain(replay)
        self.keep_event(event)

    def keep_event(self, event: Event) -> None:
        """Keep an event that incidents know already."""
        self._parts.events.add(event, bytes_of(event))

    def add_saved_event(self, event: Event) -> None:
        """Keep an event that was read from disk. If its frame isn't on disk yet, it will come again with that frame."""
        (self.keep_event if event.name == NONFINITE_STEP else self.add_event)(event)
        newest = self._parts.steps.newest
        if newest is None or event.step > newest:
            self._ahead.add(event)

    def note_skipped(self, step: int) -> None:
        """Tell the incidents that a gradient scaler skipped a step. The event does the same."""
        self._parts.incidents.note_skipped(step)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot with a copy of its values, and drop the oldest ones to make room.

        That of a probe is a column of its channels, which are merged to make room.
        """
        if snapshot.tap.kind == PROBE:
            self._parts.channels.add(snapshot)
            return
        log = self._parts.media if snapshot.is_media else self._parts.snapshots
        if snapshot.values.nbytes > log.max_bytes:
            what = snapshot.tap.module if snapshot.is_media else "a snapshot"
            self._report("snapshot-refused", f"{what} of {snapshot.values.nbytes} bytes is above the store's limit")
        owned = replace(snapshot, values=np.array(snapshot.values))
        owned.values.flags.writeable = False
        log.add(owned, bytes_of(owned))

    def shrink(self, max_bytes: int) -> int:
        """Merge values until they take about `max_bytes`; only resolution is lost. Return the bytes saved."""
        with self._writer:
            before = self._parts.usage().nbytes
            self._parts.shrink(max_bytes)
            return before - self._parts.usage().nbytes

    def usage(self) -> Usage:
        """Return the size and limit of each part, and the counters of dropped and merged data."""
        return self._parts.usage()

    def announce(self, taps: tuple[Tap, ...]) -> None:
        """Add taps, numbered from the last one. The taps in a frame's `new_taps` are added automatically."""
        with self._writer:
            self._announce(taps)

    def _announce(self, taps: tuple[Tap, ...]) -> None:
        if taps and self._parts.add_taps(taps):
            self._report(
                "taps-refused", "there are more taps than fit: give the store more memory or watch fewer modules"
            )

    def _take_names(self, frame: Frame) -> None:
        self._announce(frame.new_taps)
        for event in frame.events:
            if event in self._ahead:
                self._ahead.discard(event)
            else:
                self.add_event(event)
        for name, text in frame.labels.items():
            self._parts.labels.put(name, (name, text), texts_bytes([name, text, name]))

    def _take_stats(self, frame: Frame) -> None:
        if not len(frame.taps):
            return
        if frame.taps is self._last[0]:  # most frames share one array of taps
            self._take_part(frame, frame.taps, frame.stats, frame.sketches)
            return
        for taps, stats, block in ascending_parts(frame):
            known = len(self._parts.taps)
            if len(taps) and taps[-1] >= known:
                fit = np.arange(np.searchsorted(taps, known))
                self._parts.dropped["rows_of_unknown_taps"] += len(taps) - len(fit)
                taps, stats, block = taps[fit], stats[fit], rows_of(block, fit)
            if len(taps):
                self._take_part(frame, taps, stats, block)

    def _take_part(self, frame: Frame, taps: NDArray[np.uint32], stats: Floats, block: SketchBlock) -> None:
        step = frame.step
        absent = np.isnan(stats[:, 0])
        if np.count_nonzero(absent):  # which takes a fraction of what `any` takes for so few
            stats = np.where(absent[:, None], np.nan, stats)
            self._parts.dropped["rows_without_count"] += int(absent.sum())
        ladder, lanes = self._parts.stats, self._last[1]
        if taps is not self._last[0]:
            lanes = lanes_of(taps)
            if is_shared(taps):
                self._last = taps, lanes
        if ladder.newest == step:
            ladder.merge_newest(lanes, stats.T, merge_ranks if self.of_ranks else merge_stats)
        else:
            ladder.append(step, lanes, stats.T)
        self._parts.sketches.append(step, taps, block)
        nan = stats[:, STAT_COLUMN["nan"]]
        look = self._parts.ledger.append(step, taps, nan, stats[:, STAT_COLUMN["inf"]])
        if look is None:
            if self._parts.incidents.is_going_on:  # it was found by the trainer, in a step that wasn't captured
                none = taps[:0]
                self._parts.incidents.take(step, None, none, none > 0, taps)
        else:
            incidents, fine, places = self._parts.incidents, taps[look.fine], np.flatnonzero(look.bad)
            if len(places):  # what a user's function returns is no tensor of the training
                real = [self._parts.taps[number].kind != PROBE for number in taps[places].tolist()]
                places = places[np.array(real, bool)]
                no_mask = no_masks(stats[places])
                places = places[incidents.harmful(step, taps[places], no_mask, fine, frame.scalars)]
            incidents.take(step, look.previous, taps[places], nan[places] > 0, fine)

    def _take_scalars(self, frame: Frame) -> None:
        named = scalars_of(frame)
        if SYSTEM in "\n".join(named):  # most frames have no sample of the machine
            sampled = {name: named.pop(name) for name in frame.scalars if name.startswith(SYSTEM)}
            if sampled:
                self._require_room(self._parts.system.add(frame.step, sampled)[2])
        lanes, values, fit = self._parts.scalars.add(frame.step, named)
        self._require_room(fit)
        bad, value = values[1:]
        if self._parts.scalar_ledger.nbytes or np.count_nonzero(bad):  # most runs never log a non-finite value
            self._parts.scalar_ledger.append(frame.step, lanes, np.isnan(value), np.isinf(value))

    def _require_room(self, fit: bool) -> None:
        if not fit:
            self._report(
                "scalars-refused", "there are more scalars than fit: log fewer names, or give the store more memory"
            )

    def _note_step(self, frame: Frame) -> None:
        old, step = self._parts.steps, frame.step
        first = step if old.first is None else old.first
        self._parts.steps = StepRange(first, step, old.count + (step != old.newest), old.frames + 1, frame.time_s)

    def _report(self, name: str, message: str) -> None:
        """Add an event the first time a limit is reached. The counters say how often it is."""
        if name not in self._reported:
            self._reported.add(name)
            newest = self._parts.steps.newest
            self.add_event(Event(newest or 0, self._clock(), name, message, "warning"))
