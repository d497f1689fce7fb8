"""What the training thread hands over at the end of a step, as frames. NumPy, on the recorder's own thread."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookcore.observe.arena import Harvest, join, stats_of, unpack
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import StepOfWeight
from hookcore.recorder.known.place import Replicas
from hookcore.recorder.machine import Sample, Sampler
from hookcore.recorder.measured.scalars import FoundLoss, Jumps, LossScale, Rates, Sum
from hookcore.records import NO_SKETCHES, NO_STATS, NO_TAPS, STATS, Event, Frame, SketchBlock, Tap
from hookcore.records.flow import Flow
from hookcore.records.sketch import rows_of, shifted_rows
from hookcore.records.vocabulary import CLIP_FACTOR, CLIPPED_SHARE, GRADIENT_NORM, RAW_NORM, SKIPPED

if TYPE_CHECKING:
    from hookcore.observe.device import Transfer

# Conversion of an arena's cells to frames: pure NumPy, on the recorder's own thread.

MAX_KEPT_EVENTS: Final = 100  # of dropped frames
MAX_KNOWN_ROWS: Final = 16  # sets of slots, each with its array of taps
_Shown = tuple[NDArray[np.uint32], NDArray[np.intp] | None]  # the taps of a frame, and which rows are theirs if not all
CLIPPED_BELOW: Final = 1e-4  # below 1 by this much, a factor isn't rounding
_NAN: Final = float("nan")
_LINEAR: Final = ("mean", "std", "min", "max", "rms", "norm")


class RowFacts(NamedTuple):
    """Facts about the rows in addition to the measurements."""

    ratios: tuple[tuple[int, int], ...] = ()  # (slot of an update, slot of its parameter's values)
    steps: tuple[StepOfWeight, ...] = ()
    raws: tuple[tuple[int, int], ...] = ()  # (slot of a gradient, slot of what it was before clipping)
    is_whole: bool = True  # whether these are all gradients that an optimizer used
    owners: NDArray[np.int32] | None = None  # by slot; see Frame


_NO_FACTS: Final = RowFacts()


@dataclass(slots=True)
class RawFrame:
    """The training thread's data for the recorder's thread: numbers only."""

    step: int
    time_s: float
    packed: bytes  # see hookcore.observe.arena
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
        return len(self.packed) + (sum(each.nbytes for each in self.transfers) if self.transfers else 0)

    @property
    def has_rows(self) -> bool:
        """Whether there are measurements."""
        return bool(self.packed or self.transfers)

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


class ShownRows:
    """The taps of frames, by the slots of their rows. Frames of the same slots share one array."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers  # each slot's tap number, -1 for a hidden slot; more are added, and none changes
        self.known: dict[bytes, _Shown] = {}  # the newest sets of slots

    def of(self, slots: NDArray[np.uint32]) -> _Shown:
        """Return the taps of these slots, and which rows are theirs if not all."""
        key = slots.tobytes()
        found = self.known.get(key)
        if found is None:
            if len(self.known) == MAX_KNOWN_ROWS:
                self.known.clear()
            found = self.known[key] = self._look_up(slots)
        return found

    def _look_up(self, slots: NDArray[np.uint32]) -> _Shown:
        numbers = np.array([self._numbers[slot] for slot in slots], np.int64)
        shown = np.flatnonzero(numbers >= 0)
        taps = numbers[shown].astype(np.uint32)
        taps.setflags(write=False)  # many frames share it
        return taps, None if len(shown) == len(numbers) else shown


