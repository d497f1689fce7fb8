"""Where the hooks sit: on the process (the default), on the modules, or inside compiled graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction

from hookcore import hooks
from hookcore.compiled import (
    Inside,
    QuietHooks,
    StepAside,
    guard_functions,
    is_region,
    runs_uncompiled,
    runs_under_dynamo,
    unwrap,
)
from hookcore.hooks.headroom import hold_headroom, release_headroom
from hookcore.hooks.modules import KeywordHook
from hookcore.recorder.capture import Capture, TensorHook
from hookcore.recorder.companions import LATE_PRE_HOOK, Companions, inert_hook
from hookcore.recorder.models import Models
from hookcore.recorder.plans import Plan

_is_compiling = torch.compiler.is_compiling

See = Callable[[nn.Module, Any, tuple[Any, ...]], None]  # module, args, and what else torch gives the hook


LATE_HOOK = "a hook was added to it after hookcore's: its output of that call is not known"


class Attachment(Protocol):
    """A way to see modules run. `on` and `off` are called at the steps' ends and must be cheap."""

    def on(self) -> None:
        """A captured step begins."""

    def off(self) -> None:
        """Nothing is captured for a while."""

    def look(self) -> None:
        """What the pending snapshots need is put on, and what they no longer need is taken off."""

    def close(self) -> None:
        """Take everything off."""


