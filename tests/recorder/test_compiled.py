from __future__ import annotations

import copy
import functools
import io
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore import hooks
from hookcore.hooks import internals
from hookcore.hooks.compiled import (
    QuietHooks,
    StepAside,
    clean_path,
    compiled_regions,
    forget_graphs,
    guard_functions,
    is_dynamo_graph,
    is_inside,
    is_region,
    unwrap,
)
from hookcore.hooks.inside import Inside
from hookcore.records import Tap
from tests.inside import class_of, module_of

pytestmark = [  # warnings of torch, with or without hookcore
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
needs_inside = pytest.mark.skipif(not internals.SEES_INSIDE, reason="this torch can't trace the hooks into its graphs")
needs_check = pytest.mark.skipif(internals.global_hook_check() is None, reason="this torch never warns of global hooks")
WAYS = ("wrapped", "in place", "full graph", "part", "part in place")
BACKENDS = ("eager", "aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.all]))


def on(backend: str, *values: str) -> Any:
    """A case of a backend. Inductor compiles for minutes, so only the smallest model has it for each change."""
    if backend != "inductor":
        return pytest.param(*values, backend)
    marks = [pytest.mark.slow] if "mlp" in values else [pytest.mark.slow, pytest.mark.all]
    return pytest.param(*values, backend, marks=marks)


# Compiling takes nearly all the time, so no case repeats what another one proves: dynamo traces the same graphs for all
# backends, and the way of compiling only decides which hooks run around them.
EACH = [*(on("eager", way) for way in WAYS[:-1]), on("aot_eager", WAYS[-1])]  # each way
PAIRS = [*EACH, on("inductor", "wrapped")]  # each way, and each backend
CASES = [  # each way, and each model with each backend
    *(on(backend, "gpt", way) for way, backend in (pair.values for pair in PAIRS)),
    *(
        on(backend, name, way)
        for name in ("mlp", "convolutions")
        for backend, way in (("eager", "part in place"), ("aot_eager", "wrapped"), ("inductor", "part in place"))
    ),
]
Seen = tuple[int, str, str, int]  # key, "output" or "gradient", index, call


# --- A tiny world ---------------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    """An in-place activation, and one layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(self.act(self.first(x)))))


class Convolutions(nn.Module):
    """Batch statistics and an in-place addition."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        out = self.second(hidden)
        out += hidden
        return out.mean((2, 3))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = Attention()
        self.wide = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.wide(nn.functional.gelu(x + self.attention(self.norm(x))))


class Gpt(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return x


class Around(nn.Module):
    """An uncompiled model with a part that may be compiled."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core
        self.scale = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.core(x) * 1.5)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (Mlp, lambda: torch.randn(4, 6)),
    "convolutions": (Convolutions, lambda: torch.randn(2, 3, 5, 5)),
    "gpt": (Gpt, lambda: torch.randint(0, 16, (2, 5))),
}


def make(name: str, way: str = "wrapped") -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model, batch = MODELS[name]
    core = model()
    return (Around(core) if way.startswith("part") else core), [batch() for _ in range(5)]


def compile_model(model: nn.Module, way: str, backend: Any) -> nn.Module:
    if way == "wrapped":
        return torch.compile(model, backend=backend)
    if way == "full graph":
        return torch.compile(model, backend=backend, fullgraph=True)
    if way == "in place":
        model.compile(backend=backend)
    elif way == "part":
        model.core = torch.compile(model.core, backend=backend)
    else:
        model.core.compile(backend=backend)
    return model


