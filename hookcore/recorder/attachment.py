"""Where the hooks sit: on the process (the default), on the modules, or inside compiled graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction

from hookcore import hooks
from hookcore.compiled import Inside, QuietHooks, StepAside, guard_functions, is_region, unwrap
from hookcore.recorder.capture import Capture, TensorHook
from hookcore.recorder.models import Models
from hookcore.recorder.plans import Plan

_is_compiling = torch.compiler.is_compiling


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
        self._before, self._after = self._make_before(), self._make_after()
        self._looks = LookHooks(capture)
        guard_functions(self._before, self._after)
        self._quiet = QuietHooks(self._before, self._after, *self._looks.functions)
        self._aside = StepAside(self._take_off, self._put_on, self._saw_region)

    def on(self) -> None:
        if not self._aside.active:
            self._put_on()

    def off(self) -> None:
        self._aside.close()
        self._take_off()

    def look(self) -> None:
        if self._handles:
            self._take_off()
            self._put_on()

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

    def _enter_region(self, module: nn.Module) -> None:
        inner = unwrap(module)
        if id(inner) not in self._capture.plans:
            self._models.found(inner)
        plan = self._capture.plans.get(id(inner))
        if plan is not None:
            self._models.make_boundary(plan)
        self._aside.enter(module)

    def _make_before(self) -> Callable[[nn.Module, Any], None]:
        """Plain functions over local names: what torch calls most often must look up least."""
        capture, models = self._capture, self._models
        plans_get, enter_region = capture.plans.get, self._enter_region

        def before_call(module: nn.Module, args: Any) -> None:
            if _is_compiling():
                return
            plan = plans_get(id(module))
            try:
                if plan is None:
                    if is_region(module):
                        enter_region(module)
                    else:
                        with DisableTorchFunction():
                            models.found(module)
                    plan = plans_get(id(unwrap(module)))
                elif module.__dict__.get("_compiled_call_impl") is not None:
                    enter_region(module)
                if plan is not None and plan.acts_before:
                    _before(capture, plan, args)
            except Exception as error:
                capture.failed("forward pre-hook", error, plan)

        return before_call

    def _make_after(self) -> Callable[..., None]:
        capture = self._capture
        plans_get, saw_output = capture.plans.get, capture.saw_output

        def after_call(module: nn.Module, args: Any, output: Any) -> None:
            if _is_compiling():
                return
            plan = plans_get(id(module))
            if plan is not None:
                if plan.wants_output:
                    saw_output(plan, output)
                if plan.is_root:
                    plan.root.entered_with_grad = False

        def after_call_with_keywords(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if _is_compiling():
                return
            plan = plans_get(id(module))
            if plan is not None:
                _after(capture, plan, kwargs, output)

        return after_call_with_keywords if self._wants_inputs else after_call


class LookHooks:
    """The hooks that look for snapshots, beside those of the capture: nobody pays for them while none is pending."""

    def __init__(self, capture: Capture) -> None:
        plans_get, snapshots = capture.plans.get, capture.snapshots

        def before(module: nn.Module, args: Any) -> None:
            if not _is_compiling() and (plan := plans_get(id(module))) is not None:
                snapshots.saw_input(plan, args)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            if not _is_compiling() and (plan := plans_get(id(module))) is not None:
                snapshots.saw_output(plan, output)

        def after_with_keywords(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not _is_compiling() and (plan := plans_get(id(module))) is not None:
                if kwargs:
                    snapshots.saw_input(plan, kwargs)
                snapshots.saw_output(plan, output)

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
        self._handles: list[hooks.HookHandle] = []
        self._looking: list[hooks.HookHandle] = []
        for plan in list(capture.plans.values()):
            module = plan.ref()
            if module is None or not (plan.wants_output or plan.acts_before):
                continue
            try:
                if plan.acts_before:
                    self._handles.append(hooks.on_forward_pre(module, ModulePreHook(capture, plan)))
                self._handles.append(hooks.on_forward(module, ModuleHook(capture, plan)))
            except (RuntimeError, AttributeError) as error:  # a scripted or traced module takes no hook of ours
                capture.note(plan, f"takes no hook: {error}")

    def on(self) -> None:
        pass

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


class ModulePreHook:
    """The forward pre-hook of one module."""

    __slots__ = ("capture", "plan")

    def __init__(self, capture: Capture, plan: Plan) -> None:
        self.capture = capture
        self.plan = plan

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not _is_compiling() and self.capture.on:
            _before(self.capture, self.plan, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert_hook()


class ModuleHook:
    """The forward hook of one module."""

    __slots__ = ("capture", "plan")

    def __init__(self, capture: Capture, plan: Plan) -> None:
        self.capture = capture
        self.plan = plan

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if _is_compiling() or not self.capture.on:
            return
        _after(self.capture, self.plan, {}, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert_hook()


class LookPreHook(ModulePreHook):
    """Looks for the inputs that a snapshot asks for, at one module."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not _is_compiling():
            self.capture.snapshots.saw_input(self.plan, args)


class LookHook(ModuleHook):
    """Looks for the outputs that a snapshot asks for, at one module."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not _is_compiling():
            self.capture.snapshots.saw_output(self.plan, output)


def _inert_hook() -> tuple[Any, ...]:
    """What a copy or a checkpoint of the model gets instead: it does nothing, and needs no hookcore to be read."""
    return getattr, (contextlib.nullcontext(), "__exit__")


class InsideAttachment:
    """Hooks that are traced into compiled graphs, and called directly outside of them."""

    def __init__(self, capture: Capture, models: Models) -> None:
        plans = {key: plan for key, plan in enumerate(capture.plans.values()) if plan.wants_output}
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


class _Observer:
    """What the ops in a compiled graph report to; the ticket is the slot of the gradient."""

    def __init__(self, capture: Capture, plans: dict[int, Plan]) -> None:
        self._capture = capture
        self._plans = plans

    def saw_output(self, key: int, index: str, output: Tensor) -> int:
        plan = self._plans[key]
        if not self._capture.on or plan.muted:
            return -1
        try:
            slot = self._capture.saw_traced_output(plan, index, output)
            self._capture.snapshots.saw_traced_output(plan, index, output, plan.calls - 1)
            return slot
        except Exception as error:
            self._capture.failed("op in a compiled graph", error, plan)
            return -1

    def saw_gradient(self, key: int, index: str, ticket: int, gradient: Tensor) -> None:
        TensorHook(self._capture, self._plans[key], -1, ticket)(gradient)
        if self._capture.snapshots.by_path and not self._capture.ignores_gradients:
            self._capture.snapshots.saw_traced_gradient(self._plans[key], self._capture.taps[ticket], gradient)


def _before(capture: Capture, plan: Plan, args: Any) -> None:
    if plan.is_root:
        root = plan.root
        root.entered_with_grad = torch.is_grad_enabled()
        capture.root_ran = capture.root_ran or (root.entered_with_grad and root.phase(True) == "train")
    if plan.wants_input:
        capture.saw_input(plan, args)


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
