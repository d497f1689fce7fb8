# mypy: disable-error-code="no-untyped-call"
"""The numbers are true: the whole zoo is compared with twins that use no hookcore."""

from __future__ import annotations

import functools
from typing import Final

import pytest
from torch import Tensor

import hookcore
from hookcore.hooks.tracing import Layer, LayerCall
from hookcore.recorder.known.roots import find_tensors
from tests.harness import STEPS, Key, assert_stats, digest, read_step, reference_stats, seed_all, watch
from tests.twin import OptimizerTwin, Twin, TwinHooks, counting_backwards
from tests.zoo import CASES, Case

# Cases in which a twin that clones differs, or in which a step of the trial isn't one step of an optimizer.
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
    "exception_in_forward_then_recovery": "a forward without a backward; see test_truth_steps.py",
    "exception_in_backward_then_recovery": "half a backward pass; see test_truth_steps.py",
    "saved_and_loaded_between_steps": "the twin's hooks are saved too",
    "copied_and_pickled_between_forward_and_backward": "the twin's hooks are copied too",
    "moving_average_by_deepcopy": "the twin's hooks are copied too",
    "parameters_added_later": "the twin does not know them",
    "loss_scaling_with_skipped_steps": "scaled gradients; see test_truth_steps.py",
    "loss_scaling_with_clipping_and_accumulation": "scaled gradients; see test_truth_steps.py",
    "gradients_by_autograd_grad": "gradients that no backward() brings",
    "gradient_penalty": "gradients by autograd.grad among them; see test_truth_steps.py",
    "backward_with_create_graph": "gradients by autograd.grad among them",
    "forces_in_the_forward": "gradients by autograd.grad among them",
    "backward_inside_the_forward": "two backward passes in one",
    "gradient_per_sample_by_vmap": "functional transforms",
    "jacobian_and_forward_mode": "functional transforms",
    "optimizer_inside_the_backward_pass": "several optimizers",
    "backward_twice_through_one_graph": "torch adds both gradients up; see test_truth_steps.py",
    "two_heads_two_backward_passes": "torch adds both gradients up; see test_truth_steps.py",
    "gradient_accumulation": "the calls of four forwards before the first backward",
}
TWINS: Final = [
    case for name, case in CASES.items() if name not in NOT_STEP_BY_STEP and "no-twin" not in case.traits
    if "checkpoint" not in name
]  # fmt: skip


@functools.cache
def _twin_steps(case: Case) -> list[Twin]:
    """Return the steps of a case, each recorded by new hooks."""
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
@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", TWINS, ids=[case.name for case in TWINS])
def test_outputs_and_their_gradients_equal_those_of_a_twin(case: Case) -> None:
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", TWINS, ids=[case.name for case in TWINS])
def test_traced_tensors_equal_those_of_a_twin(case: Case) -> None:
    twins = _twin_steps(case)
    seed_all()
    trial = case.build()
    for number, twin in enumerate(twins):
        with hookcore.trace(trial.model, kinds=("output", "output_grad")) as seen:
            trial.step(number)
        for (path, place), parts in _in_order(twin.outputs).items():
            values = [value for call in _calls(case, seen[path]) for value in _tensors(call, "output", place)]
            if case.name != "evaluation_between_steps":  # the twin doesn't record it
                assert len(values) == len(parts)
            assert [digest(part) for part in parts] == [digest(value) for value in values[-len(parts) :]]
        for (path, place), parts in _in_order(twin.gradients).items():
            gradients = [each for call in _calls(case, seen[path]) for each in _tensors(call, "output_grad", place)]
            for gradient, part in zip(gradients, parts, strict=True):
                assert_stats(reference_stats([gradient]), [part], (path, place))


def _calls(case: Case, layer: Layer) -> tuple[LayerCall, ...]:
    """Return the calls in the order in which they returned. A trace has them in the order in which they started."""
    return layer.calls[::-1] if case.name == "deep_recursion" else layer.calls


def _in_order(tensors: dict[Key, list[Tensor]]) -> dict[tuple[str, str], list[Tensor]]:
    """Return a twin's tensors by path and place, in the order of the calls."""
    found: dict[tuple[str, str], list[Tensor]] = {}
    for (path, _, place, _), parts in sorted(tensors.items()):
        found.setdefault((path, place), []).extend(parts)
    return found


def _tensors(call: LayerCall, kind: str, place: str) -> list[Tensor]:
    try:
        found = dict(find_tensors(getattr(call, kind)))
    except hookcore.TraceError:
        return []
    return [found[place]] if place in found else []


def _can_be_seen(parts: list[Tensor]) -> bool:
    return not any(part.is_meta for part in parts)


def test_a_step_of_another_kind_has_a_reason_and_a_case() -> None:
    assert set(NOT_STEP_BY_STEP) <= set(CASES)


ONE_OPTIMIZER: Final = [
    case for name, case in CASES.items()
    if name not in NOT_STEP_BY_STEP and "no-backward" not in case.traits
    and not any(word in name for word in ("closure", "optimizers", "parents_step", "lazy"))
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", ONE_OPTIMIZER, ids=[case.name for case in ONE_OPTIMIZER])
def test_parameters_their_gradients_and_updates_equal_those_of_the_optimizer(case: Case) -> None:
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
                read = read_step(watcher, number).items()
                stats = {key: seen for key, seen in read if key[1] != "raw_grad"}  # see test_raw_gradients.py
                names = {(kind, f"{module}.{index}".lstrip(".")) for module, kind, index, _ in stats}
                assert names == {key for key, tensor in expected.items() if not tensor.is_meta}
                for (module, kind, index, call), seen in stats.items():
                    assert_stats(seen, [expected[kind, f"{module}.{index}".lstrip(".")]], (module, kind, index, call))
    finally:
        twin.close()
