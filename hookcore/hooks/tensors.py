"""Hooks in the autograd graph: on tensors, on nodes, and on what autograd saves for the backward."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch.autograd.graph import Node, register_multi_grad_hook, saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from hookcore.errors import ArgumentError, HookError
from hookcore.hooks.checks import describe, require_callable, require_choice, require_tensor, require_tensors
from hookcore.hooks.handle import HookHandle, registering
from hookcore.hooks.internals import pop_saved_pair, saved_pairs_enabled, top_saved_pair

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


# The pair of hooks with which autograd saves tensors for the backward and loads them again.

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


_read_top: Callable[[bool], tuple[Pack, Unpack] | None] | None = top_saved_pair


def top_pair() -> tuple[Pack, Unpack] | None:
    """Return the pair in force in this thread. Torch before 2.8 doesn't say, so there it is None."""
    return None if _read_top is None else _read_top(True)


class _Stack(threading.local):
    """The pairs that we pushed in this thread, by the ids of their functions."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []


_stack = _Stack()


def _ids(pair: tuple[Pack, Unpack]) -> tuple[int, int]:
    # Torch's stack holds the functions. Their ids are enough here, and keep nothing alive.
    return (id(pair[0]), id(pair[1]))


def is_ours(pair: tuple[Pack, Unpack]) -> bool:
    """Return whether this thread pushed that pair through `on_saved_tensors`."""
    return _ids(pair) in _stack.pairs


class SavedTensorsHandle(HookHandle):
    """A pair on this thread's stack of pairs, from registration to removal."""

    __slots__ = ("_pair", "_thread")

    def __init__(self, pack: Pack, unpack: Unpack) -> None:
        super().__init__("saved tensors")
        self._pair = _ids((pack, unpack))
        self._thread = threading.current_thread()
        _stack.pairs.append(self._pair)

    def _is_in_place(self) -> bool:
        return self._thread.is_alive()

    def _take_out(self) -> None:
        if not self._thread.is_alive():
            return  # the stack ended with the thread
        if self._thread is not threading.current_thread():
            raise HookError(
                f"The saved-tensors pair belongs to the thread {self._thread.name!r} and can't be removed in "
                f"{threading.current_thread().name!r}; torch keeps one stack per thread. Remove it in its own thread."
            )
        if not saved_pairs_enabled():
            raise HookError(
                "Saved-tensors hooks are disabled here (torch.autograd.graph.disable_saved_tensors_hooks), so the "
                "pair can't be taken from the stack. Remove it outside of that block."
            )
        self._lift()

    def _lift(self) -> None:
        """Pop down to the pair, drop it, and push the others back in order."""
        if _read_top is None:
            self._lift_blindly()
            return
        above: list[tuple[Pack, Unpack]] = []
        while (pair := top_pair()) is not None:
            saved_tensors_hooks(*pair).__exit__()
            if _ids(pair) == self._pair:
                break
            above.append(pair)
        for pair in reversed(above):
            saved_tensors_hooks(*pair).__enter__()
        _stack.pairs.remove(self._pair)

    def _lift_blindly(self) -> None:
        if _stack.pairs[-1:] != [self._pair]:
            raise HookError(
                "Another saved-tensors pair was registered after this one, and torch before 2.8 can't look below it. "
                "Remove the later one first."
            )
        pop_saved_pair()
        _stack.pairs.pop()

    def __getstate__(self) -> tuple[Any, ...]:
        raise TypeError("A saved-tensors handle belongs to a thread and cannot be copied. Register again in the copy.")


def on_saved_tensors(pack: Pack, unpack: Unpack) -> HookHandle:
    """Until the handle is removed, save `pack(tensor)` for the backward, and load it with `unpack`.

    This holds for this thread only. Of several pairs, only the innermost is called. The graph keeps a pair for what it
    packed.
    """
    require_callable(pack, "(tensor)")
    require_callable(unpack, "(packed)")
    try:
        saved_tensors_hooks(pack, unpack).__enter__()
    except RuntimeError as error:
        raise HookError(
            f"Torch refused the pair: {error}. Register it where saved-tensors hooks are allowed."
        ) from error
    return SavedTensorsHandle(pack, unpack)
