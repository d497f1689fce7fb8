"""The plan for each watched module, decided once, so that a hook only looks it up; and what the dispatcher calls."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Final, NamedTuple, Protocol

from torch import Tensor, nn

from hookcore.hooks.backward import Pending
from hookcore.hooks.modules import runs_already
from hookcore.recorder.clock.current import TensorHook
from hookcore.recorder.known.roots import Root
from hookcore.records import ROOT, Frame, Kind, Occasion, Phase, Tap
from hookcore.records.moments import Batch

MAX_DEPARTED: Final = 10_000


def fingerprint(module: nn.Module) -> tuple[object, ...]:
    """Return a module's children by name and identity, which differs once one is added, removed, or replaced."""
    children = module._modules
    return (*children.keys(), *map(id, children.values())) if children else ()


class Counts:
    """The number of a module's calls, which distinguishes the calls of one step."""

    __slots__ = ("_first_index", "evaluation", "micro_batch", "pending", "recomputed", "runs_in", "training")

    def __init__(self) -> None:
        self.training = 0  # since the last backward pass ended
        self.evaluation = 0  # since the step began
        self.micro_batch: int | None = None  # of a pipeline, that the module runs or ran last
        self.pending: Pending = []  # calls under a reentrant checkpoint, whose gradient comes with the recompute
        self.recomputed: dict[str, int] = {}  # calls that a checkpoint repeated in a compiled graph, by output
        self.runs_in = 0  # the thread in which a model was called and has not returned
        self._first_index: str | None = None  # of a traced output; its calls are counted

    def next(self, phase: Phase) -> int:
        """Return the number that the next call in this phase has."""
        return self.evaluation if phase == "eval" else self.training

    def add(self, phase: Phase) -> int:
        """Count a call and return its number."""
        if phase == "eval":
            self.evaluation += 1
            return self.evaluation - 1
        self.training += 1
        return self.training - 1

    def add_traced(self, index: str) -> int:
        """Count a call in a compiled graph by one of its outputs and return its number."""
        self.training += self._stands_for_call(index)
        return self.training - 1

    def repeat_traced(self, index: str) -> int:
        """Return which call a checkpoint repeats in a compiled graph. It repeats them in reverse order.

        Each output counts by itself, because a graph repeats only those whose gradients it needs.
        """
        self.recomputed[index] = self.recomputed.get(index, 0) + 1
        return max(0, self.training - self.recomputed[index])

    def _stands_for_call(self, index: str) -> bool:
        if self._first_index is None:
            self._first_index = index
        return index == self._first_index

    def continue_from(self, calls: int) -> None:
        """Count on from the calls of the module that was in this place before."""
        self.training = max(self.training, calls)

    def begin_pass(self) -> None:
        """Count the calls in training from zero again: the backward pass of those before has ended, or never comes."""
        self.training = 0
        if self.recomputed:
            self.recomputed.clear()
        if self.pending:
            self.pending.clear()

    def begin_micro_batch(self) -> None:
        """Count the calls from zero again, while the backward passes of those before are still to come."""
        self.training = self.evaluation = 0

    def forget_outputs(self) -> None:
        """Forget what refers to the outputs of the module."""
        self.pending.clear()
        self._first_index = None


