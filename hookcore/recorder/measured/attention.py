"""Attention in the calls of watched modules, from which numbers of each head are computed.

A fused operator keeps its queries, keys, and mask for the backward pass, so its node is read when the module around it
returns. Nothing of torch is replaced, and no mode is on: a mode would turn off fast paths, and compile functions again.
What has no such node is computed again from what a module got, if that is an `nn.MultiheadAttention`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from hookcore.hooks.internals import (
    CHECKPOINT,
    arguments_of,
    current_graph_task,
    function_of,
    node_number,
    option_of,
    saved_by,
    saved_by_function,
    tracing_state,
)
from hookcore.observe.copies import is_capturing
from hookcore.observe.plain import unseen, why_empty
from hookcore.probes import MAX_MAP, SAMPLES, attention, attention_map, attention_weights
from hookcore.recorder.calls.plans import Call, Plan
from hookcore.recorder.context import Context
from hookcore.recorder.measured.probes import MAX_REPORTED, Probe, Probes
from hookcore.recorder.measured.sizes import COMPILED, SHARDED, forward_of, now
from hookcore.recorder.measured.snapshots import Request, Snapshots
from hookcore.records import PROBE, Tap
from hookcore.records.vocabulary import ATTENTION_MAP

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
_PRODUCT: Final = ("BmmBackward0", "BaddbmmBackward0")
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
_NO_GRADIENT: Final = (
    "it ran without gradients, as in an evaluation, so its operators kept nothing. Only nn.MultiheadAttention is "
    "measured there, from what it gets"
)

# What a call of attention got, for a map or for numbers, or why that isn't known.
Read = Callable[[bool], "dict[str, Any] | str"]


class AttentionCalls:
    """Finds the attention in the calls of watched modules, and has it measured, in the steps in which that is due."""

    wants_inputs = False

    def __init__(self, context: Context, probes: Probes, snapshots: Snapshots) -> None:
        self._emit, self._statistics, self._current = context.emit, context.statistics, context.current
        self._plans, self._probes, self._snapshots = context.plans, probes, snapshots
        self._began: dict[str, tuple[int, int]] = {}  # by path: the thread of a call, and the number of its first node
        self._known: set[tuple[int, int]] = set()  # nodes of this step that were found, by thread and number
        self._done: set[Tap] = set()  # of this step
        self._packed: dict[str, Plan] = {}  # modules whose call a checkpoint is to repeat, by path
        self._fruitless: dict[str, int] = {}  # by path
        self._reported: set[str] = set()

    @property
    def looks(self) -> bool:
        """Whether it looks at the calls of this step."""
        return bool(self._probes.of_attention or self._probes.of_evaluation) or self._snapshots.wants_maps

    def begin_step(self) -> None:
        """Forget the last step."""
        for plan in self._packed.values():
            self._note_unknown(_UNREPEATED, plan)
        self._began, self._known, self._done, self._packed = {}, set(), set(), {}

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
        thread, first = self._began.pop(call.plan.path, (-1, 0))
        if is_capturing() or not (self._probes_for(call) or self._snapshots.wants_maps):
            return
        try:
            was_entered = thread == threading.get_ident()
            if call.traced:
                return self._report(call, COMPILED)
            nodes, why = self._find(call, thread, first) if was_entered else ([], "")
            for place, node in enumerate(nodes):
                self._measure(call, partial(_given_to, node, call.plan.ref()), f" {place}" if place else "")
            if why or not was_entered:
                self._look_at_inputs(call, why)
        except Exception as error:
            self._note_unknown(f"{type(error).__name__}: {error}", call.plan)

    def _probes_for(self, call: Call) -> Sequence[Probe]:
        if call.phase == "train":
            return self._probes.of_attention
        is_other = call.number > 0  # usually of another batch
        return () if is_other else self._probes.of_evaluation.get(call.plan.root.name, ())

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
            elif name in _PRODUCT and (softmax := _softmax_before(node)) is not None and node_number(softmax) >= first:
                found[node_number(softmax)] = softmax
            waiting += [behind for behind, _ in node.next_functions if behind is not None and behind.next_functions]
        own = [found[number] for number in sorted(found) if (thread, number) not in self._known]
        self._known.update((thread, number) for number in found)
        if own or call.comes_again or current_graph_task() != -1:
            return own, ""
        if call.phase == "train":
            self._fruitless[call.plan.path] = self._fruitless.get(call.plan.path, 0) + 1
        if found:  # by modules inside
            return [], ""
        is_compiled = any(name.startswith(_COMPILED) for name in names)
        return [], COMPILED if is_compiled else _SEPARATE if seen else _NO_GRADIENT

    def _look_at_inputs(self, call: Call, why: str) -> None:
        """Measure torch's own attention from what it got, or say why a call of something else isn't measured."""
        module = call.plan.ref()
        heads = None if module is None else _heads_in(module)
        inner = None if heads is None else self._plans.by_id.get(id(heads))
        if heads is not None and inner is not None:
            self._measure(replace(call, plan=inner), partial(_given_to_heads, heads, module), "")
        elif heads is None and why:
            self._report(call, why)

    def _measure(self, call: Call, read: Read, place: str) -> None:
        path = call.plan.path
        probes = [each for each in self._probes_for(call) if path in each.paths and not each.is_off]
        done = Tap(path, PROBE, place, call.number, call.phase)
        if done not in self._done and probes and (given := self._given(call, read, False)) is not None:
            self._done.add(done)  # the first micro-batch of a step stands for it
            with unseen():
                self._take(call, probes, given, place)
        for request in self._snapshots.maps_wanted(call, f"{ATTENTION_MAP}{place}"):
            if (given := self._given(call, read, True, request)) is None:
                continue
            if "weights" in given:
                request.hint = _EXACT
            else:
                with unseen():
                    self._snapshots.copies.take(request, attention_map(**given))

    def _given(self, call: Call, read: Read, is_map: bool, request: Request | None = None) -> dict[str, Any] | None:
        """Return what a call of attention got. If that isn't known, say why, unless a checkpoint is to repeat it."""
        given = read(is_map)
        if given == CHECKPOINT:
            self._packed[call.plan.path] = call.plan
            return None
        self._packed.pop(call.plan.path, None)
        if isinstance(given, dict):
            return given
        self._note_unknown(given, call.plan)
        if request is not None:
            request.hint = given
        return None

    def _take(self, call: Call, probes: Sequence[Probe], given: dict[str, Any], place: str) -> None:
        numbers = (attention_weights if "weights" in given else attention)(**given)
        for probe in probes:
            for name, values in numbers.items():
                tap = Tap(call.plan.path, PROBE, f"{probe.name} {name}{place}", call.number, call.phase)
                slot = self._statistics.table.add(tap)
                if slot >= 0:
                    self._statistics.add(call.plan, values, slot)
                    self._probes.channels.note(tap, self._current.number, len(values), values)

    def _report(self, call: Call, why: str) -> None:
        """Say why the attention in a call isn't measured, of modules whose class is named so."""
        for request in self._snapshots.maps_wanted(call, ATTENTION_MAP):
            request.hint = why
        if not any(tap.phase == call.phase and tap.module.startswith(call.plan.below) for tap in self._done):
            for plan in self._named_in(call, why):
                self._note_unknown(why, plan)

    def _named_in(self, call: Call, why: str) -> Iterator[Plan]:
        """Yield the module of a call, or what is in a compiled region, if its class says that it is attention."""
        is_region = why == COMPILED and not call.traced
        for plan in self._plans.live() if is_region else (call.plan,):
            is_inside = plan is call.plan or plan.path.startswith(call.plan.below)
            if is_inside and any(word in plan.type_name.lower() for word in ("attention", "attn")):
                yield plan

    def _note_unknown(self, why: str, plan: Plan) -> None:
        told = f"attention isn't measured: {why}"
        plan.note_reason(told)
        if why not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(why)
            self._emit("probe-unknown", told, "info", plan.path)


