"""Infinities that a model uses as masks are not faults, and don't hide any."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.capsules import read_about
from hookcore.findings import examine, key_figures_of
from hookcore.records import Event, Kind
from hookcore.records.masks import LARGE, Masks
from tests.capsule_files import capsules_of
from tests.flow_world import Mask
from tests.harness import seed_all

STEPS, BAD = 24, 15
KINDS: tuple[Kind, ...] = ("input", "output", "output", "output", "output_grad", "param_grad")
MASK, SCORES, ROOT, GRADIENT = 1, 2, 3, 5


@pytest.mark.parametrize(
    ("bad", "fine", "known", "harmful"),
    [
        ({MASK: False}, {ROOT}, 0, False),  # present from the start, and the model's output is finite
        ({MASK: False, SCORES: False}, {ROOT, GRADIENT}, 0, False),
        ({MASK: False}, {GRADIENT}, 6, False),  # later, but gradients are finite
        ({MASK: False}, {ROOT}, 6, True),  # later, and it is unknown whether it was harmless
        ({ROOT: False}, {MASK, SCORES}, 0, True),  # nothing follows it
        ({ROOT: False}, {MASK, SCORES, GRADIENT}, 0, False),
        ({MASK: True}, {ROOT, GRADIENT}, 0, True),  # NaN, or an overflow
        ({MASK: False, SCORES: True}, {ROOT, GRADIENT}, 0, True),
        ({MASK: False, GRADIENT: False}, {ROOT}, 0, True),
        ({4: False}, {ROOT, GRADIENT}, 0, True),  # an infinite gradient
    ],
)
def test_infinities_are_a_mask_if_later_values_were_finite(
    bad: dict[int, bool], fine: set[int], known: int, harmful: bool
) -> None:
    masks = Masks()
    found = masks.harmful(7, bad, lambda: fine, KINDS.__getitem__, known)
    assert found == (list(bad) if harmful else [])
    assert masks.since == ({} if harmful else dict.fromkeys(bad, 7))


def test_a_known_mask_is_not_blamed_for_later_faults() -> None:
    masks = Masks()
    assert masks.harmful(0, {MASK: False}, lambda: {ROOT}, KINDS.__getitem__, 0) == []
    assert masks.harmful(1, {MASK: False, SCORES: True, ROOT: True}, set, KINDS.__getitem__, 6) == [SCORES, ROOT]
    assert masks.harmful(2, {MASK: True}, lambda: {ROOT, GRADIENT}, KINDS.__getitem__, 6) == [MASK]  # NaN in the mask


class Padding(nn.Module):
    """Masks the tokens of shorter samples, if there are any."""

    def forward(self, lengths: Tensor, tokens: int) -> Tensor:
        return torch.zeros(len(lengths), 1, tokens).masked_fill(
            (torch.arange(tokens) >= lengths[:, None])[:, None], -math.inf
        )


class Scores(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x @ x.mT / 4 + mask


class Divide(nn.Module):
    def forward(self, x: Tensor, by: float) -> Tensor:
        return x / by


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mask, self.padding = nn.Linear(4, 8), Mask(), Padding()
        self.scores, self.soft, self.divide, self.head = Scores(), nn.Softmax(-1), Divide(), nn.Linear(8, 2)

    def forward(self, x: Tensor, lengths: Tensor, by: float) -> Tensor:
        hidden = self.embed(x)
        mixed = self.soft(self.scores(hidden, self.mask(hidden) + self.padding(lengths, x.shape[1]))) @ hidden
        result: Tensor = self.head(self.divide(mixed, by))
        return result


def train(model: Net, watcher: hookcore.Watcher, bad: int | None = None, padded: int = 0) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        lengths = torch.randint(2, 7, (8,)) if step >= padded else torch.full((8,), 6)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 6, 4), lengths, 0.0 if step == bad else 1.0).pow(2).mean()
        loss.backward()
        watcher.log(loss=loss.detach())
        optimizer.step()


def events_of(watcher: hookcore.Watcher) -> list[Event]:
    watcher.flush()
    return [each for each in watcher.store.events() if each.severity != "info"]


@pytest.mark.parametrize("padded", [0, 9])
@pytest.mark.parametrize("kinds", [("output", "output_grad", "param_grad"), ("input", "output", "param_grad")])
def test_a_training_with_masks_is_healthy_and_saves_no_step(padded: int, kinds: tuple[Kind, ...]) -> None:
    seed_all()
    model = Net()
    with hookcore.watch(model, server=None, budget=None, capsule="error", kinds=kinds) as watcher:
        train(model, watcher, padded=padded)
        assert not events_of(watcher)
        assert not watcher.errors
        assert not watcher.store.incidents()
        assert not capsules_of(watcher)
        (note,) = examine(watcher.store).findings
        assert (note.rule, note.severity, note.module, note.since_step) == ("nonfinite", "info", "mask", 0)
        assert " other modules" in note.message
        assert key_figures_of(watcher.store).nonfinite_modules == ()


def test_a_fault_in_a_model_with_masks_is_located_and_its_step_is_saved() -> None:
    seed_all()
    model = Net()
    with hookcore.watch(model, server=None, budget=None, capsule="error") as watcher:
        train(model, watcher, bad=BAD)
        watcher.flush()
        (incident,) = [each for each in watcher.store.incidents() if each.rule == "nonfinite"]
        (path,) = capsules_of(watcher)
        blamed = {link.tap.module for link in incident.chain}
        bad = key_figures_of(watcher.store).nonfinite_modules
    assert (incident.culprit.tap.module, incident.first_step, incident.severity) == ("divide", BAD, "error")
    assert "mask" not in blamed
    assert "divide" in bad
    assert not {"mask", "padding"} & set(bad)
    about = read_about(Path(path))
    assert (about["step"], "activation of divide" in about["reason"]) == (BAD, True)


def test_without_gradients_only_masks_from_the_start_are_known_to_be_harmless() -> None:
    seed_all()
    for padded, expected in ((0, []), (9, ["padding"])):
        model = Net()
        with hookcore.watch(model, server=None, budget=None, kinds=("output",)) as watcher:
            train(model, watcher, padded=padded)
            watcher.flush()
            assert [each.culprit.tap.module for each in watcher.store.incidents()] == expected


def test_an_overflow_that_a_bounded_function_hides_is_not_a_mask() -> None:
    class Overflow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1e38

    assert LARGE < 1e30
    first = nn.Linear(4, 64)
    with torch.no_grad():
        first.weight.mul_(5.0)  # some products are finite
    model = nn.Sequential(first, Overflow(), nn.Hardtanh(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
        watcher.flush()
        (incident,) = watcher.store.incidents()
    assert incident.culprit.tap.module == "1"


def test_a_loss_that_is_infinite_because_of_a_mask_is_reported() -> None:
    """The target is a masked class, so the loss is infinite although every gradient is finite."""

    class Choose(nn.Module):
        def forward(self, x: Tensor, closed: bool) -> Tensor:
            return x.masked_fill(torch.tensor([closed, False, False]), -math.inf)

    model = nn.ModuleDict({"body": nn.Linear(4, 3), "choose": Choose()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for step in range(6):
            optimizer.zero_grad()
            scores = model["choose"](model["body"](torch.randn(8, 4)), step == 4)
            loss: Any = nn.functional.cross_entropy(scores, torch.zeros(8, dtype=torch.long))
            loss.backward()
            watcher.log(loss=loss.detach())
            optimizer.step()
        watcher.flush()
        (incident,) = [each for each in watcher.store.incidents() if each.rule == "nonfinite"]
    assert (incident.culprit.tap.module, incident.first_step) == ("choose", 4)