def train(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """Return the losses and the final weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses + [parameter.detach().clone() for parameter in model.parameters()]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def close(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(left, right, strict=True))


def counted() -> tuple[int, int, int]:
    """Return the number of graphs, frames, and breaks since the test began."""
    counters = torch._dynamo.utils.counters
    breaks = sum(counters["graph_break"].values())
    return counters["stats"]["unique_graphs"], counters["frames"]["total"], breaks


def begin_afresh() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture(autouse=True)
def dynamo() -> None:
    begin_afresh()


def assert_as_counted(alone: tuple[int, int, int]) -> None:
    """Check that there were the same graphs and breaks as unwatched, in the same number of frames.

    Unwatched, the process may have seen more frames, from code that other tests left running.
    """
    graphs, frames, breaks = counted()
    assert (graphs, breaks) == (alone[0], alone[2])
    assert frames <= alone[1]


@functools.cache
def trained_alone(name: str, way: str, backend: str) -> tuple[list[Tensor], tuple[int, int, int]]:
    """Train the compiled model unwatched."""
    model, batches = make(name, way)
    result = train(compile_model(model, way, backend), batches)
    count = counted()
    begin_afresh()
    return result, count


class Recording:
    """An observer that keeps copies, numbers the calls of each key, and can be switched off."""

    def __init__(self) -> None:
        self.tensors: dict[Seen, Tensor] = {}
        self.times: Counter[Seen] = Counter()
        self.calls: Counter[tuple[int, str]] = Counter()
        self.again: Counter[tuple[int, str]] = Counter()
        self.listens = True
        self.grad_modes: set[bool] = set()

    def saw_output(self, key: int, index: str, output: Tensor) -> int:
        if not self.listens:
            return -1
        self.grad_modes.add(torch.is_grad_enabled())
        if torch._C._current_graph_task_id() != -1:
            self.again[key, index] += 1
            return self.again[key, index] - 1
        call = self.calls[key, index]
        self.calls[key, index] += 1
        self._keep((key, "output", index, call), output)
        return call

    def saw_gradient(self, key: int, index: str, ticket: int, gradient: Tensor) -> None:
        self._keep((key, "gradient", index, ticket), gradient)

    def _keep(self, seen: Seen, tensor: Tensor) -> None:
        self.tensors[seen] = tensor.detach().clone()
        self.times[seen] += 1

    def keys_seen(self) -> set[int]:
        return {seen[0] for seen in self.times}


def watch_inside(model: nn.Module) -> tuple[Inside, Recording, dict[int, str]]:
    if not internals.SEES_INSIDE:  # then, `watch` doesn't use `Inside` either
        pytest.skip("this torch can't trace the hooks into its graphs")
    recording = Recording()
    inside = Inside(recording)
    named = list(enumerate(model.named_modules()))
    inside.attach((key, module) for key, (_, module) in named)
    return inside, recording, {key: path for key, (path, _) in named}


def truth(model: nn.Module, batch: Tensor, loss_of: Callable[[Tensor], Tensor]) -> dict[Seen, Tensor]:
    """Return every module's outputs and their gradients, computed by autograd without compiling."""
    outputs: dict[Seen, Tensor] = {}
    values: dict[Seen, Tensor] = {}
    calls: Counter[int] = Counter()
    handles = []
    for key, module in enumerate(model.modules()):

        def keep(_module: nn.Module, _args: Any, output: Tensor, key: int = key) -> Tensor:
            seen = (key, "output", "", calls[key])
            calls[key] += 1
            outputs[seen], values[seen] = output, output.detach().clone()
            return output.clone()  # so that an in-place operation doesn't change our copy

        handles.append(module.register_forward_hook(keep))
    loss = loss_of(model(batch))
    gradients = torch.autograd.grad(loss, list(outputs.values()), allow_unused=True)
    for seen, gradient in zip(outputs, gradients, strict=True):
        if gradient is not None:
            values[(seen[0], "gradient", *seen[2:])] = gradient
    for handle in handles:
        handle.remove()
    return values


def assert_same_tensors(seen: dict[Seen, Tensor], expected: dict[Seen, Tensor]) -> None:
    assert seen.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(seen[key], tensor, rtol=1e-3, atol=1e-5, msg=str(key))


# --- Boundary: hookcore.watch next to compiled code -----------------------------------------------------------------


def watch(model: nn.Module, **settings: Any) -> hookcore.Watcher:
    return hookcore.watch(model, budget=None, server=None, **settings)


@pytest.mark.rota("name")
@pytest.mark.parametrize(("name", "way", "backend"), CASES)
def test_a_watched_compiled_model_trains_to_the_same_bits_with_the_same_graphs(
    name: str, way: str, backend: str
) -> None:
    alone, count = trained_alone(name, way, backend)
    model, batches = make(name, way)
    with watch(model) as watcher:
        result = train(compile_model(model, way, backend), batches)
        assert_as_counted(count)
        assert watcher.error_count == 0
    assert equal(result, alone)


@pytest.mark.rota
@pytest.mark.parametrize(("way", "backend"), PAIRS)
def test_the_boundary_of_a_region_is_its_output_and_its_gradient(way: str, backend: str) -> None:
    model, batches = make("gpt", way)
    expected = truth(model, batches[0], lambda output: output.pow(2).mean())
    compiled = compile_model(model, way, backend)
    with watch(compiled) as watcher:
        train(compiled, batches[:1])
        assert watcher.flush()
    paths = [path for path, _ in make("gpt", way)[0].named_modules()]
    region = "core" if way.startswith("part") else ""
    assert_boundary(watcher, region, expected, paths.index(region))


def assert_boundary(watcher: hookcore.Watcher, region: str, expected: dict[Seen, Tensor], key: int) -> None:
    for kind, what in (("output", "output"), ("output_grad", "gradient")):
        mean, norm = stats_of(watcher, region, kind)
        tensor = expected[key, what, "", 0].double()
        assert mean == pytest.approx(float(tensor.mean()), rel=1e-3, abs=1e-7)
        assert norm == pytest.approx(float(tensor.norm()), rel=1e-3)


def stats_of(watcher: hookcore.Watcher, path: str, kind: str) -> tuple[float, float]:
    latest = watcher.store.latest()
    rows = [row for row, tap in enumerate(latest.taps) if (tap.module, tap.kind) == (path, kind)]
    assert len(rows) == 1  # a single boundary, not one per wrapper that torch puts around it
    values = dict(zip(latest.stats, latest.values[rows[0]], strict=True))
    return float(values["mean"]), float(values["norm"])


@pytest.mark.rota
@pytest.mark.parametrize(("way", "backend"), EACH)
def test_pausing_resuming_and_closing_recompile_nothing(way: str, backend: str) -> None:
    alone, count = trained_alone("gpt", way, backend)
    model, batches = make("gpt", way)
    compiled = compile_model(model, way, backend)
    watcher = watch(model)
    result = train(compiled, batches[:1])
    watcher.pause()
    result += train(compiled, batches[1:2])
    watcher.resume()
    result += train(compiled, batches[2:3])
    with hookcore.detached():
        result += train(compiled, batches[3:4])
    watcher.close()
    result += train(compiled, batches[4:])
    assert_as_counted(count)
    losses = [tensor for tensor in result if tensor.dim() == 0]
    assert equal(losses, [tensor for tensor in alone if tensor.dim() == 0])


@pytest.mark.rota
@pytest.mark.parametrize(("way", "backend"), EACH)
def test_uncaptured_steps_recompile_nothing(way: str, backend: str) -> None:
    alone, count = trained_alone("mlp", way, backend)
    model, batches = make("mlp", way)
    with watch(model, every=2):
        result = train(compile_model(model, way, backend), batches)
    assert_as_counted(count)
    assert equal(result, alone)


@pytest.mark.rota
@pytest.mark.parametrize(("way", "backend"), EACH)
def test_watching_after_compilation_recompiles_nothing_and_captures(way: str, backend: str) -> None:
    model, batches = make("mlp", way)
    compiled = compile_model(model, way, backend)
    train(compiled, batches)
    count = counted()
    with watch(compiled) as watcher:
        train(compiled, batches)
        assert watcher.flush()
        kinds = {tap.kind for tap in watcher.store.taps().taps}
    assert {"output", "output_grad"} <= kinds
    assert_as_counted(count)


def _raise_warnings() -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")  # torch's own, with or without hookcore


def test_hookcores_hooks_cause_no_warning_even_if_warnings_are_errors() -> None:
    model, batches = make("mlp")
    compiled = compile_model(model, "wrapped", "eager")
    with watch(model), warnings.catch_warnings():
        _raise_warnings()
        train(compiled, batches)


def test_coverage_says_which_modules_are_inside_a_region() -> None:
    model, batches = make("gpt", "part")
    with watch(compile_model(model, "part", "eager")) as watcher:
        train(model, batches)
        coverage = {entry.path: entry for entry in watcher.coverage()}
    assert coverage["core"].captured
    assert not coverage["core.embed"].captured
    assert "compiled region" in coverage["core.embed"].reason
    assert not any("_orig_mod" in path for path in coverage)


def test_coverage_of_a_model_that_is_compiled_in_the_middle_of_its_training_says_so() -> None:
    model, batches = make("mlp")
    with watch(model) as watcher:
        train(model, batches)
        train(compile_model(model, "wrapped", "eager"), batches)
        coverage = {entry.path: entry for entry in watcher.coverage()}
    inside = [entry for path, entry in coverage.items() if path]
    assert all(entry.captured and "inside the compiled region" in entry.reason for entry in inside)
    assert not coverage[""].reason


# --- Inside: hookcore.watch(compiled="inside") ------------------------------------------------------------------------


@needs_inside
@pytest.mark.rota
@pytest.mark.parametrize(
    ("way", "backend", "trains"),
    [*(pytest.param(*pair.values, True, marks=pair.marks) for pair in PAIRS), ("wrapped", "aot_eager", False)],
)
def test_watching_inside_yields_the_taps_of_the_uncompiled_model(way: str, backend: str, trains: bool) -> None:
    model, batches = make("gpt", way)
    expected = norms_seen(model.train(trains), lambda: model, batches[:2])
    model, batches = make("gpt", way)
    seen = norms_seen(model.train(trains), lambda: compile_model(model, way, backend), batches[:2])
    assert seen == pytest.approx(expected, rel=1e-3)
    assert counted()[0] == 1


def test_a_torch_that_cannot_look_inside_captures_the_boundary_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "SEES_INSIDE", False)
    model, batches = make("gpt")
    with watch(model, compiled="inside") as watcher:
        train(compile_model(model, "wrapped", "eager"), batches[:2])
        assert watcher.flush()
    (event,) = [event for event in watcher.store.events() if event.name == "inside-infeasible"]
    assert event.severity == "warning"
    assert f"needs torch {'.'.join(map(str, internals.INSIDE_FROM))} or newer" in event.message
    assert [tap.module for tap in watcher.store.taps(kind="output").taps] == [""]
    coverage = {each.path: each.captured for each in watcher.coverage()}
    assert coverage.pop("")
    assert not any(coverage.values())


def norms_seen(
    model: nn.Module, compiled: Callable[[], nn.Module], batches: list[Tensor], how: str = "inside"
) -> dict[Tap, float]:
    """Return the store's norms of a training that was watched before it was compiled."""
    with watch(model, compiled=how) as watcher:
        train(compiled(), batches)
        assert watcher.flush()
        assert watcher.error_count == 0
    latest = watcher.store.latest(stat="norm")
    return dict(zip(latest.taps, latest.values[:, 0].tolist(), strict=True))


