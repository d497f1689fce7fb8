"""What the ranks of a training have in common or not: their taps, modules, gaps, and the steps that wait for some."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import PARAMETER_KINDS, Coverage, Event, Frame, ModuleRecord, SketchBlock, Tap
from hookcore.records.vocabulary import DESYNC, counted
from hookcore.store.incidents import Found
from hookcore.store.rankstep import Difference, StepOfRanks

# The steps that wait for ranks, and the known state of each rank.

_FRAME_BYTES: Final = 2000  # the Python objects around the arrays
_ENTRY_BYTES: Final = 100  # a scalar, a label, or an event


@dataclass(slots=True)
class RankProgress:
    """The known state of one rank."""

    rank: int
    taps: Callable[[], Sequence[Tap]] = tuple
    newest: int = -1
    open: bool = True  # frames are expected
    measures: bool = False  # some of its frames had rows
    late: int = 0  # frames that came too late for the sum
    missed: int = 0  # steps that were added up without it
    begins: int = 0  # the sum lacks its steps before this one
    trained: int = 0  # of one that has left: how many steps it trained, as far as it has said so
    is_gone: bool = False  # it has left, but not because it was through
    unknown_rows: int = 0  # rows whose owner is unknown in its newest frame
    lanes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # of its taps

    @property
    def end(self) -> int:
        """The step after those that it has trained, captured or not, as far as is known."""
        return max(self.newest + 1, self.trained)

    @property
    def is_silent(self) -> bool:
        """Whether it has ended, says that it trained, and sent no values."""
        return not self.open and not self.measures and self.trained > 0

    def absence(self, step: int) -> tuple[str, str] | None:
        """Return the name and the words of an event if it has left and a step lacks it; None if nothing is missing."""
        if self.is_gone and step >= self.end:
            return "rank-gone", f"has crashed or is lost: the sums from step {step:,} on don't include it"
        if self.is_silent and step < self.trained:
            why = f"reported {self.trained:,} trained steps, but it sent no values: the sums don't include it"
            return "rank-silent", why
        return None


@dataclass(slots=True)
class Pending:
    """A step that waits for ranks."""

    rows: StepOfRanks
    since: float
    frames: dict[int, Frame] = field(default_factory=dict)  # the last one of each rank, for all that isn't a row
    scalars: dict[int, dict[str, float]] = field(default_factory=dict)
    labels: dict[int, dict[str, str]] = field(default_factory=dict)
    events: list[tuple[int, Event]] = field(default_factory=list)
    waiting: list[tuple[int, Frame]] = field(default_factory=list)  # with taps that no step has had yet
    measured: set[int] = field(default_factory=set)  # ranks that sent rows
    nbytes: int = 0  # of all but the rows
    size: int = 0  # with them, when the last frame came

    def add(self, rank: int, frame: Frame) -> None:
        """Keep everything in a frame except its rows."""
        self.scalars.setdefault(rank, {}).update(frame.scalars)
        self.labels.setdefault(rank, {}).update(frame.labels)
        self.events += [(rank, event) for event in frame.events]
        about, before = without_rows(frame), self.frames.get(rank)
        self.frames[rank] = about if before is None else _joined(before, about)
        entries = len(frame.scalars) + len(frame.labels) + len(frame.events)
        self.nbytes += _FRAME_BYTES + _ENTRY_BYTES * entries

    def skipping(self, step: int, ranks: Iterable[RankProgress]) -> list[int]:
        """Return the ranks that didn't capture this step, which others captured."""
        if not self.measured:
            return []
        trained = (progress for progress in ranks if progress.measures and step < progress.end)
        return [progress.rank for progress in trained if progress.rank not in self.measured]

    def all_labels(self) -> dict[str, str]:
        """Return the labels of all ranks. Those of the lowest rank count."""
        ranks = sorted(self.labels, reverse=True)
        return {name: text for rank in ranks for name, text in self.labels[rank].items()}


class Backlog:
    """The steps that wait for some rank, in their order."""

    def __init__(self) -> None:
        self._steps: dict[int, Pending] = {}
        self._order: list[int] = []  # a heap
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def first(self) -> tuple[int, Pending] | None:
        """The first step."""
        return (self._order[0], self._steps[self._order[0]]) if self._order else None

    def at(self, step: int) -> Pending | None:
        """Return what waits of a step."""
        return self._steps.get(step)

    def add(self, step: int, pending: Pending) -> None:
        """Add a step."""
        self._steps[step] = pending
        heapq.heappush(self._order, step)

    def measure(self, pending: Pending) -> None:
        """Note that a step takes more memory now."""
        size = pending.nbytes + pending.rows.nbytes
        self.nbytes, pending.size = self.nbytes + size - pending.size, size

    def take_first(self) -> tuple[int, Pending]:
        """Return the first step, which waits no longer."""
        step = heapq.heappop(self._order)
        pending = self._steps.pop(step)
        self.nbytes -= pending.size
        return step, pending


