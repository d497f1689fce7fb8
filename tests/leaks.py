"""A fixture for tests of hooks: torch's hook tables must be unchanged after the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers

from hookcore.hooks import handle as handles
from hookcore.hooks.tensors import top_pair
from tests.around import MODULE_TABLES


def global_state() -> dict[str, Any]:
    """Return everything that a hook on the process may leave behind in torch."""
    state: dict[str, Any] = {name: dict(vars(torch_modules)[name]) for name in MODULE_TABLES}
    state["flag"] = torch_modules._global_is_full_backward_hook
    state["step pre"] = dict(torch_optimizers._global_optimizer_pre_hooks)
    state["step"] = dict(torch_optimizers._global_optimizer_post_hooks)
    state["saved tensors"] = top_pair()
    return state


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = global_state()
    yield
    assert global_state() == before
    assert not handles.registry.deferred


def nothing(*_args: Any) -> None: ...
