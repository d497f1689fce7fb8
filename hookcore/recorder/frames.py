"""Conversion of an arena's cells to frames: pure NumPy, on the recorder's own thread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookcore.observe import cpu
from hookcore.observe.harvest import Harvest, join, unpack
from hookcore.records import NO_SKETCHES, NO_STATS, NO_TAPS, STATS, Event, Frame, SketchBlock, Tap
from hookcore.records.flow import Flow
from hookcore.records.sketch import rows_of, shifted_rows

if TYPE_CHECKING:
    from hookcore.observe.transfer import Transfer

MAX_KEPT_EVENTS: Final = 100  # of dropped frames
MAX_KNOWN_ROWS: Final = 16  # sets of slots, each with its array of taps
_Shown = tuple[NDArray[np.uint32], NDArray[np.intp] | None]  # the taps of a frame, and which rows are theirs if not all
_LINEAR: Final = ("mean", "std", "min", "max", "rms", "norm")


class RowFacts(NamedTuple):
    """Facts about the rows in addition to the measurements."""

    ratios: tuple[tuple[int, int], ...] = ()  # (slot of an update, slot of its parameter's values)
    owners: NDArray[np.int32] | None = None  # by slot; see Frame


_NO_FACTS: Final = RowFacts()


@dataclass(slots=True)
class RawFrame:
    """The training thread's data for the recorder's thread: numbers only."""

    step: int
    time_s: float
    packed: bytes  # see hookcore.observe.harvest
    new_taps: tuple[Tap, ...]
    micro_batches: int
    elapsed_s: float
    scale: float | None = None
    scaled: frozenset[str] = frozenset()  # the kinds whose values include the scale
    labels: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)  # numbers, or device scalars that can be waited for
    events: tuple[Event, ...] = ()
    transfers: tuple[Transfer, ...] = ()  # measurements on other devices, on their way to the host
    rows: RowFacts = _NO_FACTS
    flow: Flow | None = None

    @property
    def nbytes(self) -> int:
        """The memory of its measurements, those on their way to the host included."""
        return len(self.packed) + sum(transfer.nbytes for transfer in self.transfers)

    def drop_rows(self) -> None:
        """Drop the measurements, and keep the rest."""
        self.packed, self.transfers, self.scale = b"", (), None

    def inherit(self, dropped: RawFrame) -> int:
        """Take over what must not be lost with an earlier frame: without the names, later numbers get other taps.

        Return how many of its events are lost nevertheless.
        """
        self.new_taps = dropped.new_taps + self.new_taps
        inherited, lost = newest_events(dropped.events)
        self.events = inherited + self.events
        self.flow = self.flow or dropped.flow
        return lost


def newest_events(events: tuple[Event, ...]) -> tuple[tuple[Event, ...], int]:
    """Return the events of dropped frames that are kept, and the number of the others."""
    return events[-MAX_KEPT_EVENTS:], max(0, len(events) - MAX_KEPT_EVENTS)


def stats_of(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the columns of `STATS` from rows of arena cells; computed without the interpreter lock."""
    rows = np.ascontiguousarray(cells)
    stats = np.empty((len(rows), len(STATS)))
    cpu.stats(rows.ctypes.data, len(rows), stats.ctypes.data)
    return stats


