"""A call of a module, as the dispatcher reports it, and the protocol of those who observe calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hookcore.recorder.plans import Plan
from hookcore.records import Phase, Tap


@dataclass(slots=True)  # not frozen, because one is made for each call and a frozen one takes three times as long
class Call:
    """The tensors that went into a module, or that came out of it."""

    plan: Plan
    tensors: list[tuple[str, Tensor]]  # each with its place in the nested value
    number: int  # counted from the end of the last backward pass; in evaluation, from the begin of the step
    phase: Phase
    again: bool = False  # a checkpoint runs the module again: only the gradients are new
    comes_again: bool = False  # a checkpoint will run the module again, and the gradients come only then
    traced: bool = False  # inside a compiled graph, which reports the gradients by itself


class Observer(Protocol):
    """Sees the calls of modules. It keeps no tensor without copying it, and runs outside of the user's modes."""

    @property
    def wants_inputs(self) -> bool:
        """Whether it looks at inputs at all."""

    def wants(self, plan: Plan) -> bool:
        """Return whether it looks at this module."""

    def saw_inputs(self, call: Call) -> None:
        """Look at what a module is about to get."""

    def saw_outputs(self, call: Call) -> None:
        """Look at what a module returned."""

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Look at a gradient that a compiled graph reports."""
