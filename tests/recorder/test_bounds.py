# mypy: disable-error-code="no-untyped-call"
"""Whatever accumulates in a training, such as outputs, keys, models, optimizers, and hooks, doesn't in the watcher."""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
from torch import Tensor, nn

import hookcore
from hookcore.recorder.known.roots import find_tensors
from tests.harness import process_state, read_step, seed_all, watch
from tests.inside import recorder_of
from tests.zoo.case import mean_square, mlp, noise, sgd


def step_of(model: nn.Module, *inputs: Tensor) -> None:
    """Train one step."""
    optimizer = sgd(model.parameters())
    mean_square(model(*inputs)).backward()
    optimizer.step()


def test_the_search_for_tensors_ends_in_an_output_that_contains_itself() -> None:
    endless: list[Any] = []
    endless.extend([endless] * 12)
    tensor = torch.ones(2)
    assert [place for place, _ in find_tensors((tensor, endless))] == ["0"]


def test_the_search_for_tensors_does_not_walk_a_million_numbers() -> None:
    visited = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal visited
        visited += event == "call"

    numbers = [[0.5] * 1000 for _ in range(1000)]
    sys.setprofile(count)
    try:
        found = list(find_tensors((torch.ones(2), numbers)))
    finally:
        sys.setprofile(None)
    assert [place for place, _ in found] == ["0"]
    assert visited < 50_000


class NewKeys(nn.Module):
    """Returns its output under a new key at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 4), 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return {f"call {self.calls}": self.inner(x)}


def test_keys_that_change_in_every_step_take_no_rows_from_other_modules() -> None:
    seed_all()
    model = nn.ModuleDict({"odd": NewKeys(), "other": nn.Linear(6, 4)})
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for _ in range(900):
            mean_square(model["odd"](noise(2, 6))).backward()
            optimizer.step()
            optimizer.zero_grad()
        mean_square(model["other"](noise(2, 6))).backward()
        optimizer.step()
        assert watcher.flush()
        assert ("other", "output_grad", "", 0) in read_step(watcher, 900)
        taps = [tap for tap in watcher.store.taps().taps if tap.module == "odd"]
        assert 0 < len(taps) <= 600
        assert sum(len(plan.rows.slots) for plan in recorder_of(watcher).context.plans.live()) <= 600
        assert any("odd" in item.path and item.reason for item in watcher.coverage())
        assert watcher.errors == []


def test_models_and_optimizers_that_come_and_go_leave_nothing_in_the_watcher() -> None:
    def sizes(watcher: hookcore.Watcher) -> int:
        recorder = recorder_of(watcher)
        statistics = recorder.context.statistics
        table, steps = statistics.table, recorder.steps
        tables: list[Any] = [
            recorder,
            recorder.capture.models,
            recorder.context.parameters,
            recorder.context.plans,
            statistics,
            table,
            steps,
        ]
        values = [value for table in tables for value in vars(table).values() if isinstance(value, (list, dict, set))]
        kept = [table.taps, table.numbers, recorder.context.errors.events]
        return sum(len(value) for value in values if all(value is not other for other in kept))

    with watch() as watcher:
        for number in range(61):
            step_of(mlp(), noise(5, 6))
            nn.MSELoss()(torch.ones(2), torch.zeros(2))
            if number % 20 == 0:
                assert watcher.flush()  # the recorder's thread may be describing a model just now
                gc.collect()
            if number == 20:
                before = sizes(watcher)
        assert sizes(watcher) <= before + 5
        assert watcher.errors == []


class Cached(nn.Module):
    """Computes its output once, and then always returns the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        if self.kept is None:
            self.kept = self.inner(x)
        return self.kept


def test_a_tensor_that_is_returned_repeatedly_is_counted_once_per_step() -> None:
    seed_all()
    model, x = nn.Sequential(Cached(), nn.Linear(4, 2)), noise(5, 6)
    optimizer = sgd(model[1].parameters())
    with watch(model) as watcher:
        for _ in range(4):
            mean_square(model(x)).backward(retain_graph=True)
            optimizer.step()
        assert watcher.flush()
        parts = [read_step(watcher, number)["0", "output_grad", "", 0]["parts"] for number in range(4)]
    assert parts == [1, 1, 1, 1]
    assert isinstance(model[0], Cached)
    assert model[0].kept is not None
    # One for each of the two modules that return it.
    assert len(model[0].kept._backward_hooks or ()) <= 2


def open_watchers() -> list[hookcore.Watcher]:
    return [each for each in gc.get_objects() if type(each) is hookcore.Watcher and "closed" not in repr(each)]


def test_a_watcher_without_references_keeps_running_until_it_is_closed() -> None:
    def hooks() -> dict[str, int]:
        return {name: len(value) for name, value in process_state().items() if name.startswith("_global_")}

    before = hooks()
    model = mlp()
    watch(model)
    gc.collect()
    (watcher,) = open_watchers()
    try:
        watching = hooks()
        assert watching != before
        with hookcore.detached():
            assert hooks() == before
        assert hooks() == watching
        step_of(model, noise(5, 6))
        assert watcher.flush()
        assert ("0", "output", "", 0) in read_step(watcher, 0)
    finally:
        watcher.close()
    assert hooks() == before
    assert not open_watchers()
