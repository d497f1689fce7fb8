# mypy: disable-error-code="no-untyped-call"
"""A forward pass without a backward pass: its values stay in its step, and an event says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.records import Event, Tap
from hookcore_app.analysis.modules import calls_of, rows_of
from tests.harness import assert_stats, read_step, seed_all, watch
from tests.inside import module_of
from tests.manual import ROOT
from tests.zoo.case import mean_square, mlp, noise, sgd

OWNERSHIP = module_of("UnusedForwards")

MODEL = "0", "1"


def net() -> nn.Sequential:
    seed_all()
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh())


def unused(watcher: hookcore.Watcher) -> list[Event]:
    """Return the events about such passes, after all frames have arrived."""
    assert watcher.flush()
    assert watcher.error_count == 0
    return watcher.store.events(name="unused-forward")


@contextlib.contextmanager
def skipping(how: str) -> Iterator[None]:
    """Fail in the loss, if that is how a pass is given up, and go on."""
    with contextlib.suppress(ValueError):
        yield
        if how == "the loss raises":
            raise ValueError(how)


@pytest.mark.parametrize("attach", ["global", "module"])
@pytest.mark.parametrize("how", ["the loss raises", "skipped", "skipped after a reset"])
def test_a_pass_whose_loss_is_given_up_is_an_event_and_keeps_its_values_apart(how: str, attach: str) -> None:
    model, batches = net(), [noise(2 + number, 4) for number in range(5)]
    optimizer, kept = sgd(model.parameters()), list[Tensor]()
    with watch(model, attach=attach) as watcher:
        for number, batch in enumerate(batches):
            if how == "skipped after a reset":
                optimizer.zero_grad()
            out = model(batch)
            if number in (2, 3):
                kept.append(out)
            if number == 2:
                with skipping(how):
                    mean_square(out)
                continue
            out.retain_grad()
            mean_square(out).backward()
            optimizer.step()
        (event,) = unused(watcher)
        stats, told = read_step(watcher, 2), {each.path: each for each in watcher.coverage()}
    first, second = kept
    assert second.grad is not None
    help_text = " ".join((ROOT / "docs" / "troubleshooting.md").read_text().split())
    assert f"the next one is labeled `{Tap('1', 'output', call=1).label.removeprefix('1 output ')}`" in help_text
    assert_stats(stats["1", "output", "", 0], [first])
    assert_stats(stats["1", "output", "", 1], [second])
    assert_stats(stats["1", "output_grad", "", 1], [second.grad])
    assert ("1", "output_grad", "", 0) not in stats
    assert event.step == 2
    assert all(told[path].captured and told[path].reason == OWNERSHIP.UNUSED for path in MODEL)


def test_calls_per_step_are_those_of_the_newest_step_not_of_one_with_such_a_pass() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for number in range(5):
            loss = mean_square(model(noise(5, 4)))
            if number != 2:
                loss.backward()
                optimizer.step()
        assert watcher.flush()
        store = watcher.store
    assert [calls_of(store, store.taps(), *steps)["1"] for steps in ((), (2, 2), (3, 3))] == [1, 2, 1]
    rows = {each.path: (each.calls, each.values) for each in rows_of(store)}
    assert rows["1"] == (1, 2 * 5 * 3), "of one call: its output and its gradient"
    assert {each.path: each.calls for each in rows_of(store, 2, 2)}["1"] == 2


def test_a_skipped_micro_batch_is_an_event() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for number in range(4):
            loss = mean_square(model(noise(5, 4)))
            if number != 1:
                loss.backward()
        optimizer.step()
        (event,) = unused(watcher)
        stats = read_step(watcher, 0)
    assert event.step == 0
    # The pass after the skipped one is the second call since a backward pass.
    assert [stats["1", "output", "", call]["parts"] for call in (0, 1)] == [3, 1]
    assert [stats["1", "output_grad", "", call]["parts"] for call in (0, 1)] == [2, 1]


def test_a_model_whose_output_is_detached_in_every_step_has_one_event() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for _ in range(5):
            target = model(noise(5, 4)).detach()
            mean_square(model(noise(5, 4)) - target).backward()
            optimizer.step()
        (event,) = unused(watcher)
    assert event.step == 0


def test_the_number_of_events_is_bounded() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for number in range(4 * OWNERSHIP.MAX_REPORTED):
            if number % 2:
                model(noise(5, 4))
            mean_square(model(noise(5, 4))).backward()
            optimizer.step()
        assert len(unused(watcher)) == OWNERSHIP.MAX_REPORTED


def test_a_model_among_others_is_named() -> None:
    seed_all()
    with watch(include="is:leaf") as watcher:
        first, second = nn.Sequential(nn.Linear(4, 3)), nn.ModuleDict({"layer": nn.Linear(4, 3)})
        optimizer = sgd([*first.parameters(), *second.parameters()])
        for _ in range(2):
            second["layer"](noise(5, 4))
            (mean_square(first(noise(5, 4))) + mean_square(second["layer"](noise(5, 4)))).backward()
            optimizer.step()
        (event,) = unused(watcher)
    assert "a forward pass of ModuleDict in step 0" in event.message
    assert event.module == "ModuleDict/layer"


class UsesAPart(nn.Module):
    """Calls a layer twice, and uses only one of the results, as of a recurrent layer's last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        state = self.cell(x)
        for _ in range(2):
            state = self.cell(x, state)
        return self.head(state[0])


