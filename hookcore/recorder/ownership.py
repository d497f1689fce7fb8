"""Which parameters no optimizer steps, which ones get no gradient, and which ones two optimizers step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor

from hookcore.recorder.clock import Clock
from hookcore.recorder.owners import Owner
from hookcore.recorder.parameters import Parameter, Parameters
from hookcore.records import ROOT
from hookcore.records.vocabulary import DUPLICATE, ENDED, FROZEN, OUTSIDE, OUTSIDE_BEFORE

FIRST: Final = 24  # the step of the first check; the next ones are at twice the step of the one before
EVERY: Final = 128  # steps between two checks later
MIN_STEPS: Final = 12  # of an optimizer
ACTIVE: Final = 32  # steps after which an optimizer that stopped stepping isn't at work
MIN_READ: Final = 16  # captured steps without a gradient
SHOWN: Final = 3  # names in a message


class Ownership:
    """Compares the parameters with the optimizers, rarely, on the training thread: no other may look at gradients.

    A fact is reported if two checks in a row find it, because an optimizer may start late.
    """

    def __init__(self, parameters: Parameters, clock: Clock, emit: Callable[..., None]) -> None:
        self._parameters = parameters
        self._clock = clock
        self._emit = emit
        self._next = FIRST
        self._before: dict[str, Parameter] = {}  # the first parameter of each fact, at the last check
        self._reported: dict[str, Parameter] = {}

    def check(self, step: int) -> None:
        """Report what has changed, if a check is due at the end of this step."""
        if step < self._next or self._clock.reach.many_threads:
            return
        self._next = step + min(step, EVERY)
        owners = [each for each in self._clock.owners if each.owns and each.steps]
        found = self._facts(owners, step) if owners else {}
        for name, among in found.items():
            if name in self._before and self._reported.get(name) is not among[0]:
                self._reported[name] = among[0]
                self._emit(name, _MESSAGES[name].format(_listed(among)), "info", among[0].plan.path)
        for name in set(self._reported) - set(found):
            self._emit(ENDED[name], f"no longer found: {name}", "info", self._reported.pop(name).plan.path)
        self._before = {name: among[0] for name, among in found.items()}

    def _facts(self, owners: Sequence[Owner], step: int) -> dict[str, list[Parameter]]:
        """Return the parameters of each fact, in the order of the model; facts without any are left out."""
        stepped = [(owner, _parameters_of(owner)) for owner in owners]
        inside = {key for _, keys in stepped for key in keys}
        known = [(each, tensor) for each in self._parameters.all() if (tensor := each.tensor) is not None]
        trained = {id(each.plan.root) for each, tensor in known if id(tensor) in inside}
        mine = [pair for pair in known if id(pair[0].plan.root) in trained and pair[1].requires_grad]
        first_inside = next((place for place, (_, tensor) in enumerate(mine) if id(tensor) in inside), 0)
        active = [keys for owner, keys in stepped if owner.steps >= MIN_STEPS and step - owner.last_step <= ACTIVE]
        twice = [each for each, tensor in mine if sum(id(tensor) in keys for keys in active) > 1]
        facts = {
            OUTSIDE: _left_out(mine[first_inside:], inside),
            OUTSIDE_BEFORE: _left_out(mine[:first_inside], inside),
            FROZEN: _cut_off([pair for pair in mine if id(pair[1]) in inside]),
            DUPLICATE: twice,
        }
        return {name: among for name, among in facts.items() if among}


def _parameters_of(owner: Owner) -> set[int]:
    optimizer = owner.ref()
    return set() if optimizer is None else {id(each) for group in optimizer.param_groups for each in group["params"]}


def _left_out(mine: Sequence[tuple[Parameter, Tensor]], inside: set[int]) -> list[Parameter]:
    return [each for each, tensor in mine if id(tensor) not in inside and tensor.grad is not None]


def _cut_off(owned: Sequence[tuple[Parameter, Tensor]]) -> list[Parameter]:
    """Return the parameters before the first one with a gradient, if their modules run, from the last module on.

    Those after it may belong to a branch that is not used, which many models have and which does no harm.
    """
    found: list[Parameter] = []
    for each, tensor in owned:
        history = each.plan.history
        if tensor.grad is not None or (history.got_gradients and history.without_gradient < MIN_READ):
            break
        if history.seen and history.without_gradient >= MIN_READ:
            found.append(each)
    else:
        return []  # nothing gets a gradient here: there is no place at which it is cut
    return [each for each in found if each.plan is found[-1].plan] + [
        each for each in found if each.plan is not found[-1].plan
    ]


def _listed(among: Sequence[Parameter]) -> str:
    names = [f"{each.plan.path or ROOT} {each.name}" for each in among[:SHOWN]]
    more = len(among) - len(names)
    return ", ".join(names) + (f", and {more:,} more" if more else "")


_MESSAGES: Final = {
    OUTSIDE: "these parameters get gradients, but aren't in any optimizer that takes steps: {}",
    OUTSIDE_BEFORE: "no optimizer uses the gradients of these parameters; if that is intended, freeze them to save "
    "time: {}",
    FROZEN: "these parameters are in an optimizer and require gradients, but get none: {}",
    DUPLICATE: "these parameters are in more than one optimizer that takes steps: {}",
}
