# mypy: disable-error-code="no-untyped-call"
"""What optimizers keep for each weight, measured after some steps, against the optimizers themselves."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hookcore
from hookcore.findings import findings_of
from hookcore.records import STATE_KINDS, Tap
from hookcore.store import Store
from tests.build import append
from tests.harness import assert_stats, digest, read_step, seed_all, watch
from tests.ranks import run_ranks

STEPS: Final = 6
EVERY: Final = 2  # captured steps
Kept = dict[tuple[str, str, str], Tensor]  # by module, kind, and name


def net() -> nn.Sequential:
    seed_all()
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def loss_of(model: nn.Module, size: float = 1.0) -> Tensor:
    return (model(size * torch.randn(16, 8)) ** 2).mean()


def kept_by(model: nn.Module, *optimizers: Any) -> Kept:
    """Return copies of all tensors that the optimizers keep for a weight."""
    names = {id(each): name for name, each in model.named_parameters()}
    found: Kept = {}
    for optimizer in optimizers:
        for weight, state in optimizer.state.items():
            module, _, name = names[id(weight)].rpartition(".")
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dim():
                    kind = key if key in STATE_KINDS else "state"
                    found[module, kind, name if kind != "state" else f"{name}.{key}"] = value.detach().clone()
    return found


Loop = Callable[[nn.Module, Callable[..., None]], None]  # trains a model, and says what its optimizers keep


def stepped(make: Callable[[Any], Any], micro_batches: int = 1, clip: bool = False) -> Loop:
    def loop(model: nn.Module, saw: Callable[..., None]) -> None:
        optimizer = make(list(model.parameters()))
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(micro_batches):
                loss_of(model).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            saw(optimizer)

    return loop


def of_two_networks(model: nn.Module, saw: Callable[..., None]) -> None:
    """Train two halves in turns."""
    first, second = (torch.optim.Adam(model[place].parameters(), 1e-2) for place in (0, 2))  # type: ignore[index]
    for step in range(STEPS):
        optimizer = (first, second)[step % 2]
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        saw(optimizer)


def of_one_pass(model: nn.Module, saw: Callable[..., None]) -> None:
    """Step matrices and biases with optimizers of their own, after one pass."""
    every = list(model.parameters())
    one = torch.optim.Muon([each for each in every if each.dim() == 2], 1e-2)
    two = torch.optim.AdamW([each for each in every if each.dim() < 2], 1e-2)
    for _ in range(STEPS):
        model.zero_grad()
        loss_of(model).backward()
        one.step()
        two.step()
        saw(one, two)


def with_scaler(model: nn.Module, saw: Callable[..., None]) -> None:
    """Train with a scaler that skips a step in which states are due."""
    optimizer, scaler = torch.optim.AdamW(model.parameters(), 1e-2), torch.amp.GradScaler("cpu", init_scale=512.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, math.inf if step == 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        saw(*([] if step == 3 else [optimizer]))


def with_closures(model: nn.Module, saw: Callable[..., None]) -> None:
    """Train with LBFGS, whose state is about all weights together."""
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)
    data = torch.randn(16, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (model(data) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
        saw()


LOOPS: Final[dict[str, Loop]] = {
    "AdamW": stepped(lambda weights: torch.optim.AdamW(weights, 1e-2, amsgrad=True)),
    "AdamW, fused": stepped(lambda weights: torch.optim.AdamW(weights, 1e-2, fused=True)),
    "AdamW, foreach, clipped micro-batches": stepped(
        lambda weights: torch.optim.AdamW(weights, 1e-2, foreach=True), 3, clip=True
    ),
    "SGD with momentum": stepped(lambda weights: torch.optim.SGD(weights, 1e-2, momentum=0.9)),
    "RMSprop": stepped(lambda weights: torch.optim.RMSprop(weights, 1e-2, centered=True)),
    "Adafactor": stepped(torch.optim.Adafactor),
    "two networks": of_two_networks,
    "Muon and AdamW": of_one_pass,
    "a scaler": with_scaler,
    "LBFGS": with_closures,
}


def run(loop: Loop, watched: bool = True) -> tuple[nn.Module, list[Kept], Any]:
    model, kept = net(), list[Kept]()
    if not watched:
        loop(model, lambda *optimizers: None)
        return model, kept, None
    with watch(model, server=None, state_every=EVERY) as watcher:
        loop(model, lambda *optimizers: kept.append(kept_by(model, *optimizers)))
        assert watcher.flush()
    return model, kept, watcher


def states_in(watcher: hookcore.Watcher, step: int) -> dict[tuple[str, str, str], dict[str, float]]:
    found = read_step(watcher, step).items()
    return {(module, kind, name): stats for (module, kind, name, _), stats in found if kind in STATE_KINDS}


@pytest.mark.parametrize("name", LOOPS)
def test_states_are_measured_after_every_second_captured_step(name: str) -> None:
    model, kept, watcher = run(LOOPS[name])
    assert digest(dict(model.state_dict())) == digest(dict(run(LOOPS[name], watched=False)[0].state_dict()))
    # Steps are captured in blocks in which each optimizer steps.
    block = 2 if name in ("two networks", "a scaler") else 1
    for step, expected in enumerate(kept):
        found = states_in(watcher, step)
        if block == 1:
            assert found.keys() == (expected.keys() if step % EVERY else set()), step
        for key, stats in found.items():
            assert_stats(stats, [expected[key]], (step, key))
    assert any(states_in(watcher, step) for step in range(STEPS)) == (name != "LBFGS")
    errors = {event.name for event in watcher.store.events() if event.severity == "error"}
    assert errors <= {"nonfinite-step"}


def test_states_are_measured_in_every_fiftieth_captured_step_by_default() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with watch(model, server=None) as watcher:
        for _ in range(70):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        assert watcher.flush()
        rows = watcher.store.rows(watcher.store.taps(kind="exp_avg").numbers, "count")
    assert rows.first[(rows.present > 0).any(axis=1)].tolist() == [16, 66]


class EightBits(torch.optim.SGD):
    """Keeps codes that only it can decode."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["state1"] = torch.ones_like(weight, dtype=torch.uint8)


