"""Processes that train together, started by a process that has imported torch already."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, Final

import torch.multiprocessing

# Imported once for all ranks of all tests, instead of in each: that takes longer than such a training.
PRELOADED: Final = ["torch._dynamo", "torch.distributed", "torch.nn.parallel", "hookcore.watcher", "pytest"]


def run_ranks(work: Callable[..., None], arguments: tuple[Any, ...], world: int) -> None:
    """Call `work(rank, *arguments)` in as many processes. Their first exception is raised here."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    torch.multiprocessing.start_processes(work, arguments, nprocs=world, start_method="forkserver")
