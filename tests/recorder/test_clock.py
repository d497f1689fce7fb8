# mypy: disable-error-code="no-untyped-call"
"""The step clock: the same steps under every setting, in randomly composed loops."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.observe import cpu
from hookcore.recorder.clock import clock
from hookcore.recorder.clock.cadence import Cadence
from tests.harness import read_step, seed_all, watch
from tests.inside import class_of, module_of, recorder_of
from tests.lanes import examples

PACKAGE: Final = str(Path(hookcore.__file__).parent)
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


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(list(TURNS)), min_size=4, max_size=10), st.sampled_from(list(SETTINGS)))
def test_steps_are_the_same_under_every_setting(turns: list[Callable[[World], None]], name: str) -> None:
    check_steps(turns, name)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
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
            # That the loop clips gradients is learned in captured steps only.
            of_all = {key: of for key, of in steps[number].items() if key[1] != "raw_grad"}
            seen = {key: of for key, of in stats.items() if key[1] != "raw_grad"}
            assert not stats or seen.keys() == of_all.keys(), number
            for key, found in seen.items():
                expected_stats = of_all[key] | {"ratio": found["ratio"]}
                assert found == pytest.approx(expected_stats, rel=1e-6, abs=1e-12, nan_ok=True), (number, key)


# The short way through uncaptured steps, and the full machinery


@dataclass
class Plain(World):
    """The same model, stepped by one plain optimizer, and by a second one now and then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.plain = torch.optim.SGD(self.model.parameters(), 0.05)

    def step(self) -> None:
        self.plain.zero_grad()
        self.loss().backward()
        self.plain.step()


@dataclass
class Clipped(Plain):
    """The same, with gradients that are always clipped, sometimes those of two backward passes."""

    def step(self) -> None:
        self.plain.zero_grad()
        for _ in range(self.passes):
            self.loss().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
        self.plain.step()

    passes: int = 1


def plainly(w: Plain) -> None:
    for _ in range(4):
        w.step()


def with_a_schedule(w: Plain) -> None:
    w.plain.param_groups[0]["lr"] *= 0.9
    w.step()


def in_parts(w: Plain) -> None:
    w.plain.zero_grad()
    for _ in range(3):
        (w.loss() / 3).backward()
    nn.utils.clip_grad_norm_(w.model.parameters(), 0.1)
    w.plain.step()


def in_parts_of_which_one_is_thrown_away(w: Plain) -> None:
    w.loss().backward()
    w.plain.zero_grad()
    w.loss().backward()
    w.plain.step()


def with_a_penalty(w: Plain) -> None:
    w.plain.zero_grad()
    x = torch.randn(3, 4, requires_grad=True)
    loss = w.model(x).square().mean()
    torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
    w.plain.step()


def by_its_closure(w: Plain) -> None:
    def closure() -> Tensor:
        w.plain.zero_grad()
        loss = w.loss()
        loss.backward()
        return loss

    w.plain.step(closure)


def twice(w: Plain) -> None:
    w.step()
    w.plain.step()


def after_a_pass_that_raised(w: Plain) -> None:
    def fail(_: Tensor) -> None:
        raise ValueError("fails")

    w.plain.zero_grad()
    out = w.loss()
    handle = w.last.weight.register_hook(fail)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="fails"):
        out.backward()
    handle.remove()
    w.step()


def with_another_layer(w: Plain) -> None:
    w.last = w.model[2] = nn.Linear(5, 2)
    w.plain.param_groups[0]["params"][2:] = list(w.last.parameters())
    w.step()


def with_hooks_of_its_own(w: Plain) -> None:
    handles = [
        w.first.register_forward_hook(lambda module, args, output: None),
        w.last.register_forward_hook(lambda module, args, output: 2 * output),
        w.model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    ]
    w.step()
    for handle in handles:
        handle.remove()


def with_a_layer_called_twice(w: Plain) -> None:
    w.plain.zero_grad()
    hidden = w.model[1](w.first(torch.randn(3, 4)))
    w.last(w.model[1](hidden)).square().mean().backward()
    w.plain.step()


def with_a_layer_in_another(w: Plain) -> None:
    w.first = w.model[0] = nn.Sequential(w.first)  # both return the same tensor
    w.step()


def in_bfloat16(w: Plain) -> None:
    w.plain.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = w.loss()
    loss.backward()
    w.plain.step()


def in_float64(w: Plain) -> None:
    w.model.double()
    w.plain.zero_grad()
    w.model(torch.randn(3, 4, dtype=torch.float64)).square().mean().backward()
    w.plain.step()
    w.model.float()
    w.plain.zero_grad()


