"""Probes: functions that compute numbers from tensors, at intervals of steps, and objects that see a model's gradients
before and after each backward pass."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from hookcore.config import Pattern
from hookcore.config.patterns import select
from hookcore.config.readers import read_include
from hookcore.errors import ArgumentError
from hookcore.hooks.handle import HookHandle
from hookcore.hooks.internals import DisableTorchFunction, version_of
from hookcore.hooks.tensors import hook_gradient, hook_leaves
from hookcore.observe.copies import is_capturing
from hookcore.observe.plain import generators_kept, unseen, why_empty
from hookcore.probes import PassGradients, attention, channel_rms, channel_zeros, outliers
from hookcore.recorder.calls.plans import Call, Plan, PlanTable
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import Parameter
from hookcore.recorder.known.roots import Root
from hookcore.recorder.leaving.frames import Collector
from hookcore.recorder.measured.scalars import LossScale
from hookcore.recorder.measured.snapshots import ChannelColumns
from hookcore.records import PROBE, Kind, Phase, Tap
from hookcore.records.vocabulary import ATTENTION_PROBE, OUTLIERS_PROBE, OWN_NUMBERS, PROBE_LABEL

# What functions of probes may return.

MAX_VALUES: Final = 4096  # that a function may return


def values_of(result: Any) -> Tensor:
    """Return a result as a tensor. Raises TypeError for a wrong one."""
    if isinstance(result, (bool, int, float)):
        return torch.tensor(float(result), dtype=torch.float64)
    if isinstance(result, Tensor) and result.dim() <= 1 and result.numel() <= MAX_VALUES:
        return result.detach()
    what = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
    raise TypeError(f"it returned {what}; a probe returns a number, or a 1-D tensor of at most {MAX_VALUES:,}")


def channels_of(function: Callable[[Tensor], Any] | None, given: Tensor, values: Tensor) -> int:
    """Return how many numbers the function has in mind: of very many, it returns groups. 0 for a single number."""
    if not values.dim():
        return 0
    count = getattr(function, "channels", None)
    return len(values) if count is None else int(count(given))


MAX_REPORTED: Final = 16  # reasons that are reported for one probe


@dataclass(slots=True, eq=False)
class Passes:
    """The objects of one probe, by model."""

    make: Callable[[], PassGradients]
    _objects: weakref.WeakKeyDictionary[Root, PassGradients] = field(default_factory=weakref.WeakKeyDictionary)
    _running: list[int] = field(default_factory=list)  # the threads of the passes that run; the outermost first
    _seen: bool = False  # whether a pass was seen in this step
    _tangled: bool = False  # whether passes ran in several threads at once
    _hooks: list[HookHandle] = field(default_factory=list)  # on the parameters, while a pass runs
    fault: Exception | None = None  # in such a hook
    reported: set[str] = field(default_factory=set)

    def begin_step(self) -> None:
        """Forget an unfinished step."""
        if self._seen:
            self.finish()

    def begin_pass(self, plans: PlanTable, paths: frozenset[str]) -> None:
        """Show the gradients before a pass. A pass inside another one, as of a checkpoint, is a part of it."""
        self._running.append(threading.get_ident())
        self._tangled |= len(set(self._running)) > 1
        if len(self._running) == 1:
            self._seen = True
            self._show(plans, paths, "begin_pass")
            self._hook(plans, paths)

    def end_pass(self, plans: PlanTable, paths: frozenset[str]) -> None:
        """Show the gradients after a pass."""
        if not self._running:  # it began before the step in which the probe is due
            return
        self._running.pop()
        if not self._running:
            self._unhook()
            self._show(plans, paths, "end_pass")

    def _hook(self, plans: PlanTable, paths: frozenset[str]) -> None:
        for root, parameters in _parameters(plans, paths).items():
            probe: Any = self._objects[root]
            if hasattr(probe, "wants_local") and probe.wants_local():
                hooks = [(tensor, _LocalHook(self, probe, place)) for place, tensor in enumerate(parameters)]
                self._hooks.append(hook_leaves(hooks))

    def _unhook(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault

    def _show(self, plans: PlanTable, paths: frozenset[str], method: str) -> None:
        with unseen(), generators_kept():
            for root, parameters in _parameters(plans, paths).items():
                if root not in self._objects:
                    self._objects[root] = self.make()
                getattr(self._objects[root], method)(parameters)

    def finish(self) -> list[tuple[Root, Any]]:
        """End the step: return what each object found, or why it doesn't know."""
        tangled, self._tangled, self._seen, self._running = self._tangled, False, False, []
        self._unhook()
        found = []
        with unseen(), generators_kept():
            for root, each in list(self._objects.items()):
                result = each.end_step()
                found.append((root, "backward passes ran in several threads at once" if tangled else result))
        return found


