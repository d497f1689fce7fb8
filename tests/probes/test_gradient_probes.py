"""Probes of gradients: the cosine of successive gradients, their noise scale, and the sharpness along them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore import probes
from hookcore.errors import ArgumentError
from tests.harness import digest, random_state, seed_all
from tests.inside import recorder_of

Gradients = list[dict[str, Tensor]]


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def train(model: nn.Module, steps: int, see: Callable[[int], None] = lambda _: None, rows: int = 16) -> Gradients:
    """Return the gradient of each parameter in each step, in float64."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: Gradients = []
    for step in range(steps):
        see(step)
        optimizer.zero_grad()
        model(torch.randn(rows, 6)).pow(2).mean().backward()
        named = model.named_parameters()
        seen.append({name: each.grad.detach().clone().double() for name, each in named if each.grad is not None})
        optimizer.step()
    return seen


def watch(model: nn.Module, **settings: Any) -> hookcore.Watcher:
    return hookcore.watch(model, **{"server": None, "budget": None, **settings})


def series_of(watcher: hookcore.Watcher, label: str) -> dict[int, float]:
    watcher.flush()
    found = watcher.reader().series(label, "mean")
    return dict(zip(found.first_step.tolist(), found.mean.tolist(), strict=True))


def events_of(watcher: hookcore.Watcher, name: str) -> list[str]:
    watcher.flush()
    return [event.message for event in watcher.store.events() if event.name == name]


def cosine(one: Tensor, two: Tensor) -> float:
    return float((one * two).sum() / (one.norm() * two.norm()))


# -- the cosine of successive gradients --------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "compared"), [(1, [1, 6, 11]), (3, [1, 7, 13])])
def test_gradients_of_successive_steps_are_compared_whatever_is_captured(every: int, compared: list[int]) -> None:
    seed_all()
    model = make()
    with watch(model, every=every) as watcher:
        watcher.probe("cosine", probes.GradientCosine, kinds="param_grad", every=5)
        seen = train(model, 15)
        for name in seen[0]:
            module, _, parameter = name.rpartition(".")
            told = series_of(watcher, f"{module} probe [cosine param_grad {parameter}]")
            assert list(told) == compared
            for step, value in told.items():
                assert value == pytest.approx(cosine(seen[step - 1][name], seen[step][name]), abs=1e-6)
        assert not watcher.errors
        assert not events_of(watcher, "probe-failed")


def test_alternating_models_are_each_compared_with_their_own_last_gradient() -> None:
    seed_all()
    models = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    seen: list[list[Tensor]] = [[], []]
    with watch(models) as watcher:
        for step in range(40):
            if step == 20:
                watcher.probe("cosine", probes.GradientCosine, kinds="param_grad", every=1000)
            number = step % 2
            optimizers[number].zero_grad()
            models[number](torch.randn(5, 3)).pow(2).sum().backward()
            gradient = models[number].weight.grad
            assert gradient is not None
            seen[number].append(gradient.clone().double())
            optimizers[number].step()
        for number in range(2):
            told = series_of(watcher, f"{number} probe [cosine param_grad weight]")
            assert len(told) == 1
            ((step, value),) = told.items()
            assert 20 < step < 26
            turn = step // 2
            assert value == pytest.approx(cosine(seen[number][turn - 1], seen[number][turn]), abs=1e-6)


def test_nothing_is_compared_across_a_pause_or_another_parameter() -> None:
    seed_all()
    model = make()
    with watch(model) as watcher:
        watcher.probe("cosine", probes.GradientCosine, include="0", kinds="param_grad", every=4)

        def see(step: int) -> None:
            if step == 1:
                watcher.pause()
            if step == 3:
                watcher.resume()

        train(model, 8, see)
        told = series_of(watcher, "0 probe [cosine param_grad weight]")
        assert min(told) > 3
        assert len(told) == 1
        (probe,) = recorder_of(watcher).capture.observers.probes.added
        train(model, 3)
        assert len(probe.states) <= 2
    one = probes.GradientCosine()
    assert one(torch.ones(3)) is None
    assert one(torch.ones(4)) is None
    assert float(one(torch.ones(4)) or 0.0) == pytest.approx(1.0)


