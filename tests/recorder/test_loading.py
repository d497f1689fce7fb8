"""Observed data loaders load the same data, raise the same exceptions, and are unchanged afterward."""

from __future__ import annotations

import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import hookcore
from hookcore.hooks import loading
from hookcore.hooks.internals import LOADER_METHODS
from hookcore.hooks.loading import observe_loading
from hookcore.records.vocabulary import TIME_BEFORE, TIME_LOADING
from tests.harness import seed_all
from tests.inside import module_of

pytestmark = pytest.mark.skipif(not LOADER_METHODS, reason="this torch has other private names")


class Log:
    """An observer that records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def loading_begins(self) -> None:
        self.calls.append("begins")

    def loading_ended(self, brought: bool) -> None:
        self.calls.append(brought)

    def took(self, taken: loading.Taken) -> None:
        assert taken.indices is not None

    def ran_out(self, loader: object) -> None:
        assert self.calls[-1] is False


@pytest.fixture
def log() -> Iterator[Log]:
    found = Log()
    handle = observe_loading(found)
    yield found
    handle.remove()


def methods() -> list[Any]:
    return [vars(owner)[name] for owner, name in LOADER_METHODS]


class Noise(Dataset[Tensor]):
    """Rows that are drawn at random when they are requested."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(3) + index


def load(workers: int) -> list[Any]:
    """Return the batches of two epochs, and the states of the generators afterward."""
    seed_all()
    own = torch.Generator()
    own.manual_seed(3)
    context = "fork" if workers else None
    data = DataLoader(Noise(), 3, shuffle=True, num_workers=workers, generator=own, multiprocessing_context=context)
    batches = [batch.tolist() for _ in range(2) for batch in data]
    return [batches, len(data), own.get_state().tolist(), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_their_order_and_the_generators_are_the_same(workers: int, request: pytest.FixtureRequest) -> None:
    expected = load(workers)
    log = request.getfixturevalue("log")
    assert load(workers) == expected
    assert log.calls == 2 * (["begins", True] * 5 + ["begins", False])  # the iterator, four batches, and the end


class Failing(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        if index == 2:
            raise KeyError("no such row")
        return torch.zeros(1)


def fail(loader: Any) -> str:
    """Return the traceback of the exception that a loader raises."""
    try:
        for _ in loader:
            pass
    except KeyError as error:
        return "".join(traceback.format_exception(error))
    return ""


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_data_have_the_same_traceback(workers: int, request: pytest.FixtureRequest) -> None:
    loader = DataLoader(Failing(), num_workers=workers, multiprocessing_context="fork" if workers else None)
    expected = fail(loader)
    assert "no such row" in expected
    log = request.getfixturevalue("log")
    found = fail(loader)
    if "hooks/loading.py" in found:  # Python 3.10 adds the frame again
        assert found.splitlines()[-1] == expected.splitlines()[-1]
    else:
        assert found == expected
    assert log.calls[-2:] == ["begins", False]


def test_the_end_is_a_plain_stop_iteration_and_the_iterator_is_not_replaced(log: Log) -> None:
    batches = iter(DataLoader(Noise(), 10))
    assert iter(batches) is batches
    assert len(batches) == 1
    next(batches)
    for _ in range(2):
        with pytest.raises(StopIteration) as caught:
            next(batches)
        assert caught.value.args == ()
        assert caught.value.__context__ is None
    assert next(batches, "the end") == "the end"
    with pytest.raises(NotImplementedError):
        pickle.dumps(batches)


def test_subclasses_keep_their_own_methods(log: Log) -> None:
    class Twice(DataLoader[Any]):
        def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
            for batch in super().__iter__():
                yield batch
                yield batch

    assert len(list(Twice(Noise(), 5))) == 4
    assert log.calls == ["begins", True] * 3 + ["begins", False]
    assert pickle.loads(pickle.dumps(Twice.__mro__[1])) is DataLoader
    assert inspect.signature(DataLoader.__iter__) == inspect.signature(inspect.unwrap(DataLoader.__iter__))


def test_the_classes_are_restored_afterwards() -> None:
    before = [list(vars(owner).items()) for owner, _ in LOADER_METHODS]
    first, second = observe_loading(Log()), observe_loading(Log())
    first.remove()
    first.remove()
    assert [list(vars(owner).items()) for owner, _ in LOADER_METHODS] != before
    second.remove()
    assert [list(vars(owner).items()) for owner, _ in LOADER_METHODS] == before


def test_a_method_that_other_code_put_on_top_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name = LOADER_METHODS[1]
    log = Log()
    handle = observe_loading(log)
    below = vars(owner)[name]
    on_top: Callable[[Any], Any] = lambda self: below(self)  # noqa: E731
    monkeypatch.setattr(owner, name, on_top)
    handle.remove()
    assert vars(owner)[name] is on_top
    assert len(list(DataLoader(Noise(), 5))) == 2
    assert log.calls == []
    monkeypatch.undo()
    type.__setattr__(owner, name, inspect.unwrap(below))


class Asking(Dataset[Any]):
    """Returns what a worker sees."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return str([hasattr(method, "__wrapped__") for method in methods()])


def test_workers_observe_nothing_and_closing_removes_everything() -> None:
    before, model = methods(), nn.Linear(3, 1)
    with hookcore.watch(model, server=None):
        assert methods() != before
        (seen, _) = DataLoader(Asking(), None, num_workers=1, multiprocessing_context="fork")
        assert seen == "[False, False]"
        with hookcore.detached():
            assert methods() == before
    assert methods() == before


class Slow(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(6):
            yield torch.ones(3)


def test_a_torch_with_other_names_keeps_the_old_part_and_an_event_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LOADER_METHODS", ())
    monkeypatch.setattr(module_of("Placement"), "UNSEEN", "torch has no such method")
    before, model = methods(), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        assert methods() == before
        for batch in DataLoader(Slow()):
            model(batch).sum().backward()
            optimizer.step()
    (event,) = [each for each in watcher.store.events() if each.name == "loading-unseen"]
    assert event.message == "torch has no such method"
    assert TIME_BEFORE in watcher.store.scalar_names()
    assert TIME_LOADING not in watcher.store.scalar_names()
