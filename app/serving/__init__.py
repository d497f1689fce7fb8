"""Serving: uvicorn with deadlines, in a process or in a thread of the trainer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_OBJECTS: Final = 5000  # between two looks of the garbage collector: each takes longer with every run


@contextmanager
def garbage_collector_paused() -> Iterator[None]:
    """Collect nothing until the server serves: what it imports stays, and looks at it take a tenth of the start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()  # for whoever called this in a process that goes on after a start that failed


def resume_garbage_collector() -> None:
    """Collect what is made from now on. Looks at modules and routes delay live pages by a tenth of a second."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()
