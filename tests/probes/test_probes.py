"""Probes: numbers of the user's own, computed inside the training without changing it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore import probes
from hookcore.errors import ArgumentError, PatternError
from hookcore.recorder.measured.probes import MAX_PROBES
from tests.harness import digest, random_state, seed_all


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def train(model: nn.Module, steps: int, see: Callable[[int], None] = lambda _: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        see(step)
        optimizer.zero_grad()
        model(torch.randn(16, 6)).pow(2).mean().backward()
        optimizer.step()


def watch(model: nn.Module, **settings: Any) -> hookcore.Watcher:
    return hookcore.watch(model, **{"server": None, "budget": None, **settings})


def series_of(watcher: hookcore.Watcher, label: str, stat: str = "mean") -> dict[int, float]:
    watcher.flush()
    found = watcher.reader().series(label, stat)
    return dict(zip(found.first_step.tolist(), found.mean.tolist(), strict=True))


def test_the_result_of_a_function_is_a_tap_like_any_other() -> None:
    seed_all()
    model, seen = make(), dict[int, list[float]]()
    with watch(model) as watcher:
        watcher.probe("top", lambda tensor: tensor.abs().max(), include="1", every=5)
        watcher.probe("rows", lambda tensor: tensor.norm(dim=1), include="3", kinds="output_grad", every=4)
        watcher.probe("size", lambda tensor: float(tensor.norm()), include="0", kinds=("param", "param_grad"), every=3)
        handle = model[1].register_forward_hook(
            lambda _module, _args, output: seen.setdefault(watcher.current_step, []).append(
                float(output.detach().abs().max())
            )
        )
        train(model, 12)
        handle.remove()
        tops = series_of(watcher, "1 probe [top]")
        assert list(tops) == [0, 5, 10]
        assert list(tops.values()) == pytest.approx([seen[step][0] for step in tops], rel=1e-6)
        assert list(series_of(watcher, "3 probe [rows output_grad]")) == [0, 4, 8]
        assert set(series_of(watcher, "3 probe [rows output_grad]", "count").values()) == {16}
        for name in ("size param weight", "size param_grad bias"):
            assert list(series_of(watcher, f"0 probe [{name}]")) == [0, 3, 6, 9]
        norms = series_of(watcher, "0 param_grad [weight]", "norm")
        told = series_of(watcher, "0 probe [size param_grad weight]")
        assert list(told.values()) == pytest.approx([norms[step] for step in told], rel=1e-5)
        heat = watcher.reader().heatmap("probe", "mean")
        assert len(heat.taps) == 6
        assert not watcher.errors


def test_a_probe_that_draws_random_numbers_changes_no_bit() -> None:
    def draws(tensor: Tensor) -> Tensor:
        random.random()
        np.random.rand()
        return tensor.flatten()[torch.randint(tensor.numel(), (4,))]

    def outcome(probed: bool) -> tuple[str, str]:
        seed_all()
        model = make()
        watcher = watch(model)
        if probed:
            watcher.probe("draws", draws, kinds=("output", "output_grad", "param", "param_grad"), every=1)
        train(model, 6)
        watcher.close()
        return digest(model.state_dict()), random_state()

    assert outcome(probed=True) == outcome(probed=False)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda tensor: tensor / "x", "TypeError"),
        (lambda tensor: tensor, "a tensor of shape (16, 8)"),
        (lambda tensor: None, "a NoneType"),
        (lambda tensor: torch.zeros(5000), "shape (5000,)"),
    ],
)
def test_a_failing_probe_is_reported_and_switched_off(function: Callable[[Tensor], Any], told: str) -> None:
    model = make()
    with watch(model) as watcher:
        watcher.probe("bad", function, include="0", every=1)
        watcher.probe("good", torch.mean, include="0", every=1)
        train(model, 8)
        assert len(series_of(watcher, "0 probe [good]")) == 8
        first, last = [each for each in watcher.store.events() if each.name == "probe-failed"]
    assert told in first.message
    assert "switched off" in last.message
    assert (first.step, last.step) == (0, 2)
    assert (first.module, first.severity) == ("0", "warning")


def test_a_probe_that_changes_its_tensor_is_an_error() -> None:
    model = make()
    with watch(model) as watcher:
        watcher.probe("zeroes", lambda tensor: tensor.zero_().sum(), include="0", every=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        watcher.flush()
        (event,) = [each for each in watcher.store.events() if each.name == "probe-failed"]
    assert event.severity == "error"
    assert "changed its tensor" in event.message


def test_a_probe_that_returns_nan_is_not_an_incident_of_the_training() -> None:
    model = make()
    with watch(model) as watcher:
        watcher.probe("ratio", lambda tensor: tensor.sum() * torch.nan, include="0", every=1)
        train(model, 4)
        assert set(series_of(watcher, "0 probe [ratio]", "nan").values()) == {1}
        assert watcher.incidents().total == 0


def test_only_captured_steps_are_probed_and_a_later_probe_begins_soon() -> None:
    model = make()
    with watch(model, every=3) as watcher:
        watcher.probe("first", torch.mean, include="0", every=4)

        def see(step: int) -> None:
            if step == 5:
                watcher.probe("later", torch.mean, include="0", every=1)

        train(model, 12, see)
        assert list(series_of(watcher, "0 probe [first]")) == [0, 6]
        assert list(series_of(watcher, "0 probe [later]")) == [6, 9]


def test_wrong_arguments_name_the_valid_ones() -> None:
    model = make()
    with watch(model) as watcher:
        for given, told in (
            ({"name": ""}, "1 to 100 characters"),
            ({"function": 3}, "a function that takes a tensor"),
            ({"kinds": "update"}, "'param_grad'"),
            ({"kinds": ()}, "one or more of"),
            ({"every": 0}, "1 or more"),
            ({"include": 3}, "a pattern"),
        ):
            arguments = {"name": "x", "function": torch.mean, **given}
            with pytest.raises(ArgumentError, match=told):
                watcher.probe(arguments.pop("name"), arguments.pop("function"), **arguments)
        with pytest.raises(PatternError, match=r"nothing\.like\.it"):
            watcher.probe("x", torch.mean, include="nothing.like.it")
        for number in range(MAX_PROBES):
            watcher.probe(f"p{number}", torch.mean, every=10**6)
        with pytest.raises(ArgumentError, match="at most 32"):
            watcher.probe("one more", torch.mean)


def test_gradients_of_a_discovered_model_in_module_hooks_and_inside_a_graph_kept_for_long() -> None:
    model = make()
    with watch(model, attach="module") as watcher:
        watcher.probe("size", torch.norm, include="type:Linear", kinds="output_grad", every=2)
        kept = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            loss = model(torch.randn(4, 6)).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            kept.append(loss)
        assert list(series_of(watcher, "3 probe [size output_grad]")) == [0, 2]
        assert not watcher.errors


# -- the functions of hookcore.probes ----------------------------------------------------------------------------------


def test_effective_rank_counts_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    line = torch.randn(64, 1, generator=generator) * torch.randn(1, 16, generator=generator)
    assert float(probes.effective_rank(line)) == pytest.approx(1.0, abs=1e-3)
    assert probes.effective_rank(torch.full((3, 3), torch.inf)).isnan()
    assert probes.effective_rank(torch.zeros(3, 3)).isnan()
    assert float(probes.effective_rank(torch.eye(12))) == pytest.approx(12.0, rel=1e-5)
    values = np.linalg.svd(np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32), compute_uv=False)
    shares = values / values.sum()
    expected = np.exp(-(shares * np.log(shares)).sum())
    given = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32))
    assert float(probes.effective_rank(given)) == pytest.approx(expected, rel=1e-4)
    assert float(probes.effective_rank(torch.randn(4, 3, 5, 5, generator=generator))) <= 3.001  # channels
    assert float(probes.effective_rank(torch.randn(5000, 2000, generator=generator))) > 100


def test_saturation_and_channels() -> None:
    tensor = torch.tensor([[-1.0, 0.0], [0.99, 0.5]])
    assert float(probes.saturation(tensor)) == 0.5
    assert float(partial(probes.saturation, low=0.03)(torch.tensor([0.01, 0.5, 0.99, 0.5]))) == 0.5
    pictures = torch.zeros(2, 4, 3, 3)
    pictures[:, 1], pictures[0, 2, 0, 0] = 2.0, 3.0
    assert float(probes.dead_channels(pictures)) == 0.5
    assert probes.channel_rms(pictures).tolist() == pytest.approx([0.0, 2.0, (9 / 18) ** 0.5, 0.0])
    assert float(probes.dead_channels(torch.zeros(3, 5))) == 1.0
    tokens = torch.zeros(2, 7, 3)
    tokens[..., 1] = 1.0
    assert probes.channel_zeros(tokens).tolist() == [1.0, 0.0, 1.0]
    shares = probes.channel_zeros(pictures)
    assert shares.tolist() == pytest.approx([1.0, 0.0, 17 / 18, 1.0])


def test_many_channels_are_grouped_by_their_largest_values() -> None:
    wide = -torch.rand(2, 10_001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide[0, 9_999], wide[1, 3] = torch.nan, 7.0
    for function, exact in (
        (probes.channel_rms, wide.pow(2).mean(dim=0).sqrt()),
        (probes.channel_zeros, (wide == 0).double().mean(dim=0)),
    ):
        assert function.channels(wide) == 10_001
        values = function(wide)
        assert len(values) == 3334
        expected = [float(torch.tensor(exact[at : at + 3].tolist()).amax()) for at in range(0, 10_001, 3)]
        assert values.tolist() == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_attention_entropy_of_each_head() -> None:
    even = torch.full((2, 1, 5, 8), 1 / 8)
    one = torch.zeros(2, 1, 5, 8)
    one[..., 3] = 1.0
    assert probes.attention_entropy(torch.cat([even, one], dim=1)).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert float(probes.attention_entropy(even[0, 0])) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("name", ["effective_rank", "saturation", "dead_channels", "channel_rms", "channel_zeros"])
def test_each_function_works_as_a_probe(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    model(torch.randn(2, 1, 6, 6))
    with watch(model) as watcher:
        watcher.probe(name, getattr(probes, name), every=1)
        model(torch.randn(2, 1, 6, 6)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        watcher.flush()
        assert not [each for each in watcher.store.events() if each.name == "probe-failed"]
        assert np.isfinite(list(series_of(watcher, f"0 probe [{name}]").values())).all()
