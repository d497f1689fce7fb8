"""The compiled CPU kernel as a file: loading it, replacing it, and keeping it consistent with the Python code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hookcore.observe import cpu, layout, portable
from hookcore.observe.arena import CODES, CpuArena
from hookcore.records import sketch

EXTENSION, _ = cpu.load_kernel()
SOURCE = Path(cpu.__file__).with_name("_kernel.c").read_text()


@pytest.mark.parametrize("dtype", list(CODES))
@pytest.mark.parametrize("limit", [None, 0, 1000])
@pytest.mark.parametrize("step", [1, 3])
def test_numpy_gives_the_results_of_the_extension(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, limit: int | None, step: int
) -> None:
    rows = []
    tensor = (torch.randn(40, 150, generator=torch.Generator().manual_seed(0)) * 30).to(dtype)[:, ::step]
    for kernel in (portable, EXTENSION):
        arena = CpuArena(4, limit)
        arena.controls[cpu.JITTER] = 12345
        for name in ("observe", "observe_other", "observe_strided", "pack"):
            monkeypatch.setattr(cpu, name, getattr(kernel, name))
        arena.observe(tensor, arena.row(1))
        arena.observe(tensor[:3], arena.row(1))
        rows.append(np.frombuffer(arena.pack(4), np.int64))
    by_numpy_alone, compiled = rows
    head = 2 + layout.CELLS
    assert by_numpy_alone[:2].tolist() == compiled[:2].tolist()
    np.testing.assert_allclose(by_numpy_alone[2:head].view(np.float64), compiled[2:head].view(np.float64), rtol=1e-9)
    np.testing.assert_array_equal(by_numpy_alone[head:], compiled[head:])


@pytest.mark.parametrize("seed", range(8))
def test_numpy_adds_up_sketches_as_the_extension_does(seed: int) -> None:
    draws, entries, rows = np.random.default_rng(seed), [], 6
    for _ in range(draws.integers(1, 9)):
        places = (
            np.sort(draws.choice(rows, draws.integers(0, rows + 1), replace=False)) if seed % 2 else np.arange(rows)
        )
        bins = [np.sort(draws.choice(sketch.BINS, draws.integers(0, 400), replace=False)) for _ in places]
        start = np.cumsum([0, *map(len, bins)]).astype(np.uint32)
        width = draws.choice([2, 4, 8])
        counts = draws.integers(1, 2 ** min(8 * width, 40), start[-1]).astype(f"u{width}")
        arrays = start, np.concatenate([*bins, []]).astype(np.uint16), counts
        entries.append((places.astype(np.int64).tobytes() if seed % 2 else None, *(each.tobytes() for each in arrays)))
        one, other = (kernel.split_counts(counts.tobytes(), int(width)) for kernel in (portable, EXTENSION))
        assert one == other
    by_numpy_alone, compiled = (kernel.sum_sketches(entries, rows) for kernel in (portable, EXTENSION))
    assert by_numpy_alone == compiled


def test_the_extension_and_python_have_the_same_layout_and_bins() -> None:
    listed = ast.literal_eval
    for name in ("ROW_BYTES", "FAR_EXPONENT"):
        assert int(re.search(rf"\b{name} = (\d+)", SOURCE)[1]) == getattr(layout, name)  # type: ignore[index]
    for name, value in {
        "BINS": sketch.BINS,
        "MAGNITUDES": sketch.MAGNITUDES,
        "POS_FIRST": sketch.POS_FIRST,
        "BIN_ZERO": sketch.ZERO,
        "BIN_NAN": sketch.NAN,
        "BIN_POS_INF": sketch.POS_INF,
        "BIN_NEG_INF": sketch.NEG_INF,
        "MIN_EXPONENT": sketch.MIN_EXPONENT,
    }.items():
        assert listed(re.search(rf"\b{name} = (-?\d+)", SOURCE)[1]) == value, name  # type: ignore[index]
    cells = re.search(r"enum \{ (FINITE, [^}]+) \}", SOURCE)[1].split(", ")  # type: ignore[index]
    assert [getattr(layout, name) for name in cells] == list(range(len(cells)))
    assert float.fromhex(re.search(r"HUGE_SIZE (\S+)", SOURCE)[1]) == layout.HUGE  # type: ignore[index]
    assert float.fromhex(re.search(r"TINY_SIZE (\S+)", SOURCE)[1]) == layout.TINY  # type: ignore[index]


def test_a_missing_or_outdated_extension_is_replaced_with_a_reason() -> None:
    module, reason = cpu.load_kernel("hookcore.observe._no_such_kernel")
    assert module is portable
    assert "_no_such_kernel" in reason
    module, reason = cpu.load_kernel("hookcore.observe.layout")
    assert module is portable
    assert "another version" in reason
    assert cpu.load_kernel()[1] == ""


@pytest.mark.parametrize(
    ("call", "arguments"),
    [("observe", (1, 2)), ("observe", ("a", 1, 1, 1)), ("observe_other", (0, 0, 99, 0, 0)), ("pack", (2**70, 0, 0))],
)
def test_wrong_arguments_raise_instead_of_reading_memory(call: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        getattr(EXTENSION, call)(*arguments)


def test_a_run_without_the_extension_has_the_same_numbers_and_says_so() -> None:
    code = """
