"""Finds the learning rate schedulers of a training. An optimizer doesn't know its schedulers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hookcore.config import Flat, flatten
from hookcore.recorder.instances import instances_of

MAX_SCHEDULERS: Final = 8
_PARTS: Final = "_schedulers"  # of a scheduler that consists of others
# Not hyperparameters: a scheduler's optimizer, and its counters.
_STATE: Final = frozenset(
    {"optimizer", "base_lrs", "last_epoch", "verbose", "best", "mode_worse", "num_bad_epochs", "cooldown_counter"}
    | {"T_cur", "T_i"}
)


def facts_of_schedulers(optimizers: Sequence[Optimizer]) -> Flat:
    """Return the class and the hyperparameters of each scheduler.

    Those of a scheduler that consists of others are `scheduler.LinearLR.total_iters`. A second scheduler is
    `scheduler2`.
    """
    places = {id(optimizer): place for place, optimizer in enumerate(optimizers)}
    theirs = [each for each in instances_of(LRScheduler) if id(_optimizer_of(each)) in places]
    parts = {id(part) for each in theirs for part in _parts_of(each)}
    whole = [each for each in theirs if id(each) not in parts]
    whole.sort(key=lambda each: places[id(_optimizer_of(each))])
    found: dict[str, Any] = {}
    for number, each in enumerate(whole[:MAX_SCHEDULERS], 1):
        name = "scheduler" if number == 1 else f"scheduler{number}"
        found[name] = type(each).__name__
        found |= {f"{name}.{option}": value for option, value in _hyperparameters(each).items()}
    return flatten(found, left_out=len(whole[MAX_SCHEDULERS:]))


def _optimizer_of(scheduler: LRScheduler) -> Any:
    """Return the optimizer of a scheduler; without the wrapper that Accelerate puts around it."""
    found = vars(scheduler).get("optimizer")
    return found if found is None else vars(found).get("optimizer", found)


def _parts_of(scheduler: LRScheduler) -> list[LRScheduler]:
    parts = vars(scheduler).get(_PARTS)
    return [each for each in parts if isinstance(each, LRScheduler)] if isinstance(parts, list | tuple) else []


def _hyperparameters(scheduler: LRScheduler) -> dict[str, Any]:
    known = vars(scheduler)
    found = {name: value for name, value in known.items() if not name.startswith("_") and name not in _STATE}
    if parts := _parts_of(scheduler):
        found["parts"] = ", ".join(type(part).__name__ for part in parts)
        found["milestones"] = known.get("_milestones")
        for part in parts:
            named = _hyperparameters(part).items()
            found |= {f"{type(part).__name__}.{option}": value for option, value in named}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):  # the milestones of MultiStepLR
        return sorted(value.elements())
    # A function for each group of the optimizer, usually the same.
    same = isinstance(value, list) and value and callable(value[0]) and all(each is value[0] for each in value)
    return value[0] if same else value
