"""How large the calls of a step are: shapes, dtypes, memory of outputs, and floating-point operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from hookcore.hooks.internals import (
    function_of,
    given_to,
    is_transposed,
    is_wrapped,
    made_by,
    next_node_number,
    node_number,
)
from hookcore.records import text_of
from hookcore.records.flow import MAX_CALL_TENSORS, CallSize, TensorForm

# Floating-point operations of a call, without running anything: from shapes, and from nodes of the autograd graph.
#
# The formulas are those of `torch.utils.flop_counter`: products of matrices, convolutions, and attention count, and
# everything else is zero. Its mode isn't used. A dispatch mode around the user's forward pass makes some operators of
# torch take other ways (`isTensorSubclassLike`), keeps compiled functions from running, and would be left behind by an
# exception. A node has the shapes of what its operator got and made, so reading it is enough.

Shape = tuple[int, ...]
Work = int | str  # how many operations, or why that isn't known

COMPILED: Final = "it is compiled, so its operators can't be seen one by one"
NO_GRADIENTS: Final = "its operators ran without gradients, so they left no trace"
HARMLESS: Final = ("torch.distributed.", "torch.utils.hooks", "torch.nn.parallel.")  # these functions pass values on
# torch's own modules whose forward has operators that count, other than a single product or convolution:
_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED: Final = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_COMPOSED: Final = (
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.Bilinear,
    nn.AdaptiveLogSoftmaxWithLoss,
)
_FUSED: Final = ("MkldnnRnn", "CudnnRnn", "MiopenRnn", "LstmMps")
_MATRICES: Final = {
    "MmBackward0": 0,
    "AddmmBackward0": 1,
    "BmmBackward0": 0,
    "BaddbmmBackward0": 1,
}  # the first's place
_CONVOLUTION: Final = "ConvolutionBackward0"
_LINEAR: Final = "LinearBackward0"
_ATTENTION: Final = "ScaledDotProduct"


# -- by shapes ---------------------------------------------------------------------------------------------------------


def _is_plain(module: nn.Module, forward: Any) -> bool:
    """Return whether this is a module of torch whose forward counts as zero, such as an activation or a container."""
    counts = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED, *_COMPOSED)
    return getattr(forward, "__module__", "").startswith("torch.nn.modules.") and not isinstance(module, counts)


def forward_of(module: nn.Module) -> Any:
    """Return the forward that a module's class has, without asking the class; None if the module has its own."""
    if "forward" in module.__dict__:
        return None
    return next((base.__dict__["forward"] for base in type(module).__mro__ if "forward" in base.__dict__), None)


def work_of_module(
    module: nn.Module, inputs: Sequence[Shape], outputs: Sequence[Shape], has_calls: bool
) -> Work | None:
    """Return the operations of a built-in torch module by its shapes; None if the formula of its class isn't known.

    `inputs` may be what a hook of the user has changed since, so it is only used if it fits. `has_calls` says whether
    other modules were called inside.
    """
    forward = forward_of(module)
    if _is_plain(module, forward):
        return 0 if has_calls or not module._modules else None  # of a compiled one, no call inside is seen
    weight = dict(module._parameters.items()).get("weight")  # those of a scripted module are no dictionary
    if not isinstance(weight, Tensor) or len(outputs) != 1:
        return None
    return _product_of(forward, tuple(weight.shape), inputs[0] if inputs else (), outputs[0])


def _product_of(forward: Any, weight: Shape, given: Shape, made: Shape) -> int | None:
    if forward is nn.Linear.forward:
        return 2 * prod(made) * weight[1] if made and made[-1] == weight[0] else None
    transposed = forward in {each.forward for each in _TRANSPOSED}
    if not transposed and forward not in {convolution.forward for convolution in _CONVOLUTIONS}:
        return None
    counted = given if transposed else made  # a point of it is multiplied with the whole kernel
    channels = len(counted) - len(weight) + 1
    return 2 * prod(counted) * prod(weight[1:]) if channels >= 0 and counted[channels] == weight[0] else None


