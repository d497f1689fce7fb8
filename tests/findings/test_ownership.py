"""Parameters that no optimizer steps, that never get a gradient, or that several optimizers step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore.findings import findings_of
from hookcore.records.vocabulary import ENDED
from hookcore.store import Store

RULES = ("not-in-optimizer", "frozen-by-mistake", "duplicate-in-optimizers")


class Cut(nn.Module):
    """Two layers and a last one, with a graph that may be cut between them."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.one, self.two, self.head, self.side = (nn.Linear(4, 4) for _ in range(4))
        self.cut = cut

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.two(self.one(values).tanh())
        self.side(values)  # nothing uses it
        return self.head(values.detach() if self.cut else values)


def train(
    model: nn.Module,
    groups: Iterable[Iterable[Any]],
    steps: int = 60,
    at: Callable[[int, list[torch.optim.Optimizer]], None] = lambda *_: None,
    **settings: Any,
) -> Store:
    """Train a model with one optimizer for each group of parameters, and return the store."""
    torch.manual_seed(0)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(list(group), 0.01) for group in groups]
    watcher = hookcore.watch(model, server=None, budget=None, **settings)
    for step in range(steps):
        at(step, optimizers)
        for each in optimizers:
            each.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        for each in optimizers:
            each.step()
        if step % 20 == 0:
            watcher.flush()
    watcher.flush()
    watcher.close()
    return watcher.store


def told(store: Store) -> list[tuple[str, str, int]]:
    found = [(each.rule, each.module, each.since_step) for each in findings_of(store) if each.rule in RULES]
    assert {each.rule for each in store.incidents()} >= {rule for rule, *_ in found}
    return found


def layers(number: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(number)))


def test_a_layer_that_the_optimizer_lacks_is_found_and_a_complete_one_is_not() -> None:
    model = layers()
    assert told(train(model, [[*model[0].parameters(), *model[2].parameters()]])) == [("not-in-optimizer", "1", 0)]
    model = layers()
    assert told(train(model, [model.parameters()])) == []


def test_first_layers_that_no_optimizer_has_are_an_event_only() -> None:
    model = layers()
    store = train(model, [model[2].parameters()])
    assert told(store) == []
    (event,) = store.events(name="gradients-unused")
    assert (event.severity, event.module) == ("info", "0")
    assert "0 weight, 0 bias, 1 weight, and 1 more" in event.message


def test_a_forgotten_layer_is_reported_even_if_first_layers_are_left_out_too() -> None:
    model = layers(4)
    store = train(model, [[*model[1].parameters(), *model[3].parameters()]])
    assert told(store) == [("not-in-optimizer", "2", 0)]
    assert [each.module for each in store.events(name="gradients-unused")] == ["0"]


def test_frozen_layers_are_not_reported() -> None:
    model = layers()
    model[1].requires_grad_(False)
    store = train(model, [model.parameters()])
    assert told(store) == []
    assert not [each for each in store.events() if each.name in ENDED]


def test_a_layer_that_is_added_to_the_optimizer_later_is_no_longer_found() -> None:
    model = layers()

    def at(step: int, optimizers: list[torch.optim.Optimizer]) -> None:
        if step == 60:
            optimizers[0].add_param_group({"params": list(model[2].parameters())})

    store = train(model, [[*model[0].parameters(), *model[1].parameters()]], 100, at)
    assert told(store) == []
    assert [each.step for each in store.events(name=ENDED["not-in-optimizer"])] == [96]
    (incident,) = [each for each in store.incidents() if each.rule == "not-in-optimizer"]
    assert incident.culprit.tap.module == "2"


def test_an_optimizer_that_starts_late_is_awaited() -> None:
    model = layers()

    def at(step: int, optimizers: list[torch.optim.Optimizer]) -> None:
        if step == 30:
            optimizers.append(torch.optim.SGD(model[2].parameters(), 0.01))

    store = train(model, [[*model[0].parameters(), *model[1].parameters()]], 100, at)
    assert [each for each in store.events() if each.name in ENDED] == []


@pytest.mark.parametrize("every", [1, 2])
def test_a_detached_graph_is_named_where_it_is_cut_and_an_unused_branch_is_not(every: int) -> None:
    model = Cut(cut=True)
    steps = 60 * every
    assert told(train(model, [model.parameters()], steps, every=every)) == [("frozen-by-mistake", "two", 0)]
    model = Cut(cut=False)
    assert told(train(model, [model.parameters()], steps, every=every)) == []


