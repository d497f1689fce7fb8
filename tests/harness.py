# mypy: disable-error-code="no-untyped-call"
"""Runs of zoo cases, watched or not, with everything visible reduced to values that can be compared exactly."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import io
import math
import pickle
import random
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

import hookcore
from hookcore.records import STATS, Tap
from tests.zoo import Case, Trial

STEPS: Final = 3
MEMORY: Final = "16MB"

Attach = Callable[[Trial], AbstractContextManager[Any]]
Key = tuple[str, str, str, int]


# --- Digests --------------------------------------------------------------------------------------------------------


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return the values of any kind of tensor as bytes."""
    tensor = tensor.detach()
    head = f"{tensor.dtype}{tuple(tensor.shape) if not tensor.is_nested else 'nested'}{tensor.layout}".encode()
    if tensor.is_meta:
        return head
    if tensor.is_nested:
        return head + b"".join(tensor_bytes(part) for part in tensor.unbind())
    if tensor.layout is not torch.strided:
        return head + tensor_bytes(tensor.to_dense())
    if tensor.is_quantized:
        return head + tensor_bytes(tensor.int_repr())
    plain = tensor.as_subclass(Tensor).resolve_conj().resolve_neg().contiguous().reshape(-1)
    return head + bytes(plain.view(torch.uint8).cpu().numpy().tobytes())


