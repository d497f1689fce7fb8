"""A step whose loss jumps is saved. Its replay says which sample holds the loss, and what the step is without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import hookcore
from hookcore.capsules import Replay, as_text, replay
from hookcore.reading.answers import Explanation, SampleShares
from tests.capsule_files import capsules_of
from tests.harness import seed_all
from tests.inside import module_of, threads_named

SHARES = module_of("Sharing", "capsules")
STEPS, BATCH, BAD = 90, 4, 203  # the bad sample is in step 50
JUMP = BAD // BATCH


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Noise, with a sample whose target is far away."""

    def __init__(self, bad: float = 300.0) -> None:
        self.rows = torch.randn(STEPS * BATCH, 6, generator=torch.Generator().manual_seed(1))
        self.targets = self.rows[:, :1].clone()
        self.targets[BAD] = bad

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.rows[index], self.targets[index]


class Packed(nn.Module):
    """Each position by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, values: Tensor, position_ids: Tensor | None = None) -> Tensor:
        found: Tensor = self.layer(values[..., None])[..., 0]
        return found


def plain(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *between, nn.Linear(8, 1))


Loss = Callable[[Tensor, Tensor], Tensor]


def train(
    model: nn.Module, loss_of: Loss = F.mse_loss, rows: Dataset[Any] | None = None, **given: Any
) -> tuple[hookcore.Watcher, list[Replay]]:
    """Train with a watch, and replay what it has saved."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    given = {"server": None, "capsule": "error", "explain": "never", **given}
    with hookcore.watch(model, **given) as watcher:
        for batch, targets in DataLoader(rows or Rows(), BATCH):
            loss_of(model(batch), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert watcher.errors == []
    return watcher, [replay(path) for path in capsules_of(watcher)]


def shares_in(found: list[Replay]) -> SampleShares:
    (only,) = (each for each in found if each.shares is not None)  # an incident may have asked for a later step
    assert only.about["step"] == JUMP
    assert only.exact
    assert only.shares is not None
    return only.shares


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_all()


@pytest.mark.parametrize("every", [1, 1 << 20], ids=["captured", "not captured"])
def test_the_sample_that_holds_the_loss_is_named_with_the_step_without_it(every: int) -> None:
    watcher, found = train(plain(), every=every, budget=None)
    assert found, watcher.store.events()
    shares = shares_in(found)
    assert Explanation(shares.sentence, None, (), (), 9, True, (), "", shares=shares).names_cause
    assert (shares.samples[0].ids, shares.samples[0].row) == ((BAD,), BAD % BATCH)
    assert shares.samples[0].share > 0.99
    assert shares.loss is not None
    assert shares.loss > 1e4 > 10 > (shares.loss_without or 99)
    assert (shares.norm or 0) > 100 * (shares.norm_without or 99)
    assert f"Sample {BAD} holds 100% of the loss" in as_text(found[0])
    assert found[0].about["samples"] == list(range(BAD - BAD % BATCH, BAD - BAD % BATCH + BATCH))
    assert JUMP in [each.step for each in watcher.store.events(name="capsule")]


def test_a_watched_training_with_a_jump_has_the_same_weights_as_an_unwatched_one() -> None:
    def trained(is_watched: bool) -> list[Tensor]:
        seed_all()
        model = plain(nn.Dropout(0.1))
        train(model, **({} if is_watched else {"capsule_on": "nonfinite"}))
        return [each.detach().clone() for each in model.parameters()]

    assert all(map(torch.equal, trained(True), trained(False)))


@pytest.mark.parametrize("is_checkpointed", [True, False], ids=["checkpoint", "given back once"])
def test_a_jump_unpacks_no_tensor_that_a_hook_has_packed(is_checkpointed: bool) -> None:
    runs = list[Tensor]()

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        runs.append(output)
        return F.mse_loss(output, target)

    def packed(output: Tensor, target: Tensor) -> Tensor:
        if is_checkpointed:
            loss: Tensor = checkpoint(loss_of, output, target, use_reentrant=False)
            return loss
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: [tensor], list.pop):
            return loss_of(output, target)

    _, found = train(plain(), packed)
    assert len(runs) == STEPS * (1 + is_checkpointed)
    assert shares_in(found).of == "gradient"


