"""CKA: how alike the representations of a fixed batch are, in layers, steps, and runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

import hookcore
from hookcore import probes
from hookcore.errors import HookcoreError
from hookcore.store.unlike import cka
from tests.harness import digest, random_state, seed_all
from tests.lanes import examples
from tests.serving import TOKEN, served

Floats = NDArray[np.float64]


def hsic(one: Floats, two: Floats) -> float:
    """Return the unbiased estimate as Song et al. (2012) write it, equation 4."""
    size, ones = len(one), np.ones(len(one))
    one, two = (each - np.diag(np.diag(each)) for each in (one, two))
    total = np.trace(one @ two) + ones @ one @ ones * (ones @ two @ ones) / ((size - 1) * (size - 2))
    return float(total - 2 / (size - 2) * (ones @ one @ two @ ones)) / (size * (size - 3))


def exact(one: Any, two: Any) -> float:
    """Return the linear CKA of two sets of rows in float64, without any of hookcore's functions."""
    left, right = (np.asarray(each, np.float64) for each in (one, two))
    left, right = left @ left.T, right @ right.T
    return hsic(left, right) / np.sqrt(hsic(left, left) * hsic(right, right))


def products(rows: Floats) -> Floats:
    rows = rows - rows.mean(0)
    return rows @ rows.T


@settings(max_examples=examples(60))
@given(st.integers(5, 40), st.integers(1, 60), st.integers(1, 60), st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_cka_is_that_of_the_unbiased_estimator(samples: int, wide: int, other: int, mixed: float, seed: int) -> None:
    made = np.random.default_rng(seed)
    one = made.normal(size=(samples, wide)) * np.exp(made.normal(size=wide))
    two = mixed * one @ made.normal(size=(wide, other)) + made.normal(size=(samples, other)) + 3.0
    (found,) = cka([products(one)], [products(two)])
    assert found[0] == pytest.approx(exact(one, two), abs=1e-6)


def test_a_rotation_and_a_factor_change_nothing_and_unrelated_features_of_few_samples_are_about_zero() -> None:
    made = np.random.default_rng(0)
    one = made.normal(size=(12, 30))
    turned = 7.0 * one @ np.linalg.qr(made.normal(size=(30, 30)))[0] + 5.0
    assert cka([products(one)], [products(turned)])[0, 0] == pytest.approx(1.0)
    pairs = made.normal(size=(400, 2, 12, 30))
    found = [cka([products(left)], [products(right)])[0, 0] for left, right in pairs]
    assert abs(float(np.mean(found))) < 0.02  # the usual estimate would be about 0.7 here
    assert np.isnan(cka([np.zeros((5, 5))], [products(one[:5])])).all()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)) for _ in range(3))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(48, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for each in self.body:
            x = x + each(x).relu()
        return self.head(self.drop(x).flatten(1))


def outputs_of(model: nn.Module, batch: Any, paths: tuple[str, ...]) -> dict[str, Tensor]:
    """Return what modules return in evaluation mode."""
    found: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(path).register_forward_hook(lambda _m, _a, output, path=path: found.update({path: output}))
        for path in paths
    ]
    model.eval()
    with torch.no_grad():
        model(batch)
    for each in handles:
        each.remove()
    return found


