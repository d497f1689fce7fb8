"""What keeps the running step, so that it can be run again elsewhere: calls are held by reference in every step."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from hookcore.hooks.compiled import guard_functions, guarded, has_compiled, is_region
from hookcore.hooks.handle import InertInCopies
from hookcore.hooks.internals import (
    PIPELINES,
    DisableTorchFunction,
    any_autocast,
    current_graph_task,
    pipeline_call,
    tracing_state,
    transform,
)
from hookcore.hooks.nextcalls import NextCalls, can_be_hooked
from hookcore.observe import cpu
from hookcore.observe.plain import RAW_BYTES, raw_generator
from hookcore.recorder.calls.dispatch import Dispatcher
from hookcore.recorder.calls.plans import LateStep, Plan, Routine, StepKeeper
from hookcore.recorder.context import Context
from hookcore.recorder.measured.moments import Samples
from hookcore.records import GRADIENT_KINDS, TENSOR_KINDS, Frame, Occasion

_KINDS: Final = frozenset(TENSOR_KINDS)
_is_dynamo: Final = torch.compiler.is_dynamo_compiling


class Keeping:
    """Asks the dispatcher for the keeper each time: a run without one pays nothing else."""

    def __init__(self, context: Context, dispatcher: Dispatcher, samples: Samples) -> None:
        self._context, self._dispatcher, self._samples = context, dispatcher, samples

    def ask(self, occasion: Occasion | None = None) -> None:
        """Capture the next step, and let the keeper save it. After an incident, the keeper decides whether to."""
        if self._dispatcher.keeper is not None and self._dispatcher.keeper.ask(occasion):
            why = "it was requested" if occasion is None else f"a step is saved {occasion.reason}"
            self._context.cadence.alarm(why)

    def look(self, where: str, is_whole: bool = True) -> None:
        """Let it see a step whose weights are unchanged. Under a scaler, infinite gradients are normal."""
        keeper = self._dispatcher.keeper
        if keeper is not None and keeper.armed:
            context = self._context
            kinds = _KINDS - GRADIENT_KINDS if context.owners.scalers() else _KINDS
            keeper.look(partial(context.statistics.first_bad, kinds, context.step, is_whole), where)

    def fire(self, what: str, module: str | None = None) -> bool:
        """Save the running step, captured or not: `what` became non-finite in it. Return whether it will be tried.

        It is saved at the end of the running backward pass, or before the optimizer, whichever comes first.
        """
        keeper = self._dispatcher.keeper
        return keeper is not None and keeper.fire(what, module)

    def jump(self, loss: Tensor, value: float, limit: float) -> bool:
        """Save the running step, whose loss has jumped above the limit, after its backward pass.

        Return whether it will be tried.
        """
        keeper = self._dispatcher.keeper
        if keeper is None or not keeper.jump(loss, f"the loss jumped to {value:.6g}", limit, self._samples.of_call):
            return False
        self._samples.hurry()
        return True

    def settle(self, where: str) -> None:
        """Save the running step now if something fired in it."""
        keeper = self._dispatcher.keeper
        if keeper is not None and keeper.has_fired:
            keeper.settle(where)

    def end_step(self) -> None:
        """End the step."""
        assert self._dispatcher.keeper is not None
        self._dispatcher.keeper.end_step()
        if self._context.current.captured:
            self._dispatcher.look_for_models()

    @guarded
    def fail(self, error: str) -> None:
        """Let it see a step that an exception ended."""
        with self._context.lock, DisableTorchFunction():
            if self._dispatcher.keeper is not None:
                self._dispatcher.keeper.fail(error)

    def alarm(self, step: int) -> None:
        """Pass on what another device measured; what the CPU measured was seen in the step."""
        keeper = self._dispatcher.keeper
        if keeper is not None and self._context.statistics.devices.arenas and not self._context.owners.scalers():
            keeper.alarm(step)

    def defer(self) -> LateStep | None:
        """Return what makes the running step repeatable, until a device has said whether it is finite."""
        keeper = self._dispatcher.keeper
        return None if keeper is None else keeper.defer()

    def fire_late(self, kept: LateStep, what: str, module: str | None) -> None:
        """Save such a step at the end of the running one: `what` was non-finite in it."""
        if self._dispatcher.keeper is not None:
            self._dispatcher.keeper.fire_late(kept, what, module)

    def settle_late(self) -> None:
        """Save such a step now, because the training has ended."""
        if self._dispatcher.keeper is not None:
            self._dispatcher.keeper.settle_late()

    def remember(self, frames: Sequence[Frame]) -> None:
        """Let the keeper remember sent frames."""
        if self._dispatcher.keeper is not None:
            for frame in frames:
                self._dispatcher.keeper.remember(frame)

    def close(self) -> None:
        """Let it let go of everything."""
        if self._dispatcher.keeper is not None:
            self._dispatcher.keeper.close()


MAX_QUICK: Final = 4  # models whose calls the extension holds
MAX_OTHERS: Final = 64  # calls of other modules in a step or between two backward passes
COMPILED: Final = "the process runs compiled code, so only the calls of captured steps are kept"
_OTHERS: Final = f"more than {MAX_OTHERS} modules that are not watched ran before the model"
_DYNAMO: Final = "torch._dynamo.convert_frame"
_PIPELINED: Final = "a pipeline runs the model, so only the calls of captured steps are kept"
_TRACED: Final = "the model was traced, or ran inside torch.func"


QUICK: Final = hasattr(cpu.Hold, "learn")
_Pairs = tuple[tuple[Any, Any], ...]


class HoldFacts(NamedTuple):
    """How the extension holds the calls of a model, without Python. The extension has the same list."""

    model: Any  # a weak reference
    kept: Any
    plans: dict[int, Plan]
    plan: Plan
    cells: tuple[tuple[Any, str, Any], ...]  # attributes that must be the same objects
    modules: dict[str, ModuleType]  # those of Python: no pipeline may be imported
    answers: _Pairs  # functions, and the objects that they must return before the call
    task: Callable[[], int]  # of the backward pass that runs, in which none is held
    state: Callable[[], Any]  # of the generator
    held: type
    arrival: type
    ordered: type
    numbers: frozenset[type]  # arguments beside tensors that are held as they are
    table: dict[int, Any]  # in which the hook is while the next calls are seen, its key, and the hook
    number: int
    before: Any
    after: Any  # the hook on a module whose call runs
    track: Any


class ReturnHook(cpu.After, InertInCopies):  # type: ignore[misc]  # which is the extension's
    """The hook on a module while its call runs, and what the functions below and the extension both change."""

    __slots__ = ()
    is_on: bool  # whether calls are held in this step
    holds: bool  # whether the running one is
    others: int  # calls of other modules

    def __call__(self, module: nn.Module, _args: Any, kwargs: Any, output: Any) -> None:
        """Pass on what the call returned. This is Python because Dynamo inlines it, if the model calls itself."""
        if not _is_dynamo():
            self.left(module, kwargs, output)


guard_functions(ReturnHook.__call__)


@dataclass(slots=True, eq=False)
class Quick:
    """The extension's part in holding the calls of one model."""

    hold: Any = field(default_factory=cpu.Hold)
    _routine: Routine | None = field(default=None, init=False)  # by which it holds them
    _rest: int = field(default=0, init=False)  # calls that it might still hold when it was asked last
    _imported: int = field(default=0, init=False)  # modules of Python when it learned

    def holds(self, routine: Routine) -> bool:
        """Return whether it may hold further calls of this model, as far as that is known."""
        known, is_same = self._routine, len(sys.modules) == self._imported
        return bool(self._rest and is_same and known and known.kept is routine.kept and known.met == routine.met)

    def serves(self, plan: Plan) -> bool:
        """Return whether it holds calls of this model, or of none."""
        facts = self.hold.facts
        return facts is None or facts.plan is plan or facts.plan.ref() is None

    def count(self) -> None:
        """Count the calls that it has held."""
        if self._routine is not None:
            self._routine.skip(self._rest - self.hold.rest)
            self._rest = self.hold.rest

    def learn(self, facts: HoldFacts, routine: Routine) -> None:
        """Hold the next calls."""
        self._imported = len(sys.modules)
        if PIPELINES not in sys.modules:
            generator = raw_generator(), RAW_BYTES
            self.hold.learn(facts, routine.calls, routine.max_bytes, self._imported, MAX_OTHERS, *generator)
            self._routine, self._rest = routine, routine.calls

    def drop(self) -> None:
        """Keep nothing of the training alive."""
        self.hold.drop()
        self._routine = None