def test_the_setting_says_whether_a_jump_is_saved() -> None:
    assert train(plain(), capsule_on="nonfinite")[1] == []


def test_a_training_without_a_jump_saves_nothing() -> None:
    assert train(plain(), rows=Rows(bad=1.0))[1] == []


@pytest.mark.parametrize("every", [1, 1 << 20], ids=["captured", "not captured"])
def test_a_loss_that_rises_step_by_step_is_no_jump(every: int) -> None:
    rising = [1.0 + 0.05 * (step % 3) for step in range(32)] + [1.1 * 1.08**step for step in range(1, STEPS - 31)]
    losses = iter(rising)
    _, found = train(plain(), lambda made, _: made.mean() * 0 + next(losses), every=every, budget=None)
    assert [each.about["reason"] for each in found if each.shares is not None] == []


def test_rows_that_influence_each_other_leave_the_step_without_one_unknown() -> None:
    shares = shares_in(train(plain(nn.BatchNorm1d(8)))[1])
    assert shares.samples[0].ids == (BAD,)
    assert shares.norm_without is None
    assert "influence each other" in (shares.why_not_without or "")


def test_a_loss_of_unknown_parts_is_divided_by_its_gradient() -> None:
    def loss_of(made: Tensor, targets: Tensor) -> Tensor:
        return ((made - targets) ** 2).flatten().cumsum(0)[-1] / BATCH

    shares = shares_in(train(plain(), loss_of)[1])
    assert (shares.of, shares.loss, shares.stands_out, shares.samples[0].ids) == ("gradient", None, True, (BAD,))


def test_a_jump_of_all_samples_alike_names_none() -> None:
    rows = Rows(bad=1.0)
    rows.targets[JUMP * BATCH : (JUMP + 1) * BATCH] = 200.0
    shares = shares_in(train(plain(), rows=rows)[1])
    assert not shares.stands_out
    assert shares.sentence.startswith("No sample stands out: of 4, the largest, sample ")


def test_the_largest_sample_of_a_loss_that_jumps_without_it_as_well_is_not_blamed() -> None:
    rows = Rows(bad=1.0)
    rows.targets[JUMP * BATCH : (JUMP + 1) * BATCH] = 200.0
    rows.targets[BAD] = 800.0
    shares = shares_in(train(plain(), rows=rows)[1])
    assert (shares.stands_out, shares.still_jumps) == (False, True)
    assert 0.7 < shares.samples[0].share < 0.9
    assert shares.sentence.startswith(f"No sample explains the jump: sample {BAD} holds 8")
    assert not Explanation(shares.sentence, None, (), (), 9, True, (), "", shares=shares).names_cause


