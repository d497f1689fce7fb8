# mypy: disable-error-code="no-untyped-call"
"""Restarts of real trainings: planted faults are named, and right ones are quiet."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookcore.records.moments import WEIGHT, Moment
from hookcore.store import Store
from hookcore_app.analysis.resume import check_resume, verdict_of
from tests.harness import digest, seed_all, watch

SAVED: Final = (20, 40)  # steps after which a checkpoint is made
STEPS: Final = 44  # of the first run
AGAIN: Final = 8  # of the second
Checkpoint = dict[str, Any]


@dataclass
class Training:
    """A small training with all that a checkpoint must bring back."""

    seed: int = 0
    make: Callable[[Any], torch.optim.Optimizer] = lambda weights: torch.optim.AdamW(weights, 1e-2)
    schedule: Callable[[int], float] = lambda step: 0.5 * (1 + math.cos(math.pi * step / 60))
    draws: bool = True  # from torch's generator; else data is made from the number of the step
    first: int = 0
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        seed_all(self.seed)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4))
        self.optimizer = self.make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.schedule)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=10)

    def checkpoint(self) -> Checkpoint:
        parts = "model", "optimizer", "scheduler", "scaler"
        saved = {name: copy.deepcopy(getattr(self, name).state_dict()) for name in parts}
        return saved | {"random": (torch.get_rng_state(), random.getstate(), np.random.get_state())}

    def load(self, saved: Checkpoint, without: str = "") -> None:
        for name in ("model", "optimizer", "scheduler", "scaler"):
            if name != without:
                getattr(self, name).load_state_dict(copy.deepcopy(saved[name]))
        if without != "random":
            torch.set_rng_state(saved["random"][0])
            random.setstate(saved["random"][1])
            np.random.set_state(saved["random"][2])

    def run(self, steps: int) -> tuple[Store, dict[int, Checkpoint]]:
        with watch(self.model) as watcher:
            saved = self.train(steps)
        return watcher.store, saved

    def train(self, steps: int) -> dict[int, Checkpoint]:
        saved: dict[int, Checkpoint] = {}
        for step in range(self.first, self.first + steps):
            drawn = None if self.draws else torch.Generator().manual_seed(step)
            batch = torch.randn(16, 8, generator=drawn)
            self.optimizer.zero_grad()
            loss: Tensor = ((self.model(batch) - batch[:, :4]) ** 2).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.losses.append(loss.item())
            if step + 1 in SAVED:
                saved[step + 1] = self.checkpoint()
        return saved


def outcomes(again: Store, first: Store) -> dict[str, str]:
    return {part.name: part.outcome for part in check_resume(again, first)[1]}


def message(again: Store, first: Store, name: str) -> str:
    return next(part.message for part in check_resume(again, first)[1] if part.name == name)


@pytest.fixture(scope="module")
def first() -> tuple[Store, dict[int, Checkpoint]]:
    return Training().run(STEPS)


Spoil = Callable[[Training, dict[int, Checkpoint]], None]


def without(part: str) -> Spoil:
    return lambda training, saved: training.load(saved[40], without=part)


def zero_moments(training: Training, saved: dict[int, Checkpoint]) -> None:
    training.load(saved[40])
    for state in training.optimizer.state.values():
        state["exp_avg"].zero_()


def restarted_schedule(training: Training, saved: dict[int, Checkpoint]) -> None:
    """The optimizer's own rate is loaded, and the scheduler then begins again."""
    training.load(saved[40], without="scheduler")
    training.scheduler = torch.optim.lr_scheduler.LambdaLR(training.optimizer, training.schedule)


def late_schedule(training: Training, saved: dict[int, Checkpoint]) -> None:
    """The first step has the loaded rate, and the second one that of a scheduler that was not loaded."""
    training.load(saved[40], without="scheduler")


def restarted_counter(training: Training, saved: dict[int, Checkpoint]) -> None:
    training.load(saved[40])
    for state in training.optimizer.state.values():
        state["step"].zero_()


def other_weights(training: Training, saved: dict[int, Checkpoint]) -> None:
    training.load(saved[40] | {"model": saved[20]["model"]})


def one_layer(training: Training, saved: dict[int, Checkpoint]) -> None:
    weights = {name: value for name, value in saved[40]["model"].items() if not name.startswith("3.")}
    training.load(saved[40], without="model")
    training.model.load_state_dict(weights, strict=False)


def lost_buffers(training: Training, saved: dict[int, Checkpoint]) -> None:
    buffers = {"running_mean", "running_var", "num_batches_tracked"}
    kept = {name: each for name, each in saved[40]["model"].items() if name.rpartition(".")[2] not in buffers}
    training.load(saved[40], without="model")
    training.model.load_state_dict(kept, strict=False)


