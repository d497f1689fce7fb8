"""The plan for each watched module, decided once, so that a hook only has to look it up."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from typing import Final

import torch
from torch import nn

from hookcore.recorder.checkpoints import Pending
from hookcore.recorder.current import TensorHook
from hookcore.records import Kind, Phase

MAX_DEPARTED: Final = 10_000


def fingerprint(module: nn.Module) -> tuple[object, ...]:
    """Return a module's children by name and identity. It differs if one is added, removed, renamed, or exchanged."""
    children = module._modules
    return (*children.keys(), *map(id, children.values())) if children else ()


class Root:
    """A model: the outermost module of a tree."""

    __slots__ = ("__weakref__", "entered_with_grad", "name", "passed_in_training", "ref", "trained")

    def __init__(self, module: nn.Module, name: str) -> None:
        self.ref = weakref.ref(module)
        self.name = name
        self.trained: bool | None = None  # whether it trains in training mode; None if unknown
        self.passed_in_training: bool | None = None  # its mode in the last backward pass of the running step
        self.entered_with_grad = False  # whether it is running, and was called with gradients enabled

    def trains(self) -> bool:
        """Whether the model is in training mode now; False if it is gone."""
        module = self.ref()
        if module is not None and module.training:
            self.trained = True
            return True
        return False

    def enter(self) -> None:
        """Handle the start of a call of the model."""
        self.entered_with_grad = torch.is_grad_enabled()

    def leave(self) -> None:
        """Handle the end of the call."""
        self.entered_with_grad = False

    def note_pass(self) -> None:
        """Record that a backward pass reached its weights."""
        module = self.ref()
        if module is not None:
            self.passed_in_training = module.training

    def note_step(self) -> None:
        """Handle the end of a step. A model whose gradients arrived in evaluation mode trains in that mode.

        This uses data of every step, captured or not, so that a call's phase doesn't depend on what is captured.
        """
        if self.passed_in_training is not None:
            self.trained, self.passed_in_training = self.passed_in_training, None

    def phase(self, requires_grad: bool) -> Phase:
        """Return training or evaluation, by the root's own mode.

        A model that was never in training mode but builds a graph is being trained in eval mode, as in many fine-tuning
        scripts. Once its passes have shown that, the same is true for its parts that need no gradient.
        """
        module = self.ref()
        if module is None or module.training:
            self.trained = True
            return "train"
        graph = requires_grad or (self.trained is False and torch.is_grad_enabled())
        return "train" if graph and not self.trained else "eval"


