"""Checks of arguments, and iteration over a model's tree. Errors say what was given, expected, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hookcore.errors import ArgumentError, HookError

# Checks of arguments. Each error says what was given, what was expected, and what to do.


def describe(value: object) -> str:
    """Return a short description of a value without running any of its code."""
    if type(value) in (str, int, float, bool, type(None)):
        return repr(value)
    if issubclass(type(value), type):
        return f"the class {value.__name__}"  # type: ignore[attr-defined]
    return f"an object of type {type(value).__name__}"


def require_callable(fn: object, signature: str) -> None:
    """Raise unless the value is callable."""
    if not callable(fn):
        hint = " Perhaps you passed the result of a call instead of the function." if fn is None else ""
        raise ArgumentError(
            f"Got {describe(fn)} as the hook; expected a function {signature}. Pass the function.{hint}"
        )


def require_module(module: object) -> nn.Module:
    """Raise unless the value is an initialized module."""
    if not isinstance(module, nn.Module):
        raise ArgumentError(
            f"Got {describe(module)}; expected a torch.nn.Module, or None for every module of the process. "
            "Pass the module itself (for a HookedModule, its `inner`)."
        )
    if "_forward_hooks" not in module.__dict__:
        raise HookError(
            f"Got a {type(module).__name__} whose torch.nn.Module.__init__ has not run; expected a finished module. "
            "Call super().__init__() first in its __init__."
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise HookError(
            f"Got the scripted module {type(module).__name__}; torch refuses Python hooks there. "
            "Register on the process (None) instead, which sees its outermost call."
        )
    return module


def require_tensor(tensor: object) -> torch.Tensor:
    """Raise unless the value is a tensor that needs a gradient."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"Got {describe(tensor)}; expected a torch.Tensor. Pass the tensor itself.")
    if not tensor.requires_grad:
        raise HookError(
            f"Got a tensor of shape {tuple(tensor.shape)} that needs no gradient; no hook on it would ever "
            "fire. Expected requires_grad=True. Call requires_grad_() on it, or leave torch.no_grad()."
        )
    return tensor


def require_tensors(tensors: object) -> list[torch.Tensor]:
    """Raise unless the value is a non-empty collection of tensors that need gradients."""
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Iterable):
        raise ArgumentError(
            f"Got {describe(tensors)}; expected several tensors. Pass a list, even for a single tensor."
        )
    found = [require_tensor(tensor) for tensor in tensors]
    if not found:
        raise ArgumentError("Got no tensor at all; expected one or more. Pass the tensors whose gradients matter.")
    return found


def require_choice(name: str, given: object, allowed: Sequence[str]) -> None:
    """Raise if a word isn't one of the choices, and suggest the nearest."""
    if given in allowed:
        return
    near = difflib.get_close_matches(str(given), allowed, n=1, cutoff=0.3)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(f"Got {name}={given!r}; expected one of {', '.join(map(repr, allowed))}.{hint}")


def refuse_globally(**options: Any) -> None:
    """Raise if an option is given that torch supports only for hooks on a single module."""
    for name, value in options.items():
        if value:
            raise ArgumentError(
                f"Got {name}={value!r} for a hook on the whole process; torch has it for one module only. "
                f"Pass a module, or leave {name} out."
            )


# Iteration over a model's tree by identity, because the user's modules may override comparison, hash, or listing.


def walk(root: nn.Module, *, every_path: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules from `root` down, in torch's order; a shared one once, or under each of its paths."""
    # Without recursion: a model may be nested more deeply than Python's stack allows.
    seen = {id(root)}
    yield "", root
    stack = [("", root, iter(list(root._modules.items())))]
    while stack:
        path, module, children = stack[-1]
        for name, child in children:
            if child is None or id(child) in seen:
                continue
            seen.add(id(child))
            below = f"{path}.{name}" if path else name
            yield below, child
            stack.append((below, child, iter(list(child._modules.items()))))
            break
        else:
            stack.pop()
            if every_path:
                seen.discard(id(module))  # only a module inside itself is cut off


def parameters_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters of a module and everything below it, shared ones once."""
    seen: set[int] = set()
    for _, child in walk(module):
        for parameter in child._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
