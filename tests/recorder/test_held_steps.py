"""The call of a model is held in every step, captured or not, so that the step that goes wrong can be repeated."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import sys
import weakref
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, stage
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.capsules import read_about, replay
from hookcore.observe import cpu
from tests.capsule_files import capsules_of
from tests.guilty import BAD, Net, Standardize, batches, events_of, guilty
from tests.harness import digest, random_state, seed_all
from tests.held import NEVER, fire, train, watch
from tests.inside import keeper_of, module_of, recorder_of

KEPT: Any = module_of("Arrival", "capsules")

CALLS: tuple[Callable[[Any, Tensor], Tensor], ...] = (
    lambda model, x: model(x),
    lambda model, x: model(x=x),
    lambda model, x: model({"x": [x]}),
)


@pytest.fixture(autouse=True, params=["as usual", "by the extension", "without the extension"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How calls are held: by the extension after the first two, or by Python in every step.

    The extension holds none in a process that has imported pipelines, as the one of these tests has.
    """
    monkeypatch.delitem(sys.modules, stage.__name__)
    if request.param == "by the extension":
        monkeypatch.setattr(KEPT, "FIRST", 2)
    elif request.param == "without the extension":
        monkeypatch.setattr(module_of("Holding"), "QUICK", False)
    found: str = request.param
    return found


HELD = "args", "kwargs", "versions", "updates", "numbers", "generators", "autocast", "outputs", "gradients", "unkept"
LATER = {"updates", "numbers"}  # counted when the track's notes are taken; empty, or all that are known


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), Standardize())

    def forward(self, x: Any) -> Tensor:
        result: Tensor = self.inner(x["x"][0] if isinstance(x, dict) else x)
        return result


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            raise ValueError("three")
        result: Tensor = self.inner(x)
        return result


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.inner(x * 1)  # so that autograd doesn't keep x itself
        return result


def holds(watcher: hookcore.Watcher) -> bool:
    keeper = keeper_of(watcher)
    return any(each.held is not None for each in keeper.models)


def test_an_uncaptured_step_is_saved_and_replayed_to_the_bit() -> None:
    seed_all()
    model = Net()
    with watch(model) as watcher:
        train(model, watcher)
        (event,) = events_of(watcher, "capsule")
        (path,) = capsules_of(watcher)
        assert not watcher.errors
    found = replay(path)
    assert event.step == found.about["step"] == BAD
    assert found.about["reason"] == "non-finite values in the loss, found at the end of a backward pass"
    assert found.about["weights"] == "before the update"
    assert found.exact, found.differences
    assert guilty(found)
    assert any("batch norm" in note for note in found.about["notes"])


def test_holding_changes_nothing_in_the_training() -> None:
    def outcome(watched: bool) -> tuple[str, str, list[str]]:
        seed_all()
        model, losses = Net(), list[str]()
        watcher = watch(model) if watched else None
        train(model, watcher, log=lambda loss: losses.append(digest(loss)))
        if watcher is not None:
            assert len(capsules_of(watcher)) == 1
            watcher.close()
        return digest(model.state_dict()), random_state(), losses

    assert outcome(watched=True) == outcome(watched=False)


