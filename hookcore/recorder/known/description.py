"""The description of a run, sent now and then; and what hookcore could not do, one event per problem."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from torch.optim import Optimizer

from hookcore import hooks
from hookcore.observe import cpu
from hookcore.recorder.calls.coverage import NO_ROOM, hidden_roots
from hookcore.recorder.capture import Capture
from hookcore.recorder.context import Context
from hookcore.recorder.known.facts import Facts
from hookcore.recorder.known.models import Models
from hookcore.recorder.known.place import Ranks
from hookcore.recorder.known.roots import Root, joined
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


class Problems:
    """Turns the counters of one recorder into events. Called on the recorder's thread."""

    def __init__(self, context: Context, models: Models) -> None:
        self._plans, self._statistics, self._emit = context.plans, context.statistics, context.emit
        self._models = models
        self._emitted: set[str] = set()

    def emit_new(self) -> None:
        """Emit an event for each problem that has none yet."""
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
            if message not in self._emitted and not self._plans.roots:
                logger.warning("hookcore: nothing is captured: %s", message)
            self._emit_once("model-not-watched", message)

    def _emit_once(self, name: str, message: str, module: str = "") -> None:
        if message not in self._emitted:
            self._emitted.add(message)
            self._emit(name, message, "warning", module)


EVERY_S: Final = 30.0
PAUSE: Final = 200  # pause after a description, in multiples of its duration


class Describer:
    """Describes the run to the sink, on the recorder's thread."""

    def __init__(self, context: Context, capture: Capture, ranks: Ranks, facts: Facts) -> None:
        self._context, self._commands, self._models = context, capture.commands, capture.models
        self.ranks, self._facts = ranks, facts
        self.problems = Problems(context, self._models)
        self._due_at = 0.0
        self._rests_until = 0.0  # walking over a very large model blocks other threads
        self._forms = -1  # of the parameters, as last described

    def send_if_requested(self) -> None:
        """Send everything if requested."""
        if self._commands.wants_description:
            self._commands.wants_description = False  # first, so that a request during the description isn't lost
            self.send()

    def send_if_due(self) -> None:
        """Send everything if the last description is old, or parameters were frozen or cast since."""
        began = time.monotonic()
        if began > (self._due_at if self._forms == self._context.parameters.forms else self._rests_until):
            self.send()
            now = time.monotonic()
            self._rests_until = now + PAUSE * (now - began)
            self._due_at = max(now + EVERY_S, self._rests_until)

    def send(self) -> None:
        """Send the modules, their coverage, and the hooks."""
        context = self._context
        self._forms = context.parameters.forms  # first, so that a later change isn't lost
        try:
            self.problems.emit_new()
            self._models.hooks = list_hooks(context.plans.roots, context.owners.optimizers())
            self.send_coverage()
        except Exception as error:
            context.errors.record("description of the modules", error)

    def send_coverage(self) -> None:
        """Send the modules and their coverage, with the hooks of the last inventory."""
        self._models.send(self._models.coverage())

    def send_news(self, ended: bool = False) -> None:
        """Send the place of this process and what the run trains with, whenever more of it is known."""
        self.send_place()
        if ended:
            self._facts.hear({TRAINED: self._context.step})
        try:
            known = self._facts.news(self._context)
        except Exception as error:  # attributes of the user's models and optimizers can do anything
            self._context.errors.record("facts of the run", error)
        else:
            if known is not None:
                self._context.sink.learn(known)

    def send_place(self) -> None:
        """Send where this process is in a distributed training."""
        try:
            place = self.ranks.news(self._models.device)
        except Exception as error:  # never a reason to lose a frame
            self._context.errors.record("place among the ranks", error)
        else:
            if place is not None:
                self._context.sink.locate(place)