class Clipping:
    """The norm of all gradients of a step after and before clipping. A step may come in parts, which add up."""

    def __init__(self) -> None:
        self._step = -1
        self._before: dict[int, float] = {}  # by the slot of the gradient
        self._after: dict[int, float] = {}
        self._is_whole = True
        self._share = 0, 0  # of the captured steps before this one: those in which gradients were clipped, and all
        self._factor = _NAN
        self.changed: set[int] = set()  # the slots of gradients that have changed, in the newest part

    def add(
        self, step: int, rows: RowFacts, slots: NDArray[np.uint32], stats: NDArray[np.float64], taps: Sequence[Tap]
    ) -> dict[str, float]:
        """Fill in the factor of each gradient in these rows. Return the numbers of the step so far."""
        if not rows.raws:
            return {}
        if step != self._step:
            self._begin(step)
        gradient_of = {before: after for after, before in rows.raws}
        nonfinite = (stats[:, STATS.index("nan")] + stats[:, STATS.index("inf")]) > 0
        norms = np.where(nonfinite, _NAN, stats[:, STATS.index("norm")]).tolist()
        gradients = []
        for row, slot in enumerate(slots.tolist()):
            kind = taps[slot].kind
            if kind == "raw_grad" and slot in gradient_of:
                self._before[gradient_of[slot]] = norms[row]
            elif kind == "param_grad":
                self._after[slot] = norms[row]
                gradients.append((row, slot))
        self.changed.clear()
        for row, slot in gradients:
            before = self._before.get(slot, 0.0)
            stats[row, STATS.index("ratio")] = norms[row] / before if before > 0 else _NAN
            if before > 0 and norms[row] != before:
                self.changed.add(slot)
        self._is_whole &= rows.is_whole
        return self._totals() if gradients and self._is_whole and self._before else {}

    def _begin(self, step: int) -> None:
        if self._factor == self._factor:
            self._share = self._share[0] + (self._factor < 1 - CLIPPED_BELOW), self._share[1] + 1
        self._step, self._before, self._after, self._is_whole, self._factor = step, {}, {}, True, _NAN

    def _totals(self) -> dict[str, float]:
        after = math.hypot(*self._after.values())
        before = math.hypot(*(self._before.get(slot, norm) for slot, norm in self._after.items()))
        self._factor = after / before if before > 0 else _NAN
        found = {GRADIENT_NORM: after, RAW_NORM: before}
        if self._factor == self._factor:
            many = self._share[0] + (self._factor < 1 - CLIPPED_BELOW)
            found |= {CLIP_FACTOR: self._factor, CLIPPED_SHARE: many / (self._share[1] + 1)}
        return found


def build_frames(
    raws: Sequence[RawFrame | Frame], taps: Sequence[Tap], rows: ShownRows, clipping: Clipping
) -> Iterator[Frame]:
    """Return frames for the store: scaled gradients are divided by their scale, and hidden rows are used and dropped.

    Many at once, because twenty steps cost no more arithmetic than one. Some may be frames already.
    """
    captured = [raw for raw in raws if isinstance(raw, RawFrame) and raw.has_rows]
    # Without any, the kernels would let go of the interpreter, and wait for it, for nothing.
    with_rows = _frames_with_rows(captured, taps, rows, clipping) if captured else iter(())
    for raw in raws:
        if isinstance(raw, Frame):
            yield raw
        else:
            yield next(with_rows) if raw.has_rows else frame_without_rows(raw)


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


def _frames_with_rows(
    raws: Sequence[RawFrame], taps: Sequence[Tap], rows: ShownRows, clipping: Clipping
) -> Iterator[Frame]:
    harvests = [
        join([harvest, *(transfer.finish() for transfer in raw.transfers)])
        for raw, harvest in zip(raws, unpack([raw.packed for raw in raws]), strict=True)
    ]
    stats = stats_of(np.concatenate([harvest.cells for harvest in harvests]))
    first = 0
    for raw, harvest in zip(raws, harvests, strict=True):
        last = first + len(harvest.slots)
        yield _build(raw, harvest, stats[first:last], taps, rows, clipping)
        first = last