def test_coded_states_are_left_out_and_the_coverage_says_why() -> None:
    _, _, watcher = run(stepped(lambda weights: EightBits(weights, 1e-2)))
    assert not any(states_in(watcher, step) for step in range(STEPS))
    reasons = {each.path: each.reason for each in watcher.coverage()}
    assert "state1 of its optimizer is left out: only the optimizer can decode its torch.uint8" in reasons["0"]


# --- Two processes --------------------------------------------------------------------------------------------------


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    for way in ("copies", "parts"):
        model: Any = net()
        inner = model
        if way == "copies":
            model = DistributedDataParallel(inner)
        else:
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        with watch(inner, server=None, state_every=EVERY) as watcher:
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss_of(model).backward()
                optimizer.step()
            assert watcher.flush()
            for (module, kind, name), stats in states_in(watcher, STEPS - 1).items():
                weight = getattr(inner.get_submodule(module), name)
                own = optimizer.state[weight][kind]
                assert_stats(stats, [own._local_tensor if way == "parts" else own], (way, module, kind))
            assert len(states_in(watcher, STEPS - 1)) == 8
    dist.destroy_process_group()


@pytest.mark.slow
def test_each_rank_measures_its_part_of_the_states(tmp_path: Path) -> None:
    run_ranks(work, (str(tmp_path),), 2)


# --- Rules ----------------------------------------------------------------------------------------------------------

LAYERS: Final = ("0", "2")
TAPS: Final = tuple(Tap(layer, kind, "weight") for layer in LAYERS for kind in ("param_grad", "exp_avg", "exp_avg_sq"))  # type: ignore[arg-type]


def judged(
    zeros: dict[int, float], sizes: Callable[[int], float] = lambda _: 1.0, measured: int = 6
) -> list[tuple[str, str, str]]:
    """Return the findings about taps with these shares of zeros; their states are measured in every fifth step."""
    store = Store(2**24)
    for step in range(5 * measured):
        due = step % 5 == 4
        numbers = [place for place, tap in enumerate(TAPS) if due or tap.kind == "param_grad"]
        rms = np.array([sizes(step) if TAPS[place].kind == "exp_avg_sq" else 1.0 for place in numbers])
        shares = np.array([8 * zeros.get(place, 0.0) for place in numbers])
        append(store, step, rms, TAPS if not step else (), numbers=numbers, zero=shares, count=8)
    names = {"state-stays-zero", "second-moments"}
    return [(each.rule, each.tap.label, each.message) for each in findings_of(store) if each.rule in names]


def test_a_moment_that_stays_zero_is_found() -> None:
    ((rule, label, message),) = judged({1: 1.0})
    assert (rule, label) == ("state-stays-zero", "0 exp_avg [weight]")
    assert message == (
        "the first moment of weight has been zero in its newest 3 measurements, although the gradient isn't"
    )
    assert judged({1: 1.0}, measured=2) == []


def test_moments_of_a_weight_without_gradient_may_stay_zero() -> None:
    assert judged({0: 1.0, 1: 1.0, 2: 1.0}) == []
    assert judged({0: 0.6, 2: 0.6}) == []


def test_second_moments_that_are_zero_although_gradients_are_not_are_found() -> None:
    ((rule, label, message),) = judged({5: 0.625})
    assert (rule, label) == ("second-moments", "2 exp_avg_sq [weight]")
    assert "has been zero in 62% of its values" in message


