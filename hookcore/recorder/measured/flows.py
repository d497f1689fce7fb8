"""The data flow of a step, learned from one of them: which call of a module feeds which."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from hookcore.hooks.internals import (
    current_graph_task,
    is_wrapped,
    keywords_of,
    memory_of,
    node_number,
    option_of,
    tracing_state,
    version_of,
)
from hookcore.observe.copies import is_capturing, square_of
from hookcore.observe.plain import unseen
from hookcore.recorder.calls.plans import Call, Plan
from hookcore.recorder.context import Context
from hookcore.recorder.known.roots import find_tensors
from hookcore.recorder.measured.sizes import SeenCall, Sizes, forms_of, now
from hookcore.records import PROBE, Frame, Phase, Tap, text_of
from hookcore.records.flow import MAX_FLOW_EDGES, OUTERMOST, Flow, FlowCall, How, TensorForm
from hookcore.records.vocabulary import RESIDUAL

# The memory in which the outputs of one step's calls are. The references to it are weak.

OUTSIDE: Final = -1  # the place of what doesn't come from a call, such as the batch


@dataclass(slots=True, eq=False)
class Memory:
    """A piece of memory. A call may return a part of its input, while others get all of it."""

    key: Any  # holds its address
    version: int
    place: int = OUTSIDE  # the newest call with an output in it
    parts: dict[object, int] = field(default_factory=dict)  # such calls, by the part that their output is

    def place_of(self, tensor: Tensor) -> int:
        """Return the call whose output a tensor is; if there is none, the newest in its memory."""
        return self.parts.get(_part_of(tensor), self.place)


class Memories:
    """All memory that is known, by its address."""

    def __init__(self) -> None:
        self._known: dict[int, Memory] = {}

    def get(self, key: Any) -> Memory | None:
        """Return the known facts about the memory that a weak reference points to."""
        return self._known.get(key.cdata)

    def remember(self, key: Any, tensor: Tensor, place: int) -> None:
        """Note that a tensor is the output of a call, or comes from outside."""
        version, known = version_of(tensor), self.get(key)
        if known is None or known.version != version:
            known = self._known[key.cdata] = Memory(key, version)
        known.place = known.parts[_part_of(tensor)] = place


def _part_of(tensor: Tensor) -> object:
    try:
        return tensor.storage_offset(), tensor.shape, tensor.stride()
    except (NotImplementedError, RuntimeError):  # a layout without these
        return None


# What one step teaches about the data flow: which call of a module feeds which.
#
# The outputs of calls are marked in the autograd graph, in the dictionary that each of its nodes has for such notes. A
# walk from the output of a call back to the nearest marks finds what fed it. Where there is no graph, a tensor is
# recognized by its memory. Nothing is kept alive: a mark dies with its node, and the references to memory are weak.

MAX_NODES: Final = 50_000  # of the autograd graph, that one step may visit
MAX_CALLS: Final = 10_000  # of modules, that one step may contain
MARK: Final = "hookcore"

_tokens = itertools.count()


@dataclass(slots=True, eq=False)
class _Entered:
    """A call that has not returned."""

    plan: Plan
    sources: set[int] = field(default_factory=set)  # the calls whose outputs were its inputs, by their memory
    knows_outside: bool = False  # whether an input came from outside
    lacks: bool = False  # whether an input's origin is unknown
    has_children: bool = False
    inside: list[int] = field(default_factory=list)  # the calls inside it that returned
    inputs: list[TensorForm] = field(default_factory=list)
    began: int = 0  # the number of the next node then


@dataclass(slots=True, eq=False)
class _Learned:
    """The known facts about a call."""

    fed_by: set[int] = field(default_factory=set)
    returns: set[int] = field(default_factory=set)
    how: How = "identity"
    inside: int = OUTERMOST


class TooLargeError(Exception):
    """A step has more than can be followed."""


@dataclass(slots=True, eq=False)
class Lesson:
    """What one step teaches. It holds numbers, and weak references to memory."""

    max_calls: int  # of a module that have taps of their own
    token: int = field(default_factory=lambda: next(_tokens))  # marks of other steps have other ones
    thread: int = field(default_factory=threading.get_ident)
    seconds: float = 0.0
    _entered: list[_Entered] = field(default_factory=list)
    _places: dict[tuple[str, int, Phase], int] = field(default_factory=dict)
    _calls: list[_Learned] = field(default_factory=list)
    _memory: Memories = field(default_factory=Memories)
    _nodes: int = 0
    _seen: int = 0  # calls
    _last: int = OUTSIDE  # the call that returned last
    _sizes: Sizes = field(default_factory=Sizes)

    def enter(self, plan: Plan, values: Iterable[Any]) -> None:
        """Recognize the inputs of a call that is about to run."""
        if self._entered:
            self._entered[-1].has_children = True
        entered, outermost = _Entered(plan), not self._entered
        self._entered.append(entered)
        for value in values:
            tensors = list(find_tensors(value))
            entered.inputs += forms_of(tensors)
            for _, tensor in tensors:
                if not _is_leaf(tensor) and not is_wrapped(tensor):
                    self._recognize(entered, tensor, outermost)
        entered.began = now()

    def _recognize(self, entered: _Entered, tensor: Tensor, outermost: bool) -> None:
        key = memory_of(tensor)
        known = None if key is None else self._memory.get(key)
        in_graph = tensor.requires_grad
        if known is not None and known.version == version_of(tensor):
            place = known.place_of(tensor)
            if in_graph and tensor.grad_fn is not None:
                place = self._marks(tensor.grad_fn).get(tensor.output_nr, place)
            if place == OUTSIDE:
                entered.knows_outside = True
                return
            entered.sources.add(place)
            if in_graph and tensor.grad_fn is not None:  # a reentrant checkpoint put other nodes in between
                self._marks(tensor.grad_fn).setdefault(tensor.output_nr, place)
                self._sizes.saw_node(tensor.grad_fn)
        elif in_graph:
            pass  # the walk from the output passes it
        elif known is not None and known.place != OUTSIDE:
            entered.sources.add(known.place)  # changed in place since then
        elif known is not None or outermost or not tensor.dtype.is_floating_point:
            entered.knows_outside = True
            if outermost and known is None and key is not None:
                self._memory.remember(key, tensor, OUTSIDE)
        else:
            entered.lacks = True

    def leave(self, call: Call) -> None:
        """Find what fed a call that returned, and mark its outputs."""
        self._seen += 1
        if self._seen > MAX_CALLS:
            raise TooLargeError(f"a step has more than {MAX_CALLS:,} calls of modules")
        entered = self._take(call.plan)
        is_leaf = entered is not None and not entered.has_children
        place, learned = self._place_of(call)
        self._nest(place, entered)
        nodes, passed = list[Any](), set[int]()  # its own outputs, and the calls whose outputs it returned
        makes_own = False
        fresh: dict[int, int] | None = {}  # bytes of new memory, by its address; None if not all of it is known
        for _, tensor in call.tensors:
            key = None if is_wrapped(tensor) else memory_of(tensor)
            fresh = self._add_fresh(fresh, tensor, key)
            if is_wrapped(tensor):
                continue
            node = tensor.grad_fn if tensor.requires_grad else None
            marked = self._mark(tensor, key, node, place, is_leaf)
            if marked is not None:
                passed.add(marked)
            else:
                makes_own = True
                nodes += [] if node is None else [node]
        self._measure(call, place, entered, None if fresh is None else sum(fresh.values()), nodes)
        if is_leaf:  # what passes a leaf goes through it
            self._learn(learned, entered, passed | self._walk(nodes), makes_own=False)
        else:
            self._learn(learned, None, self._walk(nodes), makes_own)
            learned.returns |= passed - {place, OUTSIDE}
        learned.fed_by -= {place, OUTSIDE}
        self._last = place

    def _nest(self, place: int, entered: _Entered | None) -> None:
        """Note that the calls inside a call ran inside it."""
        for child in entered.inside if entered is not None else ():
            above = place
            while above not in (OUTERMOST, child):  # a module may run inside itself, under the same place
                above = self._calls[above].inside
            if self._calls[child].inside == OUTERMOST and above == OUTERMOST:
                self._calls[child].inside = place
        if self._entered:
            self._entered[-1].inside.append(place)

    def _add_fresh(self, fresh: dict[int, int] | None, tensor: Tensor, key: Any) -> dict[int, int] | None:
        """Add the memory of an output to that which is new."""
        if key is None or fresh is None:
            return None
        if self._memory.get(key) is None and not _is_leaf(tensor):
            fresh[key.cdata] = tensor.untyped_storage().nbytes()
        return fresh

    def _measure(
        self, call: Call, place: int, entered: _Entered | None, memory: int | None, nodes: Sequence[Any]
    ) -> None:
        if not self._sizes.counts(place, call.number):
            return
        began, inputs, has_calls = None, list[TensorForm](), False
        if entered is not None:
            began, inputs, has_calls = entered.began, entered.inputs, entered.has_children
        maker = nodes[0] if nodes and has_calls else None
        seen = SeenCall(call.plan.ref(), began, inputs, call.tensors, memory, maker, has_calls)
        self._sizes.saw_call(place, call.number, seen)

    def _mark(self, tensor: Tensor, key: Any, node: Any, place: int, is_leaf: bool) -> int | None:
        """Mark an output as that of a call, unless a container returns another call's. Return the mark before."""
        number = tensor.output_nr
        marks = {} if node is None else self._marks(node)
        marked = marks.get(number)
        if node is None and key is not None and not is_leaf:
            known = self._memory.get(key)
            marked = known.place_of(tensor) if known is not None and known.version == version_of(tensor) else None
        if marked is None or is_leaf:
            marks[number] = place
            if key is not None:
                self._memory.remember(key, tensor, place)
        return marked

    def _learn(self, learned: _Learned, leaf: _Entered | None, found: set[int], makes_own: bool) -> None:
        """Note what fed a call. If nothing shows that, it is taken for what returned last."""
        learned.how = "graph" if found else learned.how
        known = found if leaf is None else found | leaf.sources
        guesses = makes_own if leaf is None else leaf.lacks and not leaf.knows_outside
        if not known and guesses and self._last != OUTSIDE:
            learned.how, known = "order", {self._last}
        learned.fed_by |= known

    def forget(self, plan: Plan) -> None:
        """Forget the running call of a module: nothing is known of its outputs."""
        self._take(plan)

    def _take(self, plan: Plan) -> _Entered | None:
        """Return the call that returns now. Calls above it have ended with an exception."""
        place = next((at for at in range(len(self._entered) - 1, -1, -1) if self._entered[at].plan is plan), None)
        if place is None:
            return None
        entered = self._entered[place]
        del self._entered[place:]
        return entered

    def _place_of(self, call: Call) -> tuple[int, _Learned]:
        """Return the place of a call. Micro-batches share theirs, as they share their taps."""
        key = call.plan.path, min(call.number, self.max_calls - 1), call.phase
        place = self._places.setdefault(key, len(self._calls))
        if place == len(self._calls):
            self._calls.append(_Learned())
        return place, self._calls[place]

    def _marks(self, node: Any) -> dict[int, int]:
        """Return the places of the calls whose outputs a node made, by the number of the output."""
        marks: dict[int, int]
        token, marks = node.metadata.get(MARK, (None, {}))
        if token != self.token:
            marks = {}
            node.metadata[MARK] = self.token, marks
        return marks

    def _walk(self, nodes: list[Any]) -> set[int]:
        """Return the nearest marked calls behind these nodes."""
        found: set[int] = set()
        seen = {id(node): node for node in nodes}  # held, so that the identities stay valid
        for node in nodes:
            self._sizes.saw_node(node)
        while nodes:
            for node, number in nodes.pop().next_functions:
                if node is None or not node.next_functions:  # a tensor that needs no gradient, or a parameter
                    continue
                place = self._marks(node).get(number)
                if place is not None:
                    found.add(place)
                elif id(node) not in seen:
                    seen[id(node)] = node
                    nodes.append(node)
                    self._sizes.saw_node(node)
                    self._nodes += 1
                    if self._nodes > MAX_NODES:
                        raise TooLargeError(f"a step has more than {MAX_NODES:,} nodes in its autograd graph")
        return found

    def flow(self, step: int) -> Flow:
        """Return the learned flow."""
        calls = (
            FlowCall(
                text_of(path),
                number,
                phase,
                tuple(sorted(each.fed_by)),
                tuple(sorted(each.returns)),
                each.how,
                each.inside,
            )
            for (path, number, phase), each in zip(self._places, self._calls, strict=True)
        )
        flow = Flow(step, tuple(calls), self.seconds, self._sizes.all())
        if flow.edges > MAX_FLOW_EDGES:
            raise TooLargeError(f"a step has more than {MAX_FLOW_EDGES:,} edges between calls")
        return flow


