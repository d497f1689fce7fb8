# mypy: disable-error-code="no-untyped-call"
"""The numbers are true: outputs and gradients of the zoo against an independent twin, stats against NumPy's float64."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.records import KINDS
from tests.harness import (
    STEPS,
    Key,
    Twin,
    TwinHooks,
    assert_stats,
    counting_backwards,
    read_step,
    seed_all,
    watch,
)
from tests.zoo import CASES, Case
from tests.zoo.case import mean_square, mlp, noise, sgd
from tests.zoo.graphs import block

# Where a twin that clones cannot tell the truth, or a step of the trial is not one step of an optimizer.
NOT_STEP_BY_STEP: Final = {
    "adversarial_pair_with_gradient_penalty": "two steps each, and gradients by autograd.grad",
    "backward_without_any_step": "nothing ends a step",
    "data_loader_with_forked_workers": "two steps each",
    "module_replaced_and_deleted": "steps by hand",
    "model_moved_to_another_format": "steps by hand",
    "sgd_by_hand": "steps by hand",
    "step_without_a_new_gradient": "two steps each",
    "two_models_in_two_threads": "five steps each",
    "short_lived_models": "a second backward pass after the step",
    "only_inference": "is not training",
    "unhashable_module": "has a part that torch itself does not know",
    "lbfgs_with_a_closure": "calls of a closure",
    "exception_in_forward_then_recovery": "a forward without a backward; tested below",
    "exception_in_backward_then_recovery": "half a backward pass; tested below",
    "saved_and_loaded_between_steps": "the twin's hooks are saved too",
    "copied_and_pickled_between_forward_and_backward": "the twin's hooks are copied too",
    "moving_average_by_deepcopy": "the twin's hooks are copied too",
    "parameters_added_later": "the twin does not know them",
    "loss_scaling_with_skipped_steps": "scaled gradients; tested below",
    "loss_scaling_with_clipping_and_accumulation": "scaled gradients; tested below",
    "gradients_by_autograd_grad": "gradients that no backward() brings",
    "gradient_penalty": "gradients by autograd.grad among them; tested below",
    "backward_with_create_graph": "gradients by autograd.grad among them",
    "forces_in_the_forward": "gradients by autograd.grad among them",
    "backward_inside_the_forward": "two backward passes in one",
    "gradient_per_sample_by_vmap": "functional transforms",
    "jacobian_and_forward_mode": "functional transforms",
    "optimizer_inside_the_backward_pass": "several optimizers",
    "backward_twice_through_one_graph": "torch adds both gradients up; tested below",
    "two_heads_two_backward_passes": "torch adds both gradients up; tested below",
    "gradient_accumulation": "the calls of four forwards before the first backward",
}
TWINS: Final = [
    case for name, case in CASES.items() if name not in NOT_STEP_BY_STEP and "no-twin" not in case.traits
    if "checkpoint" not in name
]  # fmt: skip


def _twin_steps(case: Case) -> list[Twin]:
    """The steps of a case, each seen by new hooks."""
    seed_all()
    trial, twins = case.build(), []
    for number in range(STEPS):
        hooks = TwinHooks(trial.model)
        with counting_backwards(hooks):
            trial.step(number)
        twins.append(hooks.close())
    return twins


def _watched_steps(case: Case) -> list[dict[Key, dict[str, float]]]:
    seed_all()
    trial = case.build()
    with watch(trial.model, kinds={"output", "output_grad"}, calls=16) as watcher:
        for number in range(STEPS):
            trial.step(number)
        assert watcher.flush()
        assert watcher.current_step == STEPS
        return [read_step(watcher, number) for number in range(STEPS)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", TWINS, ids=[case.name for case in TWINS])
def test_outputs_and_their_gradients_are_those_of_a_twin(case: Case) -> None:
    twins, seen = _twin_steps(case), _watched_steps(case)
    for twin, stats in zip(twins, seen, strict=True):
        outputs = {key for key in stats if key[1] == "output"}
        gradients = {key for key in stats if key[1] == "output_grad"}
        assert outputs == {key for key, parts in twin.outputs.items() if _can_be_seen(parts)}
        assert gradients == set(twin.gradients)
        for key in outputs:
            assert_stats(stats[key], twin.outputs[key], key)
        for key in gradients:
            assert_stats(stats[key], twin.gradients[key], key)


def _can_be_seen(parts: list[Tensor]) -> bool:
    return not any(part.is_meta for part in parts)


def test_a_step_of_another_kind_has_a_reason_and_a_case() -> None:
    assert set(NOT_STEP_BY_STEP) <= set(CASES)


class OptimizerTwin:
    """Copies of what an optimizer is about to use, and of what it made of it, by hooks of torch's own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.steps: list[dict[tuple[str, str], Tensor]] = []
        self._handles = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]

    def _named(self, optimizer: Any) -> list[tuple[str, Tensor]]:
        stepped = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        return [(name, tensor) for name, tensor in self._model.named_parameters() if id(tensor) in stepped]

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        seen: dict[tuple[str, str], Tensor] = {}
        for name, tensor in self._named(optimizer):
            seen["param", name] = tensor.detach().clone()
            if tensor.grad is not None:
                seen["param_grad", name] = tensor.grad.detach().clone()
        self.steps.append(seen)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for name, tensor in self._named(optimizer):
            self.steps[-1]["update", name] = tensor.detach() - self.steps[-1]["param", name]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


