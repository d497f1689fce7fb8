"""Incidents, compared with brute force: the culprit, the chain, and the evidence stay as they were at the onset."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hookcore
from hookcore.delivery.archive import load_into, read_archive
from hookcore.records import STAT_COLUMN, Event, Tap
from hookcore.store import Store
from hookcore.store.incidents import KEPT_FIRST, KEPT_NEWEST, Incident, Link
from tests.api_world import World, fill, open_run
from tests.archive_world import Trainer, keep, kept_in
from tests.build import append, frame, stats_of_magnitudes
from tests.build import store_of as filled
from tests.nonfinite_world import Part, part, quick, steps, store_of

Known = tuple[int, int, int, bool, set[int], set[int]]


def incidents_of(told: dict[int, list[Part]]) -> list[Known]:
    """Return the incidents by brute force: first and last step, steps, whether it ended, first taps, and all taps."""
    found: list[Known] = []
    for step, parts in told.items():
        bad = {tap for held in parts for tap, each in enumerate(held) if each}
        fine = {tap for held in parts for tap, each in enumerate(held) if each == 0}
        goes_on = bool(found) and not found[-1][3]
        if bad and goes_on:
            begin, _, number, _, first, taps = found[-1]
            found[-1] = (begin, step, number + 1, False, first, taps | bad)
        elif bad:
            found.append((step, step, 1, False, bad, bad))
        elif goes_on and found[-1][5] & fine:
            found[-1] = (*found[-1][:3], True, *found[-1][4:])
    return found


def links_of(incident: Incident) -> tuple[Link, ...]:
    """Return all affected tensors; a culprit that isn't known is none of them."""
    return (incident.culprit, *incident.chain) if incident.culprit_known else incident.chain


def as_told(incident: Incident) -> Known:
    links = links_of(incident)
    first = {link.number for link in links if link.first_step == incident.first_step}
    taps = {link.number for link in links}
    return incident.first_step, incident.last_step, incident.steps, incident.is_over, first, taps


def onsets_of(told: dict[int, list[Part]], first: int, last: int) -> dict[int, int]:
    """Return the first step of each tap that was non-finite between two steps."""
    onsets: dict[int, int] = {}
    for step, parts in told.items():
        for tap, each in ((tap, each) for held in parts for tap, each in enumerate(held)):
            if first <= step <= last and each:
                onsets.setdefault(tap, step)
    return onsets


@quick
@given(run=steps)
def test_incidents_are_exact_and_only_middle_ones_are_dropped(run: list[tuple[int, list[Part]]]) -> None:
    store, told = store_of(run)
    expected = incidents_of(told)
    found = [as_told(each) for each in store.incidents()]
    if len(expected) <= KEPT_FIRST + KEPT_NEWEST:
        assert found == expected
    else:
        assert found[:KEPT_FIRST] == expected[:KEPT_FIRST]
        assert found[KEPT_FIRST:] == expected[KEPT_FIRST - len(found) :]
    assert len(found) + store.usage().merged["incidents"] == len(expected)


@quick
@given(run=steps)
def test_the_culprit_is_first_and_every_follower_has_its_own_first_step(run: list[tuple[int, list[Part]]]) -> None:
    store, told = store_of(run)
    for each in store.incidents():
        onsets = onsets_of(told, each.first_step, each.last_step)
        links = {link.number: link.first_step for link in links_of(each)}
        assert links == onsets
        assert list(links) == sorted(onsets, key=lambda tap: (onsets[tap], tap))  # outputs, in the order of execution
        assert each.culprit_known == (each.earliest_step == each.first_step)
        first = next(iter(links))
        held = [parts[first] for parts in told[each.first_step] if parts[first]]
        assert math.isnan(each.value) == any(number > 0 for number in held)


@quick
@given(run=steps, often=st.lists(st.booleans(), min_size=60, max_size=60))
def test_the_onset_of_an_incident_does_not_depend_on_the_time_of_the_query(
    run: list[tuple[int, list[Part]]], often: list[bool]
) -> None:
    """The same holds for its end: an incident that is over never changes, except that its evidence may grow."""
    store, step, known = Store(2**20), 0, dict[str, Incident]()
    for (gap, parts), asks in zip(run, often, strict=False):
        step += gap
        for held in parts:
            store.append(part(step, held, new=step == gap and held is parts[0] and not len(store.taps().taps)))
        if not asks:
            continue
        for each in store.incidents():
            before = known.get(each.id)
            if before is not None and each.first_step < step:
                assert (each.culprit, each.previous) == (before.culprit, before.previous) or before.last_step == step
                assert each.chain[: len(before.chain)] == before.chain or not before.is_over
            known[each.id] = each
    again, _ = store_of(run)
    assert list(map(as_told, store.incidents())) == list(map(as_told, again.incidents()))


