"""Scales of float8: what is read of layers that keep some, with which scale a cast was made, and what is clipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcore
from benchmarks.diagnosis.models import Delayed, in_float8, update_scales
from hookcore.findings import findings_of
from hookcore.store import Store

ROLES = ("input", "weight", "grad_output")
PLACES = {"input": ("scaling_fwd", 0), "weight": ("scaling_fwd", 1), "grad_output": ("scaling_bwd", 0)}
LARGEST = {"input": 448.0, "weight": 448.0, "grad_output": 57344.0}


def numbers(store: Store, name: str, stat: str = "max") -> dict[tuple[str, str], float]:
    """Return the newest value of a number by module and by what is cast."""
    taps = store.taps(kind="probe")
    chosen = taps.at([place for place, tap in enumerate(taps.taps) if tap.index.startswith(f"float8 {name} ")])
    values = store.latest(stat=stat, taps=chosen).values[:, 0].tolist()
    return {(tap.module, tap.index.rpartition(" ")[2]): value for tap, value in zip(chosen.taps, values, strict=True)}


class Noting(Delayed):
    """A layer that notes with which scale it casts, and the largest magnitude of what it casts."""

    def __init__(self, *sizes: int, **options: int) -> None:
        super().__init__(*sizes, **options)
        self.noted: dict[str, list[tuple[float, float]]] = {}

    def _cast(self, values: Tensor, key: str, place: int) -> Tensor:
        role = next(each for each, where in PLACES.items() if where == (key, place))
        pair = self.fp8_meta[key].scale[place].item(), values.abs().max().item()
        self.noted.setdefault(role, []).append(pair)
        return super()._cast(values, key, place)


def train(model: nn.Module, steps: int, parts: int = 1, watcher: Any = None) -> None:
    """Take steps in which inputs grow, and scales follow after each backward pass."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        for _ in range(parts):
            (model(torch.randn(8, 16) * 1.5**step).square().mean() / parts).backward()
            update_scales(model)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("parts", [1, 3])
def test_each_cast_has_its_scale_its_largest_value_and_how_far_that_reaches_into_the_format(parts: int) -> None:
    made = [Noting(16, 32), nn.ReLU(), Noting(32, 4)]
    model, twin = nn.Sequential(*made), nn.Sequential(*(Delayed(16, 32), nn.ReLU(), Delayed(32, 4)))
    twin.load_state_dict(model.state_dict())
    with hookcore.watch(model, server=None, budget=None, state_every=1) as watcher:
        train(model, 4, parts)
        watcher.flush()
        found = {name: numbers(watcher.store, name) for name in ("scale", "amax", "reach")}
        means = numbers(watcher.store, "scale", "mean")
    train(twin, 4, parts)
    assert all(torch.equal(mine, its) for mine, its in zip(model.parameters(), twin.parameters(), strict=True))
    assert set(found["reach"]) == {(path, role) for path in ("0", "2") for role in ROLES}
    for (path, role), reach in found["reach"].items():
        last = made[int(path)].noted[role][-parts:]  # type: ignore[union-attr, index]
        assert found["scale"][path, role] == pytest.approx(max(scale for scale, _ in last), rel=1e-6)
        assert means[path, role] == pytest.approx(sum(scale for scale, _ in last) / parts, rel=1e-6)
        assert found["amax"][path, role] == pytest.approx(max(size for _, size in last), rel=1e-6)
        assert reach == pytest.approx(max(scale * size for scale, size in last) / LARGEST[role], rel=1e-6)
    assert found["reach"]["0", "input"] > 1.1  # of inputs that grew


class Caching(Delayed):
    """A layer that casts its weight in the first micro-batch of a step only."""

    calls = 0

    def forward(self, values: Tensor) -> Tensor:
        result = super().forward(values)
        self.calls += 1
        if self.calls % 2 == 0:
            self.fp8_meta["scaling_fwd"].amax_history[0, 1] = 0
        return result


def test_a_weight_that_is_not_cast_again_has_no_number_for_that_call() -> None:
    model = nn.Sequential(Caching(16, 4))
    with hookcore.watch(model, server=None, budget=None, state_every=1) as watcher:
        train(model, 2, parts=2)
        watcher.flush()
        missing, amax = numbers(watcher.store, "amax", "nan"), numbers(watcher.store, "amax")
        assert missing == {("0", "input"): 0, ("0", "weight"): 1, ("0", "grad_output"): 0}
        assert amax["0", "weight"] == pytest.approx(model[0].weight.abs().max().item(), rel=0.1)  # type: ignore[operator]
        assert [each.rule for each in watcher.incidents() if each.severity == "error"] == []


def test_a_layer_with_another_kind_of_scaling_or_an_unknown_format_has_only_what_is_known() -> None:
    model = in_float8()
    model[0].fp8_meta["recipe"] = None
    model[2].fp8_meta["scaling_fwd"] = object()
    model[4].fp8_meta["num_gemms"] = 2
    with hookcore.watch(model, server=None, budget=None, state_every=1) as watcher:
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(model[:1].parameters(), 0.01)
        model[:1](torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        watcher.flush()
        assert set(numbers(watcher.store, "reach")) == set()
        assert set(numbers(watcher.store, "scale")) == {("0", role) for role in ROLES}


class Ahead(torch.Tensor):
    """A weight with a scale that was computed ahead, as torchao keeps it for FSDP2; of another class than a tensor."""

    @staticmethod
    def __new__(cls, values: Tensor, *_: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, values.shape, dtype=values.dtype, requires_grad=values.requires_grad
        )

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        self._tensor, self._dtype, self._precomputed_scale = values, torch.float8_e4m3fn, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.ops.aten.detach.default:
            return Ahead(args[0]._tensor, args[0]._precomputed_scale)
        plain = [each._tensor if isinstance(each, Ahead) else each for each in args]
        return func(*plain, **(kwargs or {}))


def test_a_scale_of_a_weight_that_was_computed_ahead_is_compared_with_the_weight() -> None:
    model = nn.Linear(16, 4)
    values = model.weight.detach().clone()
    model.weight = nn.Parameter(Ahead(values, torch.tensor(448 / values.abs().max().item() * 3)))
    with hookcore.watch(model, server=None, budget=None, state_every=1) as watcher:
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        for _ in range(4):
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        watcher.flush()
        assert numbers(watcher.store, "reach") == {("", "weight"): pytest.approx(3.0, rel=1e-5)}
        (told,) = (each for each in findings_of(watcher.store) if each.rule == "float8-clipped")
    assert told.message.startswith("the largest value of the weight has been 3 times as large as float8 holds")
    assert told.message.endswith(", and the scale hasn't changed")
