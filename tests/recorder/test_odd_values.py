# mypy: disable-error-code="no-untyped-call"
"""Values that are easily assigned to the wrong tensor: equal names, holes, nested checkpoints, partial sums."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcore.hooks.tensors import hook_gradient
from hookcore.observe import cpu
from hookcore.recorder.known.roots import find_tensors
from tests.harness import assert_stats, digest, read_step, watch
from tests.inside import module_of


def test_tensors_of_one_output_never_share_a_name() -> None:
    a, b, c, d = (torch.tensor(float(number)) for number in range(4))
    found = list(find_tensors({"a.b": a, "a": {"b": b}, 1: c, "1": d}))
    assert {name: tensor.item() for name, tensor in found} == {"'a.b'": 0, "'a'.'b'": 1, "1": 2, "'1'": 3}
    assert [name for name, _ in find_tensors({"a.b": a, 2: [b, (c,)], "3": d})] == ["a.b", "2.0", "2.1.0", "3"]


def test_each_of_four_tensors_with_almost_equal_keys_has_its_own_tap() -> None:
    class Dicts(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return {"a.b": x, "a": {"b": x * 1000}, 1: x, "1": x + 7}

    model = Dicts()
    with watch(model, phases={"train", "eval"}) as watcher:
        model(torch.ones(4))
        watcher.step()
        watcher.flush()
        counts = [watcher.store.series(tap, "count").mean.tolist() for tap in watcher.store.taps().taps]
    assert counts == [[4.0]] * 4


@pytest.mark.filterwarnings("ignore")
def test_the_holes_of_a_jagged_tensor_are_not_measured() -> None:
    class Narrow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.nested.narrow(x, 1, torch.tensor([0, 1]), torch.tensor([3, 2]), layout=torch.jagged)

    model = Narrow()
    with watch(model, phases={"train", "eval"}) as watcher:
        out = model(torch.arange(20.0).reshape(2, 10))
        watcher.step()
        watcher.flush()
        taps = watcher.store.taps().taps
        count, largest = (watcher.store.series(taps[0], stat).mean[0] for stat in ("count", "max"))
    values = torch.cat(list(out.unbind()))
    assert (count, largest) == (values.numel(), values.max().item())


class _NegatedLater(torch.autograd.Function):
    """Returns, and gives back, a tensor whose memory has the negative values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch._neg_view(x * -1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch._neg_view(gradients[0] * -1.0)


@pytest.mark.parametrize("in_python", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_that_torch_negates_only_when_they_are_used_are_measured_as_they_are(
    dtype: torch.dtype, in_python: bool
) -> None:
    class Negated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _NegatedLater.apply(x)  # type: ignore[no-any-return]

    model = nn.Sequential(nn.Linear(4, 3, dtype=dtype), Negated())
    outputs, gradients = list[Tensor](), list[Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cpu.leave_each(int(in_python))
    try:
        with watch(model, kinds=("output", "output_grad")) as watcher:
            for _ in range(3):
                optimizer.zero_grad()
                hidden = model[0](torch.rand(2, 4, dtype=dtype))
                hidden.register_hook(gradients.append)
                outputs.append(model[1](hidden))
                assert outputs[-1].is_neg()
                outputs[-1].float().square().sum().backward()
                optimizer.step()
            assert watcher.flush()
            for step in range(3):
                seen = read_step(watcher, step)
                assert gradients[step].is_neg()
                assert_stats(seen["1", "output", "", 0], [outputs[step].detach().resolve_neg()])
                assert_stats(seen["0", "output_grad", "", 0], [gradients[step].resolve_neg()])
    finally:
        cpu.leave_each(0)


def test_an_output_is_measured_once_if_its_gradient_could_not_be_hooked_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, hook, failed = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), hook_gradient, list[str]()

    def hook_later(tensor: Tensor, fn: Any) -> None:
        if (caller := sys._getframe(1).f_code.co_name) == "saw_plain":
            failed.append(caller)
            raise RuntimeError("dictionary changed size during iteration")  # by another thread
        hook(tensor, fn)

    monkeypatch.setattr(module_of("Statistics"), "hook_gradient", hook_later)
    cpu.leave_each(1)
    try:
        with watch(model, kinds=("output", "output_grad")) as watcher:
            for _ in range(3):
                model(torch.rand(2, 4)).square().sum().backward()
                watcher.step()
            assert watcher.flush()
            assert watcher.errors == []
            assert len(failed) >= 6
            for step in range(3):
                seen = read_step(watcher, step)
                assert {key: (found["count"], found["parts"]) for key, found in seen.items()} == {
                    (path, kind, "", 0): (6, 1) for path in ("0", "1", "") for kind in ("output", "output_grad")
                }
    finally:
        cpu.leave_each(0)


def _plain(part: nn.Module, x: Tensor) -> Tensor:
    return part(x)  # type: ignore[no-any-return]


def _nested(part: nn.Module, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return checkpoint(part, y, use_reentrant=True) * 1  # type: ignore[no-any-return]

    return checkpoint(inner, x, use_reentrant=True)  # type: ignore[no-any-return]


def _twice(part: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(lambda y: part(part(y)), x, use_reentrant=True)  # type: ignore[no-any-return]


def _twice_in_the_inner_one(part: nn.Module, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return part(checkpoint(lambda z: part(part(z)), y, use_reentrant=True))  # type: ignore[no-any-return]

    return checkpoint(inner, x, use_reentrant=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("checkpointed", "same"),
    [
        (_nested, _plain),
        (_twice, lambda part, x: part(part(x))),
        (_twice_in_the_inner_one, lambda part, x: part(part(part(x)))),
    ],
    ids=["inside another", "one module twice", "both"],
)
def test_gradients_under_reentrant_checkpoints_belong_to_their_calls(
    checkpointed: Callable[[nn.Module, Tensor], Tensor], same: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    def train(call: Callable[[nn.Module, Tensor], Tensor], watched: bool = True) -> tuple[Any, str]:
        torch.manual_seed(0)
        part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        watcher = watch(part, calls=8) if watched else None
        call(part, torch.randn(5, 4).requires_grad_()).square().sum().backward()
        seen = {}
        if watcher is not None:
            watcher.step()
            watcher.flush()
            seen = {key: stats for key, stats in read_step(watcher, 0).items() if key[1] == "output_grad"}
            assert watcher.error_count == 0
            watcher.close()
        return seen, digest({name: weight.grad for name, weight in part.named_parameters()})

    seen, expected = train(checkpointed)[0], train(same)[0]
    assert seen.keys() == expected.keys()
    for key, stats in expected.items():
        assert seen[key]["norm"] == pytest.approx(stats["norm"], rel=1e-6), key
    assert train(checkpointed)[1] == train(checkpointed, watched=False)[1]