def _build(
    raw: RawFrame,
    harvest: Harvest,
    stats: NDArray[np.float64],
    taps: Sequence[Tap],
    rows: ShownRows,
    clipping: Clipping,
) -> Frame:
    block = SketchBlock(harvest.start, harvest.bins, harvest.counts)
    labels = raw.labels
    if raw.scale not in (None, 1.0) and raw.scaled:
        scaled = np.array([taps[slot].kind in raw.scaled for slot in harvest.slots], bool)
        stats, block, label = _unscale(stats, block, scaled, float(raw.scale or 1.0))
        labels = labels | {"grad_scale": label}
    if raw.rows.ratios:
        _fill_ratios(stats, harvest, raw.rows.ratios)
    norms, slots = clipping.add(raw.step, raw.rows, harvest.slots, stats, taps), harvest.slots
    if raw.rows.steps:
        slots, stats, block = _with_steps(raw.rows.steps, slots, stats, block)
    numbers, shown = rows.of(slots)
    owners = None if raw.rows.owners is None else raw.rows.owners[slots]
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
        scalars=raw.scalars | norms,
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


def _with_steps(
    steps: Sequence[StepOfWeight], slots: NDArray[np.uint32], stats: NDArray[np.float64], block: SketchBlock
) -> tuple[NDArray[np.uint32], NDArray[np.float64], SketchBlock]:
    """Add rows with the numbers about steps of weights, each like that of a probe that returned it."""
    finite = (stats[:, STATS.index("nan")] + stats[:, STATS.index("inf")]) == 0
    norms = dict(zip(slots[finite].tolist(), stats[finite, STATS.index("norm")].tolist(), strict=True))
    found: dict[int, float] = {}
    for each in steps:
        gradient, update, before, after = (norms.get(slot, _NAN) for slot in each[:4])
        numbers = (
            update / gradient if gradient > 0 else _NAN,
            each.decay * before / update if update > 0 else _NAN,
            _angle(before, after, update),
        )
        known = zip(each.numbers, numbers, strict=True)
        found |= {slot: value for slot, value in known if value == value and slot >= 0}
    rows = np.zeros((len(found), len(STATS)))
    values = np.array(list(found.values()))
    for name in ("mean", "min", "max", "rms", "norm"):
        rows[:, STATS.index(name)] = values
    rows[:, [STATS.index("count"), STATS.index("parts")]] = 1
    rows[:, STATS.index("zero")] = values == 0
    rows[:, STATS.index("ratio")] = _NAN
    start = np.append(block.start, np.full(len(found), block.start[-1], np.uint32))
    added = np.array(list(found), np.uint32)
    return np.append(slots, added), np.concatenate([stats, rows]), SketchBlock(start, block.bins, block.counts)


def _angle(before: float, after: float, update: float) -> float:
    """Return the angle in degrees between a vector before and after a step, by the three lengths."""
    if not (before > 0 and after > 0 and update == update):
        return _NAN
    share = (update**2 - (after - before) ** 2) / (4 * before * after)
    return math.degrees(2 * math.asin(math.sqrt(min(1.0, max(0.0, share)))))


def _fill_ratios(stats: NDArray[np.float64], harvest: Harvest, ratios: tuple[tuple[int, int], ...]) -> None:
    row_of = {int(slot): row for row, slot in enumerate(harvest.slots)}
    norm, ratio = STATS.index("norm"), STATS.index("ratio")
    for update, parameter in ratios:
        if update in row_of and parameter in row_of:
            weight = stats[row_of[parameter], norm]
            stats[row_of[update], ratio] = stats[row_of[update], norm] / weight if weight > 0 else np.nan


# The data that the training thread passes to the recorder's thread at the end of a step.

_NO_SAMPLE: Final = Sample()


