"""What a restart must bring back: noted before each optimizer's first step, and whenever its state is saved."""

from __future__ import annotations

import hashlib
import math
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.optim import Optimizer

from hookcore.hooks.handle import HookHandle
from hookcore.hooks.optimizers import on_optimizer_saved
from hookcore.observe.copies import hash_of, read_hashes
from hookcore.observe.plain import generators, unseen
from hookcore.recorder.clock.errors import entry
from hookcore.recorder.clock.owners import Owner
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import parts_of
from hookcore.recorder.measured.scalars import read_memory
from hookcore.recorder.measured.snapshots import Outgoing, Send
from hookcore.records import Snapshot, Tap
from hookcore.records.moments import BUFFER, COUNTER, MAX_ROWS, MOMENT_TYPE, WEIGHT, Moment, Noted, When
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
