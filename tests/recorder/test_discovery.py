# mypy: disable-error-code="no-untyped-call"
"""`hookcore.watch()`: models are discovered when they run, named by their own tree, and told apart."""

from __future__ import annotations

import copy
import weakref
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.recorder.known.roots import unique_root_name
from tests.harness import read_step, seed_all, watch
from tests.zoo import CASES
from tests.zoo.case import mean_square, mlp, noise, sgd


class Net(nn.Module):
    """A model with parts that can also be called alone."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 6))

    def forward(self, x: Tensor) -> Any:
        return self.decoder(self.encoder(x))


class Critic(Net):
    """Another class with the same child modules."""


def step_of(model: nn.Module, *inputs: Tensor) -> None:
    """Train one step."""
    optimizer = sgd(model.parameters())
    mean_square(model(*inputs)).backward()
    optimizer.step()


def paths(watcher: hookcore.Watcher) -> set[str]:
    """Return the paths of the captured modules."""
    return {item.path for item in watcher.coverage() if item.captured}


def test_a_model_is_found_at_its_first_call_and_named_by_its_class() -> None:
    with watch() as watcher:
        assert watcher.coverage() == []
        model = Net()
        step_of(model, noise(5, 6))
        assert paths(watcher) == {"Net", "Net/encoder", "Net/decoder", "Net/decoder.0", "Net/decoder.1"}
        assert watcher.flush()
        assert ("Net/encoder", "output_grad", "", 0) in read_step(watcher, 0)
        assert {record.path for record in watcher.store.modules()} == paths(watcher)


def test_a_model_that_first_runs_in_a_closure_inside_its_optimizer_has_its_first_step_counted() -> None:
    model = Net()
    optimizer = sgd(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = mean_square(model(noise(5, 6)))
        loss.backward()
        return loss

    with watch() as watcher:
        for number in range(3):
            optimizer.step(closure)
            assert watcher.current_step == number + 1
        assert watcher.flush()
        taps = [{key for key in read_step(watcher, number) if key[1] != "update"} for number in range(3)]
    assert taps[0] == taps[1] == taps[2]
    assert ("Net/encoder", "param_grad", "weight", 0) in taps[0]


def test_a_model_created_before_the_watch_is_also_found() -> None:
    model = Net()
    with watch() as watcher:
        step_of(model, noise(5, 6))
        assert "Net/decoder.1" in paths(watcher)


def test_two_models_of_one_class_have_different_names() -> None:
    with watch() as watcher:
        models = [Net(), Net()]
        for model in models:
            step_of(model, noise(5, 6))
        roots = {path.partition("/")[0] for path in paths(watcher)}
        assert len(roots) == 2
        assert "Net" in roots


def test_parts_that_are_called_directly_belong_to_their_owner() -> None:
    with watch() as watcher:
        model = Net()
        optimizer = sgd(model.parameters())
        mean_square(model.decoder(model.encoder(noise(5, 6)))).backward()
        optimizer.step()
        assert paths(watcher) == {"Net/encoder", "Net/decoder", "Net/decoder.0", "Net/decoder.1"}
        reasons = {item.path: item.reason for item in watcher.coverage() if not item.captured}
        assert "not called" in reasons["Net"]


def test_a_part_that_was_taken_out_of_its_model_is_a_model_of_its_own() -> None:
    with watch() as watcher:
        model = Net()
        step_of(model, noise(5, 6))
        encoder, model.encoder = model.encoder, nn.Identity()
        step_of(model, noise(5, 4))
        step_of(encoder, noise(5, 6))
        assert watcher.flush()
        step = read_step(watcher, 2)
        assert ("Linear", "output", "", 0) in step
        assert {key[0].partition("/")[0] for key in step} == {"Linear"}


def test_losses_and_metrics_are_not_models() -> None:
    with watch() as watcher:
        model, criterion = Net(), nn.MSELoss()
        optimizer = sgd(model.parameters())
        criterion(model(noise(5, 6)), noise(5, 6)).backward()
        optimizer.step()
        assert {path.partition("/")[0] for path in paths(watcher)} == {"Net"}


def test_an_adversarial_pair_is_two_models_and_each_optimizer_ends_steps() -> None:
    seed_all()
    with watch() as watcher:
        forger, critic = Net(), Critic()
        forger_steps, critic_steps = sgd(forger.parameters()), sgd(critic.parameters())
        for _ in range(2):
            critic_steps.zero_grad()
            mean_square(critic(forger(noise(5, 6)).detach())).backward()
            critic_steps.step()
            forger_steps.zero_grad()
            mean_square(critic(forger(noise(5, 6)))).backward()
            forger_steps.step()
        assert watcher.flush()
        assert watcher.current_step == 4
        owners = [
            {key[0].partition("/")[0] for key in read_step(watcher, n) if key[1] == "param_grad"} for n in range(4)
        ]
        assert owners == [{"Critic"}, {"Net"}, {"Critic"}, {"Net"}]


def test_the_recompute_of_a_checkpoint_makes_no_new_model() -> None:
    with watch() as watcher:
        model = Net()
        optimizer = sgd(model.parameters())
        for reentrant in (True, False):
            x = noise(5, 6).requires_grad_()
            mean_square(checkpoint(model.decoder, model.encoder(x), use_reentrant=reentrant)).backward()
            optimizer.step()
        assert {path.partition("/")[0] for path in paths(watcher)} == {"Net"}


def test_a_copy_of_a_model_is_another_model() -> None:
    with watch() as watcher:
        model = Net()
        step_of(model, noise(5, 6))
        twin = copy.deepcopy(model)
        step_of(twin, noise(5, 6))
        assert len({path.partition("/")[0] for path in paths(watcher)}) == 2


def test_a_discarded_model_is_released_and_makes_room() -> None:
    with watch() as watcher:
        for _ in range(20):
            model = Net()
            step_of(model, noise(5, 6))
            gone = weakref.ref(model)
            del model
            assert watcher.flush()  # the recorder's thread may be describing the model just now
            assert gone() is None
        assert watcher.errors == []
        assert watcher.current_step == 20


def test_models_that_follow_one_another_continue_the_same_series() -> None:
    with watch() as watcher:
        for _ in range(3):
            step_of(Net(), noise(5, 6))
            assert watcher.flush()
        assert {path.partition("/")[0] for path in paths(watcher)} == {"Net"}


def test_a_model_that_takes_the_place_of_another_is_found_although_its_steps_are_not_captured() -> None:
    with watch(every=64) as watcher:
        for trained in range(1, 11):  # more of them than there are searches
            model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
            optimizer = sgd(model.parameters())
            for _ in range(7):
                optimizer.zero_grad()
                mean_square(model(noise(5, 6))).backward()
                optimizer.step()
            assert watcher.current_step == 7 * trained
            del model, optimizer
        assert watcher.flush()
        assert not [event for event in watcher.store.events() if event.name == "no-model"]
        assert ("Sequential/0", "param_grad", "weight", 0) in read_step(watcher, 64)


def test_what_ran_before_a_model_was_built_around_it_is_a_part_of_that_model() -> None:
    with watch() as watcher:
        trunk = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        width = trunk(noise(1, 6)).shape[1]  # with gradients, as many scripts do
        model = nn.ModuleDict({"trunk": trunk, "head": nn.Linear(width, 2)})
        model.forward = lambda x: model["head"](model["trunk"](x))  # type: ignore[method-assign]
        for _ in range(2):
            step_of(model, noise(5, 6))
        assert watcher.flush()
        mine = {"ModuleDict", "ModuleDict/trunk", "ModuleDict/trunk.0", "ModuleDict/trunk.1", "ModuleDict/head"}
        found = read_step(watcher, 1)
        assert {key[0] for key in found} == mine
        assert ("ModuleDict/trunk.0", "param_grad", "weight", 0) in found
        parts = {item.path: item.reason for item in watcher.coverage()}
        assert parts["Sequential"].startswith("called ModuleDict/trunk since then")
        assert watcher.errors == []


def test_a_weight_with_a_spectral_norm_belongs_to_its_layer() -> None:
    with watch() as watcher:
        spectral_norm = nn.utils.parametrizations.spectral_norm
        model = nn.Sequential(spectral_norm(nn.Linear(6, 4)), nn.ReLU(), nn.Linear(4, 1))  # it calls the new part
        step_of(model, noise(5, 6))
        step_of(model, noise(5, 6))
        assert watcher.flush()
        assert ("Sequential/0.parametrizations.weight", "param_grad", "original", 0) in read_step(watcher, 1)
        assert {key[0].partition("/")[0] for key in read_step(watcher, 1)} == {"Sequential"}


def test_patterns_apply_to_discovered_models() -> None:
    with watch(include="type:Linear", kinds={"output"}) as watcher:
        step_of(Net(), noise(5, 6))
        assert watcher.flush()
        assert {key[0] for key in read_step(watcher, 0)} == {"Net/encoder", "Net/decoder.1"}


def test_a_model_without_matching_modules_is_silently_left_out() -> None:
    with watch(include="*encoder", kinds={"output"}) as watcher:
        model, other = Net(), mlp()
        step_of(other, noise(5, 6))
        step_of(model, noise(5, 6))
        assert watcher.flush()
        assert {key[0] for n in range(2) for key in read_step(watcher, n)} == {"Net/encoder"}
        assert watcher.errors == []


def test_modules_added_to_a_model_are_found_at_its_next_call() -> None:
    with watch() as watcher:
        model = Net()
        step_of(model, noise(5, 6))
        model.decoder.append(nn.Linear(6, 2))
        step_of(model, noise(5, 6))
        assert "Net/decoder.2" in paths(watcher)
        assert watcher.flush()
        assert ("Net/decoder.2", "param_grad", "weight", 0) in read_step(watcher, 1)


def test_modules_added_to_a_named_model_are_found() -> None:
    model = Net()
    with watch(model) as watcher:
        step_of(model, noise(5, 6))
        model.decoder.append(nn.Linear(6, 2))
        step_of(model, noise(5, 6))
        assert watcher.flush()
        assert ("decoder.2", "output_grad", "", 0) in read_step(watcher, 1)
        assert "decoder.2" in {record.path for record in watcher.store.modules()}


def test_a_watch_of_one_model_sees_no_other() -> None:
    model, other = Net(), Critic()
    with watch(model) as watcher:
        step_of(other, noise(5, 6))
        step_of(model, noise(5, 6))
        assert watcher.flush()
        assert watcher.current_step == 1
        assert {key[0] for key in read_step(watcher, 0)} == {"", "encoder", "decoder", "decoder.0", "decoder.1"}


def test_two_watchers_see_their_own_models_at_the_same_time() -> None:
    models = [Net(), Critic()]
    with watch(models[0]) as first, watch(models[1]) as second:
        for model in models:
            step_of(model, noise(5, 6))
        step_of(models[0], noise(5, 6))
        assert first.flush()
        assert second.flush()
        assert (first.current_step, second.current_step) == (2, 1)
        assert read_step(first, 1).keys() == read_step(second, 0).keys()


def test_two_watchers_of_one_model_see_the_same() -> None:
    seed_all()
    model = Net()
    with watch(model) as first, watch(model) as second:
        step_of(model, noise(5, 6))
        assert first.flush()
        assert second.flush()
        assert repr(read_step(first, 0)) == repr(read_step(second, 0))


def test_nothing_is_registered_while_all_watchers_are_paused() -> None:
    model = Net()
    with watch(model) as watcher:
        with hookcore.detached():
            tables = vars(nn.modules.module)
            assert not any(value for name, value in tables.items() if name.startswith("_global_") and value)
            step_of(model, noise(5, 6))
        step_of(model, noise(5, 6))
        assert watcher.flush()
        assert paths(watcher)


def test_a_paused_watcher_counts_steps_and_captures_none() -> None:
    model = Net()
    with watch(model) as watcher:
        step_of(model, noise(5, 6))
        watcher.pause()
        assert watcher.paused
        step_of(model, noise(5, 6))
        watcher.resume()
        step_of(model, noise(5, 6))
        assert watcher.flush()
        assert watcher.current_step == 3
        assert [bool(read_step(watcher, number)) for number in range(3)] == [True, False, True]


def test_a_detached_block_in_an_uncaptured_step_captures_no_part_of_it() -> None:
    model = mlp()
    optimizer = sgd(model.parameters())
    with watch(model, every=4) as watcher:
        for _ in range(6):
            loss = mean_square(model(noise(5, 6)))
            with hookcore.detached():
                pass
            loss.backward()
            optimizer.step()
        assert watcher.flush()
        assert watcher.store.captured_rows()[0].tolist() == [0, 4]


def test_a_watcher_that_is_closed_while_hooks_are_off_stays_closed() -> None:
    model = nn.Linear(4, 4)
    watcher = hookcore.watch(model, server=None)
    with hookcore.detached():
        watcher.close()
        del watcher
    assert not model._forward_hooks


def test_every_second_step_is_captured_on_request() -> None:
    model = Net()
    with watch(model, every=2) as watcher:
        for _ in range(6):
            step_of(model, noise(5, 6))
        assert watcher.flush()
        assert [bool(read_step(watcher, number)) for number in range(6)] == [True, False] * 3


# --- Steps ----------------------------------------------------------------------------------------------------------

STEPS_IN_THREE: Final = {
    "step_without_a_new_gradient": 3,
    "optimizer_inside_the_backward_pass": 3,
    "optimizer_that_calls_its_parents_step": 3,
    "two_optimizers_for_one_model": 3,
    "optimizers_of_many_kinds_with_a_schedule": 3,
    "lbfgs_with_a_closure": 3,
    "sgd_with_a_closure": 3,
    "gradient_accumulation": 3,
    "loss_scaling_with_skipped_steps": 3,
    "evaluation_between_steps": 3,
    "gradient_penalty": 3,
    "checkpoint_reentrant": 3,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STEPS_IN_THREE)
def test_a_step_is_one_step_of_the_optimizer_with_a_gradient(name: str) -> None:
    seed_all()
    trial = CASES[name].build()
    with watch(trial.model) as watcher:
        for number in range(3):
            trial.step(number)
        assert watcher.flush()
        assert watcher.current_step == STEPS_IN_THREE[name]
        assert watcher.store.steps().count == STEPS_IN_THREE[name]


def test_a_loop_without_an_optimizer_ends_its_steps_itself() -> None:
    trial = CASES["sgd_by_hand"].build()
    with watch(trial.model) as watcher:
        for number in range(3):
            trial.step(number)
            watcher.step()
        assert watcher.flush()
        assert watcher.current_step == 3
        assert all(("0", "output_grad", "", 0) in read_step(watcher, number) for number in range(3))


def test_a_loop_that_never_ends_a_step_is_reported_and_still_captured() -> None:
    model = nn.Linear(3, 1)
    with watch(model) as watcher:
        for _ in range(100):
            model(torch.ones(2, 3)).sum().backward()
        assert watcher.flush()
        assert watcher.current_step > 1
        assert "no-optimizer" in {event.name for event in watcher.store.events()}


# --- Coverage -------------------------------------------------------------------------------------------------------


class Partial(nn.Module):
    """Has a child module for each reason why a module may not be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.direct = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen, self.excluded, self.words = nn.Linear(6, 6), nn.Linear(6, 6), nn.Flatten()
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        frozen = self.frozen(x)
        return self.excluded(self.used(self.direct.forward(frozen)))