class Collector:
    """Collects everything since it was last taken, and queues it."""

    def __init__(self, context: Context, replicas: Replicas, machine: Sampler) -> None:
        self._context, self._statistics, self._events = context, context.statistics, context.events
        self._parameters, self._cadence = context.parameters, context.cadence
        self.replicas, self.machine, self.queue = replicas, machine, FrameQueue()
        self.loss, self.rates, self.scale = FoundLoss(), Rates(), LossScale()
        self.jumps = Jumps(context.track, context.owners)
        self.scalars: dict[str, Any] = {}
        self.steps: list[StepOfWeight] = []  # of weights, of which numbers are computed
        self._labels: dict[str, str] = {}
        self._flow: Flow | None = None

    def explain(self) -> None:
        """Add why the running step is captured, which isn't for its number."""
        step, why = self._context.step, self._cadence.reason
        self._context.emit("out-of-turn", f"step {step} was captured outside the cadence, because {why}")

    def add_scalars(self, scalars: dict[str, Any]) -> None:
        """Add the user's numbers to the running step."""
        self.scalars |= scalars

    def add_label(self, name: str, text: str) -> None:
        """Add a fact that readers need to the running step."""
        self._labels[name] = text

    def add_flow(self, flow: Flow) -> None:
        """Add which call fed which to the running step."""
        self._flow = flow

    def mark_skipped(self) -> None:
        """Note that a scaler skipped the running step."""
        self.scalars[SKIPPED] = 1.0
        self._events.append(skipped_step(self._context.step))

    def mark_part_skipped(self, raw: RawFrame, step: int) -> None:
        """Note that an already taken part is a step that a scaler skipped."""
        raw.scalars[SKIPPED] = 1.0
        self._events.append(skipped_step(step))

    @property
    def has_news(self) -> bool:
        """Return whether an event, a scalar, or a flow waits for a frame."""
        return bool(self._events) or self.has_values

    @property
    def is_empty(self) -> bool:
        """Return whether nothing but rows and the loss is for the next frame."""
        return not (self.has_news or self._labels or self.steps)

    @property
    def has_values(self) -> bool:
        """Return whether a scalar or a flow waits for a frame."""
        return bool(self.scalars or self._flow)

    def take(self, step: int, elapsed_s: float = _NAN, micro_batches: int = 0, with_rows: bool = True) -> RawFrame:
        """Return everything since the last call. Without rows, nothing was captured: that takes little time."""
        if not with_rows:
            return self._take_logged(step, elapsed_s)
        statistics, scale, machine = self._statistics, self.scale, self.machine.take() or _NO_SAMPLE
        packed = statistics.arena.pack(len(statistics.table.taps))
        raw = RawFrame(
            step=step,
            time_s=time.time(),
            packed=packed,
            micro_batches=micro_batches,
            elapsed_s=elapsed_s,
            scale=scale.value,
            scaled=scale.kinds,
            labels=self._labels | machine.facts,
            scalars=self.scalars | self._cadence.as_scalars() | machine.numbers,
            events=tuple(self._events) if self._events else (),
            transfers=statistics.devices.begin_transfers() if statistics.devices.arenas else (),
            flow=self._flow,
            rows=RowFacts(
                self._parameters.ratios(),
                tuple(self.steps),
                self._parameters.raws(),
                self._parameters.raw.is_whole,
                self.replicas.owners(),
            ),
            # After the rows, because another thread may add a tap in between; last, because they are taken only once.
            new_taps=statistics.table.take_new(),
        )
        if scale.flag is not None:
            raw.scalars[SKIPPED] = scale.flag
        self._events.clear()
        self.scalars, self._labels, self._flow, self.steps = {}, {}, None, []
        return raw

    def _take_logged(self, step: int, elapsed_s: float) -> RawFrame:
        machine = self.machine.take()
        raw = RawFrame(step, time.time(), b"", (), 0, elapsed_s, self.scale.value, scalars=self.scalars)
        self.scalars = {}
        if machine is not None:
            raw.labels, raw.scalars = machine.facts, raw.scalars | machine.numbers | self._cadence.as_scalars()
        if self.scale.flag is not None:
            raw.scalars[SKIPPED] = self.scale.flag
        if self._labels:
            raw.labels, self._labels = self._labels | raw.labels, {}
        if self._events:
            raw.events = tuple(self._events)
            self._events.clear()
        raw.flow, self._flow = self._flow, None
        return raw

    def take_between(self, time_s: float) -> RawFrame:
        """Return the events and the machine's samples, as a part of the step that ended last, at this time."""
        events, step = tuple(self._events), max(0, self._context.step - 1)
        self._events.clear()
        machine = self.machine.take() or _NO_SAMPLE
        return without_rows(step, time_s, events=events, scalars=machine.numbers, labels=machine.facts)


