"""The loss of a script that logs none: what `backward()` was called on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from hookcore.observe.plain import make_plain, unseen
from hookcore.recorder.scalars import is_readable, number_of, read_unseen
from hookcore.recorder.witnesses import Fate
from hookcore.records.vocabulary import FOUND_LOSS, LOGGED_LOSS, loss_rank

FIRST_STEPS: Final = 2  # after which it is known whether the script logs its loss
MAX_TENSORS: Final = 16  # of a backward pass
EVERY_S: Final = 0.05  # between two uncaptured steps whose loss is found


class FoundLoss:
    """The sum over the backward passes of a step, because their gradients are added, since these were last reset.

    It is unknown if anything but single numbers was passed to `backward()`. Nothing waits for a device.
    """

    def __init__(self) -> None:
        self.is_logged = False  # by the script, so that nothing needs to be found
        self.has_strays = False  # some passes reach no watched parameter: those of uncaptured steps can't be told apart
        self.wanted = True  # in this step
        self._found_at = float("-inf")  # the begin of the newest step with one
        self._pass: list[Any] | None = []  # the numbers of the running pass; None if they are unknown
        self._step: list[Any] | None = []

    def begin_step(self, now: float, captured: bool, is_limited: bool) -> None:
        """Decide whether to find the loss of the step that begins, by the time in seconds.

        If a budget limits which steps are captured, the loss of others is found too, but not often.
        """
        between = is_limited and not self.has_strays and now - self._found_at >= EVERY_S
        self.wanted = not self.is_logged and (captured or between)
        if self.wanted:
            self._found_at = now

    def note_log(self, step: int, names: Iterable[str]) -> None:
        """Note which numbers the script logs."""
        if step < FIRST_STEPS and not self.is_logged:
            self.is_logged = any(loss_rank(name) <= LOGGED_LOSS for name in names)

    def begin_pass(self, tensors: Sequence[Any], weights: Sequence[Any], earlier: Fate = "kept") -> None:
        """Read what a backward pass starts from, and with which weights, if the step's loss is wanted.

        `earlier`: the gradients of earlier passes.
        """
        if earlier != "kept":
            self._step = [] if earlier == "reset" else None
        self._pass = None
        if len(tensors) == len(weights) <= MAX_TENSORS:
            numbers = [_number(tensor, weight) for tensor, weight in zip(tensors, weights, strict=True)]
            self._pass = None if None in numbers else numbers

    def end_pass(self, counts: bool) -> None:
        """Add the pass to the step; `counts` if it reached a watched parameter."""
        if counts and self.wanted:
            self._step = None if self._step is None or self._pass is None else self._step + self._pass
        self._pass = []

    def stop(self) -> None:
        """Find nothing in the rest of the running step."""
        self.wanted, self._step = False, []

    def forget(self) -> None:
        """Make the loss of the running step unknown."""
        self._step = None

    def take(self, step: int, find_owner: Callable[[], int]) -> dict[str, Any]:
        """Return the loss of a step by its name; nothing if it is unknown, or logged.

        `find_owner` returns the number of the optimizer.
        """
        found, self._step = self._step, []
        if not found or step < FIRST_STEPS or self.is_logged:
            return {}
        owner = find_owner()
        return {FOUND_LOSS if not owner else f"{FOUND_LOSS}{owner + 1}": Sum(found)}


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
    if is_readable(tensor) and is_readable(weight):
        return float(tensor.item()) * float(weight.item())
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
