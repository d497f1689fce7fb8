"""The place where a hook's function was defined, found without running any of its code."""

from __future__ import annotations

import functools
import inspect
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final

from hookcore.hooks.internals import WrappedHook
from hookcore.hooks.modules import KeywordHook, KeywordPreHook

_MAX_DEPTH: Final = 32  # nested wrappers; a function may name itself as the one it wraps


def find_origin(hook: Any) -> tuple[str, str]:
    """Return the qualified name, and `file:line` if it is written in Python."""
    found = hook
    for _ in range(_MAX_DEPTH):
        inner = _unwrap(found)
        if inner is None:
            break
        found = inner
    if type(found) is FunctionType:
        return _name(found), _where(found.__code__)
    if type(found) is BuiltinFunctionType:
        return f"{found.__module__ or 'builtins'}.{found.__qualname__}", ""
    if issubclass(type(found), type):
        return _name(found), ""
    return _find_call(type(found))


def _unwrap(hook: Any) -> Any:
    # Only the type decides: isinstance, hasattr, and inspect.unwrap would ask the object, which may run code.
    kind = type(hook)
    if kind in (KeywordPreHook, KeywordHook):
        return hook.fn
    if kind is MethodType:
        return hook.__func__
    if issubclass(kind, functools.partial):
        return functools.partial.func.__get__(hook)
    if kind is WrappedHook:
        return hook.__dict__.get("hook")
    if kind is FunctionType:
        return hook.__dict__.get("__wrapped__") or _unwrap_multi_grad(hook)
    return None


def _unwrap_multi_grad(hook: FunctionType) -> Any:
    """Return the user's function from the closure that torch registers on each tensor of a multi-gradient hook."""
    if hook.__module__ != "torch.autograd.graph" or "fn" not in hook.__code__.co_freevars:
        return None
    cell = (hook.__closure__ or ())[hook.__code__.co_freevars.index("fn")]
    return cell.cell_contents


def _find_call(kind: type) -> tuple[str, str]:
    """Return the class of a callable object, and where its `__call__` is written."""
    call = inspect.getattr_static(kind, "__call__", None)
    where = _where(call.__code__) if type(call) is FunctionType else ""
    return _name(kind), where


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _where(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"