def test_the_sample_of_a_large_gradient_is_not_biased_by_its_patterns() -> None:
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(2048, 1024, generator=generator) * torch.linspace(0, 3, 1024)
    two = 0.5 * one + torch.randn(2048, 1024, generator=generator)
    for left, right in ((one, two), (one.T, two.T)):
        probe = probes.GradientCosine()
        assert probe(left) is None
        value = probe(right)
        assert value is not None
        assert float(value) == pytest.approx(cosine(left.double(), right.double()), abs=0.06)
        assert probe.previous is not None
        assert probe.previous.numel() == 4096
    places = torch.arange(4096) * 2654435761
    for count in (4097, 2**20, 2**22, 3 * 5**8, 4096 * 50257):
        assert len((places % count).unique()) == 4096


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_tiny_and_huge_gradients_have_a_cosine_and_zero_and_infinite_ones_have_none(size: float) -> None:
    probe = probes.GradientCosine()
    assert probe(torch.tensor([1.0, 0.0]) * size) is None
    assert float(probe(torch.tensor([1.0, 1.0]) * size) or 0.0) == pytest.approx(0.5**0.5, rel=1e-5)
    for bad in (torch.zeros(2), torch.tensor([torch.inf, 1.0])):
        value = probe(bad)
        assert value is not None
        assert value.isnan()
    assert probe(torch.eye(2).to_sparse()) is None


def test_a_class_gets_an_object_for_each_tensor_once_a_step_and_at_most_1024() -> None:
    made = []

    class Count:
        def __init__(self) -> None:
            made.append(self)
            self.calls = 0

        def __call__(self, tensor: Tensor) -> int:
            self.calls += 1
            return self.calls

    model = nn.Sequential(*(nn.Identity() for _ in range(1030)), nn.Linear(2, 2))
    with watch(model, kinds="param_grad") as watcher:
        watcher.probe("count", Count, every=1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(3, 2)).sum().backward()
        optimizer.step()
        assert series_of(watcher, "0 probe [count]") == {0: 1.0}
        assert len(made) == 1024
        assert "more than 1,024 tensors" in events_of(watcher, "probe-failed")[0]


def test_gradients_that_a_closure_computes_are_those_of_the_step() -> None:
    seed_all()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3)).pow(2).mean()
        loss.backward()
        assert model.weight.grad is not None
        seen.append(float(model.weight.grad.norm()))
        return loss

    with watch(model) as watcher:
        watcher.probe("size", torch.norm, kinds="param_grad", every=1)
        for _ in range(4):
            optimizer.step(closure)  # type: ignore[arg-type]
        told = series_of(watcher, "(root) probe [size param_grad weight]")
        assert list(told.values()) == pytest.approx(seen, rel=1e-6)


def outcome(probe: Callable[[hookcore.Watcher], None], passes: int = 1) -> tuple[str, str]:
    """Return the weights and generators after a training with a probe."""
    seed_all()
    model = make()
    with watch(model) as watcher:
        probe(watcher)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(8):
            optimizer.zero_grad()
            for _ in range(passes):
                model(torch.randn(16, 6)).pow(2).mean().backward()
            optimizer.step()
    return digest(model.state_dict()), random_state()


def test_the_cosine_changes_no_bit() -> None:
    probed = outcome(lambda watcher: watcher.probe("c", probes.GradientCosine, kinds="param_grad", every=2))
    assert probed == outcome(lambda _: None)


# -- the noise scale ---------------------------------------------------------------------------------------------------