def without_rows(step: int, time_s: float, **content: Any) -> RawFrame:
    """Return a part of a step with only events or scalars."""
    return RawFrame(step, time_s, b"", (), 0, _NAN, **content)


def skipped_step(step: int) -> Event:
    """Return the event for a step that a scaler skipped."""
    message = f"GradScaler skipped step {step}: its gradients were not finite, so the weights did not change."
    return Event(step, time.time(), "skipped-step", message, "warning")


MAX_BATCH: Final = 64  # as many aren't left to wait
MANY_FRAMES: Final = 128  # that wait: from then on, steps go the long way, which can drop the oldest
MAX_FRAMES: Final = 256  # that wait; the oldest is dropped and counted
MANY_BYTES: Final = 16 * 2**20  # likewise
MAX_BYTES: Final = 256 * 2**20  # a step of 2,000 tensors on a GPU takes 33 MB until it is read


# A step of which there is nothing but numbers: its number, when it ended, how long it took, the user's numbers, and the
# name, the parts, and the scale of its loss. A plain tuple, because one is made in every step that isn't captured.
Light = tuple[int, float, float, dict[str, Any] | None, str, list[Any] | None, float | None]


class FrameQueue:
    """Frames that wait, in bounded memory. What must not be lost of a dropped one goes with the next."""

    def __init__(self) -> None:
        self.frames: deque[RawFrame | Light] = deque()
        self.shipped = -1  # the newest step with a frame
        self.dropped = 0
        self.dropped_events = 0
        # A signal handler of the script may flush or close in the middle of what its own thread does here, which would
        # wait for itself with an event or a plain lock.
        self._rings: SimpleQueue[None] = SimpleQueue()
        self._bytes = 0
        self._lock = threading.RLock()

    def put(self, frame: RawFrame) -> None:
        """Queue a step or a part of one. Never waits."""
        with self._lock:
            nbytes = frame.nbytes
            self._bytes += nbytes
            self.frames.append(frame)
            while len(self.frames) > MAX_FRAMES or (self._bytes > MAX_BYTES and len(self.frames) > 1):
                oldest = whole_frame(self.frames.popleft())
                self._bytes -= oldest.nbytes
                self.dropped += 1
                heir = self.frames[0] = whole_frame(self.frames[0])
                self.dropped_events += heir.inherit(oldest)
            is_urgent = frame.events or len(self.frames) >= MAX_BATCH or self._bytes > MANY_BYTES
        if is_urgent:
            self.wake()

    def wake(self) -> None:
        """End the next wait, or the one that lasts."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, timeout_s: float) -> None:
        """Wait for something that is urgent, in the recorder's thread, which otherwise looks now and then."""
        with suppress(Empty):
            self._rings.get(timeout=timeout_s)

    def take(self) -> list[RawFrame | Light]:
        """Return the oldest frames, at most a batch of them."""
        with self._lock:
            frames = [self.frames.popleft() for _ in range(min(MAX_BATCH, len(self.frames)))]
            if self._bytes:
                self._bytes -= sum(frame.nbytes for frame in frames if isinstance(frame, RawFrame))
        return frames


def light_frame(light: Light) -> Frame:
    """Return the frame of such a step, if the user logged no numbers in it. Waits for its loss."""
    step, time_s, elapsed_s, _, name, loss, scale = light
    scalars = {}
    if loss:
        is_plain = scale is None and len(loss) == 1 and type(loss[0]) is float
        scalars[name] = loss[0] if is_plain else Sum(loss).resolve(scale)
    return Frame(step, time_s, NO_TAPS, NO_STATS, NO_SKETCHES, scalars=scalars, grad_scale=scale, elapsed_s=elapsed_s)


def whole_frame(frame: RawFrame | Light) -> RawFrame:
    """Return a waiting step as a frame."""
    if isinstance(frame, RawFrame):
        return frame
    step, time_s, elapsed_s, scalars, name, loss, scale = frame
    found = {name: Sum(loss)} if loss else {}
    return RawFrame(step, time_s, b"", (), 0, elapsed_s, scale, scalars={**(scalars or {}), **found})