def test_the_measured_values_are_those_of_the_outputs_in_evaluation_mode() -> None:
    seed_all()
    model, batch = Net(), torch.randn(150, 3, 4, 4)
    _, found = probes.representations(model, batch, ["body.*", "head"])
    assert list(found) == [path for path in found if path.split(".")[0] in ("body", "head")]
    seen = outputs_of(model, batch, tuple(found))
    chosen = [place * 150 // 64 for place in range(64)]
    rows = {path: values[chosen].flatten(1).double().numpy() for path, values in seen.items()}
    wanted = [[exact(rows[one], rows[two]) for two in found] for one in found]
    layers = [each.numpy() for each in found.values()]
    assert cka(layers, layers) == pytest.approx(np.array(wanted), abs=1e-5)


def test_with_tokens_a_sample_is_a_token() -> None:
    seed_all()
    model = nn.Sequential(nn.Embedding(20, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 5))
    batch = torch.randint(20, (3, 7))
    _, found = probes.representations(model, (batch,), ["0", "1", "2"], tokens=True)
    seen = outputs_of(model, batch, ("0", "1", "2"))
    rows = {path: values.flatten(0, 1).double().numpy() for path, values in seen.items()}
    layers = [each.numpy() for each in found.values()]
    assert layers[0].shape == (21, 21)
    assert cka(layers[:1], layers[1:]) == pytest.approx(
        np.array([[exact(rows["0"], rows["1"]), exact(rows["0"], rows["2"])]]), abs=1e-5
    )


@pytest.mark.parametrize("known", [True, False])
def test_a_training_in_which_cka_is_measured_is_that_without_it(known: bool) -> None:
    def train(measured: bool) -> tuple[Any, ...]:
        seed_all()
        model, losses = Net(), []
        batch = torch.randn(16, 3, 4, 4)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        with hookcore.watch(model if known else None, server=None) as watcher:
            for step in range(6):
                loss = model(torch.randn(8, 3, 4, 4)).square().mean()
                loss.backward()
                if measured and step % 2 == 0:
                    gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
                    hooks, modes = digest(model.__dict__), [each.training for each in model.modules()]
                    watcher.cka(model, batch, "body.*")
                    assert all(map(torch.equal, gradients, [each.grad for each in model.parameters()]))  # type: ignore[arg-type]
                    assert (digest(model.__dict__), [each.training for each in model.modules()]) == (hooks, modes)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            watcher.flush()
            assert not watcher.errors
            steps = [each.step for each in watcher.reader().media("cka")]
            assert steps == ([0, 2, 4] if measured else [])
            assert (watcher.store.similarities() is not None) == measured
            captured = len(watcher.reader().modules())
        return digest(model.state_dict()), losses, random_state(), random.getstate(), model.calls, captured

    assert train(True) == train(False)


def test_a_layer_that_returns_the_same_for_all_samples_has_no_cka() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.fill_(0.1)
    with hookcore.watch(model, server=None) as watcher:
        found = watcher.cka(model, torch.randn(9, 4), "*")
    assert found.layers == (("0", "1"), ("0", "1"))
    assert found.values[0, 0] == pytest.approx(1.0)
    assert np.isnan([found.values[0, 1], found.values[1, 1]]).all()


@pytest.mark.parametrize("largest", [0.0, 100.0, 3000.0])
def test_a_channel_that_is_large_and_the_same_for_all_samples_does_not_hide_the_others(largest: float) -> None:
    seed_all()
    rows = torch.randn(32, 256).bfloat16()
    rows[:, 3] = largest
    _, found = probes.representations(nn.Sequential(nn.Identity()), rows, "0")
    apart = (rows.double() - rows.double().mean(0)).numpy()
    layers = [each.numpy() for each in (*found.values(), torch.from_numpy(apart @ apart.T))]
    assert cka(layers[:1], layers[1:])[0, 0] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("include", "batch", "words"),
    [
        ("nothing", torch.ones(8, 6), "matches no module"),
        ("*", torch.ones(3, 6), "at least 4"),
        (["0", "1"], torch.ones(8, 6), "'1' returns 4 samples, and '0' returns 8: choose modules that return as many"),
        ("2", torch.ones(8, 6), "'2' isn't called for this batch"),
    ],
)
def test_what_cannot_be_compared_is_an_error_that_says_what_to_choose(include: Any, batch: Tensor, words: str) -> None:
    class Halves(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            return self[1](self[0](x)[:4])

    with pytest.raises(HookcoreError, match=words):
        probes.representations(Halves(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(1, 1)), batch, include)


def test_two_runs_are_compared_if_they_measured_the_same_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    batch = torch.randn(20, 6)

    def train(url: str, name: str, seed: int, width: int, given: Tensor, begin: int = 0) -> tuple[str, list[Floats]]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
        optimizer, rows = torch.optim.SGD(model.parameters(), 0.5), []
        with hookcore.watch(model, name=name, server=url) as watcher:
            for step in range(3):
                if step >= begin:
                    watcher.cka(model, given, ["0", "2"])
                rows.append(model(given).detach().double().numpy())
                model(torch.randn(8, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            watcher.flush()
            run = str(watcher.url).rpartition("/")[2]
        return run, rows

    with served(lost_after_s=10_000.0) as server:
        one, first = train(server.url, "one", 0, 5, batch)
        two, second = train(server.url, "two", 1, 9, batch)
        apart, _ = train(server.url, "apart", 1, 9, batch + 1.0)
        late, _ = train(server.url, "late", 0, 5, batch, begin=2)
        client = hookcore.Client(server.url, TOKEN)
        found = client.cka(one, two)
        assert (found.runs, found.steps, found.samples) == ((one, two), (2, 2), 20)
        assert found.layers == (("0", "2"), ("0", "2"))
        assert found.values[1, 1] == pytest.approx(exact(first[2], second[2]), abs=1e-5)
        over_time = client.cka(one, step=2, other_step=0)
        assert over_time.steps == (2, 0)
        assert over_time.values[1, 1] == pytest.approx(exact(first[2], first[0]), abs=1e-5)
        itself = client.cka(one, step=1)
        assert itself.values[1, 1] == pytest.approx(1.0)
        with pytest.raises(HookcoreError, match="the batches differ"):
            client.cka(one, apart)
        with pytest.raises(HookcoreError, match="up to step 0"):
            client.cka(one, step=2, other=late, other_step=0)
