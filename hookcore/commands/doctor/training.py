"""Checks with torch: devices, the kernel, the compiler, and what would be captured of a model."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.commands.doctor.machine import Check
from hookcore.config import Settings
from hookcore.errors import ArgumentError
from hookcore.hooks.loading import UNSEEN
from hookcore.observe import cpu
from hookcore.records import ROOT, Coverage
from hookcore.watcher import Watcher, watch

SHOWN: Final = 12  # modules to name for each reason
_UNSEEN: Final = "not called"


def examine() -> list[Check]:
    """Check the devices, the kernel, the compiler, and whether data loading can be timed."""
    return [*_devices(), _kernel(), _compiler(), *([Check("note", "data loading", UNSEEN)] if UNSEEN else [])]


def _devices() -> Iterator[Check]:
    yield Check("ok", "processor", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        built = "torch was built without CUDA" if torch.version.cuda is None else "no CUDA device was found"
        yield Check("ok", "device", f"CPU only: {built}")
        return
    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        yield Check("ok", "device", f"cuda:{number} {found.name}, {found.total_memory / 2**30:.0f} GiB")
    if not _has_triton():
        words = "not installed, so hookcore measures tensors on the GPU with torch operators, which is slower"
        yield Check("note", "triton", f"{words}; to install it, run `pip install triton`")


def _has_triton() -> bool:
    try:
        import_module("triton")
    except (ImportError, OSError):
        return False
    return True


def _kernel() -> Check:
    """Measure a tensor with known values."""
    model = nn.Identity()
    with Watcher(model, Settings.of({}, server=None, budget=None, name="doctor")) as watcher:
        model(torch.tensor([1.0, 2.0, 3.0, float("nan")], requires_grad=True)).nansum().backward()
        watcher.step()
        watcher.flush()
        latest = watcher.store.latest("output")
        found = dict(zip(latest.stats, latest.values[0].tolist(), strict=True)) if len(latest.values) else {}
        if watcher.error_count:
            return Check("wrong", "kernel", f"failed: {watcher.errors[0].message}")
    if (found.get("mean"), found.get("nan"), found.get("max")) != (2.0, 1.0, 3.0):
        return Check("wrong", "kernel", f"wrong result: [1, 2, 3, NaN] gave {found}; please report this")
    if cpu.FALLBACK_REASON:
        return Check("note", "kernel", cpu.SLOW_KERNEL)
    return Check("ok", "kernel", f"correct result for known values; compiled for {cpu.INSTRUCTIONS}")


def _compiler() -> Check:
    """Compile a small function."""
    values = torch.ones(4)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ran = torch.compile(lambda x: x.sin() + 1)(values)
    except Exception as error:
        words = " ".join(str(error).split())[:160]
        return Check("note", "torch.compile", f"doesn't work here, so compiled models won't either: {words}")
    if not torch.allclose(ran, values.sin() + 1):
        return Check("wrong", "torch.compile", "computes wrong results on this machine")
    return Check("ok", "torch.compile", "works; the outputs of compiled regions are captured (see `compiled`)")


def examine_model(name: str) -> list[Check]:
    """Report what `hookcore.watch` would capture of the model that `module:callable` returns."""
    model, inputs = _model_of(name)
    with watch(model, server=None, budget=None, keep=None, bridge=None, notify=None) as watcher:
        if inputs is not None:
            _run_once(model, inputs, watcher)
        return _describe(watcher.coverage(), ran=inputs is not None)


def _model_of(name: str) -> tuple[nn.Module, Any]:
    place, _, called = name.partition(":")
    if not place or not called:
        raise ArgumentError(
            f"--model {name!r} is invalid: give a module and a callable in it, for example train:make_model"
        )
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(import_module(place), called)()
    except Exception as error:
        raise ArgumentError(
            f"--model {name!r} raised {type(error).__name__}: {error}; the callable must be importable from "
            "here and need no arguments"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"--model {name!r} returned a {type(model).__name__}: it must return a torch.nn.Module, or a module and "
            "its inputs, as in `return model, torch.zeros(1, 3, 32, 32)`"
        )
    return model, inputs


def _run_once(model: nn.Module, inputs: Any, watcher: Watcher) -> None:
    try:
        if isinstance(inputs, Mapping):
            output = model(**inputs)
        else:
            output = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
        ends = [tensor for tensor in _tensors(output) if tensor.requires_grad]
        if ends:
            torch.autograd.backward([tensor.sum() for tensor in ends])
    except Exception as error:
        raise ArgumentError(f"the model failed on its inputs: {type(error).__name__}: {error}") from error
    watcher.step()
    watcher.flush()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _describe(coverage: list[Coverage], ran: bool) -> list[Check]:
    seen = [each for each in coverage if each.captured or (not ran and each.reason.startswith(_UNSEEN))]
    how = "were captured in one step" if ran else "would be captured when the model runs"
    findings = [Check("ok", "model", f"{len(seen)} of {len(coverage)} modules {how}")]
    if not ran:
        words = "not run; to see more, let the callable return inputs, too, as in `return model, inputs`"
        findings.append(Check("ok", "model", words))
    others: dict[str, list[str]] = {}
    for each in coverage:
        if each not in seen or (ran and each.reason):
            others.setdefault(each.reason, []).append(each.path or ROOT)
    for reason, paths in others.items():
        more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
        findings.append(Check("note", "not captured", f"{', '.join(paths[:SHOWN])}{more}: {reason}"))
    return findings
