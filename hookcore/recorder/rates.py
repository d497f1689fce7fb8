"""The learning rates of optimizers, in the steps in which they change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

from hookcore.errors import ArgumentError
from hookcore.recorder.foundloss import FIRST_STEPS
from hookcore.recorder.owners import Owner
from hookcore.recorder.scalars import read_memory, scalar_of
from hookcore.records.vocabulary import is_rate

MAX_GROUPS: Final = 16  # of one optimizer


class Rates:
    """Compares the learning rates of each optimizer with those of its last step. Nothing waits for a device."""

    def __init__(self) -> None:
        self.is_logged = False  # by the script, so that nothing needs to be found

    def note_log(self, step: int, names: Iterable[str]) -> None:
        """Note which numbers the script logs."""
        if step <= FIRST_STEPS and not self.is_logged:
            self.is_logged = any(map(is_rate, names))

    def read(self, owner: Owner, optimizer: Optimizer) -> dict[int, tuple[Any, Any]]:
        """Return the rates that have changed, by group: the old one, if this is the first change, and the new one."""
        if self.is_logged:
            return {}
        given = [group.get("lr") for group in optimizer.param_groups[:MAX_GROUPS]]
        rates = [each if type(each) is float else _mark_of(each) for each in given]
        before, owner.rates = owner.rates, rates
        if before is None or rates == before:
            return {}
        changed = (place for place in range(len(rates)) if place >= len(before) or rates[place] != before[place])
        return {place: told for place in changed if (told := _tell(owner, place, before, given)) is not None}


def name_of_rate(optimizer: int, group: int) -> str:
    """Return the name of a learning rate, as facts name it: `optimizer/lr`, `optimizer2/group1/lr`."""
    return f"optimizer{optimizer + 1 if optimizer else ''}/{f'group{group}/' if group else ''}lr"


def _tell(owner: Owner, place: int, before: list[Any], given: list[Any]) -> tuple[Any, Any] | None:
    rates = owner.rates or []
    is_own = not place or place in owner.rated or rates[place] != rates[0]
    if not is_own or rates[place] is None:
        return None
    try:
        now = scalar_of(given[place])
    except ArgumentError:  # it has no value yet, inside the capture of a CUDA graph
        return None
    is_first = place not in owner.rated and place < len(before) and isinstance(before[place], float)
    owner.rated.add(place)
    return before[place] if is_first else None, now


def _mark_of(rate: Any) -> Any:
    """Return the number, or of a tensor on a device which version of which it is; None for anything else."""
    if isinstance(rate, Tensor):
        if rate.numel() != 1 or (number := read_memory(rate)) is not None:
            return None if rate.numel() != 1 else number
        return id(rate), 0 if rate.is_inference() else rate._version
    return float(rate) if isinstance(rate, int | float) else None
