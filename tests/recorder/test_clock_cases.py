# mypy: disable-error-code="no-untyped-call"
"""Trainings whose steps were once counted wrongly, and the values that belong to these steps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import hookcore
from hookcore.records import Tap
from tests.harness import assert_stats, read_step, seed_all, watch
from tests.inside import recorder_of
from tests.zoo.case import mean_square, noise, sgd


def _net() -> nn.Sequential:
    seed_all()
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))


def _steps_of(watcher: hookcore.Watcher, module: str, kind: Any, index: str = "") -> list[int]:
    assert watcher.flush()
    return watcher.store.series(Tap(module, kind, index), "count").first_step.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("given", [{"budget": 0.05}, {"every": 2}, {"every": 3}, {}])
def test_two_optimizers_after_one_backward_are_one_step(given: dict[str, Any]) -> None:
    model = _net()
    first, last = sgd(model[0].parameters()), torch.optim.Adam(model[2].parameters())
    with watch(model, **given) as watcher:
        for _ in range(60):
            model.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            first.step()
            last.step()
        assert watcher.current_step == 60
        assert _steps_of(watcher, "0", "param_grad", "weight") == _steps_of(watcher, "2", "param_grad", "weight")


class Adapted(nn.Module):
    """A frozen layer with a small trainable layer next to it."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + self.up(self.down(x))


def _replace_a_layer(model: nn.Sequential, first: Optimizer, last: Optimizer) -> tuple[Optimizer, Optimizer]:
    model[3] = nn.Linear(5, 1)
    last.add_param_group({"params": list(model[3].parameters())})
    return first, last


def _adapt(model: nn.Sequential, *_: Optimizer) -> tuple[Optimizer, Optimizer]:
    model[0], model[2] = Adapted(model[0]), Adapted(model[2])
    trained = [[each for each in part.parameters() if each.requires_grad] for part in model]
    return sgd(trained[0]), sgd([*trained[2], *trained[3]])


@pytest.mark.parametrize("given", [{"budget": 0.05}, {"every": 3}])
@pytest.mark.parametrize("change", [_replace_a_layer, _adapt])
def test_two_optimizers_are_one_step_while_layers_and_optimizers_are_replaced(
    change: Callable[..., tuple[Optimizer, Optimizer]], given: dict[str, Any]
) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.Linear(5, 1))
    last: Optimizer = torch.optim.Adam([*model[2].parameters(), *model[3].parameters()])
    first: Optimizer = sgd(model[0].parameters())
    counts = []
    with watch(model, **given) as watcher:
        for turn in range(120):
            model.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            first.step()
            last.step()
            counts.append(watcher.current_step)
            if turn == 70:
                first, last = change(model, first, last)
    assert counts == list(range(1, 121))


