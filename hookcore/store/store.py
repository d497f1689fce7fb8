"""The store of a run's frames, in bounded memory, and all queries over it. One thread writes, many read."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.config import patterns
from hookcore.errors import ArgumentError, PatternError
from hookcore.records import (
    GRADIENT_KINDS,
    NO_SKETCHES,
    NO_STATS,
    NO_TAPS,
    PROBE,
    ROOT,
    STAT_COLUMN,
    STATE_KINDS,
    Coverage,
    Event,
    Frame,
    HookRecord,
    Kind,
    ModuleRecord,
    Severity,
    SketchBlock,
    Snapshot,
    Tap,
    is_shared,
)
from hookcore.records.flow import EXPLAINED, NOTHING, REPLAYED, Flow
from hookcore.records.masks import no_masks
from hookcore.records.moments import NO_SAMPLES, Moment, SamplesOfStep, unpack_moment, unpack_samples, why_unknown
from hookcore.records.sketch import MAX_EXPONENT, rows_of
from hookcore.records.vocabulary import CAPSULE_MISSED, GRAD_SCALE, NONFINITE_STEP, SIMILARITY, SYSTEM
from hookcore.store import checks
from hookcore.store.answers import (
    Channels,
    Heatmap,
    Histograms,
    Latest,
    Quantiles,
    Series,
    Similarities,
    StepRange,
    TapList,
    Usage,
)
from hookcore.store.bounded import bytes_of, scalars_of, texts_bytes
from hookcore.store.checks import facts_of
from hookcore.store.incidents import Alarm, Found, Incident, Replay, replay_of
from hookcore.store.ladder import Ladder, Peaks
from hookcore.store.ledger import NonfiniteTaps
from hookcore.store.parts import MIN_BYTES, NAMES_BYTES, Follower, Parts, ascending_parts, require_shapes
from hookcore.store.past import Lane, Older, Past, Span, Wanted, look_together, rows_together
from hookcore.store.rows import Cells, Columns, Rows, Streaks, columns_over, down_sample, norm_of, overlap
from hookcore.store.segments import (
    SCALAR_SCHEMA,
    SKIPPED_STEP,
    STAT_SCHEMA,
    Floats,
    Lanes,
    MergedRows,
    Steps,
    lanes_of,
    merge_ranks,
    merge_stats,
)
from hookcore.store.sketches import MIN_BINS, SketchRows, histograms_of, quantiles_of
from hookcore.store.unlike import Sample

# The contents of a run: its steps, taps, modules and their coverage, hooks, events, and snapshots.


class OfTap(Protocol):
    """A tap in an answer of `hookcore.reading`."""

    @property
    def record(self) -> Tap: ...


TapName = int | str | Tap | OfTap  # a tap by its number, its label, or itself
UNREPORTED: Final = "not reported by the trainer yet"


def _find_no_dead() -> Collection[str]:
    raise PatternError("'is:dead' needs the findings of a server: ask it through hookcore.Client")


def _no_ranks() -> Sequence[RankStore]:
    return ()


def _without_refused(covered: Coverage, kept: set[Kind], have: str) -> Coverage:
    kinds = tuple(kind for kind in covered.kinds if kind in kept)
    if not covered.captured or (kept and len(kinds) == len(covered.kinds)):
        return covered
    missing = ", ".join(kind for kind in covered.kinds if kind not in kept)
    what = f"{missing} refused by the store" if kept else "refused by the store"
    return replace(covered, captured=bool(kept), kinds=kinds, reason=f"{what}: {have}; give it more memory")


# Reads rows, cells, and sketches of a run: what memory has exactly from there, and the rest from the store's past.

MAX_ROWS: Final = 1000  # of the past, if the caller doesn't say


@dataclass(frozen=True, slots=True)
class Source:
    """One column of some lanes of a ladder, and what the past calls them."""

    ladder: Ladder
    column: int
    lanes: Lanes
    stat: str
    names: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Rows of a span in parts, oldest first: what memory has of them, and what the past is asked for."""

    near: list[Rows]
    kept: list[Rows] = field(default_factory=list)  # those of memory that the past doesn't have better
    wanted: Wanted | None = None

    def answer(self, older: Rows | None) -> list[Rows]:
        """Return all rows, with those of the past if it was asked and has answered."""
        return self.near if older is None else [part for part in (older, *self.kept) if len(part.first)]


@dataclass(frozen=True, slots=True)
class View:
    """The data of a heatmap: rows in memory, and earlier steps in the past."""

    near: list[Rows]  # all that memory has
    kept: list[Rows]  # those of it that the past doesn't have better
    past: tuple[int, int] | None = None


def gather_together(queries: Sequence[tuple[Store, Source, Span]], most: int) -> list[list[Rows]]:
    """Return the rows of spans of several stores in parts. Pasts that are stored in one place are queried once."""
    since = [source.ladder.exact_since(store.parts.whole_since) for store, source, _ in queries]
    pasts = [store._past_of(span, step) for (store, _, span), step in zip(queries, since, strict=True)]
    look_together([past for past in pasts if past is not None])
    questions = [store._ask(source, span, most) for store, source, span in queries]
    older = iter(rows_together([question.wanted for question in questions if question.wanted is not None]))
    return [question.answer(None if question.wanted is None else next(older)) for question in questions]


# The newest values: of the whole run, or in some steps, whose rows may be merged by now.

STAT_NAMES: Final = STAT_SCHEMA.names  # the recorded and the derived ones: zero_fraction, nonfinite
Places = NDArray[np.intp]
_UNTRACED: Final = STATE_KINDS | {PROBE}  # kinds that open no incident of non-finite values
_COUNTED: Final = tuple(STAT_NAMES.index(name) for name in ("nan", "inf", "nonfinite"))
_MEASURES: Final = ("mean", "std", "rms", "norm", "min", "max", "ratio")  # the other stats are counts and shares


def of_all_values(stored: Floats, stats: Sequence[str] = STAT_NAMES) -> Floats:
    """Return the stats [tap, stat] of tensors over all values; they are stored over the finite ones.

    If a tensor has NaN or infinities, so have its measures, but not its counts and shares.
    """
    values: Floats = stored.copy()
    measures = np.isin(stats, _MEASURES)
    nan, inf = (stored[:, [stats.index(name)]] > 0 for name in ("nan", "inf"))
    values[inf & measures] = np.inf
    values[nan & measures] = np.nan
    return values


@dataclass(frozen=True, slots=True)
class _Found:
    """The newest rows of some taps, each of steps from `begin` to `end`. `read` returns a stat of those at places."""

    numbers: Steps
    begin: Steps
    end: Steps
    read: Callable[[str, Places], Floats]

    def arranged(
        self, taps: Sequence[Tap], wanted: TapList, stat: str | None, sort: str | None, limit: int | None
    ) -> Latest:
        """Return one stat or all, sorted, of the first taps. `taps` are those of the run."""
        order = np.arange(len(self.numbers))
        if sort:
            order = _order(self._sizes(sort.removeprefix("-"), order), sort.startswith("-"))
        order = order[:limit]
        numbers = self.numbers[order]
        shown = wanted.taps if np.array_equal(numbers, wanted.numbers) else tuple(taps[number] for number in numbers)
        chosen = STAT_NAMES if stat is None else (stat,)
        values = np.stack([self.read(name, order) for name in chosen], axis=1)
        return Latest(chosen, numbers, shown, self.end[order], values, self.begin[order], len(self.numbers))

    def _sizes(self, stat: str, places: Places) -> Floats:
        """Return a stat to sort by: NaN for what measures a tensor with non-finite values."""
        values = self.read(stat, places)
        is_bad = (self.read("nonfinite", places) > 0) & (stat in _MEASURES)
        return np.where(is_bad, np.nan, values)


