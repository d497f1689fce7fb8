"""Waiting for a device while the training may capture a CUDA graph.

A capture forbids all threads to wait for anything, even if it has nothing to do with the graph: the wait fails, and the
training's capture fails with it. A thread can declare that it has no part in captures, which is all that is done here.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_THREAD_LOCAL: Final = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: only this thread's own captures forbid anything


def wait_for(event: Any) -> None:
    """Wait for a CUDA event, in this thread only; None needs no waiting."""
    if event is not None:
        with apart_from_captures():
            event.synchronize()


@contextmanager
def apart_from_captures() -> Iterator[None]:
    """Let this thread call CUDA while another thread captures a graph."""
    exchange = _exchange()
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(_THREAD_LOCAL)
    exchanged = exchange(ctypes.byref(mode)) == 0  # now it holds the mode from before
    try:
        yield
    finally:
        if exchanged:
            exchange(ctypes.byref(mode))


@functools.cache
def _exchange() -> Any:
    """Return the driver's function; None if there is no CUDA driver, or one older than 10.1."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None