@pytest.mark.parametrize("given", [{"budget": 0.05}, {"every": 3}])
def test_an_optimizer_inside_the_backward_pass_ends_a_step_with_each_pass(given: dict[str, Any]) -> None:
    model = _net()
    optimizers = {parameter: sgd([parameter]) for parameter in model.parameters()}

    def apply(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(apply)
    with watch(model, **given) as watcher:
        for _ in range(40):
            mean_square(model(noise(5, 4))).backward()
        assert watcher.current_step == 40
        assert len(_steps_of(watcher, "0", "param_grad", "weight")) > 5


@pytest.mark.parametrize("every", [2, 3])
def test_gradients_of_an_optimizer_inside_the_backward_pass_belong_to_the_captured_step(
    every: int,
) -> None:
    model, truth = _net(), []
    weight = model[0].weight
    optimizer = sgd([weight])

    def apply(parameter: Tensor) -> None:
        truth.append(parameter.grad.clone())  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()

    weight.register_post_accumulate_grad_hook(apply)
    with watch(model, every=every) as watcher:
        for _ in range(9):
            mean_square(model(noise(5, 4))).backward()
        assert watcher.flush()
        for step in range(0, 9, every):
            assert_stats(read_step(watcher, step)["0", "param_grad", "weight", 0], [truth[step]], step)


@pytest.mark.parametrize("in_data", [False, True])
def test_manual_updates_are_counted_between_resets(in_data: bool) -> None:
    model = _net()
    with watch(model, every=2) as watcher:
        for turn in range(200):
            watcher.log(turn=turn)
            model.zero_grad()
            for _ in range(2):
                mean_square(model(noise(5, 4))).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    (parameter.data if in_data else parameter).sub_(0.1 * parameter.grad)  # type: ignore[operator]
        assert watcher.current_step in (199, 200)
        assert _steps_of(watcher, "0", "output") == list(range(0, 200, 2))
        first = read_step(watcher, 0)["0", "output", "", 0]
        assert first["count"] == 2 * 25


def test_a_compiled_loss_function_still_has_steps_with_the_gradients_of_weights() -> None:
    model = _net()
    optimizer, loss = sgd(model.parameters()), torch.compile(lambda x: mean_square(model(x)), backend="eager")
    with watch(model) as watcher:
        for _ in range(6):
            optimizer.zero_grad()
            loss(noise(5, 4)).backward()
            optimizer.step()
        assert watcher.current_step == 6
        assert _steps_of(watcher, "0", "param_grad", "weight") == list(range(6))


@pytest.mark.parametrize("line_search", ["strong_wolfe", None])
def test_an_optimizer_whose_closure_calls_a_model_for_the_first_time_ends_one_step(line_search: str | None) -> None:
    model, x = _net(), noise(6, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn=line_search)
    passes: list[int] = []

    def closure() -> Tensor:
        passes[-1] += 1
        optimizer.zero_grad()
        loss = mean_square(model(x) - 1)
        loss.backward()
        return loss

    with watch() as watcher:  # the model is older than the watch
        for _ in range(3):
            passes.append(0)
            optimizer.step(closure)
        assert watcher.current_step == len(passes)
        assert watcher.flush()
        names = {event.name for event in watcher.store.events()}
        last = read_step(watcher, len(passes) - 1)
    assert not names & {"no-model", "no-optimizer"}
    assert last["Sequential/2", "output", "", 0]["parts"] == passes[-1] > 2
    assert min(passes) > 2


def test_an_optimizer_with_a_closure_whose_model_is_never_seen_has_its_event() -> None:
    model, other = _net(), nn.Parameter(torch.ones(3))
    optimizer, x = sgd(model.parameters()), noise(6, 4)
    outer = torch.optim.LBFGS([other], lr=0.1, max_iter=2)

    def closure() -> Tensor:
        for _ in range(2):
            optimizer.zero_grad()
            mean_square(model(x)).backward()
            optimizer.step()
        outer.zero_grad()
        loss = other.square().sum()
        loss.backward()
        return loss

    with watch() as watcher:
        outer.step(closure)
        outer.step(closure)  # the event is in the next frame
        steps = watcher.current_step
        assert watcher.flush()
        (event,) = [event for event in watcher.store.events() if event.name == "no-model"]
    assert steps == 2 * 2 * 2
    assert event.message.startswith("LBFGS updates tensors of no module seen so far (1)")


def test_training_in_eval_mode_has_its_own_steps_and_numbers() -> None:
    model = _net()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for step in range(10):
            model.train(step < 5)
            optimizer.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            optimizer.step()
        assert watcher.current_step == 10
        assert _steps_of(watcher, "0", "param_grad", "weight") == list(range(10))
        counts = watcher.store.series(Tap("0", "param_grad", "weight"), "count").mean.tolist()
        assert counts == [20.0] * 10
        assert _steps_of(watcher, "0", "output_grad")[-4:] == [6, 7, 8, 9]


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_under_a_scaler_are_divided_by_its_scale_even_with_a_fused_optimizer(fused: bool) -> None:
    model, x = _net(), noise(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    out = model(x)
    out.retain_grad()
    mean_square(out).backward()
    truth, weight = out.grad, model[2].weight.grad.clone()
    with watch(model) as watcher:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(mean_square(model(x)) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        assert watcher.flush()
        assert watcher.current_step == 3
        for step in (0, 2):
            stats = read_step(watcher, step)
            assert_stats(stats["2", "output_grad", "", 0], [truth])
            assert_stats(stats["2", "param_grad", "weight", 0], [weight])
        assert [event.step for event in watcher.store.events() if event.name == "skipped-step"] == [1]


def test_two_scalers_each_divide_their_own_gradients() -> None:
    twin, x, kept = _net(), noise(5, 4), []
    models = nn.ModuleDict({"d": _net(), "g": _net()})
    out = twin(x)
    out.retain_grad()
    mean_square(out).backward()
    with watch(models) as watcher:
        for name, scale in (("d", 16.0), ("g", 1024.0)):
            optimizer = torch.optim.SGD(models[name].parameters(), lr=0.0)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            kept.append((optimizer, scaler))
            scaler.scale(mean_square(models[name](x))).backward()
            scaler.step(optimizer)
            scaler.update()
        assert watcher.flush()
        for step, name in enumerate(("d", "g")):
            assert_stats(read_step(watcher, step)[f"{name}.2", "output_grad", "", 0], [out.grad])


def test_steps_that_the_scaler_skips_at_the_very_beginning_are_separate_steps() -> None:
    model = _net()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model) as watcher:
        for step in range(6):
            out = model(noise(5, 4))
            optimizer.zero_grad()
            scaler.scale(mean_square(out) * (float("inf") if step < 2 or step == 4 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert watcher.flush()
        assert watcher.current_step == 6
        for step in range(6):
            stats = read_step(watcher, step)
            assert stats["0", "output", "", 0]["count"] == 25.0, step
            bad = stats["2", "output_grad", "", 0]
            assert (bad["inf"] + bad["nan"] > 0) == (step < 2 or step == 4), step


def test_gradients_of_autograd_grad_without_a_graph_are_left_out() -> None:
    model, x = _net(), noise(5, 4).requires_grad_()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        out = model(x)
        torch.autograd.grad(1000 * out.sum(), x, retain_graph=True)
        mean_square(out).backward()
        optimizer.step()
        assert watcher.flush()
        assert_stats(read_step(watcher, 0)["2", "output_grad", "", 0], [2 * out.detach() / out.numel()])
        assert watcher.store.scalars("hookcore/micro_batches").mean.tolist() == [1.0]


@pytest.mark.parametrize("detached", [True, False])
def test_another_models_optimizer_never_ends_a_step(detached: bool) -> None:
    forger, critic = _net(), nn.Linear(1, 1)
    forger_steps, critic_steps = sgd(forger.parameters()), sgd(critic.parameters())
    with watch(forger) as watcher:
        for _ in range(5):
            critic_steps.zero_grad()
            fake = forger(noise(5, 4))
            critic(fake.detach() if detached else fake).mean().backward()
            critic_steps.step()
            forger_steps.zero_grad()
            (-critic(fake if detached else forger(noise(5, 4)))).mean().backward()
            forger_steps.step()
        assert watcher.current_step == 5
        assert _steps_of(watcher, "0", "output_grad") == [0, 1, 2, 3, 4]


def test_optimizers_that_take_turns_are_all_seen_when_few_steps_are_captured() -> None:
    forger, critic = _net(), nn.Linear(1, 1)
    optimizers = sgd(forger.parameters()), sgd(critic.parameters())
    both = nn.ModuleDict({"forger": forger, "critic": critic})
    with watch(both, every=8) as watcher:
        for turn in range(120):
            which = turn % 6 == 5  # five steps of the critic, one of the generator
            both.zero_grad()
            fake = forger(noise(5, 4))
            critic(fake if which else fake.detach()).mean().backward()
            optimizers[not which].step()
        assert watcher.current_step == 120
        assert len(_steps_of(watcher, "forger.0", "param_grad", "weight")) >= 2
        assert len(_steps_of(watcher, "critic", "param_grad", "weight")) >= 6


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("place", ["top", "after the forward", "before the step", "after the step"])
def test_a_logged_value_belongs_to_its_step(every: int, place: str) -> None:
    model = _net()
    optimizer = sgd(model.parameters())
    with watch(model, every=every) as watcher:
        for turn in range(10):
            if place == "top":
                watcher.log(turn=turn)
            optimizer.zero_grad()
            out = model(noise(5, 4))
            if place == "after the forward":
                watcher.log(turn=turn)
            mean_square(out).backward()
            if place == "before the step":
                watcher.log(turn=turn)
            optimizer.step()
            if place == "after the step":
                watcher.log(turn=turn)
    logged = watcher.store.scalars("turn")
    assert logged.first_step.tolist() == list(range(10))
    assert logged.mean.tolist() == list(range(10))


def test_a_parameter_that_was_replaced_in_its_group_is_captured() -> None:
    model = _net()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for step in range(6):
            if step == 3:
                model[0].weight = nn.Parameter(noise(5, 4))
                optimizer.param_groups[0]["params"][0] = model[0].weight
            optimizer.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            optimizer.step()
        assert _steps_of(watcher, "0", "param_grad", "weight") == list(range(6))


@pytest.mark.parametrize("how", ["the optimizer gets its parameters", "a new optimizer steps it"])
def test_a_layer_that_replaces_all_that_an_optimizer_owns_is_stepped_though_nothing_is_captured(how: str) -> None:
    model = _net()
    first, last = sgd(model[0].parameters()), sgd(model[2].parameters())
    with watch(model, every=50) as watcher:
        for step in range(90):
            if step == 70:
                model[2] = nn.Linear(5, 1)
                if how.startswith("a new"):
                    last = sgd(model[2].parameters())
                else:
                    last.param_groups[0]["params"] = list(model[2].parameters())
            model.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            (first, last)[step % 2].step()
        assert watcher.current_step == 90


def test_a_model_that_only_runs_in_steps_that_are_not_captured_is_found_by_its_optimizer() -> None:
    models = [nn.Sequential(_net()) for _ in range(2)]
    optimizers = [sgd(model.parameters()) for model in models]
    with watch(every=50) as watcher:
        for step in range(60):
            model, optimizer = models[step % 2], optimizers[step % 2]
            optimizer.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            optimizer.step()
        assert watcher.current_step == 60
        paths = [module.path for module in watcher.store.modules()]
        assert sum(path.endswith("0.2") for path in paths) == 2, paths  # each is watched as a whole


def test_parameters_can_be_swapped_while_they_are_watched() -> None:
    model = _net()
    optimizer = sgd(model.parameters())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with watch(model) as watcher:
            for _ in range(2):
                optimizer.zero_grad()
                mean_square(model(noise(5, 4))).backward()
                optimizer.step()
            optimizer.zero_grad()
            model.double().float().half().float()
            model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
            assert watcher.errors == []
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_many_micro_batches_before_the_first_optimizer_step_are_one_step() -> None:
    model = _net()
    optimizer = sgd(model.parameters())
    with watch(model, kinds={"output_grad"}) as watcher:
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(70):
                mean_square(model(noise(5, 4))).backward()
            optimizer.step()
        assert watcher.current_step == 2
        assert watcher.flush()
        assert watcher.store.scalars("hookcore/micro_batches").mean.tolist() == [70.0, 70.0]
        assert [event for event in watcher.store.events() if event.name == "no-optimizer"] == []


def test_a_kept_output_keeps_neither_store_nor_recorder_alive_after_close() -> None:
    model = _net()
    watcher = watch(model)
    kept = model(noise(1, 4))
    references = weakref.ref(watcher.store), weakref.ref(recorder_of(watcher))
    watcher.close()
    del watcher
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert kept.requires_grad


def test_the_step_after_a_jump_of_the_loss_is_captured() -> None:
    model = _net()
    optimizer = sgd(model.parameters())
    with watch(model, every=1000) as watcher:
        for step in range(60):
            optimizer.zero_grad()
            loss = mean_square(model(noise(5, 4)))
            loss.backward()
            watcher.log(loss=100.0 if step == 30 else float("nan") if step == 45 else 1.0 + 0.01 * (step % 3))
            optimizer.step()
        assert _steps_of(watcher, "0", "output") == [0, 31, 46]


def test_data_from_before_the_first_optimizer_step_is_kept_if_the_run_ends_there() -> None:
    model = _net()
    with watch(model) as watcher:
        for _ in range(2):
            model.zero_grad()
            mean_square(model(noise(5, 4))).backward()
    assert read_step(watcher, 0)["0", "output", "", 0]["count"] == 50.0