@pytest.mark.skipif(not hasattr(cpu.Hold, "learn"), reason="the extension can't be built for this Python")
@pytest.mark.parametrize("way", ["by the extension"], indirect=True)
@pytest.mark.parametrize("has_graph", [False, True])
def test_the_extension_makes_the_same_objects_as_python(way: str, has_graph: bool) -> None:
    def held_objects(by_extension: bool) -> list[dict[str, Any]]:
        seed_all()
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        with pytest.MonkeyPatch.context() as patch, watch(model) as watcher:
            patch.setattr(module_of("Holding"), "QUICK", by_extension)
            for step in range(70):  # across the call before which Python looks at all numbers again
                for _ in range(1 + step % 2):
                    batch = torch.randn(3, 4, requires_grad=has_graph) * 1  # such as a generated one
                    output = model(batch)
                    nn.MSELoss()(output, torch.zeros(3, 4)).backward()
                    keeper = keeper_of(watcher)
                    held = keeper.newest.held
                    assert (held is None) == (step == 0), way  # a captured one
                    if held is not None:
                        found.append({name: getattr(held, name) for name in HELD})
                        assert held.args[0] is held.versions[0][2]
                        assert (held.args[0] is batch) != has_graph
                        assert (held.args[0].requires_grad, held.args[0].is_leaf) == (has_graph, True)
                        assert output._backward_hooks is not None
                        assert [type(hook) for hook in output._backward_hooks.values()] == [KEPT.Arrival]
                optimizer.step()
                optimizer.zero_grad()
            quick = recorder_of(watcher).capture.placement.holding.quick  # type: ignore[union-attr]
            assert (quick[0].hold.facts is not None) == by_extension
            assert not watcher.errors
        return found

    expected, found = held_objects(by_extension=False), held_objects(by_extension=True)
    assert len(found) == len(expected) > 100
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert one["updates"] >= 0
        for name in one.keys() - LATER:
            assert digest(plain(one[name])) == digest(plain(other[name])), name


@pytest.mark.parametrize("bad", ["first", "last"])
def test_of_two_models_that_take_turns_the_one_is_saved_whose_loss_went_bad(bad: str, way: str) -> None:
    seed_all()
    models = {"first": nn.Linear(4, 4), "last": nn.Linear(4, 4)}
    both = nn.ModuleDict(models)
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    with hookcore.watch(name="two", server=None, every=20, budget=None, capsule="error") as watcher:
        for number in range(86):  # until no more optimizers are expected, and the bad one
            for name, model in models.items():
                if (number, name) == (85, "last") and bad == "first":
                    break
                both.zero_grad()
                (model(torch.randn(3, 4)).square().mean() * (nan if (number, name) == (85, bad) else 1.0)).backward()
                optimizers[name].step()
        assert watcher.flush()
        (event,) = events_of(watcher, "capsule")
        (path,) = capsules_of(watcher)
        holding = recorder_of(watcher).capture.placement.holding
        if way == "by the extension" and hasattr(cpu.Hold, "learn"):
            assert holding is not None
            assert sum(each.hold.facts is not None for each in holding.quick) == 2
        assert not watcher.errors
        assert event.step == watcher.current_step - 1
    about = read_about(path)
    assert (about["step"], about["path"]) == (event.step, "Linear" if bad == "first" else "Linear#2")
    found = replay(path)
    assert found.exact, found.differences


