# mypy: disable-error-code="no-untyped-call"
"""Unusual trainings on a real GPU: memory that runs out, models that move, odd types, graphs."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import hookcore
from hookcore.records import TENSOR_KINDS
from tests.gpu_world import GPU, MARKS, Run, batch, repeatable
from tests.harness import assert_stats, digest, read_step, seed_all, watch

pytestmark = MARKS

STEPS = 60


def layers(width: int = 64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width)).to(GPU)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class OutOfMemory(Run):
    """Every fifth batch is too large for the device: the loop catches the error, and continues with a smaller batch."""

    def __init__(self) -> None:
        model = layers()
        super().__init__(model, sgd(model), lambda net, n: net(batch(n, 32, 64)).square().mean())
        self.refused = 0

    def step(self, number: int) -> None:
        if number % 5 == 3:
            try:
                self.optimizer.zero_grad()
                first = self.model[0](batch(number, 32, 64))  # type: ignore[index]
                self.model[3](first.expand(2**21, 32, 64).contiguous().repeat(64, 1, 1))  # type: ignore[index]
            except torch.OutOfMemoryError:
                self.refused += 1
                torch.cuda.empty_cache()
            else:
                raise AssertionError("this batch should not fit")
        super().step(number)


class Crowded(Run):
    """The process may use hardly more memory than the training needs, so all other requests for memory fail."""

    def __init__(self) -> None:
        model = layers(512)
        super().__init__(model, sgd(model), lambda net, n: net(batch(n, 64, 512)).square().mean())
        self.step(0)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(GPU).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, torch.cuda.memory_reserved(GPU) / total * 1.001), GPU)


class Moved(Run):
    """The model moves to the CPU and back, as for a checkpoint or an evaluation."""

    def __init__(self) -> None:
        model = layers()
        super().__init__(model, torch.optim.SGD(model.parameters(), lr=0.05), self.anywhere)

    def anywhere(self, net: nn.Module, number: int) -> Tensor:
        device = next(net.parameters()).device
        return net(batch(number, 32, 64).to(device)).square().mean().to(GPU)

    def step(self, number: int) -> None:
        if number % 10 == 5:
            self.model.cpu()
        elif number % 10 == 8:
            self.model.to(GPU)
        super().step(number)


class Prefetched(Run):
    """Batches come from pinned memory on a separate stream; gradients accumulate over three of them."""

    def __init__(self) -> None:
        model = layers()
        super().__init__(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), self.lossy)
        self.side = torch.cuda.Stream()
        self.next = self.fetch(0)

    def fetch(self, number: int) -> Tensor:
        host = torch.randn(32, 64, generator=torch.Generator().manual_seed(number)).pin_memory()
        with torch.cuda.stream(self.side):
            return host.to(GPU, non_blocking=True)

    def lossy(self, net: nn.Module, number: int) -> Tensor:
        torch.cuda.current_stream().wait_stream(self.side)
        now = self.next
        now.record_stream(torch.cuda.current_stream())
        self.next = self.fetch(number + 1)
        with torch.autocast("cuda", torch.bfloat16):
            return net(now).float().square().mean()

    def step(self, number: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(3):
            loss = self.loss(self.model, number * 3 + part) / 3
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.detach())


class Adversarial(Run):
    """Two models and optimizers, with a penalty on second-order gradients, and spectral normalization."""

    def __init__(self) -> None:
        self.critic = nn.Sequential(spectral_norm(nn.Linear(16, 32)), nn.LeakyReLU(), nn.Linear(32, 1)).to(GPU)
        self.maker = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)).to(GPU)
        both = nn.ModuleDict({"critic": self.critic, "maker": self.maker})
        super().__init__(both, torch.optim.Adam(self.critic.parameters(), lr=1e-3), lambda net, n: torch.zeros(()))
        self.second = torch.optim.Adam(self.maker.parameters(), lr=1e-3)

    def step(self, number: int) -> None:
        real = batch(number, 32, 16).requires_grad_()
        self.optimizer.zero_grad()
        scores = self.critic(real)
        (slope,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
        fake = self.maker(batch(number + 1000, 32, 8))
        loss = self.critic(fake.detach()).mean() - scores.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        self.second.zero_grad()
        made = -self.critic(fake).mean()
        made.backward()
        self.second.step()
        self.losses += [loss.detach(), made.detach()]


class OddTypes(nn.Module):
    """Returns eight-bit floats, integers, booleans, complex numbers, None, and an empty tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.cast = nn.Linear(64, 64), nn.ModuleDict({"float16": nn.Identity(), "odd": nn.Identity()})

    def forward(self, x: Tensor) -> Any:
        out = self.inner(x)
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.int8, torch.bool):
            self.cast["odd"](out.detach().to(dtype))
        self.cast["odd"](torch.complex(out.detach(), -out.detach()))
        self.cast["odd"](out[:0])
        self.cast["odd"](None)
        self.cast["odd"](out.detach().t()[::2, 1:])
        return self.cast["float16"](out.half()).float()


def odd_types() -> Run:
    model = OddTypes().to(GPU)
    return Run(model, sgd(model), lambda net, n: net(batch(n, 32, 64)).square().mean())


