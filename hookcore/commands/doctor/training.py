"""Checks with torch: devices, the kernel, the compiler, what would be captured of a model, and what that would cost."""

from __future__ import annotations

import gc
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookcore.commands.doctor import Check
from hookcore.config import Settings
from hookcore.delivery.delivery import new_run
from hookcore.delivery.sinks import Sink
from hookcore.errors import ArgumentError
from hookcore.hooks import on_forward, on_gradient
from hookcore.hooks.loading import UNSEEN
from hookcore.observe import cpu
from hookcore.recorder import Recorder
from hookcore.recorder.clock.cadence import strides_within
from hookcore.records import ROOT, Coverage, Frame, HookRecord, ModuleRecord, Snapshot, wire
from hookcore.records.vocabulary import counted
from hookcore.records.wire import RunInfo
from hookcore.watcher import Watcher, detached, watch

SHOWN: Final = 12  # modules to name for each reason
_UNSEEN: Final = "not called"


def examine() -> list[Check]:
    """Check the devices, the kernel, the compiler, and whether data loading can be timed."""
    return [*_devices(), examine_kernel(), _compiler(), *([Check("note", "data loading", UNSEEN)] if UNSEEN else [])]


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


def examine_kernel() -> Check:
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
            _run_once(model, inputs)
            watcher.step()
            watcher.flush()
        return _describe(watcher.coverage(), ran=inputs is not None)


def made_by(name: str, flag: str, **given: Any) -> Any:
    """Return what `module:callable`, as given for this flag, returns for these keywords."""
    place, _, called = name.partition(":")
    if not place or not called:
        raise ArgumentError(
            f"{flag} {name!r} is invalid: give a module and a callable in it, for example train:make_model"
        )
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(import_module(place), called)(**given)
    except Exception as error:
        needs = f"take {', '.join(given)} by keyword" if given else "need no arguments"
        raise ArgumentError(
            f"{flag} {name!r} raised {type(error).__name__}: {error}; the callable must be importable from "
            f"here and {needs}"
        ) from error
    finally:
        sys.path.remove(os.getcwd())


def _model_of(name: str, flag: str = "--model") -> tuple[nn.Module, Any]:
    made = made_by(name, flag)
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"{flag} {name!r} returned a {type(model).__name__}: it must return a torch.nn.Module, or a module and "
            "its inputs, as in `return model, torch.zeros(1, 3, 32, 32)`"
        )
    return model, inputs


def _run_once(model: nn.Module, inputs: Any) -> None:
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


# What watching a model costs on this machine, part by part. The ways take turns, and what one adds is its difference
# from another one of the same round, which cancels most of what other work on the machine does.

TURN_S: Final = 0.08
MIN_STEPS: Final = 2  # of a turn
LEAST_ROUNDS: Final = 5
WARM_S: Final = 2.0  # for each way, whose first steps are slow
WARM_STEPS: Final = 80  # after which all is known of an optimizer
NEVER: Final = 1 << 20  # steps between two captured ones
_QUIET: Final[dict[str, Any]] = {"server": None, "keep": None, "bridge": None, "notify": None}
# What a row says, the two ways whose difference it is, and whether it is the time of the training's thread.
COST_PARTS: Final = (
    ("clock: counts steps, also while paused", "paused", "untouched", True),
    ("loss, look for NaN, batch kept for a saved step", "followed", "paused", True),
    ("capturing: hooks, and all stats but histograms", "moments", "followed", True),
    ("histograms", "captured", "moments", True),
    ("hookcore's thread, for an uncaptured step", "followed", "untouched", False),
    ("the same, for a captured step in this process", "captured", "untouched", False),
    ("the same, for a captured step for a dashboard", "packed", "untouched", False),
    ("for comparison: hooks that do nothing", "hooks", "untouched", True),
)
Pair = tuple[float, float]  # seconds of a step: of the training's thread, and of all others


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to train. Between its turns, nothing of it is on the model."""

    on: Callable[[], object] = lambda: None
    off: Callable[[], object] = lambda: None
    flush: Callable[[], object] = lambda: None
    close: Callable[[], object] = lambda: None


class _Packs(Sink):
    """Packs frames as for a dashboard, and keeps none."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info

    def send(self, record: Frame | Snapshot) -> None:
        if isinstance(record, Frame):
            wire.encode(wire.Batch(run=self._info, items=(wire.frame_item(0, record),)))

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        return

    def close(self) -> None:
        return


def _plain_hooks(model: nn.Module) -> _Way:
    leaves = [module for module in model.modules() if next(module.children(), None) is None]
    handles = list[Any]()

    def on() -> None:
        handles.extend(on_forward(leaf, _hook_output) for leaf in leaves)

    def off() -> None:
        while handles:
            handles.pop().remove()

    return _Way(on, off)


def _hook_output(module: nn.Module, inputs: Any, output: Any) -> None:
    if isinstance(output, Tensor) and output.requires_grad:
        on_gradient(output, _do_nothing)


def _do_nothing(gradient: Tensor) -> None:
    pass


def _watched(model: nn.Module, paused: bool = False, **given: Any) -> _Way:
    settings = replace(Settings.of({}, **_QUIET, budget=None), **given)
    watcher, aside = Watcher(model, settings), ExitStack()
    if paused:
        watcher.pause()
    return _Way(aside.close, lambda: aside.enter_context(detached()), watcher.flush, watcher.close)