ONE_OPTIMIZER: Final = [
    case for name, case in CASES.items()
    if name not in NOT_STEP_BY_STEP and "no-backward" not in case.traits
    and not any(word in name for word in ("closure", "optimizers", "parents_step", "lazy"))
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ONE_OPTIMIZER, ids=[case.name for case in ONE_OPTIMIZER])
def test_parameters_their_gradients_and_updates_are_those_of_the_optimizer(case: Case) -> None:
    seed_all()
    trial = case.build()
    twin = OptimizerTwin(trial.model)
    try:
        with watch(trial.model, kinds={"param", "param_grad", "update"}) as watcher:
            for number in range(STEPS):
                trial.step(number)
            assert watcher.flush()
            assert watcher.current_step == len(twin.steps) == STEPS
            for number, expected in enumerate(twin.steps):
                stats = read_step(watcher, number)
                names = {(kind, f"{module}.{index}".lstrip(".")) for module, kind, index, _ in stats}
                assert names == {key for key, tensor in expected.items() if not tensor.is_meta}
                for (module, kind, index, call), seen in stats.items():
                    assert_stats(seen, [expected[kind, f"{module}.{index}".lstrip(".")]], (module, kind, index, call))
    finally:
        twin.close()


# --- Kinds ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_a_step_is_what_autograd_and_the_optimizer_say() -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    x, optimizer = noise(3, 4).requires_grad_(), torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, kinds=KINDS) as watcher:
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


def test_an_inputs_gradient_holds_all_of_its_uses() -> None:
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
def test_parameters_that_came_after_the_watch_are_seen(how: str) -> None:
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


def test_parameters_that_an_optimizer_is_given_instead_of_others_are_seen() -> None:
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


# --- Accumulation, scaling, several passes --------------------------------------------------------------------------


def _micro_batches(
    all_forwards_first: bool,
) -> tuple[dict[Key, dict[str, float]], int, list[Tensor], list[Tensor], nn.Module]:
    seed_all()
    model, batches = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), [noise(2 + i, 4) for i in range(3)]
    optimizer, outputs, gradients = sgd(model.parameters()), [], []

    def forward(batch: Tensor) -> Tensor:
        out: Tensor = model(batch)
        out.retain_grad()
        outputs.append(out)
        return mean_square(out)

    with watch(model, kinds={"output", "output_grad", "param_grad"}) as watcher:
        if all_forwards_first:
            for loss in [forward(batch) for batch in batches]:
                loss.backward()
        else:
            for batch in batches:
                forward(batch).backward()
        weight = model[0].weight.grad.clone()  # type: ignore[operator, union-attr]
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
        assert watcher.current_step == 1
    gradients = [out.grad for out in outputs if out.grad is not None]
    assert_stats(stats["0", "param_grad", "weight", 0], [weight])
    return stats, watcher.current_step, outputs, gradients, model


