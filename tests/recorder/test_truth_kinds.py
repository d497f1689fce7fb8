# mypy: disable-error-code="no-untyped-call"
"""All kinds of tensors equal those of autograd and the optimizer. A network from a blog has its published values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.records import TENSOR_KINDS
from tests.harness import Key, assert_stats, read_step, seed_all, watch
from tests.zoo.case import mean_square, mlp, noise, sgd

# --- Kinds ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_a_step_equals_autograd_and_the_optimizer() -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    x, optimizer = noise(3, 4).requires_grad_(), torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, kinds=TENSOR_KINDS) as watcher:
        mean_square(model(x)).backward()
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    first = nn.functional.linear(x, before["0.weight"], before["0.bias"])
    second = first.tanh()
    last = nn.functional.linear(second, before["2.weight"], before["2.bias"])
    slopes = torch.autograd.grad(mean_square(last), [x, first, second, last])
    expected: dict[Key, Tensor] = {
        ("0", "output", "", 0): first,
        ("1", "input", "0", 0): first,
        ("1", "output", "", 0): second,
        ("2", "output", "", 0): last,
        ("", "output", "", 0): last,
        ("", "input", "0", 0): x,
        ("0", "input_grad", "0", 0): slopes[0],
        ("0", "output_grad", "", 0): slopes[1],
        ("1", "input_grad", "0", 0): slopes[1],
        ("1", "output_grad", "", 0): slopes[2],
        ("2", "output_grad", "", 0): slopes[3],
        ("", "output_grad", "", 0): slopes[3],
    }
    for module, name in (("0", "weight"), ("0", "bias"), ("2", "weight"), ("2", "bias")):
        parameter = model.get_parameter(f"{module}.{name}")
        assert parameter.grad is not None
        expected[module, "param", name, 0] = before[f"{module}.{name}"]
        expected[module, "param_grad", name, 0] = parameter.grad
        expected[module, "update", name, 0] = parameter.detach() - before[f"{module}.{name}"]
    for key, tensor in expected.items():
        assert_stats(stats[key], [tensor], key)
    ratio = stats["0", "update", "weight", 0]["norm"] / stats["0", "param", "weight", 0]["norm"]
    assert stats["0", "update", "weight", 0]["ratio"] == pytest.approx(ratio, rel=1e-6)


def test_the_gradient_of_an_input_includes_all_of_its_uses() -> None:
    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            hidden = self.first(x)
            return self.one(hidden) + self.two(hidden) * hidden

    seed_all()
    model, x = Uses(), noise(3, 4)
    with watch(model, kinds={"input_grad", "output_grad"}) as watcher:
        hidden: list[Tensor] = []
        model.first.register_forward_hook(lambda module, args, out: hidden.append(out) or out.retain_grad())  # type: ignore[func-returns-value]
        mean_square(model(x)).backward()
        watcher.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    assert hidden[0].grad is not None
    for key in (("first", "output_grad", "", 0), ("one", "input_grad", "0", 0), ("two", "input_grad", "0", 0)):
        assert_stats(stats[key], [hidden[0].grad], key)


@pytest.mark.parametrize("how", ["set", "registered", "loaded"])
def test_parameters_added_after_the_watch_are_captured(how: str) -> None:
    seed_all()
    first, last, x = nn.Linear(4, 3), nn.Linear(3, 2), noise(5, 4)
    model = nn.Sequential(first, last)
    with watch(model, kinds={"param", "param_grad", "update"}) as watcher:
        for number in range(2):
            if how == "set":
                last.weight = nn.Parameter(last.weight.detach() * 0.5)
            elif how == "registered":
                last.register_parameter("weight", nn.Parameter(last.weight.detach() * 0.5))
            else:
                model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()}, assign=True)
            optimizer = sgd(model.parameters())
            mean_square(model(x)).backward()
            before = last.weight.detach().clone()
            optimizer.step()
            assert watcher.flush()
            stats = read_step(watcher, number)
            assert last.weight.grad is not None
            assert_stats(stats["1", "param", "weight", 0], [before])
            assert_stats(stats["1", "param_grad", "weight", 0], [last.weight.grad])
            assert_stats(stats["1", "update", "weight", 0], [last.weight.detach() - before])
            model.zero_grad()


def test_parameters_that_replace_others_in_an_optimizer_are_captured() -> None:
    seed_all()
    model, x = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)]), noise(5, 4)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with watch(model) as watcher:
        for part in model:
            optimizer.param_groups[0]["params"] = list(part.parameters())
            mean_square(part(x)).backward()
            optimizer.step()
        assert watcher.flush()
        owners = [{key[0] for key in read_step(watcher, n) if key[1] == "param_grad"} for n in range(2)]
    assert owners == [{"0"}, {"1"}]


# --- The blog's network ---------------------------------------------------------------------------------------------


class TwoTwoTwo(nn.Module):
    """A network with two inputs, two hidden neurons, and two outputs, all with sigmoids."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.hidden_on = nn.Linear(2, 2), nn.Sigmoid()
        self.output, self.output_on = nn.Linear(2, 2), nn.Sigmoid()
        with torch.no_grad():
            self.hidden.weight.copy_(torch.tensor([[0.15, 0.20], [0.25, 0.30]]))
            self.output.weight.copy_(torch.tensor([[0.40, 0.45], [0.50, 0.55]]))
            self.hidden.bias.fill_(0.35)
            self.output.bias.fill_(0.60)

    def forward(self, x: Tensor) -> Any:
        return self.output_on(self.output(self.hidden_on(self.hidden(x))))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _blog_by_hand() -> dict[tuple[str, str, str], Any]:
    x, target = np.array([0.05, 0.10]), np.array([0.01, 0.99])
    w1, w2 = np.array([[0.15, 0.20], [0.25, 0.30]]), np.array([[0.40, 0.45], [0.50, 0.55]])
    net1 = w1 @ x + 0.35
    hidden = _sigmoid(net1)
    net2 = w2 @ hidden + 0.60
    output = _sigmoid(net2)
    d_output = output - target
    d_net2 = d_output * output * (1 - output)
    d_hidden = w2.T @ d_net2
    d_net1 = d_hidden * hidden * (1 - hidden)
    return {
        ("hidden", "output", ""): net1,
        ("hidden_on", "output", ""): hidden,
        ("output", "output", ""): net2,
        ("output_on", "output", ""): output,
        ("output_on", "output_grad", ""): d_output,
        ("output", "output_grad", ""): d_net2,
        ("hidden_on", "output_grad", ""): d_hidden,
        ("hidden", "output_grad", ""): d_net1,
        ("output", "param_grad", "weight"): np.outer(d_net2, hidden),
        ("output", "param_grad", "bias"): d_net2,
        ("hidden", "param_grad", "weight"): np.outer(d_net1, x),
        ("hidden", "param_grad", "bias"): d_net1,
    }


