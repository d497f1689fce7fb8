# mypy: disable-error-code="no-untyped-call"
"""Trainings on a real GPU: harmless to the bit, true against float64, and never waiting for the device."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.capsules import record, replay
from hookcore.records import TENSOR_KINDS
from tests.capsule_files import capsules_of
from tests.gpu_world import GPU, MARKS, Run, batch, repeatable
from tests.harness import assert_stats, read_step, seed_all, watch
from tests.inside import keeper_of

pytestmark = MARKS

STEPS: Final = 6


@pytest.fixture(params=["alone", "together"], autouse=True)
def launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure each tensor by a launch of its own, and the small ones of an optimizer's hook by one, in turns."""
    monkeypatch.setenv("HOOKCORE_GPU_TOGETHER", "1" if request.param == "together" else "0")


def perceptron() -> Run:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(128, 8)).to(GPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Run(model, optimizer, lambda net, n: net(batch(n, 32, 64)).square().mean())


class Scaled(Run):
    """A training in mixed precision with float16, and an overflow in step 2."""

    def __init__(self) -> None:
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 8, 3),
            nn.Flatten(),
            nn.Linear(800, 4),
        ).to(GPU, memory_format=torch.channels_last)
        super().__init__(model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), self.lossy)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

    def lossy(self, model: nn.Module, number: int) -> Tensor:
        with torch.autocast("cuda", torch.float16):
            out = model(batch(number, 16, 3, 12, 12).to(memory_format=torch.channels_last))
        return out.float().square().mean() * (float("inf") if number == 2 else 1.0)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, number)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(loss.detach())


def transformer() -> Run:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(GPU)

    def loss(net: nn.Module, number: int) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = net(batch(number, 4, 10, 32))
        return out.float().square().mean()

    return Run(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss)


def recurrent() -> Run:
    model = nn.LSTM(8, 16, num_layers=2, batch_first=True).to(GPU)
    return Run(model, torch.optim.Adam(model.parameters()), lambda net, n: net(batch(n, 4, 7, 8))[0].square().mean())


def embeddings() -> Run:
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 4)).to(GPU)
    tokens = torch.arange(24, device=GPU).view(4, 6)
    return Run(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda net, n: net((tokens + n) % 50).square().mean()
    )


class Recomputed(nn.Module):
    """Two layers whose activations are recomputed in the backward pass, by the device's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Any:
        return self.second(checkpoint(lambda y: torch.tanh(self.first(y)), x, use_reentrant=False))


def recomputed() -> Run:
    model = Recomputed().to(GPU)
    return Run(model, torch.optim.Adam(model.parameters()), lambda net, n: net(batch(n, 8, 16)).square().mean())


class TwoStreams(nn.Module):
    """Two concurrent branches that call the same layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(256, 256), nn.Linear(256, 4)
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def forward(self, x: Tensor) -> Any:
        here, parts = torch.cuda.current_stream(), []
        for number, stream in enumerate(self.streams):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                part = x
                for _ in range(4):
                    part = torch.tanh(self.shared(part + number))
                parts.append(part)
        for stream in self.streams:
            here.wait_stream(stream)
        for part in parts:
            part.record_stream(here)
        return self.head(parts[0] * parts[1])


def two_streams() -> Run:
    model = TwoStreams().to(GPU)
    return Run(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda net, n: net(batch(n, 512, 256)).square().mean()
    )


def offloaded() -> Run:
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)).to(GPU)

    def loss(net: nn.Module, number: int) -> Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return net(batch(number, 8, 32)).square().mean()

    return Run(model, torch.optim.Adam(model.parameters(), capturable=True), loss)


def doubles() -> Run:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)).to(GPU, torch.float64)
    return Run(
        model,
        torch.optim.Rprop(model.parameters()),
        lambda net, n: torch.view_as_complex(net(batch(n, 8, 16).double()).view(8, 8, 2)).abs().mean(),
    )


def compiled() -> Run:
    run = perceptron()
    run.model = torch.compile(run.model)
    return run