def accumulate(
    model: nn.Module, batches: list[list[Tensor]], zero: bool = True, between: Callable[[], None] = lambda: None
) -> list[list[Tensor]]:
    """Train with micro-batches, and return the flat gradient of each of them in float64, by step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    for step in batches:
        if zero:
            optimizer.zero_grad()
        for batch in step:
            between()
            (model(batch).pow(2).mean() / len(step)).backward()
        seen.append([reference(model, batch) for batch in step])
        optimizer.step()
    return seen


def reference(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the gradient of a micro-batch, computed in float64 by an independent formula."""
    with hookcore.detached():
        inner = model[0] if isinstance(model, nn.ModuleList) else model
        assert isinstance(inner, nn.Linear)
        weight, bias = inner.weight.detach().double(), inner.bias.detach().double()
        rows = batch.double()
        errors = 2 * (rows @ weight.T + bias) / (len(rows) * len(bias))
        return torch.cat([(errors.T @ rows).flatten(), errors.sum(0)])


def expected_scale(steps: list[list[Tensor]]) -> float:
    """Return the noise scale after some steps, by its definition: from the variance of micro-batches and their mean."""
    noise = signal = 0.0
    for gradients in steps:
        count, every = len(gradients), torch.stack(gradients)
        mean = every.mean(0)
        variance = float((every - mean).pow(2).sum() / (count - 1))
        small = float(every.pow(2).sum(1).mean())
        noise = 0.9 * noise + variance / small
        signal = 0.9 * signal + (float(mean.pow(2).sum()) - variance / count) / small
    return noise / signal


def draw(steps: int, passes: int, rows: int = 64) -> list[list[Tensor]]:
    return [[torch.randn(rows, 3) + 1.0 for _ in range(passes)] for _ in range(steps)]


@pytest.mark.parametrize("zero", [True, False])
def test_the_noise_scale_is_the_variance_of_micro_batches_over_the_squared_gradient(zero: bool) -> None:
    seed_all()
    model = nn.Linear(3, 4)
    with watch(model) as watcher:
        watcher.probe("noise", probes.NoiseScale, every=2)
        seen = accumulate(model, draw(7, 4), zero)
        told = series_of(watcher, "(root) probe [noise]")
        assert list(told) == [0, 2, 4, 6]
        for place, value in enumerate(told.values()):
            assert value == pytest.approx(expected_scale([seen[step] for step in list(told)[: place + 1]]), rel=1e-3)
        assert not watcher.errors
        assert not events_of(watcher, "probe-failed")


def test_the_estimate_finds_a_known_noise_scale() -> None:
    seed_all()
    probe = probes.NoiseScale()
    parameter = nn.Parameter(torch.zeros(500))
    truth = torch.full((500,), 0.3)
    values = []
    for _ in range(200):
        parameter.grad = None
        for _ in range(4):
            probe.begin_pass([parameter])
            gradient = truth + 2.0 * torch.randn(500)
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            probe.end_pass([parameter])
        values.append(float(probe.end_step()))
    assert sum(values[50:]) / 150 == pytest.approx(2.0**2 / 0.3**2, rel=0.1)


def test_without_micro_batches_the_noise_scale_is_unknown_and_says_why_once() -> None:
    model = nn.Linear(3, 4)
    with watch(model) as watcher:
        watcher.probe("noise", probes.NoiseScale, every=1)
        accumulate(model, draw(4, 1))
        (why,) = events_of(watcher, "probe-unknown")
        assert "several micro-batches" in why
        assert "(root) probe [noise]" not in [tap.label for tap in watcher.reader().taps().taps]


def test_passes_of_another_model_are_not_micro_batches() -> None:
    seed_all()
    models = nn.ModuleList([nn.Linear(3, 4), nn.Linear(2, 2)])
    other = torch.optim.SGD(models[1].parameters(), lr=0.1)
    with watch(models[0]) as watcher:
        watcher.probe("noise", probes.NoiseScale, every=1)
        seen = accumulate(models[0], draw(1, 3), between=lambda: models[1](torch.ones(1, 2)).sum().backward())
        other.zero_grad()
        assert series_of(watcher, "(root) probe [noise]")[0] == pytest.approx(expected_scale(seen), rel=1e-3)


