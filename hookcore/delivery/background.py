"""Threads for work that may wait: they leave the processor to the training, and to readers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

NICENESS: Final = 5


def background(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """Return a thread that gives way to others, not started yet. What it starts does so, too."""

    def run() -> None:
        if sys.platform == "linux":  # elsewhere, this would be the priority of the whole process
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        target(*args)

    return threading.Thread(target=run, name=name, daemon=True)
