"""The calls of models in uncaptured steps, which the keeper holds by reference: any step may be the one to save."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from hookcore.hooks.compiled import has_compiled, is_region
from hookcore.hooks.internals import DisableTorchFunction, current_graph_task, pipeline_call, tracing_state, transform
from hookcore.hooks.nextcalls import NextCalls
from hookcore.recorder.dispatch import Dispatcher

MAX_OTHERS: Final = 64  # calls of other modules in a step or between two backward passes
COMPILED: Final = "the process runs compiled code, so only the calls of captured steps are kept"
_OTHERS: Final = f"more than {MAX_OTHERS} modules that are not watched ran before the model"
_DYNAMO: Final = "torch._dynamo.convert_frame"
_PIPELINED: Final = "a pipeline runs the model, so only the calls of captured steps are kept"
_TRACED: Final = "the model was traced, or ran inside torch.func"


@dataclass(slots=True, eq=False)
class Holding:
    """Hooks that are there until the model of an uncaptured step is called, so that its other modules pay nothing."""

    _dispatcher: Dispatcher
    _calls: NextCalls = field(init=False)
    _is_on: bool = field(default=False, init=False)  # in this step
    _others: int = field(default=0, init=False)  # calls of other modules
    _holds: bool = field(default=False, init=False)  # the running call

    def __post_init__(self) -> None:
        self._calls = NextCalls(self._entered, self._left)

    def begin_step(self, captured: bool) -> None:
        """Wait for the next call of a model, unless the step is captured."""
        keeper = self._dispatcher.keeper
        was_on, self._is_on = self._is_on, False
        if was_on:
            self._calls.forget()
        if captured or keeper is None or not keeper.armed:
            self._calls.off()
        elif _DYNAMO in sys.modules and has_compiled():  # it guards on the number of hooks on the process
            self._give_up(COMPILED)
        else:
            self._is_on, self._others = True, 0
            self._calls.on()

    def begin_pass(self) -> None:
        """See no calls that a checkpoint repeats."""
        self._calls.off()

    def end_pass(self) -> None:
        """Wait for the next micro-batch."""
        if self._is_on:
            self._others = 0
            self._calls.on()

    def close(self) -> None:
        """Remove every hook."""
        self._is_on = False
        self._calls.close()

    def _give_up(self, why: str) -> None:
        self._is_on = False
        self._calls.off()
        if self._dispatcher.keeper is not None:
            self._dispatcher.keeper.miss(why)

    def _entered(self, module: nn.Module, args: Any) -> bool:
        """Handle any call. Return whether to see what it returns."""
        dispatcher = self._dispatcher
        plan = dispatcher.plans.by_id.get(id(module))
        try:
            if (
                plan is None
                or not plan.is_model
                or plan.ref() is not module
                or "_compiled_call_impl" in module.__dict__
            ):
                self._skip(module)
                return False
            self._calls.off()
            if tracing_state() or current_graph_task() != -1 or transform() is not None:
                self._give_up(_TRACED)
                return False
            if pipeline_call() is not None:
                self._give_up(_PIPELINED)
                return False
            self._holds = torch.is_grad_enabled()
            if self._holds and dispatcher.keeper is not None:
                with DisableTorchFunction():
                    dispatcher.keeper.hold(plan, module, args)
            return True
        except Exception as error:
            dispatcher.errors.record("forward pre-hook", error, plan)
            return False

    def _skip(self, module: nn.Module) -> None:
        self._others += 1
        if is_region(module):
            self._give_up(COMPILED)
        elif self._others > MAX_OTHERS:
            self._give_up(_OTHERS)

    def _left(self, module: nn.Module, kwargs: Any, output: Any) -> None:
        """Handle the end of a call, after which another model may be called."""
        dispatcher = self._dispatcher
        try:
            if self._is_on:
                self._calls.on()
            if self._holds and dispatcher.keeper is not None:
                with DisableTorchFunction():
                    dispatcher.keeper.returned(module, kwargs, output)
        except Exception as error:
            dispatcher.errors.record("forward hook", error, dispatcher.plans.by_id.get(id(module)))