class Graphed(Run):
    """A part of the model runs from a graph that torch has captured, forward and backward."""

    def __init__(self) -> None:
        model = layers()
        super().__init__(model, sgd(model), lambda net, n: net(batch(n, 32, 64)).square().mean())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model[0] = torch.cuda.make_graphed_callables(model[0], (batch(0, 32, 64),))


class Profiled(Run):
    """A training under torch's profiler."""

    def __init__(self) -> None:
        model = layers()
        super().__init__(model, sgd(model), lambda net, n: net(batch(n, 32, 64)).square().mean())

    def step(self, number: int) -> None:
        if number == 20:
            with torch.profiler.profile(acc_events=True):
                super().step(number)
        else:
            super().step(number)


RUNS: dict[str, Callable[[], Run]] = {
    "out_of_memory": OutOfMemory,
    "crowded": Crowded,
    "moved": Moved,
    "prefetched": Prefetched,
    "adversarial": Adversarial,
    "odd_types": odd_types,
    "graphed_in_part": Graphed,
    "profiled": Profiled,
}


def train(name: str, attach: Callable[[Run], contextlib.AbstractContextManager[Any]]) -> dict[str, str]:
    gc.collect()
    torch.cuda.empty_cache()
    with repeatable():
        seed_all()
        torch.cuda.manual_seed(0)
        run = RUNS[name]()
        try:
            with attach(run):
                for number in range(STEPS):
                    run.step(number)
            return run.outcome()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, GPU)


@pytest.mark.parametrize("name", RUNS)
def test_watching_changes_no_bit(name: str) -> None:
    watchers: list[hookcore.Watcher] = []

    @contextlib.contextmanager
    def everything(run: Run) -> Iterator[None]:
        with watch(run.model, kinds=TENSOR_KINDS, phases={"train", "eval"}, calls=16) as watcher:
            watchers.append(watcher)
            yield
            watcher.flush()

    expected = train(name, lambda _: contextlib.nullcontext())
    assert train(name, lambda _: contextlib.nullcontext()) == expected, "the training itself doesn't repeat its bits"
    assert train(name, everything) == expected
    (watcher,) = watchers
    assert [event.message for event in watcher.errors] == []
    if name == "crowded":
        missing = [event.count for event in watcher.store.events() if event.name == "no-gpu-memory"]
        assert sum(missing) > STEPS
        return
    assert watcher.store.steps().count >= STEPS - 1


@pytest.mark.parametrize("name", ["moved", "prefetched", "odd_types"])
def test_the_numbers_are_those_of_float64_at_any_step(name: str) -> None:
    seed_all()
    run = RUNS[name]()
    kept: dict[int, dict[str, list[Tensor]]] = {}
    now: dict[str, list[Tensor]] = {}
    with watch(run.model, kinds={"output"}, calls=16) as watcher:
        for path, module in run.model.named_modules():

            def saw(_: nn.Module, args: Any, out: Any, path: str = path) -> None:
                if isinstance(out, Tensor):
                    now.setdefault(path, []).append(out.detach().clone())

            module.register_forward_hook(saw)
        for number in range(30):
            run.step(number)
            kept[number], now = now, {}
        torch.cuda.synchronize()
        assert watcher.flush()
        compared = 0
        for number in (0, 4, 6, 9, 15, 22, 29):
            seen = read_step(watcher, number)
            for path, tensors in kept[number].items():
                keys = sorted((key for key in seen if key[:2] == (path, "output")), key=lambda key: key[3])
                for key in keys:
                    values = tensors[key[3]]
                    if values.is_complex():
                        continue
                    assert_stats(seen[key], [values.float().cpu().double()], (number, key), rel=1e-5)
                    compared += 1
    assert compared >= 20


def test_two_threads_each_train_bit_identically_under_one_watcher() -> None:
    def work(seed: int, found: dict[int, dict[str, str]]) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run = trainings[seed]
            for number in range(STEPS):
                run.step(number)
            stream.synchronize()
            found[seed] = {"parameters": digest(dict(run.model.state_dict())), "losses": digest(run.losses)}

    def both() -> dict[int, dict[str, str]]:
        found: dict[int, dict[str, str]] = {}
        threads = [threading.Thread(target=work, args=(seed, found)) for seed in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    trainings: dict[int, Run] = {}

    def build() -> None:
        for seed in (0, 1):
            seed_all(seed)
            model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(GPU)
            trainings[seed] = Run(model, sgd(model), lambda net, n: net(batch(n, 32, 64)).square().mean())
        torch.cuda.synchronize()

    with repeatable():
        build()
        expected = both()
        build()
        models = nn.ModuleDict({str(seed): run.model for seed, run in trainings.items()})
        with watch(models) as watcher:
            assert both() == expected
            assert watcher.flush()
        assert [event.message for event in watcher.errors] == []


def test_watching_takes_little_device_memory() -> None:
    def peak(attach: Callable[[nn.Module], contextlib.AbstractContextManager[Any]]) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(32)]).to(GPU)
        with attach(model):
            torch.cuda.reset_peak_memory_stats()
            for number in range(40):
                model(batch(number, 256, 1024)).square().mean().backward()
                model.zero_grad()
            torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    plain = peak(lambda _: contextlib.nullcontext())
    watched = peak(lambda model: watch(model, kinds=TENSOR_KINDS))
    assert watched - plain <= 64 * 2**20