class _LocalHook:
    """The hook that shows a gradient to an object. It returns nothing, so it changes nothing."""

    __slots__ = ("_passes", "_place", "_probe")
    __torch_unserializable__ = True

    def __init__(self, passes: Passes, probe: PassGradients, place: int) -> None:
        self._passes, self._probe, self._place = passes, probe, place

    def __call__(self, gradient: Tensor | None) -> None:
        try:
            if gradient is not None:
                with unseen():  # nothing is drawn here, and setting generators back would disturb other threads
                    self._probe.see_local(self._place, gradient)
        except Exception as error:
            self._passes.fault = error


# One probe: a function of the user or of hookcore, and when and for which tensors it is called.

MAX_NAME: Final = 100
MAX_COMPUTES: Final = 200  # letters of the name of a function
MAX_STATES: Final = 1024  # objects of a class
MAX_FAULTS: Final = 3  # then it is switched off
MAX_NUMBERS: Final = 32  # with names, of a tensor
PROBE_KINDS: Final[tuple[Kind, ...]] = ("output", "output_grad", "param", "param_grad")

Function = Callable[..., Any]
# Functions that surely draw no random numbers. After others, the generators are set back, and with them what another
# thread has drawn in the meantime.
_DRAW_NONE: Final[tuple[Function, ...]] = (outliers, channel_rms, channel_zeros)


@dataclass(slots=True, eq=False)
class Probe:
    """One function, and which tensors it gets."""

    name: str
    function: Function
    include: tuple[Pattern, ...]
    kinds: frozenset[Kind]
    every: int
    due_at: int = 0  # the first captured step from this one on
    begun_at: int = -1  # the newest step in which it was due
    until: int = 0  # it runs in each step before this one
    evaluation_due_at: dict[str, int] = field(default_factory=dict)  # by model, as `due_at` of captured evaluations
    faults: int = 0
    states: dict[Tap, _State] = field(default_factory=dict)  # of a class: its objects, in these steps
    paths: frozenset[str] = frozenset()  # of the modules that it looks at in this step
    passes: Passes | None = None  # set if it looks at backward passes

    @property
    def computes(self) -> str:
        """The qualified name of its function, by which rules recognize what its results mean."""
        function: Any = self.function
        while isinstance(function, partial):
            function = function.func
        named = function if hasattr(function, "__qualname__") else type(function)
        return f"{getattr(named, '__module__', '')}.{named.__qualname__}"[:MAX_COMPUTES]

    @property
    def is_off(self) -> bool:
        """Whether it failed too often."""
        return self.faults >= MAX_FAULTS

    def count_fault(self, error: Exception) -> str:
        """Count an exception of the function. Return what to say of it: of the first one, and of the last."""
        self.faults += 1
        if self.faults > 1 and not self.is_off:
            return ""
        off = f"; after {MAX_FAULTS} errors, it is switched off" if self.is_off else ""
        return f"the probe {self.name!r} failed: {type(error).__name__}: {error}"[:600] + off

    def begin_step(self, step: int, captured: bool, block: int) -> bool:
        """Return whether it looks at a step. `block`: the steps after which a parameter has its next gradient."""
        goes_on = step in (self.begun_at, self.begun_at + 1) and step < self.until
        if self.is_off or not captured or not (goes_on or self.due_at <= step or self.begun_at == step):
            self.states = {}
            if step != self.begun_at:
                self.until = 0
            return False
        if not goes_on:
            self.states = {}
            in_a_row = getattr(self.function, "in_a_row", 1)
            self.due_at, self.until = step + self.every, step + (in_a_row * block if in_a_row > 1 else 1)
            if self.passes is not None:
                self.passes.begin_step()
        self.begun_at = step
        return True

    def wants_next(self, step: int) -> bool:
        """Return whether a step has to be captured because the one before was, and both belong together."""
        return step == self.begun_at + 1 and step < self.until and not self.is_off

    def call_for(self, tap: Tap, plan: Plan, step: int) -> Function | None:
        """Return the function, or the object of a class for this tap. None if it has had its tensor in this step."""
        if not isinstance(self.function, type):
            return self.function
        state = self.states.get(tap)
        if state is None or state.plan is not plan:
            if len(self.states) >= MAX_STATES:
                raise OverflowError(f"it matches more than {MAX_STATES:,} tensors: use a narrower include")
            state = self.states[tap] = _State(plan, self.function())
        if state.step == step:
            return None
        state.step = step
        return state.call


