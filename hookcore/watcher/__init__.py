"""`hookcore.watch` and the watcher that it returns."""

from hookcore.watcher.entry import watch
from hookcore.watcher.watcher import NullWatcher, Watcher, detached

__all__ = ["NullWatcher", "Watcher", "detached", "watch"]