def test_large_parameters_are_sampled_and_the_noise_scale_stays_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(300, 400)), nn.Parameter(torch.zeros(7))]
    probe, gradients = probes.NoiseScale(), []
    for _ in range(5):
        probe.begin_pass(parameters)
        new = [torch.randn(each.shape, generator=generator) * 0.5 + 0.2 for each in parameters]
        for each, gradient in zip(parameters, new, strict=True):
            each.grad = gradient if each.grad is None else each.grad + gradient
        gradients.append(torch.cat([each.flatten() for each in new]).double())
        probe.end_pass(parameters)
    assert probe.total is not None
    assert probe.total.numel() == 4096 + 7
    assert float(probe.end_step()) == pytest.approx(expected_scale([gradients]), rel=0.15)


def test_non_finite_or_unsupported_gradients_have_no_noise_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(probe: probes.NoiseScale, *gradients: Tensor) -> Any:
        parameter = nn.Parameter(torch.zeros(2))
        for gradient in gradients:
            probe.begin_pass([parameter])
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            probe.end_pass([parameter])
        return probe.end_step()

    probe = probes.NoiseScale()
    one, two, bad = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0]), torch.tensor([torch.inf, 1.0])
    assert step(probe, one, bad).isnan()
    good = float(step(probe, one, two))
    assert good == pytest.approx(expected_scale([[one.double(), two.double()]]), rel=1e-5)
    assert float(step(probe, one, bad)) == good
    assert step(probes.NoiseScale(), one, -one).isnan()
    sparse = torch.eye(2).to_sparse()[0]
    assert "sparse" in step(probe, sparse, sparse)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert "another way than DistributedDataParallel" in step(probe, one, two)


def test_the_noise_scale_changes_no_bit() -> None:
    probed = outcome(lambda watcher: watcher.probe("n", probes.NoiseScale, every=2), passes=3)
    assert probed == outcome(lambda _: None, passes=3)


def test_a_failing_pass_probe_is_reported_and_switched_off() -> None:
    class Bad:
        def begin_pass(self, parameters: list[Tensor]) -> None:
            raise ValueError("no")

        def end_pass(self, parameters: list[Tensor]) -> None: ...

        def end_step(self) -> str:
            return "never"

    model = make()
    with watch(model) as watcher:
        watcher.probe("bad", Bad, every=1)
        train(model, 6)
        first, last = events_of(watcher, "probe-failed")
        assert "ValueError: no" in first
        assert "switched off" in last
        assert not watcher.errors


@pytest.mark.parametrize("failing", ["the hook", "the backward pass"])
def test_a_failed_inspection_of_local_gradients_leaves_no_hook_and_changes_nothing(failing: str) -> None:
    class Looks:
        def begin_pass(self, parameters: list[Tensor]) -> None: ...

        def wants_local(self) -> bool:
            return True

        def see_local(self, place: int, gradient: Tensor) -> None:
            seen.append(place)
            if failing == "the hook":
                raise ValueError("no")

        def end_pass(self, parameters: list[Tensor]) -> None: ...

        def end_step(self) -> str:
            return "never"

    def fail(_: Tensor) -> None:
        raise RuntimeError("of the user")

    seen: list[int] = []
    seed_all()
    model = make()
    own = model[0].weight.register_hook(lambda gradient: 2 * gradient)
    with watch(model) as watcher:
        watcher.probe("looks", Looks, every=1)
        for step in range(4):
            model.zero_grad()
            rows = model[0](torch.randn(4, 6))
            if failing == "the backward pass":
                rows.register_hook(fail)
                with pytest.raises(RuntimeError, match="of the user"):
                    model[1:](rows).sum().backward()
            else:
                model[1:](rows).sum().backward()
            watcher.step()
            hooked = {name: each._backward_hooks for name, each in model.named_parameters()}
            assert list(hooked.pop("0.weight") or ()) == [own.id], step
            assert set(hooked.values()) == {None}
        assert seen
        assert not watcher.errors
        assert bool(events_of(watcher, "probe-failed")) == (failing == "the hook")


# -- the sharpness -----------------------------------------------------------------------------------------------------