def test_micro_batches_of_one_step_are_merged_with_their_number() -> None:
    stats, _, outputs, gradients, _ = _micro_batches(all_forwards_first=False)
    assert_stats(stats["1", "output", "", 0], outputs)
    assert_stats(stats["1", "output_grad", "", 0], gradients)
    assert stats["1", "output", "", 0]["parts"] == 3


def test_forwards_before_the_first_backward_are_calls_of_their_own() -> None:
    stats, _, outputs, gradients, _ = _micro_batches(all_forwards_first=True)
    for call in range(3):
        assert_stats(stats["1", "output", "", call], [outputs[call]])
        assert_stats(stats["1", "output_grad", "", call], [gradients[call]])


def test_the_number_of_micro_batches_is_in_the_store() -> None:
    model = nn.Linear(3, 1)
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for _ in range(4):
            model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        assert watcher.flush()
        assert watcher.store.scalars("hookcore/micro_batches").mean.tolist() == [4.0]


def test_a_graph_that_is_walked_twice_gives_its_gradient_twice() -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(3, 2))
    with watch(model) as watcher:
        out = model(noise(2, 3))
        loss = mean_square(out)
        loss.backward(retain_graph=True)
        loss.backward()
        watcher.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    grad = 2 * out.detach() / out.numel()
    assert_stats(stats["0", "output_grad", "", 0], [grad, grad])


def _scaled(clip: float | None, skip: bool) -> tuple[list[dict[Key, dict[str, float]]], list[dict[Key, Tensor]], Any]:
    """Steps under a GradScaler, and what an unscaled computation says of each step that was taken."""
    seed_all()
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), noise(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, truth = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100), []
    with watch(model) as watcher:
        for number in range(3):
            optimizer.zero_grad()
            loss = mean_square(model(x)) * (1e38 if skip and number == 1 else 1.0)
            scaler.scale(loss).backward()
            if not (skip and number == 1):
                truth.append(_unscaled_truth(model, x, clip))
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
        assert watcher.flush()
        return [read_step(watcher, number) for number in range(watcher.current_step)], truth, watcher


def _unscaled_truth(model: nn.Sequential, x: Tensor, clip: float | None) -> dict[Key, Tensor]:
    weights = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    first = nn.functional.linear(x, weights[0], weights[1])
    last = nn.functional.linear(first.tanh(), weights[2], weights[3])
    first.retain_grad()
    last.retain_grad()
    mean_square(last).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(weights, clip)
    assert first.grad is not None
    assert last.grad is not None
    assert weights[0].grad is not None
    return {
        ("0", "output_grad", "", 0): first.grad,
        ("2", "output_grad", "", 0): last.grad,
        ("0", "param_grad", "weight", 0): weights[0].grad,
    }


@pytest.mark.parametrize("clip", [None, 0.01])
def test_gradients_under_a_loss_scale_are_unscaled_and_clipped_as_the_optimizer_gets_them(clip: float | None) -> None:
    steps, truth, watcher = _scaled(clip, skip=False)
    assert len(steps) == 3
    for stats, expected in zip(steps, truth, strict=True):
        for key, tensor in expected.items():
            assert_stats(stats[key], [tensor], key)
    assert watcher.store.scalars("hookcore/grad_scale").mean.tolist() == [1024.0] * 3


def test_a_step_that_the_scaler_skips_is_told_and_spoils_no_other() -> None:
    steps, truth, watcher = _scaled(None, skip=True)
    assert len(steps) == 2
    assert [event.name for event in watcher.store.events() if event.name == "skipped-step"] == ["skipped-step"]
    for key, tensor in truth[0].items():
        assert_stats(steps[0][key], [tensor], key)
    for key, tensor in truth[1].items():
        if key[1] == "param_grad":
            assert_stats(steps[1][key], [tensor], key)


