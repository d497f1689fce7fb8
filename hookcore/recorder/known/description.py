"""The description of a run, sent now and then; and what hookcore could not do, one event per problem."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from torch.optim import Optimizer

from hookcore import hooks
from hookcore.observe import cpu
from hookcore.recorder.calls.coverage import NO_ROOM, hidden_roots
from hookcore.recorder.calls.plans import PlanTable
from hookcore.recorder.clock.clock import Clock
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.known.facts import Facts
from hookcore.recorder.known.models import Models
from hookcore.recorder.known.place import Ranks
from hookcore.recorder.known.roots import Root, joined
from hookcore.recorder.leaving.shipping import Shipper
from hookcore.recorder.measured.statistics import Statistics
from hookcore.recorder.measured.taps import TapTable
from hookcore.records import HookRecord
from hookcore.records.vocabulary import TRAINED

MAX_HOOKS: Final = 20_000
_ELSEWHERE: Final = ("process", "thread")  # the listing thread is the recorder's, so its hooks are irrelevant


def list_hooks(roots: Iterable[Root], optimizers: Iterable[Optimizer]) -> tuple[HookRecord, ...]:
    """Return the first `MAX_HOOKS` hooks on the models, their parameters, the optimizers, and the process."""
    return tuple(islice(_list(roots, optimizers), MAX_HOOKS))


def _list(roots: Iterable[Root], optimizers: Iterable[Optimizer]) -> Iterator[HookRecord]:
    for record in hooks.inventory(optimizers=list(optimizers)):
        if record.scope != "thread":
            yield record
    for root in roots:
        module = root.ref()
        if module is None:
            continue
        for record in hooks.inventory(module):
            if record.scope not in _ELSEWHERE:
                yield replace(record, owner=joined(root.name, record.owner)) if root.name else record


logger = logging.getLogger("hookcore")


@dataclass(slots=True, eq=False)
class Problems:
    """Turns the counters of one recorder into events. Called on the recorder's thread."""

    _plans: PlanTable
    _statistics: Statistics
    _models: Models
    _emit: Callable[..., None]
    _infeasible: str  # why the settings aren't the given ones
    _emitted: set[str] = field(default_factory=set, init=False)

    def emit_new(self) -> None:
        """Emit an event for each problem that has none yet."""
        if self._infeasible:
            self._emit_once("inside-infeasible", self._infeasible)
        if cpu.FALLBACK_REASON:
            self._emit_once("slow-kernel", cpu.SLOW_KERNEL)
        if self._statistics.table.refused:
            self._emit_once("taps-not-captured", f"some tensors are not captured: {NO_ROOM}")
        self.say_refused()
        for arena in list(self._statistics.devices.arenas.values()):
            if arena.fallback_reason:
                how = f"tensors on {arena.device} are measured with PyTorch operators: {arena.fallback_reason}"
                self._emit_once("slow-kernel", how)
        for path, why in hidden_roots(self._plans, self._models.hooks_are_on_modules):
            message = f"{path or 'the model'} is training, but hooks see no call of its modules: {why}"
            self._emit_once("inside-compiled-function", message, path)

    def say_refused(self) -> None:
        """Report models that no pattern fits. It is a warning in the terminal, too, if no other model is watched."""
        for name, why in list(self._models.refused.items()):
            message = f"a running model is not watched. {name}: {why}"
            if message not in self._emitted and not self._models.roots:
                logger.warning("hookcore: nothing is captured: %s", message)
            self._emit_once("model-not-watched", message)

    def _emit_once(self, name: str, message: str, module: str = "") -> None:
        if message not in self._emitted:
            self._emitted.add(message)
            self._emit(name, message, "warning", module)


EVERY_S: Final = 30.0
PAUSE: Final = 200  # pause after a description, in multiples of its duration


@dataclass(slots=True, eq=False)
class Describer:
    """Describes the run to the sink, on the recorder's thread."""

    _shipper: Shipper
    _models: Models
    _table: TapTable
    _clock: Clock
    _problems: Problems
    _ranks: Ranks
    _facts: Facts
    _errors: ErrorLog
    _hooks: tuple[HookRecord, ...] = field(default=(), init=False)  # the last inventory
    _due_at: float = field(default=0.0, init=False)
    _rests_until: float = field(default=0.0, init=False)  # walking over a very large model blocks other threads
    _forms: int = field(default=-1, init=False)  # of the parameters, as last described
    requested: bool = field(default=True, init=False)  # the first one is sent without a request

    def request(self) -> None:
        """Send everything soon. Can be called from any thread."""
        self.requested = True

    def send_if_requested(self) -> None:
        """Send everything if requested."""
        if self.requested:
            self.requested = False  # first, so that a request during the description isn't lost
            self.send()

    def send_if_due(self) -> None:
        """Send everything if the last description is old, or parameters were frozen or cast since."""
        began = time.monotonic()
        if began > (self._due_at if self._forms == self._models.parameters.forms else self._rests_until):
            self.send()
            now = time.monotonic()
            self._rests_until = now + PAUSE * (now - began)
            self._due_at = max(now + EVERY_S, self._rests_until)

    def send(self) -> None:
        """Send the modules, their coverage, and the hooks."""
        self._forms = self._models.parameters.forms  # first, so that a later change isn't lost
        try:
            self._problems.emit_new()
            self._hooks = list_hooks(self._models.roots, self._clock.owners.optimizers())
            self.send_coverage()
        except Exception as error:
            self._errors.record("description of the modules", error)

    def send_coverage(self) -> None:
        """Send the modules and their coverage, with the hooks of the last inventory."""
        self._shipper.sink.describe(self._models.records(), self._models.coverage(self._table), self._hooks)

    def send_modules(self) -> None:
        """Send the modules, without waiting for their coverage."""
        self._shipper.sink.describe(self._models.records(), (), self._hooks)

    def send_news(self, ended: bool = False) -> None:
        """Send the place of this process and what the run trains with, whenever more of it is known."""
        self.send_place()
        if ended:
            self._facts.hear({TRAINED: self._clock.step})
        try:
            known = self._facts.news(self._models, self._clock.owners)
        except Exception as error:  # attributes of the user's models and optimizers can do anything
            self._errors.record("facts of the run", error)
        else:
            if known is not None:
                self._shipper.sink.learn(known)

    def send_place(self) -> None:
        """Send where this process is in a distributed training."""
        try:
            place = self._ranks.news(self._models.device)
        except Exception as error:  # never a reason to lose a frame
            self._errors.record("place among the ranks", error)
        else:
            if place is not None:
                self._shipper.sink.locate(place)
