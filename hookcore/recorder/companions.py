"""Hooks that accompany a module's own hooks.

Torch calls the hooks on the process before those on a module. If a module's own hooks replace its inputs or outputs, a
hook on the process sees the values before that. A companion comes after the module's own hooks and sees what the module
really receives and returns. Modules without their own hooks never get one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from hookcore import hooks
from hookcore.hooks.compiled import guarded
from hookcore.hooks.inert import InertInCopies
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.plans import Plan

_is_compiling = torch.compiler.is_compiling

LATE_PRE_HOOK = "a hook was added to it during the step, so the input of that call was not captured"


class Companions:
    """The companions of one attachment to the process."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.after: dict[int, AfterCompanion] = {}  # by id(module), while the module runs
        self.before: dict[int, hooks.HookHandle] = {}  # by id(module), during a captured step

    def saw_input(self, plan: Plan, args: Any) -> None:
        """Report what a module really receives."""
        if (meter := self._dispatcher.current.meter) is not None:
            meter.enter()
        self._dispatcher.saw_input(plan, args)
        if meter is not None:
            meter.leave()

    def saw_return(self, plan: Plan, keywords: Any, output: Any) -> None:
        """Report what a module really returns."""
        if (meter := self._dispatcher.current.meter) is not None:
            meter.enter()
        self._dispatcher.saw_return(plan, keywords, output)
        if meter is not None:
            meter.leave()

    def begin_step(self, plans: Iterable[Plan]) -> None:
        """Add a pre-hook to each module that has its own: within a call, that would be too late."""
        for plan in plans:
            if (module := plan.ref()) is not None and module._forward_pre_hooks:
                self.add_before(module, plan)

    def end_step(self) -> None:
        """Remove the pre-hooks from the modules."""
        for handle in self.before.values():
            handle.remove()
        self.before.clear()

    def add_before(self, module: nn.Module, plan: Plan) -> None:
        """Observe the inputs of the module's next calls."""
        if id(module) not in self.before:
            with contextlib.suppress(RuntimeError, AttributeError):  # a scripted module accepts no hook
                self.before[id(module)] = hooks.on_forward_pre(module, BeforeCompanion(self, plan))

    def missed_input(self, module: nn.Module, plan: Plan) -> None:
        """Handle a module that got its own pre-hooks after the step began."""
        plan.note_reason(LATE_PRE_HOOK)
        self.add_before(module, plan)

    def enter(self, module: nn.Module, plan: Plan) -> None:
        """Handle the start of a module with its own forward hooks."""
        companion = self.after.get(id(module))
        if companion is None:
            companion = AfterCompanion(self, plan)
            keywords = self._dispatcher.wants_input(plan)
            with contextlib.suppress(RuntimeError, AttributeError):  # a scripted module accepts no hook
                companion.handle = hooks.on_forward(module, companion, always_call=True, with_kwargs=keywords)
                self.after[id(module)] = companion
        companion.calls += 1

    def close(self) -> None:
        """Remove all companions."""
        self.end_step()
        for companion in list(self.after.values()):
            companion.leave()
        self.after.clear()


class BeforeCompanion(InertInCopies):
    """The last pre-hook of a module that has its own pre-hooks."""

    __slots__ = ("companions", "plan")

    def __init__(self, companions: Companions, plan: Plan) -> None:
        self.companions = companions
        self.plan = plan

    @guarded
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if not _is_compiling():
            self.companions.saw_input(self.plan, args)


class AfterCompanion(InertInCopies):
    """The last forward hook of a module that has its own forward hooks, while the module runs."""

    __slots__ = ("calls", "companions", "handle", "plan")

    def __init__(self, companions: Companions, plan: Plan) -> None:
        self.companions = companions
        self.plan = plan
        self.calls = 0  # a module may call itself
        self.handle: hooks.HookHandle | None = None

    @guarded
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if _is_compiling():
            return
        output = rest[-1]
        self.calls -= 1
        if self.calls <= 0:
            self.companions.after.pop(id(module), None)
            self.leave()
        if output is not None:  # None after an exception
            self.companions.saw_return(self.plan, rest[0] if len(rest) > 1 else {}, output)

    def leave(self) -> None:
        """Remove it from the module."""
        if self.handle is not None:
            self.handle.remove()