@dataclass(slots=True, eq=False)
class _State:
    """An object of a probe that is a class."""

    plan: Plan
    call: Function
    step: int = -1  # the step in which it got its last tensor


def probe_of(name: str, function: Function, include: Any, kinds: Any, every: int) -> Probe:
    """Return a probe with these arguments of a user. Raises ArgumentError for a wrong one."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise ArgumentError(f"name={name!r} is invalid: use a string of 1 to {MAX_NAME} characters")
    if name in OWN_NUMBERS:
        raise ArgumentError(f"name={name!r} is invalid: hookcore's own number has this name. Use another one")
    if not callable(function):
        raise ArgumentError(f"function={function!r} is invalid: use a function that takes a tensor")
    chosen = frozenset([kinds] if isinstance(kinds, str) else kinds)
    if not chosen or not chosen <= set(PROBE_KINDS):
        raise ArgumentError(f"kinds={kinds!r} is invalid: use one or more of {', '.join(map(repr, PROBE_KINDS))}")
    if type(every) is not int or every < 1:
        raise ArgumentError(f"every={every!r} is invalid: use an integer of 1 or more")
    try:
        patterns = read_include(include)
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"include={include!r} is invalid: use a pattern, a list of patterns, or None. {error}"
        ) from None
    if function is attention:
        return Probe(name, function, patterns, frozenset(), every)
    if isinstance(function, type) and hasattr(function, "end_pass"):
        return Probe(name, function, patterns, frozenset(), every, passes=Passes(function))
    return Probe(name, function, patterns, chosen, every)


# Those that look at backward passes.

NoteChannels = Callable[[Tap, int, int, Tensor], None]  # a tap, the step, how many channels, and their numbers


class PassProbes:
    """The probes of a watcher that look at the backward passes of the running step."""

    def __init__(self, context: Context, scale: LossScale, note: NoteChannels) -> None:
        self._plans, self._statistics, self._emit = context.plans, context.statistics, context.emit
        self._current, self._owners, self._scale, self._note = context.current, context.owners, scale, note
        self._widths: dict[Tap, int] = {}  # the most values that a result has had
        self.due: tuple[Probe, ...] = ()

    def begin(self) -> None:
        """Let them see the gradients before a backward pass."""
        self._each(lambda probe, passes: passes.begin_pass(self._plans, probe.paths))

    def end(self) -> None:
        """Let them see the gradients after a backward pass."""
        self._each(lambda probe, passes: passes.end_pass(self._plans, probe.paths))

    def end_step(self) -> None:
        """Add the results to the rows of the models."""
        self._each(self._finish)

    def _each(self, call: Callable[[Any, Passes], None]) -> None:
        for probe in self.due:
            if probe.passes is None or probe.is_off:
                continue
            try:
                call(probe, probe.passes)
            except Exception as error:
                if message := probe.count_fault(error):
                    self._emit("probe-failed", message, "warning", "")

    def _finish(self, probe: Probe, passes: Passes) -> None:
        for root, result in passes.finish():
            plan = _plan_of(self._plans, root)
            named = self._unscaled(result, passes.make) if isinstance(result, dict) else result
            if plan is not None and isinstance(named, str):
                self._note_unknown(probe, passes, named, plan.path)
            elif plan is not None and isinstance(named, dict):
                for name, values in named.items():
                    self._add(plan, Tap(plan.path, PROBE, f"{probe.name} {name}"), values_of(values))
            elif plan is not None:
                self._add(plan, Tap(plan.path, PROBE, probe.name), values_of(named))

    def _unscaled(self, named: dict[str, Tensor], made_by: Any) -> dict[str, Tensor] | str:
        """Return numbers without the scale of the loss, or why it isn't known."""
        scalers = self._owners.scalers()
        if not scalers:
            return named
        scale = scalers[0]._scale
        if self._scale.value is None or len(scalers) > 1 or scale is None:  # it has changed after a skipped step
            return "the scale of the loss isn't known: a scaler skipped the step, or there are several"
        return {name: each / scale.to(each) if name in made_by.scaled else each for name, each in named.items()}

    def _add(self, plan: Plan, tap: Tap, values: Tensor) -> None:
        slot = self._statistics.table.add(tap)
        if slot < 0:
            return
        self._statistics.add(plan, values, slot)
        if values.dim():  # zeros for what a step has fewer of than another one, so that columns have one length
            width = self._widths[tap] = max(len(values), self._widths.get(tap, 0))
            padded = torch.nn.functional.pad(values, (0, width - len(values)))
            self._note(tap, self._current.number, width, padded)

    def _note_unknown(self, probe: Probe, passes: Passes, why: str, path: str) -> None:
        if why not in passes.reported and len(passes.reported) < MAX_REPORTED:
            passes.reported.add(why)
            self._emit("probe-unknown", f"the probe {probe.name!r} has no result: {why}", "info", path)