def test_coverage_names_every_module_and_why_it_was_not_captured() -> None:
    model = Partial()
    with watch(model, exclude="excluded") as watcher:
        step_of(model, noise(5, 6))
        coverage = {item.path: item for item in watcher.coverage()}
    assert coverage.keys() == {path for path, _ in model.named_modules()}
    assert coverage["used"].captured
    assert set(coverage["used"].kinds) == {"output", "output_grad", "param_grad"}
    assert "not called" in coverage["unused"].reason
    assert "not called" in coverage["direct"].reason
    assert "needs no gradient" in coverage["frozen"].reason
    assert "exclude" in coverage["excluded"].reason
    assert not coverage["excluded"].captured


@pytest.mark.parametrize(
    ("name", "module"),
    [("unused_and_detached_outputs", "unused"), ("unused_and_detached_outputs", "detached"),
     ("view_changed_in_place_afterwards", "viewer"), ("part_on_the_meta_device", "shadow")],
)  # fmt: skip
def test_coverage_does_not_claim_a_gradient_that_never_arrived(name: str, module: str) -> None:
    seed_all()
    trial = CASES[name].build()
    with watch(trial.model) as watcher:
        trial.step(0)
        assert watcher.flush()
        coverage = {item.path: item for item in watcher.coverage()}[module]
        kinds = {key[1] for key in read_step(watcher, 0) if key[0] == module}
    assert "output_grad" not in kinds
    assert set(coverage.kinds) == kinds
    assert coverage.captured == bool(kinds)
    assert coverage.reason


