# mypy: disable-error-code="no-untyped-call"
"""A step of a device is known to be bad only after its update, and is saved with the weights that it began with."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.capsules import read_about, replay
from hookcore.records import Event
from tests.capsule_files import capsules_of
from tests.guilty import Net, Standardize, batches, events_of, guilty
from tests.harness import digest, random_state, seed_all
from tests.held import watch
from tests.inside import keeper_of, module_of, recorder_of
from tests.late import LATENESS, Device, late_device

LATE: Any = module_of("LateSteps", "capsules")

BAD = 5
STEPS = 12


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    with late_device(monkeypatch) as found:
        yield found
        assert not found.waits


def train(model: nn.Module, bad: int = BAD, steps: int = STEPS, optimizer: Any = None) -> list[str]:
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for x, mask in batches(bad, steps):
        optimizer.zero_grad()
        loss = model(x, mask=mask)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(digest(loss.detach()))
    return losses


def settle(watcher: hookcore.Watcher, device: Device) -> None:
    """Let the device compute everything, and the watcher take note of it, as a close does."""
    device.finish()
    recorder_of(watcher).settle_late(10.0)
    assert not watcher.errors, watcher.errors[-1].message


def missed(watcher: hookcore.Watcher) -> Event:
    """Return the event that says why a step of a device was not saved. Events after the last step come at the close."""
    (event,) = [each for each in events_of(watcher, "capsule-missed") if "why" in each.about]
    return event


def the_capsule(watcher: hookcore.Watcher, device: Device) -> Path:
    settle(watcher, device)
    (path,) = capsules_of(watcher)
    return path


def used(watcher: hookcore.Watcher) -> int:
    return int(keeper_of(watcher).late_steps.used)


@pytest.mark.parametrize("bad", [0, 1, BAD])
def test_the_exact_step_is_saved_with_the_weights_that_it_began_with(bad: int, device: Device) -> None:
    seed_all()
    model = Net()
    with watch(model) as watcher:
        train(model, bad)
        path = the_capsule(watcher, device)
        assert used(watcher) == 0
    (event,) = events_of(watcher, "capsule")
    assert [each.step for each in events_of(watcher, "nonfinite-step")] == [bad]
    found = replay(path)
    assert event.step == found.about["step"] == bad
    assert found.about["weights"] == "before the update"
    assert found.about["reason"].startswith("non-finite values in the loss, known in step ")
    assert found.exact, found.differences
    assert guilty(found)
    assert max(found.about["frames"], default=0) <= bad


@pytest.mark.parametrize("settings", [{"budget": 0.05, "every": 1}, {"every": 1}, {"every": BAD}], ids=str)
def test_the_exact_step_is_saved_captured_or_not(settings: dict[str, Any], device: Device) -> None:
    seed_all()
    model = Net()
    with watch(model, **settings) as watcher:
        train(model)
        found = replay(the_capsule(watcher, device))
    assert float(found.about["step"]) == BAD
    assert found.about["weights"] == "before the update"
    assert found.exact, found.differences
    assert guilty(found)


def test_keeping_the_last_steps_changes_no_bit_of_the_training(device: Device) -> None:
    def outcome(watched: bool, bad: int) -> tuple[str, str, list[str]]:
        seed_all()
        model = Net()
        watcher = watch(model) if watched else None
        losses = train(model, bad)
        if watcher is not None:
            settle(watcher, device)
            assert (used(watcher) > 0) == (bad < 0)
            assert len(capsules_of(watcher)) == (bad >= 0)
            watcher.close()
        return digest(model.state_dict()), random_state(), losses

    assert outcome(watched=True, bad=-1) == outcome(watched=False, bad=-1)
    device.lateness = LATENESS
    assert outcome(watched=True, bad=BAD) == outcome(watched=False, bad=BAD)


def test_on_the_cpu_nothing_is_copied() -> None:
    model = Net()
    with watch(model) as watcher:
        train(model, bad=-1)
        assert used(watcher) == 0


def test_the_memory_of_a_finite_step_serves_the_next_one(device: Device) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch_refs = []
    with watch(model) as watcher:
        peaks = []
        for _ in range(20):
            x = torch.randn(2, 4)
            batch_refs.append(weakref.ref(x))
            model(x).sum().backward()
            optimizer.step()
            peaks.append(used(watcher))
            del x
        gc.collect()
        weights = sum(each.numel() * 4 for each in model.parameters())
        batch = 4 * (2 * 4 + 2 * 4 + 2 * 4)  # its arguments, its outputs, and their gradients
        assert max(peaks) <= (device.lateness + 2) * (weights + batch)
        assert peaks[-1] == peaks[-2] > 0
        assert sum(each() is not None for each in batch_refs) <= device.lateness + 1


def test_nothing_is_kept_after_the_close(device: Device) -> None:
    model = Net()
    with watch(model) as watcher:
        train(model, bad=-1)
        late = keeper_of(watcher).late_steps
        device.finish()
    assert late.used == 0
    weight = weakref.ref(model.first)
    del model
    gc.collect()
    assert weight() is None


def test_a_batch_that_was_changed_since_is_named(device: Device) -> None:
    seed_all()
    model, buffer = Net(), torch.empty(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        for x, mask in batches(BAD, STEPS):
            optimizer.zero_grad()
            model(buffer.copy_(x), mask=mask)["loss"].backward()
            optimizer.step()
        found = replay(the_capsule(watcher, device))
    assert found.about["changed"] == ["argument 0"]
    assert not found.exact


def test_a_model_that_is_too_large_is_said_to_be(device: Device) -> None:
    model = Net()
    with watch(model, capsule_size=200) as watcher:
        train(model)
        settle(watcher, device)
    event = missed(watcher)
    assert event.step == BAD
    assert event.about["why"] == "capsule-size"
    assert (
        "the step can't be repeated: its weights were updated before the value was known, and a copy" in event.message
    )
    assert "more than capsule_size=200 bytes" in event.message


def test_a_batch_that_is_too_large_is_said_to_be(device: Device) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Standardize())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, capsule_size=2000) as watcher:
        for step in range(STEPS):
            x = torch.randn(200, 4) if step != BAD else torch.full((200, 4), torch.inf)
            model(x).sum().backward()
            optimizer.step()
        settle(watcher, device)
    event = missed(watcher)
    assert (event.step, event.about["why"]) == (BAD, "capsule-size")
    assert "its arguments and outputs take" in event.message


def test_a_device_that_is_nearly_full_is_left_alone(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 30]
    monkeypatch.setattr(LATE, "free_bytes", lambda _: free[0])
    monkeypatch.setattr(LATE, "CHECK_EVERY", 1)
    seed_all()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        train(model, bad=-1, optimizer=optimizer)
        assert used(watcher) > 0
        free[0] = 1000
        train(model, steps=STEPS, optimizer=optimizer)
        assert used(watcher) <= 1000
        settle(watcher, device)
    event = missed(watcher)
    assert (event.step, event.about["why"]) == (STEPS + BAD, "device-memory")
    assert "of the device's free memory" in event.message


def test_a_device_that_is_too_late_is_said_to_be(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LATE, "MAX_HELD", 3)
    device.lateness = 1000
    model = Net()
    with watch(model) as watcher:
        train(model)
        settle(watcher, device)
    event = missed(watcher)
    assert (event.step, event.about["why"]) == (BAD, "late")
    assert "earlier backward passes were still unknown" in event.message


@pytest.mark.parametrize("bad", range(3))
def test_the_bad_micro_batch_is_saved(bad: int, device: Device) -> None:
    seed_all()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        for step in range(STEPS):
            optimizer.zero_grad()
            for part, (x, mask) in enumerate(batches(bad if step == BAD else -1, steps=3)):
                (model(x, mask=mask)["loss"] / (part + 1)).backward()
            optimizer.step()
        found = replay(the_capsule(watcher, device))
    assert float(found.about["step"]) == BAD
    assert found.exact, found.differences
    assert guilty(found)


def test_micro_batches_share_the_copy_of_their_weights(device: Device) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for _ in range(4):
            for _ in range(8):
                model(torch.randn(1, 64)).sum().backward()
            optimizer.step()
        assert len(keeper_of(watcher).late_steps.slots) <= 2


def test_calls_of_one_step_share_the_copy_of_their_weights(device: Device) -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(4, 4), Standardize())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for step in range(STEPS):
            optimizer.zero_grad()
            x = torch.randn(8, 4)
            for _ in range(2 * LATE.MAX_HELD):
                x = model(x)
            model(x * (torch.inf if step == BAD else 1)).sum().backward()
            optimizer.step()
        path = the_capsule(watcher, device)
    assert float(read_about(path)["step"]) == BAD
    assert read_about(path)["weights"] == "before the update"


def test_a_step_that_a_scaler_skips_is_no_error_and_a_bad_loss_under_it_is_one(device: Device) -> None:
    seed_all()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watch(model) as watcher:
        for step, (x, mask) in enumerate(batches(BAD, STEPS)):
            optimizer.zero_grad()
            scaler.scale(model(x, mask=mask)["loss"]).backward()
            if step == 2:
                assert model.first.bias.grad is not None
                model.first.bias.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
        found = replay(the_capsule(watcher, device))
    assert float(found.about["step"]) == BAD
    assert guilty(found)


def test_a_step_under_autocast_is_repeated_to_the_bit(device: Device) -> None:
    seed_all()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        for x, mask in batches(BAD, STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x, mask=mask)["loss"]
            loss.backward()
            optimizer.step()
        found = replay(the_capsule(watcher, device))
    assert found.exact, found.differences
    assert guilty(found)


@pytest.mark.parametrize("bad", ["maker", "judge"])
def test_of_two_models_the_bad_one_is_saved(bad: str, device: Device) -> None:
    seed_all()
    maker = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), Standardize())
    judge = nn.Sequential(nn.Linear(4, 8), Standardize())
    makes, judges = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())

    def noise(name: str, step: int) -> Tensor:
        return torch.full((8, 4), torch.inf) if (name, step) == (bad, BAD) else torch.randn(8, 4)

    with hookcore.watch(server=None, budget=None, every=1 << 20, capsule="error") as watcher:
        for step in range(STEPS):
            judges.zero_grad()
            judge(torch.randn(8, 4)).sum().backward()
            judge(maker(torch.randn(8, 4)).detach() + noise("judge", step)).sum().backward()
            judges.step()
            makes.zero_grad()
            judge(maker(noise("maker", step))).sum().backward()
            makes.step()
        found = replay(the_capsule(watcher, device))
    assert found.exact, found.differences
    assert float(found.about["step"]) == 2 * BAD + (bad == "maker")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Standardize())
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("table", torch.zeros(1 << 15))  # too large to be copied
        self.number = 0

    calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.number += 1
        result: Tensor = self.inner(x * self.calls + self.number)
        return result


def run(model: nn.Module, step: Callable[[int], Any] = lambda _: None, bad: int = BAD) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(STEPS):
        x = torch.full((8, 4), torch.inf) if number == bad else torch.randn(8, 4)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        step(number)


def test_buffers_numbers_and_random_states_are_those_of_the_call(device: Device) -> None:
    seed_all()
    model = Counting()
    with watch(model) as watcher:
        run(model)
        found = replay(the_capsule(watcher, device))
    assert found.exact, found.differences
    assert any("batch norm" in note for note in found.about["notes"])


def test_a_large_buffer_that_has_changed_since_is_named(device: Device) -> None:
    seed_all()
    model = Counting()
    with watch(model) as watcher:
        run(model, lambda step: model.get_buffer("table").add_(1))
        about = read_about(the_capsule(watcher, device))
    assert about["unkept"] == ["the value of table when the call began"]


def test_frozen_weights_are_not_copied(device: Device) -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 1))
    model[0].requires_grad_(False)
    with watch(model) as watcher:
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
        for _ in range(4):
            model(torch.randn(2, 512)).sum().backward()
            optimizer.step()
        assert 0 < used(watcher) < 512 * 512


def test_modes_that_have_changed_since_are_those_of_the_call(device: Device) -> None:
    seed_all()
    model = Counting()

    def evaluate(step: int) -> None:
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 4))
        model.train(step < BAD)

    with watch(model) as watcher:
        run(model, evaluate)
        found = replay(the_capsule(watcher, device))
    assert found.exact, found.differences


def test_parameters_that_were_replaced_since_are_those_of_the_call(device: Device) -> None:
    seed_all()
    model = Counting()

    def replace(number: int) -> None:
        if number >= BAD:
            model.inner[0].weight = nn.Parameter(torch.ones(4, 4))

    with watch(model) as watcher:
        run(model, replace)
        found = replay(the_capsule(watcher, device))
    assert found.exact, found.differences


def test_tied_weights_are_copied_once_and_stay_tied(device: Device) -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), Standardize())
    model[1].weight = model[0].weight
    with watch(model) as watcher:
        run(model)
        path = the_capsule(watcher, device)
    found = replay(path)
    assert found.exact, found.differences


def test_weights_that_were_non_finite_when_the_step_began_are_named(device: Device) -> None:
    seed_all()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        train(model, bad=-1, steps=BAD, optimizer=optimizer)
        with torch.no_grad():
            model.last.weight[1, 2] = torch.nan
        train(model, bad=-1, optimizer=optimizer)
        found = replay(the_capsule(watcher, device))
    (event,) = events_of(watcher, "nonfinite-step")
    assert (event.step, event.module, event.about["found"], event.about["late"]) == (BAD, "last", "weights", True)
    assert "was NaN before the step began" in event.message
    assert found.culprit is not None
    assert found.culprit.operator == "weight last.weight"


def test_a_step_that_is_known_only_at_the_end_is_saved_by_the_close(device: Device) -> None:
    device.lateness = 1000
    seed_all()
    model = Net()
    watcher = watch(model)
    train(model, steps=BAD + 1)
    assert not capsules_of(watcher)
    device.finish()
    watcher.close()
    (path,) = capsules_of(watcher)
    assert guilty(replay(path))
    (event,) = [each for each in watcher.store.events() if each.name == "capsule"]
    assert event.step == BAD


def test_a_step_whose_captured_values_are_bad_is_saved_before_its_loss_is_known(device: Device) -> None:
    device.lateness = 1000
    seed_all()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        train(model, steps=BAD + 1, optimizer=optimizer)
        keeper = keeper_of(watcher)
        keeper.alarm(BAD)
        train(model, bad=-1, steps=1, optimizer=optimizer)
        found = replay(the_capsule(watcher, device))
        assert not events_of(watcher, "capsule-missed")
    assert float(found.about["step"]) == BAD
    assert guilty(found)


def test_an_error_while_copying_costs_the_copies_only(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(LATE, "Slot", fail)
    model = Net()
    with watch(model) as watcher:
        train(model)
        settle(watcher, device)
    event = missed(watcher)
    assert (event.step, event.about["why"]) == (BAD, "failed")
    assert "out of memory" in event.message


def test_a_pause_copies_nothing(device: Device) -> None:
    model = Net()
    with watch(model) as watcher:
        train(model, bad=-1)
        watcher.pause()
        train(model, bad=-1, steps=40)
        late = keeper_of(watcher).late_steps
        before = late.unasked
        assert before == LATE.MAX_HELD
        watcher.resume()
        train(model, bad=-1, steps=2)
        assert late.unasked < before
        train(model)
        assert the_capsule(watcher, device)
