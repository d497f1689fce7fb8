"""The dispatcher: counts the calls of every module once, and passes each of them to all observers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.hooks.backward import forward_segment, take_call, why_unknown
from hookcore.hooks.inside import Materialized
from hookcore.hooks.internals import (
    PIPELINES,
    REHEARSAL,
    DisableTorchFunction,
    current_graph_task,
    keywords_of,
    pipeline_call,
    tracing_state,
    transform,
)
from hookcore.observe.plain import INSIDE_FUNC, unseen, why_empty
from hookcore.recorder.calls.plans import Call, Observer, Plan, StepKeeper
from hookcore.recorder.clock.steptimes import StepTimes
from hookcore.recorder.context import Context
from hookcore.recorder.known.roots import BatchNames, Root, find_tensors
from hookcore.recorder.measured.attention import AttentionCalls
from hookcore.recorder.measured.flows import Flows, Streams
from hookcore.recorder.measured.moments import Samples
from hookcore.records import Phase

NO_TENSOR: Final = "no tensor in its output"
MAX_MODEL_DEPTH: Final = 4
NOT_KEPT: Final = "the compiled graph doesn't keep its output"
UNNAMED: Final = (
    "of a compiled graph in it, only the boundary is captured: the graph was made before hookcore watched, or in "
    "another thread, or it begins at a module inside"
)
ONLY_IN_BACKWARD: Final = "called only inside a backward pass, which counts as a checkpoint's recomputation"


class Dispatcher:
    """Passes every call to the statistics, and to other observers while they look for something."""

    def __init__(self, context: Context, keeper: StepKeeper | None, samples: Samples) -> None:
        self.plans, self.current = context.plans, context.current
        self.statistics, self.errors, self.track = context.statistics, context.errors, context.track
        self.times, self.names, self.keeper = StepTimes(context.now), BatchNames(), keeper
        self._samples = samples
        self.others: tuple[Observer, ...] = ()
        self.entering: tuple[Flows | Streams | AttentionCalls, ...] = ()  # those of them that see calls before they run
        self._observers: tuple[Observer, ...] = (self.statistics,)
        self._saw_eval = False  # whether a call in evaluation was counted in this step
        self.when_evaluating: Callable[[Root], None] | None = None  # called before a model runs, maybe in an evaluation

    # Observers

    def add_only(self, *others: Observer) -> None:
        """Pass the calls to the statistics and to these observers."""
        self.others = others
        self.entering = tuple(other for other in others if isinstance(other, Flows | Streams | AttentionCalls))
        self._observers = (self.statistics, *others)

    def wants(self, plan: Plan) -> bool:
        """Return whether any observer but the statistics observes this module."""
        return any(observer.wants(plan) for observer in self.others)

    def wants_input(self, plan: Plan) -> bool:
        """Return whether any observer needs the inputs of this module."""
        others = self.others
        return plan.wants_input or (bool(others) and any(other.wants_inputs and other.wants(plan) for other in others))

    @property
    def wants_inputs(self) -> bool:
        """Whether any observer but the statistics needs inputs."""
        return bool(self.others) and any(observer.wants_inputs for observer in self.others)

    def add(self, other: Observer) -> None:
        """Pass the calls of this step from now on to one more observer, which needs no inputs."""
        if other not in self.others:
            self.add_only(*self.others, other)

    # Steps

    def begin_step(self, captured: bool) -> None:
        """Restart the counts."""
        if self._saw_eval:
            self._saw_eval = False
            for plan in self.plans.live():
                plan.counts.evaluation = 0
        self.reset_calls()
        if captured:
            self.statistics.begin_step()

    def look_for_models(self) -> None:
        """Take parts for models if the training calls them and never the whole, as with a Lightning module."""
        for root in self.plans.roots:
            if not root.called and root.depth < MAX_MODEL_DEPTH:
                parts = [plan for plan in self.plans.live() if plan.root is root]
                if any(plan.history.seen for plan in parts):
                    root.depth += 1
                    prefix = f"{root.name}/" if root.name else ""
                    for plan in parts:
                        if not plan.is_root and plan.path.removeprefix(prefix).count(".") == root.depth - 1:
                            plan.make_model()
            root.called = False

    def reset_calls(self) -> None:
        """Restart the count of training calls of every module: a backward pass has ended, or a step begins."""
        for plan in [*self.plans.by_id.values(), *self.plans.named]:
            counts = plan.counts  # as `Counts.begin_pass` does, without a call for each module
            counts.training = 0
            if counts.recomputed:
                counts.recomputed.clear()
            if counts.pending:
                counts.pending.clear()

    def has_outputs(self) -> bool:
        """Return whether a module has run since the last backward pass ended."""
        return any(plan.counts.training for plan in self.plans.live())

    def has_rows(self) -> bool:
        """Return whether these calls, or those in evaluation, may have filled rows."""
        return self.has_outputs() or (self._saw_eval and "eval" in self.statistics.phases)

    # Calls

    def enter_model(self, plan: Plan, module: nn.Module, args: Any) -> None:
        """Report that a model is about to run."""
        if PIPELINES in sys.modules and self._rehearses(plan):
            return
        if current_graph_task() == -1 and self.plans.enter(plan, module):
            self.names.leaves()
            self._forget_call(plan)
        if plan.root.ref() is plan.ref() and plan.root.enter() and transform() is None:
            with DisableTorchFunction():
                first = plan.root.note_batch(module, args)
                if self._samples.recent:
                    self._samples.saw_call(first)
        self.names.enters()
        if self.others and not self.names.has_tokens and transform() is None:
            with DisableTorchFunction():
                self.names.saw_batch(args, keywords_of(module), self.track.step)
        plan.root.note_call()
        plan.root.note_wrapper()
        if self.times.parts is not None:
            if torch.is_grad_enabled():
                self.times.enter_model(id(plan))
            else:
                self.times.saw_evaluation()
        if self.when_evaluating is not None:
            self.when_evaluating(plan.root)
        if self.keeper is not None and self.keeper.armed and transform() is None and (model := plan.ref()) is not None:
            with DisableTorchFunction():
                self.keeper.entered(plan, model, args, keywords_of(module))

    def _rehearses(self, plan: Plan) -> bool:
        """Return whether a pipeline only learns shapes. Restart the counts if it gives another micro-batch."""
        number = pipeline_call()
        plan.root.rehearses = number == REHEARSAL
        if number is not None and number != plan.counts.micro_batch:
            for each in self.plans.live():
                each.counts.begin_micro_batch()
        plan.counts.micro_batch = number
        return plan.root.rehearses

    def entered(self, plan: Plan, module: nn.Module, args: Any) -> None:
        """Report that a module is about to run, to what learns the data flow or looks for attention."""
        entering = self.entering  # another thread may end the step
        if entering and not plan.root.rehearses:
            plan.root.note_wrapper()  # that of a part, before it is known that the training calls only parts
            with DisableTorchFunction():
                for each in entering:
                    each.entered(plan, module, args)

    def _forget_call(self, plan: Plan) -> None:
        for each in self.entering:
            each.forget(plan)

    def leave_model(self, plan: Plan, output: Any) -> None:
        """Report that a model returned."""
        if plan.root.rehearses:
            plan.root.rehearses = False
            return
        self.names.leaves()
        plan.counts.runs_in = 0
        if self.times.parts is not None:
            self.times.leave_model(id(plan))
        if plan.root.ref() is plan.ref():
            plan.root.leave()
        if self.keeper is not None and (model := plan.ref()) is not None:
            try:
                with DisableTorchFunction():
                    self.keeper.left(model, output)
            except Exception as error:
                self.errors.record("forward hook", error, plan)

    def saw_input(self, plan: Plan, inputs: Any) -> None:
        """Report that a module is about to run, before it can change its inputs in place."""
        try:
            if tracing_state() or current_graph_task() != -1 or plan.root.rehearses:
                return
            if transform() is not None:
                plan.note_reason(INSIDE_FUNC)
                return
            with DisableTorchFunction():
                tensors = list(find_tensors(inputs))
                phase, comes_again = _phase(plan, tensors)
                call = Call(plan, tensors, plan.counts.next(phase), phase, comes_again=comes_again)
                for observer in self._observers:
                    observer.saw_inputs(call)
        except Exception as error:
            self.errors.record("forward pre-hook", error, plan)

    def saw_return(self, plan: Plan, keywords: Any, output: Any) -> None:
        """Report that a module returned, and its keyword arguments."""
        if keywords and self.wants_input(plan):
            self.saw_input(plan, keywords)
        if self.others or plan.wants_input or (plan.wants_output and not self.statistics.saw_plain(plan, output)):
            self.saw_output(plan, output)
        if plan.is_model:
            self.leave_model(plan, output)

    def saw_region(self, plan: Plan, output: Any) -> None:
        """Report what a compiled region returned."""
        if plan.is_model:
            plan.counts.runs_in = 0
            self.times.leave_model(id(plan))
        if self.others or (plan.wants_output and not self.statistics.saw_plain(plan, output)):
            self.saw_output(plan, output)
        if plan.is_model:
            self.names.leaves()

    def saw_kept(self, plan: Plan, output: Any, materialized: Materialized, first_node: int) -> None:
        """Report what a compiled region that returned has kept of the outputs of the modules in it."""
        if tracing_state() or plan.root.rehearses or current_graph_task() != -1 or transform() is not None:
            return
        try:
            with DisableTorchFunction():
                region, outputs = plan.ref(), [tensor for _, tensor in find_tensors(output)]
                if region is None:
                    return
                unnamed = materialized.unnamed
                with unseen():
                    calls = list(materialized.read(region, outputs, first_node))
                for module, kept in calls:
                    inner = self.plans.by_id.get(id(module))
                    if inner is not None and inner is not plan and inner.wants_output:
                        self._saw_inner_call(inner, kept)
                if materialized.unnamed > unnamed:
                    plan.note_reason(UNNAMED)
        except Exception as error:
            self.errors.record("what a compiled graph keeps", error, plan)

    def _saw_inner_call(self, plan: Plan, output: Tensor | None) -> None:
        plan.history.seen = True
        phase = plan.root.phase(True)
        self._saw_eval = self._saw_eval or phase == "eval"
        number = plan.counts.add(phase)
        if output is None:
            plan.note_reason(NOT_KEPT)
            return
        call = Call(plan, [("", output)], number, phase, traced=True)
        for observer in self._observers:
            observer.saw_outputs(call)

    def saw_output(self, plan: Plan, output: Any) -> None:
        """Report any kind of output."""
        try:
            if tracing_state() or plan.root.rehearses:
                return
            with DisableTorchFunction():
                call = self._new_call(plan, output) if current_graph_task() == -1 else _call_again(plan, output)
                if call is None:
                    self._saw_repeated(plan, output)
                else:
                    self.current.repeated = call.again
                    for observer in self._observers:
                        observer.saw_outputs(call)
        except Exception as error:
            self.errors.record("forward hook", error, plan)

    def _saw_repeated(self, plan: Plan, output: Any) -> None:
        """Report what a checkpoint repeats whose first outputs get the gradients, if a module has no other call."""
        attention = next((each for each in self.entering if isinstance(each, AttentionCalls)), None)
        if attention is not None and current_graph_task() != -1 and plan.counts.training == 1:
            attention.saw_outputs(Call(plan, list(find_tensors(output)), 0, "train", again=True))

    def _new_call(self, plan: Plan, output: Any) -> Call | None:
        plan.history.seen = True
        self.names.saw_call()
        tensors = list(find_tensors(output))
        if all(empty := [why_empty(tensor) for _, tensor in tensors]):
            plan.note_reason(empty[0] if empty else NO_TENSOR)
            self._forget_call(plan)
            return None  # not counted: it would only shift the numbers of the other calls
        phase, comes_again = _phase(plan, tensors)
        if phase == "eval":
            self._saw_eval = True
        number = plan.counts.add(phase)
        if comes_again:
            plan.counts.pending.append((forward_segment(), number))
        return Call(plan, tensors, number, phase, comes_again=comes_again)

    # Calls inside compiled graphs

    def saw_traced_output(self, plan: Plan, index: str, output: Tensor) -> int:
        """Report one output of a call. Return a ticket for its gradient, negative if it isn't needed."""
        if current_graph_task() != -1:  # a checkpoint repeats calls: only the gradient is new
            self.current.repeated = True
            return self.statistics.ticket(plan, index, plan.counts.repeat_traced(index))
        plan.history.seen = True
        number = plan.counts.add_traced(index)
        call = Call(plan, [(index, output)], number, plan.root.phase(torch.is_grad_enabled()), traced=True)
        for observer in self._observers:
            observer.saw_outputs(call)
        return self.statistics.ticket(plan, index, call.number) if call.phase == "train" else -1

    def saw_traced_gradient(self, plan: Plan, ticket: int, gradient: Tensor) -> None:
        """Report the gradient of the output with this ticket."""
        tap = self.statistics.table.taps[ticket]
        for observer in self._observers:
            observer.saw_gradient(plan, tap, gradient)