# --- Inside, on the device: with HOOKCORE_GPU_GRAPHS=1 ----------------------------------------------------------------


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operators write to the memory of their device, which is the CPU's here."""
    monkeypatch.setenv("HOOKCORE_GPU_GRAPHS", "1")


Numbers = dict[tuple[Tap, str], float]


def numbers_seen(watcher: hookcore.Watcher) -> Numbers:
    """Return what the newest step says of each tap: its norm, and of how many values in how many tensors."""
    assert watcher.flush()
    assert watcher.error_count == 0
    latest = watcher.store.latest()
    stats = [(name, latest.stats.index(name)) for name in ("norm", "count", "parts")]
    return {(tap, name): float(latest.values[row, at]) for row, tap in enumerate(latest.taps) for name, at in stats}


def watch_on_device(model: nn.Module, **settings: Any) -> hookcore.Watcher:
    """Watch outputs and gradients. On the device, the calls of a step are one call, which makes them comparable."""
    return watch(model, compiled="inside", calls=1, kinds=("output", "output_grad"), **settings)


def numbers_of(model: nn.Module, batches: list[Tensor], compiled: nn.Module | None = None) -> Numbers:
    with watch_on_device(model) as watcher:
        train(model if compiled is None else compiled, batches)
        return numbers_seen(watcher)


class Experts(nn.Module):
    """A router, and experts that get its shares."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        best = shares.topk(2, -1)
        kept = torch.zeros_like(shares).scatter(-1, best.indices, best.values)
        for at, expert in enumerate(self.experts):
            x = x + kept[:, at : at + 1] * expert(x)
        return x


MODELS["experts"] = Experts, lambda: torch.randn(4, 6)


@needs_inside
@pytest.mark.parametrize(
    ("name", "backend"),
    [on(backend, name) for backend in ("aot_eager", "inductor") for name in ("mlp", "gpt", "convolutions", "experts")],
)
def test_what_operators_write_on_the_device_are_the_numbers_of_the_uncompiled_model_in_as_many_graphs(
    name: str, backend: str, on_device: None
) -> None:
    alone, count = trained_alone(name, "full graph", backend)
    model, batches = make(name)
    expected = numbers_of(model, batches)
    model, batches = make(name)
    seen = numbers_of(model, batches, compile_model(model, "full graph", backend))
    assert_as_counted(count)
    weights = [parameter.detach() for parameter in model.parameters()]
    assert (equal if backend == "aot_eager" else close)(weights, alone[-len(weights) :])
    assert seen == pytest.approx(expected, rel=1e-12 if backend == "aot_eager" else 1e-3)


@needs_inside
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_a_flag_on_the_device_switches_what_is_written_and_nothing_is_compiled_again(
    backend: str, on_device: None
) -> None:
    alone, count = trained_alone("gpt", "wrapped", backend)
    model, batches = make("gpt")
    compiled = compile_model(model, "wrapped", backend)
    with watch_on_device(model, every=2) as watcher:
        result = train(compiled, batches)
        watcher.pause()
        train(compiled, batches[:2])
        assert watcher.flush()
        written = [tap for tap in watcher.store.taps().taps if tap.module == "blocks.0.norm"]
        steps = [list(watcher.store.series(tap, "norm").first_step) for tap in written]
    assert_as_counted(count)
    assert (equal if backend == "aot_eager" else close)(result, alone)
    assert steps == [[0, 2, 4], [0, 2, 4]]


@needs_inside
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_passes_that_wait_for_each_other_add_to_one_row_and_the_flag_may_change_between_them(
    backend: str, on_device: None
) -> None:
    def numbers(compiled: bool) -> Numbers:
        model, batches = make("mlp")
        called = compile_model(model, "wrapped", backend) if compiled else model
        with watch_on_device(model) as watcher:
            train(called, batches[:1])
            one, other = called(batches[0]), called(batches[1])
            one.sum().backward()
            other.square().sum().backward()
            torch.optim.SGD(model.parameters()).step()
            found = numbers_seen(watcher)
            waits = called(batches[2])
            watcher.pause()
            waits.sum().backward()
            watcher.resume()
            train(called, batches[:1])
            return found | {(tap, f"{stat} then"): value for (tap, stat), value in numbers_seen(watcher).items()}

    expected = numbers(compiled=False)
    assert {value for (tap, stat), value in expected.items() if stat == "parts" and tap.module == "act"} == {4}
    assert numbers(compiled=True) == pytest.approx(expected, rel=1e-5)


@needs_inside
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_what_a_checkpoint_repeats_is_written_once_whether_it_is_in_the_graph_or_around_it(
    backend: str, on_device: None
) -> None:
    found = []
    for way in ("unsaved", "in the graph", "around it"):
        torch.manual_seed(1)
        model, batch = Routed(saves_memory=way != "unsaved"), torch.randn(3, 4)
        if way == "around it":
            model.part.compile(backend=backend, fullgraph=True)
        compiled = compile_model(model, "full graph", backend) if way == "in the graph" else model
        found.append(numbers_of(model, [batch, batch], compiled))
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    # The region's own hooks are outside of its graph, in which the gradient of the first output stays.
    expected = {tap: value for tap, value in found[0].items() if (tap[0].kind, tap[0].index) != ("output_grad", "0")}
    assert found[2] == pytest.approx(expected, rel=1e-3)


@needs_inside
def test_blocks_that_share_a_graph_write_to_their_own_rows_whatever_their_sizes(on_device: None) -> None:
    def fresh() -> tuple[Gpt, list[Tensor]]:
        begin_afresh()
        torch.manual_seed(0)
        return Gpt(depth=4), [torch.randint(0, 16, (2, size)) for size in (5, 7, 9)]

    def compiled() -> tuple[Gpt, list[Tensor]]:
        model, batches = fresh()
        for block in model.blocks:
            block.compile(backend="aot_eager", fullgraph=True)
        return model, batches

    expected = numbers_of(*fresh())
    train(*compiled())
    alone = counted()
    assert numbers_of(*compiled()) == pytest.approx(expected, rel=1e-12)
    assert_as_counted(alone)


class Many(nn.Module):
    """A layer with more outputs than a module has rows for."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {f"part{number}": x * number for number in range(9)} | {"none": None}


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.parts = nn.Linear(4, 4), Many()

    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts(self.first(x))
        return torch.stack([parts[f"part{number}"] for number in range(9)])


@needs_inside
def test_nested_outputs_are_written_by_name_and_those_beyond_the_rows_are_counted(on_device: None) -> None:
    model = Added()
    with watch_on_device(model) as watcher:
        train(compile_model(model, "full graph", "aot_eager"), [torch.randn(2, 4)])
        seen = {(tap.kind, tap.index) for tap, _ in numbers_seen(watcher) if tap.module == "parts"}
        reasons = {each.path: each.reason for each in watcher.coverage()}
    assert seen == {(kind, f"part{number}") for kind in ("output", "output_grad") for number in range(8)}
    assert "more than 8 tensors" in reasons["parts"]


