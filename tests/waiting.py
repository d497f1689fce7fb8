"""The only way for a test to wait: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 90.0


def wait_for(holds: Callable[[], Any], what: str = "it") -> Any:
    """Wait until `holds()` is true, and return what it returned."""
    deadline, pause = time.monotonic() + PATIENCE_S, 0.002
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(pause)
        pause = min(0.05, 1.5 * pause)
    return found
