"""What a training notes apart from its frames.

What a restart must bring back: before each optimizer's first step, and whenever its state is saved. And which samples
each step had, as the loaders' samplers or the script say.
"""

from __future__ import annotations

import hashlib
import math
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial
from operator import index
from threading import Lock, get_ident
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import Subset

from hookcore.errors import ArgumentError
from hookcore.hooks.handle import HookHandle
from hookcore.hooks.loading import Taken
from hookcore.hooks.optimizers import on_optimizer_saved
from hookcore.observe.copies import hash_of, read_hashes
from hookcore.observe.plain import generators, place_of, unseen
from hookcore.recorder.clock.errors import entry
from hookcore.recorder.clock.owners import Owner
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import parts_of
from hookcore.recorder.known.roots import first_tensors
from hookcore.recorder.measured.scalars import read_memory
from hookcore.recorder.measured.snapshots import Outgoing, Send
from hookcore.records import Snapshot, Tap
from hookcore.records.moments import (
    BUFFER,
    COUNTER,
    MAX_IDS,
    MAX_ROWS,
    MOMENT_TYPE,
    SAMPLES_TYPE,
    WEIGHT,
    Batch,
    Id,
    Moment,
    Noted,
    SampleBlock,
    When,
)
from hookcore.records.vocabulary import text_of

MAX_NOTED: Final = 8  # optimizers: a loop may make one for every batch
MAX_MOMENTS: Final = 64  # that wait to be sent


@dataclass(slots=True, eq=False)
class _Waiting:
    """A moment whose hashes may still be on their way from a device."""

    step: int
    time_s: float
    moment: Moment  # with empty hashes
    parts: list[tuple[list[int], Callable[[], list[list[int]]]]]  # places in the moment, and their hashes

    def finish(self) -> Moment:
        """Return the moment with its hashes. Waits, in this thread only."""
        held = list(self.moment.held)
        for places, wait in self.parts:
            for place, (number, bits) in zip(places, wait(), strict=True):
                (norm,) = struct.unpack("d", struct.pack("q", bits))
                named = f"{number & (2**64 - 1):016x}"
                held[place] = replace(held[place], hash=named, norm=norm if math.isfinite(norm) else None)
        return replace(self.moment, held=tuple(held))


