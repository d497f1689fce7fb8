"""Runs made of what other programs have written: logs of trainings, and files with weights.

They are sent as a training's own frames are, so pages, REST, and commands show them as any other run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from hookcore.config import Settings, flatten
from hookcore.delivery.delivery import deliver, new_run
from hookcore.delivery.sinks import size_of
from hookcore.errors import ArgumentError, ServerError
from hookcore.records import STAT_COLUMN, STATS, Coverage, Event, Frame, ModuleRecord, SketchBlock, Snapshot, Tap, Value
from hookcore.records.sketch import BINS, EDGES, bins_of
from hookcore.records.vocabulary import MAX_MEDIA_BYTES

WINDOW_BYTES: Final = 24 * 2**20  # of the steps that wait for records that come late
UNANSWERED_BYTES: Final = 4 * 2**20  # sent before the receiver has to catch up
PATIENCE_S: Final = 60.0  # for a receiver
MAX_STEP: Final = 2**53 - 1
MAX_SCALARS: Final = 10_000  # of a step
MAX_TAPS: Final = 200_000  # of a run
MAX_NAME: Final = 1000
ROWS_AT_ONCE: Final = 500
_LATEST_S: Final = 253_402_300_799.0  # the year 9999
_ENTRY: Final = 120  # bytes of a number that waits, with its name
DAMAGED: Final = "import-incomplete"  # the event that says what of a source is missing


class MeasuredRow(NamedTuple):
    """The columns of a frame for one tensor, and its sketch."""

    stats: NDArray[np.float64]
    bins: NDArray[np.uint16]
    counts: NDArray[np.uint32]


@dataclass(slots=True)
class _Step:
    """What has come for a step that waits."""

    time_s: float
    scalars: dict[str, float] = field(default_factory=dict)
    rows: dict[int, MeasuredRow] = field(default_factory=dict)
    nbytes: int = 0


class ImportedRun:
    """One run. The records of a step may come late, as long as the later ones that wait fit into the window."""

    def __init__(self, settings: Settings, started_s: float, facts: Mapping[str, Value], window: int = WINDOW_BYTES):
        if settings.server == "thread":
            raise ArgumentError("server='thread' ends with this command: use auto, none with a folder, or an address")
        if settings.server is None and settings.keep in (None, "auto"):
            raise ArgumentError("without a server, nothing would be left: give a folder with --keep")
        # What this machine is, and what it was called with, are no facts about the run.
        run = structs.replace(
            new_run(settings, {}), started_s=_second(started_s), script="", host="", facts=dict(facts)
        )
        known = {"config": dict(settings.config.values), "config_cut": settings.config.cut}
        self._delivery = deliver(settings, {}, run=structs.replace(run, **known))
        self.name, self.id = run.name, run.id
        self.found: Counter[str] = Counter()  # what was imported, by its word
        self.missing: Counter[str] = Counter()  # what wasn't, by the reason
        self._foreign: set[str] = set()  # reasons that are no faults
        self._settings, self._sink, self._window = settings, self._delivery.sink, window
        self._steps: dict[int, _Step] = {}
        self._taps: dict[Tap, int] = {}
        self._new_taps: list[Tap] = []
        self._learned: dict[str, Any] = {}
        self._waiting = self._unanswered = 0  # bytes
        self._newest, self._shipped_s = -1, _second(started_s)
        self._delivery.begin(settings.as_dict)

    @property
    def place(self) -> str:
        """Where the run can be seen."""
        return self._delivery.url or f"`hookcore open {self._settings.keep}`"

    def __enter__(self) -> ImportedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.missing[f"everything after an error: {error or kind}"] += 1
        self.close()

    def leave_out(self, what: str, many: int = 1) -> None:
        """Count what is whole in the log, and has no place here."""
        self.missing[what] += many
        self._foreign.add(what)

    def learn(self, config: object = None, **description: Any) -> None:
        """Add to the run's description: its configuration, tags, or notes."""
        if config is not None:
            flat = flatten(config)
            description |= {"config": dict(flat.values), "config_cut": flat.cut}
        self._learned |= description
        self._sink.learn(self._learned)

    def describe(self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage]) -> None:
        """Describe what the run consists of."""
        self._sink.describe(modules, coverage)

    def add_scalar(self, step: int, time_s: float, name: str, value: float, word: str = "scalar value") -> None:
        """Add a number. A second one of a step replaces the first, as when a training was resumed."""
        waiting = self._step(step, time_s, name)
        if waiting is None:
            return
        if name not in waiting.scalars:
            if len(waiting.scalars) >= MAX_SCALARS:
                self.missing[f"scalars of a step with more than {MAX_SCALARS:,}"] += 1
                return
            self._grow(waiting, _ENTRY + len(name))
        waiting.scalars[name[:MAX_NAME]] = value
        self.found[word] += 1

    def add_row(self, step: int, time_s: float, tap: Tap, row: MeasuredRow) -> None:
        """Add the statistics of a tensor."""
        waiting = self._step(step, time_s, tap.label)
        if waiting is None:
            return
        if tap not in self._taps:
            if len(self._taps) >= MAX_TAPS:
                self.missing[f"tensors after the first {MAX_TAPS:,}"] += 1
                return
            self._taps[tap] = len(self._taps)
            self._new_taps.append(tap)
        waiting.rows[self._taps[tap]] = row
        self._grow(waiting, _ENTRY + sum(part.nbytes for part in row))
        self.found["histogram" if tap.kind == "probe" and row.stats[0] > 1 else "tensor"] += 1

    def add_media(self, step: int, time_s: float, name: str, media_type: str, data: bytes, word: str) -> None:
        """Add a picture or a text. One that is too large is counted; the end of a long text is cut off."""
        if not 0 <= step <= MAX_STEP:
            self.missing[f"{word}s of a step below 0 or too large"] += 1
            return
        whole = len(data)
        if whole > MAX_MEDIA_BYTES:
            if media_type != "text/plain":
                self.missing[f"{word}s of more than {MAX_MEDIA_BYTES:,} bytes"] += 1
                return
            data = data[:MAX_MEDIA_BYTES].decode("utf-8", "ignore").encode()
        tap, values = Tap(name[:MAX_NAME], "output"), np.frombuffer(data, np.uint8)
        item = Snapshot(tap, step, _second(time_s), media_type, (max(whole, 1),), values, whole > len(data))
        if whole:
            self._send(item)
            self.found[word] += 1

    def close(self) -> None:
        """Send what waits, with an event for what is missing, and end the run."""
        self._ship(0)
        step = max(0, self._newest)
        # At the time of the last record, not now: the run is as old as its log.
        about = [
            Event(
                step,
                self._shipped_s,
                DAMAGED,
                _cut(f"Not imported: {what} ({many:,})"),
                "info" if what in self._foreign else "warning",
                count=many,
            )
            for what, many in self.missing.most_common(100)
        ]
        if about or self._new_taps:
            self._send(self._frame(step, _Step(self._shipped_s), about))
        arrived = self._sink.flush(PATIENCE_S)
        self._sink.close()
        counters = self._sink.counters
        dropped = 0 if counters is None else sum(counters.dropped.values()) + counters.waiting + counters.in_flight
        if not arrived or dropped:
            self.missing["frames that the server didn't take"] += dropped or 1

    def _step(self, step: int, time_s: float, name: str) -> _Step | None:
        """Return what waits for a step; None if it is over, or if it can't be one."""
        if not 0 <= step <= MAX_STEP:
            self.missing[f"values of a step below 0 or too large, such as {name[:80]!r}"] += 1
            return None
        if step <= self._newest and step not in self._steps:
            self.missing[f"values that came after those of much later steps, such as {name[:80]!r}"] += 1
            return None
        if self._waiting > self._window:
            self._ship(self._window // 2)
            if step <= self._newest:
                return self._step(step, time_s, name)
        return self._steps.setdefault(step, _Step(_second(time_s)))

    def _grow(self, waiting: _Step, nbytes: int) -> None:
        waiting.nbytes += nbytes
        self._waiting += nbytes

    def _ship(self, left: int) -> None:
        """Send the first steps, until no more than this waits."""
        for step in sorted(self._steps):
            if self._waiting <= left and left:
                return
            waiting = self._steps.pop(step)
            self._waiting -= waiting.nbytes
            self._newest, self._shipped_s = step, waiting.time_s
            while len(waiting.rows) > ROWS_AT_ONCE:  # a message has a limit
                first = dict(list(waiting.rows.items())[:ROWS_AT_ONCE])
                self._send(self._frame(step, replace(waiting, scalars={}, rows=first)))
                waiting.rows = {number: row for number, row in waiting.rows.items() if number not in first}
            self._send(self._frame(step, waiting))

    def _frame(self, step: int, waiting: _Step, events: Iterable[Event] = ()) -> Frame:
        numbers, rows = list(waiting.rows), list(waiting.rows.values())
        new, self._new_taps = tuple(self._new_taps), []
        block = SketchBlock(
            np.cumsum([0, *(len(row.bins) for row in rows)], dtype=np.uint32),
            np.concatenate([row.bins for row in rows]) if rows else np.empty(0, np.uint16),
            np.concatenate([row.counts for row in rows]) if rows else np.empty(0, np.uint32),
        )
        stats = np.stack([row.stats for row in rows]) if rows else np.empty((0, len(STATS)))
        taps = np.array(numbers, np.uint32)
        return Frame(step, waiting.time_s, taps, stats, block, new, tuple(events), waiting.scalars)

    def _send(self, record: Frame | Snapshot) -> None:
        """Send a record; wait for the receiver from time to time, so that neither its memory nor ours fills up."""
        self._sink.send(record)
        self._unanswered += size_of(record)
        if self._unanswered > UNANSWERED_BYTES:
            self._unanswered = 0
            if not self._sink.flush(PATIENCE_S):
                raise ServerError(f"the server takes nothing ({getattr(self._sink, 'trouble', '') or 'no answer'})")


def _second(time_s: float) -> float:
    return min(max(0.0, time_s), _LATEST_S) if time_s == time_s else time.time()


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}\u2026"


