"""Hooks on the process or on each selected module, and the hooks that accompany a module's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import nn

from hookcore import hooks
from hookcore.hooks.compiled import (
    QuietHooks,
    StepAside,
    guarded,
    has_compiled,
    is_region,
    runs_uncompiled,
    runs_under_dynamo,
    unwrap,
)
from hookcore.hooks.handle import InertInCopies
from hookcore.hooks.inside import Materialized
from hookcore.hooks.internals import DisableTorchFunction, next_node_number
from hookcore.hooks.modules import KeywordHook, hold_headroom, release_headroom
from hookcore.observe import cpu
from hookcore.recorder.calls.coverage import hidden_roots
from hookcore.recorder.calls.dispatch import Dispatcher
from hookcore.recorder.calls.plans import Plan
from hookcore.recorder.known.models import Models

# Hooks that accompany a module's own hooks.
#
# Torch calls the hooks on the process before those on a module. If a module's own hooks replace its inputs or outputs,
# a hook on the process sees the values before that. A companion comes after the module's own hooks and sees what the
# module really receives and returns. Modules without their own hooks never get one.

_is_compiling = torch.compiler.is_compiling


class SeesPending(Protocol):
    """The part that follows backward passes."""

    def saw_pending_call(self) -> None:
        """Handle a module that is about to run while `CurrentStep.pending` is set."""


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


# Hooks on each selected module, for processes full of other modules.

LATE_HOOK: Final = "a hook was added to it after hookcore's, so that call's output was not captured"


class ModuleAttachment:
    """Hooks that stay on the modules between captured steps, at about a microsecond per call.

    A copy or a checkpoint of a module contains inert versions of them, and torch's fast paths for modules without hooks
    are off.
    """

    def __init__(self, dispatcher: Dispatcher, models: Models, passes: SeesPending) -> None:
        self._dispatcher = dispatcher
        self._models = models
        self.passes = passes
        self._handles: list[hooks.HookHandle] = []
        self._attached: dict[int, Plan] = {}  # by id, which another plan may have once this one is gone
        self._borrowed: list[hooks.HookHandle] = []  # for the observers other than the statistics
        self._tree = -1  # the state of the models' trees that the hooks follow
        self._has_headroom = True
        hold_headroom()
        self._follow_tree()

    def _follow_tree(self) -> None:
        plans = self._dispatcher.plans
        if self._tree == plans.changes:
            return
        self._tree = plans.changes
        attached, live = self._attached, plans.live()
        self._attached = {id(plan): plan for plan in live if id(plan) in attached}
        for plan in live:
            if id(plan) not in attached and (plan.wants_output or plan.acts_before):
                self._attached[id(plan)] = plan
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
                acts = self._dispatcher.wants_input(plan) or bool(self._dispatcher.entering)
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
                self._attachment.passes.saw_pending_call()
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


# The hooks of an attachment to the process. The extension sees a call first, and does what they do for a usual one, see
# `observe/_calls.h`. They are the same ones in a timed step, because Dynamo may know them. They get more arguments if a
# module's own table contains their numbers. The meter is read once, because another thread may end the step in between.


class _GlobalHook(cpu.CallHook):
    """A copy of torch's tables of hooks has the same ones, as it has the same functions."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _GlobalHook:
        return self


@cpu.quick
class BeforeCalls(_GlobalHook):
    """The hook before the calls of all modules."""

    __slots__ = ("_act", "_look_up")

    def __init__(
        self,
        dispatcher: Dispatcher,
        models: Models,
        look_up: Callable[[nn.Module, Plan | None], tuple[Plan | None, bool]],
        act: Callable[[Plan, nn.Module, Any, bool], None],
    ) -> None:
        self.current, self.dispatcher, self.models = dispatcher.current, dispatcher, models
        self.plans, self.accompanied = dispatcher.plans.by_id, {}
        self.sees_returns = self.calls_regions = False
        self._look_up, self._act = look_up, act

    @guarded
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if _is_compiling() or not self.current.captured:
            return
        if (meter := self.current.meter) is not None:
            meter.enter()
        plan, entered = self.plans.get(id(module)), False
        try:
            if (
                plan is None
                or plan.is_model
                or self.models.unsure
                or self.calls_regions
                or "_compiled_call_impl" in module.__dict__
            ):
                plan, entered = self._look_up(module, plan)
            if plan is not None and (
                plan.acts_before or self.dispatcher.others or self.current.pending or module._forward_hooks
            ):
                self._act(plan, module, args, entered)
        except Exception as error:
            self.dispatcher.errors.record("forward pre-hook", error, plan)
        finally:
            if meter is not None:
                meter.leave()