def _parameters(plans: PlanTable, paths: frozenset[str]) -> dict[Root, list[Tensor]]:
    """Return the trained parameters of the modules at these paths, each once, by model."""
    found: dict[Root, dict[int, Tensor]] = {}
    for plan in plans.live():
        module = plan.ref() if plan.path in paths else None
        for tensor in list(module._parameters.values()) if module is not None else ():
            if tensor is not None and tensor.requires_grad:
                found.setdefault(plan.root, {})[id(tensor)] = tensor
    return {root: list(tensors.values()) for root, tensors in found.items()}


def _plan_of(plans: PlanTable, root: Root) -> Plan | None:
    """Return the plan of a model's outermost module."""
    module = root.ref()
    return next((plan for plan in plans.live() if plan.root is root and plan.ref() is module), None)


# All probes of a watcher.

MAX_PROBES: Final = 32
CHANNELS_EVERY: Final = 10


class Probes:
    """The probes of one watcher: an observer of calls in the steps in which one is due."""

    wants_inputs = False

    def __init__(self, context: Context, collector: Collector) -> None:
        self._plans, self._statistics, self._current = context.plans, context.statistics, context.current
        self._emit, self._collector, self._most_calls = context.emit, collector, context.settings.calls
        self.channels = ChannelColumns(context.errors)
        self.passes = PassProbes(context, collector.scale, self.channels.note)
        self.due: tuple[Probe, ...] = ()
        self.of_attention: tuple[Probe, ...] = ()  # those of them that look at attention
        self.of_evaluation: dict[str, tuple[Probe, ...]] = {}  # those that look at it in an evaluation, by model
        self._of_heads = Probe(ATTENTION_PROBE, attention, (), frozenset(), 1)
        self._of_blocks = Probe(OUTLIERS_PROBE, outliers, (), frozenset(("output",)), 1)
        self._measured: set[tuple[str, Tap]] = set()  # of this step, by functions with several numbers
        self.added: list[Probe] = []  # by the user; replaced, never changed
        self.choose_channels(context.settings.channels)

    @property
    def has_any(self) -> bool:
        """Whether any step may have probes."""
        return bool(self.added or self._of_channels or self.due)

    def add(self, probe: Probe) -> bool:
        """Add a probe; return False if there is no room."""
        if len(self.added) >= MAX_PROBES:
            return False
        self.added = [*self.added, probe]
        return True

    def choose_channels(self, include: tuple[Pattern, ...]) -> None:
        """Look at each channel of the outputs of these modules from the next step on."""
        own = (("channel_rms", channel_rms), ("channel_zeros", channel_zeros)) if include else ()
        self._of_channels = tuple(  # of the setting
            Probe(name, function, include, frozenset(("output",)), CHANNELS_EVERY) for name, function in own
        )

    def hurries(self, step: int) -> bool:
        """Return whether to capture a step because a probe looks at several in a row."""
        return any(probe.wants_next(step) for probe in self.added)

    def begin_step(self, step: int, captured: bool, is_rare: bool, block: int = 1) -> bool:
        """Choose the probes of a step. Return whether that changed who observes calls."""
        before = bool(self.due or self.of_evaluation)
        self.of_evaluation = {}
        if not (self.added or self._of_channels or before or is_rare):
            return False
        self.channels.end_step()
        self._measured = set()
        self.due = tuple(
            probe for probe in (*self._of_channels, *self.added) if probe.begin_step(step, captured, block)
        )
        self.due += self._own() if is_rare else ()
        is_trained = "train" in self._statistics.phases
        self.of_attention = tuple(probe for probe in self.due if probe.function is attention) if is_trained else ()
        plans = list(self._plans.live()) if self.due else []
        modules = {plan.path: plan.ref() for plan in plans}
        for probe in self.due:
            if probe is self._of_blocks:
                probe.paths = frozenset(_blocks_among(plan for plan in plans if "output" in plan.kinds))
            else:
                probe.paths = frozenset(_chosen(modules, probe.include))
            if probe not in (self._of_heads, self._of_blocks):  # each time: a frame may be lost
                self._collector.add_label(f"{PROBE_LABEL}{probe.name}", probe.computes)
        self.passes.due = tuple(probe for probe in self.due if probe.passes is not None)
        return before or bool(self.due)

    def _own(self) -> tuple[Probe, ...]:
        """Return the probes that are there by themselves, unless one of the user takes their place."""
        users = [each for probe in self.added for each in (probe.name, probe.function)]
        own = (probe for probe in (self._of_heads, self._of_blocks) if probe.function not in users)
        return tuple(probe for probe in own if probe.name not in users)

    def begin_evaluation(self, root: str, step: int, apart: int) -> bool:
        """Choose who looks at the attention of a model's evaluation, which has begun in this step.

        `apart`: the steps between two looks at it. A teacher may be evaluated in each step, and its student rarely.
        """
        each = (probe for probe in (*self.added, *self._own()) if probe.function is attention and not probe.is_off)
        chosen = tuple(probe for probe in each if probe.evaluation_due_at.get(root, 0) <= step)
        self.of_evaluation |= {root: chosen} if chosen else {}
        modules = {plan.path: plan.ref() for plan in self._plans.live()} if chosen else {}
        for probe in chosen:
            probe.evaluation_due_at[root] = step + (apart if probe is self._of_heads else probe.every)
            probe.paths = frozenset(_chosen(modules, probe.include))
            if probe is not self._of_heads:
                self._collector.add_label(f"{PROBE_LABEL}{probe.name}", probe.computes)
        return bool(chosen)

    # Calls

    def wants(self, plan: Plan) -> bool:
        """Return whether a probe looks at this module."""
        return any(probe.kinds and plan.path in probe.paths for probe in self.due)

    def saw_inputs(self, call: Call) -> None:
        """Do nothing: a module's input is another one's output."""

    def saw_outputs(self, call: Call) -> None:
        """Compute the numbers of outputs, and hook their gradients."""
        if call.phase not in self._statistics.phases or call.again or is_capturing():
            return  # what is computed while a CUDA graph is captured would become a part of it
        number = min(call.number, self._most_calls - 1)  # an evaluation has a call for each batch
        for probe in self.due:
            if call.plan.path not in probe.paths or (probe is self._of_blocks and call.phase != "train"):
                continue
            for index, tensor in call.tensors:
                if "output" in probe.kinds:
                    self.compute(probe, call.plan, "output", index, number, tensor, call.phase)
                if "output_grad" in probe.kinds and tensor.requires_grad and not tensor.is_leaf and not call.traced:
                    hook_gradient(tensor, _ProbeHook(self, probe, call.plan, index, call.number))

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Compute the numbers of a gradient that a compiled graph reports."""
        for probe in self.due:
            if "output_grad" in probe.kinds and plan.path in probe.paths:
                self.compute(probe, plan, "output_grad", tap.index, tap.call, gradient)

    def saw_arriving(self, probe: Probe, plan: Plan, index: str, call: int, gradient: Tensor) -> None:
        """Compute the numbers of a gradient from inside its hook; let no exception out."""
        current = self._current
        if current.captured and probe in self.due and current.reach():
            with contextlib.suppress(Exception), DisableTorchFunction():
                self.compute(probe, plan, "output_grad", index, call, gradient)

    # Parameters

    def before_step(self, owned: Sequence[Parameter], with_gradients: bool) -> None:
        """Compute the numbers of weights and their gradients, as the optimizer is about to use them."""
        for probe, parameter, tensor in self._parameters("param", owned):
            self.compute(probe, parameter.plan, "param", parameter.name, 0, tensor)
        if with_gradients:
            self.read_gradients(owned)

    def read_gradients(self, owned: Sequence[Parameter]) -> None:
        """Compute the numbers of the current gradients of weights."""
        for probe, parameter, tensor in self._parameters("param_grad", owned):
            if tensor.grad is not None:
                self.compute(probe, parameter.plan, "param_grad", parameter.name, 0, tensor.grad)

    def _parameters(self, kind: Kind, owned: Sequence[Parameter]) -> Iterator[tuple[Probe, Parameter, Tensor]]:
        for probe in self.due:
            for parameter in owned if kind in probe.kinds else ():
                tensor = parameter.tensor
                if tensor is not None and parameter.plan.path in probe.paths:
                    yield probe, parameter, tensor

    # Values

    def compute(
        self, probe: Probe, plan: Plan, kind: Kind, index: str, call: int, tensor: Tensor, phase: Phase = "train"
    ) -> None:
        """Call the function, and add its results to the rows of their taps."""
        place = " ".join(filter(None, ("" if kind == "output" else kind, index)))
        key = probe.name, Tap(plan.path, PROBE, place, call, phase)
        if probe.is_off or key in self._measured or why_empty(tensor):
            return
        given = tensor.detach()
        before = version_of(given)
        try:
            with unseen(), contextlib.nullcontext() if probe.function in _DRAW_NONE else generators_kept():
                function = probe.call_for(key[1], plan, self._current.number)
                result = None if function is None else function(given)
                if result is None and isinstance(probe.function, type):
                    return
                found = [(name, values_of(each)) for name, each in _numbers_of(result)]
                several = [(name, values, channels_of(function, given, values)) for name, values in found]
        except Exception as error:
            if message := probe.count_fault(error):
                self._emit("probe-failed", message, "warning", plan.path)
            return
        if version_of(given) != before:
            probe.faults = MAX_FAULTS
            why = "changed its tensor, so the training may differ from this step on; it is switched off"
            self._emit("probe-failed", f"the probe {probe.name!r} {why}", "error", plan.path)
            return
        if isinstance(result, dict):  # the first micro-batch of a step stands for it, as the numbers belong together
            self._measured.add(key)
        for name, values, channels in several:
            tap = replace(key[1], index=" ".join(filter(None, (probe.name, name, place))))
            slot = self._statistics.table.add(tap)
            if slot >= 0:
                self._statistics.add(plan, values, slot)
                if channels:
                    self.channels.note(tap, self._current.number, channels, values)


class _ProbeHook:
    """The tensor hook that gives a gradient to a function. It holds no tensor, so it extends no graph's life."""

    __slots__ = ("_about", "_probes")
    __torch_unserializable__ = True

    def __init__(self, probes: Probes, probe: Probe, plan: Plan, index: str, call: int) -> None:
        self._probes = probes
        self._about = probe, plan, index, call

    def __call__(self, gradient: Any) -> None:
        if gradient is not None:
            self._probes.saw_arriving(*self._about, gradient)