import sys
sys.modules["hookcore.observe._kernel"] = None
import hookcore, torch
from torch import nn
from hookcore.commands.doctor import training
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
with hookcore.watch(model, server=None, budget=None) as watcher:
    model(torch.ones(3, 4)).sum().backward()
    watcher.step()
    watcher.flush()
    latest = watcher.store.latest("output")
    print(latest.values[latest.taps.index(next(tap for tap in latest.taps if tap.module == "1"))].tolist()[:2])
    print([event.message for event in watcher.store.events() if event.name == "slow-kernel"])
    print(training.examine_kernel())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    numbers, events, finding = done.stdout.splitlines()
    assert len(ast.literal_eval(numbers)) == 2
    assert "about ten times slower" in ast.literal_eval(events)[0]
    assert "note" in finding
    assert "pip install" in finding


def test_a_watched_training_imports_no_compiler_operator_counter_web_framework_or_arrow() -> None:
    """Loading torch's counter of FLOPs takes a third of a second, and loads triton."""
    code = """
import sys, torch
from torch import nn
import hookcore, hookcore.hooks.compiled
model = nn.Linear(4, 2)
with hookcore.watch(model, server=None) as watcher:
    model(torch.ones(1, 4)).sum().backward()
    watcher.step()
    watcher.flush()
    assert watcher.store.flows()[0].sizes
    unwanted = {"numba", "llvmlite", "pyarrow", "fastapi", "starlette", "uvicorn", "plotly", "jinja2", "torch._dynamo"}
    print(sorted((unwanted | {"triton", "torch.utils.flop_counter"}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kernel", [portable, EXTENSION])
@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_finite_values_are_told_from_others_wherever_one_is(kernel: ModuleType, size: int) -> None:
    values = (2 * torch.rand(size) - 1) * 3e38  # below the largest float32
    values[::3] = 1e-45  # a denormal number
    assert kernel.is_finite(values.data_ptr(), size)
    for place in {0, size // 2, size - 1} if size else ():
        for odd in (float("nan"), float("inf"), float("-inf")):
            other = values.clone()
            other[place] = odd
            assert not kernel.is_finite(other.data_ptr(), size)


class Witness:
    """Stands for a tensor; a function is its gradient."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read

    @property
    def grad(self) -> None:
        self._read()


def facts_of(*witnesses: Witness, modes: Callable[[], int] = lambda: 0) -> tuple[Any, ...]:
    before = (), None, modes, lambda: 0, lambda: -1, None, (), witnesses, (), (), (), ()
    return (*before, torch.Tensor, torch.float32, None, None, None, (), (), None, None)


FAR = float("inf")


def test_a_track_does_not_go_by_facts_that_are_dropped_while_it_reads_gradients() -> None:
    """A module may die in any thread and at any time, since any object that is made may run the collector."""
    track, read = EXTENSION.Track(), list[str]()
    track.learn(facts_of(Witness(track.drop), Witness(lambda: read.append("second"))))
    track.enter(5, FAR, FAR, 0, 0, 1, 0, 0, 1, 0, ())
    assert read == ["second"]
    assert (track.runs, track.facts) == (0, None)


def test_a_track_learns_nothing_while_one_of_its_calls_goes_by_facts() -> None:
    track = EXTENSION.Track()
    track.learn(facts_of(modes=lambda: track.learn(facts_of()) or 0))
    track.enter(5, FAR, FAR, 0, 1, 0, 0, 0, 1, 0, ())
    assert track.runs
    track.backward_begins(True, (torch.ones(()),), (torch.ones(()),))
    assert (track.runs, track.facts) == (0, None)
    track.learn(facts_of())
    assert track.facts is not None