def require_stats(stat: str | None, sort: str | None) -> None:
    """Raise ArgumentError if one of these isn't a stat; `sort` may begin with a minus."""
    for name in (stat, sort.removeprefix("-") if sort else None):
        if name is not None:
            checks.require("stat", name, STAT_NAMES)


def _column_of(stored: Floats, numbers: Steps, name: str, places: Places) -> Floats:
    lanes = numbers[places]
    if name in STAT_SCHEMA.derived:
        return STAT_SCHEMA.derived[name](lambda column: stored[column, lanes])
    values: Floats = stored[STAT_NAMES.index(name), lanes]
    return values


def _order(values: NDArray[np.float64], smallest_first: bool) -> NDArray[np.intp]:
    keys = values if smallest_first else -values
    return np.argsort(np.where(np.isfinite(values), keys, -np.inf), kind="stable")


def _newest_merged(
    parts: Sequence[MergedRows], first: int | None, last: int | None, lanes: NDArray[np.int64]
) -> tuple[Steps, Steps, Floats]:
    """Return the newest merged row of each lane that overlaps the steps: its ends (-1 if there is none), [name, lane].

    Values are means over the row's steps; of counts of non-finite values, the largest.
    """
    begin, end = np.full((2, len(lanes)), -1, np.int64)
    values = np.full((len(parts[0].mean) if parts else 0, len(lanes)), np.nan)
    for part in reversed(parts):
        rows = overlap(part.first, part.last, first, last)
        wanted = np.flatnonzero((end < 0) & (lanes < part.lanes))
        present = part.present[rows][:, lanes[wanted]] > 0
        here = np.flatnonzero(present.any(axis=0)) if len(present) else np.empty(0, np.intp)
        if not len(here):
            continue
        row = rows.stop - 1 - present[::-1][:, here].argmax(axis=0)  # the newest one of each lane
        here = wanted[here]
        begin[here], end[here] = part.first[row], part.last[row]
        values[:, here] = part.mean[:, row, lanes[here]]
        for column in _COUNTED:
            values[column, here] = part.high[column, row, lanes[here]]
        if (end >= 0).all():
            break
    return begin, end, values


@dataclass(frozen=True, slots=True)
class _Alike:
    """Frames that can be filed at once: their numbers by name, and their stats [frame, tap, stat], if they have any."""

    frames: Sequence[Frame]
    named: list[dict[str, float]]
    stats: Floats | None


def _is_whole(stats: Floats) -> bool:
    """Return whether all rows of frames have values, and all of them are finite."""
    return not np.count_nonzero(stats[:, :, _NOT_FINITE]) and not np.count_nonzero(np.isnan(stats[:, :, 0]))


_NOT_FINITE: Final = slice(STAT_COLUMN["nan"], STAT_COLUMN["inf"] + 1)  # two columns side by side
MAX_CELLS: Final = 2**23  # of a heatmap, before neighboring taps share a row: 24 bytes each
_VALUE: Final = SCALAR_SCHEMA.columns.index("value")


def _series_of(name: str, tap: int | None, parts: list[Rows], points: int) -> Series:
    rows = down_sample(Rows.join(parts), points)
    values = rows.mean[:, 0], rows.low[:, 0], rows.high[:, 0]
    return Series(name, tap, rows.first, rows.last, *values, rows.present[:, 0], rows.nonfinite[:, 0])


def _ends_of(entries: Sequence[SketchRows]) -> tuple[Steps, Steps]:
    return np.array([entry.first for entry in entries], np.int64), np.array([entry.last for entry in entries], np.int64)


def _within(rows: Rows, first: int, last: int) -> NDArray[np.bool_]:
    """Return which rows have a step between first and last."""
    inside: NDArray[np.bool_] = (rows.last >= first) & (rows.first <= last)
    return inside


def _empty_heatmap(stat: str) -> Heatmap:
    none = np.empty(0, np.int64)
    counts = np.empty((0, 0), np.uint32)
    return Heatmap(stat, none, (), none, none, none, np.empty((0, 0)), counts, counts, np.empty((0, 0), bool))


DEFAULT_BYTES: Final = 512 * 2**20


