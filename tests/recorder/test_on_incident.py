# mypy: disable-error-code="no-untyped-call"
"""Callbacks for incidents: called once each, in the right thread, wherever the frames are. Their errors do no harm."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.errors import ArgumentError, ClosedError, ServerError, StopTraining
from hookcore.reading.answers import Incident, Incidents
from hookcore.recorder.clock.clock import MAX_WAITING, Boundary
from hookcore.watcher import parts_of
from hookcore.watcher.callbacks import Callbacks
from hookcore_app.serving import server_thread
from tests.harness import digest, seed_all, watch
from tests.inside import recorder_of, run_id_of
from tests.serving import TOKEN, served
from tests.waiting import wait_for

Loop = Callable[[hookcore.Watcher, nn.Module], None]
BAD = 3  # the step in which the model makes NaN


class Fragile(nn.Module):
    """A model whose second layer makes NaN in one step, and whose weights are non-finite from then on."""

    def __init__(self, bad: int = BAD) -> None:
        super().__init__()
        self.stem, self.fragile, self.head = nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 1)
        self.fragile.register_forward_hook(lambda module, args, output: self.spoil(output))
        self.bad, self.calls = bad, -1

    def spoil(self, output: Tensor) -> Tensor:
        self.calls += 1
        return output * float("nan") if self.calls == self.bad else output

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.head(self.fragile(self.stem(batch)))
        return result


def train(model: nn.Module, steps: int, after: Callable[[int], None] = lambda step: None) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        after(step)
    return model


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOOKCORE_PORT", "0")
    yield
    server_thread.start().stop()


@pytest.fixture(params=["here", "thread", "server"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str | None]:
    """Return the `server` setting for each place that can have a run's store."""
    if request.param == "server":
        monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
        with served() as server:
            yield server.url
    elif request.param == "thread":
        request.getfixturevalue("in_thread")
        yield "thread"
    else:
        yield None


def test_a_callback_is_called_once_for_an_incident_wherever_the_store_is(place: str | None) -> None:
    calls: list[tuple[str, int, str, str]] = []
    model = Fragile()
    with watch(model, server=place) as watcher:

        @watcher.on_incident
        def note(incident: Incident) -> None:
            culprit = incident.culprit
            calls.append((incident.rule, incident.first_step, culprit.module, threading.current_thread().name))

        train(model, BAD + 1)
        wait_for(lambda: calls, "the callback")
        train(model, 20)  # the incident spreads and lasts
        watcher.flush()
        assert [each.id for each in watcher.incidents() if each.rule == "nonfinite"] == [f"nonfinite-{BAD}"]
    assert [each for each in calls if each[0] == "nonfinite"] == [("nonfinite", BAD, "fragile", "hookcore-incidents")]
    assert watcher.errors == []


def test_a_muted_incident_calls_no_callback(place: str | None) -> None:
    calls: list[str] = []
    model = Fragile()
    with watch(model, server=place) as watcher:
        watcher.on_incident(lambda incident: calls.append(incident.id), severity="error")
        train(model, 1)
        watcher.flush()
        if place is not None:
            watcher.client().mute("nonfinite", "frag*", run=run_id_of(watcher))
        train(model, BAD + 10)
        watcher.flush()
        wait_for(lambda: len(watcher.incidents()), "the incident")
        assert watcher.incidents()[0].muted == (place is not None)
    # Without a server, there are no mutes.
    assert [each for each in calls if each.startswith("nonfinite")] == ([] if place else [f"nonfinite-{BAD}"])
    assert watcher.errors == []


def test_the_training_thread_calls_when_a_step_ends_and_stop_training_leaves_it(place: str | None) -> None:
    seen: list[tuple[int, str, list[bytes]]] = []
    model = Fragile()
    weights = lambda: [each.detach().numpy().tobytes() for each in model.parameters()]  # noqa: E731
    watcher = watch(model, server=place)
    before: list[list[bytes]] = []

    @watcher.on_incident(at="step", severity="error")
    def stop(incident: Incident) -> None:
        seen.append((watcher.current_step, threading.current_thread().name, weights()))
        raise StopTraining(f"bad since {incident.first_step}")

    def wait(step: int) -> None:
        before.append(weights())
        if step == BAD:
            wait_for(lambda: recorder_of(watcher).steps.clock.boundary.waiting, "the incident")

    with pytest.raises(StopTraining, match=f"bad since {BAD}"), watcher:
        train(model, 100, wait)
    (told,) = seen
    assert told[:2] == (BAD + 2, "MainThread")
    assert len(before) == BAD + 1  # the call of optimizer.step() that ended the next step raised
    assert told[2] == weights()  # but its update was complete
    assert watcher.errors == []
    if place is None:
        (event,) = [each for each in watcher.store.events() if each.name == "training-stopped"]
        assert "stop stopped the training: bad since 3" in event.message


