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
from hookcore.hooks.handle import InertInCopies, private_number, registry
from hookcore.hooks.internals import FORWARD_PRE_HOOKS

_is_compiling = torch.compiler.is_compiling
# This class computes in another way if any of its modules has a hook of its own.
_LOOKS_AT_HOOKS: Final = (nn.TransformerEncoderLayer,)

Entered = Callable[[nn.Module, Any], bool]  # module, args; returns whether to see what this call returns
Left = Callable[[nn.Module, Any, Any], None]  # module, keyword arguments, output


class NextCalls:
    """Calls `entered` for each module that is called while it is on, and `left` if that wants to see the result.

    Neither may raise. Without `entered`, nothing of the process is slower. Each of `quick` sees these calls before.
    """

    def __init__(self, entered: Entered, left: Left, quick: Sequence[Any]) -> None:
        self._number = private_number()
        self._left = left
        quick[-1].serve(entered, self._see_left)
        for following, each in pairwise(reversed(quick)):
            each.serve(following.entered, following.left)
        self._before = before = _make_hook(quick[0].entered, self._see_return)
        self._after = _After(quick[0].left, private_number())
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

    @property
    def after(self) -> tuple[object, int]:
        """The hook on a module whose call runs, and its key there."""
        return self._after, self._after.number

    def on(self) -> None:
        """See the next calls."""
        FORWARD_PRE_HOOKS[self._number] = self._before

    def off(self) -> None:
        """See no call."""
        FORWARD_PRE_HOOKS.pop(self._number, None)

    def forget(self) -> None:
        """Don't see what the running call returns: it raised."""
        self._after.take_off()

    def close(self) -> None:
        """Remove everything."""
        self.off()
        self.forget()
        self._quiet.off()
        registry.owned.pop(self._number, None)

    def _see_return(self, module: nn.Module) -> None:
        if can_be_hooked(module):
            self._after.put_on(module)

    def _see_left(self, module: nn.Module, kwargs: Any, output: Any) -> None:
        self._after.take_off()
        self._left(module, kwargs, output)


def can_be_hooked(module: nn.Module) -> bool:
    """Return whether a module computes the same with a hook of its own."""
    return not isinstance(module, _LOOKS_AT_HOOKS)


class _After(InertInCopies):
    """The hook on one module, while its call runs."""

    __slots__ = ("_left", "_tables", "number")

    def __init__(self, left: Left, number: int) -> None:
        self._left, self.number = left, number
        self._tables: tuple[dict[int, Any], dict[int, Any]] | None = None  # in which it is

    def put_on(self, module: nn.Module) -> None:
        if self._tables is not None:
            self.take_off()
        known = module.__dict__
        hooks, with_keywords = known.get("_forward_hooks"), known.get("_forward_hooks_with_kwargs")
        if isinstance(hooks, dict) and isinstance(with_keywords, dict):  # a scripted module has others
            self._tables = hooks, with_keywords
            hooks[self.number], with_keywords[self.number] = self, True

    def take_off(self) -> None:
        tables, self._tables = self._tables, None
        if tables is not None:
            tables[0].pop(self.number, None)
            tables[1].pop(self.number, None)

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if not _is_compiling():
            self._left(module, rest[0] if len(rest) == 2 else None, rest[-1])


def _make_hook(entered: Entered, see_return: Callable[[nn.Module], None]) -> Callable[..., None]:
    def call(module: nn.Module, args: Any, *_: Any) -> None:
        if not _is_compiling() and entered(module, args):
            see_return(module)

    return call


guard_functions(_After.__call__)
