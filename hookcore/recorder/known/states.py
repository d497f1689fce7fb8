"""What an optimizer keeps for each weight, such as Adam's moments, and how it steps: measured in some steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from hookcore.observe.plain import unseen
from hookcore.recorder.known.parameters import ROOM, Copies, Parameter
from hookcore.recorder.measured.scalars import read_memory
from hookcore.recorder.measured.statistics import Statistics
from hookcore.recorder.measured.taps import is_shard
from hookcore.records import PROBE, Kind, Tap
from hookcore.records.vocabulary import DECAY_SHARE, STEP_NUMBERS

MAX_LISTED: Final = 4  # tensors of a list in a state, such as the factors of a preconditioner
_KINDS: Final[Mapping[str, Kind]] = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}  # others are of the kind `state`
# Optimizers, and those derived from them, whose weight decay is no part of the gradient; their groups may not say so.
DECOUPLED: Final = frozenset({"AdamW", "Lion", "Muon", "AdamW8bit", "Lion8bit", "SOAP"})
SPLIT: Final = (
    "numbers about whole updates, such as the effective learning rate, are left out: a rank has a part of each"
)
NO_ROOM: Final = "its optimizer's state is left out: there is no room for more tensors"


class StepOfWeight(NamedTuple):
    """The rows of one weight's step, from whose norms the recorder's thread computes numbers."""

    gradient: int
    update: int
    before: int
    after: int
    decay: float  # the share of the weight that weight decay takes; NaN if that is unknown
    numbers: tuple[int, ...]  # where they go, in the order of `STEP_NUMBERS`


class States:
    """Measures the states of optimizers in the steps in which they are due."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._rows: dict[
            tuple[str, str], tuple[int, ...]
        ] = {}  # by module and name: of the weight after a step, and of numbers
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

    def compare(self, optimizer: Optimizer, copies: Copies, late: bool) -> list[StepOfWeight]:
        """Measure weights after a step whose updates are captured. Return what to compute of them."""
        found: list[StepOfWeight] = []
        if not (self._was_due if late else self._due) or self._statistics.table.room < ROOM * len(copies):
            return found
        decays: dict[int, float] = {}
        for group in optimizer.param_groups:
            decays |= dict.fromkeys(map(id, group["params"]), _decay_in(optimizer, group))
        for parameter, _ in copies:
            plan, tensor = parameter.plan, parameter.tensor
            if tensor is None or "update" not in plan.kinds or parameter.grad_slot < 0:
                continue
            if is_shard(tensor):
                plan.note_reason(SPLIT)
                continue
            decay = decays.get(id(tensor), float("nan"))
            after, *numbers = self._rows_of(parameter, decay == decay)
            if after >= 0:
                self._statistics.add_safely(plan, tensor, after)
                slots = parameter.grad_slot, parameter.update_slot, parameter.norm_slot, after
                found.append(StepOfWeight(*slots, decay, tuple(numbers)))
        return found

    def _rows_of(self, parameter: Parameter, with_decay: bool) -> tuple[int, ...]:
        """Return the row of the weight after the step, and those of the numbers; -1 for one that is never known."""
        plan, name = parameter.plan, parameter.name
        rows = self._rows.get((plan.path, name))
        if rows is None:
            table = self._statistics.table
            numbers = (
                table.add(Tap(plan.path, PROBE, f"{each} {name}")) if each != DECAY_SHARE or with_decay else -1
                for each in STEP_NUMBERS
            )
            rows = table.add(Tap(plan.path, "param", name), hidden=True), *numbers
            self._rows[plan.path, name] = rows
        return rows

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


def _decay_in(optimizer: Optimizer, group: Mapping[str, Any]) -> float:
    """Return the share of a weight that decay takes in a step; NaN if decay is a part of the gradient, or unknown."""
    names = {base.__name__ for base in type(optimizer).__mro__}
    product = 1.0 if group.get("decoupled_weight_decay") or names & DECOUPLED else float("nan")
    for name in ("lr", "weight_decay"):
        value = group.get(name)
        number = read_memory(value) if isinstance(value, Tensor) else value
        product *= number if isinstance(number, int | float) else float("nan")
    return product


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