def bytes_of(frame: Frame) -> int:
    """Return about how much memory a frame takes."""
    return frame.stats.nbytes + frame.sketches.bins.nbytes * 3 + _FRAME_BYTES


def _joined(one: Frame, other: Frame) -> Frame:
    """Return what two parts of a rank's step say, without their rows."""
    return replace(
        other,
        time_s=max(one.time_s, other.time_s),
        micro_batches=max(one.micro_batches, other.micro_batches),
        grad_scale=one.grad_scale if other.grad_scale is None else other.grad_scale,
        elapsed_s=one.elapsed_s if other.elapsed_s != other.elapsed_s else other.elapsed_s,
        flow=one.flow or other.flow,
    )


def without_rows(frame: Frame) -> Frame:
    none = np.empty(0, np.uint32)
    return replace(frame, taps=none, stats=frame.stats[:0].copy(), sketches=SketchBlock.empty(0), owners=None)


# What ranks have in common or not, in words.

MAX_GROUPS: Final = 4  # of ranks with the same value, that a message names


def words_of(ranks: Iterable[int], world: int) -> str:
    """Name ranks: "rank 3", "ranks 0-3 and 7", "all 8 ranks"."""
    ordered = sorted(set(ranks))
    if len(ordered) == world:
        return f"all {world:,} ranks"
    parts: list[str] = []
    begin = 0
    for place, rank in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != rank + 1:
            few = [str(number) for number in ordered[begin : place + 1]]
            parts += few if len(few) < 3 else [f"{few[0]}-{few[-1]}"]
            begin = place + 1
    shown = parts if len(parts) <= 8 else [*parts[:7], f"{len(parts) - 7} more"]
    text = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else "no rank"
    return text if not ordered else f"rank{'' if len(ordered) == 1 else 's'} {text}"


def of_rank(event: Event, rank: int) -> Event:
    """Return an event of a rank that says so."""
    return replace(event, message=f"{event.message.rstrip('.')} (rank {rank})")


def events_of(events: Sequence[tuple[int, Event]], world: int) -> Iterable[Event]:
    """Return each event once, with the ranks that had it."""
    ranks: dict[Event, list[int]] = {}
    for rank, event in events:
        ranks.setdefault(replace(event, time_s=0.0), []).append(rank)
    times = {replace(event, time_s=0.0): event.time_s for _, event in reversed(events)}
    for event, its_ranks in ranks.items():
        message = f"{event.message.rstrip('.')} ({words_of(its_ranks, world)})"
        yield replace(event, time_s=times[event], message=message)


def desync_of(step: int, differences: Sequence[Difference], taps: Sequence[Tap]) -> Found:
    """Return what is found in a step in which ranks differ in what they should have in common."""
    first = differences[0]
    others = len(differences) - 1
    more = f"; {counted(others, 'other tensor')} {'differs' if others == 1 else 'differ'}, too" if others else ""
    values = [f"{value:.9g} in {words_of(ranks, -1)}" for ranks, value in first.groups]
    if len(values) > MAX_GROUPS:
        values[MAX_GROUPS:] = [f"other values in {len(values) - MAX_GROUPS:,} more"]
    what = f"{first.stat} of {taps[first.lane].label} is {', '.join(values)}{more}"
    if first.odd:
        who = words_of(first.odd, -1)
        verb = "differs" if len(first.odd) == 1 else "differ"
        message = f"{who} {verb} from the others, although all should have the same values: at step {step:,}, {what}"
    else:
        ranks = sorted(rank for ranks, _ in first.groups for rank in ranks)
        message = f"{words_of(ranks, -1)} should have the same values, but don't: at step {step:,}, {what}"
    members = tuple((difference.lane, step) for difference in differences)
    value, expected = first.groups[-1][1], first.groups[0][1]
    return Found(DESYNC, "error", first.lane, value, expected, step, None, message, members)


LATE_S: Final = 15.0  # to wait for the other ranks of a step
UNSEEN: Final = -1  # stands for unknown ranks


