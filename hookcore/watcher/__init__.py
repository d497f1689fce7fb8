"""`hookcore.watch` and the watcher that it returns."""

from hookcore.watcher.entry import watch
from hookcore.watcher.null import NullWatcher
from hookcore.watcher.watcher import Watcher, detached

__all__ = ["NullWatcher", "Watcher", "detached", "watch"]