# What the nodes of the autograd graph keep.


def _given_to(node: Any, module: nn.Module | None, is_map: bool) -> dict[str, Any] | str:
    """Return what an operator of attention got, or why that isn't known."""
    given, heads = _kept_by(node), None if module is None else _heads_in(module)
    is_whole = isinstance(given, dict) and "weights" not in given
    if is_whole or heads is None or heads is not module:
        return given
    return _given_to_heads(heads, heads, is_map)  # which says more than its weights, and has no need to run again


def _kept_by(node: Any) -> dict[str, Any] | str:
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
        if each is not None and each.name() in _PRODUCT:
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


# What nn.MultiheadAttention got. It keeps nothing without gradients, as in an evaluation, and no heads if it returns
# its weights. So the queries and keys of the samples that are looked at are computed again, from its inputs.

_HEADS: Final = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")  # its first arguments
_LAYER: Final = ("src", "src_mask", "src_key_padding_mask")  # those of a layer, whose fast path doesn't call it
_APART: Final = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # if their inputs differ in width
_WEIGHTS: Final = ("in_proj_weight", *_APART, "in_proj_bias", "bias_k", "bias_v")
_UNREADABLE: Final = (
    "what it got isn't known, or its inputs or weights aren't plain tensors: they are sharded, computed by a "
    "parametrization, or without values"
)


