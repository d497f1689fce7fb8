"""Trainings on a GPU, and the marks of tests that need one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import torch
from torch import Tensor, nn

from tests.harness import digest

MARKS: Final = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # warnings of torch: about its compiler, the debug mode below, and nondeterministic operations
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.filterwarnings("ignore:.*non-deterministic"),
    pytest.mark.filterwarnings("ignore:.*does not have a deterministic"),
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]


os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required for cuBLAS to be deterministic
GPU: Final = torch.device("cuda", 0)


class Run:
    """A training on the GPU."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module, int], Tensor]):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.losses: list[Tensor] = []

    def step(self, number: int) -> None:
        """Take a step as most loops do."""
        self.optimizer.zero_grad()
        loss = self.loss(self.model, number)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    def outcome(self) -> dict[str, str]:
        """Return a digest of everything that must be equal, watched or not."""
        torch.cuda.synchronize()
        return {
            "losses": digest(self.losses),
            "parameters": digest(dict(self.model.state_dict())),
            "optimizer": digest(self.optimizer.state_dict()),
            "gradients": digest([parameter.grad for parameter in self.model.parameters()]),
            "random": digest([torch.get_rng_state(), torch.cuda.get_rng_state()]),
        }


def batch(number: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number)).to(GPU)


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Make torch deterministic."""
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