@pytest.mark.parametrize(("factor", "many"), [(1e7, 1), (1e5, 0)])
def test_second_moments_that_explode_are_found(factor: float, many: int) -> None:
    found = judged({}, lambda step: factor if step >= 25 else 1.0)
    assert [rule for rule, *_ in found] == ["second-moments"] * many


def jumping(moves: dict[int, tuple[int, float]], kind: Any = "update", jumps_at: int = 100) -> list[str]:
    """Return the findings about a loss that jumps, after updates moved: {step: (place, times as large)}."""
    store, random = Store(2**24), np.random.default_rng(0)
    taps = tuple(Tap(f"layers.{place}", kind, "weight") for place in range(3))
    for step in range(jumps_at + 20):
        sizes = np.exp(0.1 * random.standard_normal(3))
        if step in moves:
            place, times = moves[step]
            sizes[place] *= times
        loss = (20.0 if step == jumps_at else 1.0) + 0.01 * random.random()
        append(store, step, sizes, taps if not step else (), scalars={"loss": loss}, count=8)
    return [each.message for each in findings_of(store) if each.rule == "spike-precursor"]


def test_the_update_that_moved_before_the_loss_jumped_is_named() -> None:
    (message,) = jumping({95: (1, 4.0), 98: (2, 6.0)})
    assert message.startswith("the update of weight was 4")
    assert message.endswith("times as large as usual at step 95, 5 steps before loss jumped")
    assert "at step 99, 1 step before" in jumping({99: (0, 30.0)}, "param_grad")[0]


@pytest.mark.parametrize("moves", [{}, {95: (1, 1.3)}, {100: (1, 30.0)}, {30: (1, 30.0)}])
def test_updates_that_move_little_or_with_the_loss_or_long_before_it_are_not_named(
    moves: dict[int, tuple[int, float]],
) -> None:
    assert jumping(moves) == []


# --- Numbers about steps --------------------------------------------------------------------------------------------


def degrees(one: Tensor, two: Tensor) -> float:
    """Return the angle between two tensors in degrees, by the cross product, which is exact for small angles."""
    one, two = one.double().flatten(), two.double().flatten()
    across = (two - one * (one @ two) / (one @ one)).norm()
    return math.degrees(math.atan2(float(across), float(one @ two / one.norm())))


@pytest.mark.parametrize(
    ("make", "decay"),
    [
        (lambda weights: torch.optim.AdamW(weights, 1e-2, weight_decay=0.1), 1e-3),
        (lambda weights: torch.optim.AdamW(weights, torch.tensor(1e-2), weight_decay=0.1, foreach=False), 1e-3),
        (lambda weights: torch.optim.SGD(weights, 1e-2, weight_decay=0.1), None),
        (lambda weights: torch.optim.Adam(weights, 1e-2), None),
    ],
)
def test_effective_rate_decay_and_rotation_are_those_of_the_weights(make: Any, decay: float | None) -> None:
    model = net()
    optimizer, expected = make(model.parameters()), list[dict[str, dict[str, float]]]()
    with watch(model, server=None, state_every=EVERY, kinds=("param_grad", "update")) as watcher:
        earlier = None
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_of(model).backward()
            before = copy.deepcopy(model.state_dict())
            gradients = {name: each.grad.double().norm() for name, each in model.named_parameters()}  # type: ignore[union-attr]
            optimizer.step()
            numbers: dict[str, dict[str, float]] = {}
            for name, now in model.state_dict().items():
                update = (now.double() - before[name].double()).norm()
                numbers[name] = {"effective_lr": float(update / gradients[name])}
                numbers[name]["rotation"] = degrees(before[name], now)
                if decay is not None:
                    numbers[name]["decay_share"] = float(decay * before[name].double().norm() / update)
                if len(expected) > 1 and earlier is not None:  # the watch began in the first step
                    numbers[name]["update_cosine"] = turn(earlier[name], before[name], now)
            earlier = before
            expected.append(numbers)
        assert watcher.flush()
    for step in range(STEPS):
        found: dict[str, dict[str, float]] = {}
        for (module, kind, index, _), stats in read_step(watcher, step).items():
            if kind == "probe":
                number, _, name = index.partition(" ")
                found.setdefault(f"{module}.{name}", {})[number] = stats["mean"]
                assert (stats["count"], stats["parts"], stats["nan"], stats["std"]) == (1, 1, 0, 0)
                assert stats["min"] == stats["max"] == stats["rms"] == stats["norm"] == stats["mean"]
        assert found.keys() == (expected[step].keys() if step % EVERY else set())
        for name, numbers in found.items():
            assert numbers == pytest.approx(expected[step][name], rel=2e-4), (step, name)


