"""`hookcore.watch` and the watcher that it returns, which is imported only when a watch has begun."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookcore.watcher.entry import watch

if TYPE_CHECKING:
    from hookcore.watcher.watcher import NullWatcher, Watcher, close_all, detached, parts_of

__all__ = ["NullWatcher", "Watcher", "close_all", "detached", "parts_of", "watch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("hookcore.watcher.watcher"), name)
    raise AttributeError(f"module 'hookcore.watcher' has no attribute {name!r}")