@cpu.quick
class AfterCalls(_GlobalHook):
    """The hook after the calls of all modules. `accompanied`: those that are observed after their own hooks."""

    __slots__ = ()

    def __init__(self, dispatcher: Dispatcher, accompanied: dict[int, AfterCompanion]) -> None:
        self.current, self.dispatcher = dispatcher.current, dispatcher
        self.plans, self.accompanied = dispatcher.plans.by_id, accompanied
        self.sees_returns, self.calls_regions = True, False

    @guarded
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if _is_compiling() or not self.current.captured:
            return
        if (meter := self.current.meter) is not None:
            meter.enter()
        try:
            plan = self.plans.get(id(module))
            if plan is not None and not (self.accompanied and id(module) in self.accompanied):
                self.dispatcher.saw_return(plan, rest[0] if len(rest) > 1 else {}, rest[-1])
        finally:
            if meter is not None:
                meter.leave()


LOOKS: Final = 16  # captured steps after which to check whether a compiled function calls a model


class ProcessAttachment:
    """Two global hooks. The user's modules get none, so none is copied, pickled, or compiled with them.

    They are registered for captured steps only: an uncaptured step costs nothing at all. They stay where a compiled
    function calls a model: Dynamo guards on their number, so without them the function would be compiled again.
    """

    def __init__(
        self, dispatcher: Dispatcher, models: Models, passes: SeesPending, materialized: Materialized | None
    ) -> None:
        self._dispatcher, self._materialized = dispatcher, materialized
        self._first_node = 0  # of the autograd graph that a running region makes
        self._current, self._passes = dispatcher.current, passes
        self._models = models
        self._handles: list[hooks.HookHandle] = []
        self._has_keywords = False  # whether the hook after calls gets keyword arguments
        self._companions = Companions(dispatcher)
        self._companions_due = False  # at the next call
        # Modules with their own pre-hooks that began a step; None at first.
        self._called_first: set[int] | None = None
        self._has_headroom = False
        self._stays = False  # because a compiled function calls a model
        self._looks = LOOKS  # checks left
        self._before = BeforeCalls(dispatcher, models, self._look_up, self._act_before)
        self._after = AfterCalls(dispatcher, self._companions.after)
        self._quiet = QuietHooks(BeforeCalls.__call__, AfterCalls.__call__)
        self._aside = StepAside(self._take_off, self._put_on, self._saw_region)

    def on(self) -> None:
        if not self._has_headroom:
            self._has_headroom = True
            hold_headroom()
        self._models.unsure = True
        if not self._handles and not self._aside.active:
            self._put_on()
        self._await_companions()

    def off(self) -> None:
        self._aside.close()
        if not self._has_to_stay():
            self._take_off()
        self._companions.close()
        if self._has_headroom:
            self._has_headroom = False
            release_headroom()

    def follow_observers(self) -> None:
        if self._handles:
            if self._has_keywords != self._wants_inputs:  # Dynamo may know the hooks, so they aren't exchanged in vain
                self._take_off()
                self._put_on()
            self._await_companions()

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        self.close()
        if self._current.captured:
            self.on()
        return None

    def close(self) -> None:
        self.off()
        self._take_off()

    def _has_to_stay(self) -> bool:
        plans = self._dispatcher.plans
        if self._looks and has_compiled():
            self._looks -= 1
            self._stays = bool(hidden_roots(plans))
        return self._stays and not plans.regions  # the hooks would make Dynamo recompile regions

    @property
    def _wants_inputs(self) -> bool:
        return self._models.wants_inputs or self._dispatcher.wants_inputs

    def _put_on(self) -> None:
        if not self._handles and self._current.captured:
            self._quiet.on()
            before = hooks.on_forward_pre(None, self._before)
            self._has_keywords = self._wants_inputs
            self._handles = [before, hooks.on_forward(None, self._after, with_kwargs=self._has_keywords)]

    def _take_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._quiet.off()

    def _await_companions(self) -> None:
        """Prepare for the first call of a step."""
        if self._companions.before:
            self._companions.end_step()
        if self._has_keywords:
            self._begin_companions(early=self._called_first)
        self._companions_due = self._has_keywords

    def _begin_companions(self, early: set[int] | None = None) -> None:
        """Add the companions that observe inputs: before a step, only to modules that run first.

        Between two steps, all other modules are as the user made them.
        """
        if self._has_keywords:
            by_id = list(self._dispatcher.plans.by_id.items())
            plans = [plan for key, plan in by_id if early is None or key in early]
            self._companions.begin_step(plan for plan in plans if self._dispatcher.wants_input(plan))

    def _look_up(self, module: nn.Module, plan: Plan | None) -> tuple[Plan | None, bool]:
        """Return the plan of a module, which may not be the one known so far, and whether its call enters a region."""
        if self._models.unsure or (plan is not None and plan.is_model and plan.root.ref() is module):
            plan = self._begin_calls(module)
        if plan is None or self._before.calls_regions or "_compiled_call_impl" in module.__dict__:
            entered = self._is_entered(module)
            return self._find(module), entered
        return plan, False

    def _begin_calls(self, module: nn.Module) -> Plan | None:
        """Check the tree, which may have changed: this is the first call of a step, or a root's."""
        first = self._models.unsure
        self._models.check()
        if self._companions_due:
            self._companions_due = False
            self._begin_companions()
        if first:
            began = {id(module)} if module._forward_pre_hooks else set[int]()
            self._called_first = (self._called_first or set()) | began
        return self._dispatcher.plans.by_id.get(id(module))

    def _act_before(self, plan: Plan, module: nn.Module, args: Any, entered: bool) -> None:
        dispatcher = self._dispatcher
        if self._current.pending:
            self._passes.saw_pending_call()
        if plan.acts_before or dispatcher.others:
            if plan.is_model:
                dispatcher.enter_model(plan, module, args)
            if dispatcher.entering:
                dispatcher.entered(plan, module, args)
            if plan.wants_input or (dispatcher.others and dispatcher.wants_input(plan)):
                if not module._forward_pre_hooks:
                    dispatcher.saw_input(plan, args)
                elif id(module) not in self._companions.before:
                    self._companions.missed_input(module, plan)
        if module._forward_hooks and not entered:
            self._companions.enter(module, plan)

    def _find(self, module: nn.Module) -> Plan | None:
        """Return the plan of a module that has none yet; None if it belongs to no watched model."""
        plans, key = self._dispatcher.plans.by_id, id(unwrap(module))
        if key not in plans and not is_region(module):
            with DisableTorchFunction():
                self._models.found(module)
        return plans.get(key)

    # Compiled regions

    def _is_entered(self, module: nn.Module) -> bool:
        """Return whether a compiled region begins with this call. Its root is then observed only from outside."""
        attributes = module.__dict__
        if attributes.get("_compiled_call_impl") is None and "_orig_mod" not in module._modules:
            # Modules called by a torch module that was compiled in place; each is compiled by itself.
            if not self._before.calls_regions or runs_uncompiled(module) or not runs_under_dynamo():
                return False
        elif not is_region(module):
            return False
        self._enter_region(module)
        return self._aside.active

    def _enter_region(self, module: nn.Module) -> None:
        inner, plans = unwrap(module), self._dispatcher.plans.by_id
        if id(inner) not in plans:
            self._models.found(inner)
        plan = plans.get(id(inner))
        if runs_uncompiled(module):
            self._before.calls_regions = True
            return
        if plan is not None:
            self._models.make_boundary(plan)
        if self._materialized is not None and next_node_number is not None:
            self._first_node = next_node_number()
        self._aside.enter(module)

    def _saw_region(self, module: nn.Module, args: Any, output: Any) -> None:
        plan = self._dispatcher.plans.by_id.get(id(unwrap(module)))
        if plan is not None:
            self._dispatcher.saw_region(plan, output)
            if self._materialized is not None:
                self._dispatcher.saw_kept(plan, output, self._materialized, self._first_node)