def lower_precision(training: Training, saved: dict[int, Checkpoint]) -> None:
    rounded = {
        name: value.bfloat16().to(value.dtype) if value.is_floating_point() else value
        for name, value in saved[40]["model"].items()
    }
    training.load(saved[40] | {"model": rounded})


def nothing(training: Training, saved: dict[int, Checkpoint]) -> None:
    """No checkpoint is loaded."""


FAULTS: Final[dict[str, tuple[Spoil, str, str]]] = {
    "optimizer not restored": (without("optimizer"), "optimizer", "it was not loaded"),
    "first moments zero": (zero_moments, "optimizer", "First moments are zero in 6 of 6 tensors"),
    "schedule restarted": (restarted_schedule, "learning rate", "The schedule began again"),
    "scheduler not restored": (late_schedule, "learning rate", "The schedule began again"),
    "step counter restarted": (restarted_counter, "step counter", "is 0 for 6 of 6 weights, and was 40"),
    "weights of another checkpoint": (other_weights, "weights", "6 of 6 weights are those saved after 20 steps"),
    "one layer not loaded": (
        one_layer,
        "weights",
        "so they were not loaded: 3.weight",
    ),
    "generators restarted": (without("random"), "random generators", "torch's generator is the one before the first"),
    "scaler restarted": (without("scaler"), "loss scale", "It is 64, and was 1,024: the scaler was not loaded"),
    "buffers lost": (lost_buffers, "buffers", "1.num_batches_tracked: 1 batches are counted, and 40 were"),
    "weights in another precision": (lower_precision, "weights", "All 6 weights differ from those"),
    "nothing loaded": (nothing, "weights", "All weights are those with which the earlier run began"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_of_a_restart_is_named(first: tuple[Store, dict[int, Checkpoint]], name: str) -> None:
    spoil, part, words = FAULTS[name]
    training = Training()
    spoil(training, first[1])
    again, _ = training.run(AGAIN)
    found = outcomes(again, first[0])
    assert found[part] == "differs", found
    assert words in message(again, first[0], part)
    assert verdict_of(check_resume(again, first[0])[1])[0] == "broken"
    if name != "nothing loaded":
        others = {name for name, outcome in found.items() if outcome == "differs"} - {part, "loss"}
        assert others <= ({"step counter", "learning rate"} if name == "optimizer not restored" else set())


def of_newest(first: tuple[Store, dict[int, Checkpoint]]) -> tuple[Store, Store, int]:
    training = Training(seed=1)
    training.load(first[1][40])
    return first[0], training.run(AGAIN)[0], 40


def of_older(first: tuple[Store, dict[int, Checkpoint]]) -> tuple[Store, Store, int]:
    training = Training(seed=2)
    training.load(first[1][20])
    return first[0], training.run(AGAIN)[0], 20


def of_sgd(_: object) -> tuple[Store, Store, int]:
    """SGD with momentum, steps of the learning rate, and data that needs no generator."""
    how: dict[str, Any] = {
        "make": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9),
        "schedule": lambda step: 0.5 ** (step // 16),
        "draws": False,
    }
    earlier, saved = Training(**how).run(STEPS)
    training = Training(**how, first=40)
    training.load(saved[40], without="random")
    return earlier, training.run(AGAIN)[0], 40


def of_several_optimizers(_: object) -> tuple[Store, Store, int]:
    """Two optimizers after one pass, warm-up, and a run that ends with its checkpoint."""

    def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: range) -> Store:
        with watch(model) as watcher:
            for step in steps:
                for optimizer in optimizers:
                    optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, (step + 1) / 8)
                model.zero_grad()
                (model(torch.randn(16, 8)) ** 2).mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
            saved.append([each.state_dict() for each in (model, *optimizers)])
            saved[-1] = copy.deepcopy(saved[-1])
        return watcher.store

    def made() -> tuple[nn.Module, list[torch.optim.Optimizer]]:
        seed_all()
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        halves = [torch.optim.Adam(model[place].parameters(), 1e-3, amsgrad=True) for place in (0, 2)]
        return model, list(halves)

    saved: list[list[Any]] = []
    earlier = train(*made(), range(20))
    drawn = torch.get_rng_state()
    model, optimizers = made()
    for part, state in zip((model, *optimizers), saved[0], strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(drawn)
    return earlier, train(model, optimizers, range(20, 28)), 20


@pytest.mark.parametrize("restart", [of_newest, of_older, of_sgd, of_several_optimizers])
def test_a_right_restart_is_quiet(first: tuple[Store, dict[int, Checkpoint]], restart: Callable[..., Any]) -> None:
    earlier, again, step = restart(first)
    found_step, parts = check_resume(again, earlier)
    assert not [part for part in parts if part.outcome == "differs"], parts
    assert verdict_of(parts)[0] == "resumed"
    assert found_step == step


def test_a_restart_that_goes_on_exactly_has_the_same_losses(first: tuple[Store, dict[int, Checkpoint]]) -> None:
    training = Training(seed=3)
    training.load(first[1][40])
    again, _ = training.run(AGAIN)
    assert message(again, first[0], "loss") == "The losses of the first 4 steps equal those of the earlier run exactly."


def trained(seed: int, steps: int, step: bool = True) -> tuple[Store, nn.Module]:
    seed_all(seed)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    with watch(model) as watcher:
        for _ in range(steps):
            model(torch.randn(8, 4)).square().mean().backward()
            if step:
                optimizer.step()
    return watcher.store, model


def test_a_run_that_saved_only_weights_is_known_by_its_end() -> None:
    one, model = trained(0, 3)
    again = nn.Linear(4, 2)
    again.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(again.parameters(), 0.1)
    with watch(again) as watcher:
        again(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    assert check_resume(watcher.store, one)[0] == 3
    found = outcomes(watcher.store, one)
    assert (found["weights"], found["optimizer"]) == ("same", "differs")


def test_without_steps_of_an_optimizer_the_answer_is_unknown() -> None:
    (stepped, _), (still, _) = trained(0, 3), trained(1, 3, step=False)
    for pair in ((stepped, still), (still, stepped)):
        step, parts = check_resume(*pair)
        assert (step, [part.outcome for part in parts]) == (None, ["unknown"])
        assert verdict_of(parts)[0] == "unknown"


def moments_of(store: Store, when: str) -> list[Moment]:
    return [moment for _, moment in store.moments() if moment.when == when]


def test_norms_of_a_moment_are_those_of_the_first_values(first: tuple[Store, dict[int, Checkpoint]]) -> None:
    """Against float64 by NumPy."""
    store, saved = first
    for moment, step in zip(moments_of(store, "saved"), SAVED, strict=True):
        weights = {each.name: each.norm for each in moment.held if each.what == WEIGHT}
        assert weights.keys() == {name for name in saved[step]["model"] if name.endswith(("weight", "bias"))}
        for name, norm in weights.items():
            expected = float(np.linalg.norm(saved[step]["model"][name].double().numpy().ravel()))
            assert norm == pytest.approx(expected, rel=1e-12)


def test_large_tensors_are_read_in_part_and_equal_values_have_equal_hashes() -> None:
    def hashes(change: Callable[[Tensor], object], memory_format: Any = torch.contiguous_format) -> list[str]:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 400), nn.Linear(400, 300))
        with torch.no_grad():
            for number, weight in enumerate(model.parameters()):
                weight.copy_(torch.arange(weight.numel()).reshape(weight.shape).remainder(17 + number))
            change(model[3].weight)  # type: ignore[arg-type]
        model = model.to(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with watch(model) as watcher:
            model(torch.ones(2, 3, 8, 8)).sum().backward()
            optimizer.step()
        return [each.hash for each in moments_of(watcher.store, "begun")[0].held]

    same = hashes(lambda _: None)
    assert same == hashes(lambda _: None)
    assert same == hashes(lambda _: None, torch.channels_last), "their order in memory doesn't matter"
    assert same == hashes(lambda weight: weight[-1].zero_()), "only the first 65,536 values are read"
    changed = hashes(lambda weight: weight[0, :2].copy_(weight[0, :2].flip(0)))
    assert [place for place, pair in enumerate(zip(same, changed, strict=True)) if pair[0] != pair[1]] == [4]


def test_a_sentence_says_what_was_not_compared() -> None:
    def run(load: Mapping[str, Any] | None, spoil: bool) -> tuple[Store, dict[str, Any]]:
        seed_all()
        model = nn.Linear(400, 300)
        if load is not None:
            model.load_state_dict(load)
        if spoil:
            with torch.no_grad():
                model.weight[-1] = 0.0
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        with watch(model) as watcher:
            for _ in range(20):
                optimizer.zero_grad()
                model(torch.randn(4, 400)).square().mean().backward()
                optimizer.step()
        return watcher.store, copy.deepcopy(model.state_dict())

    earlier, saved = run(None, spoil=False)
    again, _ = run(saved, spoil=True)
    words = "2 weights: as saved after 20 steps. Of the 1 with more values than 65,536, only the first ones are known."
    assert message(again, earlier, "weights") == words
    assert outcomes(again, earlier)["loss"] == "unknown", "that it doesn't jump doesn't say that the data goes on"


def test_noting_states_changes_nothing_and_leaves_no_hook() -> None:
    def left_by(training: Training) -> str:
        tables = {name: len(table) for name, table in vars(training.optimizer).items() if name.endswith("_hooks")}
        whole = training.model.state_dict(), training.optimizer.state_dict(), training.losses, torch.get_rng_state()
        return digest((whole, tables))

    plain = Training()
    plain.train(STEPS)
    expected = left_by(plain)
    watched = Training()
    watched.run(STEPS)
    assert left_by(watched) == expected