def reduced_overhead() -> Run:
    """Compile into CUDA graphs."""
    run = perceptron()
    run.model = torch.compile(run.model, mode="reduce-overhead")
    return run


class Graphed(Run):
    """Steps 0 to 2 are eager. Then the whole step is captured in a graph while hookcore reads its measurements."""

    def __init__(self) -> None:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(GPU)
        super().__init__(
            model, torch.optim.Adam(model.parameters(), capturable=True), lambda net, _: net(self.x).square().mean()
        )
        self.x = torch.empty(32, 64, device=GPU)
        self.graph: torch.cuda.CUDAGraph | None = None

    def step(self, number: int) -> None:
        self.x.copy_(batch(number, 32, 64))
        if number < 3:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                super().step(number)
            torch.cuda.current_stream().wait_stream(side)
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad()
            with torch.cuda.graph(self.graph):
                self.out = self.loss(self.model, number)
                time.sleep(0.2)  # meanwhile, hookcore's threads work
                self.out.backward()
                self.optimizer.step()
        self.graph.replay()
        self.losses.append(self.out.detach().clone())


RUNS: Final[dict[str, Callable[[], Run]]] = {
    "perceptron": perceptron,
    "float16_with_a_scaler": Scaled,
    "transformer_in_bfloat16": transformer,
    "recurrent": recurrent,
    "sparse_embeddings": embeddings,
    "recomputed": recomputed,
    "two_streams": two_streams,
    "offloaded": offloaded,
    "float64_and_complex": doubles,
    "compiled": compiled,
    "compiled_into_graphs": reduced_overhead,
    "captured_in_a_graph": Graphed,
}
by_run = pytest.mark.parametrize("name", RUNS)


def train(name: str, attach: Callable[[Run], contextlib.AbstractContextManager[Any]]) -> dict[str, str]:
    torch._dynamo.reset()
    with repeatable():
        seed_all()
        torch.cuda.manual_seed(0)
        run = RUNS[name]()
        with attach(run):
            for number in range(STEPS):
                run.step(number)
        return run.outcome()


@by_run
def test_watching_changes_no_bit(name: str) -> None:
    watchers: list[hookcore.Watcher] = []

    @contextlib.contextmanager
    def everything(run: Run) -> Iterator[None]:
        with watch(run.model, kinds=TENSOR_KINDS, phases={"train", "eval"}) as watcher:
            watchers.append(watcher)
            yield
            watcher.flush()

    @contextlib.contextmanager
    def discovered(_: Run) -> Iterator[None]:
        with watch() as watcher:
            watchers.append(watcher)
            yield

    expected = train(name, lambda _: contextlib.nullcontext())
    assert train(name, lambda _: contextlib.nullcontext()) == expected, "the training itself doesn't repeat its bits"
    assert train(name, everything) == expected
    assert train(name, discovered) == expected
    for watcher in watchers:
        assert [event.message for event in watcher.errors] == []
        assert not [event for event in watcher.store.events() if event.name == "slow-kernel"]
        assert watcher.store.steps().count >= 3