def plain(value: Any) -> Any:
    """Return a value without what an archive of tensors can't hold."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def test_nothing_held_outlives_its_step_and_no_hook_stays() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = dict(torch_module._global_forward_pre_hooks)
    with watch(model) as watcher:
        for step in range(4):
            x = torch.randn(2, 4)
            model(x).sum().backward()
            assert holds(watcher) == (step > 0)
            assert not model._forward_hooks
            optimizer.step()
            assert not holds(watcher)
            batch = weakref.ref(x)
            del x
            gc.collect()
            assert batch() is None
    assert dict(torch_module._global_forward_pre_hooks) == before


def test_a_call_is_held_unless_a_pipeline_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, stage.__name__, stage)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        pipe = PipelineStage(model, 0, 1, torch.device("cpu"))
        schedule = ScheduleGPipe(pipe, 2, loss_fn=lambda output, _: output.sum())
        with watch(model) as watcher:
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            model(torch.randn(2, 4)).sum().backward()
            assert holds(watcher)
            optimizer.step()
            schedule.step(torch.randn(2, 4), target=torch.zeros(2, 4))
            assert not holds(watcher)
            assert fire(watcher)
            optimizer.step()
            (event,) = events_of(watcher, "capsule-missed")
            assert "a pipeline runs the model" in event.message
            assert not watcher.errors
    finally:
        dist.destroy_process_group()


def test_modules_inside_the_model_are_called_without_any_hook() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(torch_module._global_forward_pre_hooks))
            return x * 2

    seen: list[int] = []
    model = nn.Sequential(nn.Linear(4, 4), Inner())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    foreign = len(torch_module._global_forward_pre_hooks)
    with watch(model):
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    assert seen[1:] == [foreign, foreign]


@pytest.mark.parametrize("bad", range(3))
def test_the_newest_micro_batch_is_held(bad: int) -> None:
    seed_all()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        for step in range(3):
            for part, (x, mask) in enumerate(batches(bad if step == 2 else -1, steps=3)):
                loss = model(x, mask=mask)["loss"]
                if (step, part) == (2, bad):
                    fire(watcher)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        (path,) = capsules_of(watcher)
    found = replay(path)
    assert guilty(found)
    assert found.exact, found.differences
    assert float(found.about["step"]) == 2


def test_an_evaluation_at_the_start_of_a_step_does_not_keep_the_training_call_from_being_held() -> None:
    seed_all()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        for step, (x, mask) in enumerate(batches(2, steps=3)):
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    model(x, mask=torch.ones_like(mask))
            model.train()
            loss = model(x, mask=mask)["loss"]
            if step == 2:
                fire(watcher)
            loss.backward()
            optimizer.step()
        (path,) = capsules_of(watcher)
    assert guilty(replay(path))


def test_the_model_of_the_module_that_went_bad_is_saved() -> None:
    seed_all()
    first, second = nn.Sequential(nn.Linear(4, 4), Standardize()), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    with hookcore.watch(server=None, budget=None, every=NEVER, capsule="error") as watcher:
        for step in range(4):
            x = torch.zeros(2, 4) if step == 3 else torch.randn(2, 4)
            if step == 3:
                first[0].bias.data.zero_()
            loss = second(first(x)).sum()
            if step == 3:
                name = next(root.name for root in recorder_of(watcher).context.plans.roots if root.ref() is first)
                fire(watcher, f"{name}/0")
            loss.backward()
            optimizer.step()
        (path,) = capsules_of(watcher)
    assert guilty(replay(path))


def test_a_model_between_two_steps_is_pickled_and_copied_as_usual() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model):
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            assert b"hookcore" not in pickle.dumps(model)
            assert not copy.deepcopy(model)._forward_hooks


def test_a_model_that_raises_keeps_no_hook() -> None:
    model = Fragile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for step in range(5):
            if step == 2:
                with pytest.raises(ValueError, match="three"):
                    model(torch.randn(3, 4))
                buffer = io.BytesIO()
                torch.save(model, buffer)
                assert b"hookcore" not in buffer.getvalue()
            model(torch.randn(2, 4)).sum().backward()
            assert holds(watcher) == (step > 0)
            optimizer.step()
            assert not model._forward_hooks
        assert not watcher.errors


def test_in_a_process_with_compiled_code_no_call_is_held_and_the_event_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module_of("Holding"), "has_compiled", lambda: True)
    monkeypatch.setattr(module_of("Holding"), "_DYNAMO", "torch")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for step in range(3):
            loss = model(torch.randn(2, 4)).sum()
            assert not (step and holds(watcher))
            if step == 2:
                fire(watcher)
            loss.backward()
            optimizer.step()
        (event,) = events_of(watcher, "capsule-missed")
    assert "compiled code" in event.message


def test_a_hook_waits_for_few_other_modules_only() -> None:
    model, other = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Identity()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for step in range(3):
            for _ in range(2 * module_of("Holding").MAX_OTHERS if step == 2 else 3):
                other(torch.ones(1))
            model(torch.randn(2, 4)).sum().backward()
            assert holds(watcher) == (step == 1)
            optimizer.step()


def test_what_changed_since_the_call_is_said() -> None:
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for step in range(3):
            x = torch.randn(2, 4)
            loss = model(x).sum()
            if step == 2:
                fire(watcher)
                x.zero_()
            loss.backward()
            optimizer.step()
        (path,) = capsules_of(watcher)
    about = read_about(path)
    assert about["changed"] == ["argument 0"]
    assert about["unkept"] == ["the value of buffer calls when the call began"]


@pytest.mark.parametrize("call", CALLS)
def test_arguments_of_any_kind_are_held(call: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for step in range(3):
            x = torch.randn(2, 4)
            if step == 2:
                x.zero_()
                nn.init.zeros_(model.inner[0].bias)
            loss = call(model, x).sum()
            if step == 2:
                fire(watcher)
            loss.backward()
            optimizer.step()
        (path,) = capsules_of(watcher)
        assert not watcher.errors
    found = replay(path)
    assert guilty(found)
    assert found.exact, found.differences


class CountsItsCalls(nn.Module):
    """Divides by zero in one of its calls, which it counts in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x / 0.0 if self.calls == BAD + 1 else x


