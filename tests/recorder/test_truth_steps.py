# mypy: disable-error-code="no-untyped-call"
"""The contents of a step: micro-batches, loss scales, checkpoints, failed passes, threads."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.hooks.backward import IN_ANY_ORDER
from hookcore.records import TENSOR_KINDS
from tests.harness import Key, assert_stats, read_step, seed_all, watch
from tests.inside import class_of, module_of, recorder_of
from tests.zoo.case import mean_square, noise, sgd
from tests.zoo.graphs import block

# --- Accumulation, scaling, several passes --------------------------------------------------------------------------


def _micro_batches(
    all_forwards_first: bool,
) -> tuple[dict[Key, dict[str, float]], int, list[Tensor], list[Tensor], nn.Module]:
    seed_all()
    model, batches = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), [noise(2 + i, 4) for i in range(3)]
    optimizer, outputs, gradients = sgd(model.parameters()), [], []

    def forward(batch: Tensor) -> Tensor:
        out: Tensor = model(batch)
        out.retain_grad()
        outputs.append(out)
        return mean_square(out)

    with watch(model, kinds={"output", "output_grad", "param_grad"}) as watcher:
        if all_forwards_first:
            for loss in [forward(batch) for batch in batches]:
                loss.backward()
        else:
            for batch in batches:
                forward(batch).backward()
        weight = model[0].weight.grad.clone()  # type: ignore[operator, union-attr]
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
        assert watcher.current_step == 1
    gradients = [out.grad for out in outputs if out.grad is not None]
    assert_stats(stats["0", "param_grad", "weight", 0], [weight])
    return stats, watcher.current_step, outputs, gradients, model


def test_micro_batches_of_one_step_are_merged_with_their_number() -> None:
    stats, _, outputs, gradients, _ = _micro_batches(all_forwards_first=False)
    assert_stats(stats["1", "output", "", 0], outputs)
    assert_stats(stats["1", "output_grad", "", 0], gradients)
    assert stats["1", "output", "", 0]["parts"] == 3


def test_forwards_before_the_first_backward_are_separate_calls() -> None:
    stats, _, outputs, gradients, _ = _micro_batches(all_forwards_first=True)
    for call in range(3):
        assert_stats(stats["1", "output", "", call], [outputs[call]])
        assert_stats(stats["1", "output_grad", "", call], [gradients[call]])


def test_the_number_of_micro_batches_is_in_the_store() -> None:
    model = nn.Linear(3, 1)
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for _ in range(4):
            model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        assert watcher.flush()
        assert watcher.store.scalars("hookcore/micro_batches").mean.tolist() == [4.0]


def test_a_graph_with_two_backward_passes_gives_its_gradient_twice() -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(3, 2))
    with watch(model) as watcher:
        out = model(noise(2, 3))
        loss = mean_square(out)
        loss.backward(retain_graph=True)
        loss.backward()
        watcher.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    grad = 2 * out.detach() / out.numel()
    assert_stats(stats["0", "output_grad", "", 0], [grad, grad])


def _scaled(clip: float | None, skip: bool) -> tuple[list[dict[Key, dict[str, float]]], list[dict[Key, Tensor]], Any]:
    """Return steps with a GradScaler, and the unscaled computation of each step that wasn't skipped."""
    seed_all()
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), noise(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, truth = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100), []
    with watch(model) as watcher:
        for number in range(3):
            optimizer.zero_grad()
            loss = mean_square(model(x)) * (1e38 if skip and number == 1 else 1.0)
            scaler.scale(loss).backward()
            if not (skip and number == 1):
                truth.append(_unscaled_truth(model, x, clip))
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
        assert watcher.flush()
        return [read_step(watcher, number) for number in range(watcher.current_step)], truth, watcher


def _unscaled_truth(model: nn.Sequential, x: Tensor, clip: float | None) -> dict[Key, Tensor]:
    weights = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    first = nn.functional.linear(x, weights[0], weights[1])
    last = nn.functional.linear(first.tanh(), weights[2], weights[3])
    first.retain_grad()
    last.retain_grad()
    mean_square(last).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(weights, clip)
    assert first.grad is not None
    assert last.grad is not None
    assert weights[0].grad is not None
    return {
        ("0", "output_grad", "", 0): first.grad,
        ("2", "output_grad", "", 0): last.grad,
        ("0", "param_grad", "weight", 0): weights[0].grad,
    }


