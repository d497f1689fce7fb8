"""Hooks in the autograd graph: on tensors, on several tensors at once, and on nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch.autograd.graph import Node, register_multi_grad_hook
from torch.utils.hooks import RemovableHandle

from hookcore.errors import ArgumentError, HookError
from hookcore.hooks.checks import describe, require_callable, require_choice, require_tensor, require_tensors
from hookcore.hooks.handle import HookHandle, registering

Hook = Callable[..., Any]


def on_gradient(tensor: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor | None]) -> HookHandle:
    """Call `fn(grad)` each time the tensor's gradient is computed; its result replaces the gradient."""
    require_callable(fn, "(grad)")
    require_tensor(tensor)
    with registering():
        return HookHandle("gradient", (_register(tensor.register_hook, fn),))


def hook_gradient(tensor: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Do what `tensor.register_hook(fn)` does, without a handle, for a computed tensor. The recorder's hottest line.

    It makes the same entries in the same places as torch, at half the cost, because it makes no handle.
    """
    if tensor._backward_hooks is not None:
        # A tensor that a module returns again and again keeps a single hook.
        if not any(known is fn for known in tensor._backward_hooks.values()):
            tensor.register_hook(fn)  # type: ignore[no-untyped-call]
        return
    hooks: OrderedDict[int, Any] = OrderedDict()
    tensor._backward_hooks = hooks
    tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]
    hooks[RemovableHandle.next_id] = fn
    RemovableHandle.next_id += 1


def hook_leaves(hooks: Iterable[tuple[torch.Tensor, Callable[[torch.Tensor], None]]]) -> HookHandle:
    """Call each function with what is about to be added to its leaf's gradient. Removed, the leaves are as before.

    DistributedDataParallel reduces a gradient after it was added, so this is the one of this process.
    """
    chosen = list(hooks)
    bare = [tensor for tensor, _ in chosen if tensor._backward_hooks is None]

    def clean(_: object) -> None:
        for tensor in bare:
            if not tensor._backward_hooks:
                tensor._backward_hooks = None

    with registering():
        return HookHandle("gradient", [_register(tensor.register_hook, fn) for tensor, fn in chosen], undo=clean)


def on_gradient_accumulated(tensor: torch.Tensor, fn: Callable[[torch.Tensor], None]) -> HookHandle:
    """Call `fn(tensor)` each time a leaf's `.grad` has been accumulated; it may change both in place."""
    require_callable(fn, "(tensor)")
    require_tensor(tensor)
    if not tensor.is_leaf:
        raise HookError(
            f"Got a tensor of shape {tuple(tensor.shape)} that was computed ({tensor.grad_fn}); expected a leaf, such "
            "as a parameter: only leaves accumulate a .grad. Use on_gradient for this one."
        )
    with registering():
        return HookHandle("gradient accumulated", (_register(tensor.register_post_accumulate_grad_hook, fn),))


def on_gradients(tensors: Iterable[torch.Tensor], fn: Hook, *, mode: Literal["all", "any"] = "all") -> HookHandle:
    """Call `fn(grads)` when all gradients of a backward are there, or with `mode="any"` `fn(grad)` with the first one.

    "all" passes None for a gradient that was not computed, and never fires if one of the tensors is the root of the
    backward. It keeps the graph alive until it is removed or two garbage collections have run.
    """
    require_callable(fn, "(grad)" if mode == "any" else "(grads)")
    require_choice("mode", mode, ("all", "any"))
    found = require_tensors(tensors)
    with registering():
        combined = register_multi_grad_hook(found, fn, mode=mode)
        handles: tuple[RemovableHandle, ...] = combined.handles  # type: ignore[attr-defined]
        return HookHandle(f"gradients ({mode})", handles)


def on_node_pre(node: Node | torch.Tensor, fn: Hook) -> HookHandle:
    """Call `fn(grad_outputs)` before an autograd node runs; the tuple it returns replaces them.

    For a tensor, the node that computed it is used.
    """
    require_callable(fn, "(grad_outputs)")
    found = _require_node(node)
    with registering():
        return HookHandle("node pre", (_register(found.register_prehook, fn),))


def on_node(node: Node | torch.Tensor, fn: Hook) -> HookHandle:
    """Call `fn(grad_inputs, grad_outputs)` after an autograd node has run; the tuple it returns replaces the first.

    For a tensor, the node that computed it is used.
    """
    require_callable(fn, "(grad_inputs, grad_outputs)")
    found = _require_node(node)
    with registering():
        return HookHandle("node", (_register(found.register_hook, fn),))


def _require_node(node: object) -> Node:
    if isinstance(node, torch.Tensor):
        if require_tensor(node).grad_fn is None:
            raise HookError(
                f"Got a leaf of shape {tuple(node.shape)}, which no node computed; expected a computed tensor or a "
                "node. Use on_gradient or on_gradient_accumulated for a leaf."
            )
        node = node.grad_fn
    if not isinstance(node, Node):
        raise ArgumentError(f"Got {describe(node)}; expected an autograd node or a tensor. Pass `tensor.grad_fn`.")
    return node


def _register(register: Callable[[Hook], Any], fn: Hook) -> RemovableHandle:
    try:
        handle: RemovableHandle = register(fn)
    except RuntimeError as error:
        raise HookError(f"Torch refused the hook: {error}. Register it on an ordinary tensor in eager mode.") from error
    return handle