class Moments(Outgoing[_Waiting]):
    """Reads at most `HASHED` values of a tensor, in no other steps. Nothing waits for a device."""

    what = "state of an optimizer"

    def __init__(self, context: Context) -> None:
        super().__init__(context.errors)
        self._context, self._current, self._lock = context, context.current, context.lock
        self._handles: list[HookHandle] = []
        self._saved: dict[int, int] = {}  # by id of an optimizer: its updates when its state was saved last

    def begin(self, owner: Owner, optimizer: Optimizer) -> None:
        """Note what an optimizer has before its first step; from now on, also what it has when its state is saved."""
        if len(self._handles) == MAX_NOTED:
            return
        self._handles.append(on_optimizer_saved(optimizer, partial(_notify, weakref.ref(self))))
        with unseen():
            self._note("begun", owner, optimizer)

    @entry("state of an optimizer")
    def saw_saved(self, optimizer: Optimizer) -> None:
        """Note what an optimizer has while its state is saved."""
        if (owner := self._context.owners.get(optimizer)) is not None:
            self._note_once("saved", owner, optimizer)

    @entry("state of an optimizer at the end")
    def end(self) -> None:
        """Note what all optimizers have at the end: a script may save only the weights."""
        owners = [(each, each.ref()) for each in self._context.owners if each.is_noted] if self._handles else []
        for owner, optimizer in owners:
            if optimizer is not None:
                self._note_once("ended", owner, optimizer)

    def close(self) -> None:
        """Remove all hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _note_once(self, when: When, owner: Owner, optimizer: Optimizer) -> None:
        """Note it unless nothing was stepped since the last time."""
        if owner.steps and self._saved.get(id(optimizer)) != owner.steps:
            self._saved[id(optimizer)] = owner.steps
            with unseen():
                self._note(when, owner, optimizer)

    def _note(self, when: When, owner: Owner, optimizer: Optimizer) -> None:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            return
        if len(self._waiting) >= MAX_MOMENTS:
            self._errors.count_loss("moment-dropped", "state of an optimizer", "not noted: too many waited to be sent")
            return
        held: list[Noted] = []
        hashes: dict[torch.device, tuple[list[int], list[Tensor]]] = {}
        left_out = 0
        for name, what, value in self._found(optimizer):
            known = hash_of(value) if len(held) < MAX_ROWS and isinstance(value, Tensor) else ""
            if isinstance(known, Tensor):
                places, found = hashes.setdefault(known.device, ([], []))
                places.append(len(held))
                found.append(known)
            elif isinstance(value, Tensor):
                left_out += 1
                continue
            size, dtype = (value.numel(), str(value.dtype)) if isinstance(value, Tensor) else (1, "number")
            number = None if isinstance(value, Tensor) else float(value)
            held.append(Noted(text_of(name), text_of(what), dtype.removeprefix("torch."), size, repr(number), number))
        place = self._context.owners.place_of(owner)
        rates = tuple(_number_of(group.get("lr")) for group in optimizer.param_groups)
        scaler = owner.scaler.live()
        scale = None if scaler is None else _number_of(scaler._scale)
        states = {name: _hash_of_generator(state) for name, state in generators().items()}
        moment = Moment(when, place, text_of(type(optimizer).__name__), rates, states, scale, tuple(held), left_out)
        parts = [(places, read_hashes(found)) for places, found in hashes.values()]
        self._waiting.append(_Waiting(self._context.step, time.time(), moment, parts))

    def _found(self, optimizer: Optimizer) -> Iterator[tuple[str, str, Any]]:
        """Yield watched weights that an optimizer steps, what it keeps for them, and all buffers that are saved."""
        parameters = self._context.parameters
        named = [
            (".".join(filter(None, (each.plan.path, each.name))), tensor)
            for each in parameters.owned(optimizer)
            if (tensor := each.tensor) is not None
        ]
        for name, tensor in named:
            yield name, WEIGHT, tensor
        for name, tensor in named:
            for key, value in parts_of(optimizer.state.get(tensor)):
                if isinstance(value, Tensor) or type(value) in (int, float):
                    yield name, key, value
        for plan in self._context.plans.live():
            module = plan.ref()
            buffers = {} if module is None else module._buffers
            for name, buffer in list(buffers.items()):
                if buffer is not None and module is not None and name not in module._non_persistent_buffers_set:
                    is_counter = buffer.numel() == 1 and not buffer.is_floating_point()
                    yield ".".join(filter(None, (plan.path, name))), COUNTER if is_counter else BUFFER, buffer

    def _send(self, item: _Waiting, send: Send) -> None:
        data = np.frombuffer(item.finish().packed(), np.uint8)
        send(Snapshot(Tap("", "state"), item.step, item.time_s, MOMENT_TYPE, data.shape, data))


def _notify(moments: weakref.ref[Moments], optimizer: Optimizer, _state: Any) -> None:
    """Note that a state is saved. The reference is weak, because an optimizer may outlive its watcher."""
    if (found := moments()) is not None:
        found.saw_saved(optimizer)


def _number_of(value: Any) -> float | None:
    number = read_memory(value) if isinstance(value, Tensor) else value
    return float(number) if isinstance(number, int | float) and math.isfinite(number) else None


def _hash_of_generator(state: Any) -> str:
    parts = state if isinstance(state, list | tuple) else (state,)
    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        array = part.numpy() if isinstance(part, Tensor) else part
        hashed.update(array.tobytes() if isinstance(array, np.ndarray) else repr(array).encode())
    return hashed.hexdigest()


# The ledger of samples.

EVERY_S: Final = 5.0  # seconds of steps in one block
MAX_WAITING: Final = 4096  # batches
MAX_WAITING_IDS: Final = 2**18
MAX_TEXT: Final = 200  # characters of a name
_RECENT: Final = 16  # batches that are recognized when the model is called with them
_TENSORS: Final = 4  # of a batch
_AHEAD: Final = (
    "the model was given a batch that had been loaded before an earlier step ended, so something loads batches ahead: "
    "call watcher.samples(ids) for the batch that runs next"
)
_THREAD: Final = "another thread loads the batches: call watcher.samples(ids) for the batch that runs next"
_BY_HAND: Final = (
    "the script steps its weights by hand, and may load the next batch before the end of the step is seen: call "
    "watcher.samples(ids)"
)


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """A batch and the step that it belongs to; -1 until it is passed on."""

    step: int
    source: str
    data: int  # the data set, by id; 0 if the script named the samples
    indices: Any
    why: str
    evaluates: int  # how much speaks for an evaluation: 1 for the mode of a model, 2 for disabled gradients
    pending: bool  # whether the end of the step before may not have been seen yet
    thread: int
    tensors: tuple[weakref.ref[Tensor], ...] = ()  # the first ones
    through: tuple[Any, ...] = ()  # the indices of each `Subset` around the data set, beginning with the outermost

    @property
    def many(self) -> int:
        """Roughly how many samples it has."""
        return len(self.indices) if isinstance(self.indices, list | tuple) else 1

    def has(self, place: int) -> bool:
        """Return whether this is the memory of one of its tensors, and not that of a later tensor in its place."""
        return any(place_of(tensor) == place for ref in self.tensors if (tensor := ref()) is not None)


class Samples(Outgoing[Snapshot]):
    """Takes the indices by reference, and turns them into numbers on the recorder's thread."""

    what = "samples of steps"

    def __init__(self, context: Context) -> None:
        super().__init__(context.errors)
        self._context, self._current, self._lock = context, context.current, context.lock
        self._taken: deque[LoadedBatch] = deque()
        self._closing = Lock()  # the recorder's thread may send a block while another one ends the training
        self._added = self._removed = 0  # samples: one thread adds, another one removes
        self.recent: deque[LoadedBatch] = deque(maxlen=_RECENT)  # the newest ones
        self._ahead: weakref.WeakKeyDictionary[Any, LoadedBatch] = weakref.WeakKeyDictionary()
        self._dropped = 0
        self._doubt = ""
        self._ran: LoadedBatch | None = None  # the newest batch that a model was called with
        self._used_old = -1, 0  # the step in which a model was called with a batch of an earlier step, and the data set
        self._sent_s = time.monotonic()
        self._hurries = False

    # The training

    @entry("samples of a batch")
    def took(self, taken: Taken) -> None:
        """Note a batch that a loader has returned."""
        if taken.is_ahead:
            self._pass_on(taken.loader)
        evaluates = 2 * (not torch.is_grad_enabled()) + any(root.evaluates for root in self._context.plans.roots)
        data = rows = taken.loader._dataset
        through = list[Any]()
        while type(rows) is Subset:
            through.append(rows.indices)
            rows = rows.dataset
        found = LoadedBatch(
            -1,
            type(rows).__name__,
            id(data),
            taken.indices,
            taken.why,
            evaluates,
            self._current.pending,
            get_ident(),
            tuple(map(weakref.ref, tensors_of(taken.batch))),
            tuple(through),
        )
        if not evaluates and not found.pending and self._used_old == (self._context.step, found.data):
            self._doubt = _AHEAD
        if taken.is_ahead:
            self._ahead[taken.loader] = found
        else:
            self._add(found)

    @entry("samples of the last batch")
    def ran_out(self, loader: Any) -> None:
        """Note that a loader that was a batch ahead passes its last one on."""
        self._pass_on(loader)

    def _pass_on(self, loader: Any) -> None:
        if self._ahead and (found := self._ahead.pop(loader, None)) is not None:
            self._add(found)

    def give(self, ids: Any, step: int) -> None:
        """Name the samples of the batch that runs next. Called with the recorder's lock."""
        if isinstance(ids, str | bytes | dict) or not isinstance(ids, Iterable):
            kind = type(ids).__name__
            raise ArgumentError(f"samples() was given a {kind}: give a list of numbers or texts, such as [18204, 7]")
        with unseen():
            if isinstance(ids, Tensor) and not ids.is_cpu:
                raise ArgumentError(f"samples() was given a tensor on {ids.device}: give one on the CPU, or a list")
            given = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else list(ids)
        self._add(LoadedBatch(step, "", 0, given, "", 0, False, get_ident()))

    def _add(self, found: LoadedBatch) -> None:
        found = found if found.step >= 0 else replaced(found, step=self._context.step)
        self.recent.append(found)
        if len(self._taken) >= MAX_WAITING or self._waits + found.many > MAX_WAITING_IDS:
            self._dropped += 1
            self._errors.count_loss("samples-dropped", "batch", "without a place in the ledger: too many waited")
            return
        self._taken.append(found)
        self._added += found.many

    @property
    def _waits(self) -> int:
        return self._added - self._removed

    def saw_call(self, first: torch.Tensor | None) -> None:
        """Compare the first tensor that a model is given in a captured step with the batches of this step."""
        recent = [*self.recent][::-1]  # another thread may add one
        if not recent or first is None:
            return
        place = place_of(first)
        used = next((each for each in recent if each.has(place)), None) if place else None
        if used is None:
            return
        newest = next(each for each in recent if each.data == used.data)
        if used.thread != get_ident():
            self._doubt = _THREAD
        elif newest is used:
            self._ran = used
        elif newest.step > used.step and newest is not self._ran:
            self._doubt = _AHEAD
        if used.step < self._context.step:
            self._used_old = self._context.step, used.data

    def of_call(self, values: Any) -> tuple[Batch | None, str]:
        """Return the batch that a call of the running step was given, or why it isn't known."""
        step, places = self._context.step, [place for each in tensors_of(values) if (place := place_of(each))]
        known = [each for each in _of_training(self.recent) if each.step == step]
        named = [each for each in known if not each.data]
        seen = [each for each in known if any(map(each.has, places))]
        found = named[-1:] or seen[-1:] or known
        if not found:
            return None, f"no batch was loaded in step {step:,}"
        if len(found) > 1:
            return None, f"{len(found)} batches were loaded in step {step:,}, and which one this call got isn't known"
        batch = self._batch_of(found[0], step)
        why = batch.why or (self._doubt if found is known and not named else "")
        return (None, why) if why else (batch, "")

    # The recorder's thread

    @property
    def waiting(self) -> bool:
        """Whether anything is to be sent with the next round."""
        return bool(self._waiting) or self._is_due

    @property
    def _is_due(self) -> bool:
        first = self._first
        is_late = self._waits >= MAX_WAITING_IDS // 4 or time.monotonic() - self._sent_s >= EVERY_S
        return first is not None and first.step < self._context.step and (self._hurries or is_late)

    @property
    def _first(self) -> LoadedBatch | None:
        try:
            return self._taken[0]
        except IndexError:  # perhaps since a moment ago: any thread may ask while the other one takes them
            return None

    def hurry(self) -> None:
        """Send what is known with the next round."""
        self._hurries = True

    def end(self) -> None:
        """Send all, also of the step that ended last."""
        self._close_block(is_last=True)

    def ship(self, send: Send) -> None:
        """Send a block, if it is due."""
        if self._is_due:
            self._close_block()
        super().ship(send)

    def _close_block(self, is_last: bool = False) -> None:
        with self._closing:
            self._take_block(is_last)

    def _take_block(self, is_last: bool) -> None:
        self._hurries, self._sent_s = False, time.monotonic()
        now, taken = self._context.step, list[LoadedBatch]()
        while (found := self._first) is not None and (is_last or found.step < now):
            self._taken.popleft()
            self._removed += found.many
            if found.step < now or not found.evaluates:  # an evaluation at the end is of no step
                taken.append(found)
        if taken:
            last = taken[-1].step
            batches = tuple(self._batch_of(each, last) for each in _of_training(taken))
            data = np.frombuffer(SampleBlock(batches, self._dropped, self._doubt).packed(), np.uint8)
            self._waiting.append(Snapshot(Tap("", "output"), last, time.time(), SAMPLES_TYPE, data.shape, data))

    def _batch_of(self, found: LoadedBatch, last: int) -> Batch:
        back, why = last - found.step, found.why
        if found.pending and not why:
            why = _BY_HAND
        if why:
            return Batch(back, found.source, (), (), 0, why)
        try:
            listed = found.indices if isinstance(found.indices, list | tuple) else [found.indices]
            ids = list[Id]()
            rows = list[int]()
            for each in listed:
                row = [_id_of(one, found.through) for one in (each if isinstance(each, list | tuple) else (each,))]
                rows.append(len(row))
                ids += row
        except Exception as error:  # also of the script's own class
            return Batch(back, found.source, (), (), 0, f"its indices aren't numbers or texts ({error})")
        widths = () if all(many == 1 for many in rows) else tuple(rows[:MAX_IDS])
        return Batch(back, found.source, tuple(ids[:MAX_IDS]), widths, max(0, len(ids) - MAX_IDS), "")

    def _send(self, item: Snapshot, send: Send) -> None:
        send(item)


def _of_training(taken: Iterable[LoadedBatch]) -> Iterator[LoadedBatch]:
    """Leave out batches of evaluations, and what a loader says of batches that the script has named."""
    entries = list(taken)
    named = {each.step for each in entries if not each.data}
    least = dict[int, int]()
    for each in entries:
        least[each.step] = min(each.evaluates, least.get(each.step, each.evaluates))
    for each in entries:
        if not (each.data and each.step in named) and each.evaluates == least[each.step]:
            yield each


def _id_of(value: Any, through: tuple[Any, ...]) -> Id:
    for indices in through:
        value = indices[value]
    return text_of(value)[:MAX_TEXT] if isinstance(value, str) else index(value)


def tensors_of(values: Any) -> Iterable[Tensor]:
    """Return the first tensors of a batch, or of a call's arguments."""
    if type(values) is dict:
        values = tuple(values.values())
    if type(values) in (list, tuple) and all(type(each) is Tensor for each in values):
        found: Iterable[Tensor] = values[:_TENSORS]
        return found
    return first_tensors(values, _TENSORS)