class Absences:
    """Counts missing data, and reports each kind once for each rank."""

    def __init__(self, ranks: Callable[[], Mapping[int, RankProgress]]) -> None:
        self._ranks = ranks
        self.incomplete = 0  # steps without some rank
        self._without: set[int] = set()  # the ranks that the newest step lacks
        self.trouble: list[tuple[str, str]] = []  # names and messages of events to add
        self._reported: set[tuple[str, int]] = set()

    def report(self, name: str, rank: int, message: str) -> None:
        """Report something about a rank once."""
        if (name, rank) not in self._reported:
            self._reported.add((name, rank))
            self.trouble.append((name, message))

    def note_late(self, rank: int, step: int, newest: int) -> None:
        """Count a frame of a step that was added up before it came."""
        self._ranks()[rank].late += 1
        self.report(
            "rank-late",
            rank,
            f"rank {rank} sent step {step:,} after step {newest:,} had been added up: the sum of all ranks doesn't "
            "include it. The rank's own run has it",
        )

    def note_away(self, rank: int, frames: int) -> None:
        """Count frames of a rank as too late, which aren't read because there are too many."""
        self._ranks()[rank].late += frames
        self.report(
            "rank-away",
            rank,
            f"rank {rank} was away for {frames:,} frames: the sum of all ranks doesn't include them. The rank's own "
            "run has them",
        )

    def note_step(self, step: int, sent: Collection[int], world: int) -> None:
        """Count a step that is added up now, with these ranks, if any is missing."""
        missing = [progress for progress in self._ranks().values() if progress.open and progress.newest < step]
        for progress in missing:
            self.report(
                "rank-missing",
                progress.rank,
                f"step {step:,} was added up without rank {progress.rank}: its data had not arrived within "
                f"{LATE_S:g} s, or before the memory for waiting steps filled up",
            )
        unseen = world - len(self._ranks())
        if unseen > 0:
            sums = f"the sums from step {step:,} on don't include them"
            self.report("ranks-unseen", UNSEEN, f"{unseen:,} of {world:,} ranks have sent nothing yet: {sums}")
        absent = {
            rank: absence for rank, progress in self._ranks().items() if (absence := progress.absence(step)) is not None
        }
        for rank, (name, why) in absent.items():
            self.report(name, rank, f"rank {rank} {why}")
        lacking = [
            progress for progress in self._ranks().values() if step < progress.begins and progress.rank not in sent
        ]
        self._without = (
            absent.keys() | {progress.rank for progress in (*missing, *lacking)} | {UNSEEN for _ in range(unseen)}
        )
        self.incomplete += bool(self._without)
        for rank in self._without - {UNSEEN}:
            self._ranks()[rank].missed += 1

    def fill(self, rank: int) -> None:
        """Note that the newest step has come of a rank after all."""
        if rank in self._without:
            self._without.remove(rank)
            self._ranks()[rank].missed -= 1
            self.incomplete -= not self._without


IN_PARTS: Final = (
    "its parts differ between ranks, so its inputs and outputs can't be added up; the ranks' own runs have them"
)


class Structures:
    """Compares what ranks say of their modules. A module is known by the paths of all modules inside it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}  # by path: a digest, and the rank that was first
        self._others: dict[int, dict[str, int]] = {}  # by rank: what differed from the first one
        self.parted: frozenset[str] = frozenset()  # paths of modules that have different parts in different ranks
        self._changed: frozenset[str] = frozenset()  # paths that have become such, or no longer are
        self._coverage: dict[str, Coverage] = {}

    def describe(self, rank: int, modules: Sequence[ModuleRecord]) -> None:
        """Take the newest description of a rank's modules."""
        other = {}
        for path, digest in _digests(modules).items():
            digest_of_first, first = self._known.setdefault(path, (digest, rank))
            if first == rank:
                self._known[path] = digest, rank
            elif digest_of_first != digest:
                other[path] = digest
        self._others[rank] = other
        parted = frozenset(
            path
            for differing in self._others.values()
            for path, digest in differing.items()
            if digest != self._known[path][0]
        )
        self._changed |= parted ^ self.parted
        self.parted = parted

    def cover(self, coverage: Sequence[Coverage]) -> list[Coverage]:
        """Return what the run of all ranks covers: these modules, and those whose parts differ since the last call."""
        changed, self._changed = self._changed, frozenset()
        self._coverage |= {covered.path: covered for covered in coverage}
        listed = dict.fromkeys([*(covered.path for covered in coverage), *(changed & self._coverage.keys())])
        return [self._covered(self._coverage[path]) for path in listed]

    def _covered(self, coverage: Coverage) -> Coverage:
        kinds = tuple(kind for kind in coverage.kinds if kind in PARAMETER_KINDS)
        if coverage.path not in self.parted or kinds == coverage.kinds:
            return coverage
        return replace(coverage, captured=False, kinds=kinds, reason=IN_PARTS)


def _digests(modules: Sequence[ModuleRecord]) -> dict[str, int]:
    """Return a number for each module that depends on the paths of all modules inside it."""
    listed = {module.path: module for module in modules}
    inside: defaultdict[str, list[str]] = defaultdict(list)
    for record in listed.values():
        if record.parent is not None and record.parent in listed:
            inside[record.parent].append(record.path)
    outside_in = [record.path for record in listed.values() if record.parent not in listed]
    for path in outside_in:
        outside_in += inside[path]
    digests: dict[str, int] = {}
    for path in reversed(outside_in):
        digests[path] = hash(tuple(sorted((child, digests[child]) for child in inside[path])))
    return digests