@pytest.mark.parametrize("clip", [None, 0.01])
def test_gradients_under_a_loss_scale_are_unscaled_and_clipped_as_the_optimizer_gets_them(clip: float | None) -> None:
    steps, truth, watcher = _scaled(clip, skip=False)
    assert len(steps) == 3
    for stats, expected in zip(steps, truth, strict=True):
        for key, tensor in expected.items():
            assert_stats(stats[key], [tensor], key)
    assert watcher.store.scalars("hookcore/grad_scale").mean.tolist() == [1024.0] * 3


def test_a_step_that_the_scaler_skips_is_a_separate_labeled_step() -> None:
    steps, truth, watcher = _scaled(None, skip=True)
    assert len(steps) == 3
    skipped = [event.step for event in watcher.store.events() if event.name == "skipped-step"]
    assert skipped == [1]
    assert watcher.store.scalars("hookcore/skipped").first_step.tolist() == [1]
    for healthy, expected in zip((steps[0], steps[2]), truth, strict=True):
        for key, tensor in expected.items():
            assert_stats(healthy[key], [tensor], key)
    assert steps[1]["2", "output_grad", "", 0]["inf"] > 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_under_a_checkpoint_each_output_and_gradient_counts_once(reentrant: bool) -> None:
    def steps(run: Callable[..., Any]) -> dict[Key, dict[str, float]]:
        seed_all()
        model = nn.ModuleDict({"a": block(), "b": block(), "head": nn.Linear(6, 2)})
        x, optimizer = noise(5, 6).requires_grad_(), sgd(model.parameters())
        with watch(model) as watcher:
            loss = mean_square(model["head"](run(model["b"], run(model["a"], x))))
            loss.backward()
            optimizer.step()
            assert watcher.flush()
            return read_step(watcher, 0)

    def again(part: nn.Module, x: Tensor) -> Any:
        return checkpoint(part, x, use_reentrant=reentrant)

    plain, checkpointed = steps(lambda part, x: part(x)), steps(again)
    assert {key for key in plain if key[1] == "output_grad"} >= {
        ("a.1", "output_grad", "", 0),
        ("b", "output_grad", "", 0),
    }
    assert checkpointed.keys() == plain.keys()
    for key, stats in plain.items():
        assert checkpointed[key] == pytest.approx(stats, rel=1e-6, nan_ok=True), key


def test_gradients_of_autograd_grad_are_not_mistaken_for_those_of_backward() -> None:
    seed_all()
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), noise(5, 4).requires_grad_()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        out = model(x)
        out.retain_grad()
        torch.autograd.grad(mean_square(out), x, create_graph=True)
        mean_square(out).backward()
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    assert_stats(stats["1", "output_grad", "", 0], [2 * out.detach() / out.numel()])


class Equilibrium(nn.Module):
    """Solves its backward pass by an iteration with `autograd.grad`, as a deep equilibrium model does."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = (self.cell(x) / 4).tanh()
        start = state.detach().requires_grad_()
        again = (self.cell(start) / 4).tanh()

        def solve(gradient: Tensor) -> Tensor:
            found = gradient
            for _ in range(5):
                found = gradient + torch.autograd.grad(again, start, found, retain_graph=True)[0]
            return found

        state.register_hook(solve)
        return state


class Remembers(torch.autograd.Function):
    """A checkpoint whose backward pass uses `autograd.grad`, as in some diffusion models."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        ctx.run, ctx.weights = run, weights
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return (None, *torch.autograd.grad(ctx.run(x), (x, *ctx.weights), grads))


def test_an_iteration_by_autograd_grad_inside_a_backward_pass_brings_no_gradients() -> None:
    seed_all()
    model = nn.Sequential(Equilibrium(), nn.Linear(3, 1))
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        out = model(noise(5, 3))
        mean_square(out).backward()
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
        assert watcher.error_count == 0
    assert stats["0.cell", "output_grad", "", 0]["parts"] == 1
    assert ("0.cell", "output_grad", "", 1) not in stats
    assert_stats(stats["1", "output_grad", "", 0], [2 * out.detach() / 5])


