"""Probes of more than one tensor: objects that see a model's gradients before and after each backward pass, and numbers
of the queries and keys of attention."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from hookcore.hooks.handle import HookHandle
from hookcore.hooks.internals import (
    CHECKPOINT,
    current_graph_task,
    function_of,
    node_number,
    option_of,
    saved_by,
    saved_by_function,
    tracing_state,
)
from hookcore.hooks.tensors import hook_leaves
from hookcore.observe.copies import is_capturing
from hookcore.observe.plain import generators_kept, unseen
from hookcore.probes import attention, attention_map, attention_weights
from hookcore.recorder.calls.plans import Call, Plan, PlanTable
from hookcore.recorder.context import Context
from hookcore.recorder.known.roots import Root
from hookcore.recorder.measured.scalars import LossScale
from hookcore.recorder.measured.sizes import COMPILED, SHARDED, now
from hookcore.recorder.measured.snapshots import Snapshots
from hookcore.records import PROBE, Tap
from hookcore.records.vocabulary import ATTENTION_MAP

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


class PassProbe(Protocol):
    """The objects of a class that looks at passes: one for each model, as long as the probe exists."""

    def begin_pass(self, parameters: list[Tensor]) -> None:
        """Look at the gradients before a pass."""

    def end_pass(self, parameters: list[Tensor]) -> None:
        """Look at the gradients after a pass."""

    def end_step(self) -> Any:
        """Return numbers, also several by name, or a sentence that says why they are unknown."""


class LocalProbe(PassProbe, Protocol):
    """An object that can also see the gradients before they are reduced between ranks."""

    def wants_local(self) -> bool:
        """Whether it does in the next pass."""

    def see_local(self, place: int, gradient: Tensor) -> None:
        """Look at what a pass adds in this process to the gradient of the parameter at this place."""


@dataclass(slots=True, eq=False)
class Passes:
    """The objects of one probe, by model."""

    make: Callable[[], PassProbe]
    _objects: weakref.WeakKeyDictionary[Root, PassProbe] = field(default_factory=weakref.WeakKeyDictionary)
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

    def __init__(self, passes: Passes, probe: LocalProbe, place: int) -> None:
        self._passes, self._probe, self._place = passes, probe, place

    def __call__(self, gradient: Tensor | None) -> None:
        try:
            if gradient is not None:
                with unseen():  # nothing is drawn here, and setting generators back would disturb other threads
                    self._probe.see_local(self._place, gradient)
        except Exception as error:
            self._passes.fault = error


class Looking(Protocol):
    """A probe that looks at passes."""

    name: str
    paths: frozenset[str]
    passes: Passes | None

    @property
    def is_off(self) -> bool:
        """Whether it failed too often."""

    def count_fault(self, error: Exception) -> str:
        """Count an exception. Return what to say of it."""


NoteChannels = Callable[[Tap, int, int, Tensor], None]  # a tap, the step, how many channels, and their numbers


class PassProbes:
    """The probes of a watcher that look at the backward passes of the running step."""

    def __init__(self, context: Context, scale: LossScale, note: NoteChannels) -> None:
        self._plans, self._statistics, self._emit = context.plans, context.statistics, context.emit
        self._current, self._owners, self._scale, self._note = context.current, context.owners, scale, note
        self._widths: dict[Tap, int] = {}  # the most values that a result has had
        self.due: tuple[Looking, ...] = ()

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

    def _finish(self, probe: Looking, passes: Passes) -> None:
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

    def _note_unknown(self, probe: Looking, passes: Passes, why: str, path: str) -> None:
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


# Attention: the calls of fused operators, as the autograd graph has them.
#
# A fused operator keeps its queries, keys, and mask for the backward pass, so its node is read when the module around
# it returns. Nothing of torch is replaced, and no mode is on: a mode would turn off fast paths, and compile functions
# again.

MAX_NODES: Final = 20_000  # of one call
MAX_FRUITLESS: Final = 2  # steps in which no attention was found in a module, until it isn't looked at anymore
FUSED: Final = "ScaledDotProduct"  # how the names of their nodes begin
FLASH: Final = "FlashAttn"  # those of the package flash-attn
_FLASH_FUNCTIONS: Final = frozenset(  # of its releases 2 and 3, for batches of sequences that are equally long
    f"{module}.FlashAttn{what}Func"
    for module in ("flash_attn.flash_attn_interface", "flash_attn_interface", "flash_attn_3.flash_attn_interface")
    for what in ("", "QKVPacked", "KVPacked")
)
_FLASH_4: Final = "flash_attn.cute.interface.FlashAttnFunc"  # of its release 4
_FLASH_4_MORE: Final = (3, 8, 9)  # what it keeps of another query, an index of keys, and a sink, if there are some
# Attention that is computed step by step keeps its weights: a softmax of a product, given to another product.
_PRODUCT: Final = "BmmBackward0"
_SOFTMAX: Final = ("SoftmaxBackward0", "SafeSoftmaxBackward0")
_BETWEEN: Final = frozenset(
    f"{name}Backward0"
    for name in (
        *("Expand", "View", "UnsafeView", "ReshapeAlias", "Clone", "NativeDropout", "Mul", "Div", "ToCopy", "Add"),
        *("Permute", "Transpose", "Unsqueeze", "MaskedFill", "Where", "Tanh", "Squeeze", "Slice"),
    )
)
MAX_BETWEEN: Final = 16  # nodes
_EXACT: Final = "its weights are computed step by step, so a module may return them: request its output instead"
_UNEVEN: Final = "it is causal with more keys than queries, or fewer: which belong together isn't known"
_COMPILED: Final = "CompiledFunction"
_TOP_LEFT: Final = ("ForCpu", "Efficient")  # these number queries and keys from the first ones on
_PACKED: Final = (
    "its queries and keys are kept by hooks on saved tensors (as for offloading), or this release of torch doesn't say "
    "whether they are"
)
_SEPARATE: Final = (
    "it is computed neither by a fused operator of scaled_dot_product_attention nor step by step, with a softmax "
    "between two products, or from queries, keys, and values that need no gradient: see hookcore.probes.attention"
)
_UNREPEATED: Final = (
    "it ran in a checkpoint, and hookcore didn't see it run again: the module was called several times in a step, or "
    "the checkpoint stopped before the module returned"
)
_NO_GRADIENT: Final = "its output needs no gradient, so its operators left no trace"


class Ordered(Protocol):
    """Where numbers go that have an order, such as one for each head."""

    def note(self, tap: Tap, step: int, channels: int, values: Tensor) -> None:
        """Hold the numbers of a call."""


class Asked(Protocol):
    """The probes of a watcher."""

    @property
    def of_attention(self) -> Sequence[Looking]:
        """Those that look at attention in this step."""

    @property
    def channels(self) -> Ordered:
        """Where the numbers of each head go."""


class AttentionCalls:
    """Finds the attention in the calls of watched modules, and has it measured, in the steps in which that is due."""

    wants_inputs = False

    def __init__(self, context: Context, probes: Asked, snapshots: Snapshots) -> None:
        self._emit, self._statistics, self._current = context.emit, context.statistics, context.current
        self._probes, self._snapshots = probes, snapshots
        self._began: dict[str, tuple[int, int]] = {}  # by path: the thread of a call, and the number of its first node
        self._known: set[tuple[int, int]] = set()  # nodes of this step that were found, by thread and number
        self._done: set[Tap] = set()  # of this step
        self._packed: set[str] = set()  # paths of modules whose call a checkpoint is to repeat
        self._fruitless: dict[str, int] = {}  # by path
        self._reported: set[str] = set()

    @property
    def looks(self) -> bool:
        """Whether it looks at the calls of this step."""
        return bool(self._probes.of_attention) or self._snapshots.wants_maps

    def begin_step(self) -> None:
        """Forget the last step."""
        for path in self._packed:
            self._note_unknown(_UNREPEATED, path)
        self._began, self._known, self._done, self._packed = {}, set(), set(), set()

    def wants(self, plan: Plan) -> bool:
        """Return whether this module may contain attention."""
        return self._fruitless.get(plan.path, 0) < MAX_FRUITLESS or self._snapshots.wants(plan)

    def entered(self, plan: Plan, module: nn.Module, args: Any) -> None:
        """Note which nodes are those of a call that is about to run."""
        if not tracing_state() and self.wants(plan):
            self._began[plan.path] = threading.get_ident(), now()

    def forget(self, plan: Plan) -> None:
        """Forget the running call of a module: it raised, or its outputs have no values."""
        self._began.pop(plan.path, None)

    def saw_inputs(self, call: Call) -> None:
        """Do nothing: what attention gets is no input of a module."""

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Do nothing: nothing is measured of gradients."""

    def saw_outputs(self, call: Call) -> None:
        """Measure the attention in a call that returned."""
        plan = call.plan
        thread, first = self._began.pop(plan.path, (-1, 0))
        if call.phase != "train" or is_capturing() or (thread != threading.get_ident() and not call.traced):
            return
        try:
            nodes, why = ([], COMPILED) if call.traced else self._find(call, thread, first)
            for place, node in enumerate(nodes):
                self._measure(call, node, f" {place}" if place else "")
            if why and "attention" in plan.type_name.lower():
                self._note_unknown(why, plan.path)
            for request in self._snapshots.maps_wanted(call, ATTENTION_MAP) if why else ():
                request.hint = why
        except Exception as error:
            self._note_unknown(f"{type(error).__name__}: {error}", plan.path)

    def _find(self, call: Call, thread: int, first: int) -> tuple[list[Any], str]:
        """Return the nodes of attention that no inner module called, or why there is none at all."""
        seen: dict[int, Any] = {}  # held, so that the identities stay valid
        waiting = [tensor.grad_fn for _, tensor in call.tensors if tensor.grad_fn is not None]
        names = set[str]()
        found = dict[int, Any]()
        while waiting and len(seen) < MAX_NODES:
            node = waiting.pop()
            if id(node) in seen or node_number(node) < first:
                continue
            seen[id(node)] = node
            names.add(name := node.name())
            if name.startswith((FUSED, FLASH)):
                found[node_number(node)] = node
            elif name == _PRODUCT and (softmax := _softmax_before(node)) is not None and node_number(softmax) >= first:
                found[node_number(softmax)] = softmax
            waiting += [behind for behind, _ in node.next_functions if behind is not None and behind.next_functions]
        own = [found[number] for number in sorted(found) if (thread, number) not in self._known]
        self._known.update((thread, number) for number in found)
        if own or call.comes_again or current_graph_task() != -1:
            return own, ""
        self._fruitless[call.plan.path] = self._fruitless.get(call.plan.path, 0) + 1
        if found:  # by modules inside
            return [], ""
        is_compiled = any(name.startswith(_COMPILED) for name in names)
        return [], COMPILED if is_compiled else _SEPARATE if seen else _NO_GRADIENT

    def _measure(self, call: Call, node: Any, place: str) -> None:
        path = call.plan.path
        probes = [each for each in self._probes.of_attention if path in each.paths and not each.is_off]
        wanted = list(self._snapshots.maps_wanted(call, f"{ATTENTION_MAP}{place}"))
        done = Tap(path, PROBE, place, call.number)
        if not wanted and (not probes or done in self._done):
            return
        given = _given_to(node)
        if given == CHECKPOINT:
            self._packed.add(path)
            return
        self._packed.discard(path)
        if isinstance(given, str):
            self._note_unknown(given, path)
            for request in wanted:
                request.hint = given
            return
        with unseen():
            self._take(call, probes if done not in self._done else (), given, place)
            self._done.add(done)  # the first micro-batch of a step stands for it
            for request in wanted:
                if "weights" in given:
                    request.hint = _EXACT
                else:
                    self._snapshots.copies.take(request, attention_map(**given))

    def _take(self, call: Call, probes: Sequence[Looking], given: dict[str, Any], place: str) -> None:
        numbers = {} if not probes else (attention_weights if "weights" in given else attention)(**given)
        for probe in probes:
            for name, values in numbers.items():
                tap = Tap(call.plan.path, PROBE, f"{probe.name} {name}{place}", call.number)
                slot = self._statistics.table.add(tap)
                if slot >= 0:
                    self._statistics.add(call.plan, values, slot)
                    self._probes.channels.note(tap, self._current.number, len(values), values)

    def _note_unknown(self, why: str, path: str) -> None:
        if why not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(why)
            self._emit("probe-unknown", f"attention isn't measured: {why}", "info", path)


