"""Rules of the user: what they see, what happens to their findings, and what happens if they fail."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookcore
from hookcore.errors import ArgumentError
from hookcore.findings import FindingsCache, follow, ownrules
from hookcore.findings.ownrules import FrameView, OwnRule, OwnRules, own_rule_of, own_rules, rules_in
from hookcore.records import Frame, Tap
from hookcore.store import Store
from hookcore_app.pages.views.incident import view_of
from hookcore_app.runs.alerts import Lookout
from hookcore_app.settings import ServerSettings
from tests.api_world import World, open_run
from tests.archive_world import kept_in
from tests.build import frame, stats_of_magnitudes
from tests.keep_world import INFO, batch, start, stop
from tests.serving import TOKEN, served
from tests.waiting import wait_for

LAYERS = (Tap("a", "output"), Tap("b", "output"), Tap("b", "param_grad", "weight"))


@pytest.fixture(autouse=True)
def no_registered_rules() -> Iterator[None]:
    before = list(ownrules.registered)
    ownrules.registered.clear()
    yield
    ownrules.registered[:] = before


def frame_of(step: int, values: list[float], **more: Any) -> Frame:
    taps = LAYERS[: len(values)]
    return frame(step, stats_of_magnitudes(values, "rms", "norm", "max"), taps if step == 0 else (), **more)


def play(rules: OwnRules, values: list[float], store: Store | None = None) -> Store:
    """Add a frame for each magnitude of the tensor b."""
    store = follow(Store()) if store is None else store
    for step, value in enumerate(values):
        store.append(rules.examine(frame_of(step, [1.0, value]), LAYERS))
    return store


def runner(*functions: Any) -> OwnRules:
    named = (own_rule_of(each, "mine" if each.__name__ == "<lambda>" else "") for each in functions)
    return OwnRules(named, "trainer")


def events(store: Store, name: str) -> list[str]:
    return [each.message for each in store.events() if each.name == name]


def large(given: FrameView) -> Iterator[hookcore.Problem]:
    for tensor in given.tensors:
        if tensor.rms > 10:
            yield hookcore.Problem(f"the output is {tensor.rms:g}", "error", tensor.module)


def test_a_finding_of_a_rule_is_an_incident_with_place_step_and_evidence() -> None:
    store = play(runner(large), [1.0] * 30 + [50.0] * 10)
    (incident,) = store.incidents()
    assert (incident.rule, incident.severity, incident.first_step, incident.recovered) == (
        "own-large",
        "error",
        30,
        None,
    )
    assert incident.culprit.tap == LAYERS[1]
    assert incident.sentence == "The output is 50, in b."
    assert incident.evidence is not None
    (finding,) = (each for each in FindingsCache(store).current() if each.rule == "own-large")
    assert finding.severity == "error"


def test_an_incident_is_over_when_the_rule_no_longer_finds_it() -> None:
    store = play(runner(large), [1.0] * 30 + [50.0] * 10 + [1.0] * 40)
    (incident,) = store.incidents()
    assert (incident.first_step, incident.recovered) == (30, 41)
    assert events(store, "own-large") == ["the output is 50", "no longer found"]


def test_a_short_gap_does_not_make_two_incidents() -> None:
    store = play(runner(large), [1.0] * 30 + [50.0, 1.0] * 10)
    assert [each.first_step for each in store.incidents()] == [30]
    assert len(events(store, "own-large")) == 1


def test_built_in_and_custom_rules_end_only_their_own_incidents() -> None:
    grows = [1.0 + 0.01 * (step % 3) for step in range(600)] + [1e6] * 600
    store = play(runner(lambda given: "always"), grows)
    found = {each.rule: each for each in store.incidents()}
    assert "exploding" in found
    assert all(each.recovered is None for each in found.values())


def test_a_frame_shows_names_stats_scalars_and_history() -> None:
    seen: list[Any] = []

    def look(given: FrameView) -> None:
        tensor = given.tensor("b")
        assert tensor is not None
        seen.append(
            (given.step, tensor.kind, tensor.rms, given.series("b", "rms"), given.logged("loss"), given.tensor("c"))
        )

    rules = runner(look)
    for step in range(70):
        rules.examine(frame_of(step, [1.0, float(step)], scalars={"loss": 0.5}), LAYERS)
    step, kind, rms, series, losses, missing = seen[-1]
    assert (step, kind, rms, missing) == (69, "output", 69.0, None)
    assert series == [float(each) for each in range(6, 70)]
    assert losses == [0.5] * 64


def test_an_invalid_query_is_an_error_that_helps() -> None:
    view: list[FrameView] = []
    runner(view.append).examine(frame_of(0, [1.0]), LAYERS)
    with pytest.raises(AttributeError, match="a tensor has no 'rns': its stats are count, nan"):
        _ = next(iter(view[0].tensors)).rns
    with pytest.raises(ArgumentError, match="'rns' is not a stat"):
        view[0].series("a", "rns")
    with pytest.raises(TypeError):
        view[0].scalars["x"] = 1.0  # type: ignore[index]


def test_the_cache_for_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownrules, "KEPT_BYTES", 1000)
    rules = runner(lambda given: None)
    for step in range(100):
        rules.examine(frame_of(step, [1.0, 1.0]), LAYERS)
    assert rules.nbytes == sum(each.stats.nbytes for each in rules.frames) <= 1000


def test_a_rule_that_raises_is_counted_and_switched_off_after_three_times_in_a_row() -> None:
    def broken(given: FrameView) -> None:
        raise KeyError("loss")

    store = play(runner(broken, large), [50.0] * 10)
    assert events(store, "own-rule-failed") == ["the rule broken raised KeyError: 'loss'"]
    assert events(store, "own-rule-off") == [
        "the rule broken was switched off: it raised 3 exceptions in a row, the last of which was KeyError: 'loss'"
    ]
    assert [each.rule for each in store.incidents()] == ["own-large"]
    assert '"faults": 3' in store.labels()["own rule broken"]


def test_a_rule_that_calls_exit_ends_neither_the_thread_nor_the_training() -> None:
    store = play(runner(lambda given: sys.exit("too large"), large), [50.0] * 4)
    assert events(store, "own-rule-failed") == ["the rule mine raised SystemExit: too large"]
    assert [each.rule for each in store.incidents()] == ["own-large"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException])
def test_a_rule_that_raises_anything_is_switched_off_like_others(kind: type[BaseException]) -> None:
    def odd(given: FrameView) -> None:
        raise kind("no")

    with ThreadPoolExecutor(1) as thread:  # as in a server and in a recorder
        store = thread.submit(play, runner(odd, large), [50.0] * 4).result()
    assert events(store, "own-rule-failed") == [f"the rule odd raised {kind.__name__}: no"]
    assert len(events(store, "own-rule-off")) == 1
    assert [each.rule for each in store.incidents()] == ["own-large"]


def test_ctrl_c_in_a_rule_still_interrupts_the_script() -> None:
    def slow(given: FrameView) -> None:
        raise KeyboardInterrupt  # as a signal does, in the main thread only

    with pytest.raises(KeyboardInterrupt):
        play(runner(slow), [1.0])


def test_a_rule_that_raises_occasionally_continues() -> None:
    def shaky(given: FrameView) -> None:
        if given.step % 2:
            raise ValueError("odd")

    store = play(runner(shaky), [1.0] * 200)
    assert events(store, "own-rule-off") == []
    assert len(events(store, "own-rule-failed")) == 3  # later ones are only counted
    assert '"faults": 96' in store.labels()["own rule shaky"]


@pytest.mark.parametrize("said", [3, [3], [hookcore.Problem("x")] * 21, {"a": 1}.items()])
def test_a_result_of_another_type_is_a_fault(said: Any) -> None:
    store = play(runner(lambda given: said), [1.0])
    assert len(store.events()) == 1
    assert store.events()[0].name == "own-rule-failed"


def test_a_rule_that_repeats_itself_endlessly_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownrules, "MAX_ONSETS", 3)
    store = play(runner(large), ([50.0] + [1.0] * 2) * 10)
    assert events(store, "own-large").count("the output is 50") == 3
    assert "found 3 problems" in events(store, "own-rule-off")[0]


def test_a_slow_rule_is_reported_once_with_its_time() -> None:
    now = iter(np.arange(0, 1000, 0.01).tolist())
    rules = OwnRules([own_rule_of(lambda given: None, "idle")], "server", lambda: next(now))
    store = play(rules, [1.0] * 70)
    assert events(store, "own-rule-slow") == ["the rule idle takes 10 ms per frame"]
    assert '"where": "server"' in store.labels()["own rule idle"]
    assert '"mean_ms": 10.0' in store.labels()["own rule idle"]


def test_a_problem_of_the_whole_training_names_no_layer() -> None:
    store = play(runner(lambda given: hookcore.Problem("the loss is flat")), [1.0] * 10)
    (incident,) = store.incidents()
    assert incident.sentence == "The loss is flat."


@pytest.mark.parametrize(
    ("module", "message", "sentence"),
    [
        ("", "in one step in ten, the data is odd", "In one step in ten, the data is odd."),
        ("(root)", "odd in b", "Odd in b."),
        ("b", "odd", "Odd, in b."),
        ("b", "odd in b.", "Odd in b."),
        ("b", "odd in b1, not in b.c", "Odd in b1, not in b.c, in b."),
    ],
)
def test_whether_a_problem_is_of_a_layer_does_not_depend_on_its_sentence(
    module: str, message: str, sentence: str
) -> None:
    store = play(runner(lambda given: hookcore.Problem(message, module=module)), [1.0] * 10)
    (incident,) = store.incidents()
    assert (incident.placed, incident.sentence) == (module == "b", sentence)
    assert view_of(incident, "rms", ended=False).is_of_loss is not incident.placed


def test_a_frame_of_scalars_does_not_end_incidents_of_tensors() -> None:
    rules, store = runner(large), follow(Store())
    for step in range(60):
        made = frame_of(step, [1.0, 50.0])
        if step % 3:
            made = replace(made, taps=made.taps[:0], stats=made.stats[:0], scalars={"loss": 1.0})
            made = replace(made, sketches=frame(0, made.stats).sketches)
        store.append(rules.examine(made, LAYERS))
    assert len(events(store, "own-large")) == 1


def test_tensors_without_a_name_are_left_out() -> None:
    seen: list[str] = []
    runner(lambda given: seen.extend(each.module for each in given.tensors)).examine(
        frame_of(1, [1.0, 2.0, 3.0]), LAYERS[:2]
    )
    assert seen == ["a", "b"]


@pytest.mark.parametrize("name", ["", "Big", "a b", "x" * 65])
def test_a_rule_needs_a_name_that_pages_can_show(name: str) -> None:
    with pytest.raises(ArgumentError, match="is not a valid rule name"):
        own_rule_of(lambda given: None, name)


def test_a_rule_may_have_any_name_but_that_of_an_event_about_rules() -> None:
    def carry_over(given: FrameView) -> str:
        return "error: at the start of a sentence is no severity"

    store = play(runner(carry_over), [1.0] * 8)
    (incident,) = store.incidents()
    assert (incident.rule, incident.severity) == ("own-carry-over", "warning")
    assert incident.message.startswith("error: at the start")
    with pytest.raises(ArgumentError, match="is the name of an event about rules: choose another one"):
        own_rule_of(carry_over, "rule-off")


def test_two_rules_with_one_name_are_an_error_but_rerunning_a_cell_is_not() -> None:
    assert isinstance(hookcore.rule(large), OwnRule)
    hookcore.rule(large)
    assert [each.name for each in own_rules([])] == ["large"]
    assert [each.name for each in own_rules([large])] == ["large"]

    @hookcore.rule(name="flat-loss")
    def anything(given: FrameView) -> None:
        """Find nothing."""

    assert anything.name == "flat-loss"
    with pytest.raises(ArgumentError, match="two rules have the name 'large'"):
        own_rules([own_rule_of(lambda given: None, "large")])


@pytest.mark.parametrize(
    "given", [{"message": ""}, {"message": "x", "severity": "bad"}, {"message": "x", "module": None}]
)
def test_a_wrong_problem_is_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="is invalid"):
        hookcore.Problem(**given)


def test_a_watch_runs_its_rules_and_the_registered_ones() -> None:
    hookcore.rule(large)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2))

    def always(given: FrameView) -> hookcore.Problem:
        return hookcore.Problem("it is so", "info")

    with hookcore.watch(model, server=None, budget=None, rules=[always, {"spike": False}]) as watcher:
        for step in range(10):
            model(torch.full((2, 2), 1e4 if step > 4 else 0.1)).sum().backward()
            watcher.step()
        watcher.flush()
        found = {each.rule: each for each in watcher.incidents()}
        assert found["own-large"].culprit.module == "0"
        assert found["own-large"].first_step == 5
        assert found["own-always"].severity == "info"
        assert watcher.store.rules == {"spike": False}
    with pytest.raises(ArgumentError, match="two rules have the name"):
        hookcore.watch(model, server=None, rules=[own_rule_of(always, "large")])


FILE = """
import hookcore

