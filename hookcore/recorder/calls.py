"""A call of a module, as the dispatcher reports it, and the protocol of observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hookcore.recorder.plans import Plan
from hookcore.records import Phase, Tap


@dataclass(slots=True)  # not frozen: one is made for each call, and a frozen one takes three times as long
class Call:
    """The input or output tensors of a module's call."""

    plan: Plan
    tensors: list[tuple[str, Tensor]]  # each with its place in the nested value
    number: int  # counted from the end of the last backward pass; in evaluation, from the start of the step
    phase: Phase
    again: bool = False  # a checkpoint's recompute: only the gradients are new
    comes_again: bool = False  # a checkpoint will run the module again, with the gradients
    traced: bool = False  # inside a compiled graph, which reports its gradients


class Observer(Protocol):
    """Observes the calls of modules. It keeps no tensor without copying it, and runs outside of the user's modes."""

    @property
    def wants_inputs(self) -> bool:
        """Whether it needs inputs at all."""

    def wants(self, plan: Plan) -> bool:
        """Return whether it observes this module."""

    def saw_inputs(self, call: Call) -> None:
        """Handle the inputs that a module is about to get."""

    def saw_outputs(self, call: Call) -> None:
        """Handle the outputs of a module."""

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Handle a gradient that a compiled graph reports."""
