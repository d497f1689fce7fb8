"""Global hooks around compiled code: they step aside while a region runs, and cause no warning."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn

from hookcore import hooks
from hookcore.hooks import internals
from hookcore.hooks.compiled.regions import code_of, guard_functions
from hookcore.hooks.modules import KeywordHook


class StepAside:
    """Removes the hooks on the process while a compiled region runs, and still sees the region's output.

    Dynamo guards on the number of global module hooks. If it changed (an uncaptured step, a pause, a close, a later
    watch), every graph would be recompiled. So the pre-hook of a region's root removes them, and a hook on that module,
    for that one call, restores them and reports the output. Modules that other threads run meanwhile are not seen.
    """

    def __init__(
        self, off: Callable[[], None], on: Callable[[], None], saw_output: Callable[[nn.Module, Any, Any], None]
    ) -> None:
        self._off, self._on, self._saw_output = off, on, saw_output
        self._handles: list[hooks.HookHandle] = []

    @property
    def active(self) -> bool:
        """Whether a region is running, so that the global hooks are off."""
        return bool(self._handles)

    def enter(self, module: nn.Module) -> None:
        """Remove the hooks. Called by the pre-hook of a region's root."""
        # The last of the module's hooks, to see what it returns after the user's own hooks.
        self._handles.append(hooks.on_forward(module, self._leave, always_call=True))
        if len(self._handles) == 1:
            self._off()

    def _leave(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """Restore the hooks: the region's root has returned or raised."""
        if torch.compiler.is_compiling():
            return
        output = rest[-1]
        self.close()
        if output is not None:  # None after an exception
            self._saw_output(module, args, output)

    def close(self) -> None:
        """Restore everything, even if a call was interrupted halfway. Calling this twice is fine."""
        # No lock, because a fork could copy it locked. Two threads that race here only cost a compilation.
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if handles:
            self._on()


class QuietHooks:
    """Keeps torch from warning about our global hooks at every call of a compiled module.

    A warnings filter isn't enough: a filter that the user sets later takes precedence, and `error` would then raise our
    warning inside the training. Instead, this replaces the function with which torch looks for global hooks. Torch
    calls it for this warning only.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self._codes = frozenset(code_of(function) for function in functions)

    def on(self) -> None:
        """Hide these functions from that check. Calling this twice is fine."""
        _quiet[id(self)] = self._codes
        if _torchs_question is not None and internals.global_hook_check() is _torchs_question:
            internals.set_global_hook_check(_has_foreign_hook)

    def off(self) -> None:
        """Restore torch's own check when no hooks are left. Calling this twice is fine."""
        _quiet.pop(id(self), None)
        if _torchs_question is not None and not _quiet and internals.global_hook_check() is _has_foreign_hook:
            internals.set_global_hook_check(_torchs_question)


# Torch has one such function, so there is one table of all users.
_quiet: dict[int, frozenset[CodeType]] = {}
_torchs_question: Callable[[], Any] | None = internals.global_hook_check()


def _has_foreign_hook() -> bool:
    ours = {code for codes in list(_quiet.values()) for code in codes}
    entries = (
        *internals.BACKWARD_PRE_HOOKS.values(),
        *internals.BACKWARD_HOOKS.values(),
        *internals.FORWARD_PRE_HOOKS.values(),
        *internals.FORWARD_HOOKS.values(),
    )
    return any(getattr(_inner(hook), "__code__", None) not in ours for hook in entries)


def _inner(hook: Any) -> Any:
    """Return the function behind the one that `hooks.on_forward(with_kwargs=True)` registers."""
    return hook.fn if isinstance(hook, KeywordHook) else hook


guard_functions(StepAside._leave, _has_foreign_hook)