class ShownRows:
    """The taps of frames, by the slots of their rows. Frames of the same slots share one array."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers  # each slot's tap number, -1 for a hidden slot; more are added, and none changes
        self._known: dict[bytes, _Shown] = {}

    def of(self, slots: NDArray[np.uint32]) -> _Shown:
        """Return the taps of these slots, and which rows are theirs if not all."""
        key = slots.tobytes()
        found = self._known.get(key)
        if found is None:
            if len(self._known) == MAX_KNOWN_ROWS:
                self._known.clear()
            found = self._known[key] = self._look_up(slots)
        return found

    def _look_up(self, slots: NDArray[np.uint32]) -> _Shown:
        numbers = np.array([self._numbers[slot] for slot in slots], np.int64)
        shown = np.flatnonzero(numbers >= 0)
        taps = numbers[shown].astype(np.uint32)
        taps.setflags(write=False)  # many frames share it
        return taps, None if len(shown) == len(numbers) else shown


def build_frames(raws: Sequence[RawFrame], taps: Sequence[Tap], rows: ShownRows) -> Iterator[Frame]:
    """Return frames for the store: scaled gradients are divided by their scale, and hidden rows are used and dropped.

    Many at once, because twenty steps cost no more arithmetic than one.
    """
    captured = [raw for raw in raws if raw.packed or raw.transfers]
    if not captured:  # the kernels would let go of the interpreter, and wait for it, for nothing
        yield from (frame_without_rows(raw) for raw in raws)
        return
    with_rows = _frames_with_rows(captured, taps, rows)
    for raw in raws:
        yield next(with_rows) if raw.packed or raw.transfers else frame_without_rows(raw)


def frame_without_rows(raw: RawFrame) -> Frame:
    """Return the frame of a step that wasn't captured, or of a part of a step."""
    return Frame(
        *(raw.step, raw.time_s, NO_TAPS, NO_STATS, NO_SKETCHES, raw.new_taps, raw.events, raw.scalars),
        raw.micro_batches,
        raw.scale,
        raw.labels,
        raw.elapsed_s,
        None if raw.flow is None else replace(raw.flow, step=raw.step),
    )


def _frames_with_rows(raws: Sequence[RawFrame], taps: Sequence[Tap], rows: ShownRows) -> Iterator[Frame]:
    harvests = [
        join([harvest, *(transfer.finish() for transfer in raw.transfers)])
        for raw, harvest in zip(raws, unpack([raw.packed for raw in raws]), strict=True)
    ]
    stats = stats_of(np.concatenate([harvest.cells for harvest in harvests]))
    first = 0
    for raw, harvest in zip(raws, harvests, strict=True):
        last = first + len(harvest.slots)
        yield _build(raw, harvest, stats[first:last], taps, rows)
        first = last


def _build(raw: RawFrame, harvest: Harvest, stats: NDArray[np.float64], taps: Sequence[Tap], rows: ShownRows) -> Frame:
    block = SketchBlock(harvest.start, harvest.bins, harvest.counts)
    labels = raw.labels
    if raw.scale not in (None, 1.0) and raw.scaled:
        scaled = np.array([taps[slot].kind in raw.scaled for slot in harvest.slots], bool)
        stats, block, label = _unscale(stats, block, scaled, float(raw.scale or 1.0))
        labels = labels | {"grad_scale": label}
    if raw.rows.ratios:
        _fill_ratios(stats, harvest, raw.rows.ratios)
    numbers, shown = rows.of(harvest.slots)
    owners = None if raw.rows.owners is None else raw.rows.owners[harvest.slots]
    if shown is not None:
        stats, block, owners = stats[shown], rows_of(block, shown), None if owners is None else owners[shown]
    return Frame(
        step=raw.step,
        time_s=raw.time_s,
        taps=numbers,
        stats=stats,
        sketches=block,
        new_taps=raw.new_taps,
        events=raw.events,
        scalars=raw.scalars,
        micro_batches=raw.micro_batches,
        grad_scale=raw.scale,
        labels=labels,
        elapsed_s=raw.elapsed_s,
        flow=None if raw.flow is None else replace(raw.flow, step=raw.step),
        owners=owners,
    )


def _unscale(
    stats: NDArray[np.float64], block: SketchBlock, scaled: NDArray[np.bool_], scale: float
) -> tuple[NDArray[np.float64], SketchBlock, str]:
    for name in _LINEAR:
        stats[scaled, STATS.index(name)] /= scale
    steps = math.log2(scale) * 8
    label = f"divided by the loss scale {scale:g}"
    if steps != round(steps):
        label += "; sketches moved by the nearest eighth of a power of two"
    return stats, shifted_rows(block, scaled, -round(steps)), label


def _fill_ratios(stats: NDArray[np.float64], harvest: Harvest, ratios: tuple[tuple[int, int], ...]) -> None:
    row_of = {int(slot): row for row, slot in enumerate(harvest.slots)}
    norm, ratio = STATS.index("norm"), STATS.index("ratio")
    for update, parameter in ratios:
        if update in row_of and parameter in row_of:
            weight = stats[row_of[parameter], norm]
            stats[row_of[update], ratio] = stats[row_of[update], norm] / weight if weight > 0 else np.nan
