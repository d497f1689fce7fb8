"""Processes that train together, forks of a process that has imported torch already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.multiprocessing

from tests.processes import forks


def run_ranks(work: Callable[..., None], arguments: tuple[Any, ...], world: int) -> None:
    """Call `work(rank, *arguments)` in this number of processes, and raise their first exception here."""
    forks()
    torch.multiprocessing.start_processes(work, arguments, nprocs=world, start_method="forkserver")
