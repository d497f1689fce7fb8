"""The loss of a script that logs none: what `backward()` was called on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from hookcore.observe.plain import make_plain, unseen
from hookcore.recorder.owners import Owner
from hookcore.recorder.scalars import number_of, read_memory, read_unseen
from hookcore.recorder.witnesses import Fate
from hookcore.records.vocabulary import LOGGED_LOSS, loss_rank

FIRST_STEPS: Final = 2  # after which it is known whether the script logs its loss
MAX_TENSORS: Final = 16  # of a backward pass


class Held(NamedTuple):
    """The loss of one of the first steps, which waits for the end of the next one: the script may still log it."""

    step: int
    time_s: float  # when the step ended
    found: Sum
    owner: Owner | None
    scale: Any


class FoundLoss:
    """The sum over the backward passes of a step, because their gradients are added, since these were last reset.

    It is unknown if anything but single numbers was passed to `backward()`. Nothing waits for a device.
    """

    def __init__(self) -> None:
        self.is_logged = False  # by the script, so that nothing needs to be found
        self.reads = True  # in this step, which isn't one of a pause
        self.wanted = True  # whether the loss of this step can be found, and is
        # What the running pass starts from: numbers, or device scalars that can be waited for; None if unknown.
        self.running: list[Any] | None = []
        self._step: list[Any] | None = []
        self._held: Held | None = None

    def begin_step(self, paused: bool) -> None:
        """Decide whether to find the loss of the step that begins."""
        self.reads = not paused
        self.wanted = not paused and not self.is_logged

    def note_log(self, step: int, names: Iterable[str]) -> None:
        """Note which numbers the script logs."""
        if step <= FIRST_STEPS and not self.is_logged:
            self.is_logged = any(loss_rank(name) <= LOGGED_LOSS for name in names)

    def begin_pass(self, tensors: Sequence[Any], weights: Sequence[Any], earlier: Fate = "kept") -> None:
        """Read what a backward pass starts from, and with which weights.

        `earlier`: the gradients of earlier passes.
        """
        if earlier != "kept":
            self._step = [] if earlier == "reset" else None
        self.running = None
        if len(tensors) == len(weights) <= MAX_TENSORS:
            numbers = [_number(tensor, weight) for tensor, weight in zip(tensors, weights, strict=True)]
            self.running = None if None in numbers else numbers

    def end_pass(self, counts: bool) -> None:
        """Add the pass to the step; `counts` if it reached a watched parameter."""
        if counts and self.wanted:
            self._step = None if self._step is None or self.running is None else self._step + self.running
        self.running = []

    def stop(self) -> None:
        """Find nothing in the rest of the running step."""
        self.reads, self.wanted, self._step = False, False, []

    def forget(self) -> None:
        """Make the loss of the running step unknown."""
        self._step = None

    def take(self, step: int, owner: Owner | None, scale: Any = None) -> Sum | None:
        """Return the loss of a step; None if it is unknown, logged, or held for one more step.

        `owner` is the optimizer that ends the step, and `scale` that of a GradScaler.
        """
        found, self._step = self._step, []
        if not found or self.is_logged:
            return None
        if step >= FIRST_STEPS:
            return Sum(found)
        self._held = Held(step, time.time(), Sum(found), owner, scale)
        return None

    def take_held(self) -> Held | None:
        """Return the loss that was held, now that the script would have logged it."""
        held, self._held = self._held, None
        return None if self.is_logged else held


@dataclass(frozen=True, slots=True)
class Sum:
    """Numbers whose sum is the loss, still with the scale of a GradScaler."""

    numbers: list[Any]

    def resolve(self, scale: float | None) -> float:
        """Return the loss, after waiting for its numbers."""
        # A scaler that halves its scale at every step ends at zero.
        return sum(map(number_of, self.numbers)) / (scale or 1.0)


def _number(tensor: Any, weight: Any) -> Any:
    """Return a number, or a device scalar that can be waited for; None if it is none."""
    if (number := read_memory(tensor)) is not None and (times := read_memory(weight)) is not None:
        return number * times
    both = tensor, weight
    if not all(isinstance(each, Tensor) and each.numel() == 1 for each in both) or tensor.is_complex():
        return None
    with unseen():
        plain, factor = make_plain(tensor), make_plain(weight)
        if isinstance(plain, str) or isinstance(factor, str):
            return None
        if plain.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # what the recorder's thread waits for may be no part of a graph
        # By default, `backward()` multiplies by one.
        return read_unseen(plain) * read_unseen(factor) if plain.is_cpu else read_unseen(plain.float() * factor)