def _siamese(model: nn.Module) -> Iterator[Tensor]:
    yield mean_square(model(noise(5, 4))) + mean_square(model(noise(3, 4)))


def _without_gradients(model: nn.Module) -> Iterator[Tensor]:
    with torch.no_grad():
        model(noise(3, 4))
    yield mean_square(model(noise(5, 4)))


def _micro_batches(model: nn.Module) -> Iterator[Tensor]:
    for _ in range(3):
        yield mean_square(model(noise(5, 4)))


def _in_pairs(model: nn.Module) -> Iterator[Tensor]:
    yield from [mean_square(model(noise(5, 4))), mean_square(model(noise(5, 4)))]


def _twice(model: nn.Module) -> Iterator[Tensor]:
    loss = mean_square(model(noise(5, 4)))
    yield 2 * loss + 0 * mean_square(model(noise(5, 4)))


def _failed(model: nn.Module) -> Iterator[Tensor]:
    with contextlib.suppress(RuntimeError):
        model(noise(5, 7))
    yield mean_square(model(noise(5, 4)))


@pytest.mark.parametrize(
    "losses", [_siamese, _without_gradients, _micro_batches, _in_pairs, _twice, _failed], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("model", [net, UsesAPart, lambda: mlp(4)], ids=["net", "state", "mlp"])
def test_passes_that_are_all_used_are_no_event(model: Any, losses: Any) -> None:
    trained = model()
    optimizer = sgd(trained.parameters())
    with watch(trained, phases={"train", "eval"}) as watcher:
        for _ in range(3):
            for loss in losses(trained):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert unused(watcher) == []
        assert OWNERSHIP.UNUSED not in {each.reason for each in watcher.coverage()}
        assert watcher.current_step == 3


def test_an_adversarial_pair_is_no_event() -> None:
    maker, judge = nn.Sequential(nn.Linear(2, 4)), nn.Sequential(nn.Linear(4, 1))
    optimizers = sgd(maker.parameters()), sgd(judge.parameters())
    with watch(nn.ModuleList([maker, judge])) as watcher:
        for _ in range(3):
            made = maker(noise(5, 2))
            (judge(noise(5, 4)) - judge(made.detach())).sum().backward()
            optimizers[1].step()
            judge(made).sum().backward()
            optimizers[0].step()
            judge.zero_grad()
        assert unused(watcher) == []
        assert watcher.current_step == 6