@hookcore.rule
def large(frame):
    return [hookcore.Problem("it is large", module=each.module) for each in frame.tensors if each.rms > 10]
"""


def test_a_file_must_have_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text(FILE)
    assert [each.name for each in rules_in(path)] == ["large"]
    assert own_rules([]) == ()  # a watch in this process doesn't run its rules
    path.write_text("1/0")
    with pytest.raises(ArgumentError, match="can't be read: ZeroDivisionError"):
        rules_in(path)
    path.write_text("")
    with pytest.raises(ArgumentError, match="contains no rule"):
        rules_in(path)
    with pytest.raises(ArgumentError, match="can't be read: FileNotFoundError"):
        rules_in(tmp_path / "none.py")


def test_thresholds_and_the_file_of_a_server_have_variables_of_their_own() -> None:
    both = {"HOOKCORE_RULES": "dead-relu=off", "HOOKCORE_RULES_FILE": "/a/rules.py"}
    assert ServerSettings.of({}, both).rules_file == "/a/rules.py"
    with pytest.raises(ArgumentError, match="use HOOKCORE_RULES_FILE for a server's own rules"):
        ServerSettings.of({}, {"HOOKCORE_RULES": "/a/rules.py"})


def test_a_server_runs_its_file_over_runs_and_saves_what_it_finds(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text(FILE.replace("> 10", ">= 0"))
    world = start(ServerSettings(keep=str(tmp_path / "runs"), rules_file=str(path)), 0)
    world.take(batch(INFO, range(3), first=True))
    told = world.client.get(f"/api/v1/incidents?run={INFO.id}").json()["incidents"]
    told = [each for each in told if each["rule"] == "own-large"]
    assert [each["first_step"] for each in told] == [0]
    (own,) = world.client.get(f"/api/v1/rules?run={INFO.id}").json()["own"]
    assert (own["name"], own["where"], own["off"], own["faults"]) == ("large", "server", "", 0)
    page = world.client.get(f"/runs/{INFO.id}/capture/rules").text
    assert 'id="own-large"' in page
    for address in ("", "/events", f"/incident?id={told[0]['id']}"):
        assert world.client.get(f"/runs/{INFO.id}{address}").status_code == 200
    assert world.client.get(f"/api/v1/report?run={INFO.id}").status_code == 200
    seen = world.client.post("/api/v1/acknowledgements", json={"run": INFO.id, "key": told[0]["key"]})
    assert seen.status_code == 200
    muted = world.client.post("/api/v1/mutes", json={"run": INFO.id, "rule": "own-large"})
    assert muted.json()["mutes"][0]["incidents"] == 1
    stop(world)
    assert kept_in(tmp_path / "runs")

    again = start(ServerSettings(keep=str(tmp_path / "runs")), 1)  # without the file
    saved = again.client.get(f"/api/v1/incidents?run={INFO.id}").json()["incidents"]
    assert (told[0]["id"], True) in [(each["id"], each["muted"]) for each in saved]
    stop(again)


def test_findings_of_custom_rules_are_sent() -> None:
    world = World()
    run = open_run(world.runs, "run-1")
    play(runner(large), [50.0] * 5, run.store)
    assert [each.key for each in Lookout(world.runs).news() if each.key[0] == "run-1"] == [("run-1", "own-large-0-1")]


def test_a_fault_in_hookcore_itself_loses_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: OwnRules, given: Frame, taps: Any) -> Frame:
        raise RuntimeError("oops")

    monkeypatch.setattr(OwnRules, "examine", fail)
    model = nn.Linear(2, 2)
    with hookcore.watch(model, server=None, rules=large) as watcher:
        model(torch.ones(1, 2)).sum().backward()
        watcher.step()
        watcher.flush()
        assert watcher.store.steps().count == 1
        assert "oops" in str(watcher.errors)


def test_findings_of_rules_in_the_trainer_reach_a_remote_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    model = nn.Sequential(nn.Linear(2, 2))
    with served() as server, hookcore.Client(server.url, TOKEN) as client:
        with hookcore.watch(model, server=server.url, budget=None, rules=large) as watcher:
            for step in range(10):
                model(torch.full((2, 2), 1e4 if step > 4 else 0.1)).sum().backward()
                watcher.step()
            watcher.flush()
            wait_for(lambda: len(client.incidents(rule="own-large")) > 0, "the incident reaches the server")
        (incident,) = client.incidents(rule="own-large")
        assert (incident.culprit.module, incident.first_step, incident.severity) == ("0", 5, "error")
        (own,) = client.rules().own
        assert (own.name, own.where) == ("large", "trainer")