# In which ranks a tap has its own values, and in which they were not finite at first.

Lanes = NDArray[np.int64]
Flags = NDArray[np.bool_]
_GROW: Final = 64


class Shares:
    """Learned from the rows of all steps. Taps are numbered as in the run of all ranks."""

    def __init__(self) -> None:
        self._own: Flags = np.zeros((0, 0), bool)  # [tap, rank]
        self._unowned: Flags = np.zeros(0, bool)
        self._version = 0  # of what was learned
        self._holders: tuple[tuple[int, bytes], frozenset[int] | None] | None = None  # what was asked, and the answer

    def learn(self, rank: int, lanes: Lanes, owners: NDArray[np.int32]) -> None:
        if not len(lanes):
            return
        self._grow(int(lanes.max()) + 1, rank + 1)
        own, unowned = lanes[(owners == rank) | (owners < 0)], lanes[owners < 0]
        if not (self._own[own, rank].all() and self._unowned[unowned].all()):
            self._own[own, rank], self._unowned[unowned] = True, True
            self._version += 1

    def lacking(self, lanes: Lanes, ranks: Collection[int]) -> Flags:
        """Return which taps are incomplete without these ranks."""
        held = [rank for rank in ranks if rank < self._own.shape[1]]
        incomplete = np.zeros(len(lanes), bool)
        fit = lanes < len(self._own)
        incomplete[fit] = self._own[lanes[fit]][:, held].any(axis=1)
        return incomplete

    def are_summed(self, lanes: Lanes) -> bool:
        """Return whether several ranks are known to have values of their own of some of these taps."""
        inside = lanes[lanes < len(self._own)]
        return bool(((self._own[inside].sum(axis=1) > 1) & ~self._unowned[inside]).any())

    def holders(self, among: Flags) -> frozenset[int] | None:
        """Return the ranks with values of their own of that one of these taps of which most have some.

        None if there is no such tap, or if it isn't known of one who has what.
        """
        query = (self._version, among.tobytes())
        if self._holders is None or self._holders[0] != query:
            taps = np.flatnonzero(among[: len(self._own)])
            own = self._own[taps]
            is_known = bool(own.any()) and not self._unowned[taps].any()
            widest = np.flatnonzero(own[own.sum(axis=1).argmax()]) if is_known else ()
            self._holders = query, frozenset(map(int, widest)) if is_known else None
        return self._holders[1]

    def is_unknown(self, lane: int) -> bool:
        """Return whether it isn't known if ranks have parts or copies of a tap."""
        return lane < len(self._unowned) and bool(self._unowned[lane])

    def forget_ranks(self) -> None:
        """Forget who has what, since the training was restarted."""
        self._own[:] = False
        self._version += 1

    def _grow(self, lanes: int, ranks: int) -> None:
        height, width = self._own.shape
        if lanes <= height and ranks <= width:
            return
        lanes, ranks = max(height, lanes + _GROW), max(width, ranks)
        own, unowned = np.zeros((lanes, ranks), bool), np.zeros(lanes, bool)
        own[:height, :width], unowned[:height] = self._own, self._unowned
        self._own, self._unowned = own, unowned


MAX_BAD: Final = 4096  # taps of which the ranks with non-finite values are known


@dataclass(slots=True)
class _Stretch:
    """Steps in a row in which a tap had non-finite values."""

    first: int
    last: int
    ranks: set[int] = field(default_factory=set)  # of the first step


class BadRanks:
    """The newest stretch of steps with non-finite values of each tap."""

    def __init__(self) -> None:
        self._stretches: dict[int, _Stretch] = {}

    def add(self, lane: int, rank: int, step: int, newest: int) -> None:
        """Note that a tap's values aren't finite in a step of a rank. `newest` is the step that was added up last."""
        stretch = self._stretches.get(lane)
        if stretch is None or stretch.last < newest:
            self._stretches.pop(lane, None)
            if len(self._stretches) >= MAX_BAD:
                del self._stretches[next(iter(self._stretches))]
            stretch = self._stretches[lane] = _Stretch(step, step)
        stretch.last = max(stretch.last, step)
        if step == stretch.first:
            stretch.ranks.add(rank)

    def at(self, lane: int, step: int) -> frozenset[int]:
        """Return the ranks in which a tap's values first weren't finite, if that was in this step."""
        stretch = self._stretches.get(lane)
        return frozenset(stretch.ranks if stretch is not None and stretch.first == step else ())