def _heads_in(module: nn.Module) -> nn.MultiheadAttention | None:
    """Return the module, if it is torch's attention, or that of torch's layer, whose fast path doesn't call it."""
    inner: Any = module
    if forward_of(module) is nn.TransformerEncoderLayer.forward:
        inner = module._modules.get("self_attn")
    return inner if inner is not None and forward_of(inner) is nn.MultiheadAttention.forward else None


def _given_to_heads(heads: nn.MultiheadAttention, called: Any, is_map: bool) -> dict[str, Any] | str:
    """Return queries, keys, values, and masks of some samples of a running call, or why they aren't known."""
    inputs, padding, mask = _arguments_to(heads, called)
    weights = _weights_of(heads)
    if weights is None or not all(_is_readable(each) for each in inputs):
        return _UNREADABLE
    kind = _type_of(inputs[0], weights)
    with unseen():
        if inputs[0].dim() == 2:
            inputs, padding = [each[None] for each in inputs], None if padding is None else padding[None]
        elif not heads.batch_first:
            inputs = [each.transpose(0, 1) for each in inputs]
        samples = _chosen_of(inputs, heads.num_heads, is_map)
        rows, masks = _rows_of(inputs, samples)
        masks += [] if padding is None else [padding[samples][:, None, None]]
        if mask is not None:
            masks.append(mask if mask.dim() == 2 else mask.unflatten(0, (-1, heads.num_heads))[samples])
        if called is not heads:
            masks = [each != 0 for each in masks]  # its fast path takes numbers for masks, too
            rows = [_normalized(rows[0], called.norm1)] * 3 if called.norm_first else rows
        query, *pair = _projected(rows, weights, heads.num_heads, kind)
        pairs = len(query), heads.num_heads, query.shape[2], pair[0].shape[2]
        hidden = _Masks([each.expand(pairs) for each in masks])
        key, value = _with_more_keys(heads, weights, *pair)
    given = {"query": query, "key": key, "value": value}
    return given | ({"mask_mod": hidden.visible, "score_mod": hidden.added} if masks else {})


def _arguments_to(heads: nn.MultiheadAttention, called: Any) -> tuple[list[Any], Any, Any]:
    """Return queries, keys, and values, the mask of keys, and that of pairs."""
    args, keywords = arguments_of(called) or ((), {})
    if called is heads:
        given = dict(zip(_HEADS, args, strict=False)) | keywords
        return [given.get(name) for name in _HEADS[:3]], given.get("key_padding_mask"), given.get("attn_mask")
    given = dict(zip(_LAYER, args, strict=False)) | keywords
    return [given.get("src")] * 3, given.get("src_key_padding_mask"), given.get("src_mask")


def _is_readable(tensor: Any) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and not why_empty(tensor)


def _weights_of(heads: nn.MultiheadAttention) -> dict[str, Tensor | None] | None:
    """Return its weights. None if they aren't there as they are: to ask a parametrization would change its state."""
    known = {**heads.__dict__, **heads._parameters}
    if any(name not in known or not (known[name] is None or _is_readable(known[name])) for name in _WEIGHTS):
        return None
    return {name: known[name] for name in _WEIGHTS}