def test_the_sentence_names_parameters_of_several_modules_and_not_one_module_for_all() -> None:
    model = Cut(cut=True)
    store = train(model, [model.parameters()])
    (sentence,) = [each.sentence for each in store.incidents() if each.rule == "frozen-by-mistake"]
    assert sentence.endswith("but get none: two weight, two bias, one weight, and 1 more.")


@pytest.mark.parametrize(("cut", "told_at"), [(30, 96), (150, 320), (200, 448)])
def test_a_graph_that_is_cut_later_is_found_at_the_second_check_after_it(cut: int, told_at: int) -> None:
    model = Cut(cut=False)

    def at(step: int, _: list[torch.optim.Optimizer]) -> None:
        model.cut = step >= cut

    store = train(model, [model.parameters()], told_at + 14, at)
    assert told(store) == [("frozen-by-mistake", "two", cut)]
    assert [each.step for each in store.events(name="frozen-by-mistake")] == [told_at]


def test_layers_that_are_frozen_on_purpose_are_not_reported() -> None:
    frozen = Cut(cut=False)

    def freeze(step: int, _: list[torch.optim.Optimizer]) -> None:
        for layer in (frozen.one, frozen.two):
            layer.requires_grad_(step < 30)

    assert told(train(frozen, [frozen.parameters()], 110, freeze)) == []


def test_parameters_of_two_optimizers_are_found() -> None:
    model = layers()
    store = train(model, [model.parameters(), model[1].parameters()])
    assert told(store) == [("duplicate-in-optimizers", "1", 0)]
    model = layers()
    assert told(train(model, [model[:2].parameters(), model[2].parameters()])) == []


# -- modules that are never used ---------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Experts of which the first ones run in every step, another one now and then, and the others never."""

    def __init__(self, always: int, rarely: int = -1, every: int = 40) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4))
        self.side, self.head, self.spare = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.zeros(2))
        self.always, self.rarely, self.every, self.calls = always, rarely, every, 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for number, expert in enumerate(self.experts):
            if number < self.always or (number == self.rarely and self.calls % self.every == 0):
                values = values + expert(values)
        self.side(values)  # nothing uses it
        return self.head(values)


def never_used(store: Store) -> list[tuple[str, str]]:
    found = [(each.severity, each.message) for each in findings_of(store) if each.rule == "never-used"]
    assert len(found) <= 1
    return found


def test_experts_that_never_run_are_a_warning_and_what_reaches_no_loss_is_listed_too() -> None:
    model = Experts(2)
    ((severity, message),) = never_used(train(model, [model.parameters()], 200))
    assert severity == "warning"
    assert message == (
        "these modules never ran, so they don't learn: experts.2, experts.3; no loss depends on the outputs of these "
        "modules, so they don't learn: side; these parameters never get a gradient, although others of their modules "
        "do: Experts spare"
    )


def test_an_unused_output_alone_is_a_note() -> None:
    model = Experts(4)
    ((severity, message),) = never_used(train(model, [model.parameters()], 200))
    assert severity == "info"
    assert message.startswith("no loss depends on the outputs of these modules, so they don't learn: side")


@pytest.mark.parametrize("every", [5, 40])
def test_an_expert_that_runs_rarely_even_if_never_captured_is_not_called_unused(every: int) -> None:
    model = Experts(3, rarely=3, every=every)
    ((severity, message),) = never_used(train(model, [model.parameters()], 330, **{"every": 7}))
    assert severity == "info"
    assert "experts" not in message


def test_an_expert_that_runs_late_is_no_longer_found() -> None:
    model = Experts(3)

    def at(step: int, _: list[torch.optim.Optimizer]) -> None:
        model.always = 4 if step >= 220 else 3

    store = train(model, [model.parameters()], 330, at)
    ((severity, message),) = never_used(store)
    assert (severity, "experts" in message) == ("info", False)
    assert [each.about["alike"] for each in store.events(name="never-used")] == [1, 0]


def test_an_optimizer_that_leaves_no_trace_says_nothing_about_unused_modules() -> None:
    class Silent(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for each in group["params"]:
                    if each.grad is not None:
                        each.data.sub_(0.01 * each.grad)

    model = Experts(2)
    optimizer = Silent(model.parameters(), 0.01)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for _ in range(200):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        assert watcher.flush()
        assert watcher.error_count == 0
        assert never_used(watcher.store) == []