class ProcessAttachment:
    """Two global hooks. Nothing is put on the user's modules, so nothing of ours is copied, pickled or compiled.

    They are registered for captured steps only: an uncaptured step costs nothing at all.
    """

    def __init__(self, capture: Capture, models: Models) -> None:
        self._capture = capture
        self._models = models
        self._handles: list[hooks.HookHandle] = []
        self._wants_inputs = models.wants_inputs
        self._companions = Companions(capture, self._saw_real_input, self._saw_real_output)
        self._calls_regions = False  # whether a module was seen that runs uncompiled and calls compiled ones
        self._companions_due = False  # at the next call
        # Modules with pre-hooks of their own that began a step; None at first.
        self._called_first: set[int] | None = None
        self._has_headroom = False
        see_after = self._seeing_keywords() if self._wants_inputs else self._seeing_outputs()
        self._before, self._after = _make_hook(capture, self._seeing_calls()), _make_hook(capture, see_after)
        self._looks = LookHooks(capture, self._companions)
        guard_functions(self._before, self._after)
        self._quiet = QuietHooks(self._before, self._after, *self._looks.functions)
        self._aside = StepAside(self._take_off, self._put_on, self._saw_region)

    def on(self) -> None:
        if not self._has_headroom:
            self._has_headroom = True
            hold_headroom()
        self._models.unsure = True
        if not self._aside.active:
            self._put_on()
        self._companions.end_step()
        self._begin_companions(early=self._called_first)
        if self._called_first is None:
            self._called_first = set()
            self._companions_due = True

    def off(self) -> None:
        self._aside.close()
        self._take_off()
        self._companions.close()
        if self._has_headroom:
            self._has_headroom = False
            release_headroom()

    def look(self) -> None:
        if self._handles:
            self._take_off()
            self._put_on()
            self._begin_companions()

    def _begin_companions(self, early: set[int] | None = None) -> None:
        """Put the companions on that see inputs: before a step only on modules that run first, for the rest is early.

        Between two steps all other modules are as the user made them.
        """
        capture = self._capture
        self._companions_due = early is not None
        wanted = capture.snapshots.by_path if capture.snapshots.wants_inputs else {}
        if wanted or self._wants_inputs:
            plans = [plan for key, plan in list(capture.plans.items()) if early is None or key in early]
            self._companions.begin_step(plan for plan in plans if plan.wants_input or plan.path in wanted)

    def _begin_calls(self, module: nn.Module) -> Plan | None:
        """The first call of a step, or a root's: the tree may have changed."""
        first = self._models.unsure
        self._models.check()
        if self._companions_due:
            self._begin_companions()
        if first and module._forward_pre_hooks:
            self._called_first = (self._called_first or set()) | {id(module)}
        return self._capture.plans.get(id(module))

    def close(self) -> None:
        self.off()

    def _put_on(self) -> None:
        if not self._handles and self._capture.on:
            self._quiet.on()
            self._handles = [
                hooks.on_forward_pre(None, self._before),
                hooks.on_forward(None, self._after, with_kwargs=self._wants_inputs),
            ]
            if self._capture.snapshots.by_path:
                self._handles += self._looks.put_on()

    def _take_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._quiet.off()

    def _saw_region(self, module: nn.Module, args: Any, output: Any) -> None:
        plan = self._capture.plans.get(id(unwrap(module)))
        if plan is not None:
            self._capture.snapshots.saw_output(plan, output)
            if plan.wants_output:
                self._capture.saw_output(plan, output)

    def _saw_real_input(self, plan: Plan, args: Any) -> None:
        if (meter := self._capture.meter) is not None:
            meter.enter()
        if plan.wants_input:
            self._capture.saw_input(plan, args)
        if self._capture.snapshots.wants_inputs:
            self._capture.snapshots.saw_input(plan, args)
        if meter is not None:
            meter.leave()

    def _saw_real_output(self, plan: Plan, kwargs: Any, output: Any) -> None:
        if (meter := self._capture.meter) is not None:
            meter.enter()
        if kwargs and self._capture.snapshots.wants_inputs:
            self._capture.snapshots.saw_input(plan, kwargs)
        if self._capture.snapshots.by_path:
            self._capture.snapshots.saw_output(plan, output)
        _after(self._capture, plan, kwargs, output)
        if meter is not None:
            meter.leave()

    def _enter_region(self, module: nn.Module) -> None:
        inner = unwrap(module)
        if id(inner) not in self._capture.plans:
            self._models.found(inner)
        plan = self._capture.plans.get(id(inner))
        if runs_uncompiled(module):
            self._calls_regions = True
            return
        if plan is not None:
            self._models.make_boundary(plan)
        self._aside.enter(module)

    def _seeing_calls(self) -> See:
        """A plain function over local names: what torch calls most often must look up least."""
        capture, models, companions = self._capture, self._models, self._companions
        plans_get, is_entered = capture.plans.get, self._is_entered

        def see(module: nn.Module, args: Any, rest: tuple[Any, ...]) -> None:
            plan, entered = plans_get(id(module)), False
            try:
                if models.unsure or (plan is not None and plan.is_root):
                    plan = self._begin_calls(module)
                if plan is None or self._calls_regions or module.__dict__.get("_compiled_call_impl") is not None:
                    entered = is_entered(module)
                    plan = self._find(module)
                if plan is not None:
                    if capture.pending:
                        capture.on_pending()
                    if plan.acts_before:
                        self._act_before(plan, module, args)
                    if module._forward_hooks and not entered:
                        companions.enter(module, plan)
            except Exception as error:
                capture.failed("forward pre-hook", error, plan)

        return see

    def _act_before(self, plan: Plan, module: nn.Module, args: Any) -> None:
        if plan.is_root:
            _enter_root(self._capture, plan)
        if plan.wants_input:
            if not module._forward_pre_hooks:
                self._capture.saw_input(plan, args)
            elif id(module) not in self._companions.before:
                self._companions.missed_input(module, plan)

    def _find(self, module: nn.Module) -> Plan | None:
        """The plan of a module that has none yet; None if it belongs to no watched model."""
        plans, key = self._capture.plans, id(unwrap(module))
        if key not in plans and not is_region(module):
            with DisableTorchFunction():
                self._models.found(module)
        return plans.get(key)

    def _is_entered(self, module: nn.Module) -> bool:
        """Whether a compiled region begins with this call; its root is then seen from outside alone."""
        attributes = module.__dict__
        if attributes.get("_compiled_call_impl") is None and "_orig_mod" not in module._modules:
            # What a module of torch's own calls that was compiled in place, and is compiled by itself.
            if not self._calls_regions or runs_uncompiled(module) or not runs_under_dynamo():
                return False
        elif not is_region(module):
            return False
        self._enter_region(module)
        return self._aside.active

    def _seeing_outputs(self) -> See:
        plans_get, saw_output = self._capture.plans.get, self._capture.saw_output
        accompanied = self._companions.after  # these modules are seen behind their own hooks

        def see(module: nn.Module, args: Any, rest: tuple[Any, ...]) -> None:
            plan = plans_get(id(module))
            if plan is not None and not (accompanied and id(module) in accompanied):
                if plan.wants_output:
                    saw_output(plan, rest[-1])
                if plan.is_root:
                    plan.root.entered_with_grad = False

        return see

    def _seeing_keywords(self) -> See:
        capture, accompanied = self._capture, self._companions.after

        def see(module: nn.Module, args: Any, rest: tuple[Any, ...]) -> None:
            plan = capture.plans.get(id(module))
            if plan is not None and not (accompanied and id(module) in accompanied):
                _after(capture, plan, rest[0] if len(rest) > 1 else {}, rest[-1])

        return see


def _make_hook(capture: Capture, see: See) -> Callable[..., None]:
    """A hook on the process; the same function in a step that is timed, for Dynamo may know it."""

    # More arguments come if a module brings a table of its own in which it has the numbers of our hooks.
    def call(module: nn.Module, args: Any, *rest: Any) -> None:
        if _is_compiling():
            return
        meter = capture.meter  # read once: another thread may end the step in between
        if meter is None:
            see(module, args, rest)
        else:
            meter.time(see, module, args, rest)

    return call