def test_the_network_from_the_blog_post_has_its_published_values() -> None:
    model = TwoTwoTwo()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch(model) as watcher:
        out = model(torch.tensor([0.05, 0.10]))
        loss = (out - torch.tensor([0.01, 0.99])).pow(2).sum() / 2
        loss.backward()
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    assert loss.item() == pytest.approx(0.298371109, abs=1e-7)
    hidden, output = stats["hidden_on", "output", "", 0], stats["output_on", "output", "", 0]
    assert (hidden["min"], hidden["max"]) == pytest.approx((0.593270, 0.596884), abs=1e-6)
    assert (output["min"], output["max"]) == pytest.approx((0.751365, 0.772928), abs=1e-6)
    for (module, kind, index), values in _blog_by_hand().items():
        seen = stats[module, kind, index, 0]
        flat = np.ravel(values)
        expected = {
            "min": flat.min(),
            "max": flat.max(),
            "mean": flat.mean(),
            "std": flat.std(),
            "norm": np.linalg.norm(flat),
        }
        for name, value in expected.items():
            assert seen[name] == pytest.approx(value, rel=3e-6, abs=1e-7), (module, kind, index, name)


# --- Additions by the user ------------------------------------------------------------------------------------------


def test_an_observed_tensor_and_its_gradient_are_taps() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)
            self.watcher: hookcore.Watcher | None = None

        def forward(self, x: Tensor) -> Any:
            scores = self.query(x) @ self.key(x).T
            if self.watcher is not None:
                assert self.watcher.observe("scores", scores) is scores
            scores.retain_grad()
            self.seen = scores
            return scores.softmax(-1)

    seed_all()
    model = Attends()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        model.watcher = watcher
        mean_square(model(noise(3, 4))).backward()
        optimizer.step()
        watcher.log(loss=torch.tensor(0.25), lr=0.5)
        mean_square(model(noise(3, 4))).backward()
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 1)
        assert watcher.store.scalars("loss").mean.tolist() == [0.25]
        assert watcher.store.scalars("lr").mean.tolist() == [0.5]
    assert model.seen.grad is not None
    assert_stats(stats["scores", "output", "", 0], [model.seen])
    assert_stats(stats["scores", "output_grad", "", 0], [model.seen.grad])