@pytest.mark.parametrize("reentrant", [True, False])
def test_under_a_checkpoint_each_output_and_gradient_counts_once(reentrant: bool) -> None:
    def steps(run: Callable[..., Any]) -> dict[Key, dict[str, float]]:
        seed_all()
        model = nn.ModuleDict({"a": block(), "b": block(), "head": nn.Linear(6, 2)})
        x, optimizer = noise(5, 6).requires_grad_(), sgd(model.parameters())
        with watch(model) as watcher:
            loss = mean_square(model["head"](run(model["b"], run(model["a"], x))))
            loss.backward()
            optimizer.step()
            assert watcher.flush()
            return read_step(watcher, 0)

    def again(part: nn.Module, x: Tensor) -> Any:
        return checkpoint(part, x, use_reentrant=reentrant)

    plain, checkpointed = steps(lambda part, x: part(x)), steps(again)
    assert {key for key in plain if key[1] == "output_grad"} >= {
        ("a.1", "output_grad", "", 0),
        ("b", "output_grad", "", 0),
    }
    assert checkpointed.keys() == plain.keys()
    for key, stats in plain.items():
        assert checkpointed[key] == pytest.approx(stats, rel=1e-6, nan_ok=True), key


def test_gradients_by_autograd_grad_are_not_taken_for_the_backward_pass() -> None:
    seed_all()
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), noise(5, 4).requires_grad_()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        out = model(x)
        out.retain_grad()
        torch.autograd.grad(mean_square(out), x, create_graph=True)
        mean_square(out).backward()
        optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 0)
    assert_stats(stats["1", "output_grad", "", 0], [2 * out.detach() / out.numel()])


def test_a_failed_forward_or_backward_leaves_no_number_behind() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise ValueError("no gradient")

    seed_all()
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), noise(5, 4)
    optimizer = sgd(model.parameters())
    with watch(model, kinds={"output_grad", "param_grad"}) as watcher:
        for _ in range(3):
            with contextlib.suppress(ValueError):
                Fails.apply(model(x)).sum().backward()
            optimizer.zero_grad()
            out = model(x)
            mean_square(out).backward()
            optimizer.step()
        assert watcher.flush()
        assert watcher.current_step == 3
        stats = read_step(watcher, 2)
        assert watcher.errors == []
    calls = {key[3] for key in stats}
    grads = [stats[key] for key in stats if key[:2] == ("1", "output_grad")]
    assert calls <= {0, 1}
    assert len(grads) == 1
    assert grads[0]["parts"] == 1


# --- The blog's network ---------------------------------------------------------------------------------------------


class TwoTwoTwo(nn.Module):
    """Two inputs, two hidden neurons, two outputs; sigmoid everywhere."""

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


def test_the_network_of_the_blog_has_its_known_values() -> None:
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


# --- What the user adds ---------------------------------------------------------------------------------------------


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


def test_evaluation_is_kept_apart_from_training() -> None:
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


def test_evaluation_is_not_captured_unless_asked_for() -> None:
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


# --- Threads --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns a hundred times as often as they usually do."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 100)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_nothing_is_lost_where_several_threads_train() -> None:
    seed_all()
    models = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(4)]
    inputs, steps = noise(5, 6), 40

    def train(model: nn.Module) -> None:
        optimizer = sgd(model.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            mean_square(model(inputs)).backward()
            optimizer.step()

    with watch(kinds=KINDS) as watcher:
        threads = [threading.Thread(target=train, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert watcher.flush()
        assert watcher.errors == []
        parts: dict[tuple[str, str], float] = {}
        taps = watcher.store.taps()
        for number, tap in zip(taps.numbers, taps.taps, strict=True):
            series = watcher.store.series(int(number), "parts")
            key = (tap.module, f"{tap.kind} {tap.index}")
            parts[key] = parts.get(key, 0.0) + float(np.nansum(series.mean * series.present))
    assert len({module.partition("/")[0] for module, _ in parts}) == 4
    assert set(parts.values()) == {float(steps)}
