"""Steps of a distributed training, put together from the frames of its ranks as they arrive."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import ACTIVATION_KINDS, PARAMETER_KINDS, STAT_COLUMN, UNKNOWN_OWNER, Frame, Kind, Tap
from hookcore.records.vocabulary import THROUGHPUT
from hookcore.store.rankstep import Difference, Repeated, Rows, StepOfRanks

from .ranks import LATE_S, Absences, Backlog, BadRanks, Pending, RankProgress, Shares, bytes_of, events_of, without_rows

LOCAL_KINDS: Final[frozenset[Kind]] = frozenset(("output_grad", "input_grad"))


class TapNumbers:
    """The numbers of taps in the sum of all ranks, and which of them have no sum. Not thread-safe."""

    def __init__(self) -> None:
        self.left_out = np.zeros(0, bool)  # taps of modules that are something else in each rank
        self.of_batches = np.zeros(0, bool)  # taps of activations and their gradients
        self._numbers: dict[Tap, int] = {}
        self._raws: dict[int, Tap] = {}  # by the number of a gradient before clipping: the tap of it as it is used
        self._pairs = np.zeros((0, 2), np.int64)  # the numbers of both
        self._new: list[Tap] = []
        self._parted: frozenset[str] = frozenset()  # modules that are something else in each rank

    def part(self, paths: frozenset[str]) -> None:
        """Leave out the outputs and inputs of modules that consist of different parts in different ranks."""
        if paths != self._parted:
            self._parted = paths
            self.left_out = np.array([self.leaves_out(tap) for tap in self._numbers], bool)

    def leaves_out(self, tap: Tap) -> bool:
        """Return whether a tap is something else in each rank, so that there is no sum."""
        return tap.module in self._parted and tap.kind not in PARAMETER_KINDS

    def add(self, taps: Sequence[Tap]) -> list[int]:
        """Return the numbers of a rank's taps, which are new if no other rank has them."""
        for tap in taps:
            if tap not in self._numbers:
                self._numbers[tap] = len(self._numbers)
                self._new.append(tap)
        fresh = [*self._numbers][len(self.left_out) :]
        if fresh:
            self._pair(fresh)
        self.left_out = np.append(self.left_out, [self.leaves_out(tap) for tap in fresh]).astype(bool)
        batches = [tap.kind in ACTIVATION_KINDS for tap in fresh]
        self.of_batches = np.append(self.of_batches, batches).astype(bool)
        return [self._numbers[tap] for tap in taps]

    def find_parts(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which rows are a part of a gradient before clipping: ranks don't notice in one step that they clip."""
        parts = np.zeros(len(rows.lanes), bool)
        if len(parts) and len(self._pairs):
            at = np.minimum(rows.lanes.searchsorted(self._pairs), len(parts) - 1)
            one, whole = rows.stats[at, STAT_COLUMN["count"]].T
            parts[at[(rows.lanes[at] == self._pairs).all(axis=1) & (one != whole), 0]] = True
        return parts

    def _pair(self, fresh: Sequence[Tap]) -> None:
        self._raws |= {self._numbers[tap]: replace(tap, kind="param_grad") for tap in fresh if tap.kind == "raw_grad"}
        found = [(raw, self._numbers[tap]) for raw, tap in self._raws.items() if tap in self._numbers]
        self._pairs = np.array(found, np.int64).reshape(-1, 2)

    def take_new(self) -> tuple[Tap, ...]:
        """Return the taps that were numbered since the last call."""
        taps, self._new = tuple(self._new), []
        return taps

    @property
    def local_gradients(self) -> dict[Kind, NDArray[np.int64]]:
        """The numbers of gradients of activations, by kind."""
        kinds: dict[Kind, list[int]] = {}
        for tap, number in list(self._numbers.items()):
            if tap.kind in LOCAL_KINDS:
                kinds.setdefault(tap.kind, []).append(number)
        return {kind: np.array(numbers, np.int64) for kind, numbers in kinds.items()}


class Logged:
    """The mean of the ranks that logged a value in a step, except for the throughput.

    That is the sum over the ranks that are known to have batches of their own. Ranks sample it in different steps, so a
    step has the sum of the newest value of each rank, and none before all have one.
    """

    def __init__(self) -> None:
        self.summed = 0  # how many ranks the newest throughput is the sum of; 0 for a mean
        self._rates: dict[str, dict[int, float]] = {}  # the newest of each rank

    def begin(self) -> None:
        """Forget the rates of the ranks, since the training was restarted."""
        self._rates = {}

    def merge(self, scalars: Mapping[int, Mapping[str, float]], ranks: Collection[int] | None) -> dict[str, float]:
        """Return the values of a step. `ranks` have batches of their own; None if that isn't known."""
        merged = _mean_of(scalars[rank] for rank in sorted(scalars))
        for name in THROUGHPUT:
            if name in merged:
                newest = self._rates.setdefault(name, {})
                newest |= {rank: logged[name] for rank, logged in scalars.items() if name in logged}
                self.summed = 0 if ranks is None else len(ranks)
                if ranks and all(rank in newest for rank in ranks):
                    merged[name] = sum(newest[rank] for rank in sorted(ranks))
                elif ranks is not None:
                    del merged[name]
        return merged


def _mean_of(scalars: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of what several ranks logged under one name."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for scalar in scalars:
        for name, value in scalar.items():
            values[name].append(value)
    # Equal values stay as they are: their sum may be rounded.
    return {name: all_[0] if len(set(all_)) == 1 else sum(all_) / len(all_) for name, all_ in values.items()}


GRACE_S: Final = 10.0  # to wait for ranks that have sent nothing yet
NEVER: Final = 2**63  # the step from which the sum has a rank whose frames don't come
_BAD: Final = [STAT_COLUMN[name] for name in ("nan", "inf")]


class Assembly:
    """Adds up the steps of one training in order. Not thread-safe.

    A step is complete when every rank that is expected has sent it, or a later one. Whoever is later than `LATE_S` is
    left out of the sum, and counted. Ranks choose captured steps by their own costs, so some rank may have skipped a
    step that others captured. What would be a part of all values only is then left out, unless it isn't finite.
    """

    def __init__(
        self,
        emit: Callable[[Frame, Sequence[Difference] | None], None],  # None: nothing was compared
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ranks: dict[int, RankProgress] = {}  # replaced, never changed: pages read it without a lock
        self.world = 0
        self.newest = -1  # the step that was added up last
        self.steps = 0
        self.absences = Absences(lambda: self.ranks)
        self.partial = 0  # steps that some ranks captured and others didn't
        self.shares = Shares()
        self._taps = TapNumbers()
        self.logged = Logged()
        self.compared = 0  # rows that were compared with those of another rank
        self.apart = 0  # steps in which ranks differed in what they should have in common
        self._apart_at = -1  # the newest of them
        self._emit, self.max_bytes, self._clock = emit, max_bytes, clock
        self._repeated = Repeated()
        self.backlog = Backlog()
        self._last: StepOfRanks | None = None  # that of the newest step: more parts of it may come
        self._patient_until: float | None = None  # None: no rank has sent anything
        self._bad = BadRanks()
        self._lacking: frozenset[int] = frozenset()  # taps that the newest step has only a part of
        self._last_scalars: dict[int, dict[str, float]] = {}

    @property
    def local_kinds(self) -> frozenset[Kind]:
        """The kinds of gradients of activations of which several ranks have parts of their own."""
        local = self._taps.local_gradients
        return frozenset(kind for kind, lanes in local.items() if self.shares.are_summed(lanes))

    @property
    def is_patient(self) -> bool:
        """Whether it still waits for ranks that have sent nothing, or that may return."""
        return self._patient_until is None or self._clock() <= self._patient_until

    def be_patient(self) -> None:
        """Wait for ranks that have sent nothing yet, for a while."""
        self._patient_until = self._clock() + GRACE_S

    def begin_round(self) -> None:
        """Expect other ranks, since the training was restarted."""
        self.flush()
        self.ranks = {}
        self.world, self._patient_until = 0, None
        self.shares.forget_ranks()
        self.logged.begin()

    def part(self, paths: frozenset[str]) -> None:
        """Leave out the outputs and inputs of modules that consist of different parts in different ranks."""
        self._taps.part(paths)

    def leaves_out(self, tap: Tap) -> bool:
        """Return whether a tap is something else in each rank, so that there is no sum."""
        return self._taps.leaves_out(tap)

    def bad_ranks(self, lane: int, step: int) -> frozenset[int]:
        """Return the ranks in which a tap's values first weren't finite, if that was in this step."""
        return self._bad.at(lane, step)

    def join(self, rank: int, world: int, taps: Callable[[], Sequence[Tap]], begins: int = 0) -> None:
        """Expect frames of a rank that may be back, with taps of its own. The sum lacks its steps before `begins`."""
        self.world = max(self.world, world)
        progress = self.ranks.get(rank) or RankProgress(rank)
        self.ranks = {**self.ranks, rank: progress}
        progress.taps, progress.lanes, progress.open, progress.newest = taps, np.empty(0, np.int64), True, self.newest
        progress.begins, progress.trained, progress.is_gone = begins, 0, False

    def leave(self, rank: int, trained: int = 0, is_gone: bool = False) -> None:
        """Expect no more frames of a rank. See `RankProgress` for what is known of its end."""
        progress = self.ranks.get(rank)
        if progress is not None and progress.open:
            progress.open, progress.trained, progress.is_gone = False, trained, is_gone
            self.advance()

    def do_without(self, rank: int) -> bool:
        """Don't wait for a live rank whose frames don't come, but count the steps without it. Return if that is new."""
        progress = self.ranks[rank]
        if progress.begins == NEVER:
            return False
        progress.open, progress.begins = False, NEVER
        self.advance()
        return True

    def return_(self, rank: int, step: int) -> None:
        """Expect frames again, from a step on, of a rank that seemed to be lost, or whose frames didn't come."""
        progress = self.ranks[rank]
        progress.open, progress.trained, progress.is_gone = True, 0, False
        if progress.begins == NEVER:
            progress.begins = step

    def take(self, rank: int, frame: Frame) -> None:
        """Add a frame of a rank, with its own numbers of taps."""
        progress = self.ranks[rank]
        progress.newest = max(progress.newest, frame.step)
        if frame.step < self.newest:
            self.absences.note_late(rank, frame.step, self.newest)
        elif frame.step == self.newest and self._last is not None:
            self._take_more(rank, frame, self._last)
        else:
            self._put(rank, frame)
        self.advance()

    def advance(self) -> None:
        """Add up all steps that are complete, or have waited for too long."""
        while (first := self.backlog.first) is not None and self._is_due(*first):
            self._finish(*self.backlog.take_first())

    def flush(self) -> None:
        """Add up everything that waits."""
        while self.backlog.first is not None:
            self._finish(*self.backlog.take_first())

    def _is_due(self, step: int, pending: Pending) -> bool:
        is_seen = len(self.ranks) >= self.world or not self.is_patient
        if is_seen and all(rank.newest >= step for rank in self.ranks.values() if rank.open):
            return True
        return self._clock() - pending.since > LATE_S or self.backlog.nbytes > self.max_bytes

    def _put(self, rank: int, frame: Frame) -> None:
        if self._patient_until is None:
            self.be_patient()
        pending = self.backlog.at(frame.step)
        if pending is None:
            self._repeated.known |= self._has_rows_of_all()
            pending = Pending(StepOfRanks(self._repeated), self._clock())
            self.backlog.add(frame.step, pending)
        if len(frame.taps):
            pending.measured.add(rank)
            self.ranks[rank].measures = True
        pending.add(rank, frame)
        # Taps are numbered when a step is finished, rank by rank, so that their order doesn't depend on who was first.
        if pending.waiting or self._has_new_taps(rank, frame):
            pending.waiting.append((rank, frame))
            pending.nbytes += bytes_of(frame)
        else:
            self._add(pending.rows, rank, frame)
        self.backlog.measure(pending)

    def _has_new_taps(self, rank: int, frame: Frame) -> bool:
        progress = self.ranks[rank]
        return bool(frame.new_taps) or (len(frame.taps) > 0 and int(frame.taps.max()) >= len(progress.lanes))

    def number_taps(self) -> tuple[Tap, ...]:
        """Number the taps of all ranks before their first frames, and return those that are new."""
        for rank in sorted(self.ranks):
            self._number_taps(self.ranks[rank])
        return self._taps.take_new()

    def _number_taps(self, progress: RankProgress) -> None:
        new = progress.taps()[len(progress.lanes) :]
        if new:
            progress.lanes = np.append(progress.lanes, self._taps.add(new)).astype(np.int64)

    def _add(self, rows: StepOfRanks, rank: int, frame: Frame) -> Rows:
        progress = self.ranks[rank]
        if self._has_new_taps(rank, frame):
            self._number_taps(progress)
        taps, stats, block, owners = frame.taps.astype(np.int64), frame.stats, frame.sketches, frame.owners
        if owners is None:
            owners = np.full(len(taps), rank, np.int32)
        progress.unknown_rows = int((owners == UNKNOWN_OWNER).sum())
        if len(taps) and int(taps.max()) >= len(progress.lanes):  # the rank's own run has no room for them either
            fit = taps < len(progress.lanes)
            stats = np.where(fit[:, None], stats, np.nan)
            taps = np.where(fit, taps, 0) if len(progress.lanes) else taps[:0]
            if not len(taps):
                stats, block, owners = stats[:0], without_rows(frame).sketches, owners[:0]
        lanes = progress.lanes[taps]
        if self._taps.left_out[lanes].any():
            stats = np.where(self._taps.left_out[lanes][:, None], np.nan, stats)
        added = rows.add(rank, lanes, stats, block, owners)
        self.shares.learn(rank, lanes, owners)
        with np.errstate(invalid="ignore"):
            bad = lanes[(stats[:, 1] > 0) | (stats[:, 2] > 0)]
        for lane in bad.tolist():
            self._bad.add(lane, rank, frame.step, self.newest)
        return added

    def _finish(self, step: int, pending: Pending) -> None:
        self.absences.note_step(step, pending.frames, self.world)
        for rank, frame in sorted(pending.waiting, key=lambda part: part[0]):
            self._add(pending.rows, rank, frame)
        rows = pending.rows
        sum_ = self._without_parts(rows.finish(), pending.skipping(step, self.ranks.values()))
        self.newest, self._last, self._last_scalars = step, rows, pending.scalars
        self.steps += 1
        self.compared += rows.compared
        self._repeated.known |= len(pending.frames) >= self.world
        frames = [pending.frames[rank] for rank in sorted(pending.frames)]
        lead = frames[0]
        elapsed = [frame.elapsed_s for frame in frames if frame.elapsed_s == frame.elapsed_s]
        scales = {frame.grad_scale for frame in frames}
        merged = Frame(
            step,
            max(frame.time_s for frame in frames),
            sum_.lanes.astype(np.uint32),
            sum_.stats,
            sum_.block,
            self._taps.take_new(),
            tuple(events_of(pending.events, self.world)),
            self.logged.merge(pending.scalars, self._ranks_with_batches(step)),
            max(frame.micro_batches for frame in frames),
            lead.grad_scale if len(scales) == 1 else None,
            pending.all_labels(),
            max(elapsed, default=float("nan")),
            next((frame.flow for frame in frames if frame.flow is not None), None),
        )
        self._emit(merged, self._differences_in(step, rows))

    def _differences_in(self, step: int, rows: StepOfRanks) -> Sequence[Difference] | None:
        differences = rows.differences() if rows.compared else None
        if differences and step > self._apart_at:
            self.apart, self._apart_at = self.apart + 1, step
        return differences

    def _take_more(self, rank: int, frame: Frame, rows: StepOfRanks) -> None:
        """Add another part of the newest step, such as a value that was logged after it."""
        self.absences.fill(rank)
        added = self._add(rows, rank, frame)
        if self._lacking:
            added = added.some(~np.isin(added.lanes, [*self._lacking]))
        events = tuple(events_of([(rank, event) for event in frame.events], self.world))
        self._last_scalars.setdefault(rank, {}).update(frame.scalars)
        merged = self.logged.merge(self._last_scalars, self._ranks_with_batches(frame.step))
        part = replace(
            frame,
            scalars={name: merged[name] for name in frame.scalars if name in merged},
            taps=added.lanes.astype(np.uint32),
            stats=added.stats,
            sketches=added.block,
            new_taps=self._taps.take_new(),
            events=events,
            owners=None,
        )
        self._emit(part, self._differences_in(frame.step, rows))

    def _ranks_with_batches(self, step: int) -> list[int] | None:
        """Return the ranks that have batches of their own, of those that train in a step; None if that isn't known.

        Stages of a pipeline see the same batch, so they count as one rank.
        """
        holders = self.shares.holders(self._taps.of_batches & ~self._taps.left_out)
        trains = (progress.rank for progress in self.ranks.values() if progress.open or progress.newest >= step)
        return None if holders is None else [rank for rank in trains if rank in holders]

    def _without_parts(self, rows: Rows, skipping: Sequence[int]) -> Rows:
        """Leave out taps of which some rank has skipped its part, so that parts never look like the whole."""
        unnoticed = self._taps.find_parts(rows)  # isn't counted: not all ranks have begun to measure it
        lacking = np.zeros(len(rows.lanes), bool)
        if skipping:
            lacking = self.shares.lacking(rows.lanes, skipping) & (rows.stats[:, _BAD].sum(axis=1) == 0)
            self.partial += bool(lacking.any())
        lacking |= unnoticed
        self._lacking = frozenset(rows.lanes[lacking].tolist())
        return rows.some(~lacking)

    def _has_rows_of_all(self) -> bool:
        """Return whether every rank has sent rows, if only too late for its step: of many, one step may not fit."""
        return len(self.ranks) >= self.world and all(len(rank.lanes) for rank in self.ranks.values())