@dataclass(slots=True, eq=False)
class Holding:
    """Hooks that are there until a model of an uncaptured step is called, so that its other modules pay nothing.

    If the extension is there, its `Hold` sees the calls first, one for each of a few models. It makes the same objects
    as the keeper does for plain tensors, and leaves all else to the functions below, which learn from it how to go on.
    """

    _dispatcher: Dispatcher
    _calls: NextCalls = field(init=False)
    state: Any = field(default_factory=ReturnHook, init=False)
    quick: list[Quick] = field(default_factory=lambda: [Quick() for _ in range(MAX_QUICK)], init=False)
    gave_up: int = field(default=0, init=False)  # how often it was on, and is off for the rest of a step

    def __post_init__(self) -> None:
        self._calls = NextCalls(self._entered, self._left, [each.hold for each in self.quick], self.state)

    @property
    def is_on(self) -> bool:
        """Whether calls are held in this step."""
        return bool(self.state.is_on)

    def begin_step(self, captured: bool) -> None:
        """Wait for the next call of a model, unless the step is captured."""
        keeper = self._dispatcher.keeper
        was_on, self.state.is_on = self.state.is_on, False
        if was_on:
            self._calls.forget()
        if captured or keeper is None or not keeper.armed:
            self._calls.off()
        elif _DYNAMO in sys.modules and has_compiled():  # it guards on the number of hooks on the process
            self._give_up(COMPILED)
        else:
            self.state.is_on, self.state.others = True, 0
            self._calls.on()

    @property
    def spent_s(self) -> float:
        """The seconds that holding has taken so far, as far as that is known."""
        return float(self.quick[0].hold.spent_s)  # which passes calls on to the others

    @property
    def entry(self) -> tuple[dict[int, Any], int, Any]:
        """Where the hook is while the next calls are seen."""
        return self._calls.entry

    def begin_pass(self) -> None:
        """See no calls that a checkpoint repeats."""
        self._calls.off()

    def end_pass(self) -> None:
        """Wait for the next micro-batch."""
        self.state.others = 0
        self._calls.on()

    def close(self) -> None:
        """Remove every hook."""
        self.state.is_on = False
        self._calls.close()
        for each in self.quick:
            each.drop()

    def _give_up(self, why: str) -> None:
        self.state.is_on = False
        self.gave_up += 1
        self._calls.off()
        if self._dispatcher.keeper is not None:
            self._dispatcher.keeper.miss(why)

    def _entered(self, module: nn.Module, args: Any) -> bool:
        """Handle any call. Return whether to see what it returns."""
        if current_graph_task() != -1:  # a checkpoint repeats it, as well as the next ones
            self._calls.off()
            return False
        dispatcher = self._dispatcher
        plan = dispatcher.plans.by_id.get(id(module))
        try:
            if (
                plan is None
                or not plan.is_model
                or plan.ref() is not module
                or "_compiled_call_impl" in module.__dict__
            ):
                self.state.others += 1
                attributes = module.__dict__  # in most steps, a module that isn't watched is a loss
                if (
                    self.state.others > MAX_OTHERS
                    or "_compiled_call_impl" in attributes
                    or "_orig_mod" in attributes.get("_modules", ())
                ):
                    self._skip(module)
                return False
            self._calls.off()
            self.state.others = 0
            if not self.state.is_on:
                return False
            if tracing_state() or transform() is not None:
                self._give_up(_TRACED)
                return False
            if pipeline_call() is not None:
                self._give_up(_PIPELINED)
                return False
            self.state.holds = torch.is_grad_enabled()
            if self.state.holds and dispatcher.keeper is not None:
                for each in self.quick:
                    each.count()
                with DisableTorchFunction():
                    dispatcher.keeper.hold(plan, module, args)
                self._teach(dispatcher.keeper, plan, module)
            return True
        except Exception as error:
            dispatcher.errors.record("forward pre-hook", error, plan)
            return False

    def _teach(self, keeper: StepKeeper, plan: Plan, module: nn.Module) -> None:
        """Let the extension hold the next calls, if it can."""
        if not QUICK:
            return
        if (routine := keeper.routine(module)) is None or not can_be_hooked(module):
            return
        quick = next((each for each in self.quick if each.serves(plan)), None)
        if quick is None or quick.holds(routine):
            return
        cells: list[tuple[Any, str, Any]] = [(keeper, "met", routine.met), (routine.plans, "changes", routine.now)]
        if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            cells.append((torch.cuda, "_initialized", False))
        facts = HoldFacts(
            plan.ref,
            routine.kept,
            self._dispatcher.plans.by_id,
            plan,
            tuple(cells),
            sys.modules,
            (
                (tracing_state, None),
                (current_graph_task, -1),
                (transform, None),
                (torch.is_grad_enabled, True),
                (any_autocast, False),
            ),
            current_graph_task,
            torch.default_generator.get_state,
            routine.held,
            routine.arrival,
            OrderedDict,
            routine.numbers,
            *self._calls.entry,
            self.state,
            self._dispatcher.track,
        )
        quick.learn(facts, routine)

    def _skip(self, module: nn.Module) -> None:
        if is_region(module):
            self._give_up(COMPILED)
        elif self.state.others > MAX_OTHERS:
            self._give_up(_OTHERS)

    def _left(self, module: nn.Module, kwargs: Any, output: Any) -> None:
        """Handle the end of a call, after which another model may be called."""
        dispatcher = self._dispatcher
        try:
            if self.state.is_on:
                self._calls.on()
            if self.state.holds and dispatcher.keeper is not None:
                with DisableTorchFunction():
                    dispatcher.keeper.returned(module, kwargs, output)
        except Exception as error:
            dispatcher.errors.record("forward hook", error, dispatcher.plans.by_id.get(id(module)))
