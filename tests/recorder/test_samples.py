"""The ledger says which samples each step had, or why that isn't known."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, random_split

import hookcore
from hookcore.reading.answers import Samples
from tests.harness import seed_all

Batch = tuple[Tensor, Tensor]


class Rows(Dataset[Batch]):
    """Rows that know their own index."""

    def __init__(self, many: int = 64) -> None:
        self.many = many

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, index: int) -> Batch:
        return torch.full((4,), float(index)) / self.many, torch.tensor(index)


class Stream(IterableDataset[Batch]):
    def __iter__(self) -> Iterator[Batch]:
        return (Rows()[index] for index in range(16))


class Loop:
    """A watched model that is trained with batches, and what each step really had."""

    def __init__(self, **given: Any) -> None:
        seed_all()
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.watcher = hookcore.watch(self.model, server=None, **given)
        self.had: list[list[int]] = []

    def step(self, *batches: Batch) -> None:
        for rows, _ in batches:
            self.model(rows).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.had.append([index for _, numbers in batches for index in numbers.tolist()])

    def answers(self) -> list[Samples]:
        self.watcher.flush()
        reader = self.watcher.reader()
        return [reader.samples(step) for step in range(len(self.had))]

    def check(self) -> None:
        found = self.answers()
        assert [each.why for each in found] == [None] * len(self.had)
        assert [[index for batch in each.batches for index in batch.ids] for each in found] == self.had
        assert self.watcher.errors == []


@pytest.fixture
def loop() -> Iterator[Loop]:
    found = Loop()
    yield found
    found.watcher.close()


def shuffled(workers: int = 0, **given: Any) -> DataLoader[Any]:
    return DataLoader(
        Rows(), 4, shuffle=True, num_workers=workers, multiprocessing_context="fork" if workers else None, **given
    )


@pytest.mark.parametrize("given", [{}, {"workers": 2}, {"workers": 2, "persistent_workers": True}], ids=str)
def test_each_step_has_the_samples_that_it_was_trained_with_over_shuffled_epochs(
    loop: Loop, given: dict[str, Any]
) -> None:
    loader = shuffled(**given)
    for epoch in range(3):
        for place, batch in enumerate(loader):
            loop.step(batch)
            if epoch == 1 and place == 5:
                break  # workers have loaded more by then
    loop.check()


def test_micro_batches_are_samples_of_their_common_step(loop: Loop) -> None:
    batches = iter(shuffled())
    for one, two in zip(batches, batches, strict=True):
        loop.step(one, two)
    loop.check()


def test_batches_of_an_evaluation_are_no_samples_of_a_training_step(loop: Loop) -> None:
    for place, batch in enumerate(shuffled()):
        loop.model.train()
        loop.step(batch)
        if place % 4 == 3:
            loop.model.eval()
            with torch.no_grad():
                for rows, _ in DataLoader(Rows(8), 4):
                    loop.model(rows)
    loop.check()


def test_a_batch_that_accelerate_loads_ahead_belongs_to_the_step_that_gets_it(loop: Loop) -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(shuffled())
    for _ in range(2):
        for batch in loader:
            loop.step(batch)
    loop.check()


def test_batches_that_a_script_loads_ahead_are_unknown_and_it_says_so(loop: Loop) -> None:
    batches: Iterator[Batch] = iter(shuffled())
    following = next(batches)
    for batch in batches:
        current, following = following, batch
        loop.step(current)
    found = loop.answers()
    assert {each.why for each in found[1:-1]} != {None}
    assert all("loads batches ahead" in (each.why or "") for each in found)


def test_batches_that_are_loaded_between_a_pass_and_its_step_are_unknown_and_it_says_so(loop: Loop) -> None:
    batches = iter(shuffled())
    current = next(batches)
    while current is not None:
        loop.model(current[0]).square().mean().backward()
        current = next(batches, None)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.had.append([])
    assert all("loads batches ahead" in (each.why or "") for each in loop.answers()[:-1])


def test_memory_of_a_batch_that_is_gone_is_not_mistaken_for_it() -> None:
    loop = Loop(every=1, budget=None)
    with loop.watcher:
        for rows, numbers in DataLoader(Rows(640), 16):
            rows = rows * 2  # may be where the batch before was
            loop.step((rows, numbers))
        loop.check()


def test_a_list_that_a_sampler_fills_again_and_again_is_noted_as_it_was_given(loop: Loop) -> None:
    def batches() -> Iterator[list[int]]:
        batch: list[int] = []
        for index in torch.randperm(64).tolist():
            batch.append(index)
            if len(batch) == 4:
                yield batch
                batch.clear()

    for batch in DataLoader(Rows(), batch_sampler=batches()):
        loop.step(batch)
    loop.check()


def test_an_evaluation_after_the_last_step_is_of_no_step(loop: Loop) -> None:
    for batch in shuffled():
        loop.step(batch)
    with torch.no_grad():
        for rows, _ in shuffled():
            loop.model(rows)
    loop.watcher.close()
    assert loop.watcher.reader().samples(len(loop.had)).batches == ()
    loop.check()


def test_batches_that_another_thread_loads_are_unknown_and_it_says_so(loop: Loop) -> None:
    loaded: list[Batch] = []
    thread = threading.Thread(target=lambda: loaded.extend(shuffled()))
    thread.start()
    thread.join()
    for batch in loaded:
        loop.step(batch)
        next(iter(DataLoader(Rows(4), 4)))  # at which the ledger compares
    assert any("another thread" in (each.why or "") for each in loop.answers())


def unknown(loop: Loop, batches: Iterable[Batch]) -> set[str | None]:
    for batch in batches:
        loop.step(batch)
    return {each.why for each in loop.answers()}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: DataLoader(Stream(), 4), "an iterable data set has no indices"),
        (lambda: [next(iter(Rows())) for _ in range(0)] or [(torch.ones(2, 4), torch.ones(2))], "no batch of a torch"),
        (lambda: shuffled(2, in_order=False), "in_order=False"),
    ],
    ids=["iterable", "none", "unordered"],
)
def test_samples_that_cannot_be_known_have_a_reason(loop: Loop, make: Any, why: str) -> None:
    assert all(why in (each or "") for each in unknown(loop, make()))


def test_the_script_names_the_samples_of_any_data(loop: Loop) -> None:
    given: Sequence[Any] = ([7, 8], ["a", "b"], torch.tensor([3, 4]), [[1, 2], [3]])
    for ids in given:
        loop.watcher.samples(ids)
        loop.step((torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)))
    batches = [each.batches[0] for each in loop.answers()]
    assert [batch.ids for batch in batches] == [(7, 8), ("a", "b"), (3, 4), (1, 2, 3)]
    assert [batch.rows for batch in batches] == [(), (), (), (2, 1)]


class Broken:
    def __index__(self) -> int:
        raise OSError("no such row")


def test_an_index_that_cannot_be_read_does_not_end_the_training(loop: Loop) -> None:
    loop.watcher.samples([Broken()])
    loop.step((torch.ones(1, 4), torch.ones(1)))
    loop.watcher.close()
    assert "no such row" in (loop.watcher.reader().samples(0).why or "")


@pytest.mark.parametrize("given", ["doc-17", 5, {"doc-17": 1}])
def test_a_text_is_no_list_of_samples(loop: Loop, given: Any) -> None:
    loop.watcher.samples(given)
    loop.step((torch.ones(1, 4), torch.ones(1)))
    assert loop.answers()[0].batches == ()
    (error,) = loop.watcher.errors
    assert "give a list of numbers or texts, such as [18204, 7]" in error.message


def test_what_the_script_says_counts_more_than_what_its_loader_does(loop: Loop) -> None:
    for batch in DataLoader(Rows(8), 4):
        loop.watcher.samples(f"row {index}" for index in batch[1].tolist())
        loop.step(batch)
    assert loop.answers()[1].batches[0].ids == ("row 4", "row 5", "row 6", "row 7")
    assert len(loop.answers()[1].batches) == 1


def test_a_step_without_a_batch_says_when_the_last_one_was_loaded(loop: Loop) -> None:
    batch = next(iter(shuffled()))
    loop.step(batch)
    loop.step(batch)
    assert loop.answers()[1].why == "no batch was loaded in step 1; the last one before it was loaded in step 0"


def calls_of_second(loader: DataLoader[Any]) -> int:
    """Return how many of hookcore's functions the second batch calls."""
    batches, counted = iter(loader), 0
    next(batches)

    def count(frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event == "call" and "hookcore" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        next(batches)
    finally:
        sys.setprofile(None)
    return counted


def test_a_batch_costs_a_bounded_number_of_calls_however_large_it_is(loop: Loop) -> None:
    assert calls_of_second(DataLoader(Rows(), 2)) == calls_of_second(DataLoader(Rows(), 32)) <= 32


def test_a_batch_of_many_texts_is_not_searched_for_tensors(loop: Loop) -> None:
    loader = DataLoader(Rows(), 1, collate_fn=lambda _: [*map(str, range(4000))])
    assert calls_of_second(loader) < 300


def test_the_ledger_keeps_the_newest_batches_and_counts_the_others(loop: Loop) -> None:
    loop.watcher.pause()
    for place in range(5000):
        loop.watcher.samples([place])
    loop.step((torch.ones(1, 4), torch.zeros(1, dtype=torch.int64)))
    (answer,) = loop.answers()
    assert [batch.ids for batch in answer.batches] == [(place,) for place in range(4096)]
    loop.watcher.close()
    assert sum(each.count for each in loop.watcher.store.events(name="samples-dropped")) == 904


def test_samples_of_a_part_of_a_data_set_are_rows_of_the_whole_one(loop: Loop) -> None:
    part, _ = random_split(Subset(Rows(), range(20, 60)), [30, 10])
    for batch in DataLoader(part, batch_size=5, shuffle=True):
        loop.step(batch)
    loop.check()
    assert {batch.source for each in loop.answers() for batch in each.batches} == {"Rows"}
