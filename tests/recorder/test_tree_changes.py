# mypy: disable-error-code="no-untyped-call"
"""A model whose tree changes while it is watched: each value has its module's name at that moment."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.records import TENSOR_KINDS, Command
from tests.harness import Key, assert_stats, digest, read_step, watch
from tests.inside import recorder_of

ATTACH = ("global", "module")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))


class Lora(nn.Module):
    """A low-rank correction around a layer."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.up = base, nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 1000 * self.up(x)


class Seen:
    """Records what plain hooks see at each module in one step, by the module's path at that moment."""

    def __init__(self, model: nn.Module) -> None:
        self.outputs: dict[Key, list[Tensor]] = {}
        self._paths = {id(module): path for path, module in model.named_modules()}
        # Before other hooks on the modules, so that with attach="module", hookcore's are still the last ones.
        self._handles = [module.register_forward_hook(self._saw, prepend=True) for module in model.modules()]

    def _saw(self, module: nn.Module, args: Any, output: Tensor) -> None:
        key = self._paths[id(module)], "output", "", 0
        self.outputs.setdefault(key, []).append(output.detach().clone())

    def close(self) -> dict[Key, list[Tensor]]:
        for handle in self._handles:
            handle.remove()
        return self.outputs


def check_steps(model: nn.Module, changes: list[Callable[[], Any]], attach: str) -> hookcore.Watcher:
    """Train one step after each change. All outputs must have the current paths of the modules."""
    expected = []
    with watch(model, kinds={"output"}, attach=attach) as watcher:
        for change in changes:
            change()
            seen = Seen(model)
            model(torch.randn(5, 4)).sum().backward()
            expected.append(seen.close())
            watcher.step()
        assert watcher.flush()
        for number, outputs in enumerate(expected):
            step = read_step(watcher, number)
            assert step.keys() == outputs.keys(), number
            for key, parts in outputs.items():
                assert_stats(step[key], parts, (number, key))
        coverage = watcher.coverage()
        assert len(coverage) == len({(item.path, item.type) for item in coverage})
        assert watcher.error_count == 0
    return watcher


@pytest.mark.parametrize("attach", ATTACH)
def test_a_layer_that_is_wrapped_gets_a_path_below_its_wrapper(attach: str) -> None:
    model = net()
    watcher = check_steps(model, [lambda: None, lambda: model.__setitem__(0, Lora(model[0])), lambda: None], attach)
    assert {item.path for item in watcher.coverage()} == {path for path, _ in model.named_modules()}


@pytest.mark.parametrize("attach", ATTACH)
@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.__setitem__(2, nn.Linear(5, 3)),
        lambda model: model.__delitem__(1),
        lambda model: model.insert(0, nn.Tanh()),
        lambda model: model.append(nn.Linear(1, 2)),
        lambda model: model._modules.update({"1": nn.Sequential(nn.GELU(), nn.Tanh())}),
        lambda model: setattr(model, "0", Lora(Lora(model[0]))),
        lambda model: model._modules.__setitem__("0", copy.deepcopy(model[0])),
    ],
    ids=["exchanged", "deleted", "inserted", "appended", "written into the table", "wrapped twice", "copied"],
)
def test_paths_are_looked_up_again_when_the_tree_changes(change: Callable[[nn.Sequential], Any], attach: str) -> None:
    model = net()
    check_steps(model, [lambda: None, lambda: change(model), lambda: None], attach)


def test_modules_that_swap_names_are_seen_under_the_new_ones() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    with watch(model, kinds={"output", "param_grad"}) as watcher:
        model["a"](torch.ones(1, 4)).sum().backward()
        watcher.step()
        model["a"], model["b"] = model["b"], model["a"]
        model.zero_grad()
        (3 * model["a"](torch.ones(2, 4))).sum().backward()
        watcher.step()
        watcher.flush()
        assert read_step(watcher, 0)["a", "output", "", 0]["count"] == 4
        step = read_step(watcher, 1)
    assert {key[0] for key in step if key[1] == "output"} == {"a"}
    assert step["a", "output", "", 0]["count"] == 8
    assert step["a", "param_grad", "bias", 0]["max"] == 6
    assert ("b", "param_grad", "bias", 0) not in step


def test_a_module_that_replaces_another_within_a_pass_does_not_share_its_tap() -> None:
    model = net()
    with watch(model, kinds={"output"}) as watcher:
        first = model[0](torch.ones(5, 4))
        model[0] = nn.Linear(4, 7)
        second = model[0](torch.ones(5, 4))
        (first.sum() + second.sum()).backward()
        watcher.step()
        watcher.flush()
        step = read_step(watcher, 0)
    assert (step["0", "output", "", 0]["count"], step["0", "output", "", 1]["count"]) == (25, 35)
    assert all(stats["parts"] == 1 for stats in step.values())


def test_a_removed_module_is_in_the_coverage_with_the_reason() -> None:
    model = net()
    with watch(model) as watcher:
        model(torch.ones(5, 4)).sum().backward()
        watcher.step()
        removed = model[2]
        del model[2]
        model(torch.ones(5, 4)).sum().backward()
        watcher.step()
        removed(torch.ones(1, 5))
        coverage = {item.path: item for item in watcher.coverage()}
    assert "no longer part of the model" in coverage["2"].reason
    assert coverage["2"].captured


