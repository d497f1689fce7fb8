"""The last steps of a device, held until it is known whether they were finite.

A device tells late whether a step was finite: its optimizer has changed the weights by then. So the calls of the last
steps are held by reference, and the weights that they began with as copies on the device. A copy is made on the
training's own stream before the call, so nothing waits for it. Who holds a `LateStep` keeps it; when its values are
known to be finite, the memory serves the next call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from hookcore.capsules.calls import Call, Held, KeptModel
from hookcore.capsules.entries import AtEntry, NotCopiedError, Reason, Slot, bytes_of, check_plain
from hookcore.observe.copies import free_bytes, is_capturing
from hookcore.observe.plain import unseen
from hookcore.recorder.known.roots import find_tensors

MAX_HELD: Final = 16  # backward passes whose values are unknown
FIRST_BYTES: Final = 64 << 20  # of all copies and batches, as long as the training's own memory is unknown:
FIRST_UPDATES: Final = 2  # until so many optimizer steps, because the first one makes the optimizer's states
SHARE: Final = 8  # of the free memory of a device, one part may be used
CHECK_EVERY: Final = 16  # optimizer steps between two looks at the free memory


_NOT_LOOKED: Final = Reason("not-looked-at", "nothing looked at the steps before it, so its weights were not copied")
_TOO_MANY: Final = Reason("late", f"the values of {MAX_HELD} earlier backward passes were still unknown")


class LateStep:
    """The calls of a step up to the end of a backward pass, with the weights that they began with."""

    __slots__ = ("__weakref__", "calls", "nbytes", "step", "why")

    def __init__(self, step: int, calls: Sequence[tuple[KeptModel, Call | Held]], nbytes: int, why: Reason) -> None:
        self.step, self.calls, self.nbytes = step, tuple(calls), nbytes
        self.why = why  # a call that is not among these can't be repeated

    @property
    def is_held(self) -> bool:
        """Whether any call can be repeated."""
        return bool(self.calls)

    def release(self) -> None:
        """Let go of everything: its values were finite."""
        self.calls, self.nbytes = (), 0

    def of(self, module: str | None) -> tuple[KeptModel, Call | Held] | None:
        """Return the last call of a model that contains this module; without one, the last call."""
        held = [call for call in self.calls if module is None or call[0].contains(module)]
        return held[-1] if held else None

    def weight_at_entry(self, weight: Tensor) -> Tensor | None:
        """Return a weight as it was when the step's newest call of its model began; None if it wasn't copied."""
        entries = (call.entry for _, call in reversed(self.calls))
        found = (entry.copy_of(weight) for entry in entries if entry is not None)
        return next((each for each in found if each is not None), None)


class LateSteps:
    """All steps of a watch that a device has yet to compute, within a limit of memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._room, self._check_at = min(max_bytes, FIRST_BYTES), FIRST_UPDATES
        self.slots: list[Slot] = []
        self._steps: weakref.WeakSet[LateStep] = weakref.WeakSet()
        self.unasked = 0  # copies since a step was kept
        self._why = _NOT_LOOKED
        self._stopped = False

    def enter(self, known: KeptModel, last: AtEntry | None, updates: int) -> AtEntry | None:
        """Copy the weights of a model that is about to be called; None if that is impossible.

        `last` is the entry of its last call in this step.
        """
        if self._stopped:
            return None
        try:
            with unseen():
                return self._enter(known, last, updates)
        except NotCopiedError as error:
            self._why = error.reason
        except Exception as error:  # such as a device that is out of memory; the training goes on
            self.stop(Reason("failed", f"copying its weights failed: {type(error).__name__}: {error}"))
        return None

    def _enter(self, known: KeptModel, last: AtEntry | None, updates: int) -> AtEntry:
        if last is None and self.unasked >= MAX_HELD:
            raise NotCopiedError(_NOT_LOOKED)
        entry = AtEntry(known.members, updates)
        sources = entry.sources(known.members)
        if last is not None and last.is_as(entry):  # another micro-batch
            entry.share(last)
        else:
            self.unasked += 1
            entry.fill(self._free_slot(sources, updates), sources)
        return entry

    def _free_slot(self, sources: list[Tensor], updates: int) -> Slot:
        if is_capturing():
            raise NotCopiedError(Reason("capturing", "it ran inside the capture of a CUDA graph"))
        self._look_for_room({source.device for source in sources}, updates)
        for slot in self.slots:
            if not slot.users and slot.fits(sources):
                return slot
        check_plain(sources)
        needed = bytes_of(sources)
        if self.used + needed > self._room:
            self._forget_free()  # of weights that are there no more
        if self.used + needed > self._room:
            raise NotCopiedError(self._full("a copy of its weights takes", needed))
        slot = Slot(sources)
        self.slots.append(slot)
        return slot

    def _look_for_room(self, devices: set[torch.device], updates: int) -> None:
        if updates >= self._check_at:
            self._check_at = updates + CHECK_EVERY
            free = [found for device in devices if (found := free_bytes(device)) is not None]
            self._room = min([self._max_bytes, *((each + self.used) // SHARE for each in free)])
            if self.used > self._room:
                self._forget_free()

    def _forget_free(self) -> None:
        self.slots = [slot for slot in self.slots if slot.users]

    def _full(self, what: str, needed: int) -> Reason:
        megabytes, room = needed / 1e6, self._room / 1e6
        if needed > self._max_bytes:
            limit = f"more than capsule_size={self._max_bytes:,} bytes"
            return Reason("capsule-size", f"{what} {megabytes:,.1f} MB on the device, {limit}")
        if needed > self._room:
            limit = f"more than the {room:,.1f} MB that hookcore allows itself of the device's free memory"
            limit += " during the first steps" if self._check_at <= FIRST_UPDATES else ""
            return Reason("device-memory", f"{what} {megabytes:,.1f} MB, {limit}")
        text = f"the values of earlier steps were still unknown, and their copies took the {room:,.1f} MB allowed"
        return Reason("late", text)

    @property
    def used(self) -> int:
        """The memory of all copies and all held batches."""
        return sum(slot.copies.nbytes for slot in self.slots) + sum(step.nbytes for step in self._steps)

    def keep(self, step: int, models: Sequence[KeptModel], why_not: str) -> LateStep:
        """Hold what makes the running step repeatable, for as long as the caller holds the answer."""
        self.unasked = 0
        calls = [(model, call) for model in models if (call := model.call or model.held) is not None]
        copied = [each for each in calls if each[1].entry is not None]
        why = self._why if calls or self._stopped else Reason("not-held", why_not)
        needed = sum(_bytes_of_call(call) for _, call in copied)
        if copied and sum(each.is_held for each in self._steps) >= MAX_HELD:
            copied, why = [], _TOO_MANY
        elif copied and self.used + needed > self._room:
            copied, why = [], self._full("its arguments and outputs take", needed)
        kept = LateStep(step, copied, needed if copied else 0, why)
        if copied:
            self._steps.add(kept)
        return kept

    def of_step(self, step: int) -> LateStep | None:
        """Return the newest pass of a step that is still held."""
        return next((each for each in self._steps if each.step == step and each.is_held), None)

    def stop(self, why: Reason) -> None:
        """Copy nothing more, and use no memory."""
        self._stopped, self._why = True, why
        self.slots.clear()


def _bytes_of_call(call: Call | Held) -> int:
    given = find_tensors((call.args, call.kwargs))
    return bytes_of(each for _, each in given) + bytes_of([*call.outputs.values(), *call.gradients.values()])
