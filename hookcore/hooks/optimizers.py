"""Hooks on what isn't a module: the steps of optimizers, and the exports of torch.package."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.package.package_exporter import PackageExporter
from torch.utils.hooks import RemovableHandle

from hookcore.errors import ArgumentError
from hookcore.hooks.checks import describe, require_callable
from hookcore.hooks.handle import EXPORT_LOOP, STEP_LOOP, HookHandle, ObserverHandle, Observers, registering

# Around the steps of one optimizer or, with None, of every optimizer of the process.

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


def on_optimizer_saved(optimizer: Optimizer, fn: Hook) -> HookHandle:
    """Call `fn(optimizer, state_dict)` after each `optimizer.state_dict()`; it returns None, and changes nothing."""
    with registering():
        return HookHandle("state dict", (optimizer.register_state_dict_post_hook(fn),))


def _require_optimizer(optimizer: object) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(
            f"Got {describe(optimizer)}; expected a torch.optim.Optimizer, or None for every one of the process. "
            "For a wrapper, pass the optimizer inside it."
        )
    return optimizer


# What torch.package decides for each module of an export: packed, left outside, or mocked.

Action = Literal["extern", "intern", "mock"]
Export = Callable[[PackageExporter, str], Any]


@dataclass(frozen=True, slots=True)
class PackageDecision:
    """The decision about one module of an export. `order` counts from 0."""

    order: int
    action: Action
    module: str


class _Decisions:
    """The list of decisions, which grows while an export runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made: list[PackageDecision] = []

    def note(self, action: Action, fn: Export | None, exporter: PackageExporter, module_name: str) -> None:
        """Record a decision. Torch's own signature, with the action and the user's function bound before it."""
        with self._lock:
            self.made.append(PackageDecision(len(self.made), action, module_name))
        if fn is not None:
            fn(exporter, module_name)


class PackageHandle(HookHandle):
    """The hooks of one export, and the `decisions` that they have seen, in order."""

    __slots__ = ("_decisions",)

    def __init__(self, handles: tuple[RemovableHandle, ...], decisions: _Decisions) -> None:
        super().__init__("package", handles, loops=EXPORT_LOOP)
        self._decisions = decisions

    @property
    def decisions(self) -> tuple[PackageDecision, ...]:
        """All decisions so far. Torch makes them when the exporter closes."""
        return tuple(self._decisions.made)

    def __getstate__(self) -> tuple[Any, ...]:
        raise TypeError("A package handle belongs to an open export and cannot be copied. Register again.")


def on_package(
    exporter: PackageExporter,
    *,
    extern: Export | None = None,
    intern: Export | None = None,
    mock: Export | None = None,
) -> PackageHandle:
    """Record every decision of an export. `extern`, `intern`, and `mock` are called with `(exporter, module_name)`."""
    for fn in (extern, intern, mock):
        if fn is not None:
            require_callable(fn, "(exporter, module_name)")
    if not isinstance(exporter, PackageExporter):
        raise ArgumentError(
            f"Got {describe(exporter)}; expected a torch.package.PackageExporter. Pass the exporter inside its `with`."
        )
    decisions = _Decisions()
    with registering():
        handles = (
            exporter.register_extern_hook(partial(decisions.note, "extern", extern)),
            exporter.register_intern_hook(partial(decisions.note, "intern", intern)),
            exporter.register_mock_hook(partial(decisions.note, "mock", mock)),
        )
        return PackageHandle(handles, decisions)
