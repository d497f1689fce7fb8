"""Which parameters no optimizer steps, which get no gradient or are never used, and which ones two optimizers step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from hookcore.recorder.clock import Clock
from hookcore.recorder.neverused import NeverUsed, Traces, holders_of
from hookcore.recorder.owners import Owner
from hookcore.recorder.parameters import Parameter, Parameters
from hookcore.records import ROOT, Value
from hookcore.records.vocabulary import DUPLICATE, ENDED, FROZEN, NEVER_USED, OUTSIDE, OUTSIDE_BEFORE

FIRST: Final = 24  # the step of the first check; the next ones are at twice the step of the one before
EVERY: Final = 128  # steps between two checks later
MIN_STEPS: Final = 12  # of an optimizer
ACTIVE: Final = 32  # steps after which an optimizer that stopped stepping isn't at work
MIN_READ: Final = 16  # captured steps without a gradient
SHOWN: Final = 3  # names in a message


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is true of some parameters, in words and as values."""

    parameters: tuple[Parameter, ...]
    message: str
    about: Mapping[str, Value] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The module of the first one."""
        return self.parameters[0].plan.path


class Ownership:
    """Compares the parameters with the optimizers, rarely, on the training thread: no other may look at gradients.

    A fact is reported if two checks in a row find it, because an optimizer may start late.
    """

    def __init__(self, parameters: Parameters, clock: Clock, emit: Callable[..., None]) -> None:
        self._parameters = parameters
        self._clock = clock
        self._emit = emit
        self._next = FIRST
        self._traces = Traces()
        self._before: dict[str, Fact] = {}  # what the last check found
        self._reported: dict[str, Fact] = {}

    def check(self, step: int) -> None:
        """Report what has changed, if a check is due at the end of this step."""
        if step < self._next or self._clock.reach.many_threads:
            return
        self._next = step + min(step, EVERY)
        owners = [each for each in self._clock.owners if each.owns and each.steps]
        found = self._facts(owners, step) if owners else {}
        for name, fact in found.items():
            if name in self._before and (name not in self._reported or self._reported[name].message != fact.message):
                self._reported[name] = fact
                self._emit(name, fact.message, "info", fact.module, **fact.about)
        for name in set(self._reported) - set(found):
            self._emit(ENDED[name], f"no longer found: {name}", "info", self._reported.pop(name).module)
        self._before = found

    def _facts(self, owners: Sequence[Owner], step: int) -> dict[str, Fact]:
        """Return the facts about parameters, each in the order of the model; those about none are left out."""
        stepped = [(owner, _parameters_of(owner)) for owner in owners]
        inside = {key for _, keys in stepped for key in keys}
        known = [(each, tensor) for each in self._parameters.all() if (tensor := each.tensor) is not None]
        trained = {id(each.plan.root) for each, tensor in known if id(tensor) in inside}
        mine = [pair for pair in known if id(pair[0].plan.root) in trained and pair[1].requires_grad]
        first_inside = next((place for place, (_, tensor) in enumerate(mine) if id(tensor) in inside), 0)
        active = [keys for owner, keys in stepped if owner.steps >= MIN_STEPS and step - owner.last_step <= ACTIVE]
        twice = [each for each, tensor in mine if sum(id(tensor) in keys for keys in active) > 1]
        everyone = [each for each, _ in mine]
        cut_off = _cut_off([pair for pair in mine if id(pair[1]) in inside], holders_of(everyone))
        among = {
            OUTSIDE: _left_out(mine[first_inside:], inside),
            OUTSIDE_BEFORE: _left_out(mine[:first_inside], inside),
            FROZEN: cut_off,
            DUPLICATE: twice,
        }
        facts = {name: Fact(tuple(some), _MESSAGES[name].format(_listed(some))) for name, some in among.items() if some}
        unused = NeverUsed.of(self._idle(stepped, mine, step, {id(each) for each in cut_off}), everyone)
        if unused.parameters:
            facts[NEVER_USED] = Fact(unused.parameters, unused.sentence, unused.about)
        return facts

    def _idle(
        self,
        stepped: Sequence[tuple[Owner, set[int]]],
        mine: Sequence[tuple[Parameter, Tensor]],
        step: int,
        explained: Set[int],
    ) -> list[Parameter]:
        """Return the parameters that no optimizer has changed for long, except those that another fact explains."""
        self._traces.keep({id(tensor) for _, tensor in mine})
        idle = list[Parameter]()
        for owner, keys in stepped:
            optimizer = owner.ref()
            if optimizer is not None:
                idle += self._traces.look(optimizer, [pair for pair in mine if id(pair[1]) in keys], step)
        return [each for each in idle if id(each) not in explained]


def _parameters_of(owner: Owner) -> set[int]:
    optimizer = owner.ref()
    return set() if optimizer is None else {id(each) for group in optimizer.param_groups for each in group["params"]}


def _left_out(mine: Sequence[tuple[Parameter, Tensor]], inside: set[int]) -> list[Parameter]:
    return [each for each, tensor in mine if id(tensor) not in inside and tensor.grad is not None]


def _cut_off(owned: Sequence[tuple[Parameter, Tensor]], holders: Set[str]) -> list[Parameter]:
    """Return the parameters before the first one with a gradient, if their modules run, from the last module on.

    Those after it may belong to a branch that is not used, which many models have and which does no harm.
    """
    found: list[Parameter] = []
    for each, tensor in owned:
        history = each.plan.history
        if tensor.grad is not None or (history.got_gradients and history.without_gradient < MIN_READ):
            break
        # The graph isn't cut after a module that contains one with gradients: only its own parameter is unused.
        if history.seen and history.without_gradient >= MIN_READ and each.plan.path not in holders:
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