@pytest.mark.filterwarnings("ignore")
@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_module_of_the_zoo_is_captured_or_has_a_reason(case: Any) -> None:
    seed_all()
    trial = case.build()
    with watch(trial.model) as watcher:
        trial.step(0)
        coverage = watcher.coverage()
    assert len(coverage) >= 1
    assert all(item.captured or item.reason for item in coverage)


def test_the_tree_has_the_shapes_of_parameters_and_of_the_first_inputs_and_outputs(seed: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LSTM(4, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, kinds={"input", "output"}) as watcher:
        for rows in (2, 7):
            model(torch.randn(rows, 3))[0].sum().backward()
            optimizer.step()
        watcher.flush()
        watcher.close()
        shapes = {record.path: dict(record.shapes) for record in watcher.store.modules()}
    assert shapes["0"] == {"weight": (4, 3), "bias": (4,), "input 0": (2, 3), "output": (2, 4)}
    assert shapes["1"]["output 1.0"] == (1, 5)
    assert shapes["1"]["weight_ih_l0"] == (20, 4)


@given(st.lists(st.sampled_from(["Net", "GPT"]), max_size=12))
def test_root_names_are_unique(type_names: list[str]) -> None:
    taken: list[str] = []
    for name in type_names:
        taken.append(unique_root_name(name, taken))
    assert len(set(taken)) == len(taken)


def test_root_names_count_from_two() -> None:
    assert unique_root_name("Net", set()) == "Net"
    assert unique_root_name("Net", {"Net"}) == "Net#2"
    assert unique_root_name("Net", {"Net", "Net#2", "Net#4"}) == "Net#3"