@needs_inside
def test_a_compiled_optimizer_has_as_many_graphs_if_operators_write_on_the_device(on_device: None) -> None:
    def weights(watched: bool) -> list[Tensor]:
        begin_afresh()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
        watcher = watch_on_device(model) if watched else None
        found = train_with_a_compiled_optimizer("function", compile_model(model, "wrapped", "aot_eager"))
        if watcher is not None:
            watcher.close()
        return found

    alone, (graphs, _, breaks) = weights(watched=False), counted()
    assert equal(weights(watched=True), alone)
    assert counted()[0] == graphs
    assert counted()[2] <= breaks


@needs_inside
def test_after_a_block_without_hooks_operators_write_to_the_same_taps(on_device: None) -> None:
    def numbers(compiled: bool) -> Numbers:
        model, batches = make("mlp")
        called = compile_model(model, "wrapped", "aot_eager") if compiled else model
        with watch_on_device(model) as watcher:
            train(called, batches[:1])
            with hookcore.detached():
                train(called, batches[1:2])
            train(called, batches[2:3])
            assert watcher.current_step == 2
            return numbers_seen(watcher)

    assert numbers(compiled=True) == pytest.approx(numbers(compiled=False), rel=1e-12)


@needs_inside
def test_a_tensor_whose_module_is_unknown_is_counted(on_device: None) -> None:
    model, batches = make("mlp")
    with watch_on_device(model) as watcher:
        train(compile_model(model, "full graph", "aot_eager"), batches[:1])
        foreign = torch.zeros(50, dtype=torch.int64)
        torch.ops.hookcore.write(torch.ones(3), foreign, 0, "", False, False)
    events = {event.name: event for event in watcher.store.events()}
    assert events["graph-tensor-lost"].count == 1
    assert "no snapshots" in events["inside-on-device"].message


class Recorded:
    """A graph that does the same again with the same memory, like a CUDA graph, and then runs no code of hookcore."""

    def __init__(self, graph: torch.fx.GraphModule, launches: list[Callable[[], None]], stays: set[int]) -> None:
        self._graph, self._launches, self._stays = graph, launches, stays
        self._memory: dict[torch.fx.Node, Any] = {}
        self._written: dict[torch.fx.Node, list[Callable[[], None]]] = {}

    def __call__(self, *given: Any) -> list[Any]:
        values = iter(given)
        *nodes, output = self._graph.graph.nodes
        for node in nodes:
            arguments, named = self._memory_of((node.args, node.kwargs))
            if node.op == "placeholder":
                self._take(node, next(values))
            elif node.op == "get_attr":
                self._memory[node] = getattr(self._graph, node.target)
            elif not str(node.target).startswith("hookcore."):
                self._keep(node, node.target(*arguments, **named))
            elif node in self._written:
                for launch in self._written[node]:
                    launch()
            else:
                self._launches.clear()
                node.target(*arguments)
                self._written[node] = list(self._launches)
                for launch in self._written[node]:
                    launch()
        return [each if self._is_theirs(each) else each.clone() for each in self._memory_of(output.args[0])]

    def _memory_of(self, arguments: Any) -> Any:
        return torch.fx.node.map_arg(arguments, self._memory.__getitem__)

    def _take(self, node: torch.fx.Node, value: Any) -> None:
        """Copy an input, unless it is a weight, or a table, which is marked: torch leaves these where they are."""
        if isinstance(value, nn.Parameter) or hasattr(value, "_dynamo_static_input_type"):
            self._stays.add(value.data_ptr())
        self._keep(node, value if self._is_theirs(value) else value.clone())

    def _is_theirs(self, value: Any) -> bool:
        return not isinstance(value, Tensor) or value.data_ptr() in self._stays

    def _keep(self, node: torch.fx.Node, value: Any) -> None:
        if isinstance(value, Tensor) and node in self._memory:
            self._memory[node].copy_(value)
        else:
            self._memory[node] = value


