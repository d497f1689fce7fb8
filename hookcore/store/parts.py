"""The parts of a store: its limits, the state that the writer changes and queries read, and rows that come in."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.records import STATS, Coverage, Event, Frame, HookRecord, ModuleRecord, SketchBlock, Snapshot, Tap
from hookcore.records.flow import Flow
from hookcore.records.moments import MOMENT_TYPE, SAMPLES_TYPE
from hookcore.records.sketch import rows_of
from hookcore.records.vocabulary import SYSTEM
from hookcore.store.answers import PartUsage, StepRange, Usage
from hookcore.store.bounded import BoundedLog, BoundedMap, ChannelLog, Room, ScalarLog, bytes_of
from hookcore.store.incidents import Found, Incidents
from hookcore.store.ladder import Ladder
from hookcore.store.ledger import Ledger
from hookcore.store.past import Past
from hookcore.store.segments import STAT_SCHEMA, Floats, Steps
from hookcore.store.sketches import SketchLadder

MIN_BYTES: Final = 2**20
SHARES: Final = {  # of max_bytes
    "stats": 0.45,
    "sketches": 0.24,
    "snapshots": 0.09,
    "media": 0.03,
    "moments": 0.01,
    "samples": 0.01,
    "channels": 0.02,
    "scalars": 0.04,
    "system": 0.005,
    "events": 0.02,
    "ledger": 0.01,
    "scalar_ledger": 0.005,
    "incidents": 0.02,
}
# Taps, scalars, modules, coverage, hooks, and labels don't compete with values, because values without names are
# worthless. This limit is for senders of nonsense; a model of 100,000 modules stays far below it.
NAMES_BYTES: Final = 256 * 2**20
MAX_FLOWS: Final = 32  # the newest ones


class Parts:
    """The state of a store. `lock` is held for short copies only; see Ladder."""

    def __init__(self, max_bytes: int, names_bytes: int = NAMES_BYTES) -> None:
        if max_bytes < MIN_BYTES:
            raise ArgumentError(f"max_bytes={max_bytes} is too small for a store: give at least {MIN_BYTES} (1 MiB)")
        limits = {part: int(max_bytes * share) for part, share in SHARES.items()}
        self.names = Room(names_bytes)
        self.max_bytes = max_bytes
        self.lock = threading.Lock()
        self.stats = Ladder(STAT_SCHEMA, limits["stats"], self.lock)
        self.scalars = ScalarLog(limits["scalars"], self.names, self.lock)
        # A machine is sampled every two seconds: in the rows of all steps it would take most of their room.
        self.system = ScalarLog(limits["system"], self.names, self.lock)
        self.ledger = Ledger(limits["ledger"], self.lock)
        self.scalar_ledger = Ledger(limits["scalar_ledger"], self.lock)
        self.sketches = SketchLadder(limits["sketches"], self.lock)
        self.snapshots: BoundedLog[Snapshot] = BoundedLog(limits["snapshots"], self.lock)
        self.media: BoundedLog[Snapshot] = BoundedLog(limits["media"], self.lock)
        self.moments: BoundedLog[Snapshot] = BoundedLog(limits["moments"], self.lock)
        self.samples: BoundedLog[Snapshot] = BoundedLog(limits["samples"], self.lock)
        self.channels = ChannelLog(limits["channels"], self.lock)
        self.events: BoundedLog[Event] = BoundedLog(limits["events"], self.lock)
        self.modules: BoundedMap[ModuleRecord] = BoundedMap(self.names, self.lock)
        self.coverage: BoundedMap[Coverage] = BoundedMap(self.names, self.lock)
        self.labels: BoundedMap[tuple[str, str]] = BoundedMap(self.names, self.lock)
        self.taps: list[Tap] = []  # only ever appended to
        self.tap_numbers: dict[Tap, int] = {}
        self.taps_announced = 0  # taps without room keep their number
        self.steps = StepRange(None, None, 0)
        self.flows: tuple[Flow, ...] = ()  # oldest first
        self.incidents = Incidents(weakref.proxy(self), limits["incidents"])  # no circle: see Follower
        self.past: Past | None = None  # where the whole run is, if anywhere
        self.whole_since = 0  # the step since which memory has every step of the run
        self.dropped: Counter[str] = Counter()
        self.hooks: tuple[HookRecord, ...] = ()
        self._hook_bytes = 0

    def add_taps(self, taps: tuple[Tap, ...]) -> int:
        """Number new taps; return how many found no room."""
        refused = 0
        with self.lock:
            for tap in taps:
                nbytes = bytes_of(tap)
                full = self.taps_announced > len(self.taps) or len(self.taps) >= self.stats.max_lanes
                self.taps_announced += 1
                if full or not self.names.take(nbytes):
                    refused += 1  # numbers have no gaps, so all after the first refusal are refused
                    continue
                self.tap_numbers[tap] = len(self.taps)
                self.taps.append(tap)
        self.stats.grow(len(self.taps))
        self.dropped["taps_refused"] += refused
        return refused

    def first_step(self) -> int | None:
        """Return the first step, captured or not."""
        return self.steps.first

    def captured_around(self, step: int) -> tuple[int | None, int | None]:
        """Return the captured steps before and after a step, as far as they are known."""
        return self.ledger.captured_around(step)

    def lanes_of_scalars(self) -> dict[str, int]:
        """Return the lane of each scalar of the training by name."""
        return self.scalars.by_name()

    def stat_rows(self, lanes: Sequence[int], first: int, before: int) -> tuple[Steps, Floats]:
        """Return the unmerged stats of taps from a step on, and some before it."""
        return self.stats.exact(lanes, first, before)

    def scalar_rows(self, lanes: Sequence[int], first: int, before: int) -> tuple[Steps, Floats]:
        """Return the unmerged rows of the training's scalars from a step on, and some before it."""
        return self.scalars.ladder.exact(lanes, first, before)

    def put_hooks(self, hooks: Sequence[HookRecord]) -> None:
        """Replace the list of hooks, up to the limit."""
        kept: list[HookRecord] = []
        taken = 0
        with self.lock:
            self.names.take(-self._hook_bytes)
            for hook in hooks:
                nbytes = bytes_of(hook)
                if not self.names.take(nbytes):
                    self.dropped["hooks_refused"] += 1
                    continue
                taken += nbytes
                kept.append(hook)
            self.hooks, self._hook_bytes = tuple(kept), taken

    def put_flow(self, flow: Flow) -> None:
        """Keep which call fed which from a step on, up to the limit."""
        with self.lock:
            if self.flows and self.flows[-1].calls == flow.calls:  # a trainer says it again if it may have been lost
                return
            if not self.names.take(flow.nbytes):
                self.dropped["flows_refused"] += 1
                return
            gone, self.flows = self.flows[: 1 - MAX_FLOWS], (*self.flows[1 - MAX_FLOWS :], flow)
            self.names.take(-sum(each.nbytes for each in gone))
            self.dropped["flows"] += len(gone)

    def log_for(self, snapshot: Snapshot) -> BoundedLog[Snapshot]:
        """Return where a snapshot is kept, by its dtype."""
        if snapshot.dtype == MOMENT_TYPE:
            return self.moments
        if snapshot.dtype == SAMPLES_TYPE:
            return self.samples
        return self.media if snapshot.is_media else self.snapshots

    def log_of(self, name: str) -> ScalarLog:
        """Return where a scalar is, by its name."""
        return self.system if name.startswith(SYSTEM) else self.scalars

    def _ladders(self) -> dict[str, Ladder | SketchLadder]:
        """Return the parts whose values are merged to make room."""
        logs = {"scalars": self.scalars.ladder, "system": self.system.ladder}
        return {"stats": self.stats, "sketches": self.sketches, **logs}

    def shrink(self, max_bytes: int) -> None:
        """Reduce the memory of the values, at a coarser resolution. Events, snapshots, and names stay."""
        self.max_bytes = min(self.max_bytes, max_bytes)
        for part, ladder in self._ladders().items():
            ladder.shrink(max(int(max_bytes * SHARES[part]), ladder.least_bytes))

    def usage(self) -> Usage:
        """Return the size and limit of each part, and the counters of dropped and merged data."""
        catalogues = (self.modules, self.coverage, self.labels, self.scalars.lanes, self.system.lanes)
        ladders = self._ladders()
        sized: dict[str, Any] = {part: ladders.get(part, getattr(self, part)) for part in (*SHARES, "names")}
        parts = {part: PartUsage(each.nbytes, each.max_bytes) for part, each in sized.items()}
        dropped = Counter(self.dropped)
        dropped["scalars_refused"] = self.scalars.refused + self.system.refused
        dropped["sketches_refused"] = self.sketches.refused
        dropped["events_dropped"] = self.events.dropped + self.events.refused
        for part in ("snapshots", "media", "moments", "samples", "channels"):
            dropped[f"{part}_dropped"], dropped[f"{part}_refused"] = sized[part].dropped, sized[part].refused
        dropped["names_refused"] = sum(catalogue.refused for catalogue in catalogues)
        merged = {
            "stats": self.stats.merged_rows,
            "scalars": self.scalars.ladder.merged_rows,
            "system": self.system.ladder.merged_rows,
            "sketches": self.sketches.merged,
            "channels": self.channels.merged,
            "incidents": self.incidents.dropped,
            "evidence": self.incidents.without_evidence,
        }
        return Usage(self.max_bytes, sum(each.nbytes for each in parts.values()), parts, dict(dropped), merged)