class LookHooks:
    """The hooks that look for snapshots, beside those of the capture: nobody pays for them while none is pending."""

    def __init__(self, capture: Capture, companions: Companions) -> None:
        plans_get, snapshots = capture.plans.get, capture.snapshots

        def before(module: nn.Module, args: Any, *rest: Any) -> None:
            if not _is_compiling() and (plan := plans_get(id(module))) is not None and not module._forward_pre_hooks:
                snapshots.saw_input(plan, args)

        def after(module: nn.Module, args: Any, *rest: Any) -> None:
            if _is_compiling() or id(module) in companions.after:
                return
            if (plan := plans_get(id(module))) is not None:
                snapshots.saw_output(plan, rest[-1])

        def after_with_keywords(module: nn.Module, args: Any, *rest: Any) -> None:
            if _is_compiling() or id(module) in companions.after:
                return
            if (plan := plans_get(id(module))) is not None:
                if len(rest) > 1 and rest[0]:
                    snapshots.saw_input(plan, rest[0])
                snapshots.saw_output(plan, rest[-1])

        self._before, self._after, self._after_with_keywords = before, after, after_with_keywords
        self._snapshots = snapshots
        self.functions = (before, after, after_with_keywords)
        guard_functions(*self.functions)

    def put_on(self) -> list[hooks.HookHandle]:
        """Onto the process, for as long as the handles are kept."""
        if not self._snapshots.wants_inputs:
            return [hooks.on_forward(None, self._after)]
        return [
            hooks.on_forward_pre(None, self._before),
            hooks.on_forward(None, self._after_with_keywords, with_kwargs=True),
        ]


class ModuleAttachment:
    """Hooks on each chosen module, for processes full of other modules.

    They stay on between captured steps, about a microsecond a call; a copy or a checkpoint of a module carries an
    inert trace of them; the fast paths that torch takes for modules without hooks are off.
    """

    def __init__(self, capture: Capture, models: Models) -> None:
        self._capture = capture
        self._models = models
        self._handles: list[hooks.HookHandle] = []
        self._looking: list[hooks.HookHandle] = []
        self._attached: set[int] = set()  # by id(plan)
        self._tree = -1  # the state of the models' trees that the hooks follow
        self._has_headroom = True
        hold_headroom()
        self._follow_tree()

    def _follow_tree(self) -> None:
        if self._tree == self._models.changes:
            return
        self._tree = self._models.changes
        for plan in list(self._capture.plans.values()):
            module = plan.ref()
            if module is None or id(plan) in self._attached or not (plan.wants_output or plan.acts_before):
                continue
            self._attached.add(id(plan))
            try:
                if plan.acts_before:
                    self._handles.append(hooks.on_forward_pre(module, ModulePreHook(self._capture, plan, self)))
                hook = ModuleHook(self._capture, plan)
                self._handles.append(hooks.on_forward(module, hook, with_kwargs=plan.wants_input))
            except (RuntimeError, AttributeError) as error:  # a scripted or traced module takes no hook of ours
                self._capture.note(plan, f"takes no hook: {error}")

    def check_tree(self) -> None:
        """Follow what changed in the models' trees; called when a model runs and when a captured step begins."""
        self._models.check()
        self._follow_tree()

    def on(self) -> None:
        self.check_tree()

    def off(self) -> None:
        pass

    def look(self) -> None:
        for handle in self._looking:
            handle.remove()
        self._looking.clear()
        wanted = self._capture.snapshots.by_path
        for plan in list(self._capture.plans.values()) if wanted else ():
            module = plan.ref()
            if module is None or plan.path not in wanted:
                continue
            try:
                self._put_on(module, plan)
            except (RuntimeError, AttributeError) as error:
                self._capture.note(plan, f"takes no hook: {error}")

    def _put_on(self, module: nn.Module, plan: Plan) -> None:
        if self._capture.snapshots.wants_inputs:
            self._looking.append(hooks.on_forward_pre(module, LookPreHook(self._capture, plan)))
        self._looking.append(hooks.on_forward(module, LookHook(self._capture, plan)))

    def close(self) -> None:
        for handle in [*self._handles, *self._looking]:
            handle.remove()
        self._handles.clear()
        self._looking.clear()
        if self._has_headroom:
            self._has_headroom = False
            release_headroom()


