"""Hooks around the steps of one optimizer or, with None, of every optimizer of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookcore.errors import ArgumentError
from hookcore.hooks.checks import describe, require_callable
from hookcore.hooks.handle import STEP_LOOP, HookHandle, registering

Hook = Callable[..., Any]
_SIGNATURE = "(optimizer, args, kwargs)"


def on_optimizer_step_pre(optimizer: Optimizer | None, fn: Hook) -> HookHandle:
    """Call `fn(optimizer, args, kwargs)` before each step; it may return new `(args, kwargs)`."""
    require_callable(fn, _SIGNATURE)
    register = register_optimizer_step_pre_hook
    if optimizer is not None:
        register = _require_optimizer(optimizer).register_step_pre_hook
    with registering():
        return HookHandle("step pre", (register(fn),), loops=STEP_LOOP)


def on_optimizer_step(optimizer: Optimizer | None, fn: Hook) -> HookHandle:
    """Call `fn(optimizer, args, kwargs)` after each step; torch ignores its result."""
    require_callable(fn, _SIGNATURE)
    register = register_optimizer_step_post_hook
    if optimizer is not None:
        register = _require_optimizer(optimizer).register_step_post_hook
    with registering():
        return HookHandle("step", (register(fn),), loops=STEP_LOOP)


def _require_optimizer(optimizer: object) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(
            f"Got {describe(optimizer)}; expected a torch.optim.Optimizer, or None for every one of the process. "
            "Of a wrapper, pass the optimizer inside it."
        )
    return optimizer