class _Seen(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def under_a_mode(w: Plain) -> None:
    with _Seen():
        w.step()


def behind_checkpoints(w: Plain) -> None:
    for is_reentrant in (False, True):
        w.plain.zero_grad()
        x = torch.randn(3, 4, requires_grad=True)
        hidden = checkpoint(w.first, x, use_reentrant=is_reentrant)
        w.last(w.model[1](hidden)).square().mean().backward()
        w.plain.step()


def back_twice(w: Plain) -> None:
    w.plain.zero_grad()
    loss = w.loss()
    loss.backward(retain_graph=True)
    loss.backward()
    w.plain.step()


def after_a_call_that_raised(w: Plain) -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        w.last(w.first(torch.randn(3, 4))[:, :3])
    w.step()


def with_a_second_optimizer(w: Plain) -> None:
    w.plain.zero_grad()
    w.loss().backward()
    w.plain.step()
    w.b.step()


def in_another_thread(w: Plain) -> None:
    thread = threading.Thread(target=w.step)
    thread.start()
    thread.join()


# The same with two optimizers and with a scaler, which step the parts of the model.


@dataclass
class Pair(Plain):
    """The same model, stepped by two optimizers that take turns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.plain = torch.optim.SGD(self.first.parameters(), 0.05)

    def step(self) -> None:
        for optimizer in (self.plain, self.b):
            optimizer.zero_grad()  # what the other one's pass has left at its own parameters stays
            self.loss().backward()
            optimizer.step()


@dataclass
class Scaled(Plain):
    """The same model, stepped by an optimizer with a scaler."""

    def step(self) -> None:
        self.plain.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.plain)
        self.scaler.update()


def one_more_often(w: Plain) -> None:
    for number in range(6):
        w.model.zero_grad()
        w.loss().backward()
        w.plain.step()
        if number % 3 == 2:
            w.b.step()


def both_behind_one(w: Plain) -> None:
    for _ in range(3):
        w.model.zero_grad()
        w.loss().backward()
        w.b.step()
        w.plain.step()


def both_behind_three_clipped(w: Plain) -> None:
    for _ in range(2):
        w.model.zero_grad()
        for _ in range(3):
            (w.loss() / 3).backward()
        w.plain.step()
        nn.utils.clip_grad_norm_(w.last.parameters(), 0.1)
        w.b.step()


def with_validation_in_between(w: Plain) -> None:
    w.model.zero_grad()
    w.loss().backward()
    w.plain.step()
    with torch.no_grad():
        w.model.eval()
        w.loss()
        w.model.train()
    w.b.step()


def with_a_part_in_eval_mode(w: Plain) -> None:
    w.first.eval()
    w.step()
    w.first.train()


def with_another_forward_pass_in_between(w: Plain) -> None:
    w.model.zero_grad()
    w.loss().backward()
    w.plain.step()
    loss = w.loss()
    w.b.step()
    w.model.zero_grad()
    loss = w.loss() + loss.detach()
    loss.backward()
    w.plain.step()


def with_a_stranger(w: Plain) -> None:
    w.train_stranger()
    w.step()


def scaled_in_parts(w: Plain) -> None:
    for _ in range(2):
        w.plain.zero_grad()
        for _ in range(3):
            w.scaler.scale(w.loss() / 3).backward()
        w.scaler.unscale_(w.plain)
        nn.utils.clip_grad_norm_(w.model.parameters(), 0.1)
        w.scaler.step(w.plain)
        w.scaler.update()


def scaled_in_vain(w: Plain) -> None:
    w.plain.zero_grad()
    w.scaler.scale(w.loss() * float("inf")).backward()
    w.scaler.step(w.plain)
    w.scaler.update()
    w.step()  # which shows that it ended


def by_two_with_one_scaler(w: Plain) -> None:
    for _ in range(3):
        w.model.zero_grad()
        w.scaler.scale(w.loss()).backward()
        w.scaler.step(w.plain)
        w.scaler.step(w.b)
        w.scaler.update()


PAIR: Final[dict[Callable[[Plain], None], int]] = {
    plainly: 8,
    with_a_schedule: 2,
    one_more_often: 6,
    both_behind_one: 3,
    both_behind_three_clipped: 2,
    with_validation_in_between: 1,
    with_a_part_in_eval_mode: 2,
    with_another_forward_pass_in_between: 2,
    with_a_stranger: 2,
    in_parts: 1,
    with_a_penalty: 1,
    by_its_closure: 1,
    twice: 2,
    after_a_pass_that_raised: 2,
    by_two_with_one_scaler: 3,
}
SCALED: Final[dict[Callable[[Plain], None], int]] = {
    plainly: 4,
    with_a_schedule: 1,
    scaled_in_parts: 2,
    scaled_in_vain: 2,
    with_a_part_in_eval_mode: 1,
    with_a_stranger: 1,
    twice: 1,
    in_parts: 1,
    with_a_penalty: 1,
    by_its_closure: 1,
    after_a_pass_that_raised: 1,
    with_another_layer: 1,
}


def now_in_two_passes(w: Plain) -> None:
    if isinstance(w, Clipped):
        w.passes = 3 - w.passes
    plainly(w)
    plainly(w)


def with_a_gradient_that_is_replaced(w: Plain) -> None:
    w.plain.zero_grad()
    w.loss().backward()
    for parameter in w.model.parameters():
        parameter.grad = parameter.grad * 2.0 if parameter.grad is not None else None
    w.plain.step()


def with_a_layer_without_gradients(w: Plain) -> None:
    w.first.requires_grad_(False)
    plainly(w)
    w.first.requires_grad_(True)


def after_a_step_that_raised(w: Plain) -> None:
    def fail(*_: object) -> None:
        raise ValueError("fails")

    w.plain.zero_grad()
    w.loss().backward()
    handle = w.plain.register_step_pre_hook(fail)
    with pytest.raises(ValueError, match="fails"):
        w.plain.step()
    handle.remove()
    w.plain.step()


STEADY: Final[dict[Callable[[Plain], None], int]] = {
    plainly: 4,
    with_a_schedule: 1,
    in_parts: 1,
    in_parts_of_which_one_is_thrown_away: 1,
    with_a_penalty: 1,
    by_its_closure: 1,
    twice: 1,
    after_a_pass_that_raised: 1,
    with_another_layer: 1,
    now_in_two_passes: 8,
    with_a_gradient_that_is_replaced: 1,
    with_a_layer_without_gradients: 4,
    after_a_step_that_raised: 1,
    with_hooks_of_its_own: 1,
    with_a_layer_called_twice: 1,
    with_a_layer_in_another: 1,
    in_bfloat16: 1,
    in_float64: 1,
    under_a_mode: 1,
    behind_checkpoints: 2,
    back_twice: 1,
    after_a_call_that_raised: 1,
}
LEAVING: Final[dict[Callable[[Plain], None], int]] = {**STEADY, with_a_second_optimizer: 1, in_another_thread: 1}
CALLS: Final = ("backward_begins", "backward_ended", "saw_step_begin", "saw_step_end")


@dataclass
class Front:
    """Sees torch's calls first, and leaves the short way, takes its notes, or lets hooks run in Python before some."""

    steady: Any
    own: Any  # which would see them
    how: str
    chance: random.Random

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.own, name)

        def call(*args: Any) -> Any:
            chance = self.chance.random() if self.how == "at random" else 1.0
            if chance < 0.3:
                cpu.leave_each(self.chance.choice((0, 1, 2, 3)))
            if self.how == "off" or chance < 0.2:
                self.steady.leave()
            elif chance < 0.4:
                (self.steady.settle if chance < 0.3 else self.steady.sync)()
            return method(*args)

        return call