@needs_inside
def test_a_replay_that_runs_no_code_of_hookcore_writes_like_the_step_that_was_recorded(
    monkeypatch: pytest.MonkeyPatch, on_device: None
) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    launches: list[Callable[[], None]] = []
    recorded: list[Recorded] = []
    stays: set[int] = set()
    writer = module_of("GraphWriter")
    write = writer.write
    monkeypatch.setattr(writer, "write", lambda *given: launches.append(partial(write, *given)) or "")

    def compiler(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        recorded.append(Recorded(graph, launches, stays))
        return make_boxed_func(recorded[-1])

    def norms(compiled: bool) -> dict[Tap, list[float]]:
        model, batches = make("gpt")
        called = compile_model(model, "full graph", aot_autograd(fw_compiler=compiler)) if compiled else model
        with watch_on_device(model, every=2) as watcher:
            train(called, batches)
            assert watcher.flush()
            assert watcher.error_count == 0
            return {tap: list(watcher.store.series(tap, "norm").mean) for tap in watcher.store.taps().taps}

    expected, seen = norms(compiled=False), norms(compiled=True)
    assert len(recorded) == 2  # the forward and the backward pass
    assert seen.keys() == expected.keys()
    for tap, values in expected.items():
        assert len(values) == 3
        assert seen[tap] == pytest.approx(values, rel=1e-5), tap


# --- Materialized: hookcore.watch(compiled="materialized") ------------------------------------------------------------


class Named(nn.Module):
    """A block whose layer has the name of a layer of the model, and whose frame may be compiled by itself."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.first, self.breaks = nn.Linear(6, 6), breaks

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.first(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return hidden * 2 + x


class SameNames(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList(Named(breaks) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.first(x)))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Broken(SameNames):
    """Blocks with a break, so that each of them is compiled by itself."""

    def __init__(self) -> None:
        super().__init__(breaks=True)


class Mixed(nn.Module):
    """Lower precision, dropout, a part that is checkpointed, and a layer that returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.drop, self.norm = nn.Linear(6, 8), nn.Dropout(0.5), nn.LayerNorm(8)
        self.part = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.split = Halves()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.norm(self.drop(torch.relu(self.wide(x))))
            left, right = self.split(checkpoint(self.part, x, use_reentrant=False))
        return left.float() * right.float()


class Halves(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(x[:, :4]), torch.tanh(x[:, 4:])


MODELS |= {
    "same names": (SameNames, lambda: torch.randn(4, 6)),
    "broken": (Broken, lambda: torch.randn(4, 6)),
    "mixed": (Mixed, lambda: torch.randn(4, 6)),
}
MATERIALIZED = [
    on("aot_eager", "mlp", "wrapped"),
    on("aot_eager", "convolutions", "in place"),
    on("aot_eager", "gpt", "full graph"),
    on("aot_eager", "same names", "part"),
    on("aot_eager", "broken", "wrapped"),
    on("aot_eager", "mixed", "part in place"),
    *(on("inductor", name, "wrapped") for name in ("mlp", "convolutions", "gpt", "broken", "mixed")),
]


def changing_batches(name: str) -> list[Tensor]:
    """Return batches of three sizes, so that some graphs have dynamic shapes."""
    return [batch[:size] for batch, size in zip(make(name)[1], (2, 2, 1, 2, 1), strict=True)]


@needs_inside
@pytest.mark.parametrize(("name", "way", "backend"), MATERIALIZED)
def test_reading_what_a_graph_keeps_changes_neither_bits_nor_graphs(name: str, way: str, backend: str) -> None:
    results, counts = [], []
    for how in (None, "materialized"):
        begin_afresh()
        model, batches = make(name, way)[0], changing_batches(name)
        torch.manual_seed(1)
        if how is None:
            results.append(train(compile_model(model, way, backend), batches))
        else:
            with watch(model, compiled=how, kinds=("output", "output_grad", "param_grad")) as watcher:
                results.append(train(compile_model(model, way, backend), batches))
                assert watcher.error_count == 0
        counts.append(counted())
    assert equal(*results)
    assert_as_counted(counts[0])


@needs_inside
@pytest.mark.parametrize(("name", "way", "backend"), [each for each in MATERIALIZED if each.values[0] != "mixed"])
def test_what_a_graph_keeps_has_the_numbers_of_the_uncompiled_model(name: str, way: str, backend: str) -> None:
    model, batches = make(name, way)
    expected = norms_seen(model, lambda: model, batches[:2])
    model, batches = make(name, way)
    seen = norms_seen(model, lambda: compile_model(model, way, backend), batches[:2], "materialized")
    # A bias before a normalization has no gradient but what rounding leaves.
    assert seen == pytest.approx({tap: expected[tap] for tap in seen}, rel=1e-3, abs=1e-7)
    inside = [tap for tap in seen if tap.kind == "output" and tap.module not in ("", "core", "scale")]
    assert len(inside) >= {"mlp": 2, "gpt": 5, "convolutions": 1, "same names": 3, "broken": 0}[name]


class Heads(nn.Module):
    """Attention, whose compiled graph keeps the outputs of its layers by head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last, self.act = nn.Linear(6, 8), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        many, long, _ = x.shape
        parts = (layer(x).view(many, long, 3, 2).transpose(1, 2) for layer in (self.query, self.key, self.value))
        found = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(many, long, 6)
        return self.act(self.last(found))


@needs_inside
def test_what_a_graph_keeps_has_the_shape_and_order_that_the_module_returns() -> None:
    def seen(compiled: bool) -> dict[tuple[Tap, str], float]:
        begin_afresh()
        torch.manual_seed(0)
        model, found = Heads(), dict[tuple[Tap, str], float]()
        called: nn.Module = model
        with watch(model, compiled="materialized" if compiled else "boundary", kinds="output") as watcher:
            watcher.probe("shape", lambda tensor: torch.tensor([*tensor.shape]), every=1)
            watcher.probe("ramp", lambda tensor: (tensor.flatten() * torch.arange(tensor.numel())).sum(), every=1)
            if compiled:
                called = compile_model(model, "wrapped", "aot_eager")
            # From the second batch on, the sizes of the graph change.
            train(called, [torch.randn(2, 5, 6), torch.randn(3, 7, 6), torch.randn(4, 9, 6)])
            assert watcher.flush()
            assert watcher.error_count == 0
            for stat in ("max", "mean"):
                latest = watcher.store.latest(stat=stat)
                found |= dict(zip(((tap, stat) for tap in latest.taps), latest.values[:, 0].tolist(), strict=True))
        return {tap: value for tap, value in found.items() if tap[0].kind == "probe"}

    expected, kept = seen(compiled=False), seen(compiled=True)
    assert {tap.module for tap, _ in kept} >= {"query", "key", "value", "last"}
    assert kept == pytest.approx({tap: expected[tap] for tap in kept}, rel=1e-4, abs=1e-5)


@needs_inside
def test_a_graph_that_begins_inside_a_region_is_not_taken_for_that_of_the_region() -> None:
    model, batches = make("broken")
    with watch(model, compiled="materialized") as watcher:
        train(compile_model(model, "wrapped", "aot_eager"), batches[:2])
        assert watcher.flush()
        captured = {tap.module for tap in watcher.store.taps(kind="output").taps}
        coverage = {each.path: each.reason for each in watcher.coverage()}
    assert not captured & {"blocks.0", "blocks.1", "blocks.0.first", "blocks.1.first"}
    assert "begins at a module inside" in coverage[""]


@needs_inside
def test_blocks_that_share_a_graph_each_have_their_own_numbers() -> None:
    batch = torch.randint(0, 16, (2, 5))

    def norms(compiled: bool) -> dict[Tap, float]:
        torch.manual_seed(0)
        model = Gpt(depth=3)
        with watch(model, compiled="materialized" if compiled else "boundary") as watcher:
            for block in model.blocks if compiled else ():
                block.compile(backend="aot_eager", fullgraph=True)
            train(model, [batch])
            assert watcher.flush()
        latest = watcher.store.latest(stat="norm")
        return dict(zip(latest.taps, latest.values[:, 0].tolist(), strict=True))

    expected, seen = norms(compiled=False), norms(compiled=True)
    assert counted()[0] == 1
    kept = {tap for tap in seen if tap.kind == "output" and tap.module.endswith(".norm")}
    assert sorted(tap.module for tap in kept) == ["blocks.0.norm", "blocks.1.norm", "blocks.2.norm"]
    assert {tap: seen[tap] for tap in kept} == pytest.approx({tap: expected[tap] for tap in kept}, rel=1e-5)


@needs_inside
def test_a_module_that_returns_several_tensors_and_what_runs_again_are_said_not_to_be_kept() -> None:
    model, batches = make("mixed")
    with watch(model, compiled="materialized") as watcher:
        train(compile_model(model, "wrapped", "aot_eager"), batches[:2])
        assert watcher.flush()
        coverage = {each.path: each for each in watcher.coverage()}
    for path in ("split", "part.1"):
        assert not coverage[path].captured
        assert "doesn't keep its output" in coverage[path].reason


@needs_inside
def test_a_graph_made_before_the_watch_is_not_made_again_and_said_to_be_unknown() -> None:
    model, batches = make("gpt")
    compiled = compile_model(model, "wrapped", "aot_eager")
    train(compiled, batches[:1])
    count = counted()
    with watch(model, compiled="materialized") as watcher:
        train(compiled, batches[1:3])
        assert watcher.flush()
        assert [tap.module for tap in watcher.store.taps(kind="output").taps] == [""]
        assert "made before hookcore watched" in {each.path: each.reason for each in watcher.coverage()}[""]
    assert_as_counted(count)


def _joint_graphs() -> tuple[Any, Callable[[Any, Any], Any], list[Any]]:
    """Return torch's settings for joint graphs, a callback as a user has one, and what it has seen."""
    settings = internals.joint_settings()
    assert settings is not None
    seen: list[Any] = []

    def see(graph: Any, inputs: Any) -> Any:
        seen.append(inputs)
        return graph

    return settings, see, seen


@needs_inside
def test_torchs_settings_for_joint_graphs_are_restored_and_a_callback_of_the_user_still_sees_them() -> None:
    settings, see, seen = _joint_graphs()
    with settings.patch(joint_custom_pass=see):
        before = settings.enable_autograd_cache
        model, batches = make("mlp")
        with watch(model, compiled="materialized"), watch(Mlp(), compiled="materialized"):
            train(compile_model(model, "wrapped", "aot_eager"), batches[:1])
        assert len(seen) == 1
        assert (settings.joint_custom_pass, settings.enable_autograd_cache) == (see, before)


@needs_inside
def test_torchs_settings_come_back_with_the_next_graph_if_another_thread_closes_the_watcher() -> None:
    settings, see, seen = _joint_graphs()
    with settings.patch(joint_custom_pass=see, enable_autograd_cache=True):
        watcher = watch(Mlp(), compiled="materialized")
        thread = threading.Thread(target=watcher.close)
        thread.start()
        thread.join()
        model, batches = make("mlp")
        train(compile_model(model, "wrapped", "aot_eager"), batches[:1])
        assert len(seen) == 1
        assert (settings.joint_custom_pass, settings.enable_autograd_cache) == (see, True)


@needs_inside
def test_a_watcher_in_another_thread_leaves_the_callback_of_this_one() -> None:
    settings, see, seen = _joint_graphs()

    def watch_there() -> None:
        with watch(Mlp(), compiled="materialized"):
            pass

    with settings.patch(joint_custom_pass=see):
        model, batches = make("mlp")
        with watch(model, compiled="materialized"):
            thread = threading.Thread(target=watch_there)
            thread.start()
            thread.join()
            train(compile_model(model, "wrapped", "aot_eager"), batches[:1])
        assert len(seen) == 1
        assert settings.joint_custom_pass is see


@pytest.mark.parametrize("settings", [{"attach": "module"}, {}])
def test_where_kept_outputs_cannot_be_read_the_boundary_is_captured_and_an_event_says_so(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internals, "SEES_INSIDE", bool(settings))
    with watch(Mlp(), compiled="materialized", **settings) as watcher:
        assert watcher.flush()
    (event,) = [event for event in watcher.store.events() if event.name == "inside-infeasible"]
    assert "compiled='materialized' needs" in event.message


# --- Regions --------------------------------------------------------------------------------------------------------


def test_a_compiled_module_is_a_region_and_its_original_is_found() -> None:
    model = Mlp()
    wrapped = torch.compile(model, backend="eager")
    assert is_region(wrapped)
    assert not is_region(model)
    assert unwrap(wrapped) is model
    assert unwrap(model) is model
    model.compile(backend="eager")
    assert is_region(model)


def test_regions_are_named_as_the_user_wrote_the_model() -> None:
    model = nn.Sequential(Around(Mlp()), Mlp())
    model[0].core = torch.compile(model[0].core, backend="eager")
    model[1].compile(backend="eager")
    model[1].first.compile(backend="eager")  # inside another region, so it has no boundary
    assert compiled_regions(model) == {"0.core": model[0].core, "1": model[1]}
    assert compiled_regions(torch.compile(model, backend="eager")).keys() == {""}
    assert clean_path("_orig_mod.0.core._orig_mod.first") == "0.core.first"


def test_paths_inside_a_region_are_distinguished_from_their_neighbors() -> None:
    assert is_inside("core.first", ["core"])
    assert is_inside("core", ["core"])
    assert is_inside("anything", [""])
    assert not is_inside("core2.first", ["core"])


def test_graphs_made_by_dynamo_are_distinguished_from_graphs_of_the_user() -> None:
    made: list[nn.Module] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    torch.compile(Mlp(), backend=backend)(torch.randn(2, 6))
    assert [is_dynamo_graph(graph) for graph in made] == [True]
    assert not is_dynamo_graph(torch.fx.symbolic_trace(Mlp()))


def test_guarding_an_object_without_code_says_what_is_accepted() -> None:
    with pytest.raises(TypeError, match="plain Python function"):
        guard_functions(len)


def test_a_torch_that_cannot_skip_the_frames_below_skips_what_decorators_call_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skipped: list[CodeType] = []
    monkeypatch.setattr(internals, "SKIPS_BELOW", False)
    monkeypatch.setattr(torch._C._dynamo.eval_frame, "skip_code", skipped.append, raising=False)
    guard_functions(train_with_a_compiled_optimizer)
    decorated = class_of("BackwardPasses").backward_begins
    assert decorated.__code__ in skipped
    assert decorated.__wrapped__.__code__ in skipped


def test_forgetting_returns_whether_there_was_anything_to_forget() -> None:
    model = Mlp()
    compiled = torch.compile(model, backend="eager")
    assert not forget_graphs([model])
    compiled(torch.randn(2, 6))
    assert forget_graphs([model])
    assert not forget_graphs([model])


# --- Stepping aside -------------------------------------------------------------------------------------------------


class Hooked:
    """A pair of global hooks like the recorder's that do nothing."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.handles: list[hooks.HookHandle] = []
        self.aside = StepAside(self.off, self.on, lambda module, _args, _output: self.note(module))

        def before(module: nn.Module, _args: Any) -> None:
            if not torch.compiler.is_compiling() and is_region(module):
                self.aside.enter(module)

        def after(module: nn.Module, _args: Any, _output: Any) -> None:
            if not torch.compiler.is_compiling():
                self.note(module)

        guard_functions(before, after)
        self.before, self.after = before, after

    def note(self, module: nn.Module) -> None:
        self.log.append(type(module).__name__)

    def on(self) -> None:
        if not self.handles:
            self.handles = [hooks.on_forward_pre(None, self.before), hooks.on_forward(None, self.after)]

    def off(self) -> None:
        while self.handles:
            self.handles.pop().remove()


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    hooked = Hooked()
    hooked.on()
    yield hooked
    hooked.aside.close()
    hooked.off()


class Failing(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    @torch._dynamo.disable
    def forward(self, x: Tensor) -> Tensor:
        raise self.error


def test_only_the_boundary_of_a_running_region_is_captured(hooked: Hooked) -> None:
    model = Around(Mlp())
    model.core.compile(backend="aot_eager")
    model(torch.randn(2, 6))
    assert hooked.log == ["Mlp", "Identity", "Around"]
    assert not hooked.aside.active
    assert len(hooked.handles) == 2
    assert not model.core._forward_hooks


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("way", ["wrapped", "in place"])
def test_the_hooks_are_restored_after_a_region_that_raised_the_users_error(hooked: Hooked, way: str) -> None:
    model = Failing(ValueError("the user's own"))
    model.register_forward_hook(lambda module, args, output: None, always_call=True)
    compiled = compile_model(model, way, "eager")
    with pytest.raises(ValueError, match="the user's own"):
        compiled(torch.randn(2))
    assert not hooked.aside.active
    assert len(hooked.handles) == 2
    hooked.off()
    assert len(model._forward_hooks) == 1
    assert not torch_module._global_forward_hooks


def test_closing_repairs_a_call_that_was_interrupted(hooked: Hooked) -> None:
    model = Failing(KeyboardInterrupt())
    model.compile(backend="eager")
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(2))
    assert hooked.aside.active  # torch then calls no hook
    hooked.aside.close()
    hooked.aside.close()
    assert len(hooked.handles) == 2
    assert not model._forward_hooks


@needs_check
def test_hookcores_hooks_alone_do_not_make_torch_warn(hooked: Hooked) -> None:
    compiled = torch.compile(Mlp(), backend="eager")
    quiet = QuietHooks(hooked.before, hooked.after)
    quiet.on()
    quiet.on()
    with warnings.catch_warnings():
        _raise_warnings()
        compiled(torch.randn(2, 6))
    quiet.off()
    quiet.off()
    with pytest.warns(UserWarning, match="global hooks"):
        compiled(torch.randn(2, 6))


@needs_check
def test_torchs_own_check_is_restored_whichever_watcher_stops_first(hooked: Hooked) -> None:
    before = torch_module._has_any_global_hook
    first, second = QuietHooks(hooked.before), QuietHooks(hooked.after)
    first.on()
    second.on()
    first.off()
    assert torch_module._has_any_global_hook()  # nothing uses `before` anymore
    second.off()
    assert torch_module._has_any_global_hook is before


@needs_check
def test_a_users_global_hook_makes_torch_warn_as_before(hooked: Hooked) -> None:
    compiled = torch.compile(Mlp(), backend="eager")
    quiet = QuietHooks(hooked.before, hooked.after)
    quiet.on()
    user_hook = hooks.on_forward(None, lambda module, args, output: None)
    with user_hook, pytest.warns(UserWarning, match="global hooks"):
        compiled(torch.randn(2, 6))
    quiet.off()


# --- Inside ---------------------------------------------------------------------------------------------------------


@pytest.mark.rota("name")
@pytest.mark.parametrize(("name", "way", "backend"), CASES)
def test_every_module_inside_is_seen_correctly_in_unchanged_graphs(name: str, way: str, backend: str) -> None:
    alone, count = trained_alone(name, way, backend)
    model, batches = make(name, way)
    expected = truth(copy.deepcopy(model), batches[0], lambda output: output.pow(2).mean())
    inside, recording, _ = watch_inside(model)
    result = train(compile_model(model, way, backend), batches)
    inside.close()
    assert_as_counted(count)  # five steps, without recompiling and without graph breaks
    assert close(result, alone)
    assert set(recording.times.values()) == {1}
    assert len(recording.tensors) == 5 * len(expected)
    assert_same_tensors({seen: recording.tensors[seen] for seen in expected}, expected)


@pytest.mark.rota
@pytest.mark.rota
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_find_their_own_forward_if_several_wait_for_a_backward(backend: str) -> None:
    model, batches = make("mlp")
    first = truth(copy.deepcopy(model), batches[0], lambda output: 2 * output.sum())
    second = truth(copy.deepcopy(model), batches[1], lambda output: output.pow(2).sum())
    inside, recording, _ = watch_inside(model)
    compiled = compile_model(model, "wrapped", backend)
    one, other = compiled(batches[0]), compiled(batches[1])
    (2 * one.sum() + other.pow(2).sum()).backward()
    inside.close()
    calls = Counter(seen[0] for seen in first if seen[1] == "output")
    later = {(*seen[:3], seen[3] + calls[seen[0]]): tensor for seen, tensor in second.items()}
    assert_same_tensors(recording.tensors, first | later)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split = Split()

    def forward(self, x: Tensor) -> Tensor:
        parts = self.split(x)
        return parts["left"] + parts["both"][0] * parts["both"][1]


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> dict[str, Any]:
        left, right = self.wide(x).chunk(2, -1)
        return {"left": left, "both": (right, left * right), "none": None, "count": torch.arange(3)}


@pytest.mark.rota
@pytest.mark.rota
@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_outputs_are_seen_part_by_part(backend: str) -> None:
    model = Nested()
    inside, recording, _ = watch_inside(model)
    torch.compile(model, backend=backend, fullgraph=True)(torch.randn(2, 4)).sum().backward()
    inside.close()
    split = {seen[1:3] for seen in recording.times if seen[0] == 1}
    assert split == {
        ("output", "left"),
        ("output", "both.0"),
        ("output", "both.1"),
        ("output", "count"),
        ("gradient", "left"),
        ("gradient", "both.0"),
        ("gradient", "both.1"),
    }


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.saves_memory = True

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.part, x, use_reentrant=False) if self.saves_memory else self.part(x)
        return hidden.sum(-1)


@pytest.mark.rota
@pytest.mark.rota
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpointed_part_in_a_region_is_seen_once_with_correct_gradients(backend: str) -> None:
    torch.manual_seed(0)
    model, batch = Checkpointed(), torch.randn(3, 4)
    model.saves_memory = False
    expected = truth(copy.deepcopy(model), batch, lambda output: output.pow(2).sum())
    model.saves_memory = True
    inside, recording, _ = watch_inside(model)
    torch.compile(model, backend=backend, fullgraph=True)(batch).pow(2).sum().backward()
    inside.close()
    assert_same_tensors(recording.tensors, expected)


def test_inductor_puts_no_op_into_a_cuda_graph_whose_replay_would_leave_it_out(on_device: None) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.utils import is_cudagraph_unsafe_fx_node

    model, batches = make("mlp")
    found: dict[str, set[bool]] = {}

    def compiler(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        for node in graph.graph.nodes:
            if str(node.target).startswith("hookcore."):
                found.setdefault(str(node.target), set()).add(is_cudagraph_unsafe_fx_node(node))
        return make_boxed_func(graph.forward)

    inside, recording, _ = watch_inside(model)
    train(compile_model(model, "wrapped", aot_autograd(fw_compiler=compiler)), batches[:1])
    inside.close()
    assert recording.tensors
    assert found == {"hookcore.saw_output.default": {True}, "hookcore.saw_gradient.default": {True}}
    found.clear()
    model, batches = make("mlp")
    with watch_on_device(model):
        train(compile_model(model, "wrapped", aot_autograd(fw_compiler=compiler)), batches[:1])
    assert found == {"hookcore.write.default": {False}}  # a replay does what it does


class Routed(nn.Module):
    """A part that is checkpointed and returns two tensors, of which only the second one gets a gradient."""

    def __init__(self, saves_memory: bool) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(4, 4), self.Part(), nn.Linear(4, 4)
        self.saves_memory = saves_memory

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.inner(x)
            return logits, logits.softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        _, shares = checkpoint(self.part, x, use_reentrant=False) if self.saves_memory else self.part(x)
        return self.last(shares * x)


@needs_inside
def test_outputs_of_a_checkpointed_part_keep_their_call_if_only_some_of_them_have_gradients() -> None:
    def norms(saves_memory: bool) -> dict[Tap, float]:
        torch.manual_seed(0)
        model, batch = Routed(saves_memory), torch.randn(3, 4)
        compiled = compile_model(model, "full graph", "aot_eager") if saves_memory else model
        return norms_seen(model, lambda: compiled, [batch])

    assert norms(saves_memory=True) == pytest.approx(norms(saves_memory=False), rel=1e-3)


@pytest.mark.rota
@pytest.mark.rota
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_observer_that_stops_listening_recompiles_nothing(backend: str) -> None:
    model, batches = make("mlp")
    inside, recording, _ = watch_inside(model)
    compiled = compile_model(model, "wrapped", backend)
    train(compiled, batches[:2])
    count, seen = counted(), len(recording.tensors)
    recording.listens = False
    train(compiled, batches[2:])
    assert_as_counted(count)
    assert len(recording.tensors) == seen
    inside.close()


def test_evaluation_without_gradients_is_also_seen() -> None:
    model, batches = make("mlp")
    inside, recording, _ = watch_inside(model)
    with torch.no_grad():
        compile_model(model, "full graph", "aot_eager")(batches[0])
    inside.close()
    assert recording.keys_seen() == {0, 1, 2, 3}
    assert {seen[1] for seen in recording.times} == {"output"}
    assert recording.grad_modes == {False}


@pytest.mark.rota
@pytest.mark.rota
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_observer_can_distinguish_training_and_evaluation_by_the_grad_mode(backend: str) -> None:
    model, batches = make("mlp")
    inside, recording, _ = watch_inside(model.eval())
    compile_model(model, "wrapped", backend)(batches[0])
    inside.close()
    assert recording.grad_modes == {True}


@needs_inside
@pytest.mark.rota
@pytest.mark.parametrize(("way", "backend"), EACH)
def test_hooks_added_after_compilation_work_and_are_removed_on_close(way: str, backend: str) -> None:
    name = "gpt" if way == "wrapped" else "mlp"
    alone, _ = trained_alone(name, way, backend)
    model, batches = make(name, way)
    original = unwrap(model)
    compiled = compile_model(model, way, backend)
    result = train(compiled, batches[:1])
    recording = Recording()
    inside = Inside(recording)
    assert inside.attach(enumerate(original.modules()))  # shows that there were graphs
    result += train(compiled, batches[1:3])
    inside.close()
    inside.close()
    seen = len(recording.tensors)
    assert seen > 2 * len(list(original.modules()))
    result += train(compiled, batches[3:])
    assert len(recording.tensors) == seen
    assert not any(module._forward_hooks for module in original.modules())
    assert counted()[0] == 3  # unwatched, watched, and unwatched again
    losses = [tensor for tensor in result if tensor.dim() == 0]
    assert close(losses, [tensor for tensor in alone if tensor.dim() == 0])


@pytest.mark.rota
@pytest.mark.parametrize("in_place", [True, False])
def test_blocks_compiled_one_by_one_still_share_their_graphs(in_place: bool) -> None:
    def graphs(with_us: bool) -> tuple[int, int, int]:
        begin_afresh()
        model = Gpt(depth=12)
        inside = watch_inside(model)[0] if with_us else None
        for number, block in enumerate(model.blocks):
            if in_place:
                block.compile(backend="aot_eager", fullgraph=True)
            else:
                model.blocks[number] = torch.compile(block, backend="aot_eager")
        for _ in range(2):
            model(torch.randint(0, 16, (2, 5))).sum().backward()
        count = counted()
        if inside is not None:
            inside.close()
        return count

    assert graphs(True) == graphs(False)


def test_copies_and_checkpoints_of_a_model_watched_inside_are_not_watched() -> None:
    model = Mlp()
    inside, recording, _ = watch_inside(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert b"hookcore" not in file.getvalue()
    batch = torch.randn(2, 6)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(batch), model(batch))
        assert torch.compile(other, backend="eager", fullgraph=True)(batch).shape == (2, 3)
    calls = recording.calls[0, ""]
    inside.close()
    assert calls == 2


@pytest.mark.rota
@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_contains_nothing_of_hookcore(strict: bool) -> None:
    model = Mlp()
    inside, recording, _ = watch_inside(model)
    program = torch.export.export(model, (torch.randn(2, 6),), strict=strict)
    inside.close()
    assert "hookcore" not in str(program.graph)
    assert not recording.tensors


@pytest.mark.rota
@pytest.mark.rota
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_vectorized_map_inside_a_region_runs_as_if_unwatched(backend: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    batch = torch.randn(3, 4)
    expected = model(batch)
    inside, _, _ = watch_inside(model)
    mapped = torch.compile(lambda x: torch.func.vmap(model)(x), backend=backend)
    torch.testing.assert_close(mapped(batch), expected)
    inside.close()


def test_two_observers_see_only_their_own_models() -> None:
    models = [Mlp(), Mlp()]
    watched = [watch_inside(model) for model in models]
    torch.compile(models[1], backend="aot_eager")(torch.randn(2, 6)).sum().backward()
    assert not watched[0][1].tensors
    assert watched[1][1].keys_seen() == {0, 1, 2, 3}
    for inside, _, _ in watched:
        inside.close()


@functools.cache
def optimized_alone(how: str) -> tuple[list[Tensor], tuple[int, int, int]]:
    """Train with a compiled optimizer, unwatched."""
    result = train_with_a_compiled_optimizer(how)
    count = counted()
    begin_afresh()
    return result, count


def train_with_a_compiled_optimizer(how: str, model: nn.Module | None = None) -> list[Tensor]:
    """Train a small network with a compiled optimizer; return the weights at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)) if model is None else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def backward() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()

    def train() -> None:
        backward()
        optimizer.step()

    if how == "with the loop":
        train = torch.compile(train, backend="eager")
    else:
        step = torch.compile(optimizer.step if how == "method" else lambda: optimizer.step(), backend="eager")
    for _ in range(8):
        if how == "with the loop":
            train()
        else:
            backward()
            step()
    return [each.detach().clone() for each in model.parameters()]


