"""Trainings in two processes, of which one has a fault. Each is a run of its own, and gets the other's gradients."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.ranks import run_ranks

from .case import Case, Outcome, Training, diagnose, judge
from .nonfinite import AT, EVER, FORWARD, Breaks
from .trainings import classifier, same

RANKS: Final = 2
BAD: Final = 1  # the rank with the fault


def _parallel(rank: int, last: int) -> Training:
    def fails(values: Tensor) -> Tensor:
        return FORWARD["zero by zero"](values) if rank == BAD else same(0, values)

    layers = nn.Linear(16, 32), nn.ReLU(), Breaks(fails, AT, last), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    model = nn.Sequential(*layers)
    torch.manual_seed(100 + rank)
    return model, classifier(DistributedDataParallel(model))[1]


def _case(rank: int, last: int) -> Case:
    return Case(lambda: _parallel(rank, last), ("nonfinite",), "2", at=AT, steps=140)


RANKED: Final = {"in one rank, once": AT, "in one rank, since": EVER}


def judge_ranks(name: str) -> list[Outcome]:
    """Train in two processes, and return what was found in each rank's run."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(_train, (name, folder), RANKS)
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(RANKS)]


def _train(rank: int, name: str, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    try:
        case = _case(rank, RANKED[name])
        (Path(folder) / str(rank)).write_bytes(pickle.dumps(judge(case, *diagnose(case))))
    finally:
        dist.destroy_process_group()
