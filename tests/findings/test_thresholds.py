"""Thresholds of rules: one table of them, changed for each run, in effect from then on, and saved with the run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from torch import nn

import hookcore
from hookcore.config import Settings
from hookcore.errors import ArgumentError
from hookcore.findings import (
    RULES,
    SENTENCES,
    THRESHOLDS,
    RuleName,
    changed,
    changes_in,
    chosen_in,
    findings_of,
    follow,
    read_choices,
    started_with,
)
from hookcore.records import Tap
from hookcore.records.wire import Batch, EndItem
from hookcore.store import Store
from hookcore_app.runs.shelf import PAGE_FILE
from hookcore_app.settings import ServerSettings
from tests.api_world import World, open_run
from tests.archive_world import TAPS, keep, kept_in
from tests.build import append, frame, stats_of_magnitudes
from tests.keep_world import INFO, batch, start, stop
from tests.serving import TOKEN, Served, served
from tests.settings_tables import names_table, rules_table

NO_RELU = {"dead": False, "dead-channels": False}  # called dead_relu in SageMaker Debugger


def spiking(store: Store, factor: float, steps: int = 200, at: int = 150) -> Store:
    """Add steps of a noisy tensor with one spike."""
    noise = np.random.default_rng(0).normal(1, 0.01, steps)
    for step in range(steps):
        value = noise[step] * (factor if step == at else 1)
        append(store, step, [value], (Tap("a", "output"),) if step == 0 else ())
    return store


def rules_in(store: Store) -> set[str]:
    return {each.rule for each in findings_of(store)}


def test_every_threshold_is_in_its_range_and_has_help() -> None:
    assert set(THRESHOLDS) <= set(get_args(RuleName)) == set(RULES)
    for rule, thresholds in THRESHOLDS.items():
        for each in thresholds:
            assert RULES[rule].limits[each.name] == each.default == each.read(rule, each.default)  # type: ignore[index]
            assert each.help


def test_the_table_in_the_documentation_equals_the_code() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert rules_table() in (docs / "rules.md").read_text(), "regenerate it: python -m tests.settings_tables rules"
    assert names_table() in (docs / "coming-from.md").read_text(), "regenerate: python -m tests.settings_tables names"


def test_a_threshold_decides_whether_a_rule_fires() -> None:
    store = spiking(Store(), 20)
    assert "spike" in rules_in(store)
    store.choose(read_choices({"spike": {"factor": 50}}))
    assert "spike" not in rules_in(store)
    store.choose(read_choices({"spike": False}))
    assert "spike" not in rules_in(store)


@pytest.mark.parametrize("name", ["loss-spike", "loss_spike"])
def test_a_rule_has_aliases(name: str) -> None:
    assert read_choices({name: {"factor": 20}}) == {"loss-spike": {"factor": 20.0}}


def test_an_alias_of_several_rules_stands_for_all_that_have_the_threshold() -> None:
    off = read_choices({"weight_update_ratio": False})
    assert off == {"bf16-update-lost": False, "large-update": False, "stalled": False}
    assert read_choices({"weight_update_ratio": {"factor": 12}}) == {
        "large-update": {"factor": 12.0},
        "stalled": {"factor": 12.0},
    }
    assert read_choices({"exploding_tensor": False}) == {"exploding": False}  # NaN is always followed


def test_true_or_the_default_restores_the_defaults() -> None:
    before = read_choices({"spike": {"factor": 20, "rare": 3}, "dead": False})
    assert read_choices({"spike": {"factor": 5}}, before) == {"spike": {"rare": 3.0}, "dead": False}
    assert read_choices({"spike": True, "dead": None}, before) == {}
    assert read_choices({"dead": {"captured_steps": 16}}, before)["spike"] == before["spike"]
    assert "dead" not in read_choices({"dead": {"captured_steps": 16}}, before)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"loss_spik": False}, "Did you mean 'loss-spike'?"),
        ({"spike": {"facto": 2}}, "Did you mean 'factor'?"),
        ({"spike": {"factor": "high"}}, "factor='high' is invalid for the rule spike: it must be a number from 1.1 to"),
        ({"spike": {"factor": 0.5}}, "factor=0.5 is invalid"),
        ({"spike": {"factor": float("nan")}}, "factor=nan is invalid"),
        ({"spike": {"factor": True}}, "factor=True is invalid"),
        ({"spike": {"rare": 2.5}}, "it must be a whole number from 1 to 64"),
        ({"spike": 20}, "spike=20 is invalid: give thresholds, such as {'factor': 20}"),
        ({"nonfinite": False}, "can't be switched off: mute it"),
        ({"nonfinite": {"factor": 1}}, "it has none"),
    ],
)
def test_wrong_names_and_numbers_are_errors_that_help(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError) as error:
        read_choices(given)
    assert told in str(error.value)


@pytest.mark.parametrize("given", [3, "spike", [3], {"spike": 3}, {3: False}, nn.Linear])
def test_watch_refuses_anything_but_a_rule(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"rules=.* is invalid: rules must be thresholds by rule"):
        Settings.of({}, rules=given)


def test_the_variable_has_names_and_numbers() -> None:
    settings = Settings.of({"HOOKCORE_RULES": "loss-spike.factor=20, loss_spike.spreads=2,dead-relu=off"})
    assert read_choices(settings.rules.thresholds) == {"loss-spike": {"factor": 20.0, "spreads": 2.0}, **NO_RELU}
    assert settings.as_dict()["rules"]["dead-relu"] is False
    json.dumps(settings.as_dict())
    with pytest.raises(ArgumentError, match="HOOKCORE_RULES='spike' is invalid"):
        Settings.of({"HOOKCORE_RULES": "spike"})


def test_watch_hands_thresholds_to_the_rules_of_its_store() -> None:
    with hookcore.watch(nn.Linear(2, 2), server=None, rules={"loss-spike": {"factor": 20}}) as watcher:
        assert watcher.store.rules == {"loss-spike": {"factor": 20.0}}
    with pytest.raises(ArgumentError, match="is not a rule"):
        hookcore.watch(nn.Linear(2, 2), server=None, rules={"spikes-of-loss": False})


def test_a_change_applies_to_later_steps_and_keeps_earlier_findings() -> None:
    store = spiking(follow(Store(), [(230, read_choices({"spike": False}))]), 2000, steps=280)
    assert [each.rule for each in store.incidents()] == ["spike"]
    assert [(each.name, each.step, each.message) for each in store.events()] == [("rules-changed", 230, "spike off")]
    early = spiking(follow(Store(), started_with(read_choices({"spike": False}))), 2000, steps=280)
    assert early.incidents() == []


def test_changes_are_described_in_words() -> None:
    one, two = read_choices({"spike": {"factor": 20}, "dead": False}), read_choices({"stalled": False})
    store = spiking(follow(Store(), [(100, one), (200, two)]), 2000, steps=280)
    said = [each.message for each in store.events(name="rules-changed")]
    assert said == ["spike: factor 5 to 20; dead off", "spike: factor 20 to 5; dead on; stalled off"]


def test_wrong_choices_of_a_file_or_a_trainer_are_left_out_and_reported() -> None:
    chosen, why = chosen_in({"spike": {"factor": 20}, "new-rule": False})
    assert chosen == {"spike": {"factor": 20.0}}
    assert "'new-rule' is not a rule" in why
    for odd in (None, 3, "x", [], [3], [[1]], [["x", {}]]):
        assert changes_in(odd) == []
        assert chosen_in(odd)[0] == {}


def test_the_changes_of_a_run_are_bounded() -> None:
    changes: list[Any] = []
    for step in range(250):
        changes = changed(changes, step, {})
    assert (len(changes), changes[0][0], changes[-1][0]) == (200, 0, 249)
    assert changed([(1, {}), (5, {})], 5, {"dead": False}) == [(1, {}), (5, {"dead": False})]


@pytest.fixture
def world() -> World:
    return World()


def change(world: World, rules: Any, status: int = 200) -> Any:
    answer = world.client.post("/api/v1/rules", json={"run": "one", "rules": rules})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_rest_has_the_table_and_changes_it(world: World) -> None:
    table = {each["name"]: each for each in world.json("rules", run="one")["rules"]}
    assert list(table) == list(RULES)
    assert (table["nonfinite"]["may_be_off"], table["nonfinite"]["thresholds"]) == (False, [])
    said = {each["name"]: each for each in change(world, {"loss_spike": {"factor": 20}, "dead": False})["rules"]}
    assert next(each for each in said["loss-spike"]["thresholds"] if each["name"] == "factor")["value"] == 20
    assert not said["dead"]["on"]
    assert world.run.store.rules == {"loss-spike": {"factor": 20.0}, "dead": False}
    limits = {each["name"]: each["limits"] for each in world.json("findings", run="one")["rules"]}
    assert limits["loss-spike"]["factor"] == 20
    assert [each["message"] for each in world.json("events", run="one", name="rules-changed")["events"]] == [
        "loss-spike: factor 5 to 20; dead off"
    ]
    assert "Did you mean" in change(world, {"spikes": False}, 400)["error"]
    change(world, {"loss-spike": {"factor": "20"}}, 422)
    assert world.run.store.rules["loss-spike"] == {"factor": 20.0}


def test_the_pages_show_the_table(world: World) -> None:
    change(world, {"dead": False, "spike": {"factor": 21}})
    page = world.client.get("/runs/one/capture/rules").text
    assert 'id="spike-factor" name="factor" type="number" step="any" min="1.1"' in page
    assert 'value="21"' in page
    assert "every value" not in page
    assert "No data: it needs a probe with hookcore.probes.dead_channels." in page
    assert "times its usual value" in world.client.get("/help").text


def test_the_sentence_of_a_rule_has_each_of_its_thresholds_once() -> None:
    assert SENTENCES.keys() == THRESHOLDS.keys()
    for rule, thresholds in THRESHOLDS.items():
        named = re.findall(r"\{(\w+)\}", SENTENCES[rule])
        assert sorted(named) == sorted(each.name for each in thresholds), rule


def test_a_rule_is_tried_with_other_numbers_without_a_change(world: World) -> None:
    run = open_run(world.runs, "jump")
    for step in range(120):
        new = (Tap("", "output"),) if not step else ()
        append(run.store, step, [1.0], new, {"loss": 1.0 + step % 7 / 100 + 1.5 * (step == 100)})

    def tried(query: str) -> str:
        text = world.client.get(f"/runs/jump/capture/rules?part=preview&{query}").text
        return " ".join(re.sub(r"<[^>]*>", " ", text).split())

    nothing = "This would find nothing in this run. Looked at the newest part of the run, steps 0 to 119."
    assert nothing in tried("rule=loss-spike&factor=4")
    assert "factor=1.0 is invalid for the rule spike" in tried("rule=spike&factor=1")
    assert "could not convert" in tried("rule=spike&factor=x")
    assert "This would find 1 problem in this run; with the present numbers, none." in tried("rule=loss-spike&factor=2")
    assert "loss jumped to 2.52 at" in tried("rule=loss-spike&factor=2")
    assert run.store.rules == {}
    page = world.client.get("/runs/jump/capture/rules?rule=loss-spike&factor=2").text
    assert 0 < page.index('id="rule-loss-spike"') < page.index("This would find 1 problem"), "also without a script"


def test_a_saved_run_is_tried_from_its_first_step_on(tmp_path: Path) -> None:
    sink, _ = keep(tmp_path, INFO)
    for step in range(1500):
        logged = {"loss": 1.0 + step % 7 / 100 + 1.5 * (step == 100)}
        new = (Tap("", "output"),) if not step else ()
        sink.send(frame(step, stats_of_magnitudes([1.0]), new, scalars=logged))
    sink.close()
    world = start(ServerSettings(keep=str(tmp_path)), 1)
    page = world.client.get(f"/runs/{INFO.id}/capture/rules?part=preview&rule=loss-spike&factor=2").text
    assert "This would find 1 problem in this run; with the present numbers, none." in page
    assert "Looked at the whole run, steps 0 to 1,499." in page
    stop(world)


def test_rules_for_later_runs_apply_to_runs_that_begin_and_a_broken_file_is_harmless(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    before = open_run(world.runs, "before")
    given = {"run": "before", "later": True, "rules": {"loss_spike": {"factor": 20}, "dead": False, "vanishing": False}}
    answer = world.client.post("/api/v1/rules", json=given)
    assert answer.json()["later"] == {"dead": False, "loss-spike": {"factor": 20.0}, "vanishing": False}
    assert before.rules == {}
    assert "later" in world.client.get("/runs/before/capture/rules").text
    run = open_run(world.runs, "after", settings={"rules": {"dead": True, "spike": {"factor": 9}}})
    assert run.rules == {"loss-spike": {"factor": 20.0}, "vanishing": False, "spike": {"factor": 9.0}}
    assert run.store.rules == run.rules
    event = run.store.events()[-1]
    assert event.message == "this server begins runs with other thresholds: loss-spike: factor 5 to 20; vanishing off"
    world.client.post(
        "/api/v1/rules", json={"run": "before", "later": True, "rules": {"dead": None, "vanishing": True}}
    )
    stop(world)
    world = start(settings, 0)
    assert world.runs.later_rules == {"loss-spike": {"factor": 20.0}}
    stop(world)
    for broken in ("{", '["loss-spike"]', '{"loss-spike": "{", "x": "3", "dead": 3}'):
        (tmp_path / "rules.json").write_text(broken)
        world = start(settings, 0)
        assert open_run(world.runs, "one").rules == {}
        stop(world)


def test_a_run_that_reports_unknown_rules_is_accepted_with_a_note() -> None:
    world = World()
    run = open_run(world.runs, "odd", settings={"rules": {"spike": {"factor": 20}, "of-tomorrow": False}})
    event = run.store.events()[-1]
    assert (event.name, event.severity) == ("rules-ignored", "warning")
    assert run.store.rules == {"spike": {"factor": 20.0}}


def test_changes_survive_a_restart_with_their_step(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    world.take(batch(INFO, range(3), first=True))
    answer = world.client.post("/api/v1/rules", json={"run": INFO.id, "rules": {"dead-relu": False}})
    assert answer.status_code == 200
    world.take(Batch(run=INFO, taps_from=len(TAPS), items=(EndItem(3, 2, None),)))
    stop(world)
    assert json.loads((kept_in(tmp_path) / PAGE_FILE).read_text())["rules"] == [[2, NO_RELU]]
    world = start(settings, 1)
    table = world.client.get(f"/api/v1/rules?run={INFO.id}").json()["rules"]
    assert [each["name"] for each in table if not each["on"]] == list(NO_RELU)
    run = world.runs.get(INFO.id)
    assert run is not None
    assert (run.rules, run.store.rules) == (NO_RELU, NO_RELU)
    stop(world)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as found:
        yield found


def test_the_client_changes_thresholds(server: Served) -> None:
    open_run(server.runs, "run-1")
    with hookcore.Client(server.url, TOKEN) as client:
        found = {each.name: each for each in client.change_rules({"spike": {"factor": 20}})}
        assert next(each.value for each in found["spike"].thresholds if each.name == "factor") == 20
        assert [each.name for each in client.rules()] == list(RULES)
        client.change_rules({"spike": True})
        assert {each.name: each for each in client.rules()}["spike"].thresholds[0].value == 5