class ModulePreHook:
    """The forward pre-hook of one module."""

    __slots__ = ("attachment", "capture", "plan")

    def __init__(self, capture: Capture, plan: Plan, attachment: ModuleAttachment) -> None:
        self.attachment = attachment
        self.capture = capture
        self.plan = plan

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        capture, plan = self.capture, self.plan
        if _is_compiling() or not capture.on:
            return
        if (meter := capture.meter) is not None:
            meter.enter()
        try:
            if capture.pending:
                capture.on_pending()
            if plan.is_root:
                self.attachment.check_tree()
                _enter_root(capture, plan)
            if plan.wants_input:
                if stands_last(module._forward_pre_hooks, self):
                    capture.saw_input(plan, args)
                else:
                    capture.note(plan, LATE_PRE_HOOK)
        except Exception as error:
            capture.failed("forward pre-hook", error, plan)
        if meter is not None:
            meter.leave()

    def __reduce__(self) -> tuple[Any, ...]:
        return inert_hook()

    inert = __reduce__


class ModuleHook:
    """The forward hook of one module."""

    __slots__ = ("capture", "plan")

    def __init__(self, capture: Capture, plan: Plan) -> None:
        self.capture = capture
        self.plan = plan

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        capture, plan = self.capture, self.plan
        if _is_compiling() or not capture.on:
            return
        if (meter := capture.meter) is not None:
            meter.enter()
        if stands_last(module._forward_hooks, self):
            _after(capture, plan, rest[0] if len(rest) > 1 else {}, rest[-1])
        else:
            plan.calls += 1
            capture.note(plan, LATE_HOOK)
        if meter is not None:
            meter.leave()

    def __reduce__(self) -> tuple[Any, ...]:
        return inert_hook()

    inert = __reduce__


class LookPreHook(ModuleHook):
    """Looks for the inputs that a snapshot asks for, at one module."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if not _is_compiling() and stands_last(module._forward_pre_hooks, self):
            self.capture.snapshots.saw_input(self.plan, args)


class LookHook(ModuleHook):
    """Looks for the outputs that a snapshot asks for, at one module."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if not _is_compiling() and stands_last(module._forward_hooks, self):
            self.capture.snapshots.saw_output(self.plan, rest[-1])


def stands_last(table: dict[int, Any], hook: Any) -> bool:
    """Whether no hook of the user's comes after this one. If one does, this one goes to the end for the next call."""
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


class InsideAttachment:
    """Hooks that are traced into compiled graphs, and called directly outside of them."""

    def __init__(self, capture: Capture, models: Models) -> None:
        plans = {key: plan for key, plan in enumerate(capture.plans.values()) if plan.wants_output}
        hold_headroom()
        self._has_headroom = True
        self._inside = Inside(_Observer(capture, plans))
        modules = [(key, module) for key, plan in plans.items() if (module := plan.ref()) is not None]
        self.compiled_before = self._inside.attach(modules)
        self._attached = {id(plan) for plan in plans.values()}

    def missing(self, wanted: list[Plan]) -> int:
        """How many of these plans have no hook here: to give them one would compile every graph again."""
        return sum(id(plan) not in self._attached for plan in wanted)

    def on(self) -> None:
        pass

    def off(self) -> None:
        pass

    def look(self) -> None:
        pass

    def close(self) -> None:
        self._inside.close()
        if self._has_headroom:
            self._has_headroom = False
            release_headroom()


class _Observer:
    """What the ops in a compiled graph report to; the ticket is the slot of the gradient."""

    def __init__(self, capture: Capture, plans: dict[int, Plan]) -> None:
        self._capture = capture
        self._plans = plans

    def saw_output(self, key: int, index: str, output: Tensor) -> int:
        plan = self._plans[key]
        if not self._capture.on or plan.muted:
            return -1
        if (meter := self._capture.meter) is not None:
            meter.enter()
        slot = -1
        try:
            slot = self._capture.saw_traced_output(plan, index, output)
            self._capture.snapshots.saw_traced_output(plan, index, output, plan.calls - 1)
        except Exception as error:
            self._capture.failed("op in a compiled graph", error, plan)
        if meter is not None:
            meter.leave()
        return slot

    def saw_gradient(self, key: int, index: str, ticket: int, gradient: Tensor) -> None:
        hook = TensorHook(self._capture, self._plans[key], -1, ticket)
        (hook if self._capture.meter is None else hook.timed)(gradient)
        if self._capture.snapshots.by_path and not self._capture.ignores_pass():
            self._capture.snapshots.saw_traced_gradient(self._plans[key], self._capture.taps[ticket], gradient)


def _enter_root(capture: Capture, plan: Plan) -> None:
    root = plan.root
    root.entered_with_grad = torch.is_grad_enabled()


def _after(capture: Capture, plan: Plan, kwargs: Any, output: Any) -> None:
    if plan.wants_input and kwargs:
        capture.saw_input(plan, kwargs)
    if plan.wants_output:
        capture.saw_output(plan, output)
    else:
        plan.calls += 1
    if plan.is_root:
        plan.root.entered_with_grad = False


guard_functions(ModulePreHook.__call__, ModuleHook.__call__, LookPreHook.__call__, LookHook.__call__)
