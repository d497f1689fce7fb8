"""After the first error of a run, its trainer is asked to save a step, which says why it was saved."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

import hookcore
from hookcore.capsules import Replay, read_about, record, replay
from hookcore.capsules import keeper as keeper_module
from hookcore.delivery.dashboard.capsules import folder_of, saved
from hookcore.reading import Mute
from hookcore.records import Command, Event, Kind, Occasion, Tap, wire
from hookcore.store.incidents import FirstError, Incident, Link
from hookcore_app.pages.views.incident import capsule_of
from hookcore_app.runs.alerts import Explainer
from tests.build import frame, make_info, stats_of
from tests.harness import digest, random_state, seed_all
from tests.inside import class_of, delivery_of, recorder_of, run_id_of
from tests.serving import TOKEN, World, make_batch, make_taps, make_world, served
from tests.waiting import wait_for

BAD, STEPS = 100, 150


class Grow(nn.Module):
    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor  # guilty


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Grow(), nn.Linear(8, 2))


def train(model: nn.Sequential, watcher: hookcore.Watcher | None, settle: bool = True) -> list[str]:
    """Train a model in which the outputs of a layer explode at a step."""
    optimizer, losses, grow = torch.optim.SGD(model.parameters(), lr=1e-30), list[str](), model[2]
    assert isinstance(grow, Grow)
    for step in range(STEPS):
        grow.factor = 1e7 if step >= BAD else 1.0
        optimizer.zero_grad()
        loss = model(torch.randn(16, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(digest(loss.detach()))
        if watcher is not None:
            watcher.log(loss=loss.detach())
            if settle:
                watcher.flush()  # the store knows each step before the next one
    return losses


def watch(model: nn.Module, **settings: Any) -> hookcore.Watcher:
    # An explosion makes the loss jump, too, which saves a step of its own.
    usual = {"server": None, "budget": None, "capsule": "error", "capsule_on": "nonfinite"}
    return hookcore.watch(model, **{**usual, **settings})


def events_of(watcher: hookcore.Watcher, *names: str) -> list[Event]:
    watcher.flush()
    return [each for each in watcher.store.events() if each.name in names]


def abouts_of(watcher: hookcore.Watcher) -> list[dict[str, Any]]:
    return [each.about for each in saved(folder_of(run_id_of(watcher)))]


def line_of(found: Replay) -> str:
    assert found.culprit is not None
    assert found.culprit.line is not None
    return found.culprit.line.code


def test_a_later_step_is_saved_after_an_explosion_and_says_so() -> None:
    seed_all()
    model = make_model()
    with watch(model) as watcher:
        train(model, watcher)
        (event,) = events_of(watcher, "capsule", "capsule-missed")
        incident = next(each for each in watcher.store.incidents() if each.rule == "exploding")
        (kept,) = saved(folder_of(run_id_of(watcher)))
        assert not watcher.errors
    assert (incident.severity, incident.first_step) == ("error", BAD)
    step = kept.about["step"]
    assert incident.found_step < step == event.step
    said = f"after the incident {incident.id} of step {BAD}"
    assert said in event.message
    assert kept.about["reason"] == f"{said}; this is step {step}, with the weights before the update"
    found = replay(kept.path)
    assert found.exact, found.differences
    assert found.above is not None
    assert incident.usual < found.above < incident.value
    assert line_of(found) == "return x * self.factor  # guilty"
    assert found.sentence.startswith(f"aten.mul.Tensor made the first too large value (above {found.above:.3g})")
    assert replay(kept.path, above=1e30).culprit is None


def test_nobody_is_said_to_have_requested_the_step_that_is_saved_after_an_incident() -> None:
    model = make_model()
    with watch(model, every=2) as watcher:
        train(model, watcher)
        (early,) = events_of(watcher, "out-of-turn")
        (kept,) = events_of(watcher, "capsule")
    assert early.step % 2 == 1
    why = re.search(rf": (after the incident \S+ of step {BAD})\. ", kept.message)
    assert why is not None
    because = f"because a step is saved {why[1]}"
    assert early.message == f"step {early.step} was captured outside the cadence, {because}"


def test_a_capsule_request_changes_nothing_in_the_training() -> None:
    def outcome(watched: bool) -> tuple[str, str, list[str]]:
        seed_all()
        model = make_model()
        watcher = watch(model) if watched else None
        losses = train(model, watcher)
        if watcher is not None:
            assert len(abouts_of(watcher)) == 1
            watcher.close()
        return digest(model.state_dict()), random_state(), losses

    assert outcome(watched=True) == outcome(watched=False)


@pytest.mark.parametrize("when", ["exception", "never"])
def test_the_capsule_setting_decides_whether_an_explosion_is_saved(when: Any) -> None:
    seed_all()
    model = make_model()
    with watch(model, capsule=when) as watcher:
        train(model, watcher)
        assert [each.severity for each in watcher.store.incidents() if each.rule == "exploding"] == ["error"]
        assert not events_of(watcher, "capsule", "capsule-missed")
        assert not abouts_of(watcher)


def step_of(model: nn.Module, watcher: hookcore.Watcher, command: Command | None = None) -> None:
    if command is not None:
        recorder_of(watcher).on_command(command)
    model(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def asked(number: int, step: int = 0, module: str = "") -> Command:
    return Command(number, "capsule", occasion=Occasion(f"exploding-{step}-0", step, module))


def test_a_restarted_server_cannot_request_the_same_step_again() -> None:
    model = nn.Linear(4, 4)
    with watch(model) as watcher:
        step_of(model, watcher)
        for number in range(4):  # after each restart, the server finds the same first error again
            step_of(model, watcher, asked(number))
        assert [each["step"] for each in abouts_of(watcher)] == [1]
        step_of(model, watcher, asked(4, step=5))  # from another server, which has forgotten the first one
        assert [each["step"] for each in abouts_of(watcher)] == [1, 5]


def test_a_run_that_saved_its_steps_saves_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "MAX_WRITTEN", 1)
    model = nn.Linear(4, 4)
    with watch(model) as watcher:
        step_of(model, watcher, asked(0))
        step_of(model, watcher, asked(1, step=1))
        (missed,) = events_of(watcher, "capsule-missed")
        assert len(abouts_of(watcher)) == 1
    assert "1 step of this run has already been saved" in missed.message
    assert "exploding-1-0" in missed.message


def test_no_batch_is_kept_alive_for_an_incident() -> None:
    model = nn.Linear(4, 4)
    with watch(model, every=2) as watcher:
        batches = list[weakref.ref[Tensor]]()
        for number in range(6):
            batch = torch.ones(2, 4) + number
            batches.append(weakref.ref(batch))
            recorder_of(watcher).on_command(asked(number, step=number))
            model(batch).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            del batch
            gc.collect()
            assert not [each for each in batches if each() is not None]


@pytest.mark.parametrize("named", ["first", "second", "third"])
def test_the_model_of_the_culprit_is_saved_and_no_other(named: str) -> None:
    models = {"first": nn.Linear(4, 4), "second": nn.Linear(4, 3), "third": nn.Linear(4, 2)}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}

    def play(rounds: int) -> None:
        for _ in range(rounds):  # "third" is watched, but never called again
            for name in ("second", "first"):
                models[name](torch.ones(2, 4)).sum().backward()
                optimizers[name].step()

    with watch(nn.ModuleDict(models)) as watcher:
        models["third"](torch.ones(2, 4))
        play(2)
        recorder_of(watcher).on_command(asked(0, module=named))
        play(keeper_module.MAX_TURNS)
        missed = events_of(watcher, "capsule-missed")
        found = saved(folder_of(run_id_of(watcher)))
    assert len(found) == (named != "third")
    assert len(missed) == (named == "third")
    for each in found:
        step = class_of("read_step", "capsules")(each.path)
        assert step["model"](*step["args"]).shape == (2, models[named].out_features)


# The server


@pytest.fixture
def world() -> World:
    return make_world(lost_after_s=10_000.0)


def batch(steps: list[int], bad: int, first: bool = True, **others: Any) -> wire.Batch:
    """Return a batch of these steps. In the step `bad`, a rule of the user finds an error in a layer."""

    def item(step: int) -> Any:
        said = Event(step, 1.0, "own-large", "it is large", "error", "layer.1", about={"problem": "error"})
        stats = stats_of(2, 1.0, count=8, nan=0, inf=0)
        return wire.frame_item(step, frame(step, stats, events=(said,) if step == bad else ()))

    found = make_batch(make_info(), [], first=first)
    return replace(found, items=tuple(map(item, steps)), **others)


def occasions_in(answer: wire.Receipt) -> list[Occasion | None]:
    return [each.occasion for each in answer.commands if each.name == "capsule"]


def test_the_server_asks_once_after_the_first_error(world: World) -> None:
    assert not occasions_in(world.take(batch([0, 1, 2], bad=9)))
    answer = world.take(batch([3, 4, 5], bad=4, first=False))
    assert occasions_in(answer) == [Occasion("own-large-4-1", 4, make_taps(2)[1].module)]
    done = answer.commands[-1].number
    assert not occasions_in(world.take(batch([6, 7, 8], bad=9, first=False, commands_done=done)))


def test_a_muted_incident_requests_no_capsule(world: World) -> None:
    world.take(batch([0, 1, 2], bad=9))
    run = world.runs.get("one")
    assert run is not None
    run.mute(Mute("own-large", "layer.1"))
    assert not occasions_in(world.take(batch([3, 4, 5], bad=4, first=False)))
    assert [each.severity for each in run.store.incidents()] == ["error"]


def test_an_ended_run_gets_no_requests(world: World) -> None:
    given = batch([0, 1, 2], bad=1)
    ended = replace(given, items=(*given.items, wire.EndItem(3, 2)))
    assert not world.take(ended).commands
    run = world.runs.get("one")
    assert run is not None
    assert [each.severity for each in run.store.incidents()] == ["error"]


class Kept:
    """A store with given incidents."""

    def __init__(self, *incidents: Incident) -> None:
        self.found, self.incidents_version = list(incidents), len(incidents)

    def incident_heads(self) -> list[Incident]:
        return self.found


def incident(kind: Kind = "output", rule: str = "exploding", **others: Any) -> Incident:
    link = Link(3, Tap("layers.1", kind), 40)
    about = {"value": 1e6, "usual": 1.0, "found_step": 60, "recovered": None, "message": "it grew", **others}
    return Incident(rule, link, first_step=40, last_step=60, steps=20, **about)


def test_the_first_error_is_the_earliest_found() -> None:
    early, late = incident(rule="dead", found_step=50), incident(rule="stalled")
    occasion = FirstError().news(Kept(late, early))
    assert occasion is not None
    assert occasion.incident == "dead-40-3"
    both = FirstError()
    assert both.news(Kept()) is None
    occasion = both.news(Kept(late, early), lambda each: each.rule == "dead")
    assert occasion is not None
    assert occasion.incident == "stalled-40-3"
    assert both.news(Kept(late, early, incident(rule="third"))) is None


@pytest.mark.parametrize(
    ("error", "other", "named"),
    [
        (incident(rule="loss"), incident(level="warning"), "exploding-40-3"),
        (incident(rule="loss"), incident(level="warning", recovered=70), "loss-40-3"),
        (incident(rule="loss"), incident(level="info"), "loss-40-3"),
        (incident(rule="loss"), incident(rule="spike", level="warning"), "loss-40-3"),
        (incident(rule="nonfinite", message=""), incident(level="warning"), None),  # the trainer saved it
        (incident(rule="nonfinite", message="", skipped=True), incident(level="warning"), "nonfinite-60"),
        (incident(rule="loss", level="warning"), incident(level="warning"), None),
    ],
)
def test_a_loss_that_diverges_is_explained_by_a_tensor_that_grows(
    error: Incident, other: Incident, named: str | None
) -> None:
    occasion = FirstError().news(Kept(error, other))
    assert (None if occasion is None else occasion.incident) == named


@pytest.mark.parametrize(
    ("given", "above", "phase"),
    [
        (incident(), 1e3, "forward"),
        (incident("param_grad"), 1e3, "backward"),
        (incident(usual=float("nan")), 5e5, "forward"),
        (incident("update"), None, ""),
        (incident(rule="no-gradient"), None, ""),
        (incident(usual=float("nan"), value=float("inf")), None, ""),
    ],
)
def test_the_threshold_is_between_the_usual_and_the_found_value(
    given: Incident, above: float | None, phase: str
) -> None:
    assert FirstError().news(Kept(given)) == Occasion(given.id, 40, "layers.1", pytest.approx(above), phase)  # type: ignore[arg-type]


# The replay


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def masked(x: Tensor) -> Tensor:
    scores = x.masked_fill(x > x.mean(), -1e9)
    weights = scores.softmax(-1)
    return weights * x * 1e6  # guilty


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * 1e9  # guilty


def steep(x: Tensor) -> Tensor:
    large = x * 1e3  # an activation may be larger than the gradients
    return Steep.apply(large) / 1e6  # type: ignore[no-any-return,no-untyped-call]


@pytest.mark.parametrize(
    ("function", "above", "phase"), [(masked, 1e3, "forward"), (steep, 1e-2, "backward")], ids=["forward", "backward"]
)
def test_a_threshold_counts_in_its_pass_and_masks_are_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, above: float, phase: Any
) -> None:
    seed_all()
    occasion = {"incident": "exploding-1-0", "step": 1, "module": "", "above": above, "phase": phase}
    record_module = import_module("hookcore.capsules.record")
    of_step = record_module.about
    monkeypatch.setattr(record_module, "about", lambda *given: {**of_step(*given), "occasion": occasion})
    model = Applied(function)
    with record(model, tmp_path / "step.capsule", "asked") as recording:
        (model(torch.randn(3, 4)) * 1e-4).sum().backward()
        assert recording.write(), recording.failure
    assert read_about(tmp_path / "step.capsule")["occasion"] == occasion
    found = replay(tmp_path / "step.capsule")
    assert line_of(found).endswith("# guilty")
    assert found.culprit is not None
    assert (found.culprit.phase, found.above) == (phase, above)


# The pages


def test_an_incident_shows_the_step_requested_after_it() -> None:
    seed_all()
    model = make_model()
    with watch(model) as watcher:
        train(model, watcher)
        found, run = watcher.store.incidents(), delivery_of(watcher).run
    world = make_world()
    kept = world.runs.open(run)
    assert kept is not None
    capsules = Explainer().capsules_of(kept)
    shown = {each.rule: capsule_of(each, capsules) for each in found}
    assert shown["exploding"] is capsules[0]
    assert capsules[0].incident == next(each.id for each in found if each.rule == "exploding")


@pytest.mark.slow
def test_a_server_asks_a_real_trainer_and_its_page_shows_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    seed_all()
    model = make_model()
    with served() as server:
        with watch(model, server=server.url, capsule="auto") as watcher:
            client = watcher.client()
            train(model, watcher)
            kept = wait_for(lambda: trained_once(model, watcher, client), "a step is saved")
            assert not watcher.errors
        (found,) = (each for each in client.incidents() if each.id == kept.incident)
        assert (found.rule, found.first_step) == ("exploding", BAD)
        assert kept.step > found.found_step
        page = server.get(f"/runs/{run_id_of(watcher)}/problems/incident?id={found.id}").decode()
    assert f"after the incident {found.id} of step {BAD}; this is step {kept.step}" in page
    assert f'data-explain="{kept.id}"' in page
    assert "A replay looks for" in page


def trained_once(model: nn.Sequential, watcher: hookcore.Watcher, client: hookcore.Client) -> Any:
    model(torch.randn(16, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    watcher.flush()
    return next(iter(client.capsules()), None)