def exact_sharpness(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> float:
    """Return gᵀHg / gᵀg with the whole Hessian, in float64."""
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    shapes = [model.get_parameter(name).shape for name in names]
    start = torch.cat([model.get_parameter(name).detach().flatten() for name in names])

    def of_vector(vector: Tensor) -> Tensor:
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return loss(lambda rows: torch.func.functional_call(model, weights, (rows,)))  # type: ignore[arg-type]

    gradient = torch.autograd.functional.jacobian(of_vector, start)
    hessian = torch.autograd.functional.hessian(of_vector, start)
    return float(gradient @ hessian @ gradient / (gradient @ gradient))


def test_the_sharpness_is_that_of_the_exact_hessian() -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2), nn.Linear(2, 2)).double()
    model[2].bias.requires_grad_(False)
    rows, targets = torch.randn(20, 3).double(), torch.randn(20, 2).double()

    def loss(called: nn.Module) -> Tensor:
        return (called(rows) - targets).pow(2).mean() + called(rows).sin().mean()

    assert float(probes.sharpness(model, loss)) == pytest.approx(exact_sharpness(model, loss), rel=1e-9)
    assert float(probes.sharpness(model, lambda each: each(rows).sum() * 0.0 + each[0].weight.sum())) == 0.0
    assert probes.sharpness(model, lambda each: each(rows).sum() * 0.0).isnan()


def test_attention_and_recurrent_layers_have_a_sharpness() -> None:
    seed_all()
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    recurrent = nn.LSTM(8, 4, batch_first=True)
    rows = torch.randn(2, 5, 8)
    for value in (
        probes.sharpness(attention, lambda each: each(rows, rows, rows, need_weights=False)[0].pow(2).mean()),
        probes.sharpness(recurrent, lambda each: each(rows)[0].pow(2).mean()),
    ):
        assert value.isfinite()
        assert not value.requires_grad


@pytest.mark.parametrize("model", [True, False])
def test_the_sharpness_changes_nothing_and_is_logged(model: bool) -> None:
    def train_model(sharp: bool) -> tuple[str, str, Any]:
        seed_all()
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        net.add_module("head", nn.Linear(8, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with hookcore.watch(net if model else None, server=None, budget=None) as watcher:
            for step in range(8):
                rows = torch.randn(16, 6)
                net(rows).pow(2).mean().backward()
                if sharp and step % 3 == 0:
                    before = [each.grad.clone() for each in net.parameters() if each.grad is not None]
                    watcher.sharpness(net, lambda copy: copy(rows).pow(2).mean())  # noqa: B023
                    after = [each.grad for each in net.parameters() if each.grad is not None]
                    assert all(map(torch.equal, before, after))
                optimizer.step()
                optimizer.zero_grad()
            watcher.flush()
            assert not watcher.errors
            reader = watcher.reader()
            logged = reader.scalars("sharpness").series[0].first_step.tolist() if sharp else []
            assert len(reader.modules()) == 5
            assert len(reader.series("head output" if model else "Sequential/head output", "count").first_step) == 8
        return digest(net.state_dict()), random_state(), logged

    weights, state, logged = train_model(sharp=True)
    assert logged == [0, 3, 6]
    assert (weights, state) == train_model(sharp=False)[:2]


def test_an_invalid_sharpness_loss_says_what_is_right() -> None:
    model = nn.Linear(3, 1)
    rows = torch.randn(4, 3)
    for loss, told in (
        (lambda copy: model(rows).sum(), "use the argument"),
        (lambda copy: copy(rows).detach().sum() + 0 * rows.requires_grad_().sum(), "don't detach"),
        (lambda copy: copy(rows), "shape (4, 1)"),
        (lambda copy: 3, "a int"),
    ):
        with pytest.raises(ArgumentError) as raised:
            probes.sharpness(model, loss)  # type: ignore[arg-type]
        assert told in str(raised.value)
    with pytest.raises(ArgumentError, match="give a torch"):
        probes.sharpness(3, lambda copy: rows.sum())  # type: ignore[arg-type]