def test_samples_that_the_ledger_does_not_know_are_rows_with_a_reason() -> None:
    rows = Rows()
    model, batches = plain(), list(DataLoader(rows, BATCH))  # loaded before the watch
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with hookcore.watch(model, server=None, capsule="error", explain="never") as watcher:
        for batch, targets in batches:
            F.mse_loss(model(batch), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    shares = shares_in([replay(path) for path in capsules_of(watcher)])
    assert shares.sentence.startswith(f"Row {BAD % BATCH} holds 100% of the loss")
    assert f"(no batch was loaded in step {JUMP})" in shares.sentence


@pytest.mark.parametrize("nested", [True, False])
def test_packed_samples_are_named_by_their_positions_or_by_their_row(nested: bool) -> None:
    model = Packed()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]])
    with hookcore.watch(model, server=None, capsule="error", explain="never") as watcher:
        for step in range(STEPS):
            first, values = 4 * step, torch.randn(2, 5)
            ids = [[first, first + 1], [first + 2, first + 3]]
            watcher.samples(ids if nested else [each for row in ids for each in row])
            targets = values.clone()
            if step == JUMP:
                targets[1, 3] = 500.0  # in the fourth sample
            made = model(values) if nested else model(values, position_ids=positions)
            F.mse_loss(made, targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    shares = shares_in([replay(path) for path in capsules_of(watcher)])
    assert shares.samples[0].ids == ((4 * JUMP + 2, 4 * JUMP + 3) if nested else (4 * JUMP + 3,))
    assert shares.samples[0].row == 1
    assert shares.many == (2 if nested else 4)


def test_a_value_that_is_not_finite_right_after_a_jump_is_saved_as_well() -> None:
    rows = Rows()
    rows.rows[BAD + BATCH] = float("nan")
    _, found = train(plain(), rows=rows)
    assert [each.about["step"] for each in found][:2] == [JUMP, JUMP + 1]
    assert "non-finite" in found[1].about["reason"] or "NaN" in found[1].about["reason"]


def test_at_most_two_jumps_of_a_run_are_saved() -> None:
    rows = Rows()
    for number, place in enumerate(range(BAD, STEPS * BATCH, BATCH * 4)):
        rows.targets[place] = 300.0 * 20.0**number
    assert sum(each.shares is not None for each in train(plain(), rows=rows)[1]) == 2


LINEAR = nn.Linear(6, 5)
ROWS, CLASSES, NUMBERS = torch.randn(8, 6), torch.arange(8) % 5, torch.rand(8, 5)


@pytest.mark.parametrize(
    ("loss", "parts"),
    [
        (lambda made: F.cross_entropy(made, CLASSES), lambda made: F.cross_entropy(made, CLASSES, reduction="none")),
        (
            lambda made: F.cross_entropy(made, CLASSES, torch.arange(1.0, 6), ignore_index=2) / 4,
            lambda made: F.cross_entropy(made, CLASSES, torch.arange(1.0, 6), ignore_index=2, reduction="none"),
        ),
        (
            lambda made: (F.cross_entropy(made, CLASSES, reduction="none") * NUMBERS[:, 0]).sum() / 3,
            lambda made: F.cross_entropy(made, CLASSES, reduction="none") * NUMBERS[:, 0],
        ),
        (
            lambda made: F.cross_entropy(made.view(8, 5, 1, 1), CLASSES.view(8, 1, 1), reduction="sum"),
            lambda made: F.cross_entropy(made, CLASSES, reduction="none").view(8, 1, 1),
        ),
        (lambda made: F.mse_loss(made, NUMBERS), lambda made: (made - NUMBERS) ** 2),
        (lambda made: ((made - NUMBERS) ** 2).sum(-1).mean(), lambda made: ((made - NUMBERS) ** 2).sum(-1)),
        (lambda made: F.l1_loss(made, NUMBERS), lambda made: (made - NUMBERS).abs()),
        (
            lambda made: F.binary_cross_entropy_with_logits(made, NUMBERS),
            lambda made: F.binary_cross_entropy_with_logits(made, NUMBERS, reduction="none"),
        ),
        (
            lambda made: F.huber_loss(made, NUMBERS, delta=0.3),
            lambda made: F.huber_loss(made, NUMBERS, delta=0.3, reduction="none"),
        ),
        (
            lambda made: F.smooth_l1_loss(made, NUMBERS, beta=0.3),
            lambda made: F.smooth_l1_loss(made, NUMBERS, beta=0.3, reduction="none"),
        ),
    ],
    ids=["classes", "weights", "product", "pixels", "squares", "axis", "absolute", "logits", "huber", "smooth"],
)
def test_the_parts_of_a_loss_are_those_that_torch_adds_up(loss: Any, parts: Any) -> None:
    made = LINEAR(ROWS)
    found = SHARES.parts_of(loss(made))
    assert torch.allclose(found.values, parts(made), rtol=1e-5)
    assert found.loss == float(loss(made).detach())


def test_a_loss_of_several_terms_has_no_known_parts() -> None:
    made = LINEAR(ROWS)
    with pytest.raises(SHARES.UnknownPartsError, match="ends in AddBackward0"):
        SHARES.parts_of(F.cross_entropy(made, CLASSES) + made.square().mean())


@pytest.mark.slow
def test_a_jump_is_explained_by_itself() -> None:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with hookcore.watch(model, server=None, capsule="error", explain="auto") as watcher:
        for batch, targets in DataLoader(Rows(), BATCH):
            F.mse_loss(model(batch), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        for thread in threads_named("hookcore-explain"):
            thread.join(240)
    (event,) = watcher.store.events(name="explained")
    assert (event.step, event.about["sample"], event.about["row"]) == (JUMP, BAD, BAD % BATCH)
    assert event.message.startswith(f"Sample {BAD} holds 100% of the loss")