@pytest.mark.filterwarnings("ignore:Profiler record function")
@pytest.mark.rota
@pytest.mark.parametrize(
    ("how", "budget"), [("function", None), ("method", 0.05), ("with the loop", None), ("with the loop", 0.05)]
)
def test_a_compiled_optimizer_keeps_its_graphs_without_extra_breaks_and_every_step_is_counted(
    how: str, budget: float | None
) -> None:
    # torch's loop over the step's hooks stays uncompiled, so breaks inside that frame don't count. torch 2.6
    # compiles it up to hookcore's hooks and breaks there, which changes no graph.
    alone, (graphs, frames, breaks) = optimized_alone(how)
    with hookcore.watch(server=None, budget=budget) as watcher:
        watched = train_with_a_compiled_optimizer(how)
        steps = watcher.current_step
    assert equal(alone, watched)
    watched_graphs, watched_frames, watched_breaks = counted()
    assert watched_graphs == graphs > 0
    if internals.SKIPS_BELOW:
        assert watched_frames <= frames
        assert watched_breaks <= breaks
    assert steps == 8


@pytest.mark.filterwarnings("ignore:Profiler record function")
def test_a_model_whose_whole_loop_is_compiled_is_found_by_its_optimizer_and_another_optimizer_is_reported() -> None:
    image = torch.zeros(3, requires_grad=True)
    with hookcore.watch(server=None, budget=None) as watcher:
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))  # alive when the problem is looked for
        train_with_a_compiled_optimizer("with the loop", model)
        for _ in range(3):
            optimizer = torch.optim.SGD([image])
            image.sum().backward()
            optimizer.step()
        assert [row.path for row in watcher.coverage()] == ["Sequential", *(f"Sequential/{i}" for i in range(3))]
    events = {event.name: event for event in watcher.store.events()}
    assert events["inside-compiled-function"].module == "Sequential"
    assert "SGD updates tensors of no module seen so far (1)" in events["no-model"].message
    assert events["no-model"].count == 1
    with hookcore.watch(server=None) as watcher:
        optimizer.step()
        assert watcher.flush()
        assert [event.name for event in watcher.store.events()] == ["no-model"]


