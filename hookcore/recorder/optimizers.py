"""Steps of optimizers: what each of them means for the running step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.internals import current_graph_task
from hookcore.hooks.optimizers import begin_step, end_step
from hookcore.recorder.boundary import EndsSteps, ends_steps
from hookcore.recorder.collector import Collector, without_rows
from hookcore.recorder.entry import entry
from hookcore.recorder.frames import RawFrame
from hookcore.recorder.keeping import Keeping
from hookcore.recorder.observers import Observers
from hookcore.recorder.owners import Owner
from hookcore.recorder.parameters import Parameter, Parameters
from hookcore.recorder.rates import name_of_rate
from hookcore.recorder.scales import LossScale
from hookcore.recorder.sentinel import Sentinel
from hookcore.recorder.waiting import Waiting
from hookcore.records.vocabulary import TIME_OPTIMIZER


@dataclass(slots=True, eq=False)
class OptimizerSteps(EndsSteps):
    """Reads what optimizers use and change, and reports their steps to the clock, which may end a step."""

    _parameters: Parameters
    _observers: Observers
    _collector: Collector
    _scale: LossScale
    _keeping: Keeping
    _sentinel: Sentinel
    _waiting: Waiting
    _ship: Callable[[RawFrame], None]
    last_captured: bool = field(default=False, init=False)  # whether the step that ended last was captured

    @entry("optimizer pre-hook")
    def saw_step_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Read gradients and weights as the optimizer is about to use them."""
        owner = self.clock.step_begins(optimizer, closure=_closure(args, kwargs) is not None)
        if owner is None:
            self._saw_inner_step()
            return
        with_gradients = not owner.inner_passes  # forward and backward run inside the step: the gradients come later
        if with_gradients and not owner.late and self._current.clock is not None:
            self._waiting.before_step()
        if with_gradients and not owner.late and current_graph_task() == -1:
            self._sentinel.look_before_step(self.clock)
        self._read_rates(owner, optimizer)
        self._times.enter(TIME_OPTIMIZER)
        if owner.owned:
            self._parameters.forget_attempt(owner.owned)
        owner.owned, owner.copies, owner.was_read = None, [], False
        self._scale.read(owner.scaler.live(), optimizer)
        if self.last_captured if owner.late else self._current.captured:
            owned, step = self._find_owned(owner, optimizer), self.clock.step - owner.late
            owned = owner.owned = self._parameters.unread(owned, step) if owner.late else owned
            owner.copies = self._parameters.before_step(owned, with_gradients, step)
            if owned:
                self._observers.before_step(owned, with_gradients)
            self._keeping.look("before an optimizer's step", self.clock)
        self._keeping.settle("before an optimizer's step")

    def _read_rates(self, owner: Owner, optimizer: Optimizer) -> None:
        """Add the learning rates that have changed to the step that they are used in."""
        if not self._collector.loss.reads or not (changed := self._collector.rates.read(owner, optimizer)):
            return
        places, step = self.clock.owners.optimizers(), self.clock.step - owner.late
        place = next(place for place, each in enumerate(places) if each is optimizer)
        scalars = {name_of_rate(place, group): now for group, (_, now) in changed.items()}
        if owner.last_step == step - 1 >= 0:  # the first change shows what it was until then
            earlier = {name_of_rate(place, group): was for group, (was, _) in changed.items() if was is not None}
            if earlier:
                self._ship(without_rows(step - 1, time.time(), scalars=earlier))
        if owner.late:
            self._ship(without_rows(step, time.time(), scalars=scalars))
        else:
            self._collector.add_scalars(scalars)

    def _saw_inner_step(self) -> None:
        """Read the gradients that an optimizer uses inside another one's step, as in most versions of SAM.

        The outer one may reset them before its step ends.
        """
        outer = self.clock.outermost
        if outer is not None and outer.inner_passes and outer.owned and not outer.was_read:
            self._read_gradients(outer, outer.owned)

    def _read_gradients(self, owner: Owner, owned: list[Parameter]) -> None:
        """Read the gradients that an optimizer has computed inside its step."""
        owner.was_read = True
        if (optimizer := owner.ref()) is not None:
            self._scale.read(owner.scaler.live(), optimizer)
        self._parameters.read_gradients(owned)
        self._observers.read_gradients(owned)

    def _find_owned(self, owner: Owner, optimizer: Optimizer) -> list[Parameter]:
        """Return the watched parameters of an optimizer; none if none of them need to be read."""
        version, observers = self._parameters.version, self._observers
        if owner.settled == version and not (observers.snapshots.active or observers.probes.due):
            return []
        owned = self._parameters.owned(optimizer)
        owner.settled = version if self._parameters.are_settled(owned) else -1
        return owned

    @ends_steps
    @entry("optimizer post-hook")
    def saw_step_end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """End the step if the optimizer's parameters got new gradients since the last one."""
        owner = self.clock.step_ended(optimizer)
        if owner is None:
            return
        self._times.leave(TIME_OPTIMIZER)
        if (keeper := self._dispatcher.keeper) is not None:
            keeper.updates += 1
        owned, copies, owner.owned, owner.copies = owner.owned, owner.copies, None, []
        computes = owner.inner_passes and (owner.runs_passes or _closure(args, kwargs) is not None)
        if computes and not owner.steps and not owner.was_read:
            # Its model may have been discovered inside this step, so the beginning was ignored.
            owned = self._parameters.owned(optimizer) if self._current.captured else None
        if owned is not None:
            if computes and not owner.was_read:
                self._parameters.forget_gradients(owned)  # at its beginning, they were those of the step before
                self._read_gradients(owner, owned)
            self._parameters.after_step(copies)
            if owned:
                self._observers.after_step(owned)
        self._count(owner, captured=owned is not None)

    def _count(self, owner: Owner, captured: bool) -> None:
        if self.clock.manual:
            return
        if current_graph_task() != -1:
            self.clock.end_with_pass(owner)
            return
        now = self.clock.step
        step = self.clock.count(owner)
        if 0 <= step < now and captured:  # a second optimizer after the same backward pass
            self._ship(self._collector.take(step, micro_batches=self._current.backwards))
            self._scale.forget()


def _closure(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None


guard_functions(begin_step, end_step)