def _leaves(how: str, patch: pytest.MonkeyPatch) -> list[int]:
    """Let the short way be left never, at random calls, or always. Return a list of the steps that it ends."""
    ended, chance = list[int](), random.Random(0)
    steady, kind = module_of("Steady"), class_of("Steady")
    front, end, apply_ended = kind.front.fget, vars(kind)["_end_update"], vars(kind)["_apply_ended"]

    def counted(self: Any, optimizer: Any) -> bool:
        is_done = end(self, optimizer)
        ended.extend([self.clock.step] * is_done)
        return is_done

    def counted_together(self: Any, notes: Any, losses: Any) -> None:
        ended.extend([notes.step] * len(notes.elapsed_s))
        apply_ended(self, notes, losses)

    patch.setattr(steady, "_TRACKS", vars(steady)["_TRACKS"] and how != "without the extension")
    patch.setattr(kind, "front", property(lambda self: Front(self, front(self), how, chance)))
    patch.setattr(kind, "_end_update", counted)
    patch.setattr(kind, "_apply_ended", counted_together)
    return ended


def _log_in_the_middle(world: Plain, watcher: hookcore.Watcher) -> None:
    """Let it log before and after the model runs: between two steps, and between two passes of a step."""
    loss, calls = world.loss, itertools.count()

    def loss_and_log() -> Tensor:
        number = next(calls)
        if number % 3 == 1:
            watcher.log(place_before=number, place_of=number)
        found = loss()
        if number % 4 == 1:
            watcher.log(place_inside=number, place_of=-number)  # the second one for this name at some of them
        return found

    vars(world)["loss"] = loss_and_log


