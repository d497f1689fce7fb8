# mypy: disable-error-code="no-untyped-call"
"""The step clock: the same steps under every setting, in randomly composed loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hookcore.recorder.clock import clock
from tests.harness import read_step, seed_all, watch

SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "every second": {"every": 2},
    "every fifth": {"every": 5},
    "budget": {"budget": 0.05},
    "weights only": {"kinds": ("param_grad", "update")},
    "on modules": {"attach": "module"},
    "with evaluation": {"phases": ("train", "eval"), "kinds": ("output", "input_grad")},
}


class Base(torch.optim.SGD):
    """Its step calls its parent's, so that torch's hooks fire twice."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Lookahead(torch.optim.Optimizer):
    """Calls another optimizer inside its own step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> Any:
        loss = self.inner.step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.999)
        return loss


@dataclass
class World:
    """A model in two parts, their optimizers, and unwatched models."""

    first: nn.Module = field(default_factory=lambda: nn.Linear(4, 5))
    last: nn.Module = field(default_factory=lambda: nn.Linear(5, 2))
    stranger: nn.Module = field(default_factory=lambda: nn.Linear(4, 1))

    def __post_init__(self) -> None:
        self.model = nn.Sequential(self.first, nn.Tanh(), self.last)
        self.a, self.b = Base(self.first.parameters(), 0.05), torch.optim.Adam(self.last.parameters(), 0.01)
        self.both = Lookahead(torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9))
        self.strangers = torch.optim.SGD(self.stranger.parameters(), 0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self.scaled = torch.optim.AdamW(self.model.parameters(), 0.01)

    def loss(self) -> Tensor:
        return self.model(torch.randn(3, 4)).square().mean()  # type: ignore[no-any-return]

    def train_stranger(self) -> None:
        self.strangers.zero_grad()
        self.stranger(torch.randn(3, 4)).square().mean().backward()
        self.strangers.step()


# Each turn of a loop, with its number of steps.


def two_behind_one(w: World) -> None:
    w.model.zero_grad()
    w.loss().backward()
    w.a.step()
    w.b.step()


def two_behind_two(w: World) -> None:
    w.model.zero_grad()
    w.loss().backward()
    w.loss().backward()
    w.b.step()
    w.a.step()


def two_behind_one_clipped(w: World) -> None:
    w.model.zero_grad()
    w.loss().backward()
    nn.utils.clip_grad_norm_(w.model.parameters(), 0.1)
    w.a.step()
    w.b.step()


def two_behind_one_each_clipped(w: World) -> None:
    w.model.zero_grad()
    w.loss().backward()
    for part, optimizer in ((w.first, w.a), (w.last, w.b)):
        nn.utils.clip_grad_value_(part.parameters(), 1e-3)
        optimizer.step()


def two_behind_one_with_new_gradients(w: World) -> None:
    w.model.zero_grad()
    w.loss().backward()
    for parameter in w.model.parameters():
        parameter.grad = parameter.grad * 0.5  # type: ignore[operator]
    w.b.step()
    w.a.step()


def taking_turns(w: World) -> None:
    for optimizer in (w.a, w.b):
        w.model.zero_grad()
        w.loss().backward()
        optimizer.step()


def one_of_two(w: World) -> None:
    w.model.zero_grad(set_to_none=False)
    w.loss().backward()
    w.a.step()


def strangers_in_between(w: World) -> None:
    w.model.zero_grad()
    w.train_stranger()
    w.loss().backward()
    w.a.step()
    w.train_stranger()
    w.b.step()


def with_a_closure(w: World) -> None:
    def closure() -> Tensor:
        w.model.zero_grad()
        loss = w.loss()
        loss.backward()
        return loss

    w.both.step(closure)


def with_micro_batches(w: World) -> None:
    w.model.zero_grad()
    for _ in range(3):
        (w.loss() / 3).backward()
    nn.utils.clip_grad_norm_(w.model.parameters(), 0.1)
    w.both.step()


def with_autograd_grad(w: World) -> None:
    w.model.zero_grad()
    x = torch.randn(3, 4, requires_grad=True)
    loss = w.model(x).square().mean()
    torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
    w.both.step()


def in_eval_mode(w: World) -> None:
    w.model.eval()
    two_behind_one(w)
    w.model.train()


def with_validation(w: World) -> None:
    two_behind_one(w)
    w.model.eval()
    with torch.no_grad():
        w.loss()
    w.model.train()


def sharpness_aware(w: World) -> None:
    w.model.zero_grad()
    w.loss().backward()
    with torch.no_grad():
        for parameter in w.model.parameters():
            parameter.add_(0.01)
    w.model.zero_grad()
    w.loss().backward()
    with torch.no_grad():
        for parameter in w.model.parameters():
            parameter.sub_(0.01)
    w.both.step()


def twice_with_one_gradient(w: World) -> None:
    w.model.zero_grad()
    w.loss().backward()
    w.a.step()
    w.a.step()


def scaled(w: World) -> None:
    w.scaled.zero_grad()
    w.scaler.scale(w.loss()).backward()
    w.scaler.step(w.scaled)
    w.scaler.update()


def scaled_and_skipped(w: World) -> None:
    w.scaled.zero_grad()
    w.scaler.scale(w.loss() * float("inf")).backward()
    w.scaler.step(w.scaled)
    w.scaler.update()


def gradients_set_by_hand(w: World) -> None:
    two_behind_one(w)
    for parameter in w.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    w.a.step()


def one_among_strangers(w: World) -> None:
    w.model.zero_grad()
    w.train_stranger()
    w.loss().backward()
    w.train_stranger()
    w.a.step()


TURNS: Final[dict[Callable[[World], None], int]] = {
    two_behind_one: 1,
    two_behind_two: 1,
    two_behind_one_clipped: 1,
    two_behind_one_each_clipped: 1,
    two_behind_one_with_new_gradients: 1,
    taking_turns: 2,
    one_of_two: 1,
    strangers_in_between: 1,
    with_a_closure: 1,
    with_micro_batches: 1,
    with_autograd_grad: 1,
    in_eval_mode: 1,
    with_validation: 1,
    sharpness_aware: 1,
    twice_with_one_gradient: 1,
    scaled: 1,
    scaled_and_skipped: 1,
    gradients_set_by_hand: 2,
    one_among_strangers: 1,
}
# Turns that must come in the first steps: a scaler, and an unwatched pass before a new optimizer.
AT_FIRST: Final = (scaled, scaled_and_skipped, strangers_in_between)
# Turns of one optimizer alone.
ALONE: Final = (
    (with_a_closure, with_micro_batches, with_autograd_grad, sharpness_aware),
    (one_of_two, twice_with_one_gradient, one_among_strangers),
)


def _run(
    turns: list[Callable[[World], None]], scaler: bool, pauses: bool = False, **given: Any
) -> tuple[list[int], dict[int, Any]]:
    """Return the number of the step after each turn, and the captured steps."""
    seed_all()
    world, numbers = World(), []
    # A scaler is noticed only when it lets an optimizer step, so it does that once before counting begins.
    with watch(world.model, **given) as watcher:
        watcher.log(place=-1.0)  # the first value of a name always belongs to the running step
        if scaler:
            scaled(world)
        for place, turn in enumerate(turns):
            if pauses and place % 3 == 1:
                watcher.pause()
            turn(world)
            watcher.log(place=place)
            if pauses and place % 3 == 2:
                watcher.resume()
            numbers.append(watcher.current_step)
        assert watcher.flush()
        assert watcher.errors == []
        values = watcher.store.scalars("place")
        logged = dict(zip(values.mean.tolist(), values.first_step.tolist(), strict=True))
        assert [logged[float(place)] for place in range(len(turns)) if float(place) in logged] == [
            number for place, number in enumerate(numbers) if float(place) in logged
        ]
        return numbers, {number: read_step(watcher, number) for number in range(watcher.current_step)}


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(list(TURNS)), min_size=4, max_size=10), st.sampled_from(list(SETTINGS)))
def test_steps_are_the_same_under_every_setting(turns: list[Callable[[World], None]], name: str) -> None:
    check_steps(turns, name)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(*(st.lists(st.sampled_from(turns), min_size=3, max_size=8) for turns in ALONE)),
    st.sampled_from(list(SETTINGS)),
    st.lists(st.sampled_from([turn for turn in TURNS if turn not in AT_FIRST]), max_size=5),
)
def test_steps_are_the_same_if_one_optimizer_starts_alone(
    turns: list[Callable[[World], None]], name: str, later: list[Callable[[World], None]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "FIRST_STEPS", 1)
        check_steps([*turns, *later], name, scaler=False)


def check_steps(turns: list[Callable[[World], None]], name: str, scaler: bool = True) -> None:
    full, steps = _run(turns, scaler)
    expected, total = [], int(scaler)
    for turn in turns:
        total += TURNS[turn]
        expected.append(total)
    assert full == expected
    numbers, captured = _run(turns, scaler, **SETTINGS[name])
    assert numbers == expected
    assert _run(turns, scaler, pauses=True)[0] == expected
    if name in ("every second", "every fifth", "budget", "on modules"):
        for number, stats in captured.items():
            assert not stats or stats.keys() == steps[number].keys(), number
            for key, found in stats.items():
                assert found == pytest.approx(steps[number][key], rel=1e-6, abs=1e-12, nan_ok=True), (number, key)
