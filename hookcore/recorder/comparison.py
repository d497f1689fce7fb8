"""The witnesses before and after a backward pass: which of them it reached, and their state since then."""

from __future__ import annotations

from collections.abc import Set

from torch import Tensor

from hookcore.recorder.witnesses import Fate, Mark, fate_of, marks_of, was_reset


class Comparison:
    """The newest pass. It keeps tensors only while the pass runs."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []  # of the running pass
        self._marks: list[Mark] = []  # before the running pass or after the last one
        self._versions: list[int] = []  # of the weights, after the last pass
        self._compared: frozenset[int] = frozenset()  # at the last pass, by id

    def begin(self, tensors: list[Tensor]) -> None:
        """Look at the witnesses before a pass."""
        self._tensors, self._marks = tensors, marks_of(tensors)

    @property
    def differs(self) -> bool:
        """Whether any of them has another gradient than before the running pass."""
        return marks_of(self._tensors) != self._marks

    def end(self, with_weights: bool) -> tuple[list[Tensor], list[Mark], set[int]]:
        """Look at them after it. Return them, their marks, and by id those that it reached."""
        tensors, before, now = self._tensors, self._marks, marks_of(self._tensors)
        self._tensors, self._compared, self._marks = [], frozenset(map(id, tensors)), now
        if with_weights:
            self._versions = [tensor._version for tensor in tensors]
        if now == before:
            return tensors, now, set()
        return tensors, now, {id(t) for t, old, new in zip(tensors, before, now, strict=True) if old != new}

    def mark(self, tensors: list[Tensor]) -> None:
        """Assume that the last pass reached these tensors, without comparing them with their earlier state."""
        self._marks = marks_of(tensors)

    def skip(self) -> None:
        """Compare nothing in the pass that begins."""
        self._tensors, self._marks, self._compared = [], [], frozenset()

    def forget_marks(self) -> None:
        """Forget what the gradients and the weights were."""
        self._marks, self._versions = [], []

    def let_go(self) -> None:
        """Keep no tensor."""
        self._tensors, self._marks = [], []

    @property
    def has_marks(self) -> bool:
        """Whether it is known what the gradients were."""
        return bool(self._marks)

    def was_at(self, keys: Set[int]) -> bool:
        """Return whether the last pass was compared at any of these witnesses, given by id."""
        return not self._compared.isdisjoint(keys)

    def fate_of(self, tensors: list[Tensor], reached: Set[int] | None = None) -> Fate:
        """Return the state of the gradients since the last pass; only of the reached ones, if given."""
        if len(tensors) != len(self._marks):
            return "unknown"
        marked = zip(tensors, self._marks, strict=True)
        of_pass = [(t, mark) for t, mark in marked if mark is not None and (reached is None or id(t) in reached)]
        fates = {fate_of(tensor, mark) for tensor, mark in of_pass}
        return "unknown" if len(fates) > 1 else next(iter(fates), "kept")

    def weights_changed(self, tensors: list[Tensor]) -> bool:
        """Return whether a weight was changed since the last pass."""
        return len(tensors) == len(self._marks) and self._versions != [tensor._version for tensor in tensors]

    def were_reset(self, tensors: list[Tensor]) -> bool:
        """Return whether any gradient was reset since the last pass."""
        return len(tensors) == len(self._marks) and any(map(was_reset, tensors, self._marks))