def _is_leaf(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


MAX_FLOWS: Final = 16  # that one run learns
MAX_TRIES: Final = 32  # to learn
MAX_PATTERNS: Final = 256  # different sets of tensors in a frame that are remembered
_ABOUT_CALLS: Final = frozenset(("output", "output_grad", "input", "input_grad"))


class Flows:
    """Decides when to learn: an observer of calls in the steps that teach something."""

    wants_inputs = False  # it learns of calls by `entered`, without other hooks

    def __init__(self, context: Context) -> None:
        self._table, self._plans, self._emit = context.statistics.table, context.plans, context.emit
        self._max_calls = context.settings.calls
        self._changes_seen = 0
        # Whether to learn in the next captured step. In a compiled graph, nothing shows which tensor goes where.
        self.wanted = context.settings.compiled != "inside"
        self._tries = 0 if self.wanted else MAX_TRIES
        self._lesson: Lesson | None = None
        self._observes = False
        self._known: set[tuple[FlowCall, ...]] = set()
        self._taught = -1  # the newest step that taught something
        self._patterns: set[bytes] = set()  # the tensors of calls in frames that were seen
        self._about_calls = np.empty(0, bool)  # by number of the tap
        self._taps_seen = 0
        self._last_taps: object = None  # of the newest frame: many frames share one array

    @property
    def is_learning(self) -> bool:
        """Whether the running step teaches something."""
        return self._lesson is not None

    def begin_step(self, captured: bool) -> bool:
        """Decide whether to learn in this step. Return whether that changed who observes calls."""
        before, self._lesson = self._observes, None
        if captured and self._changes_seen != self._plans.changes:
            self._changes_seen, self.wanted = self._plans.changes, True
        if captured and self.wanted and self._tries < MAX_TRIES and len(self._known) < MAX_FLOWS:
            self.wanted = False
            self._tries += 1
            self._lesson = Lesson(self._max_calls)
        self._observes = self._lesson is not None
        return before or self._observes

    def end_step(self, step: int) -> Flow | None:
        """Return what the step taught, if that is new."""
        lesson, self._lesson = self._lesson, None
        if lesson is None:
            return None
        if lesson.thread != threading.get_ident():  # its calls may still run: several threads train
            self.wanted = True
            return None
        self._taught = step
        try:
            flow = lesson.flow(step)
        except TooLargeError as error:
            self._give_up(str(error))
            return None
        if not flow.calls or flow.calls in self._known:
            return None
        self._known.add(flow.calls)
        if len(self._known) == MAX_FLOWS:
            known = f"it is known for {MAX_FLOWS} structures of the model, and no more are learned"
            self._emit("flow-limit", f"the data flow between modules has reached its limit: {known}")
        return flow

    def _give_up(self, why: str) -> None:
        self._lesson, self._tries = None, MAX_TRIES
        self._emit("flow-unknown", f"the data flow between modules is unknown, because {why}")

    def saw_frame(self, frame: Frame) -> None:
        """Notice that other modules ran than before. Called on the recorder's thread."""
        if self._tries >= MAX_TRIES or frame.taps is self._last_taps:
            return
        self._last_taps = frame.taps
        if len(self._table.numbers) > self._taps_seen:
            numbers, taps = self._table.numbers[:], self._table.taps[:]  # each tap is there before its number
            self._taps_seen = len(numbers)
            shown = [tap.kind in _ABOUT_CALLS for tap, number in zip(taps, numbers, strict=False) if number >= 0]
            self._about_calls = np.array(shown, bool)
        known = frame.taps[frame.taps < len(self._about_calls)]
        pattern = np.sort(known[self._about_calls[known]]).tobytes()
        if not pattern or pattern in self._patterns:
            return
        if len(self._patterns) < MAX_PATTERNS:
            self._patterns.add(pattern)
            self.wanted = self.wanted or frame.step != self._taught

    # Calls

    def wants(self, plan: Plan) -> bool:
        """Return whether it follows this module: all of them are part of the flow."""
        return True

    def entered(self, plan: Plan, module: nn.Module, args: Any) -> None:
        """Handle a call that is about to run."""
        lesson = self._lesson
        if lesson is None or lesson.thread != threading.get_ident() or tracing_state() or current_graph_task() != -1:
            return
        began = perf_counter()
        try:
            lesson.enter(plan, (args, keywords_of(module)))
        except Exception as error:
            self._give_up(f"hookcore failed on the inputs of {plan.path}: {type(error).__name__}: {error}")
        lesson.seconds += perf_counter() - began

    def saw_inputs(self, call: Call) -> None:
        """Do nothing: `entered` comes earlier."""

    def saw_outputs(self, call: Call) -> None:
        """Handle a call that returned."""
        lesson = self._lesson
        if lesson is None or lesson.thread != threading.get_ident() or call.again or call.traced:
            return
        began = perf_counter()
        try:
            lesson.leave(call)
        except TooLargeError as error:
            self._give_up(str(error))
        except Exception as error:
            self._give_up(f"hookcore failed on the outputs of {call.plan.path}: {type(error).__name__}: {error}")
        lesson.seconds += perf_counter() - began

    def forget(self, plan: Plan) -> None:
        """Forget the running call of a module: it raised, or its outputs have no values."""
        lesson = self._lesson
        if lesson is not None and lesson.thread == threading.get_ident():
            lesson.forget(plan)

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Do nothing: the forward pass says it all."""


# The residual stream: additions of which one term, the output of a branch, was computed from the other one. They are
# found where their sum is given to a module or returned by one. No tensor is held, only the sizes of outputs.

MAX_BRANCH: Final = 2_000  # nodes in a branch
_ADDITION: Final = "AddBackward0"
_NO_MODULE: Final = "what is added to the residual stream isn't measured: it isn't just the output of a module"


@dataclass(slots=True)
class _Sized:
    """The root mean square of a tensor of this step, and the outermost module that returned it."""

    size: Tensor
    shape: torch.Size
    plan: Plan | None = None
    call: int = 0


def _do_nothing(*_: Any) -> None:
    """Observe nothing: `entered` and outputs say it all."""


class Streams:
    """Measures what branches add to the residual stream: an observer of calls in a few steps."""

    wants_inputs = False  # it learns of calls by `entered`

    def __init__(self, context: Context) -> None:
        self._statistics, self._emit, self._errors = context.statistics, context.emit, context.errors
        self.due = False
        self._sized: dict[tuple[int, int, int], _Sized] = {}  # by thread, number of the node, and place of its output
        self._done: set[tuple[str, int]] = set()  # of this step
        self._reported = False

    def begin_step(self, due: bool) -> None:
        """Look at the step that begins, or no more."""
        self.due, self._sized, self._done = due, {}, set()

    def wants(self, plan: Plan) -> bool:
        """Return whether it looks at this module: each may return a branch."""
        return self.due

    def entered(self, plan: Plan, module: nn.Module, args: Any) -> None:
        """Look for additions among what a module is about to get."""
        if not self.due or tracing_state() or current_graph_task() != -1:
            return
        try:
            with unseen():
                for _, tensor in find_tensors((args, keywords_of(module))):
                    if tensor.requires_grad and tensor.grad_fn is not None and tensor.grad_fn.name() == _ADDITION:
                        self._note(tensor, plan)
        except Exception as error:
            self._errors.record("residual stream", error, plan)

    saw_inputs = saw_gradient = forget = _do_nothing

    def saw_outputs(self, call: Call) -> None:
        """Note how large the outputs of a call are, and look for additions among them."""
        if self.due and call.phase == "train" and not (call.again or call.traced):
            with unseen():
                for _, tensor in call.tensors:
                    if tensor.grad_fn is not None and (known := self._note(tensor, call.plan)) is not None:
                        known.plan, known.call = call.plan, call.number

    def _note(self, tensor: Tensor, plan: Plan) -> _Sized | None:
        node: Any = tensor.grad_fn
        key = threading.get_ident(), node_number(node), tensor.output_nr
        known = self._sized.get(key)
        if known is not None or not _is_plain(tensor):
            return known
        known = self._sized[key] = _Sized(size_of(tensor.detach()), tensor.shape)
        if node.name() == _ADDITION:
            self._look(node, known, plan)
        return known

    def _look(self, node: Any, after: _Sized, plan: Plan) -> None:
        """Measure an addition, if it is one of a branch to what that was computed from."""
        terms = [each for each in node.next_functions if each[0] is not None and each[0].next_functions]
        if len(terms) != 2:
            return
        (stream, one), (branch, other) = sorted(terms, key=lambda each: node_number(each[0]))
        is_parallel = not _leads_to(branch, stream)  # to another branch's sum, or it is none at all
        behind = [each for each, _ in stream.next_functions if stream.name() == _ADDITION and each is not None]
        if is_parallel and not any(each.next_functions and _leads_to(branch, each) for each in behind):
            return
        before = self._sized.get((threading.get_ident(), node_number(stream), one))
        added = self._sized.get((threading.get_ident(), node_number(branch), other))
        if is_parallel or added is None or added.plan is None or option_of(node, "alpha") != 1:
            if not self._reported:
                self._reported = True
                self._emit("probe-unknown", _NO_MODULE, "info", plan.path)
            return
        key = added.plan.path, added.call
        if key in self._done or added.shape != after.shape:
            return
        self._done.add(key)  # the first micro-batch of a step stands for it
        sizes = {"share": added.size / after.size, "after": after.size}
        for name, value in (sizes if before is None else {**sizes, "before": before.size}).items():
            slot = self._statistics.table.add(Tap(added.plan.path, PROBE, f"{RESIDUAL} {name}", added.call))
            if slot >= 0:
                self._statistics.add(added.plan, value, slot)


def _is_plain(tensor: Tensor) -> bool:
    is_dense = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested
    fits = is_dense and tensor.is_floating_point() and tensor.numel() > 0
    return fits and not is_wrapped(tensor) and not is_capturing()


def size_of(tensor: Tensor) -> Tensor:
    """Return the root mean square of a tensor's values."""
    size: Tensor = square_of(tensor).sqrt() / tensor.numel() ** 0.5
    return size


def _leads_to(node: Any, source: Any) -> bool:
    """Return whether an output of a node was computed from one of another node."""
    first, seen, waiting = node_number(source), {id(node): node}, [node]  # held, so that the identities stay valid
    while waiting and len(seen) < MAX_BRANCH:
        for behind, _ in waiting.pop().next_functions:
            if behind is source:
                return True
            if behind is not None and id(behind) not in seen and behind.next_functions and node_number(behind) > first:
                seen[id(behind)] = behind
                waiting.append(behind)
    return False