def _given_to(node: Any) -> dict[str, Any] | str:
    """Return what an operator of attention got, or why that isn't known."""
    name = node.name()
    try:
        if name in _SOFTMAX:
            return _made_by(node)
        return _given_to_flash(node) if name.startswith(FLASH) else _given_to_fused(node)
    except LookupError as error:
        return CHECKPOINT if str(error) == CHECKPOINT else _PACKED


def _softmax_before(product: Any) -> Any:
    """Return the softmax whose result a product of matrices was given, if that is one of a product itself."""
    node = product.next_functions[0][0]
    for _ in range(MAX_BETWEEN):
        if node is None or node.name() in _SOFTMAX:
            break
        node = node.next_functions[0][0] if node.name() in _BETWEEN and node.next_functions else None
    if node is None or node.name() not in _SOFTMAX:
        return None
    waiting, seen = [node.next_functions[0][0]], 0
    while waiting and seen < MAX_BETWEEN:
        each, seen = waiting.pop(), seen + 1
        if each is not None and each.name() == _PRODUCT:
            return node
        if each is not None and each.name() in _BETWEEN:
            waiting += [behind for behind, _ in each.next_functions]
    return None


def _made_by(softmax: Any) -> dict[str, Any] | str:
    """Return the weights of attention that is computed step by step, or why they aren't known."""
    weights, dim = saved_by(softmax, "result"), option_of(softmax, "dim")
    if weights is None or weights.dim() != 4 or dim not in (-1, 3, 2**64 - 1):
        return "it is computed step by step, and its weights aren't [sample, head, query, key]"
    if type(weights) is not Tensor or not weights.numel():
        return SHARDED if type(weights).__name__ == "DTensor" else "its weights aren't a plain tensor"
    return {"weights": weights.detach()}