@pytest.mark.parametrize("every", [1, NEVER])
def test_a_replay_begins_with_the_numbers_that_modules_had_when_the_call_began(every: int) -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(4, 4), CountsItsCalls(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, every=every) as watcher:
        for _ in range(BAD + 1):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
        (path,) = capsules_of(watcher)
        found = replay(path)
    assert found.exact
    assert found.culprit is not None
    assert found.culprit.operator == "aten.div.Tensor"
    assert model[1].calls == BAD + 1


def test_the_generator_is_held_as_it_was_when_the_call_began() -> None:
    def draw(step: int) -> None:
        draws = (
            lambda: torch.rand(step),
            lambda: torch.randn(3),  # leaves a number that waits
            lambda: torch.randn(2000),
            lambda: torch.manual_seed(step),
            lambda: torch.set_rng_state(states[step // 2]),
            lambda: torch.randn((), dtype=torch.float64),
        )
        draws[step % len(draws)]()

    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states = list[Tensor]()
    with watch(model) as watcher:
        for step in range(24):
            draw(step)
            states.append(torch.get_rng_state())
            model(torch.ones(2, 4)).sum().backward()
            held = keeper_of(watcher).newest.held
            assert held is None if step == 0 else torch.equal(held.generators, states[-1])
            optimizer.step()
        assert not watcher.errors


class Copies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made.append(copy.deepcopy(self))
        made.append(pickle.loads(pickle.dumps(self)))
        result: Tensor = self.inner(x)
        return result


made: list[nn.Module] = []


def test_copies_made_during_a_call_have_no_hook_that_does_anything() -> None:
    model = Copies()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for step in range(6):
            made.clear()
            loss = model(torch.randn(2, 4)).sum()
            held = keeper_of(watcher).newest.held
            for each in list(made):
                each(torch.zeros(2, 4))
                assert b"hookcore" not in pickle.dumps(each)
            assert keeper_of(watcher).newest.held is held
            assert (held is None) == (step == 0)
            loss.backward()
            assert step == 0 or list(held.gradients) == [""]
            optimizer.step()
        assert not watcher.errors
    assert not model._forward_hooks


def test_other_modules_are_called_without_python_and_a_hook_waits_for_few_of_them() -> None:
    model, other = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Identity()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for step in range(10):
            for _ in range(2 * module_of("Holding").MAX_OTHERS if step == 7 else step):
                other(torch.ones(1))
            model(torch.randn(2, 4)).sum().backward()
            other(torch.ones(1))
            assert holds(watcher) == (step not in (0, 7))
            optimizer.step()
        assert not watcher.errors


@pytest.mark.parametrize("reentrant", [False, True])
def test_modules_that_a_checkpoint_repeats_are_called_without_any_hook(reentrant: bool) -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(torch_module._global_forward_pre_hooks))
            return x.tanh()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), Inner()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(lambda h: self.last(self.last(h)), self.first(x), use_reentrant=reentrant)
            return result

    seen: list[int] = []
    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    foreign = len(torch_module._global_forward_pre_hooks)
    with watch(model) as watcher:
        for step in range(40):
            if step == 1:
                seen.clear()
            model(torch.randn(2, 4)).sum().backward()
            assert holds(watcher) == (step > 0)
            optimizer.step()
        assert not watcher.errors
    assert len(seen) == 39 * 4  # each twice
    assert set(seen) == {foreign}