def test_a_run_that_stop_training_ends_is_shown_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    with served() as server:
        with pytest.raises(StopTraining), watch(nn.Linear(1, 1), server=server.url):
            raise StopTraining
        (run,) = server.runs.all()
        assert (run.state, run.end.failure) == ("ended", None)


def raise_stop(incident: Incident) -> None:
    raise StopTraining


def by_user(watcher: hookcore.Watcher, model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = None
    model(torch.randn(2, 4)).square().mean().backward()
    watcher.step()


def by_backward(watcher: hookcore.Watcher, model: nn.Module) -> None:
    model(torch.randn(2, 4)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.01)
            parameter.grad = None


def repeat(step: Loop, watcher: hookcore.Watcher, model: nn.Module) -> None:
    for _ in range(10_000):
        step(watcher, model)


@pytest.mark.parametrize("step", [by_user, by_backward])
def test_loops_without_an_optimizer_are_left_where_their_steps_end(
    step: Loop,
) -> None:
    model = Fragile(bad=12)
    with watch(model) as watcher:
        watcher.on_incident(raise_stop, at="step")
        for _ in range(12):
            step(watcher, model)
        with pytest.raises(StopTraining):
            repeat(step, watcher, model)
        assert watcher.errors == []


@pytest.mark.parametrize("at", ["found", "step"])
def test_a_fault_in_a_callback_is_counted_and_shown_and_others_are_still_called(at: Literal["found", "step"]) -> None:
    calls: list[Incident] = []
    model = Fragile()
    with watch(model) as watcher:

        @watcher.on_incident(at=at)
        def broken(incident: Incident) -> None:
            raise ValueError("mine")

        watcher.on_incident(calls.append, at=at)
        train(model, BAD + 1)
        if at == "step":
            wait_for(lambda: len(recorder_of(watcher).steps.clock.boundary.waiting) >= 2)
        train(model, 3)
        wait_for(lambda: calls, "the other callback")
    (error, *_) = watcher.errors
    assert watcher.error_count == len({each.id for each in calls})
    assert error.name == "hook-error"
    assert "broken" in error.message
    assert "ValueError: mine" in error.message
    (event,) = [each for each in watcher.store.events() if each.name == "callback-failed"]
    assert "broken failed: ValueError: mine" in event.message


@pytest.mark.parametrize("error", [StopTraining(), SystemExit(3)])
def test_an_exception_that_would_end_the_thread_is_reported_as_an_error(error: BaseException) -> None:
    calls: list[Incident] = []
    model = Fragile()

    def leave(incident: Incident) -> None:
        raise error

    with watch(model) as watcher:
        watcher.on_incident(leave)
        watcher.on_incident(calls.append)
        train(model, BAD + 2)
        wait_for(lambda: calls)
    expected = "on_incident(at='step')" if isinstance(error, StopTraining) else "SystemExit: 3"
    assert expected in watcher.errors[0].message


def test_a_later_callback_gets_the_incidents_so_far_once() -> None:
    first: list[Incident] = []
    second: list[Incident] = []
    model = Fragile()
    with watch(model) as watcher:
        watcher.on_incident(first.append)
        train(model, BAD + 2)
        wait_for(lambda: first)
        watcher.on_incident(second.append)
        wait_for(lambda: second)
        train(model, 3)
    ids = [each.id for each in first]
    assert len(ids) == len(set(ids))
    assert {each.id for each in second} == set(ids)


def test_closing_calls_the_callback_for_the_last_findings() -> None:
    calls: list[Incident] = []
    model = Fragile()
    with watch(model) as watcher:
        watcher.on_incident(calls.append)
        train(model, BAD + 1)
    assert "nonfinite" in [each.rule for each in calls]
    with pytest.raises(ClosedError):
        watcher.on_incident(calls.append)


class Overflowing(nn.Module):
    """A model whose gradients overflow after two steps, as long as the loss scale is above a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.layer, self.limit, self.calls = nn.Linear(4, 1), limit, 0

    def forward(self, batch: Tensor, scale: float) -> Tensor:
        output: Tensor = self.layer(batch)
        self.calls += 1
        if self.calls > 2 and scale > self.limit:
            output.register_hook(lambda gradient: gradient * float("inf"))
        return output


def train_scaled(limit: float, steps: int, calls: list[Incident], severity: Literal["info", "error"]) -> None:
    seed_all()
    model = Overflowing(limit)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with watch(model) as watcher:
        watcher.on_incident(calls.append, severity=severity)
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(2, 4), scaler.get_scale()).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            watcher.flush()
            parts_of(watcher).callbacks.look()  # at every step, as a fast thread might
    assert watcher.errors == []


def test_a_scaler_searching_for_its_scale_is_a_note_and_one_that_fails_is_an_error() -> None:
    notes: list[Incident] = []
    train_scaled(2.0**8, 20, notes, "info")
    assert [(each.severity, each.skipped) for each in notes if each.rule == "nonfinite"] == [("info", True)]
    errors: list[Incident] = []
    train_scaled(2.0**8, 20, errors, "error")
    assert errors == []
    train_scaled(0.0, 2 + 24, errors, "error")
    assert errors == []
    train_scaled(0.0, 2 + 24 + 1, errors, "error")
    assert [each.rule for each in errors] == ["nonfinite"]


def test_callbacks_leave_the_training_equal_to_the_bit() -> None:
    def weights(watched: bool) -> str:
        seed_all()
        model = Fragile(bad=-1)
        if not watched:
            return digest([each.detach() for each in train(model, 5).parameters()])
        with watch(model) as watcher:
            watcher.on_incident(print)
            watcher.on_incident(print, at="step")
            return digest([each.detach() for each in train(model, 5).parameters()])

    assert weights(watched=True) == weights(watched=False)


def test_a_copy_of_a_watcher_calls_no_callback() -> None:
    with watch(nn.Linear(1, 1)) as watcher:
        copied = copy.deepcopy(watcher)

        @copied.on_incident
        def one(incident: Incident) -> None: ...

        @copied.on_incident(at="step", severity="error")
        def two(incident: Incident) -> None: ...

        assert [one, two] == [copied.on_incident(one), copied.on_incident(two)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"at": "steps"}, r"at='steps' is invalid: use one of 'found', 'step'. Did you mean 'step'"),
        ({"severity": "eror"}, r"severity='eror' is invalid.*Did you mean 'error'"),
        ({"callback": 3}, r"given a int; it takes a function"),
    ],
)
def test_invalid_arguments_say_what_is_allowed(given: dict[str, Any], message: str) -> None:
    with watch(nn.Linear(1, 1)) as watcher, pytest.raises(ArgumentError, match=message):
        watcher.on_incident(**{"callback": print, **given})


class Notes:
    """A report that records its calls."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, BaseException, bool]] = []

    def failed(self, where: str, error: BaseException, first: bool) -> None:
        self.errors.append((where, error, first))

    def stopped(self, where: str, reason: StopTraining) -> None:
        raise AssertionError


def test_an_absent_server_is_retried_and_reported_once() -> None:
    answers: list[Incidents | ServerError] = [ServerError("away"), ServerError("away"), Incidents("run", 0, 0, 0, ())]
    report = Notes()

    def read() -> Incidents:
        answer = answers.pop(0)
        if isinstance(answer, ServerError):
            raise answer
        return answer

    callbacks = Callbacks(lambda: 1, read, Boundary(), report)
    callbacks.add(print, "found", "info")
    wait_for(lambda: not answers)
    callbacks.close()
    assert [str(error) for _, error, _ in report.errors] == ["away"]


def test_data_waiting_for_the_end_of_a_step_is_bounded() -> None:
    boundary = Boundary()
    done: list[int] = []
    assert all(boundary.put(lambda: done.append(1)) for _ in range(MAX_WAITING))
    assert not boundary.put(lambda: done.append(2))
    boundary.run()
    boundary.run()
    assert done == [1] * MAX_WAITING


def test_only_the_first_of_several_stops_leaves_a_step() -> None:
    boundary = Boundary()
    done: list[int] = []

    def stop() -> None:
        raise StopTraining

    boundary.put(stop)
    boundary.put(lambda: done.append(1))
    with pytest.raises(StopTraining):
        boundary.run()
    assert done == []
    boundary.run()
    assert done == [1]


def test_importing_hookcore_knows_stop_training_without_torch() -> None:
    code = "import sys, json, hookcore; print(json.dumps([hookcore.StopTraining.__name__, 'torch' in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["StopTraining", False]
