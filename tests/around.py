"""Checks around every test: hookcore must leave nothing behind."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers

from hookcore.hooks.compiled import has_compiled
from hookcore.hooks.internals import LOADER_METHODS
from hookcore.watcher import close_all
from tests.lanes import examples
from tests.waiting import PATIENCE_S

# No test fails because the machine is busy.
settings.register_profile("hookcore", deadline=None, max_examples=examples(100))
settings.load_profile("hookcore")

MODULE_TABLES = (
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
)
OPTIMIZER_TABLES = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def _process_state() -> dict[str, Any]:
    """Return everything that a hook or a watcher can leave in the process."""
    tables = {name: dict(getattr(torch_modules, name)) for name in MODULE_TABLES}
    tables |= {name: dict(getattr(torch_optimizers, name)) for name in OPTIMIZER_TABLES}
    tables["engine"] = torch.autograd.Variable._execution_engine
    tables["loading"] = [vars(owner)[name] for owner, name in LOADER_METHODS]
    return {**tables, "_global_is_full_backward_hook": torch_modules._global_is_full_backward_hook}


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("hookcore")}


_imported = 0  # the number of modules when their objects were last exempted


def pytest_collection_finish() -> None:
    """Exempt all imported objects from garbage collection. There are many, and they live as long as the tests."""
    global _imported
    _imported = len(sys.modules)
    gc.collect()
    gc.freeze()
    gc.enable()  # conftest.py disabled it


def pytest_runtest_logfinish() -> None:
    """Exempt what a test has imported, such as torch's compiler: each collection would take 0.2 seconds."""
    if len(sys.modules) > _imported + 100:
        pytest_collection_finish()


@pytest.fixture(autouse=True)
def no_leaked_hooks() -> Iterator[None]:
    """Assert that torch's global hook tables, the threads, and the garbage collector are as before the test."""
    if has_compiled():
        torch._dynamo.reset()  # beside compiled code, no uncaptured call is held
    before, threads = _process_state(), _threads()
    yield
    after = _process_state()
    left = {name: after[name] for name in before if after[name] != before[name]}
    if left:
        close_all()  # so that no other test fails because of it
    assert not left, f"the test left hooks behind: {left}"
    started = _threads() - threads
    deadline = time.monotonic() + PATIENCE_S
    for thread in started:  # a thread that was asked to end may still be waiting for an answer
        thread.join(max(0.0, deadline - time.monotonic()))
    running = {thread for thread in started if thread.is_alive()}
    assert not running, f"the test left threads behind: {running}"
    collects = gc.isenabled()
    gc.enable()
    assert collects, "the test left Python's garbage collector disabled"


@pytest.fixture
def seed() -> int:
    """Give each test the same random numbers in every run."""
    number = 2026
    random.seed(number)
    np.random.seed(number)  # for tested code that uses the global generator
    torch.manual_seed(number)
    return number
