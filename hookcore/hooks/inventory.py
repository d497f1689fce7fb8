"""An inventory of all hooks on a model, tensor, optimizer, or the process, no matter who registered them, and where."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizers

from hookcore.errors import ArgumentError
from hookcore.hooks.backward import _Always
from hookcore.hooks.checks import describe
from hookcore.hooks.distributed import reduce_and_record
from hookcore.hooks.handle import registering, registry, removed_hook
from hookcore.hooks.hooked_module import HookedModule
from hookcore.hooks.internals import (
    DisableTorchFunctionSubclass,
    WrappedHook,
    accumulation_hooks_of,
    backward_flag,
    gradient_hooks_of,
)
from hookcore.hooks.modules import KeywordHook, KeywordPreHook
from hookcore.hooks.tensors import is_ours, top_pair
from hookcore.records import HookRecord, Scope

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


LEGACY_REASON: Final = (
    "A legacy backward hook sits on the last autograd node that made the output, not on the module: its grad_input is "
    "that node's (for a Linear the gradients of its addmm's bias, input and transposed weight), and of a module with "
    "several operations only the last is seen. Use a full backward hook, or a gradient hook on the output."
)


@dataclass(frozen=True, slots=True)
class _Table:
    """One of torch's dictionaries of hooks: its attribute, and the dictionaries of flags that belong to it."""

    attribute: str
    point: str
    with_kwargs: str = ""
    always_call: str = ""


