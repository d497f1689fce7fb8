"""Two hooks on the process, for the duration of a captured step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from hookcore import hooks
from hookcore.hooks.compiled import (
    QuietHooks,
    StepAside,
    guard_functions,
    has_compiled,
    is_region,
    runs_uncompiled,
    runs_under_dynamo,
    unwrap,
)
from hookcore.hooks.headroom import hold_headroom, release_headroom
from hookcore.hooks.internals import DisableTorchFunction
from hookcore.recorder.companions import Companions
from hookcore.recorder.coverage import hidden_roots
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.models import Models
from hookcore.recorder.plans import Plan

_is_compiling = torch.compiler.is_compiling

LOOKS: Final = 16  # captured steps after which to check whether a compiled function calls a model

See = Callable[[nn.Module, Any, tuple[Any, ...]], None]  # module, args, and what else torch gives the hook


class ProcessAttachment:
    """Two global hooks. The user's modules get none, so none is copied, pickled, or compiled with them.

    They are registered for captured steps only: an uncaptured step costs nothing at all. They stay where a compiled
    function calls a model: Dynamo guards on their number, so without them the function would be compiled again.
    """

    def __init__(self, dispatcher: Dispatcher, models: Models) -> None:
        self._dispatcher = dispatcher
        self._current = dispatcher.current
        self._models = models
        self._handles: list[hooks.HookHandle] = []
        self._has_keywords = False  # whether the hook after calls gets keyword arguments
        self._companions = Companions(dispatcher)
        self._calls_regions = False  # whether there was a module that runs uncompiled and calls compiled ones
        self._companions_due = False  # at the next call
        # Modules with their own pre-hooks that began a step; None at first.
        self._called_first: set[int] | None = None
        self._has_headroom = False
        self._stays = False  # because a compiled function calls a model
        self._looks = LOOKS  # checks left
        self._before = _make_hook(self._current, self._seeing_calls())
        self._after = _make_hook(self._current, self._seeing_outputs())
        self._after_with_keywords = _make_hook(self._current, self._seeing_keywords())
        guard_functions(self._before, self._after, self._after_with_keywords)
        self._quiet = QuietHooks(self._before, self._after, self._after_with_keywords)
        self._aside = StepAside(self._take_off, self._put_on, self._saw_region)

    def on(self) -> None:
        if not self._has_headroom:
            self._has_headroom = True
            hold_headroom()
        self._models.unsure = True
        if not self._handles and not self._aside.active:
            self._put_on()
        if self._companions.before:
            self._companions.end_step()
        self._begin_companions(early=self._called_first)
        self._companions_due = self._has_keywords
        if self._called_first is None:
            self._called_first = set()

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
            self._begin_companions()

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
            if self._has_keywords:
                after = hooks.on_forward(None, self._after_with_keywords, with_kwargs=True)
            else:
                after = hooks.on_forward(None, self._after)
            self._handles = [before, after]

    def _take_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._quiet.off()

    def _begin_companions(self, early: set[int] | None = None) -> None:
        """Add the companions that observe inputs: before a step, only to modules that run first.

        Between two steps, all other modules are as the user made them.
        """
        if self._has_keywords:
            by_id = list(self._dispatcher.plans.by_id.items())
            plans = [plan for key, plan in by_id if early is None or key in early]
            self._companions.begin_step(plan for plan in plans if self._dispatcher.wants_input(plan))

    # Calls

    def _seeing_calls(self) -> See:
        """Return a plain function over local names: torch's most frequent call must look up as little as possible."""
        dispatcher, current, models, companions = self._dispatcher, self._current, self._models, self._companions
        plans_get, is_entered = dispatcher.plans.by_id.get, self._is_entered

        def see(module: nn.Module, args: Any, rest: tuple[Any, ...]) -> None:
            plan, entered = plans_get(id(module)), False
            try:
                if models.unsure or (plan is not None and plan.is_model and plan.is_root):
                    plan = self._begin_calls(module)
                if plan is None or self._calls_regions or "_compiled_call_impl" in module.__dict__:
                    entered = is_entered(module)
                    plan = self._find(module)
                if plan is not None:
                    if current.pending:
                        dispatcher.on_pending()
                    if plan.acts_before or dispatcher.others:
                        self._act_before(plan, module, args)
                    if module._forward_hooks and not entered:
                        companions.enter(module, plan)
            except Exception as error:
                dispatcher.errors.record("forward pre-hook", error, plan)

        return see

    def _begin_calls(self, module: nn.Module) -> Plan | None:
        """Check the tree, which may have changed: this is the first call of a step, or a root's."""
        first = self._models.unsure
        self._models.check()
        if self._companions_due:
            self._companions_due = False
            self._begin_companions()
        if first and module._forward_pre_hooks:
            self._called_first = (self._called_first or set()) | {id(module)}
        return self._dispatcher.plans.by_id.get(id(module))

    def _act_before(self, plan: Plan, module: nn.Module, args: Any) -> None:
        if plan.is_model:
            self._dispatcher.enter_model(plan, module, args)
        self._dispatcher.entered(plan, module, args)
        if self._dispatcher.wants_input(plan):
            if not module._forward_pre_hooks:
                self._dispatcher.saw_input(plan, args)
            elif id(module) not in self._companions.before:
                self._companions.missed_input(module, plan)

    def _find(self, module: nn.Module) -> Plan | None:
        """Return the plan of a module that has none yet; None if it belongs to no watched model."""
        plans, key = self._dispatcher.plans.by_id, id(unwrap(module))
        if key not in plans and not is_region(module):
            with DisableTorchFunction():
                self._models.found(module)
        return plans.get(key)

    def _seeing_outputs(self) -> See:
        dispatcher, saw_plain = self._dispatcher, self._dispatcher.statistics.saw_plain
        plans_get = dispatcher.plans.by_id.get
        accompanied = self._companions.after  # these modules are observed after their own hooks

        def see(module: nn.Module, args: Any, rest: tuple[Any, ...]) -> None:
            plan = plans_get(id(module))
            if plan is not None and not (accompanied and id(module) in accompanied):
                if dispatcher.others or (plan.wants_output and not saw_plain(plan, rest[-1])):
                    dispatcher.saw_output(plan, rest[-1])
                if plan.is_model:
                    dispatcher.leave_model(plan, rest[-1])

        return see

    def _seeing_keywords(self) -> See:
        dispatcher, accompanied = self._dispatcher, self._companions.after

        def see(module: nn.Module, args: Any, rest: tuple[Any, ...]) -> None:
            plan = dispatcher.plans.by_id.get(id(module))
            if plan is not None and not (accompanied and id(module) in accompanied):
                dispatcher.saw_return(plan, rest[0] if len(rest) > 1 else {}, rest[-1])

        return see

    # Compiled regions

    def _is_entered(self, module: nn.Module) -> bool:
        """Return whether a compiled region begins with this call. Its root is then observed only from outside."""
        attributes = module.__dict__
        if attributes.get("_compiled_call_impl") is None and "_orig_mod" not in module._modules:
            # Modules called by a torch module that was compiled in place; each is compiled by itself.
            if not self._calls_regions or runs_uncompiled(module) or not runs_under_dynamo():
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
            self._calls_regions = True
            return
        if plan is not None:
            self._models.make_boundary(plan)
        self._aside.enter(module)

    def _saw_region(self, module: nn.Module, args: Any, output: Any) -> None:
        plan = self._dispatcher.plans.by_id.get(id(unwrap(module)))
        if plan is not None:
            self._dispatcher.saw_region(plan, output)


def _make_hook(current: CurrentStep, see: See) -> Callable[..., None]:
    """Return a hook on the process. It is the same function in a timed step, because Dynamo may know it."""

    # There are more arguments if a module's own table contains the numbers of our hooks.
    def call(module: nn.Module, args: Any, *rest: Any) -> None:
        if _is_compiling() or not current.captured:
            return
        meter = current.meter  # read once: another thread may end the step in between
        if meter is None:
            see(module, args, rest)
        else:
            meter.time(see, module, args, rest)

    return call