def _numbers_of(result: Any) -> Iterable[tuple[str, Any]]:
    """Return the numbers of a result by their names; a single one has none. Raises ValueError for too many."""
    if not isinstance(result, dict):
        return (("", result),)
    if len(result) > MAX_NUMBERS:
        raise ValueError(f"it returned {len(result):,} names; a probe returns at most {MAX_NUMBERS}")
    return ((str(name)[:MAX_NAME], each) for name, each in result.items())


def _chosen(modules: dict[str, Any], include: tuple[Pattern, ...]) -> Iterable[str]:
    leaves = {path for path, module in modules.items() if module is not None and not module._modules}
    return select(modules, leaves, include, strict=False).chosen


def _blocks_among(plans: Iterable[Plan]) -> Iterator[str]:
    """Yield the outermost modules that are numbered, have siblings of their class, and contain others: the blocks."""
    lists: dict[tuple[str, str], list[str]] = {}
    for plan in plans:
        parent, _, name = plan.path.rpartition(".")
        if name.isdigit() and not plan.is_leaf:
            lists.setdefault((parent, plan.type_name), []).append(plan.path)
    blocks = {path for paths in lists.values() for path in paths if len(paths) > 1}
    for path in blocks:
        if not any(path[:end] in blocks for end, letter in enumerate(path) if letter == "."):
            yield path