_MODULE_TABLES: Final = (
    _Table("_forward_pre_hooks", "forward pre", "_forward_pre_hooks_with_kwargs"),
    _Table("_forward_hooks", "forward", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    _Table("_backward_pre_hooks", "full backward pre"),
    _Table("_backward_hooks", "full backward"),
    _Table("_state_dict_pre_hooks", "state dict pre"),
    _Table("_state_dict_hooks", "state dict"),
    _Table("_load_state_dict_pre_hooks", "load state dict pre"),
    _Table("_load_state_dict_post_hooks", "load state dict"),
)
_PROCESS_TABLES: Final = (
    _Table("_global_forward_pre_hooks", "forward pre"),
    _Table(
        "_global_forward_hooks", "forward", "_global_forward_hooks_with_kwargs", "_global_forward_hooks_always_called"
    ),
    _Table("_global_backward_pre_hooks", "full backward pre"),
    _Table("_global_backward_hooks", "full backward"),
    _Table("_global_module_registration_hooks", "module registration"),
    _Table("_global_parameter_registration_hooks", "parameter registration"),
    _Table("_global_buffer_registration_hooks", "buffer registration"),
)
_STEP_TABLES: Final = (
    _Table("_global_optimizer_pre_hooks", "step pre"),
    _Table("_global_optimizer_post_hooks", "step"),
)
_OPTIMIZER_TABLES: Final = (
    _Table("_optimizer_step_pre_hooks", "step pre"),
    _Table("_optimizer_step_post_hooks", "step"),
    _Table("_optimizer_state_dict_pre_hooks", "state dict pre"),
    _Table("_optimizer_state_dict_post_hooks", "state dict"),
    _Table("_optimizer_load_state_dict_pre_hooks", "load state dict pre"),
    _Table("_optimizer_load_state_dict_post_hooks", "load state dict"),
)


def inventory(
    model: nn.Module | HookedModule[Any] | None = None,
    *,
    tensors: torch.Tensor | Iterable[torch.Tensor] = (),
    optimizers: Optimizer | Iterable[Optimizer] = (),
) -> tuple[HookRecord, ...]:
    """List the hooks on a model and its parameters, on tensors, on optimizers, and always those on the process.

    This runs no code of the model or of a hook. Hooks on autograd nodes are in C++, where Python can't list them.
    """
    with registering():
        records: list[HookRecord] = []
        if model is not None:
            records += _read_model(_require_model(model))
        for number, tensor in enumerate(_require_all(tensors, torch.Tensor)):
            records += _read_tensor(tensor, "tensor", str(number))
        for number, optimizer in enumerate(_require_all(optimizers, Optimizer)):
            records += _read_tables(_OPTIMIZER_TABLES, _attributes(optimizer), "optimizer", str(number))
        records += _read_thread()
        records += _read_process()
        return tuple(records)


def _require_model(model: object) -> nn.Module:
    found = model.inner if type(model) is HookedModule else model
    if not issubclass(type(found), nn.Module):
        raise ArgumentError(f"Got {describe(found)} as the model; expected a torch.nn.Module. Pass the module itself.")
    return found  # type: ignore[return-value]


def _require_all(given: Any, kind: type) -> list[Any]:
    values = [given] if issubclass(type(given), kind) else list(given)
    for value in values:
        if not issubclass(type(value), kind):
            raise ArgumentError(
                f"Got {describe(value)}; expected objects of type {kind.__name__}. Pass a list of them."
            )
    return values


def _attributes(thing: object) -> Mapping[str, Any]:
    """Return the instance's dictionary, bypassing any `__getattr__` or `__getattribute__` of its class."""
    found: Mapping[str, Any] = object.__getattribute__(thing, "__dict__")
    return found


def _walk(model: nn.Module) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each module's path and dictionary once, in torch's order. `named_modules` might be overridden."""
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        attributes = _attributes(module)
        yield path, attributes
        children = list(attributes.get("_modules", {}).items())
        waiting += [(_join(path, name), child) for name, child in reversed(children)]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _read_model(model: nn.Module) -> Iterator[HookRecord]:
    seen: set[int] = set()
    for path, attributes in _walk(model):
        legacy = attributes.get("_is_full_backward_hook") is False
        yield from _read_tables(_MODULE_TABLES, attributes, "module", path, legacy=legacy)
        yield from _read_communication(attributes.get("_comm_hooks") or (), path)
        for name, parameter in attributes.get("_parameters", {}).items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield from _read_tensor(parameter, "parameter", _join(path, name))


def _read_communication(pairs: Iterable[tuple[Any, Any]], path: str) -> Iterator[HookRecord]:
    for hook, state in pairs:
        ours = hook is reduce_and_record
        name, where = find_origin(state.hook or hook if ours else hook)
        yield HookRecord("module", path, "communication", name, where, ours)


_TENSOR_TABLES: Final[tuple[tuple[str, Callable[[torch.Tensor], Any]], ...]] = (
    ("gradient", gradient_hooks_of),
    ("gradient accumulated", accumulation_hooks_of),
)


def _read_tensor(tensor: torch.Tensor, scope: Scope, owner: str) -> Iterator[HookRecord]:
    with DisableTorchFunctionSubclass():
        tables = [(point, read(tensor)) for point, read in _TENSOR_TABLES]
    for point, hooks in tables:
        yield from _read_hooks(hooks or {}, scope, owner, point)


def _read_tables(
    tables: Iterable[_Table], attributes: Mapping[str, Any], scope: Scope, owner: str, *, legacy: bool = False
) -> Iterator[HookRecord]:
    for table in tables:
        flags = {
            name: attributes.get(attribute) or {}
            for name, attribute in (("with_kwargs", table.with_kwargs), ("always_call", table.always_call))
            if attribute
        }
        is_legacy = legacy and table.point == "full backward"
        point = "legacy backward" if is_legacy else table.point
        yield from _read_hooks(attributes.get(table.attribute) or {}, scope, owner, point, flags)


def _read_hooks(
    hooks: Mapping[int, Any],
    scope: Scope,
    owner: str,
    point: str,
    flags: Mapping[str, Mapping[int, bool]] | None = None,
) -> Iterator[HookRecord]:
    legacy = point == "legacy backward"
    for number, hook in list(hooks.items()):
        if hook is removed_hook:
            continue
        name, where = find_origin(hook.fn if type(hook) is _Always else hook)
        yield HookRecord(
            scope=scope,
            owner=owner,
            point="backward end" if type(hook) is _Always else point,
            function=name,
            where=where,
            ours=registry.owns(hooks, number),
            number=number,
            options=tuple(option for option, numbers in (flags or {}).items() if number in numbers),
            legacy=legacy,
            warning=LEGACY_REASON if legacy else "",
        )


def _read_thread() -> Iterator[HookRecord]:
    pair = top_pair()
    if pair is not None:
        for point, fn in zip(("saved tensors pack", "saved tensors unpack"), pair, strict=True):
            name, where = find_origin(fn)
            yield HookRecord("thread", "", point, name, where, is_ours(pair))


def _read_process() -> Iterator[HookRecord]:
    legacy = backward_flag() is False
    yield from _read_tables(_PROCESS_TABLES, vars(torch_modules), "process", "", legacy=legacy)
    yield from _read_tables(_STEP_TABLES, vars(torch_optimizers), "process", "")