def _packed(model: nn.Module) -> _Way:
    settings = Settings.of({}, **_QUIET, budget=None)
    recorder = Recorder(settings, _Packs(new_run(settings, {})))
    recorder.capture.models.watch(model)
    detach = recorder.capture.placement.detach
    return _Way(recorder.attach, detach, lambda: recorder.worker.flush(10.0), recorder.close)


def _ways_of(model: nn.Module) -> Iterator[tuple[str, _Way]]:
    yield "untouched", _Way()
    yield "hooks", _plain_hooks(model)
    yield "paused", _watched(model, paused=True)
    yield "followed", _watched(model, every=NEVER)
    yield "moments", _watched(model, sketch_values=0)
    yield "captured", _watched(model)
    yield "packed", _packed(model)


def _take_turn(way: _Way, step: Callable[[], None], steps: int) -> Pair:
    way.on()
    step()
    gc.collect()
    gc.disable()
    try:
        everything, own = time.process_time(), time.thread_time()
        for _ in range(steps):
            step()
        own = time.thread_time() - own
        way.flush()
        others = time.process_time() - everything - own
    finally:
        gc.enable()
        way.off()
    return own / steps, others / steps


def measure_cost(name: str, seconds: float = 30.0) -> str:
    """Return a table of what each part of watching adds to a step of the model that `module:callable` returns."""
    model, inputs = _model_of(name, "--cost")
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if inputs is None or not weights:
        lacks = "no inputs" if inputs is None else "a model without weights that train"
        raise ArgumentError(
            f"--cost {name!r} returned {lacks}: its steps are timed, so it must return a model that can be trained and "
            "its inputs, as in `return model, torch.zeros(1, 3, 32, 32)`"
        )
    optimizer = torch.optim.SGD(weights, 0.0)  # which changes no weight

    def step() -> None:
        _run_once(model, inputs)
        optimizer.step()
        optimizer.zero_grad()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others would wait for each other, which looks like work
    ways = dict[str, _Way]()
    try:
        step()
        for called, way in _ways_of(model):
            ways[called] = way
            way.off()
        return _table_of(name, _measure(ways, step, seconds), len(weights))
    finally:
        for way in ways.values():
            way.close()
        torch.set_num_threads(threads)


def _measure(ways: Mapping[str, _Way], step: Callable[[], None], seconds: float) -> dict[str, NDArray[np.float64]]:
    """Return for each way the seconds of a step in each round [round, whose]."""
    step_s = min(_take_turn(ways["untouched"], step, 1)[0] for _ in range(3))
    steps = max(MIN_STEPS, math.ceil(TURN_S / step_s))
    for way in ways.values():
        _take_turn(way, step, min(WARM_STEPS, math.ceil(WARM_S / step_s)))
    rounds, began = list[list[Pair]](), time.perf_counter()
    while len(rounds) < LEAST_ROUNDS or time.perf_counter() - began < seconds:
        rounds.append([_take_turn(way, step, steps) for way in ways.values()])
    return dict(zip(ways, np.moveaxis(np.array(rounds), 1, 0), strict=True))


def _table_of(name: str, found: Mapping[str, NDArray[np.float64]], weights: int) -> str:
    untouched = float(np.median(found["untouched"][:, 0]))

    def added(way: str, base: str, whose: int) -> NDArray[np.float64]:
        return (found[way][:, whose] - found[base][:, whose]) / untouched

    lines = [
        f"Cost of watching {name} here. A step (forward, backward, SGD of {counted(weights, 'tensor')}) takes "
        f"{untouched * 1e3:.3g} ms of processor time, with one thread. The figures are medians of turns; one that "
        "is smaller than the distance between its quartiles is noise.",
        "",
        f"{'':48} {'us per step':>11} {'quartiles':>18} {'of a step':>10}",
    ]
    shares = list[float]()
    for words, way, base, is_own in COST_PARTS:
        parts = np.quantile(added(way, base, 0 if is_own else 1), [0.25, 0.5, 0.75])
        low, median, high = parts * untouched * 1e6
        ends = f"[{low:.0f} to {high:.0f}]"
        shares.append(round(float(parts[1]), 3))  # so that the totals are the sums of what is shown
        lines.append(f"{words:48} {median:11.0f} {ends:>18} {shares[-1]:10.1%}")
    clock, kept, moments, histograms, followed_thread, captured_thread, *_ = shares
    lean_thread = float(np.median(added("moments", "untouched", 1)))
    followed, lean, captured = (
        max(0.0, clock + kept + rest)
        for rest in (followed_thread, moments + lean_thread, moments + histograms + captured_thread)
    )
    budget = Settings.of({}).budget
    adds = max(0.0, min(lean, captured) - followed), max(0.0, captured - max(lean, followed)), followed
    stride, thinning = strides_within(budget, *adds) if budget else (1, 1)
    often = _every(stride) + (f" ({_every(stride * thinning)} with histograms)" if thinning > 1 else "")
    more = f"; following the steps alone takes more than budget={budget:g}" if budget and followed > budget else ""
    words = f". With budget={budget:g}, {often} is captured once the allowance is used{more}" if budget else ""
    lines += [
        "",
        f"A captured step takes {captured:.1%} more processor time (lines 1 to 4, and 6), any other step "
        f"{followed:.1%} (1, 2, and 5){words}.",
    ]
    return "\n".join(lines)


def _every(stride: int) -> str:
    return "every step" if stride == 1 else f"every {stride}th step" if stride > 2 else "every 2nd step"