def test_the_demo_still_names_its_layer_after_its_steps_were_merged() -> None:
    store = filled_chain(3000, bad=100)
    (incident,) = store.incidents()
    assert incident.id == "nonfinite-100"
    assert (incident.culprit.tap.module, incident.culprit_last, incident.is_over) == ("standardize", 100, False)
    assert [link.tap.module for link in incident.chain] == ["stem", "blocks.0", "head"]
    assert incident.modules == incident.taps == 3
    assert incident.sentence == (
        "NaN first appeared in the activation of standardize, at step 100. "
        "It was finite again after step 100, but 3 other modules followed."
    )
    evidence = incident.evidence
    assert evidence is not None
    assert store.usage().merged["stats"] > 500  # the store no longer has these steps itself
    assert evidence.steps.tolist() == list(range(50, 151))
    assert evidence.taps[0].module == "standardize"
    assert {tap.module for tap in evidence.taps} == {"standardize", "stem", "blocks.0"}
    nan = evidence.stats[STAT_COLUMN["nan"]]
    assert nan[:, 0].tolist() == [float(step == 100) for step in evidence.steps]
    assert nan[:, 1].tolist() == [float(step >= 100) for step in evidence.steps]
    assert np.isfinite(evidence.stats[STAT_COLUMN["rms"], :50]).all()
    (loss,) = [each for each in evidence.logged if each.name == "loss"]
    assert loss.steps.tolist() == list(range(50, 151))
    assert loss.values[0] == 50.0
    assert np.isnan(loss.values[50:]).all()


CHAIN = tuple(Tap(name, "output") for name in ("standardize", "stem", "blocks.0", "head"))
FINE = tuple(Tap(f"fine.{number}", "output") for number in range(60))  # make the steps wide, so that they are merged


def filled_chain(last: int, bad: int) -> Store:
    """Return a store that merges: the first layer is NaN in one step, the others of its chain from then on."""
    store = Store(2**23)
    for step in (*range(min(last, 1000)), *range(1000, last, 8)):  # captured later, as under a budget
        spoiled = math.nan if step >= bad else 1.0
        rms = [math.nan if step == bad else 1.0, *([spoiled] * 3), *([1.0] * len(FINE))]
        append(store, step, rms, CHAIN + FINE if step == 0 else (), {"loss": float(step) * spoiled})
    return store


def test_a_loss_that_is_the_first_to_be_non_finite_is_named() -> None:
    store = Store(2**20)
    taps = (Tap("head", "output"), Tap("head", "output_grad"), Tap("stem", "output_grad"))
    append(store, 0, [1.0, 1.0, 1.0], taps, {"loss": 1.0})
    append(store, 1, [1.0, math.nan, math.nan], scalars={"loss": math.inf})
    (incident,) = store.incidents()
    assert incident.culprit.tap == Tap("stem", "output_grad")  # the later number comes first in the backward pass
    assert incident.loss == "loss"
    assert "No captured activation was non-finite, but loss was" in incident.sentence


def test_a_container_is_not_named_if_its_child_is_the_culprit() -> None:
    store = Store(2**20)
    taps = (
        Tap("block.fc", "output"),
        Tap("block", "output"),
        Tap("block.fc", "output_grad"),
        Tap("block", "output_grad"),
    )
    append(store, 0, [1.0] * 4, taps)
    append(store, 1, [1.0, 1.0, math.nan, math.nan])
    append(store, 2, [1.0] * 4)
    append(store, 3, [math.inf, math.inf, math.nan, math.nan])
    assert [(each.culprit.tap.module, each.value) for each in store.incidents()] == [
        ("block.fc", pytest.approx(math.nan, nan_ok=True)),
        ("block.fc", math.inf),
    ]


def test_a_later_part_of_the_first_step_can_name_an_earlier_tensor() -> None:
    store = Store(2**23)
    stats = stats_of_magnitudes([1.0, math.nan], "rms")
    store.append(frame(0, stats_of_magnitudes([1.0, 1.0], "rms"), CHAIN[:2]))
    store.append(frame(1, stats[1:], numbers=[1]))
    assert store.incidents()[0].culprit.number == 1
    store.append(frame(1, stats[1:], numbers=[0]))
    (incident,) = store.incidents()
    assert (incident.culprit.number, incident.steps, incident.first_step) == (0, 1, 1)
    assert incident.evidence is not None
    assert incident.evidence.numbers[0] == 0
    assert incident.evidence.steps.tolist() == [0, 1]


def test_steps_that_a_scaler_skipped_make_room_first() -> None:
    store = Store(2**20)
    for step in range(200):
        store.append(part(step, (-1 if step % 3 == 1 else 0, 0, 0, 0, 0), new=step == 0))
        if step % 3 == 1 and step != 100:
            store.add_event(Event(step, 0.0, "skipped-step", "skipped", "warning"))
    kept = {each.first_step: each.skipped for each in store.incidents()}
    assert kept[100] is False
    assert sum(not skipped for skipped in kept.values()) == 1