def turn(earlier: Tensor, before: Tensor, now: Tensor) -> float:
    """Return the cosine of a weight's newest update to the one before, in double precision."""
    one, two = (before.double() - earlier.double()).flatten(), (now.double() - before.double()).flatten()
    return float(one @ two / (one.norm() * two.norm()))


def cosines_in(watcher: hookcore.Watcher) -> dict[str, dict[int, float]]:
    taps = [tap for tap in watcher.store.taps(kind="probe").taps if tap.index.startswith("update_cosine ")]
    series = (
        (f"{tap.module}.{tap.index.partition(' ')[2]}", watcher.reader().series(tap.label, "mean")) for tap in taps
    )
    return {name: dict(zip(each.first_step.tolist(), each.mean.tolist(), strict=True)) for name, each in series}


def trained(loop: Loop, **settings: Any) -> tuple[dict[str, dict[int, float]], list[dict[str, Tensor]], Any]:
    """Return the cosines that are measured, the weights after each step, and the watcher. The probe changes no bit."""
    model, weights = net(), list[dict[str, Tensor]]()
    with watch(model, server=None, kinds=("param_grad", "update"), **settings) as watcher:
        loop(model, lambda *_: weights.append(copy.deepcopy(model.state_dict())))
        assert watcher.flush()
        cosines = cosines_in(watcher)
    plain = net()
    loop(plain, lambda *_: None)
    assert digest(plain.state_dict()) == digest(model.state_dict())
    return cosines, weights, watcher


def test_an_empty_weight_keeps_no_other_update_from_being_compared() -> None:
    class Model(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.rows = nn.Parameter(torch.empty(0, 4))

        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values) + self.rows.sum()

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, server=None, kinds=("param_grad", "update"), every=1, budget=None, state_every=2) as watcher:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
        assert watcher.flush()
        assert set(cosines_in(watcher)) == {".weight", ".bias"}
        assert not watcher.errors


def many(steps: int) -> Loop:
    def longer(model: nn.Module, saw: Callable[..., None]) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            saw(optimizer)

    return longer


def test_the_cosine_of_successive_updates_needs_no_other_step_to_be_captured() -> None:
    cosines, weights, watcher = trained(many(200), every=8, state_every=3)
    rare = [step for step in range(0, 200, 8) if step // 8 % 3 == 2]
    assert [*cosines["0.weight"]] == rare
    for name, told in cosines.items():
        for step, value in told.items():
            assert value == pytest.approx(turn(*(weights[step - back][name] for back in (2, 1, 0))), abs=1e-4)
    assert watcher.store.captured() == 25


def test_networks_that_take_turns_are_compared_with_their_own_last_update() -> None:
    def loop(model: nn.Module, saw: Callable[..., None]) -> None:
        first, second = (torch.optim.Adam(model[place].parameters(), 1e-2) for place in (0, 2))  # type: ignore[index]
        for step in range(120):
            optimizer = (first, second)[step % 2]
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            saw(optimizer)

    cosines, weights, _ = trained(loop, state_every=4)
    assert len(cosines) == 4
    for name, told in cosines.items():
        assert len(told) > 5
        for step, value in told.items():
            earlier, before, now = (weights[step - back][name] for back in (3, 1, 0))
            assert value == pytest.approx(turn(earlier, before, now), abs=1e-4), (name, step)


def test_after_a_skipped_step_there_is_no_update_to_compare_with() -> None:
    cosines, _, _ = trained(with_scaler, state_every=5)  # in step 4, after the one that is skipped
    assert [[*told] for told in cosines.values()] == [[4]] * 4
    assert all(math.isnan(told[4]) for told in cosines.values())


def test_an_optimizer_that_joins_a_step_has_no_cosine_and_the_coverage_says_why() -> None:
    cosines, _, watcher = trained(of_one_pass, state_every=EVERY)
    assert {name.rpartition(".")[2] for name in cosines} == {"weight"}
    reasons = {each.reason for each in watcher.store.coverage()}
    assert any("steps after another one, which ends the step" in reason for reason in reasons)


def test_numbers_about_steps_need_the_kind_update() -> None:
    _, _, watcher = run(LOOPS["AdamW"])
    assert not watcher.store.taps(kind="probe").taps


def test_infinite_second_moments_are_found_but_open_no_incident_with_a_wrong_first_step() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with watch(model, server=None, state_every=5) as watcher:
        for _ in range(10):
            optimizer.zero_grad()
            (1e25 * loss_of(model)).backward()  # its square is too large for float32
            optimizer.step()
        assert watcher.flush()
        found = [each for each in findings_of(watcher.store) if each.rule == "second-moments"]
    assert [each.message for each in found] == [
        "the second moment of weight was infinite at step 9: squares of its gradients are too large"
    ]
    assert not [each for each in watcher.store.incidents() if each.rule == "nonfinite"]