class SlotRows:
    """Where the numbers of a module's tensors go."""

    __slots__ = ("hooks", "lone", "placements", "shapes", "slots")

    def __init__(self) -> None:
        self.slots: dict[tuple[Kind, str, int, Phase], int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # the first ones of its inputs and outputs
        self.placements: dict[str, str] = {}  # of its tensors that torch has spread over ranks, in words
        self.hooks: dict[int, TensorHook] = {}  # by slot, so that a tensor that is returned again is recognized
        self.lone: list[TensorHook] = []  # per call, for outputs that are one plain tensor

    def release(self) -> None:
        """Let go of all hooks."""
        self.lone, self.hooks = [], {}


class History:
    """A module's past, for its coverage."""

    __slots__ = ("got_gradients", "left", "reasons", "seen", "why_unseen", "without_gradient")

    def __init__(self) -> None:
        self.seen = False  # whether it ever ran
        self.got_gradients = False  # whether a parameter of its own was stepped with a gradient
        self.without_gradient = 0  # how often one that requires a gradient was stepped without, since the last
        self.reasons: dict[str, int] = {}  # why something of it was not captured, and how often
        self.why_unseen = ""  # why no call of it was observed, the last time this was asked
        self.left = False  # whether its model is still there without it, or has it in another place

    def absorb(self, later: History) -> None:
        """Add the history of another module that had the same place."""
        self.seen, self.left = self.seen or later.seen, self.left or later.left
        for reason, times in later.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + times


class Plan:
    """One module's part in the capture: its place, its selected tensors, its calls, its rows, and its history."""

    __slots__ = (
        "_children",
        "_errors",
        "acts_before",
        "counts",
        "history",
        "is_model",
        "kinds",
        "muted",
        "path",
        "ref",
        "root",
        "rows",
        "skipped_by",
        "type_name",
        "wants_input",
        "wants_output",
    )

    def __init__(
        self,
        path: str,
        module: nn.Module,
        root: Root,
        kinds: frozenset[Kind],
        skipped_by: str = "",
        *,
        type_name: str = "",
        when_gone: Callable[[Any], None] | None = None,
    ) -> None:
        self.path = path
        self.type_name = type_name or type(module).__name__
        self.ref = weakref.ref(module, when_gone)
        self.root = root
        self.is_model = root.ref() is module  # whether the training itself calls it
        self.muted, self._errors = False, 0  # muted after too many errors
        self._children = fingerprint(module)
        self.counts, self.rows, self.history = Counts(), SlotRows(), History()
        self.choose(kinds, skipped_by)

    @property
    def is_root(self) -> bool:
        """Whether it is the outermost module of its tree."""
        return self.root.ref() is self.ref()

    @property
    def is_leaf(self) -> bool:
        """Whether it contains no module."""
        return not self._children

    @property
    def below(self) -> str:
        """What the paths of the modules inside it begin with."""
        return f"{self.path}{'/' if self.is_root else '.'}" if self.path else ""

    def choose(self, kinds: frozenset[Kind], skipped_by: str) -> None:
        """Set which tensors to capture from now on. Called between two steps."""
        self.kinds = kinds
        self.skipped_by = skipped_by  # why the selection left it out, or ""
        self.rows.lone = []  # depends on the kinds
        self.wants_output = not self.muted and not kinds.isdisjoint(("output", "output_grad"))
        self.wants_input = not self.muted and not kinds.isdisjoint(("input", "input_grad"))
        self.acts_before = self.wants_input or self.is_model  # whether its call is of interest before it runs

    def make_model(self) -> None:
        """Treat it as a model: the training calls it, not a module that contains it."""
        self.is_model = self.acts_before = True

    def make_boundary(self, kinds: frozenset[Kind]) -> None:
        """Capture these kinds at the root of a compiled region, even if the selection left the module out."""
        self.kinds = kinds
        self.wants_output = bool(kinds)
        self.skipped_by = ""

    def follow_tree(self, module: nn.Module) -> None:
        """Take the module's children as known."""
        self._children = fingerprint(module)

    def move_to(self, path: str) -> Plan:
        """Begin again under another path. Return a plan that keeps the data captured under the old one."""
        old = copy.copy(self)
        self.path, self.rows, self.history = path, SlotRows(), History()
        self.counts.forget_outputs()
        old.leave(f"called {path} since then")
        return old

    def leave(self, reason: str) -> None:
        """Note why its path is no longer that of a module of the model."""
        self.history.left = True
        self.note_reason(reason)

    def release(self) -> None:
        """Let go of the hooks of a module that is gone."""
        self.rows.release()
        self.counts.forget_outputs()

    def absorb(self, later: Plan) -> None:
        """Add the captured data of another module that had the same place."""
        self.rows.slots |= later.rows.slots
        self.history.absorb(later.history)

    def note_reason(self, reason: str) -> None:
        """Remember why something was not captured."""
        reasons = self.history.reasons
        reasons[reason] = reasons.get(reason, 0) + 1

    def miss_call(self, reason: str) -> None:
        """Count a call whose output is not known."""
        self.counts.add("train")
        self.note_reason(reason)

    def count_error(self) -> int:
        """Count an error of hookcore at this module, and return the number of errors."""
        self._errors += 1
        return self._errors

    def mute(self, reason: str) -> None:
        """Ignore the module from now on."""
        self.muted = True
        self.wants_output = self.wants_input = False
        self.note_reason(reason)


class Departed:
    """The plans of removed modules, one per path and type, because a loop may recreate its model in every step."""

    def __init__(self, limit: int = MAX_DEPARTED) -> None:
        self._limit = limit
        self._plans: dict[tuple[str, str], Plan] = {}

    def append(self, plan: Plan) -> None:
        """Add a module with its facts."""
        plan.release()
        known = self._plans.setdefault((plan.path, plan.type_name), plan)
        if known is not plan:
            known.absorb(plan)
        elif len(self._plans) > self._limit:
            del self._plans[next(iter(self._plans))]

    def __iter__(self) -> Iterator[Plan]:
        return iter(list(self._plans.values()))

    def __len__(self) -> int:
        return len(self._plans)


class PlanTable:
    """Every model and every plan of one watcher."""

    def __init__(self) -> None:
        self.roots: list[Root] = []  # replaced, never changed
        self.changes = 0  # number of detected changes of a model's tree
        self.by_id: dict[int, Plan] = {}  # by id(module); a dead module's plan is taken out by its weak reference
        self.departed = Departed()  # of modules that are gone
        self.named: list[Plan] = []  # of tensors that the user named
        self.regions: list[str] = []  # compiled regions that were seen to run, by path

    @property
    def root(self) -> str:
        """The class of the model whose path is empty, which events say instead of it."""
        models = (each.ref() for each in self.roots if not each.name)
        return next((type(model).__name__ for model in models if model is not None), ROOT)

    def live(self) -> list[Plan]:
        """Return the plans of the existing modules. A copy, because another thread may add some."""
        return list(self.by_id.values())

    def changed_roots(self) -> list[Root]:
        """Return the models with a module that has other children than before."""
        found: dict[int, Root] = {}
        for plan in list(self.by_id.values()):
            module = plan.ref()
            if module is not None and (module._modules or plan._children) and fingerprint(module) != plan._children:
                found[id(plan.root)] = plan.root
        return list(found.values())

    def enter(self, model: Plan, module: nn.Module) -> bool:
        """Note that a model is called. Return whether its last call raised an exception."""
        thread = get_ident()
        raised = model.counts.runs_in == thread and not runs_already(module)
        model.counts.runs_in = thread
        if raised and not model.counts.training:  # it was the first call in this pass: what ran in it is counted anew
            for each in self.live():
                if each.root is model.root and (model.is_root or each.path.startswith(f"{model.path}.")):
                    each.counts.begin_pass()
        return raised

    def at(self, path: str) -> Plan | None:
        """Return the plan of the module at this path."""
        return next((plan for plan in self.live() if plan.path == path), None)


# A call of a module, as the dispatcher reports it, and the protocol of observers.


@dataclass(slots=True)  # not frozen: one is made for each call, and a frozen one takes three times as long
class Call:
    """The input or output tensors of a module's call."""

    plan: Plan
    tensors: list[tuple[str, Tensor]]  # each with its place in the nested value
    number: int  # counted from the end of the last backward pass; in evaluation, from the start of the step
    phase: Phase
    again: bool = False  # a checkpoint's recompute: only the gradients are new
    comes_again: bool = False  # a checkpoint will run the module again, with the gradients
    traced: bool = False  # inside a compiled graph, which reports its gradients


class Observer(Protocol):
    """Observes the calls of modules. It keeps no tensor without copying it, and runs outside of the user's modes."""

    @property
    def wants_inputs(self) -> bool:
        """Whether it needs inputs at all."""

    def wants(self, plan: Plan) -> bool:
        """Return whether it observes this module."""

    def saw_inputs(self, call: Call) -> None:
        """Handle the inputs that a module is about to get."""

    def saw_outputs(self, call: Call) -> None:
        """Handle the outputs of a module."""

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Handle a gradient that a compiled graph reports."""


# What keeps the running step, so that it can be run again elsewhere.

FirstBad = Callable[[], Tap | None]  # the first tap of this step with a non-finite value


class Place(Protocol):
    """Where a model is."""

    path: str

    @property
    def below(self) -> str:
        """What the paths of the modules inside it begin with."""


class LateStep(Protocol):
    """What makes a step of a device repeatable. Whoever holds it keeps the copies of its weights."""

    @property
    def is_held(self) -> bool:
        """Whether there is anything to let go of."""

    def release(self) -> None:
        """Let go of everything: its values were finite."""

    def weight_at_entry(self, weight: Tensor) -> Tensor | None:
        """Return a weight as it was when the step's call of its model began; None if it wasn't copied."""


class Routine(NamedTuple):
    """How the calls of a model are held, as long as nothing differs."""

    kept: Any  # what has the held call as its attribute `held`
    met: int  # see `StepKeeper`
    held: type  # of that call
    arrival: type  # of what keeps the gradient of its output
    plans: Any  # whose attribute `changes` counts changes of the structure of models; and as they are now
    now: int
    numbers: frozenset[type]  # arguments beside tensors that are held as they are
    max_bytes: int  # of an output
    calls: int  # that may be held in a row
    skip: Callable[[int], None]  # takes how many of them were


BatchOf = Callable[[Any], tuple[Batch | None, str]]


class StepKeeper(Protocol):
    """Follows the captured steps. Called on the training thread, under the recorder's lock, or as it says."""

    @property
    def armed(self) -> bool:
        """Whether it keeps calls now: else `entered` and `look` do nothing."""

    def ask(self, occasion: Occasion | None = None) -> bool:
        """Save the next step that is captured, after an incident only if the settings say so. Return whether it will.

        Called on any thread.
        """

    def entered(self, place: Place, model: nn.Module, args: Any, keywords: dict[str, Any] | None) -> None:
        """Handle a call of a model, before it runs. `keywords` is None if they can't be read."""

    def left(self, model: nn.Module, output: Any) -> None:
        """Handle what a call returned."""

    def hold(self, place: Place, model: nn.Module, args: Any) -> None:
        """Handle a call of a model in an uncaptured step, before it runs. Must take microseconds."""

    def returned(self, model: nn.Module, kwargs: dict[str, Any] | None, output: Any) -> None:
        """Handle what such a call returned."""

    def routine(self, model: nn.Module) -> Routine | None:
        """Return how the next calls of a model can be held without asking; None if that isn't known now."""

    def miss(self, why: str) -> None:
        """Handle the reason why the calls of an uncaptured step are not held."""

    @property
    def has_fired(self) -> bool:
        """Whether `settle` has something to do."""

    def fire(self, what: str, module: str | None) -> bool:
        """Save the running step, captured or not: `what` became non-finite in it, in this module if it is known.

        It is saved once the gradients of the running backward pass have arrived. Return whether it will be tried.
        """

    def jump(self, loss: Tensor, what: str, limit: float, batch_of: BatchOf) -> bool:
        """Save the running step, whose loss has jumped: its backward pass is about to begin. Return whether it will.

        `batch_of` returns the batch that the arguments of a call are of, or why that isn't known.
        """

    def settle(self, where: str) -> None:
        """Handle a moment at which these gradients have arrived, and the weights are still those of the step."""

    def look(self, first_bad: FirstBad, where: str) -> None:
        """Handle a moment at which the weights are still those of the step."""

    def end_step(self) -> None:
        """Handle the end of a step, captured or not."""

    def defer(self) -> LateStep | None:
        """Return what makes the running step repeatable, to be held until a device has said whether it is finite."""

    def fire_late(self, kept: Any, what: str, module: str | None) -> None:
        """Save such a step: `what` was non-finite in it. It is saved by `settle_late`. Called on any thread."""

    def settle_late(self) -> None:
        """Handle a moment at which the training makes no step."""

    @property
    def kept(self) -> tuple[object, ...] | None:
        """What holds calls as its attribute `held`; None if they stay held beyond their step."""

    met: int  # raised whenever `kept` changes

    def alarm(self, step: int) -> None:
        """Handle non-finite values of an earlier step, which another device measured. Called on any thread."""

    def remember(self, frame: Frame) -> None:
        """Handle a frame that was sent. Called on the recorder's thread."""

    def fail(self, error: str) -> None:
        """Handle an exception that ends the running step, and the run."""

    def close(self) -> None:
        """Let go of everything."""