def _trained(
    kind: type[Plain], turns: list[Callable[[Plain], None]], how: str, pauses: bool, given: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """Return all that is known of a training, and how many steps went the short way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "FIRST_STEPS", 3)
        patch.setattr(
            "hookcore.recorder.clock.cadence.LEAST_PAIRS", 1
        )  # or a budget would be learned for longer than this trains
        patch.setattr(Cadence, "alarm", lambda *_: None)  # the recorder's thread notices a jump at any time
        ended = _leaves(how, patch)
        cpu.leave_each(how in ("off", "without the extension"))  # whether hooks run in Python
        seed_all()
        world, numbers = kind(), []
        with watch(world.model, **given) as watcher:
            _log_in_the_middle(world, watcher)
            for _ in range(6):
                world.step()
            for place, turn in enumerate(turns):
                if pauses and place % 3 == 1:
                    watcher.pause()
                turn(world)
                if place % 2:
                    watcher.log(place=place)
                if pauses and place % 3 == 2:
                    watcher.resume()
                numbers.append(watcher.current_step)
            assert watcher.flush()
            assert watcher.errors == []
            steps = range(watcher.current_step)
            names = {
                name
                for name in watcher.store.scalar_names()
                if name.startswith(("place", "backward/", "optimizer", "hookcore/grad", "hookcore/clip"))
            }
            logged = {name: watcher.store.scalars(name) for name in sorted(names)}
            events = [(each.step, each.name) for each in watcher.store.events()]
            found = {
                "numbers": numbers,
                "values": {number: read_step(watcher, number) for number in steps},
                "logged": {name: (each.first_step.tolist(), each.mean.tolist()) for name, each in logged.items()},
                "events": sorted(each for each in events if not each[1].startswith("settings")),
                "weights": [each.tolist() for each in world.model.parameters()],
            }
        return found, len(ended)


HOWS: Final[dict[str, dict[str, Any]]] = {
    "every third": {"every": 3},
    "every seventh": {"every": 7},
    "every tenth": {"every": 10, "capsule": "error"},
    "paused": {"every": 4},
}
# Captured steps, which only the extension handles, and of one optimizer.
CAPTURED: Final[dict[str, dict[str, Any]]] = {
    "captured": {},
    "captured, and its calls held": {"capsule": "error"},
    "captured, leaves only": {"include": "is:leaf", "kinds": ("output", "output_grad")},
    "captured, inputs too": {"kinds": ("output", "input_grad", "param_grad"), "phases": ("train", "eval")},
    "captured, outputs only": {"kinds": ("output",)},
    "every second, no gradients of outputs": {"every": 2, "kinds": ("output", "param", "param_grad")},
    "captured, on modules": {"attach": "module"},
    "captured or paused": {},
    "every second, few with histograms": {"every": 2, "sketches": 4},
    "every third, and all calls held": {"every": 3, "capsule": "error"},
    "captured, clipped": {"kinds": ("output_grad", "param", "param_grad")},
    "every second, clipped": {"every": 2, "capsule": "error"},
    "within a budget": {"budget": 0.05, "allowance": 0.0},
    "within a budget, after an allowance": {"budget": 0.05, "allowance": 0.3, "capsule": "error"},
}


OF_PAIRS: Final = (
    "captured",
    "captured, and its calls held",
    "every second, few with histograms",
    "captured or paused",
    "captured, outputs only",
    "every second, no gradients of outputs",
)


def _check_short_way(kind: type[Plain], turns: list[Callable[[Plain], None]], how: str, counts: dict[Any, int]) -> None:
    turns, total = [plainly, *turns], 6 * (2 if kind is Pair else 1)
    ways = ("off", "never", "without the extension", "at random")
    given, pauses = HOWS.get(how) or CAPTURED[how], "paused" in how
    try:
        (expected, none), (found, many), *others = (_trained(kind, turns, way, pauses, given) for way in ways)
    finally:
        cpu.leave_each(0)
    for turn, number in zip(turns, expected["numbers"], strict=True):
        total += counts[turn]
        assert turn is in_another_thread or number == total or in_another_thread in turns
    assert none == 0
    assert many > 0 or (how in CAPTURED and not hasattr(cpu.Track, "learn"))
    for name, each in expected.items():
        assert repr(found[name]) == repr(each), name
        for other, _ in others:
            assert repr(other[name]) == repr(each), name


_short_way = settings(
    max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)


@_short_way
@given(
    st.lists(st.sampled_from(list(STEADY)), min_size=3, max_size=9),
    st.lists(st.sampled_from(list(LEAVING)), max_size=4),
    st.sampled_from([*HOWS, *CAPTURED]),
)
def test_the_short_way_through_steps_gives_the_same_steps_values_and_events(
    turns: list[Callable[[Plain], None]], later: list[Callable[[Plain], None]], how: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_of("Cadence"), "TIME_FIRST_EVERY", 32)  # timed steps go the long way
        # Within a budget, steps are chosen by time: here, as if it were always the same.
        patch.setattr(module_of("Cadence"), "TRIAL", 0)
        patch.setattr(module_of("Cadence"), "MINUTE_S", 1e12)
        patch.setattr(module_of("Cadence"), "strides_within", lambda *_: (4, 2))
        patch.setattr(Cadence, "_price", lambda *_: 0.1)
        _check_short_way(Clipped if "clipped" in how else Plain, [*turns, *later], how, LEAVING)


@_short_way
@given(st.lists(st.sampled_from(list(PAIR)), min_size=3, max_size=12), st.sampled_from([*list(HOWS)[1:], *OF_PAIRS]))
def test_so_does_that_of_two_optimizers(turns: list[Callable[[Plain], None]], how: str) -> None:
    _check_short_way(Pair, turns, how, PAIR)


@_short_way
@given(st.lists(st.sampled_from(list(SCALED)), min_size=3, max_size=12), st.sampled_from([*list(HOWS)[1:], *OF_PAIRS]))
def test_so_does_that_of_a_scaler(turns: list[Callable[[Plain], None]], how: str) -> None:
    _check_short_way(Scaled, turns, how, SCALED)


def _calls_of(step: Callable[[], None]) -> int:
    """Return how many Python functions of hookcore a step calls in this thread."""
    made = 0

    def saw(frame: Any, event: str, _: Any) -> None:
        nonlocal made
        made += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(saw)
    try:
        step()
    finally:
        sys.setprofile(None)
    return made


@pytest.mark.parametrize("pauses", [False, True])
def test_a_step_that_is_not_captured_takes_at_most_25_calls(pauses: bool) -> None:
    world = Plain()
    with watch(world.model, every=10_000) as watcher:
        if pauses:
            watcher.pause()
        for _ in range(clock.FIRST_STEPS + 2):
            world.step()
        # Now and then, a step does more: such a check is rare.
        assert sorted(_calls_of(world.step) for _ in range(20))[15] <= 25
        assert watcher.errors == []


@pytest.mark.parametrize("pauses", [False, True])
def test_with_the_extension_a_step_that_is_not_captured_takes_at_most_4_calls(pauses: bool) -> None:
    most, world = 4 if hasattr(cpu.Track, "learn") else 25, Plain()
    with watch(world.model, every=10_000, capsule="never") as watcher:
        if pauses:
            watcher.pause()
        for _ in range(clock.FIRST_STEPS + 2):
            world.step()
        assert sorted(_calls_of(world.step) for _ in range(20))[12] <= most
        assert watcher.current_step == clock.FIRST_STEPS + 22
        assert watcher.errors == []


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [("output", "output_grad"), ("output", "output_grad", "param_grad"), ("output",), ("param", "param_grad")],
)
def test_with_the_extension_a_captured_step_like_the_one_before_takes_few_calls(
    kinds: tuple[Any, ...], logs: bool
) -> None:
    most, world = 80 + 20 * logs if hasattr(cpu.Track, "learn") else 1000, Plain()
    with watch(world.model, kinds=kinds, capsule="never") as watcher:

        def step() -> None:
            world.step()
            if logs:
                watcher.log(place=float(watcher.current_step - 1))

        for _ in range(clock.FIRST_STEPS + 4):
            step()
        # Now and then, a step is timed, or more is measured.
        assert sorted(_calls_of(step) for _ in range(20))[10] <= most
        assert watcher.errors == []
        assert watcher.flush()
        total = clock.FIRST_STEPS + 24
        assert watcher.store.steps().count == total
        assert all(read_step(watcher, number).keys() >= read_step(watcher, 1).keys() for number in range(1, total))
        if logs:
            logged = watcher.store.scalars("place", points=1000)
            assert logged.first_step.tolist() == logged.mean.tolist() == list(range(total))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_with_the_extension_an_output_and_its_gradient_take_no_call(dtype: torch.dtype) -> None:
    calls = {}
    for layers in (3, 30):
        parts = (nn.Linear(4, 4, dtype=dtype) for _ in range(layers))
        model = nn.Sequential(nn.Sequential(*parts))  # both return the tensor of the last layer
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 4, dtype=dtype)).float().square().mean().backward()
            optimizer.step()

        with watch(model, kinds=("output", "output_grad"), capsule="never") as watcher:
            for _ in range(80):  # until no more optimizers are expected
                step()
            calls[layers] = sorted(_calls_of(step) for _ in range(20))[5]
            assert watcher.errors == []
            assert watcher.flush()
            for number in range(1, watcher.current_step):
                assert len(read_step(watcher, number)) >= 2 * (2 + layers), number
    assert (calls[30] <= calls[3]) == hasattr(cpu.Track, "learn")


def test_captured_steps_go_the_short_way_under_a_schedule_too() -> None:
    most, world, rates = 90 if hasattr(cpu.Track, "learn") else 1000, Plain(), list[float]()
    with watch(world.model, include="is:leaf", kinds=("output", "output_grad"), capsule="never") as watcher:

        def step() -> None:
            world.plain.param_groups[0]["lr"] *= 0.99
            rates.append(world.plain.param_groups[0]["lr"])
            world.step()

        for _ in range(clock.FIRST_STEPS + 8):
            step()
        assert sorted(_calls_of(step) for _ in range(20))[10] <= most
        assert watcher.flush()
        assert watcher.errors == []
        found = watcher.store.scalars("optimizer/lr", points=1000)
        assert found.first_step.tolist() == list(range(len(rates)))
        assert found.mean.tolist() == pytest.approx(rates)


def test_captured_steps_that_go_the_short_way_are_timed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cadence, "wants_timing", not hasattr(cpu.Track, "learn"))  # no other step is timed
    world = Plain()
    with watch(world.model) as watcher:
        cadence = recorder_of(watcher).context.cadence
        for _ in range(clock.FIRST_STEPS):
            world.step()
        assert hasattr(cpu.Track, "learn") == (cadence.cost != cadence.cost)
        for _ in range(400):  # on a busy machine, many of them go the long way
            world.step()
        assert watcher.flush()
        assert cadence.cost > 0
        assert watcher.errors == []


@pytest.mark.parametrize("every", [1, 10_000])
def test_ctrl_c_while_notes_of_steps_are_taken_reaches_the_script_and_loses_no_step(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, pressed = Plain(), False

    def presses(usual: Callable[..., None]) -> Callable[..., None]:
        def press(cadence: Cadence, *given: Any, **options: Any) -> None:
            nonlocal pressed
            is_noted = usual.__name__ == "catch_up" or options.get("short")
            if is_noted and not pressed and threading.current_thread() is threading.main_thread():
                pressed = True
                raise KeyboardInterrupt
            usual(cadence, *given, **options)

        return press

    for usual in (Cadence.catch_up, Cadence.followed):  # after frames are made, and before
        monkeypatch.setattr(Cadence, usual.__name__, presses(usual))
    with watch(world.model, every=every, capsule="never") as watcher:
        with pytest.raises(KeyboardInterrupt) if hasattr(cpu.Track, "learn") else nullcontext():
            for number in range(1000):
                world.step()
                watcher.log(place=float(number))
        for _ in range(3):
            world.step()
        assert watcher.flush()
        assert watcher.errors == []
        assert watcher.store.steps().count == watcher.current_step
        found = watcher.store.scalars("backward/loss", points=2000)
        assert len(found.mean) >= watcher.current_step - 1  # that of the step in which it came may be unknown
        logged = watcher.store.scalars("place", points=2000)
        assert logged.first_step.tolist() == logged.mean.tolist() == list(range(len(logged.mean)))


def test_ctrl_c_while_the_rows_of_a_joined_optimizer_are_taken_queues_none_of_them_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, queued, pressed = Pair(), list[tuple[int, bytes]](), list[int]()

    def put(frame: Any) -> None:
        usual(frame)
        if frame.packed:
            queued.append((frame.step, frame.packed))
        is_joined = frame.packed and frame.step in {step for step, _ in queued[:-1]}
        is_noted = threading.current_thread() is threading.main_thread() and frame.step < watcher.current_step - 2
        if is_joined and is_noted and not pressed:
            pressed.append(frame.step)
            raise KeyboardInterrupt

    with watch(world.model, capsule="never") as watcher:
        queue = recorder_of(watcher).capture.collector.queue
        usual = queue.put
        monkeypatch.setattr(queue, "put", put)
        with suppress(KeyboardInterrupt):
            for _ in range(1000):
                _both(world)
        for _ in range(3):
            _both(world)
        assert watcher.flush()
        assert watcher.errors == []
    assert bool(pressed) == hasattr(cpu.Track, "learn")
    assert len(set(queued)) == len(queued)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("loop", ["one optimizer", "two that take turns", "a scaler"])
def test_a_step_in_which_the_script_logs_goes_the_short_way_too(loop: str, at_end: bool) -> None:
    kind: type[Plain] = {"one optimizer": Plain, "two that take turns": Pair, "a scaler": Scaled}[loop]
    steps = 2 if kind is Pair else 1
    most, world, logged = 40 if hasattr(cpu.Track, "learn") else 1000, kind(), dict[int, float]()
    with watch(world.model, every=10_000, capsule="never") as watcher:

        def step() -> None:
            if not at_end:
                watcher.log(top=float(watcher.current_step), rate=0.5)
            world.step()
            if at_end:
                watcher.log(bottom=float(watcher.current_step - 1), other=0.5)

        for _ in range(clock.FIRST_STEPS + 10):
            step()
        assert sorted(_calls_of(step) for _ in range(20))[10] <= most
        assert watcher.errors == []
        total = watcher.current_step
        assert watcher.flush()
        found = watcher.store.scalars("bottom" if at_end else "top", points=1000)
        logged = dict(zip(found.first_step.tolist(), found.mean.tolist(), strict=True))
    expected = range(steps - 1 if at_end else 0, total, steps)
    assert logged == {place: place for place in expected}


def _in_two_parts(model: nn.Module, meanwhile: Callable[[], None] = lambda: None, **given: Any) -> list[dict[Any, Any]]:
    """Return the captured steps of a training in two micro-batches, in whose passes something else happens."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[0].bias.register_hook(lambda _: meanwhile())  # after the output's hook
    with watch(model, capsule="never", **given) as watcher:
        for _ in range(clock.FIRST_STEPS + 6):
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
        assert watcher.flush()
        assert watcher.errors == []
        if not recorder_of(watcher).steps.clock.reach.many_threads:
            losses = watcher.store.scalars("backward/loss", points=1000)
            assert losses.first_step.tolist() == list(range(watcher.current_step))
        return [read_step(watcher, number) for number in range(watcher.current_step)]


def test_what_a_second_optimizer_used_is_there_though_the_notes_were_taken_before_it_stepped() -> None:
    world = Pair()
    with watch(world.model, capsule="never") as watcher:
        for _ in range(clock.FIRST_STEPS + 6):
            world.model.zero_grad()
            world.loss().backward()
            world.plain.step()
            recorder_of(watcher).steps.steady.sync()
            world.b.step()
        assert watcher.flush()
        assert watcher.errors == []
        for step in range(2, watcher.current_step):
            owned = {key[0] for key in read_step(watcher, step) if key[1] == "param_grad"}
            assert owned == {"0", "2"}, step


@pytest.mark.parametrize("every", [1, 2, 100])
def test_a_number_logged_between_two_optimizers_of_a_step_has_the_same_step_captured_or_not(every: int) -> None:
    world, logged = Pair(), [0]
    with watch(world.model, every=every, capsule="never") as watcher:
        watcher.log(between=0.0)  # so it is known to belong to the step that follows
        for _ in range(clock.FIRST_STEPS + 6):
            world.model.zero_grad()
            world.loss().backward()
            world.plain.step()
            watcher.log(between=float(watcher.current_step))
            logged.append(watcher.current_step)
            world.b.step()
        assert watcher.flush()
        assert watcher.errors == []
        found = watcher.store.scalars("between", points=1000)
        assert found.first_step.tolist() == found.mean.tolist() == logged[:-1]  # of the last step, no pass has ended


@pytest.mark.parametrize("kinds", [("output",), ("output", "param_grad"), ("output", "output_grad")])
def test_a_module_that_is_called_once_in_each_micro_batch_has_one_call(kinds: tuple[Any, ...]) -> None:
    for step in _in_two_parts(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), kinds=kinds):
        assert {key: found["parts"] for key, found in step.items() if key[1] == "output"} == {
            (path, "output", "", 0): 2 for path in ("", "0", "1")
        }