# -- by nodes ----------------------------------------------------------------------------------------------------------


def work_of_node(node: Any) -> Work | None:
    """Return the operations of the operator that made a node of the graph; None if it counts as zero."""
    if issubclass(type(node), BackwardCFunction):
        return _work_of_function(node)
    name: str = node.name()
    if name in _MATRICES or name in (_CONVOLUTION, _LINEAR) or name.startswith(_ATTENTION):
        try:
            return _count(node, name)
        except Exception:  # sizes that aren't numbers, frozen inputs, nested tensors
            return f"the shapes of its operator {operator_of(node)} aren't known"
    if name.startswith(_FUSED):
        return "its layers run in one fused operator, which torch's formulas don't count"
    hides = "CppNode" in name or name.startswith("torch::jit")
    return f"{operator_of(node) or name}, a function in C++, hides its operators" if hides else None


def operator_of(node: Any) -> str:
    """Return the name of the operator that made a node, such as "Add"."""
    name: str = node.name().rpartition("::")[2]
    return name.rstrip("0123456789").removesuffix("Backward")


def _work_of_function(node: Any) -> str | None:
    function = function_of(node)
    if function.__module__.startswith(HARMLESS):
        return None
    if function.__module__.startswith("torch._functorch"):
        return COMPILED
    return f"the autograd function {function.__name__} hides its operators"


def _count(node: Any, name: str) -> int:
    if name.startswith(_ATTENTION):
        return _attention(*(given_to(node, place) for place in range(3)))
    made = made_by(node)
    if name == _CONVOLUTION:
        weight = given_to(node, 1)
        return 2 * prod(given_to(node, 0) if is_transposed(node) else made) * prod(weight[1:])
    if name == _LINEAR:
        return 2 * prod(made) * given_to(node, 1)[1]
    place = _MATRICES[name]
    try:
        common = given_to(node, place)[-1]
    except LookupError:  # no gradient flows to the first of the two
        common = given_to(node, place + 1)[-2]
    return 2 * prod(made) * common


def _attention(query: Shape, key: Shape, value: Shape) -> int:
    *heads, length, width = query
    return 2 * prod(heads) * length * key[-2] * (width + value[-1])


# Each thread numbers the nodes that it adds to the autograd graph. So a node belongs to the innermost call during which
# its number was given, whichever outputs lead to it.

UNSEEN: Final = "the start of its call wasn't seen, as with compiled modules"
UNNUMBERED: Final = "this release of torch doesn't number the nodes of its graph"
WRAPPED: Final = "it ran inside torch.func (vmap, grad)"
SHARDED: Final = "its tensors are parts of larger ones on several devices"
COUNTED: Final = -1  # the place of a call whose nodes are counted already
MAX_TEXT: Final = 200


def now() -> int:
    """Return the number of the next node of this thread."""
    return next_node_number() if next_node_number is not None else 0


@dataclass(slots=True, eq=False)
class SeenCall:
    """A call that returned. `began` is the number of the next node when it began, None if that wasn't seen."""

    module: nn.Module | None
    began: int | None
    inputs: Sequence[TensorForm]
    outputs: Sequence[tuple[str, Tensor]]
    memory: int | None  # bytes of its outputs that were new
    maker: Any  # the node of its first own output, if it is a container
    has_calls: bool  # whether other modules were called inside


