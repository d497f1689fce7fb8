"""Witnesses: a few parameters of an optimizer at which new gradients are noticed."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final, Literal

from torch import Tensor, strided

from hookcore.recorder.parameters import Parameter

READABLE: Final = 4096  # values of a gradient that are read to see whether they are zero

Mark = tuple[int, int] | None  # a gradient's identity and version
Fate = Literal["kept", "reset", "unknown"]  # of gradients


class Witnesses:
    """The witnesses of one optimizer, and what their gradients and weights were."""

    __slots__ = ("_explained", "_versions", "keys", "parameters", "tensors", "were_reached")

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.tensors: list[Tensor] = []  # renewed often enough to keep no replaced one for long
        self.keys: frozenset[int] = frozenset()  # by id
        self.were_reached = False  # whether a pass was ever seen to reach one
        self._explained: tuple[list[Tensor], list[Mark]] = ([], [])  # the gradients whose step is known, and of whom
        self._versions: list[int] = []  # of the weights, before the optimizer steps

    def choose(self, parameters: list[Parameter]) -> None:
        """Take other parameters."""
        self.parameters = parameters
        self.look_up()

    def look_up(self) -> None:
        """Find the tensors as they are now."""
        self.tensors = tensors_of(self.parameters)
        self.keys = frozenset(map(id, self.tensors))

    def release(self, keys: Set[int]) -> None:
        """Let go of the tensors with these ids, because their modules are gone."""
        if not self.keys.isdisjoint(keys):
            self.look_up()
            self._explained = ([], [])

    def note_reached(self, reached: Set[int]) -> None:
        """Note which tensors a pass reached, by id."""
        self.were_reached = self.were_reached or not reached.isdisjoint(self.keys)

    def explain(self, marks: list[Mark] | None = None) -> None:
        """Take the gradients as they are now as those of a known step."""
        self._explained = self.tensors, marks_of(self.tensors) if marks is None else list(marks)

    def have_nothing_new(self, or_edited: bool = False) -> bool:
        """Return whether all gradients belong to a known step, as far as their tensors are still the same ones.

        `or_edited`: also if they were changed in place since, as clipping does.
        """
        (tensors, marks), now = self._explained, marks_of(self.tensors)
        if tensors is self.tensors and marks == now:
            return True
        known = dict(zip(map(id, tensors), marks, strict=True))
        pairs = [(known.get(id(tensor), mark), mark) for tensor, mark in zip(self.tensors, now, strict=True)]
        return all(old == mark or (or_edited and old and mark and old[0] == mark[0]) for old, mark in pairs)

    def note_weights(self) -> None:
        """Remember the weights' versions."""
        self._versions = [tensor._version for tensor in self.tensors]

    def weights_moved(self) -> bool:
        """Return whether a weight was changed since its version was noted."""
        return self._versions != [tensor._version for tensor in self.tensors]


def tensors_of(parameters: list[Parameter]) -> list[Tensor]:
    """Return the tensors that stand in the parameters' places now."""
    return [tensor for each in parameters if (tensor := each.tensor) is not None]


def marks_of(tensors: list[Tensor]) -> list[Mark]:
    """Return a mark that distinguishes each gradient from a new one."""
    return [None if (grad := tensor.grad) is None else (id(grad), grad._version) for tensor in tensors]


def fate_of(tensor: Tensor, after: Mark) -> Fate:
    """Return whether a gradient has since been set to None or to zero."""
    grad = tensor.grad
    if grad is None:
        return "reset"
    if (id(grad), grad._version) == after:
        return "kept"
    if not grad.is_cpu or type(grad) is not Tensor or grad.layout is not strided:
        return "unknown"
    if bool(grad.detach().flatten()[:READABLE].any()):
        return "kept"
    return "reset" if grad.numel() <= READABLE else "unknown"


def was_reset(tensor: Tensor, after: Mark) -> bool:
    """Return whether a gradient was set to None or to zero since."""
    return after is not None and fate_of(tensor, after) == "reset"


def spread(items: list[Any], many: int) -> list[Any]:
    """Return up to `many` items, evenly spread, including the first and the last."""
    if len(items) <= many:
        return list(items)
    if many <= 1:
        return items[:many]
    return [items[round(number * (len(items) - 1) / (many - 1))] for number in range(many)]