def test_a_pass_of_a_model_that_is_not_watched_in_another_thread_hides_no_pass_of_this_one() -> None:
    stranger = nn.Linear(4, 1)

    def meanwhile() -> None:
        thread = threading.Thread(target=lambda: stranger(torch.ones(4)).sum().backward())
        thread.start()
        thread.join()

    for step in _in_two_parts(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), meanwhile, kinds=("output", "output_grad")):
        assert {key: found["parts"] for key, found in step.items()} == {
            (path, kind, "", 0): 2 for path in ("", "0", "1") for kind in ("output", "output_grad")
        }


def _behind_a_disabled_scaler(w: Plain) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    w.plain.zero_grad()
    scaler.scale(w.loss()).backward()
    scaler.step(w.plain)
    scaler.update()


def _both(w: Plain) -> None:
    w.model.zero_grad()
    w.loss().backward()
    w.plain.step()
    w.b.step()


LOOPS: Final[dict[str, tuple[type[Plain], Callable[[Any], None], int]]] = {
    "two that take turns": (Pair, lambda w: w.step(), 2),
    "two behind one pass": (Pair, _both, 1),
    "a scaler": (Scaled, lambda w: w.step(), 1),
    "a disabled scaler": (Plain, _behind_a_disabled_scaler, 1),
    "three micro-batches": (Plain, in_parts, 1),
}