@dataclass(slots=True, eq=False)
class Sizes:
    """The sizes of the calls of one step. It holds numbers and words."""

    _sizes: list[CallSize] = field(default_factory=list)  # by place of the call
    _spans: list[tuple[int, int, int]] = field(default_factory=list)  # first node, the one after the last, place
    _work: dict[int, Work] = field(default_factory=dict)  # of nodes, by their numbers
    _newest: list[int] = field(default_factory=list)  # the number of the newest call that was counted, by place

    def counts(self, place: int, number: int) -> bool:
        """Return whether a call counts. Calls in later micro-batches add nothing new."""
        return place == len(self._sizes) or number > self._newest[place]

    def saw_node(self, node: Any) -> None:
        """Note what the operator of a node did."""
        work = work_of_node(node)
        if work is not None:
            self._work[node_number(node)] = work

    def saw_call(self, place: int, number: int, seen: SeenCall) -> None:
        """Add a call that counts."""
        forms = forms_of(seen.outputs)
        work = self._work_of(place, seen, forms)
        if place == len(self._sizes):
            made_by = "" if seen.maker is None else text_of(operator_of(seen.maker))[:MAX_TEXT]
            known = (None, text_of(work)[:MAX_TEXT]) if isinstance(work, str) else (work, "")
            self._sizes.append(CallSize(tuple(seen.inputs[:MAX_CALL_TENSORS]), forms, made_by, seen.memory, *known))
            self._newest.append(number)
            return
        self._newest[place] = number
        size = self._sizes[place]
        memory = None if seen.memory is None or size.memory is None else size.memory + seen.memory
        self._sizes[place] = _with(replace(size, memory=memory), work)

    def _work_of(self, place: int, seen: SeenCall, forms: Sequence[TensorForm]) -> Work:
        """Return the operations that shapes imply, or why they aren't known; 0 if the graph's nodes provide them."""
        if seen.module is None or seen.began is None:
            return UNSEEN
        owned = (parameter for parameter in seen.module._parameters.values() if parameter is not None)
        trouble = next(filter(None, map(_hides, (*(tensor for _, tensor in seen.outputs), *owned))), "")
        if trouble:
            return trouble
        inputs, outputs = [each.shape for each in seen.inputs], [form.shape for form in forms]
        known = work_of_module(seen.module, inputs, outputs, seen.has_calls)
        if known is not None:
            self._spans.append((seen.began, now(), COUNTED))
            return known
        if next_node_number is None:
            return UNNUMBERED
        if not any(tensor.requires_grad and tensor.grad_fn is not None for _, tensor in seen.outputs):
            return NO_GRADIENTS
        self._spans.append((seen.began, now(), place))
        return 0

    def all(self) -> tuple[CallSize, ...]:
        """Return the sizes of all calls."""
        for place, work in _by_call(self._spans, self._work):
            self._sizes[place] = _with(self._sizes[place], work)
        return tuple(self._sizes)


def forms_of(tensors: Iterable[tuple[str, Tensor]]) -> tuple[TensorForm, ...]:
    """Return the forms of the first tensors."""
    found: list[TensorForm] = []
    for name, tensor in tensors:
        if len(found) == MAX_CALL_TENSORS:
            break
        try:
            shape = tuple(int(size) for size in tensor.shape)
        except Exception:  # a nested tensor has none
            shape = ()
        found.append(TensorForm(text_of(name), str(tensor.dtype).removeprefix("torch."), shape))
    return tuple(found)


def _hides(tensor: Tensor) -> str:
    if is_wrapped(tensor):
        return WRAPPED
    return SHARDED if type(tensor).__name__ == "DTensor" else ""


def _with(size: CallSize, work: Work) -> CallSize:
    """Add operations, or the reason why some aren't known, to a size."""
    if isinstance(work, str):
        return replace(size, flops=None, why=size.why or text_of(work)[:MAX_TEXT])
    return size if size.flops is None else replace(size, flops=size.flops + work)


def _by_call(spans: Iterable[tuple[int, int, int]], work: dict[int, Work]) -> Iterator[tuple[int, Work]]:
    """Yield the work of each node with the place of the innermost call around it, if it has one that counts nodes."""
    # Of calls with the same nodes, the one that returned last is around the others.
    waiting = sorted(reversed(list(spans)), key=lambda span: (span[0], -span[1]))
    around: list[tuple[int, int]] = []  # the ends and places of the calls that are open
    at = 0
    for number in sorted(work):
        while at < len(waiting) and waiting[at][0] <= number:
            begin, end, place = waiting[at]
            while around and around[-1][0] <= begin:
                around.pop()
            around.append((end, place))
            at += 1
        while around and around[-1][0] <= number:
            around.pop()
        if around and around[-1][1] >= 0:
            yield around[-1][1], work[number]