def _given_to_flash(node: Any) -> dict[str, Any] | str:
    name = f"{(function := function_of(node)).__module__}.{function.__name__}"
    if name not in _FLASH_FUNCTIONS and name != _FLASH_4:
        return f"{name} isn't read: its sequences are packed, or it is another release's"
    kept = saved_by_function(node, 10 if name == _FLASH_4 else 3)
    more = [kept[place] for place in _FLASH_4_MORE if place < len(kept)]
    more += [getattr(node, each, None) for each in ("score_mod", "mask_mod", "block_sparse_tensors_bwd")]
    if any(each is not None for each in (*more, getattr(node, "attention_chunk", 0) or None)):
        return "it has functions of its own, chunks, a sink, or another query, which aren't read"
    if len(kept) < 3 or any(each is None or each.dtype.itemsize == 1 for each in kept[:3]):
        return "it doesn't keep its queries and keys, or keeps them in float8, whose scales aren't known"
    query, key, value = (each.detach().transpose(1, 2) for each in kept[:3] if each is not None)
    before, after = (-1 if each is None else each for each in node.window_size)
    if (node.causal or before >= 0 or after >= 0) and query.shape[2] != key.shape[2]:
        return _UNEVEN
    if getattr(node, "alibi_slopes", None) is not None:
        return "it has ALiBi slopes, which aren't read"
    how = {"is_causal": bool(node.causal), "scale": node.softmax_scale, "window": (before, after)}
    return {"query": query, "key": key, "value": value, "softcap": node.softcap or 0.0, **how}


def _given_to_fused(node: Any) -> dict[str, Any] | str:
    name = node.name()
    query, key, value = (saved_by(node, each) for each in ("query", "key", "value"))
    mask = saved_by(node, "attn_mask", "attn_bias")
    if query is None or key is None or value is None:
        return f"the operator {name} doesn't keep its queries and keys"
    if any(type(each).__name__ == "DTensor" for each in (query, key, value)):
        return SHARDED
    if query.is_nested:
        return "its queries are a nested tensor"
    is_causal = bool(option_of(node, "is_causal"))
    if is_causal and query.shape[-2] != key.shape[-2] and not any(each in name for each in _TOP_LEFT):
        return _UNEVEN
    given = {"query": query.detach(), "key": key.detach(), "value": value.detach()}
    scale = option_of(node, "scale")
    return given | {"mask": None if mask is None else mask.detach(), "is_causal": is_causal, "scale": scale}
