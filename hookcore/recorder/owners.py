"""The optimizers that own watched parameters, as the clock knows them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.recorder.instances import instances_of
from hookcore.recorder.parameters import Copies, Parameter, Parameters
from hookcore.recorder.scalers import ScalerLink
from hookcore.recorder.witnesses import Witnesses, spread, tensors_of

WITNESSES: Final = 4  # of one optimizer
FIRST_WITNESSES: Final = 16  # of all watched parameters, while optimizers are still met
MANY_WITNESSES: Final = 512  # of an optimizer that a pass once reached past its witnesses
ALL_WITNESSES: Final = 128  # of all optimizers together, unless one needs more
RECENT: Final = 256  # steps after which an optimizer that stopped stepping counts no more


@dataclass(slots=True, eq=False)
class Owner:
    """An optimizer and its steps."""

    ref: weakref.ref[Optimizer]
    owns: bool = False  # whether any of its parameters is watched
    was_sought: bool = False  # whether a model that it steps was looked for after the closure of its first step
    owned: list[Parameter] | None = None  # these, while it makes a step whose values are read
    copies: Copies = field(default_factory=list)  # of its weights, during such a step or since one raised
    settled: int = -1  # the version of the parameters that has been read completely
    witnesses: Witnesses = field(default_factory=Witnesses)
    scaler: ScalerLink = field(default_factory=ScalerLink)
    late: bool = False  # whether it steps with the gradients of the step that ended last
    inner_passes: bool = False  # whether its step computes the gradients, with a closure or by itself
    was_read: bool = False  # whether the gradients of this step were read inside it
    runs_passes: bool = False  # whether it runs backward passes without having been given a closure
    inside: bool = False  # whether it steps inside the backward pass
    steps: int = 0
    ended: int = 0  # steps of the run that it ended; it joined another one's in the rest of its own
    rates: list[Any] | None = None  # of its groups in its last step: numbers, or of which version of which tensor
    rated: set[int] = field(default_factory=set)  # the groups whose rate was seen to change
    loss_name: str = ""  # of the loss that it is stepped for, once that was found
    last_step: int = -1  # the step of the run to which its last step belongs
    state: tuple[Any, ...] = ()  # of its parameters, when it was last looked up what it owns
    _gap: int = 1  # steps from one of its steps to the next

    def count(self, step: int) -> None:
        """Count a step of its own, which belongs to this step of the run."""
        gap = step - self.last_step
        self._gap = gap if gap > 1 and self.last_step >= 0 else 1
        self.last_step = step
        self.steps += 1

    def gap(self, step: int) -> int:
        """Return the steps from one of its steps to the next, 1 if it is no longer at work."""
        return self._gap if self.steps and step - self.last_step <= RECENT else 1


class Owners:
    """Every optimizer that was seen to step, and the witnesses of them all."""

    def __init__(self, parameters: Parameters, find_model: Callable[[Optimizer, bool], bool]) -> None:
        self._parameters = parameters
        self._find_model = find_model
        self._owners: dict[int, Owner] = {}
        self.met = 0  # optimizers so far, those included that are gone
        self._witnesses: list[Parameter] = []
        self._known = (-1, False)  # how many parameters there were when the witnesses were chosen, and whether early

    def __iter__(self) -> Iterator[Owner]:
        return iter(list(self._owners.values()))

    def let_go(self) -> None:
        """Forget every optimizer."""
        self._owners.clear()

    def get(self, optimizer: Optimizer) -> Owner | None:
        """Return the known facts about an optimizer."""
        return self.with_id(id(optimizer))

    def with_id(self, key: int) -> Owner | None:
        """Return the known facts about the optimizer with this id."""
        return self._owners.get(key)

    def are_waiting(self) -> bool:
        """Return whether there is an optimizer with watched parameters, though none has stepped. It takes a while."""
        return bool(self.find_waiting())

    def find_waiting(self) -> list[list[Parameter]]:
        """Return the watched parameters of each optimizer that hasn't stepped any yet. It takes a while."""
        unmet = (each for each in instances_of(Optimizer) if self.get(each) is None)
        return [owned for each in unmet if (owned := self._parameters.owned(each))]

    def place_of(self, owner: Owner) -> int:
        """Return the place of an optimizer among those that step watched parameters."""
        return next((place for place, each in enumerate(each for each in self if each.owns) if each is owner), 0)

    def meet(self, optimizer: Optimizer, compares: bool, has_closure: bool = False) -> Owner:
        """Return the known facts about an optimizer that steps. `compares`: whether witnesses compare gradients.

        `has_closure`: it begins a step with a closure, which may run its model for the first time.
        """
        groups = optimizer.param_groups
        # Enough to notice that parameters were added or replaced.
        newest = groups[-1]["params"] if groups else []
        state = (len(groups), len(newest), id(newest[-1]) if newest else 0)
        key = id(optimizer)
        owner = self._owners.get(key)
        if owner is None or owner.ref() is not optimizer:
            owners = self._owners
            owner = owners[key] = Owner(weakref.ref(optimizer, lambda _: owners.pop(key, None)))
            self.met += 1
        if owner.state != (*state, self._parameters.adopted):
            owned = self._parameters.owned(optimizer)  # which may adopt some
            may_run = has_closure and not owner.was_sought
            if not owned and self._find_model(optimizer, may_run):
                owned = self._parameters.owned(optimizer)
            owner.was_sought = not may_run
            owner.owns, owner.settled = bool(owned), -1
            owner.state = (*state, self._parameters.adopted) if owned or not may_run else ()
            watched = {id(each) for each in self._witnesses}
            seen = [each for each in owned if id(each) in watched]
            owner.witnesses.were_reached = bool(seen) and compares
            owner.witnesses.choose(seen)
            if len(seen) < WITNESSES:
                self.add_witnesses(owner, self._share())
        return owner

    def _share(self) -> int:
        owners = sum(owner.owns for owner in self)
        return max(1, min(WITNESSES, ALL_WITNESSES // max(1, owners)))

    def add_witnesses(self, owner: Owner, many: int = MANY_WITNESSES) -> None:
        """Add up to `many` of an optimizer's parameters, from the next pass on."""
        optimizer = owner.ref()
        owned = self._parameters.owned(optimizer) if optimizer is not None else []
        trainable = [each for each in owned if (tensor := each.tensor) is not None and tensor.requires_grad]
        known = owner.witnesses.parameters
        self._known = (-1, False)
        if owner.steps or not known:
            owner.witnesses.choose(list({id(each): each for each in (*known, *spread(trainable, many))}.values()))

    def choose_witnesses(self, early: bool) -> None:
        """Choose the witnesses of all optimizers and, while not every optimizer was met, some of all parameters."""
        if self._known == (self._parameters.adopted, early):
            return
        if self._known[1] and not early:
            for owner in self:
                if len(owner.witnesses.parameters) <= FIRST_WITNESSES:
                    owner.witnesses.choose(spread(owner.witnesses.parameters, self._share()))
        self._known = (self._parameters.adopted, early)
        inside = {id(each) for owner in self if owner.inside for each in owner.witnesses.parameters}
        chosen = [each for owner in self if owner.owns for each in owner.witnesses.parameters]
        if early:
            trainable = [each for each in self._parameters.all() if (t := each.tensor) is not None and t.requires_grad]
            chosen += spread(trainable, FIRST_WITNESSES)
        self._witnesses = [each for key, each in {id(each): each for each in chosen}.items() if key not in inside]
        for owner in self:
            if owner.owns and not owner.witnesses.parameters:
                owner.state = ()

    def tensors_to_compare(self) -> list[Tensor]:
        """Return the witnesses' tensors: their own list if only one optimizer is at work."""
        if self._known[1]:
            return self.tensors()
        at_work = [owner for owner in self if owner.owns and not owner.inside]
        if len(at_work) == 1:
            return at_work[0].witnesses.tensors
        return [tensor for owner in at_work for tensor in owner.witnesses.tensors]

    def tensors(self) -> list[Tensor]:
        """Return the tensors of all witnesses as they are now."""
        return tensors_of(self._witnesses)

    def only_one(self) -> Owner | None:
        """Return the optimizer that alone steps watched parameters, after a pass and without a scaler."""
        at_work = [owner for owner in self if owner.owns and owner.steps]
        if len(at_work) != 1 or at_work[0].inside or at_work[0].scaler.found:
            return None
        return at_work[0]

    def optimizers(self) -> list[Optimizer]:
        """Return every optimizer that is still there."""
        return [found for owner in self if (found := owner.ref()) is not None]

    def scalers(self) -> list[GradScaler]:
        """Return the enabled scalers that step an optimizer."""
        found = {id(scaler): scaler for owner in list(self._owners.values()) if (scaler := owner.scaler.live())}
        return list(found.values())

    def known_scale(self) -> float | None:
        """Return the loss scale in force, if there is one scaler and its scale isn't on another device."""
        scalers = self.scalers()
        scale = scalers[0]._scale if len(scalers) == 1 else None
        return float(scale) if isinstance(scale, Tensor) and scale.is_cpu else None

    def longest_gap(self, step: int) -> int:
        """Return the length of a block of steps in which every active optimizer steps."""
        longest = 1
        for owner in list(self._owners.values()):
            if (gap := owner.gap(step)) > longest:
                longest = gap
        return longest