def test_a_checkpoint_that_uses_autograd_grad_has_its_gradients() -> None:
    seed_all()
    inner, last, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 1), noise(5, 3)
    optimizer = sgd([*inner.parameters(), *last.parameters()])
    with watch(nn.ModuleList([inner, last])) as watcher:
        mean_square(last(Remembers.apply(inner, x, *inner.parameters()))).backward()
        assert all(parameter.grad is not None for parameter in inner.parameters())
        before = inner(x).detach().requires_grad_()
        mean_square(last(before)).backward()
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    assert before.grad is not None
    assert_stats(stats["0.1", "output_grad", "", 0], [before.grad])
    assert stats["0.0", "output_grad", "", 0]["parts"] == 1


class Solved(torch.autograd.Function):
    """An ODE whose gradient is another ODE, solved backward, as in torchdiffeq's `odeint_adjoint`."""

    @staticmethod
    def forward(ctx: Any, field: nn.Module, x: Tensor, *weights: Tensor) -> Tensor:
        for _ in range(3):
            x = x + field(x) / 3
        ctx.field, ctx.weights = field, weights
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,), (grad,), sums = ctx.saved_tensors, grads, [torch.zeros_like(each) for each in ctx.weights]
        for _ in range(3):
            with torch.enable_grad():
                start = x.detach().requires_grad_()
                slope = ctx.field(start)
            slopes = torch.autograd.grad(slope, (start, *ctx.weights), grad)
            x, grad = x - slope.detach() / 3, grad + slopes[0] / 3
            sums = [total + each / 3 for total, each in zip(sums, slopes[1:], strict=True)]
        return (None, grad, *sums)


def test_gradients_of_calls_that_a_backward_pass_repeats_in_another_order_are_left_out() -> None:
    seed_all()
    field, last = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = sgd([*field.parameters(), *last.parameters()])
    with watch(nn.ModuleList([field, last])) as watcher:
        mean_square(last(Solved.apply(field, noise(5, 3), *field.parameters()))).backward()
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
        reasons = {each.path: each.reason for each in watcher.coverage()}
    assert [key[3] for key in stats if key[:2] == ("0", "output")] == [0, 1, 2]
    assert not any(key[:2] == ("0", "output_grad") for key in stats)
    assert reasons["0"] == IN_ANY_ORDER
    assert ("1", "output_grad", "", 0) in stats
    assert watcher.error_count == 0
    with hookcore.trace(field) as seen:
        Solved.apply(field, noise(5, 3), *field.parameters()).sum().backward()
    with pytest.raises(hookcore.TraceError, match="in an unknown order"):
        print(seen[""].calls[1].output_grad)


def test_a_failed_forward_or_backward_uses_up_no_call_number() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise ValueError("no gradient")

    seed_all()
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), noise(5, 4)
    optimizer = sgd(model.parameters())
    with watch(model, kinds={"output_grad", "param_grad"}) as watcher:
        for _ in range(3):
            with contextlib.suppress(ValueError):
                Fails.apply(model(x)).sum().backward()
            optimizer.zero_grad()
            out = model(x)
            mean_square(out).backward()
            optimizer.step()
        assert watcher.flush()
        assert watcher.current_step == 3
        stats = read_step(watcher, 2)
        assert watcher.errors == []
    calls = {key[3] for key in stats}
    grads = [stats[key] for key in stats if key[:2] == ("1", "output_grad")]
    assert calls <= {0, 1}
    assert len(grads) == 1
    assert grads[0]["parts"] == 1


