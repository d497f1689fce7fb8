"""Floating-point operations of a call, without running anything: from shapes, and from nodes of the autograd graph.

The formulas are those of `torch.utils.flop_counter`: products of matrices, convolutions, and attention count, and
everything else is zero. Its mode isn't used. A dispatch mode around the user's forward pass makes some operators of
torch take other ways (`isTensorSubclassLike`), keeps compiled functions from running, and would be left behind by an
exception. A node has the shapes of what its operator got and made, so reading it is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from hookcore.hooks.internals import function_of, given_to, is_transposed, made_by

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
    if not transposed and forward not in {each.forward for each in _CONVOLUTIONS}:
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