class Idle(nn.Module):
    """A model with parts that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Tanh()
        self.idle = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Any:
        return self.other(self.layer(x))


def _removed(model: Idle) -> tuple[Any, str]:
    removed = model.idle
    del model.idle
    return removed, "no longer part of the model"


def _replaced(model: Idle) -> tuple[Any, str]:
    removed, model.idle = model.idle, nn.ModuleList()
    return removed[0], "no longer part of the model"


def _moved(model: Idle) -> tuple[Any, str]:
    model.other = nn.Sequential(nn.Tanh(), nn.Identity())
    model.other.append(model.idle.pop(0))  # type: ignore[operator]
    return None, "called other.2 since then"


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("change", [_removed, _replaced, _moved])
def test_a_module_that_has_left_is_not_said_to_be_uncalled(
    change: Callable[[Idle], tuple[Any, str]], held: bool, asked: bool
) -> None:
    model = Idle()
    with watch(model) as watcher:
        for step in range(3):
            if step == 1:
                if asked:
                    watcher.coverage()
                removed, reason = change(model)
                if not held:
                    del removed
            model(torch.ones(2, 4)).sum().backward()
            watcher.step()
        coverage = {item.path: item for item in watcher.coverage()}
    assert coverage["idle.0"].reason == reason
    assert not coverage["idle.0"].captured
    if change is _removed:
        assert coverage["idle"].reason == reason


def test_a_freed_module_is_said_to_have_left_at_once_and_keeps_what_was_captured() -> None:
    model = net()
    with watch(model) as watcher:
        model(torch.ones(5, 4)).sum().backward()
        watcher.step()
        del model[2]
        (left,) = [item for item in watcher.coverage() if item.path == "2"]
    assert left.captured
    assert left.reason == "no longer part of the model"


class Tied(nn.Module):
    """A model with one layer at two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.decoder = nn.Sequential(self.encoder[0], nn.Tanh())

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.decoder(self.encoder(batch))
        return found


def test_a_pattern_matches_a_shared_module_by_each_of_its_paths() -> None:
    def train(model: nn.Module) -> None:
        model(torch.ones(2, 4)).sum().backward()
        watcher.step()

    model, later = Tied(), nn.Linear(4, 4)
    with watch(model, include=["decoder.*"], kinds={"output"}) as watcher:
        train(model)
        for part in (model.encoder, model.decoder):
            part.append(later)
        train(model)
        watcher.flush()
        assert {key[0] for key in read_step(watcher, 0)} == {"encoder.0", "decoder.1"}
        assert {key[0] for key in read_step(watcher, 1)} >= {"encoder.0", "encoder.2", "decoder.1"}
        recorder_of(watcher).on_command(Command(1, "settings", changes={"exclude": ["decoder.0"]}))
        train(model)
        train(model)
        watcher.flush()
        assert "encoder.0" not in {key[0] for key in read_step(watcher, 3)}
    with watch(model, exclude=["decoder.0"], kinds={"output"}) as watcher:
        train(model)
        watcher.flush()
        assert "encoder.0" not in {key[0] for key in read_step(watcher, 0)}


def test_patterns_apply_to_a_modules_new_path() -> None:
    model = net()
    with watch(model, include=["0", "2"], kinds={"output"}) as watcher:
        model(torch.ones(5, 4)).sum().backward()
        watcher.step()
        model[0] = Lora(model[0])
        model(torch.ones(5, 4)).sum().backward()
        watcher.step()
        watcher.flush()
        assert {key[0] for key in read_step(watcher, 1)} == {"0", "2"}
        reasons = {item.path: item.reason for item in watcher.coverage()}
    assert "include" in reasons["0.base"]


@pytest.mark.parametrize("attach", ATTACH)
def test_a_training_that_wraps_its_layers_computes_the_same_bits_watched(attach: str) -> None:
    def train(**settings: Any) -> str:
        model = net()
        watcher = watch(model, kinds=TENSOR_KINDS, attach=attach) if settings else None
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(4):
            if number == 2:
                model[0] = Lora(model[0])
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
            optimizer.zero_grad()
            model(torch.ones(5, 4)).square().mean().backward()
            optimizer.step()
        if watcher is not None:
            assert watcher.error_count == 0
            watcher.close()
        return digest(dict(model.state_dict()))

    assert train() == train(watched=True)


@pytest.mark.parametrize("attach", ATTACH)
def test_each_layer_that_replaces_another_one_is_captured(attach: str) -> None:
    model, steps = net(), 20
    with watch(model, attach=attach) as watcher:
        for number in range(steps):
            if number % 2:
                model[2] = nn.Linear(5, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            model(torch.ones(5, 4)).square().mean().backward()
            optimizer.step()
        assert watcher.flush()
        assert [number for number in range(steps) if ("2", "output", "", 0) not in read_step(watcher, number)] == []