class Refuses(nn.Module):
    """Returns its input, and raises if there are too many rows."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 4:
            raise MemoryError(f"{len(x)} rows")
        return x + 0


def _repeated(how: str, settings: dict[str, Any]) -> tuple[list[dict[Key, dict[str, float]]], list[str]]:
    """Train for three steps, each of which begins with a pass that fails. Return the taps, and hookcore's errors."""
    seed_all()
    model = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Tanh(), Refuses()), nn.Linear(3, 2))
    if how == "with hooks of its own":
        model.register_forward_hook(lambda module, args, output: output)
    call: Callable[[Tensor], Any] = torch.compile(model, backend="eager") if how == "compiled" else model
    optimizer, x = sgd(model.parameters()), noise(6, 4)
    with contextlib.ExitStack() as after, watch(model, **settings) as watcher:
        if how == "compiled":  # after a call that raised, Dynamo compiles no Sequential anymore
            after.callback(torch._dynamo.reset)
        for _ in range(3):
            with contextlib.suppress(MemoryError, RuntimeError):
                loss = mean_square(call(x if how != "in the backward pass" else x[:4]))
                torch.autograd.backward(loss, torch.ones(7))  # its shape differs from the loss
            optimizer.zero_grad()
            mean_square(call(x[:4])).backward()
            optimizer.step()
        assert watcher.flush()
        return [read_step(watcher, step) for step in range(3)], [event.message for event in watcher.errors]


@pytest.mark.parametrize(
    "settings",
    [{}, {"kinds": TENSOR_KINDS}, {"attach": "module", "kinds": TENSOR_KINDS}],
    ids=["default", "all kinds", "hooks on modules"],
)
@pytest.mark.filterwarnings("ignore")  # of Dynamo
@pytest.mark.parametrize("how", ["plain", "with hooks of its own", "compiled"])
def test_calls_have_the_same_numbers_if_a_forward_pass_failed_before_and_was_repeated(
    how: str, settings: dict[str, Any]
) -> None:
    if how == "compiled" and settings.get("attach") == "module":
        settings = {}
    steps, errors = _repeated(how, settings)
    assert errors == []
    for stats in steps:
        assert {key[3] for key in stats} == {0}
        assert stats["", "output_grad", "", 0]["parts"] == 1
        if how != "compiled":  # the values computed before the failure are there
            assert stats["0", "output", "", 0]["parts"] == 2
            assert stats["0", "output_grad", "", 0]["parts"] == stats["2", "output", "", 0]["parts"] == 1


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_step_that_raised_and_is_repeated_counts_once(
    monkeypatch: pytest.MonkeyPatch, edited: bool, elsewhere: bool
) -> None:
    class Fails(torch.optim.SGD):
        is_well = False

        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            if not self.is_well:
                raise MemoryError
            return super().step(closure)

    if elsewhere:  # as on another device
        statistics = class_of("Statistics")

        def add(self: Any, plan: Any, tensor: Tensor, slot: int) -> None:
            self.devices.observe(plan, tensor.detach(), slot, stays=False)

        monkeypatch.setattr(statistics, "add", add)
    seed_all()
    model, x = nn.Linear(4, 3), noise(5, 4)
    optimizer = Fails(model.parameters(), 0.1)
    with watch(model, kinds=TENSOR_KINDS) as watcher:
        mean_square(model(x)).backward()
        with contextlib.suppress(MemoryError):
            optimizer.step()
        if edited:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        before, gradient = model.weight.detach().clone(), model.weight.grad
        assert gradient is not None
        optimizer.is_well = True
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    assert_stats(stats["", "param", "weight", 0], [before])
    assert_stats(stats["", "param_grad", "weight", 0], [gradient])
    assert_stats(stats["", "update", "weight", 0], [model.weight.detach() - before])
    assert stats["", "output", "", 0]["parts"] == 1


def test_calls_have_the_same_numbers_if_a_backward_pass_failed_before_it_reached_the_model() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise MemoryError

    model, x = nn.Linear(4, 3), noise(5, 4)
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        with contextlib.suppress(MemoryError):
            Fails.apply(model(x)).sum().backward()
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        assert watcher.flush()
        assert {key[3] for key in read_step(watcher, 0)} == {0}


def test_the_call_after_one_that_failed_keeps_its_number_if_the_model_was_called_before() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), Refuses()), noise(6, 4)
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        first = model(x[:2])
        with contextlib.suppress(MemoryError):
            model(x)
        mean_square([first, model(x[2:4])]).backward()
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    assert [stats["1", "output", "", call]["count"] for call in (0, 1)] == [6, 6]
    assert stats["0", "output", "", 0]["parts"] == 1