def _phase(plan: Plan, tensors: list[tuple[str, Tensor]]) -> tuple[Phase, bool]:
    """Return the phase of a call, and whether its gradient will come only with a checkpoint's recompute."""
    root, requires_grad = plan.root, any(tensor.requires_grad for _, tensor in tensors)
    phase = root.phase(requires_grad)
    if phase == "eval" or requires_grad or torch.is_grad_enabled():
        return phase, False
    # No gradient here: a part of the pass that needs none, a checkpoint that recomputes it, or a pass without any.
    comes_again = bool(forward_segment())
    return ("train" if comes_again or root.entered_with_grad else "eval"), comes_again


def _call_again(plan: Plan, output: Any) -> Call | None:
    """Find the call that a checkpoint repeats inside the backward pass, so that nothing is counted twice.

    Only under a reentrant checkpoint does the gradient flow through this second output.
    """
    if not plan.counts.pending:
        if not plan.history.seen:
            plan.note_reason(ONLY_IN_BACKWARD)
        return None
    tensors = list(find_tensors(output))
    if reason := why_unknown(plan.counts.pending):
        plan.note_reason(reason)
        return None
    number = take_call(plan.counts.pending, tensors, torch.is_grad_enabled())
    return None if number is None else Call(plan, tensors, number, "train", again=True)