# The rows of a frame that comes in: whether they fit together, and in which parts a store can take them.

Part = tuple[NDArray[np.uint32], Floats, SketchBlock]  # taps, and their stats and sketches


def require_shapes(frame: Frame) -> None:
    """Raise ArgumentError unless the arrays of a frame have a row for each of its taps."""
    rows = len(frame.taps)
    if frame.stats.shape != (rows, len(STATS)):
        raise ArgumentError(
            f"a frame of {rows} taps has stats of shape {frame.stats.shape}: they must be [{rows}, {len(STATS)}]"
        )
    if len(frame.sketches.start) != rows + 1:
        raise ArgumentError(
            f"a frame of {rows} taps has sketches with {len(frame.sketches.start)} starts: there must be {rows + 1}"
        )


def ascending_parts(frame: Frame) -> list[Part]:
    """Split the rows of a frame into parts with ascending, unique taps."""
    taps, stats, block = frame.taps, frame.stats, frame.sketches
    if len(taps) < 2 or bool((taps[1:] > taps[:-1]).all()):
        return [(taps, stats, block)]
    order = np.argsort(taps, kind="stable")
    ordered = taps[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] + 1))
    turn = np.arange(len(taps)) - np.repeat(starts, np.diff(np.append(starts, len(taps))))
    parts = [order[turn == number] for number in range(int(turn.max()) + 1)]
    return [(taps[rows], stats[rows], rows_of(block, rows)) for rows in parts]


class Follower(Protocol):
    """Runs the rules on a store."""

    def take_turns(self, rank: int) -> None:
        """Run them at other frames than most other ranks of the training."""

    def notices(self, frame: Frame) -> bool:
        """Read a new frame, before or after it is added. Return whether to act once it is."""

    def notices_alike(self, frames: Sequence[Frame], stats: Floats | None) -> int:
        """Read frames that are alike, up to one after which to act, and return how many then; 0 if there is none."""

    def act(self) -> None:
        """Do what the newest frame asks for."""

    def look(self) -> None:
        """Run them now."""

    def hear(self, event: Event) -> None:
        """Take what a rule of the user found, if the event says so."""

    def change(self, step: int, chosen: Mapping[str, Mapping[str, float] | bool]) -> None:
        """Use other thresholds after a step."""

    def hold(self, rule: str, found: Found | None) -> None:
        """Take a finding about the next frame that isn't from a rule of the store."""