@pytest.mark.parametrize("kinds", [{"output", "output_grad"}, {"output_grad"}, TENSOR_KINDS], ids=len)
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("first", ["per sample", "second derivatives", "forward mode", "no data"])
def test_calls_without_values_do_not_shift_the_numbers_of_the_others(first: str, kinds: set[Any]) -> None:
    seed_all()
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), noise(5, 4)
    optimizer = sgd(model.parameters())

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return mean_square(torch.func.functional_call(model, weights, (row,)))

    def penalty() -> Tensor:
        weights = dict(model.named_parameters())
        if first == "per sample":
            found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
            return torch.stack([each.square().sum() for each in found.values()]).sum()
        if first == "second derivatives":
            return torch.func.vmap(torch.func.hessian(lambda row: model(row).sum()))(x).square().sum()
        if first == "no data":  # as if a script estimates how much memory a batch needs
            with FakeTensorMode(allow_non_fake_inputs=True):
                model(torch.ones(9, 4))
            return torch.zeros(())
        return torch.func.jvp(model, (x,), (torch.ones_like(x),))[1].square().sum()

    with watch(model, kinds=kinds) as watcher:
        optimizer.zero_grad()
        extra, out = penalty(), model(x)
        out.retain_grad()
        (mean_square(out) + extra).backward()
        optimizer.step()
        assert watcher.flush()
        stats, found = read_step(watcher, 0), {item.path: item for item in watcher.coverage()}
        assert watcher.errors == []
    assert {key[3] for key in stats} == {0}
    assert_stats(stats["2", "output_grad", "", 0], [out.grad])  # type: ignore[list-item]
    if "output" in kinds:
        assert_stats(stats["2", "output", "", 0], [out])
    if "input" in kinds:
        assert_stats(stats["0", "input", "0", 0], [x])
    assert found["2"].captured
    assert ("a tensor without data" if first == "no data" else "inside torch.func") in found["2"].reason


