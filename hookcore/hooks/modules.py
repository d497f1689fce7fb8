"""Hooks around the forward and backward of one module or, with None, of every module of the process."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from torch import nn
from torch.nn.modules import module as torch_modules

from hookcore.errors import HookError
from hookcore.hooks import internals
from hookcore.hooks.checks import refuse_globally, require_callable, require_module
from hookcore.hooks.handle import (
    FORWARD_LOOP,
    REGISTRATION_LOOP,
    HookHandle,
    registering,
    registry,
    take_free_number,
    take_private_number,
)

Hook = Callable[..., Any]


class KeywordPreHook:
    """Passes on the call of a pre-hook, unless the keyword inputs are missing.

    They are missing if another thread or an earlier hook removes this hook during its call: torch then no longer knows
    that the hook takes them.
    """

    __slots__ = ("fn",)

    def __init__(self, fn: Hook) -> None:
        self.fn = fn

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> Any:
        return self.fn(module, args, *rest) if len(rest) == 1 else None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce_to(self.fn) or (KeywordPreHook, (self.fn,))


class KeywordHook:
    """The same for a forward hook; `on_error` for a hook that torch calls without the keyword inputs after an error."""

    __slots__ = ("fn", "on_error")

    def __init__(self, fn: Hook, on_error: bool) -> None:
        self.fn = fn
        self.on_error = on_error

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> Any:
        if len(rest) == 2:
            return self.fn(module, args, *rest)
        if self.on_error and sys.exc_info()[0] is not None:
            return self.fn(module, args, {}, *rest)
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce_to(self.fn) or (KeywordHook, (self.fn, self.on_error))


def _reduce_to(fn: Any) -> tuple[Any, ...] | None:
    """Return what stands for a function in pickles and copies, if it defines that (as the recorder's hooks do)."""
    inert = getattr(type(fn), "inert", None)
    return None if inert is None else inert(fn)


def runs_already(module: nn.Module) -> bool:
    """Return whether another call of a module is under way, below the one whose hook runs."""
    calls, frame = 0, sys._getframe(1)
    while frame.f_back is not None and calls < 2:
        calls += frame.f_code is internals.MODULE_CALL and frame.f_locals.get("self") is module
        frame = frame.f_back
    return calls > 1


def on_forward_pre(
    module: nn.Module | None, fn: Hook, *, prepend: bool = False, with_kwargs: bool = False
) -> HookHandle:
    """Call `fn(module, args)` before each forward; its result replaces the positional inputs.

    `with_kwargs`: call `fn(module, args, kwargs)`, which may return new `(args, kwargs)`. `with_kwargs` and `prepend`
    need a module.
    """
    require_callable(fn, "(module, args, kwargs)" if with_kwargs else "(module, args)")
    if module is None:
        refuse_globally(prepend=prepend, with_kwargs=with_kwargs)
        with registering():
            handle = torch_modules.register_module_forward_pre_hook(fn)
            take_private_number(handle, internals.FORWARD_PRE_HOOKS)
            return HookHandle("forward pre", (handle,), loops=FORWARD_LOOP)
    require_module(module)
    with registering():
        take_free_number(module)
        handle = module.register_forward_pre_hook(
            KeywordPreHook(fn) if with_kwargs else fn, prepend=prepend, with_kwargs=with_kwargs
        )
        return HookHandle("forward pre", (handle,), loops=FORWARD_LOOP)


def on_forward(
    module: nn.Module | None, fn: Hook, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
) -> HookHandle:
    """Call `fn(module, args, output)` after each forward; its result replaces the output.

    `with_kwargs`: call `fn(module, args, kwargs, output)`. `always_call`: also call it if the forward raised, with None
    as output (for hooks on the process, torch then loses the keyword inputs, so they are an empty dictionary).
    `prepend`, for a module only: run before the hooks that are already registered.
    """
    require_callable(fn, "(module, args, kwargs, output)" if with_kwargs else "(module, args, output)")
    if module is not None:
        return _on_module_forward(module, fn, prepend, with_kwargs, always_call)
    refuse_globally(prepend=prepend)
    hook = KeywordHook(fn, always_call) if with_kwargs else fn
    with registering():
        handle = torch_modules.register_module_forward_hook(hook, with_kwargs=with_kwargs, always_call=always_call)
        if with_kwargs:
            # Torch doesn't clear this table on removal, and would then assume forever that there is a global hook.
            leaked = weakref.ref(internals.FORWARD_HOOKS_WITH_KWARGS)
            handle.extra_dict_ref = (*handle.extra_dict_ref, leaked)
        take_private_number(
            handle, internals.FORWARD_HOOKS, internals.FORWARD_HOOKS_WITH_KWARGS, internals.FORWARD_HOOKS_ALWAYS_CALLED
        )
        return HookHandle("forward", (handle,), loops=FORWARD_LOOP)


def _on_module_forward(module: nn.Module, fn: Hook, prepend: bool, with_kwargs: bool, always_call: bool) -> HookHandle:
    require_module(module)
    hook = KeywordHook(fn, False) if with_kwargs else fn
    with registering():
        take_free_number(module)
        handle = module.register_forward_hook(hook, prepend=prepend, with_kwargs=with_kwargs, always_call=always_call)
        return HookHandle("forward", (handle,), loops=FORWARD_LOOP)


def on_full_backward_pre(module: nn.Module | None, fn: Hook, *, prepend: bool = False) -> HookHandle:
    """Call `fn(module, grad_output)` before a module's backward; its result replaces the gradient of the output.

    For this, torch gives the module views of its inputs and outputs: in-place operations on them raise, and the last
    bits of a gradient may change. `on_gradient` on the output has neither effect.
    """
    require_callable(fn, "(module, grad_output)")
    if module is None:
        refuse_globally(prepend=prepend)
        with registering():
            handle = torch_modules.register_module_full_backward_pre_hook(fn)
            return HookHandle("full backward pre", (handle,))
    require_module(module)
    with registering():
        take_free_number(module)
        handle = module.register_full_backward_pre_hook(fn, prepend=prepend)
        return HookHandle("full backward pre", (handle,))


def on_full_backward(module: nn.Module | None, fn: Hook, *, prepend: bool = False) -> HookHandle:
    """Call `fn(module, grad_input, grad_output)` after a module's backward; its result replaces the input's gradient.

    It makes the same views as `on_full_backward_pre`.
    """
    require_callable(fn, "(module, grad_input, grad_output)")
    if module is None:
        refuse_globally(prepend=prepend)
        return _on_any_full_backward(fn)
    require_module(module)
    with registering():
        if module.__dict__.get("_is_full_backward_hook") is False:
            raise HookError(
                f"The {type(module).__name__} has had a legacy hook (register_backward_hook); torch allows no full "
                "backward hook with it. Remove that hook and set the module's _is_full_backward_hook to None, or "
                "use on_gradient on its output."
            )
        take_free_number(module)
        handle = module.register_full_backward_hook(fn, prepend=prepend)
        return HookHandle("full backward", (handle,), undo=_clear_module_flag, module=module)


def _on_any_full_backward(fn: Hook) -> HookHandle:
    with registering():
        if internals.backward_flag() is False:
            raise HookError(
                "The process has had a legacy hook (register_module_backward_hook); torch allows no full backward hook "
                "with it. Remove that hook, or register on single modules."
            )
        if internals.backward_flag() is None:
            registry.set_global_backward_flag = True
        handle = torch_modules.register_module_full_backward_hook(fn)
        return HookHandle("full backward", (handle,), undo=_clear_global_flag)


def _clear_module_flag(module: nn.Module | None) -> None:
    # Torch keeps the flag, and would then refuse a legacy hook forever.
    if module is not None and not module.__dict__["_backward_hooks"]:
        module.__dict__["_is_full_backward_hook"] = None


def _clear_global_flag(_module: nn.Module | None) -> None:
    if registry.set_global_backward_flag and not internals.BACKWARD_HOOKS:
        internals.clear_backward_flag()
        registry.set_global_backward_flag = False


def on_module_registration(fn: Hook) -> HookHandle:
    """Call `fn(module, name, submodule)` whenever a module gets a submodule; its result replaces the submodule."""
    return _on_registered("module registration", torch_modules.register_module_module_registration_hook, fn)


def on_parameter_registration(fn: Hook) -> HookHandle:
    """Call `fn(module, name, parameter)` whenever a module gets a parameter; its result replaces the parameter."""
    return _on_registered("parameter registration", torch_modules.register_module_parameter_registration_hook, fn)


def on_buffer_registration(fn: Hook) -> HookHandle:
    """Call `fn(module, name, buffer)` whenever a module gets a buffer; its result replaces the buffer."""
    return _on_registered("buffer registration", torch_modules.register_module_buffer_registration_hook, fn)


def _on_registered(point: str, register: Callable[[Hook], Any], fn: Hook) -> HookHandle:
    require_callable(fn, "(module, name, value)")
    with registering():
        return HookHandle(point, (register(fn),), loops=REGISTRATION_LOOP)


# Room on Python's stack for the frames that hooks need.
#
# As soon as any hook exists, torch puts one more frame on the stack for each running module. A model that is nested
# almost as deeply as Python's recursion limit allows would then raise RecursionError only because it is watched.
# Holding headroom raises the limit by as many frames as hooks can take.

OWN_FRAMES: Final = 200  # frames that a hook and its callees may need at the bottom of the stack
_HIGHEST: Final = 2**31 - 1


class _Limit:
    """The limit of this process, and the number of holders of headroom."""

    holders = 0
    given: Final[dict[int, int]] = {}  # each limit that was set here: the limit that it replaced


def hold_headroom() -> None:
    """Raise the recursion limit, unless it is raised already. Each call needs a `release_headroom()`."""
    with registering():
        _Limit.holders += 1
        if _Limit.holders == 1:
            now = sys.getrecursionlimit()
            # Other code may have restored a limit that it read while ours was raised.
            before = _Limit.given.get(now, now)
            # Without hooks, each module call takes at least three frames.
            raised = min(before + before // 3 + OWN_FRAMES, _HIGHEST)
            sys.setrecursionlimit(raised)
            _Limit.given[raised] = before


def release_headroom() -> None:
    """Restore the limit when the last holder releases it. A limit that other code has set meanwhile stays."""
    with registering():
        _Limit.holders -= 1
        before = _Limit.given.get(sys.getrecursionlimit())
        if not _Limit.holders and before is not None:
            # Refused while the stack is deeper than the limit; the next release restores it.
            with contextlib.suppress(RecursionError):
                sys.setrecursionlimit(before)