@pytest.mark.parametrize("loop", ["two that take turns", "two behind one pass", "a scaler"])
def test_with_the_extension_a_captured_step_of_other_loops_takes_few_calls_too(loop: str) -> None:
    kind, step, steps = LOOPS[loop]
    most, world = (80 if kind is Scaled else 130 * steps + 50) if hasattr(cpu.Track, "learn") else 1000, kind()
    with watch(world.model, capsule="never") as watcher:
        for _ in range(clock.FIRST_STEPS + 10):
            step(world)
        assert sorted(_calls_of(lambda: step(world)) for _ in range(20))[10] <= most
        assert watcher.errors == []
        assert watcher.flush()
        found = [read_step(watcher, number) for number in range(watcher.current_step)]
        assert len(found) == watcher.store.steps().count == steps * (clock.FIRST_STEPS + 30)
        assert all(each.keys() >= found[4 + place % steps].keys() for place, each in enumerate(found[4:]))


@pytest.mark.parametrize("capsule", ["never", "error"])
def test_with_the_extension_a_captured_step_between_others_takes_few_calls(capsule: Any) -> None:
    most, world, every = 300 + 200 * (capsule == "error"), Plain(), 4
    most = most if hasattr(cpu.Track, "learn") else 2000
    with watch(world.model, every=every, include="is:leaf", capsule=capsule) as watcher:

        def turn() -> None:
            for _ in range(every):
                world.step()

        for _ in range(clock.FIRST_STEPS // every + 2):
            turn()
        # Now and then, a step goes the long way, or more is measured.
        assert sorted(_calls_of(turn) for _ in range(20))[10] <= most
        assert watcher.errors == []
        assert watcher.flush()
        assert watcher.store.steps().count == watcher.current_step
        captured = {number for number in range(watcher.current_step) if read_step(watcher, number)}
        assert captured == set(range(0, watcher.current_step, every))


@pytest.mark.parametrize("loop", LOOPS)
def test_with_the_extension_a_step_of_other_loops_takes_as_few_calls(loop: str) -> None:
    kind, step, steps = LOOPS[loop]
    most, world = 8 if hasattr(cpu.Track, "learn") else 400, kind()
    with watch(world.model, every=10_000, capsule="never") as watcher:
        for _ in range(clock.FIRST_STEPS + 6):
            step(world)
        # A step in so many goes the long way, and the loop's own calls of torch are seen.
        assert sorted(_calls_of(lambda: step(world)) for _ in range(20))[10] <= most
        assert watcher.current_step == steps * (clock.FIRST_STEPS + 26)
        assert watcher.errors == []


def test_the_extension_also_serves_models_of_many_layers() -> None:
    most = 4 if hasattr(cpu.Track, "learn") else 25
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(40)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()

    with watch(model, every=10_000, capsule="never") as watcher:
        for _ in range(80):  # until no more optimizers are expected
            step()
        assert sorted(_calls_of(step) for _ in range(20))[12] <= most
        assert watcher.errors == []


def test_the_cadence_knows_of_captured_steps_that_ended_together_what_it_would_know_of_each() -> None:
    together, apart = (Cadence(every=1, budget=None) for _ in range(2))
    for cadence in (together, apart):
        for captured in (True, False) * 30:
            cadence.step_ended(captured, 0.02 if captured else 0.01)
    times = [0.02 + 1e-4 * place for place in range(20)]
    together.ended += [(together.sort_of(captured=True), each) for each in times]
    for each in times:
        apart.step_ended(True, each)
    assert together.as_settings() == apart.as_settings()
    assert together.next_unlike(1000, 50) == apart.next_unlike(1000, 50)


@pytest.mark.parametrize("snapshot_every", [None, 1, 7, 50])
@pytest.mark.parametrize("state_every", [1, 50])
def test_the_cadence_says_until_when_captured_steps_are_alike(snapshot_every: int | None, state_every: int) -> None:
    cadence, steps = Cadence(every=1, budget=None, rare_every=state_every), 300
    known, next_timed = [], 0
    for step in range(steps):
        assert cadence.chooses(step)
        snapshots = snapshot_every is not None and cadence.has_snapshots(step, snapshot_every)
        timed = cadence.wants_timing
        known.append((cadence.is_rare(step) or snapshots, cadence.next_unlike(step, snapshot_every)))
        assert not timed or step < 4 or next_timed == step
        next_timed = cadence.next_timed(step)
        cadence.step_ended(True, 0.01, 0.001 if timed else float("nan"))
    for step, (_, until) in enumerate(known):
        assert not any(is_special for is_special, _ in known[step + 1 : until]), step
    assert max(until - step for step, (_, until) in enumerate(known)) > 1 or 1 in (snapshot_every, state_every)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("allowance", [0.0, 0.3, 2.0])
def test_the_cadence_knows_of_steps_of_all_sorts_what_it_would_know_of_each(every: int, allowance: float) -> None:
    together, apart = (Cadence(every, budget=0.05, allowance=allowance, sketches=None) for _ in range(2))
    step, sorts = 0, set[int]()
    for _ in range(150):
        until = max(step + 1, min(together.next_unlike(step, 50), step + 100))
        for number in range(step, until):
            captured = apart.chooses(number)
            assert together.chooses(number) == captured
            for cadence in (together, apart) if captured else ():
                cadence.begin_captured(number)
            elapsed_s = 0.010 + captured * (0.010 + 0.002 * apart.sketched)
            sorts.add(apart.sort_of(captured))
            apart.step_ended(captured, elapsed_s)
            together.ended.append((together.sort_of(captured), elapsed_s))
        step = until
        assert together.as_settings()["uncaptured_steps"] == apart.uncaptured
    assert step > 1000
    assert len(sorts) == 3
    assert together.stride == apart.stride > every
    assert together.thinning == apart.thinning
    assert together.cost == pytest.approx(apart.cost)


def test_the_cadence_knows_of_skipped_steps_what_it_would_know_of_each() -> None:
    for budget in (None, 0.05):
        together, apart = (Cadence(every=1, budget=budget, allowance=0.3) for _ in range(2))
        for cadence in (together, apart):
            for captured in (True, False) * 30:
                cadence.step_ended(captured, 0.02 if captured else 0.01)
        times = [0.01 + 1e-4 * place for place in range(20)]  # up to the next estimate
        together.ended += [(together.sort_of(captured=False), each) for each in times]
        for each in times:
            apart.step_ended(False, each)
        assert together.as_settings() == apart.as_settings()
        assert together.next_chosen(1000) == apart.next_chosen(1000)
        assert together.uncaptured == 50