def digest(value: Any) -> str:
    """Return a digest of any result of a step, exact to the bit."""
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()[:16]


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        state.update(tensor_bytes(value))
    elif isinstance(value, dict):
        for key, item in value.items():
            state.update(repr(key).encode())
            _feed(state, item)
    elif isinstance(value, (list, tuple)):
        state.update(str(len(value)).encode())
        for item in value:
            _feed(state, item)
    elif isinstance(value, np.ndarray):
        state.update(value.tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed(state, [getattr(value, field.name) for field in dataclasses.fields(value)])
    elif value is None or isinstance(value, (int, float, str, bytes, bool)):
        state.update(repr(value).encode())
    else:
        state.update(type(value).__name__.encode())


def random_state() -> str:
    """Return the states of the three random number generators."""
    return digest([torch.get_rng_state(), np.random.get_state(), repr(random.getstate())])


def seed_all(seed: int = 0) -> None:
    """Seed every generator."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


# --- Runs -----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Everything about a run that is visible from outside. Equal runs have equal outcomes."""

    steps: list[dict[str, str]]
    state_keys: list[str]
    copies: dict[str, str]
    attributes: dict[str, list[str]]
    hooks: list[str]
    hooks_afterwards: list[str] = dataclasses.field(default_factory=list)
    warnings: set[str] = dataclasses.field(default_factory=set, compare=False)


def run_case(case: Case, attach: Attach | None = None, steps: int = STEPS) -> Outcome:
    """Train a case for a few steps inside the context manager that `attach` returns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seed_all()
        trial = case.build()
        with attach(trial) if attach else contextlib.nullcontext():
            outcome = observe_trial(trial, steps)
        outcome.hooks_afterwards = hooks_on(trial)
    outcome.warnings = {f"{warning.category.__name__}: {warning.message}" for warning in caught}
    return outcome


def observe_trial(trial: Trial, steps: int) -> Outcome:
    """Run the steps, and record everything after each of them."""
    models = (trial.model, *trial.others)
    seen = [_take_step(trial, models, number) for number in range(steps)]
    state_keys = [key for model in models for key in model.state_dict()]
    copies = {name: _try(copier, trial.model) for name, copier in COPIERS.items()}
    attributes = {
        f"{index}:{path}": sorted(map(str, module.__dict__))
        for index, model in enumerate(models)
        for path, module in model.named_modules()
    }
    return Outcome(seen, state_keys, copies, attributes, hooks_on(trial))


def _take_step(trial: Trial, models: tuple[nn.Module, ...], number: int) -> dict[str, str]:
    result = trial.step(number)
    named = [pair for model in models for pair in model.named_parameters()]
    return {
        "result": digest(result),
        "gradients": digest({name: parameter.grad for name, parameter in named}),
        "parameters": digest(_initialised(dict(named))),
        "buffers": digest(_initialised({name: b for model in models for name, b in model.named_buffers()})),
        "random": random_state(),
    }


def _initialised(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: None if torch.nn.parameter.is_lazy(tensor) else tensor for name, tensor in tensors.items()}


def hooks_on(trial: Trial) -> list[str]:
    """Count the hooks of each kind on the modules of a trial."""
    modules = [named for model in (trial.model, *trial.others) for named in model.named_modules()]
    tables = [
        (f"{path}{name}", table)
        for path, module in modules
        for name, table in vars(module).items()
        if name.endswith("_hooks")
    ]
    return [f"{name}: {len(table)}" for name, table in tables if table]


def _by_pickle(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model)).state_dict()


def _by_save(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False).state_dict(), b"hookcore" in file.getvalue()


def _by_deepcopy(model: nn.Module) -> Any:
    twin = copy.deepcopy(model)
    return twin.state_dict(), [sorted(map(str, part.__dict__)) for part in twin.modules()]


COPIERS: Final[dict[str, Callable[[nn.Module], Any]]] = {
    "pickle": _by_pickle,
    "torch.save": _by_save,
    "deepcopy": _by_deepcopy,
}


def _try(copier: Callable[[nn.Module], Any], model: nn.Module) -> str:
    """Return the contents of a copy, or the error with which the model refuses to be copied."""
    try:
        return digest(copier(model))
    except Exception as error:
        return type(error).__name__


# --- Leftovers ------------------------------------------------------------------------------------------------------


def process_state() -> dict[str, list[object]]:
    """Return the state of every place in the process where a hook or a thread could remain."""
    modules = (torch_module, torch_optimizer)
    tables = {name: value for module in modules for name, value in vars(module).items() if name.startswith("_global_")}
    state: dict[str, list[object]] = {}
    for name, value in tables.items():
        if isinstance(value, (dict, set)):
            state[name] = [*sorted(map(str, value))]
    state["backward hooks are full ones"] = [str(torch_module._global_is_full_backward_hook)]
    # The feeder threads of a DataLoader belong to the user, and end some time after the loader is gone.
    threads = [thread.name for thread in threading.enumerate() if thread.name != "QueueFeederThread"]
    state["threads"] = [*sorted(threads)]
    state["functions"] = [
        getattr(torch_module, "_has_any_global_hook", None),
        nn.Module.__call__,
        nn.Module.__setattr__,
    ]
    return state


# --- What the watcher saw -------------------------------------------------------------------------------------------


def watch(*arguments: Any, **settings: Any) -> hookcore.Watcher:
    """Return a watcher that, by default, captures every step and uses little memory."""
    return hookcore.watch(*arguments, **{"budget": None, "memory": MEMORY, **settings})


def key_of(tap: Tap) -> Key:
    """Return the key under which the twin records a tap."""
    return tap.module, tap.kind, tap.index, tap.call


def read_step(watcher: hookcore.Watcher, step: int, phase: str = "train") -> dict[Key, dict[str, float]]:
    """Return the stats of every tap in the store for this step."""
    taps = watcher.store.taps()
    rows = {stat: watcher.store.rows(taps.numbers, stat, step, step) for stat in STATS}
    captured = rows["count"].present > 0
    seen: dict[Key, dict[str, float]] = {}
    for place, tap in enumerate(taps.taps):
        if tap.phase == phase and captured[:, place].any():
            row = captured[:, place].argmax()
            seen[key_of(tap)] = {stat: float(of_stat.mean[row, place]) for stat, of_stat in rows.items()}
    return seen


def reference_stats(parts: list[Tensor]) -> dict[str, float]:
    """Return the stats of all values of some tensors, computed by NumPy in float64."""
    values = np.concatenate([_float64(part) for part in parts])
    finite = values[np.isfinite(values)]
    stats = {
        "count": float(values.size),
        "nan": float(np.isnan(values).sum()),
        "inf": float(np.isinf(values).sum()),
        "zero": float((values == 0).sum()),
        "parts": float(len(parts)),
    }
    moments: dict[str, Callable[[Any], Any]] = {
        "mean": np.mean,
        "std": np.std,
        "min": np.min,
        "max": np.max,
        "rms": lambda x: np.sqrt(np.mean(x * x)),
        "norm": np.linalg.norm,
    }
    return stats | {name: float(f(finite)) if finite.size else float("nan") for name, f in moments.items()}


def _float64(tensor: Tensor) -> Any:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = (tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor).values()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = tensor.resolve_conj().to(torch.complex128).abs()
    return tensor.resolve_neg().to(torch.float64).reshape(-1).cpu().numpy()


def assert_stats(seen: dict[str, float], parts: list[Tensor], where: object = "", rel: float = 2e-6) -> None:
    """Compare stats with the float64 computation of the same tensors, or of ones that torch has rounded differently."""
    expected = reference_stats(parts)
    for name in ("count", "nan", "inf", "zero", "parts"):
        assert seen[name] == expected[name], (where, name)
    scale = expected["rms"] if math.isfinite(expected["rms"]) else 0.0
    for name in ("mean", "std", "min", "max", "rms", "norm"):
        close = pytest.approx(expected[name], rel=rel, abs=rel * scale + 1e-30, nan_ok=True)
        assert seen[name] == close, (where, name, seen[name], expected[name], scale)