@pytest.mark.parametrize("memory", [2**20, 2**22, 2**24])
def test_a_tensor_that_repeatedly_becomes_non_finite_takes_bounded_memory(memory: int) -> None:
    store = Store(memory)
    for step in range(1000):
        store.append(part(step, (step % 2, 0, 0, 0, 0), new=step == 0))
        used = store.usage().parts["incidents"]
        assert used.nbytes <= used.limit
    found = store.incidents()
    assert [each.first_step for each in found][:3] == [1, 3, 5]
    assert KEPT_FIRST < len(found) <= KEPT_FIRST + KEPT_NEWEST + 1
    merged = store.usage().merged
    assert merged["incidents"] == 500 - len(found)
    assert (found[0].evidence is None) == (memory == 2**20)
    without = sum(each.evidence is None for each in found)
    assert 0 < without <= merged["evidence"]


def test_a_healthy_run_has_no_incident_and_takes_no_memory() -> None:
    store = filled(np.ones((100, 4)))
    assert store.incidents() == []
    assert store.usage().parts["incidents"].nbytes == 0
    assert store.incidents_version == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_saved_run_has_the_same_incidents(tmp_path: Path, seed: int) -> None:
    trainer, (sink, store) = Trainer(np.random.default_rng(seed)), keep(tmp_path)
    for step in range(80):
        for each in trainer.next_step(9 if step == 0 else 0):
            sink.send(each)
    sink.close()
    again = Store(2**26)
    load_into(again, read_archive(kept_in(tmp_path)))
    found = store.incidents()
    assert found
    assert list(map(repr, again.incidents())) == list(map(repr, found))


class Spoiled(nn.Module):
    """Divides by zero in one step, forward or backward."""

    def __init__(self, backward: bool) -> None:
        super().__init__()
        self.backward, self.spoils = backward, False

    def forward(self, batch: Tensor) -> Tensor:
        if not self.spoils:
            return batch
        if self.backward:
            zero = torch.zeros_like(batch) * batch
            return batch + torch.sqrt(zero)  # finite, but its gradient is 0 * inf
        return batch / torch.zeros_like(batch)


@pytest.mark.parametrize("backward", [False, True])
def test_a_real_training_names_the_layer_and_the_step(backward: bool) -> None:
    torch.manual_seed(0)
    spoiled = Spoiled(backward)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), spoiled, nn.Linear(8, 4), nn.LayerNorm(4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for step in range(40):
            spoiled.spoils = step == 25
            loss = model(torch.randn(6, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            watcher.log(loss=loss.detach())
            optimizer.step()
        watcher.flush()
        incident, loss = watcher.incidents()
        assert (loss.rule, loss.first_step) == ("loss", 25 + backward)
        detail = watcher.reader().incident(incident.id)
    assert incident.first_step == 25
    if backward:  # the first NaN is in the gradient of the module that feeds it
        assert (incident.culprit.module, incident.culprit.kind) == ("2", "output_grad")
    else:
        assert (incident.culprit.module, incident.culprit.kind) == ("3", "output")
    assert detail.evidence is not None
    assert detail.evidence.steps.tolist() == list(range(40))
    (logged,) = [each for each in detail.evidence.scalars if each.name == "loss"]
    assert np.isfinite(logged.values[:25]).all()
    assert np.isnan(logged.values[26:]).all()


def test_rest_answers_incidents_and_acknowledges_them_with_their_findings() -> None:
    world = World()
    fill(open_run(world.runs, "run-1"))
    with world.client as client:
        listed = client.get("/api/v1/incidents", params={"rule": "nonfinite"}).json()
        assert [(each["id"], each["culprit"]["label"], each["recovered"]) for each in listed["incidents"]] == [
            ("nonfinite-7", "layers.0 output", 8),
            ("nonfinite-9", "layers.1 output [past.1] call 2", 10),
        ]
        assert client.get("/api/v1/incidents", params={"from": 8, "to": 20, "rule": "nonfinite"}).json()["total"] == 1
        assert client.get("/api/v1/incidents", params={"rule": "none"}).json()["incidents"] == []
        detail = client.get("/api/v1/incidents/nonfinite-9").json()
        assert detail["value"] == "Infinity"
        assert detail["evidence"]["stats"]["inf"][9][0] == 1
        assert detail["evidence"]["steps"] == list(range(20))
        missing = client.get("/api/v1/incidents/nonfinite-8")
        assert missing.status_code == 404
        assert "did you mean 'nonfinite-9'" in missing.json()["error"]
        key = listed["incidents"][0]["key"]
        assert key in [each["key"] for each in client.get("/api/v1/findings").json()["findings"]]
        client.post("/api/v1/acknowledgements", json={"run": "run-1", "key": key, "acknowledged": True})
        seen = client.get("/api/v1/incidents", params={"rule": "nonfinite"}).json()["incidents"]
        assert [each["acknowledged"] for each in seen] == [True, False]


def test_a_sentence_keeps_the_name_that_a_user_gave_to_a_number() -> None:
    begun = filled_chain(120, bad=100).incidents()[0]
    beginnings = {"backward/loss": "backward/loss", "train_loss": "train_loss", "loss": "Loss"}
    for name, beginning in beginnings.items():
        assert replace(begun, message=f"{name} grew").sentence.startswith(f"{beginning} grew, in standardize.")