def test_quantiles_of_values_out_of_range_are_correct_or_unknown() -> None:
    model = nn.Identity()
    with watch(model, phases=("train", "eval"), kinds=("output",)) as watcher:
        for low, high in ((1e60, 2e60), (1e60, 1.05e60), (1e-60, 1.02e-60), (1.0, 2.0)):
            model(torch.linspace(low, high, 1001, dtype=torch.float64))
            watcher.step()
        watcher.flush()
        wide, *others = watcher.store.quantiles(0, [0.0, 0.5, 1.0]).values.tolist()
    assert wide == pytest.approx([1e60, np.nan, 2e60], nan_ok=True)
    assert np.array(others) == pytest.approx(np.array([[1e60] * 3, [1e-60] * 3, [1.0, 1.5, 2.0]]), rel=0.07)


def test_quantiles_are_correct_at_any_magnitude_of_a_float32() -> None:
    model, sizes = nn.Identity(), (1e-37, 1e-20, 1e-3, 1.0, 1e9, 1e20, 5e37)
    with watch(model, phases=("train", "eval"), kinds=("output",)) as watcher:
        for size in sizes:
            model(torch.linspace(-3 * size, 3 * size, 1001))
            watcher.step()
        watcher.flush()
        told = watcher.store.quantiles(0, [0.0, 0.25, 0.75, 1.0]).values
    assert told == pytest.approx(np.outer(sizes, [-3.0, -1.5, 1.5, 3.0]), rel=0.07)


def test_gradients_that_a_loss_scale_moved_out_of_range_are_not_reported_as_its_edge() -> None:
    model = mlp()
    optimizer = sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    with watch(model) as watcher:
        out = model(noise(5, 6))
        scaler.scale((out * 1000).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        watcher.flush()
        (number,) = watcher.store.taps(kind="output_grad", match="3").numbers.tolist()
        values = watcher.store.quantiles(number, [0.1, 0.5, 0.9]).values
        shown = watcher.store.histograms(number)
    assert values == pytest.approx(np.full((1, 3), 1000.0), rel=0.07)
    filled = np.flatnonzero(shown.counts[0])
    assert [(shown.edges[place] <= 1000 < shown.edges[place + 1]) for place in filled.tolist()] == [True]


def test_evaluation_is_separate_from_training() -> None:
    seed_all()
    model, x = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())
    with watch(model, phases={"train", "eval"}) as watcher:
        model.eval()
        with torch.no_grad():
            evaluated = model(x)
        model.train()
        trained = model(x)
        mean_square(trained).backward()
        optimizer.step()
        assert watcher.flush()
        assert_stats(read_step(watcher, 0, "eval")["", "output", "", 0], [evaluated])
        assert_stats(read_step(watcher, 0, "train")["", "output", "", 0], [trained])


def test_evaluation_is_captured_only_on_request() -> None:
    model, x = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        mean_square(model(x)).backward()
        optimizer.step()
        with torch.no_grad():
            model(x)
        with torch.inference_mode():
            model.eval()(x)
        model.train()
        mean_square(model(x)).backward()
        optimizer.step()
        assert watcher.flush()
        assert read_step(watcher, 0, "eval") == read_step(watcher, 1, "eval") == {}
        assert {key[3] for key in read_step(watcher, 1)} == {0}
        assert all(stats["parts"] == 1 for stats in read_step(watcher, 1).values())


def test_a_watcher_with_little_memory_does_not_report_refused_tensors_as_captured() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(700)))
    watcher = hookcore.watch(model, server=None, budget=None, memory=2**21, kinds=("output",))
    model(torch.ones(2, requires_grad=True))
    watcher.step()
    watcher.flush()
    captured = {each.path for each in watcher.coverage() if each.captured}
    stored = {tap.module for tap in watcher.store.taps().taps}
    assert 0 < len(stored) < 701
    assert captured == stored
    watcher.close()
