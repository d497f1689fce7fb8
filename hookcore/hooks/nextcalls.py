"""The next calls of any modules, and what some of them return: hooks that are there for a call, not for a step.

Registering and removing a hook takes longer than a call of a small module. These hooks have their numbers for good, and
are put into torch's tables and taken out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import nn

from hookcore.hooks.compiled import QuietHooks, guard_functions
from hookcore.hooks.handle import private_number, registry
from hookcore.hooks.internals import FORWARD_HOOKS_WITH_KWARGS, FORWARD_PRE_HOOKS

_is_compiling = torch.compiler.is_compiling
_is_dynamo = torch.compiler.is_dynamo_compiling  # while Dynamo inlines a function; it has half the cost
# This class computes in another way if any of its modules has a hook of its own.
_LOOKS_AT_HOOKS: Final = (nn.TransformerEncoderLayer,)

Entered = Callable[[nn.Module, Any], bool]  # module, args; returns whether to see what this call returns
Left = Callable[[nn.Module, Any, Any], None]  # module, keyword arguments, output


class NextCalls:
    """Calls `entered` for each module that is called while it is on, and `left` if that wants to see the result.

    Neither may raise. Without `entered`, nothing of the process is slower. Each of `quick` sees these calls before.
    `after` is the hook on a module while its call runs. It is inert in copies, as the module may be copied then.
    """

    def __init__(self, entered: Entered, left: Left, quick: Sequence[Any], after: Any) -> None:
        self._number = private_number()
        self._entered, self._left = entered, left
        quick[-1].serve(self._see_entered, self._see_left)
        for following, each in pairwise(reversed(quick)):
            each.serve(following.entered, following.left)
        self._before = before = _make_hook(quick[0].entered, self._see_return)
        after.serve(quick[0])
        self._after, after.number = after, private_number()
        FORWARD_HOOKS_WITH_KWARGS[after.number] = True  # so that the tables of modules need not say it
        self._quiet = QuietHooks(before)
        self._quiet.on()
        guard_functions(before)
        registry.own_entry(FORWARD_PRE_HOOKS, self._number)

    @property
    def is_on(self) -> bool:
        """Whether the next call is seen."""
        return self._number in FORWARD_PRE_HOOKS

    @property
    def entry(self) -> tuple[dict[int, Any], int, Any]:
        """The table that its hook is in while it is on, the hook's key, and the hook."""
        return FORWARD_PRE_HOOKS, self._number, self._before

    def on(self) -> None:
        """See the next calls."""
        FORWARD_PRE_HOOKS[self._number] = self._before

    def off(self) -> None:
        """See no call."""
        FORWARD_PRE_HOOKS.pop(self._number, None)

    def forget(self) -> None:
        """Don't see what the running call returns: it raised."""
        hooks, self._after.hooks = self._after.hooks, None
        if hooks is not None:
            hooks.pop(self._after.number, None)

    def close(self) -> None:
        """Remove everything."""
        self.off()
        self.forget()
        self._quiet.off()
        registry.owned.pop(self._number, None)
        FORWARD_HOOKS_WITH_KWARGS.pop(self._after.number, None)

    def _see_entered(self, module: nn.Module, args: Any) -> bool:
        return not _is_compiling() and self._entered(module, args)

    def _see_return(self, module: nn.Module) -> None:
        hooks = module.__dict__.get("_forward_hooks")
        if can_be_hooked(module) and isinstance(hooks, dict):  # a scripted module has others
            self.forget()
            hooks[self._after.number], self._after.hooks = self._after, hooks

    def _see_left(self, module: nn.Module, kwargs: Any, output: Any) -> None:
        if not _is_compiling():
            self.forget()
            self._left(module, kwargs, output)


def can_be_hooked(module: nn.Module) -> bool:
    """Return whether a module computes the same with a hook of its own."""
    return not isinstance(module, _LOOKS_AT_HOOKS)


def _make_hook(entered: Entered, see_return: Callable[[nn.Module], None]) -> Callable[..., None]:
    def call(module: nn.Module, args: Any, *_: Any) -> None:
        if not _is_dynamo() and entered(module, args):
            see_return(module)

    return call


guard_functions(NextCalls._see_entered, NextCalls._see_left)