@pytest.mark.rota
@pytest.mark.parametrize("budget", [None, 0.05, 0.001])
def test_a_compiled_function_that_calls_a_model_is_compiled_once_whatever_is_captured(budget: float | None) -> None:
    def train(steps: int) -> list[Tensor]:
        begin_afresh()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = torch.compile(lambda batch: model(batch).square().mean(), backend="eager")
        for _ in range(steps):
            optimizer.zero_grad()
            loss(torch.randn(8, 4)).backward()
            optimizer.step()
        return [each.detach().clone() for each in model.parameters()]

    alone, count = train(60), counted()
    with hookcore.watch(server=None, budget=budget) as watcher:
        watched = train(60)
        assert_as_counted(count)
        assert watcher.current_step == 60
    assert equal(watched, alone)


class CallsItself(nn.Module):
    """Runs a compiled function that calls the module again, in the middle of its own call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.runs = nn.Linear(4, 4), False
        self.again = torch.compile(lambda x: self(x), fullgraph=True, backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        if self.runs:
            result: Tensor = self.inner(x)
            return result
        self.runs = True
        try:
            found: Tensor = self.again(x) if x.shape[0] == 3 else self.inner(x)
        finally:
            self.runs = False
        return found


def test_a_held_model_whose_compiled_code_calls_it_again_is_compiled_in_one_graph() -> None:
    torch._dynamo.reset()
    model = CallsItself()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcore.watch(model, server=None, budget=None, every=1 << 20, capsule="error") as watcher:
        for step in range(20):
            model(torch.randn(3 if step > 15 else 2, 4)).sum().backward()
            optimizer.step()
        assert not watcher.errors
    torch._dynamo.reset()