class Witness:
    """Copies of the outputs of a training's modules, and of the gradients, made by torch's hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: dict[tuple[str, str], list[Tensor]] = {}
        for path, module in model.named_modules():
            module.register_forward_hook(lambda m, args, out, path=path: self.saw(path, out))

    def saw(self, path: str, out: Any) -> None:
        out = out[0] if isinstance(out, tuple) else out
        self.keep(path, "output", out)
        if out.requires_grad:
            out.register_hook(lambda grad: self.keep(path, "output_grad", grad))

    def keep(self, path: str, kind: str, tensor: Tensor) -> None:
        self.seen.setdefault((path, kind), []).append(tensor.detach().clone())


@pytest.mark.parametrize(
    "name",
    [
        "perceptron",
        "float16_with_a_scaler",
        "transformer_in_bfloat16",
        "recurrent",
        "two_streams",
        "float64_and_complex",
    ],
)
def test_the_numbers_are_those_of_float64(name: str) -> None:
    seed_all()
    run = RUNS[name]()
    with watch(run.model, kinds={"output", "output_grad", "param", "param_grad"}, calls=16) as watcher:
        for number in range(2):
            run.step(number)
        witness = Witness(run.model)
        run.step(5)
        torch.cuda.synchronize()
        assert watcher.flush()
        seen = read_step(watcher, 2)
    compared = 0
    for (path, kind), tensors in witness.seen.items():
        calls = sorted(key[3] for key in seen if key[:2] == (path, kind))
        for call in calls:
            index = next(key[2] for key in seen if key[:2] == (path, kind) and key[3] == call)
            values = tensors[call] if kind == "output" else tensors[len(tensors) - 1 - call]
            scale = 1024.0 if kind == "output_grad" and name.startswith("float16") else 1.0
            if kind == "output" or len(tensors) == 1:  # gradients of several calls arrive in the order of streams
                assert_stats(
                    seen[path, kind, index, call], [values.cpu().double() / scale], (path, kind, call), rel=1e-5
                )
                compared += 1
    for path, parameter in run.model.named_parameters():
        module, _, own = path.rpartition(".")
        if (key := (module, "param_grad", own, 0)) in seen and not name.startswith("float16"):
            assert_stats(seen[key], [parameter.grad.cpu()], key, rel=1e-5)
            compared += 1
    assert compared >= 4


def test_operators_in_cuda_graphs_write_in_each_replay_what_an_uncompiled_training_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOKCORE_GPU_GRAPHS", "1")

    def norms(compiles: bool) -> dict[Any, list[float]]:
        torch._dynamo.reset()
        seed_all()
        model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8)).to(GPU)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = Run(model, optimizer, lambda net, n: net(batch(n, 32, 64)).square().mean())
        kinds = ("output", "output_grad")
        with hookcore.watch(model, compiled="inside", calls=1, kinds=kinds, budget=None, server=None) as watcher:
            if compiles:
                run.model = torch.compile(run.model, mode="reduce-overhead")
            for number in range(8):
                run.step(number)
            assert watcher.flush()
            assert watcher.error_count == 0
            assert not [each for each in watcher.store.events() if each.name.startswith("graph-")]
            return {tap: list(watcher.store.series(tap, "norm").mean) for tap in watcher.store.taps().taps}

    expected, seen = norms(compiles=False), norms(compiles=True)
    assert seen.keys() == expected.keys()
    for tap, values in expected.items():
        assert seen[tap] == pytest.approx(values, rel=1e-2), tap


@pytest.mark.parametrize("name", ["perceptron", "transformer_in_bfloat16", "recomputed", "recurrent"])
def test_a_watched_training_never_waits_for_the_gpu(name: str) -> None:
    run = RUNS[name]()
    with watch(run.model, kinds=TENSOR_KINDS, phases={"train", "eval"}) as watcher:
        for number in range(3):  # compiles the kernels
            run.step(number)
        watcher.flush()
        kind, shape = MEASURED[name]
        path = next(path for path, module in run.model.named_modules() if type(module) is kind)
        index = "0" if kind is nn.LSTM else ""
        watcher.request_snapshot(path, "output", index)
        watcher.request_snapshot(path, "output_grad", index)
        inputs = [batch(number, *shape) for number in range(4)]
        with no_waiting():
            for x in inputs:
                run.optimizer.zero_grad()
                out = run.model(x)
                loss = (out[0] if isinstance(out, tuple) else out).float().square().mean()
                loss.backward()
                run.optimizer.step()
                watcher.log(loss=loss.detach())
            watcher.flush()
        assert [event.message for event in watcher.errors] == []
        seen = {snapshot.tap.kind for snapshot in watcher.store.snapshots()}
        assert seen == {"output", "output_grad"}, [event.message for event in watcher.store.events()]
        logged = watcher.reader().scalars("loss")["loss"]
        assert float(logged.mean[-1]) == pytest.approx(float(loss.detach()), rel=1e-6)


MEASURED: Final[dict[str, tuple[type[nn.Module], tuple[int, ...]]]] = {
    "perceptron": (nn.Linear, (32, 64)),
    "transformer_in_bfloat16": (nn.LayerNorm, (4, 10, 32)),
    "recomputed": (nn.Linear, (8, 16)),
    "recurrent": (nn.LSTM, (4, 7, 8)),
}


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_tensor_is_measured_by_the_stream_that_made_it_and_streams_do_not_wait_for_each_other() -> None:
    model = nn.Identity()
    side, late = torch.cuda.Stream(), torch.zeros(1 << 20, device=GPU, requires_grad=True)
    with watch(model, phases={"train", "eval"}, kinds={"output"}) as watcher:
        for step in range(3):
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(500_000_000)
                busy = late + 1
                model(busy)
            model(torch.full((1000,), 3.0, device=GPU, requires_grad=True) * 1)
            watcher.step()
            # The end of the step waited for nothing: the other stream is still sleeping. The first step compiles.
            assert step == 0 or not side.query()
        torch.cuda.synchronize()
        watcher.flush()
        taps = watcher.store.taps()
        found = read_step(watcher, 1)
    assert taps.taps
    assert found["", "output", "", 0]["mean"] == 1.0
    assert found["", "output", "", 0]["count"] == 1 << 20
    assert found["", "output", "", 1]["mean"] == 3.0


def test_a_tap_on_two_devices_is_one_tap() -> None:
    model = nn.Identity()
    with watch(model, phases={"train", "eval"}, kinds={"output"}, calls=1) as watcher:
        for _ in range(3):
            model(torch.full((10,), 1.0, requires_grad=True) * 1)
            model(torch.full((30,), 3.0, device=GPU, requires_grad=True) * 1)
            watcher.step()
        watcher.flush()
        found = read_step(watcher, 1)["", "output", "", 0]
    assert (found["count"], found["mean"], found["min"], found["max"], found["parts"]) == (40, 2.5, 1.0, 3.0, 2)


def test_nan_on_a_gpu_is_an_incident_at_its_step() -> None:
    run = perceptron()
    with watch(run.model) as watcher:
        for number in range(40):
            if number == 30:
                with torch.no_grad():
                    run.model[3].weight[0, 0] = float("nan")
            run.step(number)
        watcher.flush()
        incidents = watcher.store.incidents()
    assert incidents
    assert min(incident.first_step for incident in incidents) == 30


def spoiled(run: Run, number: int) -> None:
    """Take a step whose batch is infinite in step 30, and let the host wait as a loop does that prints its loss."""
    run.optimizer.zero_grad()
    loss = run.model(batch(number, 32, 64) * (float("inf") if number == 30 else 1.0)).square().mean()
    loss.backward()
    run.optimizer.step()
    loss.item()


def test_the_step_that_became_nan_on_a_gpu_is_saved_with_the_weights_that_it_began_with() -> None:
    with repeatable():
        seed_all()
        run = perceptron()
        with hookcore.watch(run.model, server=None, capsule="error") as watcher:
            for number in range(40):
                spoiled(run, number)
        assert not watcher.errors
        (path, *_) = capsules_of(watcher)
        found = replay(path)
    assert float(found.about["step"]) == 30
    assert found.about["weights"] == "before the update"
    assert found.exact, found.differences
    assert found.culprit is not None
    assert found.culprit.operator.startswith("argument")


@by_run
def test_keeping_the_weights_of_the_last_steps_changes_no_bit(name: str) -> None:
    watchers: list[hookcore.Watcher] = []

    @contextlib.contextmanager
    def kept(run: Run) -> Iterator[None]:
        with hookcore.watch(run.model, server=None, budget=None, every=1 << 20, capsule="error") as watcher:
            watchers.append(watcher)
            yield

    assert train(name, kept) == train(name, lambda _: contextlib.nullcontext())
    assert [event.message for each in watchers for event in each.errors] == []


def test_keeping_the_weights_of_the_last_steps_never_waits_for_the_gpu() -> None:
    run = perceptron()
    with hookcore.watch(run.model, server=None, budget=None, every=1 << 20, capsule="error") as watcher:
        for number in range(3):
            run.step(number)
        inputs = [batch(number, 32, 64) for number in range(40)]
        with no_waiting():
            for x in inputs:
                run.optimizer.zero_grad()
                run.model(x).square().mean().backward()
                run.optimizer.step()
        assert keeper_of(watcher).late_steps.used > 0
        assert [event.message for event in watcher.errors] == []


def test_a_recorded_step_is_replayed_to_the_bit(tmp_path: Path) -> None:
    with repeatable():
        run = transformer()
        run.step(0)
        with record(run.model, tmp_path / "step.capsule", "asked") as recording:
            run.optimizer.zero_grad()
            loss = run.loss(run.model, 1)
            loss.backward()
            recording.write()
        assert recording.written is not None, recording.failure
        found = replay(tmp_path / "step.capsule")
    assert not found.error
    assert found.exact, found.differences


def test_tracing_gives_tensors_of_the_gpu() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(GPU)
    x = batch(0, 4, 8)
    with hookcore.trace(model) as seen:
        model(x).sum().backward()
    assert seen["0"].output.device == GPU
    assert torch.equal(seen["1"].output, torch.relu(model[0](x)))
    assert seen["0"].output_grad.device == GPU


def test_the_sensors_and_the_allocator_of_the_gpu_are_read() -> None:
    run = perceptron()
    own = "hookcore/system/gpu0/"
    keep = torch.zeros(1 << 26, device=GPU)
    with watch(run.model) as watcher:
        until = time.monotonic() + 20
        names: set[str] = set()
        while time.monotonic() < until and not {f"{own}utilization", f"{own}allocated"} <= names:
            for number in range(20):
                run.step(number)
            watcher.flush()
            names = set(watcher.reader().scalars().names)
        found = watcher.reader().scalars([name for name in names if name.startswith(own)])
        labels = watcher.store.labels()
    assert {own + name for name in ("utilization", "memory", "power", "temperature")} <= names, labels
    allocated = float(found[f"{own}allocated"].mean[-1])
    assert keep.nbytes <= allocated <= 2 * torch.cuda.max_memory_allocated()
    assert float(found[f"{own}memory"].mean[-1]) >= keep.nbytes
    assert torch.cuda.get_device_name() in labels["machine gpu0"]


def test_device_memory_does_not_grow_and_is_released() -> None:
    run = perceptron()
    run.step(0)
    run.losses.clear()
    torch.cuda.synchronize()
    before, levels = torch.cuda.memory_allocated(), []
    with watch(run.model, kinds=TENSOR_KINDS) as watcher:
        for number in range(120):
            run.step(number)
            run.losses.clear()
            if number % 40 == 39:
                watcher.flush()
                torch.cuda.synchronize()
                levels.append(torch.cuda.memory_allocated())
    del watcher
    gc.collect()
    torch.cuda.synchronize()
    assert max(levels) - levels[0] <= 1 << 16
    assert torch.cuda.memory_allocated() - before <= 1 << 16


def test_another_thread_can_wait_while_a_graph_is_captured() -> None:
    from hookcore.observe.copies import wait_for

    failures: list[Exception] = []
    event = torch.cuda.Event()
    x = torch.ones(1000, device=GPU)
    x.add_(1)
    event.record()
    graph, ready = torch.cuda.CUDAGraph(), threading.Event()

    def wait() -> None:
        ready.wait()
        try:
            wait_for(event)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with torch.cuda.graph(graph):
        x.mul_(2)
        ready.set()
        thread.join()
        x.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert not failures
    assert float(x[0]) == 8.0


def test_a_model_in_ddp_with_nccl_is_watched(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(GPU)
        wrapped = DistributedDataParallel(model, device_ids=[0])
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        with watch(wrapped) as watcher:
            for number in range(5):
                optimizer.zero_grad()
                wrapped(batch(number, 16, 64)).square().mean().backward()
                optimizer.step()
            watcher.flush()
            assert [event.message for event in watcher.errors] == []
            assert watcher.store.steps().count == 5
    finally:
        dist.destroy_process_group()