# --- Threads --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads switch a hundred times as often as usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 100)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_no_gradient_is_compared_while_several_threads_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch writes gradients without the interpreter lock, so reading another thread's can crash the process."""
    model, other = (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2))
    inputs, second = noise(5, 6), threading.Barrier(2)
    with watch(server=None) as watcher:
        clock = recorder_of(watcher).steps.clock
        compared: list[int] = []

        def marks_of(tensors: list[Tensor]) -> list[Any]:
            if clock.reach.many_threads:
                compared.append(clock.step)
            return [None if (grad := tensor.grad) is None else (id(grad), grad._version) for tensor in tensors]

        monkeypatch.setattr(module_of("Owners"), "marks_of", marks_of)

        def train(model: nn.Module) -> None:
            optimizer = sgd(model.parameters())
            for step in range(6):
                optimizer.zero_grad()
                loss = mean_square(model(inputs))
                if step == 0:
                    second.wait()
                loss.backward()
                optimizer.step()
                optimizer.step()  # late, and without a new gradient

        threads = [threading.Thread(target=train, args=(each,)) for each in (model, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clock.reach.many_threads
        assert watcher.errors == []
    assert compared == []


def test_without_an_optimizer_the_gradients_of_several_threads_are_left_out_and_an_event_says_so() -> None:
    model, other = nn.Linear(6, 3), nn.Linear(6, 3)
    with watch(model, kinds=TENSOR_KINDS) as watcher:
        for step in range(4):
            if step == 2:
                thread = threading.Thread(target=lambda: mean_square(other(noise(5, 6))).backward())
                thread.start()
                thread.join()
            mean_square(model(noise(5, 6))).backward()
            watcher.step()
        assert watcher.flush()
        kinds = [{key[1] for key in read_step(watcher, step)} for step in range(4)]
        events = [each.message for each in watcher.store.events(name="gradients-unread")]
    assert ["param_grad" in each for each in kinds] == [True, True, False, False]
    assert all({"output", "output_grad", "param"} <= each for each in kinds)
    assert len(events) == 1
    assert "several threads have run backward passes" in events[0]


@pytest.mark.parametrize("with_closure", [False, True])
def test_gradients_are_left_out_while_another_thread_may_set_them(with_closure: bool) -> None:
    """It may if it has called the model and hasn't stepped it yet. Threads that wait for each other lose nothing."""
    model, other, kinds = nn.Linear(6, 3), nn.Linear(6, 3), list[set[str]]()

    def compute(trained: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        loss = mean_square(trained(noise(5, 6)))
        loss.backward()
        return loss

    def train(trained: nn.Module = model) -> None:
        optimizer = sgd(trained.parameters())
        if with_closure:
            optimizer.step(lambda: compute(trained, optimizer))
        else:
            compute(trained, optimizer)
            optimizer.step()

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second, watch(kinds=TENSOR_KINDS) as watcher:
        for thread in (first, second, second, first, second):
            thread.submit(train).result()
        loss = second.submit(lambda: mean_square(model(noise(5, 6)))).result()
        first.submit(train).result()
        first.submit(train, other).result()
        second.submit(loss.backward).result()
        second.submit(train).result()
        assert watcher.flush()
        kinds = [{key[1] for key in read_step(watcher, step)} for step in range(8)]
        reasons = {each.reason for each in watcher.coverage()}
        assert watcher.errors == []
    assert ["param_grad" in each for each in kinds] == [True] * 5 + [False, True, False]
    assert all({"output", "output_grad", "param", "update"} <= each for each in kinds)
    assert any("several threads have called its model" in each for each in reasons)


def test_an_optimizer_that_is_still_being_made_is_no_error() -> None:
    """Another thread may be making it; the garbage collector finds it without its groups."""
    model, unfinished = nn.Linear(6, 3), torch.optim.SGD.__new__(torch.optim.SGD)
    optimizer = sgd([model.weight])
    with watch(model) as watcher:
        for _ in range(3):
            optimizer.zero_grad()
            mean_square(model(noise(5, 6))).backward()
            optimizer.step()
        assert watcher.flush()
        assert watcher.errors == []
    assert not hasattr(unfinished, "param_groups")


def test_an_update_is_left_out_if_another_thread_ends_the_step_before_it_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no row any more: the memory before the first one isn't hookcore's."""
    model, other = nn.Linear(6, 6), nn.Linear(6, 6)
    statistics, slots = class_of("Statistics"), set[int]()
    add = statistics.add

    def note(self: Any, plan: Any, tensor: Tensor, slot: int) -> None:
        slots.add(slot)
        if slot >= 0:
            add(self, plan, tensor, slot)

    def train(trained: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            mean_square(trained(noise(5, 6))).backward()
            optimizer.step()

    class Slow(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            thread = threading.Thread(target=train, args=(other, sgd(other.parameters()), 3))
            thread.start()
            thread.join()
            return super().step(closure)

    monkeypatch.setattr(statistics, "add", note)
    monkeypatch.setattr(class_of("Cadence"), "is_rare", lambda self, step: step % 4 == 0)  # updates are measured
    with hookcore.watch(nn.ModuleList([model, other]), budget=None) as watcher:
        train(model, Slow(model.parameters(), 0.1), 10)
        assert watcher.flush()
        assert watcher.store.steps().newest == 39
        assert watcher.error_count == 0
    assert -1 not in slots


@pytest.mark.usefixtures("hasty_threads")
def test_nothing_is_lost_if_several_threads_train() -> None:
    seed_all()
    models = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(4)]
    inputs, steps = noise(5, 6), 40

    def train(model: nn.Module) -> None:
        optimizer = sgd(model.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            mean_square(model(inputs)).backward()
            optimizer.step()

    with watch(kinds=TENSOR_KINDS) as watcher:
        threads = [threading.Thread(target=train, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert watcher.flush()
        assert watcher.errors == []
        parts: dict[tuple[str, str], float] = {}
        taps = watcher.store.taps()
        for number, tap in zip(taps.numbers, taps.taps, strict=True):
            series = watcher.store.series(int(number), "parts")
            key = (tap.module, f"{tap.kind} {tap.index}")
            parts[key] = parts.get(key, 0.0) + float(np.nansum(series.mean * series.present))
    assert len({module.partition("/")[0] for module, _ in parts}) == 4
    # Tensors of an optimizer's state, and what is computed from them, are read in few steps.
    assert {count for (_, kind), count in parts.items() if not kind.startswith(("state ", "probe "))} == {float(steps)}
