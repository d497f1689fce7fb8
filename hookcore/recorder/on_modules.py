"""Hooks on each selected module, for processes full of other modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from hookcore import hooks
from hookcore.hooks.compiled import guarded
from hookcore.hooks.headroom import hold_headroom, release_headroom
from hookcore.hooks.inert import InertInCopies
from hookcore.hooks.modules import KeywordHook
from hookcore.recorder.companions import LATE_PRE_HOOK
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.models import Models
from hookcore.recorder.plans import Plan

LATE_HOOK: Final = "a hook was added to it after hookcore's, so that call's output was not captured"

_is_compiling = torch.compiler.is_compiling


class ModuleAttachment:
    """Hooks that stay on the modules between captured steps, at about a microsecond per call.

    A copy or a checkpoint of a module contains inert versions of them, and torch's fast paths for modules without hooks
    are off.
    """

    def __init__(self, dispatcher: Dispatcher, models: Models) -> None:
        self._dispatcher = dispatcher
        self._models = models
        self._handles: list[hooks.HookHandle] = []
        self._attached: set[int] = set()  # by id(plan)
        self._borrowed: list[hooks.HookHandle] = []  # for the observers other than the statistics
        self._tree = -1  # the state of the models' trees that the hooks follow
        self._has_headroom = True
        hold_headroom()
        self._follow_tree()

    def _follow_tree(self) -> None:
        if self._tree == self._models.changes:
            return
        self._tree = self._models.changes
        for plan in self._dispatcher.plans.live():
            if id(plan) not in self._attached and (plan.wants_output or plan.acts_before):
                self._attached.add(id(plan))
                self._handles += self._put_on(plan, plan.acts_before, after=True)

    def _put_on(self, plan: Plan, before: bool, after: bool) -> list[hooks.HookHandle]:
        module, handles = plan.ref(), list[hooks.HookHandle]()
        try:
            if module is not None and before:
                handles.append(hooks.on_forward_pre(module, ModulePreHook(self._dispatcher, plan, self)))
            if module is not None and after:
                hook = ModuleHook(self._dispatcher, plan)
                handles.append(hooks.on_forward(module, hook, with_kwargs=self._dispatcher.wants_input(plan)))
        except (RuntimeError, AttributeError) as error:  # a scripted or traced module accepts no hook
            plan.note_reason(f"takes no hook: {error}")
        return handles

    def check_tree(self) -> None:
        """Follow changes of the models' trees. Called when a model runs and when a captured step begins."""
        self._models.check()
        self._follow_tree()

    def on(self) -> None:
        self.check_tree()

    def off(self) -> None:
        pass

    def follow_observers(self) -> None:
        for handle in self._borrowed:
            handle.remove()
        self._borrowed.clear()
        for plan in self._dispatcher.plans.live() if self._dispatcher.others else ():
            if self._dispatcher.wants(plan):
                attached = id(plan) in self._attached
                acts = self._dispatcher.wants_input(plan) or self._dispatcher.flows is not None
                before = acts and not (attached and plan.acts_before)
                self._borrowed += self._put_on(plan, before, after=not attached)

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        self._remove_all()
        self._tree = -1
        self._follow_tree()
        self.follow_observers()
        return None

    def _remove_all(self) -> None:
        for handle in [*self._handles, *self._borrowed]:
            handle.remove()
        self._handles.clear()
        self._borrowed.clear()
        self._attached.clear()

    def close(self) -> None:
        self._remove_all()
        if self._has_headroom:
            self._has_headroom = False
            release_headroom()


class ModulePreHook(InertInCopies):
    """The forward pre-hook of one module."""

    __slots__ = ("_attachment", "_dispatcher", "_plan")

    def __init__(self, dispatcher: Dispatcher, plan: Plan, attachment: ModuleAttachment) -> None:
        self._attachment = attachment
        self._dispatcher = dispatcher
        self._plan = plan

    @guarded
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        dispatcher, plan = self._dispatcher, self._plan
        current = dispatcher.current
        if _is_compiling() or not current.captured:
            return
        if (meter := current.meter) is not None:
            meter.enter()
        try:
            if current.pending:
                dispatcher.on_pending()
            if plan.is_model:
                if plan.is_root:
                    self._attachment.check_tree()
                dispatcher.enter_model(plan, module, args)
            dispatcher.entered(plan, module, args)
            if dispatcher.wants_input(plan):
                if stands_last(module._forward_pre_hooks, self):
                    dispatcher.saw_input(plan, args)
                else:
                    plan.note_reason(LATE_PRE_HOOK)
        except Exception as error:
            dispatcher.errors.record("forward pre-hook", error, plan)
        if meter is not None:
            meter.leave()


class ModuleHook(InertInCopies):
    """The forward hook of one module."""

    __slots__ = ("_dispatcher", "_plan")

    def __init__(self, dispatcher: Dispatcher, plan: Plan) -> None:
        self._dispatcher = dispatcher
        self._plan = plan

    @guarded
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        current, plan = self._dispatcher.current, self._plan
        if _is_compiling() or not current.captured:
            return
        if (meter := current.meter) is not None:
            meter.enter()
        if stands_last(module._forward_hooks, self):
            self._dispatcher.saw_return(plan, rest[0] if len(rest) > 1 else {}, rest[-1])
        else:
            plan.miss_call(LATE_HOOK)
        if meter is not None:
            meter.leave()


def stands_last(table: dict[int, Any], hook: ModuleHook | ModulePreHook) -> bool:
    """Return whether none of the user's hooks comes after this one. Otherwise, move it to the end of the table."""
    for other in reversed(table.values()):
        inner = getattr(other, "fn", other) if type(other) is KeywordHook else other
        if inner is hook:
            return True
        if not isinstance(inner, (ModuleHook, ModulePreHook)):
            break
    for number, other in list(table.items()):
        if other is hook or getattr(other, "fn", None) is hook:
            table[number] = table.pop(number)
    return False
