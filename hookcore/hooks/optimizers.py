"""Hooks around the steps of one optimizer or, with None, of every optimizer of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookcore.errors import ArgumentError
from hookcore.hooks.checks import describe, require_callable
from hookcore.hooks.handle import STEP_LOOP, HookHandle, ObserverHandle, Observers, registering

Hook = Callable[..., Any]
_SIGNATURE = "(optimizer, args, kwargs)"


class StepObserver(Protocol):
    """Called around every step of an optimizer, in the thread that makes it."""

    def saw_step_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Handle an optimizer that is about to step."""

    def saw_step_end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Handle an optimizer that has stepped."""


_handles: list[HookHandle] = []  # of the two hooks that all observers share


def observe_steps(observer: StepObserver) -> ObserverHandle[StepObserver]:
    """Call the observer around every step of an optimizer of this process.

    All observers share two hooks. Torch iterates over its table of hooks while it calls them, so a thread that added or
    removed one of several there would make the step of another thread raise a RuntimeError.
    """
    return _observers.add(observer)


def _put_in() -> None:
    if not _handles:
        _handles.extend((on_optimizer_step_pre(None, begin_step), on_optimizer_step(None, end_step)))


def _put_back() -> None:
    while _handles:
        _handles.pop().remove()


_observers: Final[Observers[StepObserver]] = Observers(_put_in, _put_back)


def begin_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Tell all observers that an optimizer is about to step. The hook of torch."""
    for observer in _observers.now:
        observer.saw_step_begin(optimizer, args, kwargs)


def end_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Tell all observers that an optimizer has stepped. The hook of torch."""
    for observer in _observers.now:
        observer.saw_step_end(optimizer, args, kwargs)


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
            "For a wrapper, pass the optimizer inside it."
        )
    return optimizer
