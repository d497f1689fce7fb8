"""What an optimizer keeps for each weight, such as Adam's moments: its tensors are measured after some steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

from hookcore.observe.plain import unseen
from hookcore.recorder.known.parameters import ROOM, Parameter
from hookcore.recorder.measured.statistics import Statistics
from hookcore.records import Kind, Tap

MAX_LISTED: Final = 4  # tensors of a list in a state, such as the factors of a preconditioner
_KINDS: Final[Mapping[str, Kind]] = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}  # others are of the kind `state`
NO_ROOM: Final = "its optimizer's state is left out: there is no room for more tensors"


class States:
    """Measures the states of optimizers in the steps in which they are due."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._due = self._was_due = False  # in the running step, and in the one before

    def begin_step(self, due: bool) -> None:
        """Begin a step, in which they may be due."""
        self._due, self._was_due = due, self._due

    def read(self, optimizer: Optimizer, owned: Sequence[Parameter], late: bool) -> None:
        """Measure what this optimizer keeps for these parameters, which it has just stepped.

        `late`: after another optimizer, which has ended the step.
        """
        if not (self._was_due if late else self._due):
            return
        has_room = self._statistics.table.room >= ROOM * len(owned)
        for each in owned:
            if "param_grad" not in each.plan.kinds or (tensor := each.tensor) is None:
                continue
            if not has_room:
                each.plan.note_reason(NO_ROOM)
                continue
            with unseen():
                found = dict(_tensors_in(optimizer.state.get(tensor), tensor))
            for name, value in found.items():
                self._add(each, name, value)

    def _add(self, parameter: Parameter, name: str, value: Tensor) -> None:
        plan = parameter.plan
        if not (value.is_floating_point() or value.is_complex()):
            plan.note_reason(f"{name} of its optimizer is left out: only the optimizer can decode its {value.dtype}")
            return
        kind = _KINDS.get(name, "state")
        tap = Tap(plan.path, kind, parameter.name if kind != "state" else f"{parameter.name}.{name}")
        slot = self._statistics.table.add(tap)
        if slot >= 0:
            self._statistics.add_safely(plan, value, slot)


def _tensors_in(state: Any, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a parameter's state by name: those of its own shape, and factors of it.

    A counter of steps is a number, and what LBFGS keeps for its first parameter is about all of them.
    """
    known = {1, *parameter.shape}
    for name, value in state.items() if isinstance(state, Mapping) else ():
        several = value[:MAX_LISTED] if isinstance(value, (list, tuple)) else ()
        named = ((f"{name}.{place}", each) for place, each in enumerate(several)) if several else ((name, value),)
        for full, each in named:
            is_counter = not isinstance(each, Tensor) or (each.dim() == 0 < parameter.dim()) or not each.numel()
            if not is_counter and known.issuperset(each.shape):
                yield str(full), each
