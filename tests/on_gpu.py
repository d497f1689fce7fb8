"""A pytest plugin that runs tests on a GPU: tensors created without a device are created there. See `make gpu`."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before CUDA starts: the tests compare bits, and cuBLAS repeats them only with a workspace of fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch

# Cases of the zoo that torch itself rejects if every tensor is on the GPU.
REFUSED = {
    "adaptive_log_softmax": "torch's deterministic operators fail on it",
    "data_loader_with_forked_workers": "a forked process can't use CUDA",
    "one_dropout_mask_for_all": "its generator is the CPU's",
    "packed_sequence": "its lengths must be on the CPU",
    "quantised_part": "the operator runs only on the CPU",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the cases that torch rejects, with the reason."""
    for item in items:
        for name, why in REFUSED.items():
            if f"[{name}]" in item.name or f"[{name}-" in item.name:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Create everything on the GPU, and make torch deterministic. With TOGETHER=1, kernels measure several tensors."""
    monkeypatch.setenv("HOOKCORE_GPU_TOGETHER", os.environ.get("TOGETHER", ""))
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