def _type_of(query: Tensor, weights: dict[str, Tensor | None]) -> torch.dtype:
    """Return the type in which it computes its queries and keys."""
    kind = next(each.dtype for each in weights.values() if each is not None)
    is_cast = kind is not torch.float64 and torch.is_autocast_enabled(query.device.type)
    return torch.get_autocast_dtype(query.device.type) if is_cast else kind


def _chosen_of(inputs: Sequence[Tensor], heads: int, is_map: bool) -> slice:
    """Return the samples that are looked at: those of `attention`, or the first ones, as many as fit in a map."""
    many = inputs[0].size(0)
    if not is_map:
        return slice(None, None, -(-many // SAMPLES))
    queries, keys = (max(map(len, each.unbind())) if each.is_nested else each.shape[1] for each in inputs[:2])
    return slice(max(1, MAX_MAP // max(1, heads * queries * keys)))


def _rows_of(inputs: Sequence[Tensor], samples: slice) -> tuple[list[Tensor], list[Tensor]]:
    """Return samples as [sample, token, width], and masks of what they are padded with if they differ in length."""
    rows, masks = [], []
    for place, each in enumerate(inputs):
        if not each.is_nested:
            rows.append(each[samples])
            continue
        parts = each.unbind()[samples]
        longest = max(map(len, parts))
        rows.append(torch.stack([functional.pad(part, (0, 0, 0, longest - len(part))) for part in parts]))
        beyond = torch.ones(len(parts), longest, dtype=torch.bool, device=each.device)
        for row, part in zip(beyond, parts, strict=True):  # without a tensor of lengths, whose copy waits for a GPU
            row[: len(part)] = False
        if place < 2:  # of queries, and of keys
            masks.append(beyond[:, None, :, None] if place == 0 else beyond[:, None, None])
    return rows, masks


def _normalized(rows: Tensor, norm: nn.LayerNorm) -> Tensor:
    return functional.layer_norm(rows, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _projected(
    rows: Sequence[Tensor], weights: dict[str, Tensor | None], heads: int, kind: torch.dtype
) -> Iterator[Tensor]:
    """Yield queries, keys, and values as [sample, head, token, width]."""
    packed, bias = weights["in_proj_weight"], weights["in_proj_bias"]
    apart: Any = [weights[name] for name in _APART] if packed is None else packed.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    for each, weight, added in zip(rows, apart, biases, strict=True):
        projected = functional.linear(each.to(kind), weight.to(kind), None if added is None else added.to(kind))
        yield projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)


def _with_more_keys(
    heads: nn.MultiheadAttention, weights: dict[str, Tensor | None], *pair: Tensor
) -> tuple[Tensor, Tensor]:
    """Return keys and values with those that it adds to each sample: learned ones, and zeros."""
    found = []
    for each, more in zip(pair, (weights["bias_k"], weights["bias_v"]), strict=True):
        if more is not None:
            learned = more.to(each.dtype).view(1, 1, heads.num_heads, -1).transpose(1, 2)
            each = torch.cat((each, learned.expand(len(each), -1, -1, -1)), dim=2)
        found.append(functional.pad(each, (0, 0, 0, 1)) if heads.add_zero_attn else each)
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class _Masks:
    """Masks for pairs of a query and a key, [sample, head, query, key]: bools hide a key, and numbers are added."""

    masks: list[Tensor]

    def _at(self, mask: Tensor, sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return the values for some pairs. No mask is of keys that come after its own."""
        keys = mask.shape[3]
        return mask[sample, head, query, key.clamp(max=keys - 1)].masked_fill(key >= keys, 0)

    def visible(self, sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return whether a query sees a key."""
        seen = torch.ones((), dtype=torch.bool, device=key.device)
        for mask in self.masks:
            found = self._at(mask, sample, head, query, key)
            seen = seen & (~found if found.dtype is torch.bool else found > torch.finfo(found.dtype).min / 2)
        return seen

    def added(self, score: Tensor, sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return a score with what is added to it."""
        for mask in self.masks:
            if mask.is_floating_point():
                score = score + self._at(mask, sample, head, query, key).to(score.dtype)
        return score