def row_of_buckets(
    edges: NDArray[np.float64], counts: NDArray[np.float64], sums: tuple[float, float] | None = None
) -> MeasuredRow | None:
    """Return the row of a histogram with these ascending edges; None if it isn't one.

    `sums` are those of the values and of their squares. Without them, the moments are those of values spread evenly
    over each bucket. A log's histogram doesn't say how many values were zero, NaN, or infinite.
    """
    whole = np.rint(counts)
    is_one = len(edges) == len(counts) + 1 and np.isfinite(edges).all() and np.isfinite(counts).all()
    if not is_one or not len(counts) or (whole < 0).any() or (np.diff(edges) < 0).any() or not 0 < whole.sum() < 2**32:
        return None
    low, high, total = edges[:-1], edges[1:], float(whole.sum())
    filled = np.flatnonzero(whole)
    if sums is None:
        sums = (
            float((whole * (low + high) / 2).sum()),
            float((whole * (low * low + low * high + high * high) / 3).sum()),
        )
    mean, square = sums[0] / total, max(0.0, sums[1] / total)
    stats = np.full(len(STATS), np.nan)
    known = {"count": total, "nan": 0, "inf": 0, "zero": 0, "mean": mean, "rms": square**0.5, "parts": 1}
    known |= {"std": max(0.0, square - mean * mean) ** 0.5, "norm": max(0.0, sums[1]) ** 0.5, "sketched": total}
    known |= {"min": float(low[filled[0]]), "max": float(high[filled[-1]])}
    for name, value in known.items():
        stats[STAT_COLUMN[name]] = value
    counts_of_bins = _spread(low[filled], high[filled], whole[filled])
    bins = np.flatnonzero(counts_of_bins)
    return MeasuredRow(stats, bins.astype(np.uint16), counts_of_bins[bins].astype(np.uint32))


def _spread(low: NDArray[np.float64], high: NDArray[np.float64], many: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values in each bin, if those of each bucket are spread evenly. Whole numbers, with the same sum."""
    first, last = bins_of(low).astype(int), bins_of(high).astype(int)
    crossed = last - first  # the edges of bins inside of a bucket
    bucket = np.repeat(np.arange(len(low)), crossed)
    place = np.arange(len(bucket)) - np.repeat(np.cumsum(crossed) - crossed, crossed)
    below = np.clip((EDGES[first[bucket] + 1 + place] - low[bucket]) / (high - low)[bucket], 0.0, 1.0) * many[bucket]
    below = np.rint(below)
    parts = np.diff(below, prepend=0.0)
    parts[place == 0] = below[place == 0]
    rest = many.copy()
    np.subtract.at(rest, bucket, parts)
    bins, values = np.concatenate([first[bucket] + place, last]), np.concatenate([parts, rest])
    return np.bincount(bins, weights=values, minlength=BINS).astype(np.float64)
