"""Values that are logged between two steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore.recorder.clock.cadence import MAX_NAMES, Between


class Loop:
    """A training whose logged values are the number of the iteration that they describe."""

    def __init__(self, **settings: Any) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.watcher = hookcore.watch(self.model, server=None, **settings)

    def forward(self) -> torch.Tensor:
        return self.model(torch.ones(2, 4)).sum()

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def logged(self, name: str) -> dict[int, float]:
        self.watcher.close()
        series = self.watcher.store.scalars(name)
        return dict(zip(series.first_step.tolist(), series.mean.tolist(), strict=True))


@pytest.fixture(params=[1, 3, 7])
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    loop = Loop(every=request.param)
    yield loop
    loop.watcher.close()


EACH = {step: float(step) for step in range(20)}


def test_a_value_belongs_to_its_step_wherever_in_the_loop_it_is_logged(loop: Loop) -> None:
    log = loop.watcher.log
    for step in range(20):
        log(top=step)
        loss = loop.forward()
        log(middle=step)
        loop.update(loss)
        log(bottom=step)
    assert [loop.logged(name) for name in ("top", "middle", "bottom")] == [EACH] * 3
    assert loop.watcher.store.steps().newest == 19


def test_values_logged_occasionally_after_the_step_belong_to_it(loop: Loop) -> None:
    for step in range(20):
        loop.update(loop.forward())
        if step % 5 == 4:
            loop.watcher.log(average=step)
    assert loop.logged("average") == {4: 4, 9: 9, 14: 14, 19: 19}


def test_logged_texts_belong_to_the_same_step_as_numbers(loop: Loop) -> None:
    for step in range(5):
        loop.watcher.log_text("top", str(step))
        loop.update(loop.forward())
        loop.watcher.log_text("bottom", str(step))
    loop.watcher.close()
    kept = loop.watcher.store.numbered_media()
    assert [(each.tap.module, each.step, bytes(each.values).decode()) for _, each in kept] == [
        (name, step, str(step)) for step in range(5) for name in ("top", "bottom")
    ]


def test_values_of_one_call_go_to_different_steps(loop: Loop) -> None:
    loop.watcher.log(rate=0)
    for step in range(20):
        loop.update(loop.forward())
        loop.watcher.log(rate=step + 1, loss=step)
    assert loop.logged("rate") == {step: step for step in range(21)}
    assert loop.logged("loss") == EACH


def test_micro_batches_share_the_step_that_they_make(loop: Loop) -> None:
    for step in range(20):
        for part in range(3):
            loop.forward().backward()
            if part == 2:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
            loop.watcher.log(**{f"part {part}": step})
    assert [loop.logged(f"part {part}") for part in range(3)] == [EACH] * 3


def test_values_between_steps_that_the_user_ends_belong_to_the_next_one(loop: Loop) -> None:
    for step in range(20):
        loop.forward().backward()
        loop.watcher.log(before=step)
        loop.watcher.step()
        loop.watcher.log(after=step + 1)
    assert loop.logged("before") == EACH
    assert loop.logged("after") == {step: step for step in range(1, 21)}


def test_values_in_a_closure_belong_to_the_step_that_runs_it() -> None:
    loop = Loop(every=3)
    loop.optimizer = torch.optim.LBFGS(loop.model.parameters(), max_iter=2)
    for step in range(10):

        def closure(step: int = step) -> torch.Tensor:
            loop.optimizer.zero_grad()
            loss = loop.forward()
            loss.backward()
            if step:  # not in the first step, so that nothing is known about the name
                loop.watcher.log(inside=step)
            return loss

        loop.optimizer.step(closure)
    assert loop.logged("inside") == {step: step for step in range(1, 10)}


@pytest.mark.parametrize("every", [1, 3])
def test_values_in_a_loop_without_an_optimizer_belong_to_their_step(every: int) -> None:
    """After two steps, it is known how the steps of the loop end."""
    loop = Loop(every=every)
    for step in range(20):
        loop.watcher.log(top=step)
        loss = loop.forward()
        loop.watcher.log(middle=step)
        loss.backward()
        loop.watcher.log(before=step)
        with torch.no_grad():
            for weight in loop.model.parameters():
                weight -= 0.01 * weight.grad
        loop.watcher.log(after=step)
        loop.model.zero_grad()
        loop.watcher.log(bottom=step)
    assert [loop.logged(name) for name in ("top", "middle", "before", "after", "bottom")] == [EACH] * 5


@pytest.mark.parametrize("skipped", [1, 2])
@pytest.mark.parametrize("resets_late", [False, True])
def test_values_after_initially_skipped_steps_belong_to_their_step(skipped: int, resets_late: bool) -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(20):
        if not resets_late:
            loop.optimizer.zero_grad()
        scaler.scale(loop.forward() * (float("inf") if step < skipped else 1.0)).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        if resets_late:
            loop.optimizer.zero_grad()
        loop.watcher.log(bottom=step)
    assert loop.logged("bottom") == EACH


def test_names_are_remembered_up_to_a_limit() -> None:
    between = Between()
    between.note_first(["ahead"])
    assert [between.is_behind(str(number), has_run=False) for number in range(MAX_NAMES + 10)] == [True] * (
        MAX_NAMES + 10
    )
    assert not between.is_behind("ahead", has_run=False)
    assert between.is_behind("7", has_run=True)
    assert not between.is_behind(str(MAX_NAMES + 9), has_run=True)