class Store:
    """The frames of one run within `max_bytes`, and names within `names_bytes`. See docs/store.md.

    Adding a frame never raises, even if it is late or there is no room. Such frames are counted, and an event reports
    the first.
    """

    def __init__(
        self, max_bytes: int = DEFAULT_BYTES, *, names_bytes: int = NAMES_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self.parts = Parts(max_bytes, names_bytes)
        self._here = threading.local()  # how a thread reads the past
        self._all_taps = TapList(np.empty(0, np.int64), ())
        self._covered: tuple[tuple[int, ...], tuple[Coverage, ...]] = (), ()
        self._find_dead: Callable[[], Collection[str]] = _find_no_dead
        self._clock = clock
        self._writer = threading.Lock()  # frames from several threads are added one after the other
        self._last: tuple[NDArray[np.uint32] | None, Lanes] = None, slice(0)  # the newest taps, known and in order
        self._reported: set[str] = set()
        self._ahead: set[Event] = set()
        self.follower: Follower | None = None  # runs the rules
        self.of_ranks = False  # adds up the ranks of a distributed training
        self.ranks: Callable[[], Sequence[RankStore]] = _no_ranks  # whose stores can be read
        self.rules: Mapping[str, Mapping[str, float] | bool] = {}  # thresholds that were chosen; see hookcore.findings

    @property
    def past(self) -> Past | None:
        """Where the whole run is, if anywhere."""
        return self.parts.past

    def recall_from(self, past: Past) -> None:
        """Answer for steps that memory has merged, or never had, from a past."""
        self.parts.past = past

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
        outline.parts.steps = steps
        return outline

    def append(self, frame: Frame) -> None:
        """Add a frame: a new step, or another part of the newest one.

        The arrays of `frame.sketches` are not copied if they own their memory, so don't write to them afterwards.
        """
        self.extend((frame,))

    def extend(self, frames: Sequence[Frame]) -> None:
        """Add frames that waited together. What is alike in steps that follow each other is filed at once."""
        for frame in frames:
            if not (frame.taps is NO_TAPS and frame.stats is NO_STATS and frame.sketches is NO_SKETCHES):
                require_shapes(frame)
        with self._writer:
            while frames:
                alike = self._alike(frames) if len(frames) > 1 else None
                if alike is not None and len(alike.frames) > 1:
                    added = self._add_alike(alike)
                else:
                    self._add(frames[0])
                    added = 1
                frames = frames[added:]

    def _add(self, frame: Frame) -> None:
        self._take_names(frame)
        newest = self.parts.steps.newest
        if newest is not None and frame.step < newest:
            self.parts.dropped["too_late"] += 1
            self._report("too-late", f"a frame of step {frame.step} arrived after one of step {newest} and was dropped")
            return
        if frame.flow is not None:
            self.parts.put_flow(frame.flow)
        self._take_stats(frame)
        self._take_scalars([frame.step], [scalars_of(frame)])
        self.parts.incidents.settle(frame.step, frame.scalars)
        self._note_steps([frame])
        if self.follower is not None and self.follower.notices(frame):
            self.follower.act()

    def _alike(self, frames: Sequence[Frame]) -> _Alike | None:
        """Return the first frames if they can be filed at once: new steps with nothing but numbers.

        They have the same numbers, and finite values of the same known taps.
        """
        parts, taps, named = self.parts, frames[0].taps, list[dict[str, float]]()
        newest = -1 if parts.steps.newest is None else parts.steps.newest
        has_rows = bool(len(taps))
        if (has_rows and taps is not self._last[0]) or not parts.incidents.rests or parts.ledger.nbytes:
            return None
        for frame in frames:
            is_plain = not (frame.new_taps or frame.events or frame.labels) and frame.flow is None
            if not is_plain or frame.taps is not taps or frame.step <= newest:
                break
            numbers = scalars_of(frame)
            if not (list(numbers) == list(named[0]) if named else SYSTEM not in "\n".join(numbers)):
                break
            newest = frame.step
            named.append(numbers)
        if not (has_rows and named):
            return _Alike(frames[: len(named)], named, None)
        stats = np.concatenate([frame.stats for frame in frames[: len(named)]]).reshape(-1, *frames[0].stats.shape)
        if not _is_whole(stats):
            bad = np.isnan(stats[:, :, 0]) | (stats[:, :, _NOT_FINITE] != 0).any(axis=2)
            stats = stats[: int(bad.any(axis=1).argmax())]
        return _Alike(frames[: len(stats)], named[: len(stats)], stats)

    def _add_alike(self, alike: _Alike) -> int:
        """Add frames that are alike, up to one after which the follower acts. Return their number."""
        stats, many, acts = alike.stats, len(alike.frames), False
        if (follower := self.follower) is not None and (first := follower.notices_alike(alike.frames, stats)):
            many, acts = first, True
        frames = alike.frames[:many]
        steps = [frame.step for frame in frames]
        if stats is not None:
            self.parts.stats.append(steps, self._last[1], stats[:many].transpose(2, 0, 1))
            for frame in frames:
                self.parts.sketches.append(frame.step, frame.taps, frame.sketches)
            self.parts.ledger.note_captured(*steps)
        self._take_scalars(steps, alike.named[:many])
        self.parts.incidents.settle(steps[-1], frames[-1].scalars)
        self._note_steps(frames)
        if acts and follower is not None:
            follower.act()
        return many

    def begin_after(
        self, steps: StepRange, captured: int, scalars: Sequence[str], latest: tuple[Steps, Floats] | None = None
    ) -> None:
        """Begin after steps that only the past has, with the taps announced and nothing stored.

        Of these steps, `captured` have values of taps. `latest` is what each tap had last: its step, -1 for none, and
        its stats [stat, tap].
        """
        with self._writer:
            self.parts.steps, self.parts.whole_since = steps, (steps.newest or 0) + 1
            self.parts.ledger.begin_after(captured)
            for name in scalars:
                self.parts.log_of(name).add_name(name)
            if latest is not None:
                self.parts.stats.recall_latest(*latest)

    def settle(self) -> None:
        """Run the rules once more, because no more frames are expected."""
        if self.follower is not None:
            with self._writer:
                self.follower.look()

    def hear(self, event: Event) -> None:
        """Tell the rules and the incidents of an event whose frame is still to come, as when a run is read."""
        with self._writer:
            if event.name == NONFINITE_STEP:
                self.parts.incidents.alarm(Alarm.of(event))
            elif self.follower is not None:
                self.follower.hear(event)

    def judge(self, findings: Sequence[Found], per_frame: bool = False) -> None:
        """Follow the findings of the rules about all steps so far, or the findings about each frame."""
        if self.parts.steps.newest is not None:
            self.parts.incidents.judge(self.parts.steps.newest, findings, per_frame)

    def explain(self, replay: Replay) -> None:
        """Take what the replay of a step found, for the incident that began in that step."""
        self.parts.incidents.explain(replay)

    def name_ranks(self, whose: Callable[[int, int], str], ranks: Callable[[], Sequence[RankStore]]) -> None:
        """Let incidents say in which ranks the values of a tap, by its number, were not finite in a step.

        `ranks` returns the stores that are added up here.
        """
        self.parts.incidents.whose, self.ranks = whose, ranks
        self.of_ranks = True

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Update the modules and their coverage; known paths are replaced.

        Hooks, if given, replace all earlier ones.
        """
        with self._writer:
            if hooks:
                self.parts.put_hooks(hooks)
            for module in modules:
                self.parts.modules.put(module.path, module, bytes_of(module))
            for covered in coverage:
                self.parts.coverage.put(covered.path, covered, bytes_of(covered))

    def add_event(self, event: Event) -> None:
        """Keep an event, and drop the oldest ones to make room."""
        if event.name == SKIPPED_STEP:
            self.note_skipped(event.step)
        if event.name == NONFINITE_STEP:
            self.parts.incidents.alarm(Alarm.of(event))
        if event.name == REPLAYED and (replay := replay_of(event)) is not None:
            self.explain(replay)
        if event.name == EXPLAINED and event.about.get("found") == NOTHING:
            self.parts.incidents.note_found_nothing(event.step, event.about.get("exact") is True)
        if event.name == CAPSULE_MISSED and isinstance(because := event.about.get("because"), str):
            self.parts.incidents.note_unsaved(event.step, because)
        self.keep_event(event)

    def keep_event(self, event: Event) -> None:
        """Keep an event that incidents know already."""
        self.parts.events.add(event, bytes_of(event))

    def add_saved_event(self, event: Event) -> None:
        """Keep an event that was read from disk. If its frame isn't on disk yet, it will come again with that frame."""
        (self.keep_event if event.name == NONFINITE_STEP else self.add_event)(event)
        newest = self.parts.steps.newest
        if newest is None or event.step > newest:
            self._ahead.add(event)

    def note_skipped(self, step: int) -> None:
        """Tell the incidents that a gradient scaler skipped a step. The event does the same."""
        self.parts.incidents.note_skipped(step)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot with a copy of its values, and drop the oldest ones to make room.

        That of a probe is a column of its channels, which are merged to make room.
        """
        if snapshot.tap.kind == PROBE:
            self.parts.channels.add(snapshot)
            return
        log = self.parts.log_for(snapshot)
        if snapshot.values.nbytes > log.max_bytes:
            what = snapshot.tap.module if snapshot.is_media else "a snapshot"
            self._report("snapshot-refused", f"{what} of {snapshot.values.nbytes} bytes is above the store's limit")
        owned = replace(snapshot, values=np.array(snapshot.values))
        owned.values.flags.writeable = False
        log.add(owned, bytes_of(owned))

    def shrink(self, max_bytes: int) -> int:
        """Merge values until they take about `max_bytes`; only resolution is lost. Return the bytes saved."""
        with self._writer:
            before = self.parts.usage().nbytes
            self.parts.shrink(max_bytes)
            return before - self.parts.usage().nbytes

    def usage(self) -> Usage:
        """Return the size and limit of each part, and the counters of dropped and merged data."""
        return self.parts.usage()

    def announce(self, taps: tuple[Tap, ...]) -> None:
        """Add taps, numbered from the last one. The taps in a frame's `new_taps` are added automatically."""
        with self._writer:
            self._announce(taps)

    def _announce(self, taps: tuple[Tap, ...]) -> None:
        if taps and self.parts.add_taps(taps):
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
            self.parts.labels.put(name, (name, text), texts_bytes([name, text, name]))

    def _take_stats(self, frame: Frame) -> None:
        if not len(frame.taps):
            return
        if frame.taps is self._last[0]:  # most frames share one array of taps
            self._take_part(frame, frame.taps, frame.stats, frame.sketches)
            return
        for taps, stats, block in ascending_parts(frame):
            room = len(self.parts.taps)
            if len(taps) and taps[-1] >= room:
                fit = np.arange(np.searchsorted(taps, room))
                self.parts.dropped["rows_of_unknown_taps"] += len(taps) - len(fit)
                taps, stats, block = taps[fit], stats[fit], rows_of(block, fit)
            if len(taps):
                self._take_part(frame, taps, stats, block)

    def _take_part(self, frame: Frame, taps: NDArray[np.uint32], stats: Floats, block: SketchBlock) -> None:
        step = frame.step
        absent = np.isnan(stats[:, 0])
        if np.count_nonzero(absent):  # which takes a fraction of what `any` takes for so few
            stats = np.where(absent[:, None], np.nan, stats)
            self.parts.dropped["rows_without_count"] += int(absent.sum())
        ladder, lanes = self.parts.stats, self._last[1]
        if taps is not self._last[0]:
            lanes = lanes_of(taps)
            if is_shared(taps):
                self._last = taps, lanes
        if ladder.newest == step:
            ladder.merge_newest(lanes, stats.T, merge_ranks if self.of_ranks else merge_stats)
        else:
            ladder.append([step], lanes, stats.T[:, None])
        self.parts.sketches.append(step, taps, block)
        nan = stats[:, STAT_COLUMN["nan"]]
        look = self.parts.ledger.append(step, taps, nan, stats[:, STAT_COLUMN["inf"]])
        if look is None:
            if self.parts.incidents.is_going_on:  # it was found by the trainer, in a step that wasn't captured
                none = taps[:0]
                self.parts.incidents.take(step, None, none, none > 0, taps)
        else:
            incidents, fine, places = self.parts.incidents, taps[look.fine], np.flatnonzero(look.bad)
            if len(places):  # what a user's function returns is no tensor of the training
                # States are measured so rarely that their first step would be wrong: a rule is about them.
                real = [self.parts.taps[number].kind not in _UNTRACED for number in taps[places].tolist()]
                places = places[np.array(real, bool)]
                no_mask = no_masks(stats[places])
                places = places[incidents.harmful(step, taps[places], no_mask, fine, frame.scalars)]
            incidents.take(step, look.previous, taps[places], nan[places] > 0, fine)

    def _take_scalars(self, steps: Sequence[int], named: Sequence[dict[str, float]]) -> None:
        if SYSTEM in "\n".join(named[0]):  # most frames have no sample of the machine
            sampled = {name: named[0].pop(name) for name in list(named[0]) if name.startswith(SYSTEM)}
            if sampled:
                self._require_room(self.parts.system.add(steps, [sampled])[2])
        lanes, values, fit = self.parts.scalars.add(steps, named)
        self._require_room(fit)
        bad, value = values[1:]
        if self.parts.scalar_ledger.nbytes or np.count_nonzero(bad):  # most runs never log a non-finite value
            for step, row in zip(steps, value, strict=True):
                self.parts.scalar_ledger.append(step, lanes, np.isnan(row), np.isinf(row))

    def _require_room(self, fit: bool) -> None:
        if not fit:
            self._report(
                "scalars-refused", "there are more scalars than fit: log fewer names, or give the store more memory"
            )

    def _note_steps(self, frames: Sequence[Frame]) -> None:
        """Note frames, all but the first of which begin a step."""
        old, many, newest = self.parts.steps, len(frames), frames[-1]
        first = frames[0].step if old.first is None else old.first
        count = old.count + many - (frames[0].step == old.newest)
        self.parts.steps = StepRange(first, newest.step, count, old.frames + many, newest.time_s)

    def _report(self, name: str, message: str) -> None:
        """Add an event the first time a limit is reached. The counters say how often it is."""
        if name not in self._reported:
            self._reported.add(name)
            newest = self.parts.steps.newest
            self.add_event(Event(newest or 0, self._clock(), name, message, "warning"))

    # Reads what a run consists of from a store's state, from any thread

    def find_dead_by(self, find: Callable[[], Collection[str]]) -> None:
        """Set the function that returns the paths of the modules that match `is:dead`, which only findings know."""
        self._find_dead = find

    def steps(self) -> StepRange:
        """Return the first and newest step, and the number of steps."""
        return self.parts.steps

    @property
    def taps_announced(self) -> int:
        """The number of announced taps, including those without room."""
        return self.parts.taps_announced

    @property
    def taps_known(self) -> int:
        """The number of taps with room."""
        return len(self.parts.taps)

    @property
    def modules_known(self) -> int:
        """The number of described modules."""
        return len(self.parts.modules)

    def taps(self, match: str | None = None, kind: str | None = None) -> TapList:
        """Return the taps of a kind whose module matches a pattern (see docs/patterns.md)."""
        checks.require_kind(kind)
        every = self._every_tap()
        taps = every if kind is None else every.of_kind(kind)
        if match is None:
            return taps
        fits = self.matcher(match)
        return taps.at([place for place, tap in enumerate(taps.taps) if fits(tap.module)])

    def _every_tap(self) -> TapList:
        """Return the same list until there are more taps, so that facts about it are found once."""
        all_taps = self._all_taps
        if len(all_taps.taps) != len(self.parts.taps):
            taps = tuple(self.parts.taps)
            all_taps = self._all_taps = TapList(np.arange(len(taps)), taps)
        return all_taps

    def events(
        self,
        first: int | None = None,
        last: int | None = None,
        name: str | None = None,
        severity: Severity | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """Return the newest matching events, oldest first."""
        events = [event for event in self.parts.events.items() if event.fits(first, last, name, severity)]
        return events if limit is None else events[max(0, len(events) - limit) :]

    def events_after(self, taken: int) -> tuple[int, list[Event]]:
        """Return the events after the first `taken`, and the number of all events. For followers."""
        return self.parts.events.items_after(taken)

    def snapshots(self) -> list[Snapshot]:
        """Return the stored snapshots, oldest first; their values are read-only."""
        return self.parts.snapshots.items()

    def snapshots_after(self, taken: int) -> tuple[int, list[Snapshot]]:
        """Return the snapshots after the first `taken`, and the number of all. For readers that number them."""
        return self.parts.snapshots.items_after(taken)

    def numbered_snapshots(self) -> list[tuple[int, Snapshot]]:
        """Return the snapshots by the numbers that name them: their commands', or else their places in time."""
        taken, kept = self.snapshots_after(0)
        first = taken - len(kept)
        return [
            (snapshot.number if snapshot.number >= 0 else first + place, snapshot)
            for place, snapshot in enumerate(kept)
        ]

    def numbered_media(self) -> list[tuple[int, Snapshot]]:
        """Return the logged images, texts, tables, and figures, by their position in the log."""
        taken, kept = self.parts.media.items_after(0)
        return list(enumerate(kept, taken - len(kept)))

    def similarities(self, step: int | None = None) -> Similarities | None:
        """Return how alike the samples of a fixed batch are in each layer, of the newest measurement up to a step."""
        found: dict[str, NDArray[np.generic]] = {}
        at = batch = None
        for each in reversed(self.snapshots_after(0)[1]):
            index = each.tap.index
            if not index.startswith(SIMILARITY) or (step is not None and each.step > step):
                continue
            if at is not None and (each.step, index) != (at, batch):
                break
            at, batch = each.step, index
            found.setdefault(each.tap.module, each.values)
        if at is None or batch is None:
            return None
        return Similarities(at, batch.removeprefix(SIMILARITY).strip(), dict(reversed(found.items())))

    def moments(self) -> list[tuple[int, Moment]]:
        """Return what the run had when it began, and whenever its state was saved, with the steps ended until then."""
        return [(each.step, unpack_moment(each.values)) for each in self.parts.moments.items_after(0)[1]]

    def samples_of(self, step: int) -> SamplesOfStep:
        """Return which samples a step had, or why that isn't known."""
        log = self.parts.samples
        kept = log.items_after(0)[1]
        if not kept:
            return SamplesOfStep((), NO_SAMPLES)
        # A step may be in two blocks, and a block has only some of the steps.
        place = min(bisect_left(kept, step, key=lambda each: each.step), len(kept) - 1)
        near = (kept[each] for each in range(max(0, place - 1), min(len(kept), place + 2)))
        placed = [(each.step - batch.back, batch) for each in near for batch in unpack_samples(each.values).batches]
        newest = unpack_samples(kept[-1].values)
        first = unpack_samples(kept[0].values).batches
        is_gone = bool(log.dropped and first) and step < kept[0].step - first[0].back
        found = tuple(batch for at, batch in placed if at == step)
        return SamplesOfStep(found, why_unknown(step, found, (at for at, _ in placed), newest, is_gone))

    def modules(self) -> list[ModuleRecord]:
        return self.parts.modules.items()

    @property
    def root(self) -> str:
        """The class of the model, which sentences say instead of its empty path."""
        root = self.parts.modules.get("")
        return root.type if root is not None and root.type else ROOT

    def module_types(self) -> dict[str, str]:
        """Return the class of each module, by path."""
        return {module.path: module.type for module in self.modules()}

    def matcher(self, match: str | None) -> Callable[[str], bool]:
        """Return a test of module paths for a pattern; None matches every path."""
        return (lambda path: True) if match is None else self.matcher_of(patterns.parse(match))

    def matcher_of(self, condition: patterns.Condition) -> Callable[[str], bool]:
        """Return a test of module paths for a condition. The facts are those at the first path."""
        facts: dict[str, patterns.Facts] = {}

        def fits(path: str) -> bool:
            if not facts:
                facts.update(self.facts(condition.states))
            return condition.fits(facts.get(path) or patterns.Facts(path))

        return fits

    def facts(self, states: Set[str] = frozenset()) -> dict[str, patterns.Facts]:
        """Return what patterns can test of each module by path, in the model's order, then of other tensors.

        Of the states that change, only those in `states` are looked up.
        """
        taps = self.parts.taps[:]
        nonfinite = self.parts.ledger.taps().numbers.tolist() if "nan" in states else ()
        return facts_of(
            self.modules(),
            dict.fromkeys(tap.module for tap in taps),
            {covered.path: covered.captured for covered in self.coverage()}
            if {"captured", "uncaptured"} & states
            else {},
            {taps[number].module for number in nonfinite if number < len(taps)},
            self._find_dead() if "dead" in states else (),
        )

    def coverage(self) -> list[Coverage]:
        """Return every known module: captured, or why not. Refused taps count as not captured."""
        parts = self.parts
        mark = parts.coverage.changes, parts.modules.changes, len(parts.taps), parts.taps_announced
        if self._covered[0] != mark:
            reported = self.without_refused(parts.coverage.items())
            self._covered = mark, tuple(self._with_unreported(reported))
        return list(self._covered[1])

    def _with_unreported(self, coverage: list[Coverage]) -> list[Coverage]:
        """Return coverage of all modules in the model's order, also of those whose coverage wasn't reported."""
        modules = self.parts.modules.items()
        by_path = {covered.path: covered for covered in coverage}
        unreported: dict[str, dict[Kind, None]] = {
            covered.path: {} for covered in modules if covered.path not in by_path
        }
        if not unreported:
            return coverage
        for tap in self.parts.taps[:]:
            if tap.module in unreported:
                unreported[tap.module][tap.kind] = None
        for path, type_ in ((module.path, module.type) for module in modules if module.path in unreported):
            seen = tuple(unreported[path])
            by_path[path] = Coverage(path, type_, bool(seen), seen, "" if seen else UNREPORTED)
        in_order = {module.path: by_path[module.path] for module in modules}
        return list((in_order | by_path).values())

    @property
    def refused_taps(self) -> int:
        """The number of taps without room, which have the highest numbers."""
        return self.parts.taps_announced - len(self.parts.taps)

    def without_refused(self, coverage: Sequence[Coverage]) -> list[Coverage]:
        """Return coverage that calls a module captured only if the store has one of its taps, with these kinds."""
        refused = self.refused_taps
        if not refused:
            return list(coverage)
        kept: dict[str, set[Kind]] = {}
        for tap in self.parts.taps[:]:
            kept.setdefault(tap.module, set()).add(tap.kind)
        room = f"{len(self.parts.taps):,} of {self.parts.taps_announced:,} tensors"
        have = f"no room for its values: the store has room for {room}"
        return [
            _without_refused(covered, kept.get(covered.path, set()), have) if covered.captured else covered
            for covered in coverage
        ]

    def hooks(self) -> tuple[HookRecord, ...]:
        """Return the hooks of the last inventory."""
        return self.parts.hooks

    def flows(self) -> tuple[Flow, ...]:
        """Return which call fed which, in the structures that the model had, oldest first."""
        return self.parts.flows

    def labels(self) -> dict[str, str]:
        """Return the newest label of each name."""
        return dict(self.parts.labels.items())

    def find_tap(self, tap: TapName) -> tuple[int, Tap]:
        """Return a tap's number and the tap."""
        taps = self.parts.taps
        if not isinstance(tap, str | int | np.integer | Tap):
            tap = tap.record
        if isinstance(tap, str):
            return checks.find_tap(enumerate(taps[:]), tap)
        if isinstance(tap, Tap):
            number = self.parts.tap_numbers.get(tap)
            if number is None:
                raise ArgumentError(checks.unknown("tap", tap.label, [other.label for other in taps]))
            return number, tap
        if not 0 <= tap < len(taps):
            raise ArgumentError(f"unknown tap number {tap}: there are {len(taps)} taps, numbered from 0")
        return int(tap), taps[tap]

    # Reads a store's state, and its past if it has one, from any thread

    @property
    def whole_since(self) -> int:
        """The step since which memory has had every step of the run, if not from the beginning."""
        return self.parts.whole_since

    @property
    def exact_since(self) -> int | None:
        """The step since which memory has each step's values of tensors; None if it has all."""
        return self.parts.stats.exact_since(self.parts.whole_since)

    @contextmanager
    def in_memory(self) -> Iterator[None]:
        """Answer this thread from memory alone, as rules need it: they look at thousands of taps, and often."""
        before = getattr(self._here, "only", False)
        self._here.only = True
        try:
            yield
        finally:
            self._here.only = before

    def _past_of(self, span: Span, exact_since: int | None) -> Past | None:
        """Return the past if a span reaches steps that memory doesn't have exactly."""
        past = None if getattr(self._here, "only", False) else self.parts.past
        if past is None or exact_since is None or (span[0] is not None and span[0] >= exact_since):
            return None
        return past

    def _gather(self, source: Source, span: Span, most: int = MAX_ROWS) -> list[Rows]:
        """Return the rows of a span in parts, oldest first; of the past about `most` if there are more."""
        return gather_together([(self, source, span)], most)[0]

    def _ask(self, source: Source, span: Span, most: int) -> Question:
        near, older = self._recall(source, span)
        if older is None:
            return Question(near)
        return Question(near, older.later(near), Wanted(older.past, source.stat, source.names, older.span, most))

    def _recall(self, source: Source, span: Span) -> tuple[list[Rows], Older | None]:
        """Return the rows of memory, and for which steps the past answers instead."""
        near = source.ladder.gather(source.column, source.lanes, *span)
        since = source.ladder.exact_since(self.parts.whole_since)
        return near, self._older(span, since, ((part.first, part.last) for part in near))

    def _older(self, span: Span, exact_since: int | None, ends: Iterable[tuple[Steps, Steps]]) -> Older | None:
        """Return for which steps of a span the past answers, if for any. `ends` are those of the rows that memory has.

        Memory answers for its exact rows and for data that isn't stored yet, even if it is merged.
        """
        past = self._past_of(span, exact_since)
        if past is None or exact_since is None:
            return None
        stored = past.stored_until()
        kept = (first[(last > stored) | (first >= exact_since)] for first, last in ends)
        before = next((int(first[0]) - 1 for first in kept if len(first)), stored)
        end = min(stored, before, stored if span[1] is None else span[1])
        return Older(past, span[0], end) if end >= (span[0] or 0) else None

    def _entries(self, number: int, span: Span, most: int) -> list[SketchRows]:
        """Return the sketches of a tap, or sums of them, oldest first."""
        return self._sketches(span, lambda older: older.past.sketches(number, older.span, most))

    def _sketches(self, span: Span, ask: Callable[[Older], list[SketchRows] | None]) -> list[SketchRows]:
        """Return sketches of memory, and of the past where memory has only sums."""
        near = self.parts.sketches.entries(*span)
        since = self.parts.sketches.exact_since(self.parts.whole_since)
        older = self._older(span, since, map(_ends_of, [near]))
        older_sketches = None if older is None else ask(older)
        if older_sketches is None:
            return near
        # A sum of the past may be of steps after the end, too, or the last steps may be too many for it.
        until = max((entry.last for entry in older_sketches), default=-1)
        return [*older_sketches, *(entry for entry in near if entry.first > until)]

    def _all_entries(self, span: Span) -> list[SketchRows]:
        """Return the sketches of all taps, or sums of them, oldest first."""
        return self._sketches(span, lambda older: older.past.all_sketches(len(self.parts.taps), older.span))

    def _latest(self, span: Span) -> tuple[Steps, Floats]:
        """Return the newest step of each tap in a span, -1 if it has none, and its exact stats there [stat, tap]."""
        since = self.exact_since
        past = self._past_of(span, since)
        if past is not None and since is not None and span[1] is not None and span[1] < since:
            newest = past.latest(len(self.parts.taps), span)
            if newest is not None:
                return newest
        return self.parts.stats.latest(*span)

    def _has_past(self, span: Span) -> bool:
        """Return whether the past has the steps of a span that memory has merged."""
        past = self._past_of(span, self.exact_since)
        return past is not None and not past.trouble

    def _view(self, source: Source, span: Span) -> View:
        """Return what a heatmap of a span shows."""
        near, older = self._recall(source, span)
        ends = None if older is None else older.past.ends(older.span)
        return View(near, near) if older is None or ends is None else View(near, older.later(near), ends)

    def _cells(self, stat: str, wanted: TapList, over: Columns, view: View, streaks: Streaks) -> Cells:
        """Return the values of a view in cells."""
        past, older = self.parts.past, None
        if past is not None and view.past is not None:
            older = past.cells(stat, wanted.numbers.tolist(), over, view.past)
        cells = Cells.make(over.number, len(wanted.taps)) if older is None else older
        for part in view.near if older is None else view.kept:
            cells.add(over, part, streaks)
        return cells

    # Reads the newest values, from any thread. `first` and `last` are inclusive steps; None means no bound

    def latest(
        self,
        taps: TapList | str | None = None,
        stat: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
        first: int | None = None,
        last: int | None = None,
        *,
        merged: bool = False,
    ) -> Latest:
        """Return the newest values of taps, of those of a kind, or of all.

        `sort` is a stat, largest and non-finite first ("-norm": smallest). With bounds, return the taps seen in these
        steps; with `merged`, also those whose steps are merged by now: then stats are means, and counts of non-finite
        values are the largest of a step.
        """
        require_stats(stat, sort)
        wanted = taps if isinstance(taps, TapList) else self.taps(None, taps)
        steps, stored = self._latest((first, last))
        numbers = wanted.numbers[wanted.numbers < len(steps)]
        numbers = numbers[steps[numbers] >= 0]
        newest = _Found(numbers, steps[numbers], steps[numbers], partial(_column_of, stored, numbers))
        if merged and (first, last) != (None, None):
            newest = self._with_merged(newest, wanted, (first, last))
        return newest.arranged(self.parts.taps, wanted, stat, sort, limit)

    def _with_merged(self, exact: _Found, wanted: TapList, span: Span) -> _Found:
        """Add the taps that only merged rows have in these steps."""
        lanes = wanted.numbers[~np.isin(wanted.numbers, exact.numbers)]
        parts = self.parts.stats.merged(*span) if len(lanes) and not self._has_past(span) else ()
        if not len(parts):
            return exact
        begin, end, means = _newest_merged(parts, *span, lanes)
        merged = np.flatnonzero(end >= 0)
        numbers = np.concatenate([exact.numbers, lanes[merged]])
        order = np.argsort(numbers)

        def read(name: str, places: Places) -> Floats:
            values = exact.read(name, np.arange(len(exact.numbers)))
            return np.concatenate([values, means[STAT_NAMES.index(name), merged]])[order][places]

        begin, end = (np.concatenate(ends)[order] for ends in ((exact.begin, begin[merged]), (exact.end, end[merged])))
        return _Found(numbers[order], begin, end, read)

    def captured_rows(self, first: int | None = None, last: int | None = None) -> tuple[Steps, Steps]:
        """Return the steps in which tensors were captured, oldest first: the first and the last step of each row.

        They are the same for a step that is still exact.
        """
        begin, end = self.parts.stats.rows_between(first, last)
        older = self._older((first, last), self.exact_since, [(begin, end)])
        steps = None if older is None else older.past.captured(older.span)
        if older is None or steps is None:
            return begin, end
        kept = begin > older.last
        return np.concatenate([steps, begin[kept]]), np.concatenate([steps, end[kept]])

    # Reads a store's state, from any thread. `first` and `last` are inclusive steps; None means no bound

    def series(
        self, tap: TapName, stat: str, first: int | None = None, last: int | None = None, points: int = 1000
    ) -> Series:
        """Return one stat of one tap in at most `points` points."""
        checks.require("stat", stat, STAT_NAMES)
        number = self.find_tap(tap)[0]
        return self._series(stat, number, self.source_of_taps(stat, np.array([number])), (first, last), points)

    def norm(
        self, numbers: NDArray[np.int64], first: int | None = None, last: int | None = None, points: int = 1000
    ) -> Series:
        """Return the norm of all values of some taps together, of those that each step captured."""
        checks.require_at_least("points", points, 1)
        parts = (
            self.parts.stats.gather(STAT_NAMES.index("norm"), lanes_of(numbers), first, last) if len(numbers) else []
        )
        return _series_of("norm", None, [norm_of(part) for part in parts], points)

    def rows(self, numbers: NDArray[np.int64], stat: str, first: int | None = None, last: int | None = None) -> Rows:
        """Return one stat of some taps [row, tap] without down-sampling; `present` is 0 for uncaptured taps."""
        checks.require("stat", stat, STAT_NAMES)
        parts = self._gather(self.source_of_taps(stat, numbers), (first, last)) if len(numbers) else []
        if not parts:
            return Rows.empty(len(numbers))
        return Rows.stack(parts)

    def peaks(self, numbers: NDArray[np.int64], stat: str, width: int, first: int, last: int) -> Peaks:
        """Return the largest value of one stat of taps in columns of `width` steps. Unlike `rows`, it copies little."""
        checks.require("stat", stat, STAT_NAMES)
        bad = self.parts.ledger.taps()  # most runs have no non-finite value, so there is nothing to read about them
        suspects = np.flatnonzero(np.isin(numbers, bad.numbers[bad.last_step >= first]))
        peaks = Peaks.make((first, last), width, numbers.astype(np.intp), lanes_of(numbers), suspects)
        return self.parts.stats.peaks(STAT_NAMES.index(stat), peaks)

    def scalars(self, name: str, first: int | None = None, last: int | None = None, points: int = 1000) -> Series:
        """Return one scalar in at most `points` points."""
        return self._series(name, None, self.source_of_scalar(name), (first, last), points)

    def first_scalar(self, name: str) -> tuple[int, float] | None:
        """Return the first step in which a scalar was logged, and its value, exactly; None if memory never had it."""
        return None if self.parts.whole_since else self.parts.log_of(name).first(name)

    def scalar_names(self) -> list[str]:
        """Return the names of logged scalars, and of hookcore's own, which start with "hookcore/"."""
        return [*self.parts.scalars.lanes.names(), *self.parts.system.lanes.names()]

    def source_of_scalar(self, name: str) -> Source:
        """Return where a scalar is."""
        log = self.parts.log_of(name)
        lane = log.lanes.get(name)
        if lane is None:
            raise ArgumentError(checks.unknown("scalar", name, self.scalar_names()))
        return Source(log.ladder, _VALUE, slice(lane, lane + 1), "mean", (name,))

    def source_of_taps(self, stat: str, numbers: NDArray[np.int64]) -> Source:
        """Return where a stat of taps is."""
        return Source(self.parts.stats, STAT_NAMES.index(stat), lanes_of(numbers), stat, tuple(numbers.tolist()))

    def _series(self, name: str, tap: int | None, source: Source, span: Span, points: int) -> Series:
        checks.require_at_least("points", points, 1)
        return _series_of(name, tap, self._gather(source, span, points), points)

    def heatmap(
        self,
        taps: TapList | str,
        stat: str,
        first: int | None = None,
        last: int | None = None,
        columns: int = 500,
        rows: int | None = None,
    ) -> Heatmap:
        """Return the worst value of taps, or of those of a kind, over time, in at most `columns` by `rows` cells.

        Very many taps get fewer columns, so that the memory is bounded.
        """
        checks.require("stat", stat, STAT_NAMES)
        checks.require_at_least("columns", columns, 1)
        checks.require_at_least("rows", 1 if rows is None else rows, 1)
        wanted = taps if isinstance(taps, TapList) else self.taps(None, taps)
        if not len(wanted.taps):
            return _empty_heatmap(stat)
        columns = max(1, min(columns, MAX_CELLS // len(wanted.taps)))
        span, streaks = (first, last), self._streaks_of(wanted.numbers)
        view = self._view(self.source_of_taps(stat, wanted.numbers), span)
        over = columns_over(view.kept, *span, columns, view.past)
        if over is None:
            return _empty_heatmap(stat)
        cells, starts = self._cells(stat, wanted, over, view, streaks).group(rows or len(wanted.taps))
        infinite = cells.nonfinite > 0
        if infinite.any():
            view = self._view(self.source_of_taps("nan", wanted.numbers), span)
            infinite &= ~(self._cells("nan", wanted, over, view, streaks).group(len(starts))[0].high > 0)
        groups = np.diff(np.append(starts, len(wanted.taps)))
        shown = tuple(wanted.taps[start] for start in starts)
        return Heatmap(
            stat,
            wanted.numbers[starts],
            shown,
            groups,
            *over.captured(self._spans_of(view)),
            cells.worst().T,
            cells.nonfinite.T,
            cells.valued().T,
            infinite.T,
        )

    def _spans_of(self, view: View) -> list[tuple[Steps, Steps]]:
        """Return the first and the last steps of what a heatmap shows, oldest first."""
        past, spans = self.parts.past, [(part.first, part.last) for part in view.kept]
        steps = None if past is None or view.past is None else past.captured(view.past)
        return spans if steps is None else [(steps, steps), *spans]

    def _streaks_of(self, numbers: NDArray[np.int64]) -> Streaks:
        """Return the first and the newest streak of non-finite steps of taps. No others are known exactly."""
        bad = self.parts.ledger.taps()
        place = np.searchsorted(bad.numbers, numbers)
        place[place == len(bad.numbers)] = 0
        first, last = np.zeros((2, len(numbers)), np.int64), np.full((2, len(numbers)), -1, np.int64)
        ever = np.flatnonzero(bad.numbers[place] == numbers) if len(bad.numbers) else np.empty(0, np.intp)
        at = place[ever]
        first[0, ever], last[0, ever] = bad.first_step[at], bad.first_until[at]
        several = bad.streaks[at] > 1
        first[1, ever[several]], last[1, ever[several]] = bad.since[at[several]], bad.last_step[at[several]]
        return Streaks(first, last)

    def histograms(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 200, bins: int = 80
    ) -> Histograms:
        """Return the distribution of a tap over time, in at most `columns` by `bins`; counts are exact sums."""
        checks.require_at_least("columns", columns, 1)
        checks.require_at_least("bins", bins, MIN_BINS)
        number = self.find_tap(tap)[0]
        entries = self._entries(number, (first, last), columns)
        return histograms_of(entries, number, columns, bins, lambda begin, end: self._bounds_of(number, begin, end))

    def sample(self, first: int | None = None, last: int | None = None, but: Sample | None = None) -> Sample:
        """Return the sketches of all taps in some steps, except for those of another sample of this run.

        Sums of older steps are in it if they overlap the steps.
        """
        if but is None or but.first is None or but.last is None:
            return Sample(tuple(self._all_entries((first, last))))
        before = first, min(but.first - 1, but.first - 1 if last is None else last)
        after = max(but.last + 1, first or 0), last
        entries = self._all_entries(before) if before[1] >= (first or 0) else []
        entries += self._all_entries(after) if last is None or last >= after[0] else []
        return Sample(tuple(entry for entry in entries if entry.last < but.first or entry.first > but.last))

    def scalar_rows(self, name: str) -> Rows:
        """Return the rows of one scalar over the whole run."""
        return Rows.join(self._gather(self.source_of_scalar(name), (None, None)))

    def channels(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 240, rows: int = 512
    ) -> Channels:
        """Return the numbers of a probe in their order over time; in a cell, the largest value wins, or NaN."""
        checks.require_at_least("columns", columns, 1)
        checks.require_at_least("rows", rows, 1)
        return self.parts.channels.read(self.find_tap(tap)[1], first, last, columns, rows)

    def choices(self, tap: Tap) -> tuple[Steps, Floats]:
        """Return how many tokens chose each expert of a router: the first step of each column, [expert, column]."""
        return self.parts.channels.counts(tap)

    def channel_taps(self, match: str | None = None) -> TapList:
        """Return the taps whose numbers are kept in their order, of modules that match a pattern."""
        kept = set(self.parts.channels.taps())
        probes = self.taps(match, PROBE)
        return probes.at([place for place, tap in enumerate(probes.taps) if tap in kept])

    def quantiles(
        self, tap: TapName, qs: ArrayLike, first: int | None = None, last: int | None = None, points: int = 1000
    ) -> Quantiles:
        """Return quantiles of a tap over time in at most `points` points: within 6 %, or NaN if unknown."""
        checks.require_at_least("points", points, 1)
        number = self.find_tap(tap)[0]
        entries = self._entries(number, (first, last), points)
        return quantiles_of(entries, number, qs, points, lambda begin, end: self._bounds_of(number, begin, end))

    def _bounds_of(self, number: int, first: Steps, last: Steps) -> list[tuple[float, float, float]]:
        """Return a tap's extremes in spans of steps, and the magnitude where its sketches end, unscaled."""
        numbers, span = np.array([number], np.int64), (int(first[0]), int(last[-1]))
        least, most = (self.rows(numbers, stat, *span) for stat in ("min", "max"))
        is_scaled = self.parts.taps[number].kind in GRADIENT_KINDS and GRAD_SCALE in self.scalar_names()
        scale = Rows.join(self._gather(self.source_of_scalar(GRAD_SCALE), span)) if is_scaled else Rows.empty(1)
        bounds = []
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            divisor = np.fmax.reduce(scale.high[_within(scale, begin, end), 0], initial=1.0)
            inside = _within(least, begin, end)
            if ((least.first < begin) | (least.last > end))[inside].any():
                inside[:] = False  # merged rows reach further, so these are not the extremes of this span
            minimum = np.fmin.reduce(least.low[inside, 0], initial=np.nan)
            maximum = np.fmax.reduce(most.high[inside, 0], initial=np.nan)
            bounds.append((float(minimum), float(maximum), 2.0**MAX_EXPONENT / float(divisor)))
        return bounds

    def nonfinite_taps(self) -> NonfiniteTaps:
        """Return the exact record of every tap that was ever non-finite."""
        return self.parts.ledger.taps()

    def masks(self) -> dict[int, int]:
        """Return the taps whose infinities do no harm, and the first step of each."""
        return dict(self.parts.incidents.masks.since)

    def nonfinite_since(self, name: str) -> int | None:
        """Return the exact step since which a scalar is NaN or infinite; None if its newest value is finite."""
        lane, bad = self.parts.scalars.lanes.get(name), self.parts.scalar_ledger.taps()
        at = np.flatnonzero((bad.numbers == lane) & ~bad.is_over)
        return int(bad.since[at[0]]) if len(at) else None

    def incidents(self) -> list[Incident]:
        """Return the first and the newest incidents, oldest first. The usage counts the others."""
        return self._named(self.parts.incidents.all())

    def incident_heads(self) -> list[Incident]:
        """Return the same incidents without their chains and evidence, which is faster."""
        return self._named(self.parts.incidents.heads())

    def _named(self, incidents: list[Incident]) -> list[Incident]:
        root = self.root if incidents else ROOT
        return incidents if root == ROOT else [each.calling(root) for each in incidents]

    @property
    def dropped_alerts(self) -> int:
        """The number of dropped incidents that were warnings or errors."""
        return self.parts.incidents.dropped_alerts

    @property
    def incidents_version(self) -> int:
        """A number that changes with every change of an incident."""
        return self.parts.incidents.version

    def captured(self, first: int | None = None) -> int:
        """Return how many steps were captured, of the whole run or from `first` on (of the newest 1,024)."""
        return self.parts.ledger.captured(first)

    def captured_step(self, back: int) -> int | None:
        """Return the captured step `back` steps before the newest one, or the oldest of the newest 1,024."""
        return self.parts.ledger.captured_step(back)


# Rows of several stores, such as those of the ranks of a training: their pasts are asked for them at once.


@dataclass(frozen=True, slots=True, eq=False)
class RowsOf:
    """A query to one store: one stat of some taps, or a scalar by its name, in a span of steps."""

    store: Store
    what: NDArray[np.int64] | str
    stat: str = ""
    span: Span = (None, None)

    @property
    def lanes(self) -> int:
        """The number of taps, or 1 for a scalar."""
        return 1 if isinstance(self.what, str) else len(self.what)

    @property
    def source(self) -> Source:
        """Where it is in memory."""
        if isinstance(self.what, str):
            return self.store.source_of_scalar(self.what)
        return self.store.source_of_taps(self.stat, self.what)


@dataclass(frozen=True, slots=True)
class RankStore:
    """The store of a rank, and by how much its steps are shifted in the run of all ranks."""

    rank: int
    store: Store
    shift: int = 0


def rows_of_all(queries: Sequence[RowsOf], most: int = MAX_ROWS) -> list[Rows]:
    """Return the rows of each store without down-sampling, as `Store.rows` and `Store.scalar_rows` do.

    Of steps that only its past has, about `most` rows are returned if there are more.
    """
    rows = [Rows.empty(question.lanes) for question in queries]
    filled = [place for place, question in enumerate(queries) if question.lanes]
    questions = [(queries[place].store, queries[place].source, queries[place].span) for place in filled]
    for place, parts in zip(filled, gather_together(questions, most), strict=True):
        if parts:
            rows[place] = Rows.join(parts) if isinstance(queries[place].what, str) else Rows.stack(parts)
    return rows