class Plan:
    """The plan for capturing one module."""

    __slots__ = (
        "acts_before",
        "calls",
        "children",
        "errors",
        "eval_calls",
        "first_index",
        "got_gradients",
        "hooks",
        "is_root",
        "kinds",
        "lone",
        "muted",
        "path",
        "pending",
        "reasons",
        "recomputed",
        "ref",
        "root",
        "seen",
        "shapes",
        "skipped_by",
        "taps",
        "type_name",
        "wants_input",
        "wants_output",
        "why_unseen",
    )

    def __init__(self, path: str, module: nn.Module, root: Root, kinds: frozenset[Kind], skipped_by: str = "") -> None:
        self.path = path
        self.type_name = type(module).__name__
        self.ref = weakref.ref(module)
        self.root = root
        self.is_root = root.ref() is module
        self.muted = False  # after too many errors
        self.choose(kinds, skipped_by)
        self.calls = 0  # calls since the last backward pass ended
        self.eval_calls = 0  # calls in evaluation since the start of the step
        self.taps: dict[tuple[Kind, str, int, Phase], int] = {}  # slots
        self.shapes: dict[str, tuple[int, ...]] = {}  # the first ones of its inputs and outputs
        self.pending: Pending = []  # calls under a reentrant checkpoint, whose gradient arrives with the recompute
        self.reasons: dict[str, int] = {}  # why parts of it were not captured, and how often
        self.seen = False  # whether it ever ran
        self.why_unseen = ""  # why no call of it was observed, the last time this was asked
        self.got_gradients = False  # whether one of its own parameters was stepped with a gradient
        self.errors = 0
        self.first_index: str | None = None  # of a traced output; its calls are counted
        # One for each slot, so that a tensor that is returned again is recognized.
        self.hooks: dict[int, TensorHook] = {}
        self.recomputed = 0  # calls that a checkpoint repeated
        self.children = fingerprint(module)

    def leaves(self, reason: str) -> None:
        """Record why its module has no more values under this path."""
        self.reasons = self.reasons | {reason: 1}

    def left_behind(self, reason: str) -> Plan:
        """Return a plan that keeps what was captured under this path, and restart this one empty."""
        old = copy.copy(self)
        self.taps, self.shapes, self.reasons, self.pending, self.hooks = {}, {}, {}, [], {}
        self.seen, self.got_gradients, self.first_index = False, False, None
        old.leaves(reason)
        return old

    def note_reason(self, reason: str) -> None:
        """Record why something was not captured."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def miss_call(self, reason: str) -> None:
        """Count a call whose output is unknown."""
        self.calls += 1
        self.note_reason(reason)

    def make_boundary(self, kinds: frozenset[Kind]) -> None:
        """Capture these kinds at the root of a compiled region, even if the selection left the module out."""
        self.kinds = kinds
        self.wants_output = bool(kinds)
        self.skipped_by = ""

    def count_error(self) -> int:
        """Count an error of hookcore at this module, and return the number of errors."""
        self.errors += 1
        return self.errors

    def mute(self, reason: str) -> None:
        """Ignore the module from now on."""
        self.muted = True
        self.wants_output = self.wants_input = False
        self.note_reason(reason)

    def reset_calls(self) -> None:
        """Reset the count of training calls: a backward pass has ended, or a step begins."""
        self.calls = self.recomputed = 0
        if self.pending:
            self.pending.clear()

    def choose(self, kinds: frozenset[Kind], skipped_by: str) -> None:
        """Set what to capture from now on. Called between two steps."""
        self.kinds = kinds
        self.skipped_by = skipped_by  # why the selection left it out, or ""
        self.lone: list[TensorHook] = []  # per call, for outputs that are one plain tensor
        self.wants_output = not self.muted and not kinds.isdisjoint(("output", "output_grad"))
        self.wants_input = not self.muted and not kinds.isdisjoint(("input", "input_grad"))
        self.acts_before = self.wants_input or self.is_root  # whether its call matters before it runs


class Departed:
    """The plans of removed modules, one per path and type, because a loop may recreate its model in every step."""

    def __init__(self, limit: int = MAX_DEPARTED) -> None:
        self._limit = limit
        self._plans: dict[tuple[str, str], Plan] = {}

    def append(self, plan: Plan) -> None:
        """Record what is known about a module."""
        plan.lone, plan.pending, plan.hooks = [], [], {}
        known = self._plans.setdefault((plan.path, plan.type_name), plan)
        if known is not plan:
            known.taps |= plan.taps
            known.seen = known.seen or plan.seen
            for reason, times in plan.reasons.items():
                known.reasons[reason] = known.reasons.get(reason, 0) + times
        elif len(self._plans) > self._limit:
            del self._plans[next(iter(self._plans))]

    def __iter__(self) -> Iterator[Plan]:
        return iter(list(self._plans.values()))

    def __len__(self) -> int:
        return len(self._plans)


class PlanTable:
    """Every plan of one watcher."""

    def __init__(self) -> None:
        self.by_id: dict[int, Plan] = {}  # by id(module); a dead module's plan is taken out by its weak reference
        self.departed = Departed()  # of modules that are gone
        self.named: list[Plan] = []  # of tensors that the user named
        self.regions: list[str] = []  # compiled regions that were seen to run, by path

    def live(self) -> list[Plan]:
        """Return the plans of the modules that are there, as they are now: another thread may add some."""
        return list(self.by_id.values())

    def at(self, path: str) -> Plan | None:
        """Return the plan of the module at this path."""
        return next((plan for plan in self.live() if plan.path == path), None)
