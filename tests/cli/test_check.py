"""`hookcore check`: its output about a run, and its exit code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hookcore.findings import RULES
from hookcore.findings.ownrules import FrameView, OwnRule, OwnRules
from hookcore.reading.answers import Incidents, RunRules
from hookcore.records import Failure, Tap
from hookcore.records.vocabulary import OWN_RULE
from hookcore_app.cli import main
from hookcore_app.cli.asking import Checked
from tests import build
from tests.archive_world import ODD_NAME, keep, kept_in, save_layer
from tests.serving import TOKEN, served


def test_a_run_without_incidents_passes_and_says_what_was_examined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", save_layer(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "No incidents in the captured steps." in told
    assert "No problems found in the last 60 steps (60 captured)." in told


def test_notes_that_begin_no_incident_are_printed_with_what_they_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_layer(tmp_path, steps=300)  # its loss is the same in each step
    assert main(["check", path]) == 0
    told = capsys.readouterr().out
    assert "note: Loss doesn't fall: loss has not fallen since step 0: 1 at first, 1 last.\n" in told
    assert "No problems, but 1 note found" in told
    assert main(["check", path, "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 1


def test_an_incident_fails_at_its_severity_and_above(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_layer(tmp_path, bad=40, name="layers.0")
    assert main(["check", path]) == 1
    assert (
        "error: NaN or infinity: NaN first appeared in the activation of layers.0, at step 40."
        in capsys.readouterr().out
    )
    assert main(["check", path, "--fail-on", "warning"]) == 1
    assert main(["check", path, "--fail-on", "never"]) == 0


def test_json_output_includes_everything_that_rest_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", save_layer(tmp_path, bad=40), "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["fails"], told["newest_step"]) == (True, 59)
    assert [(each["id"], each["culprit"]["module"]) for each in told["incidents"]] == [("nonfinite-40", ODD_NAME)]


def test_junit_has_a_case_for_each_rule_and_survives_any_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", save_layer(tmp_path, bad=40), "--format", "junit"]) == 1
    suite = ElementTree.fromstring(capsys.readouterr().out)
    cases = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert set(cases) == {*RULES, "training"}
    assert [name for name, failure in cases.items() if failure is not None] == ["nonfinite"]
    assert (suite.get("tests"), suite.get("failures")) == (str(len(cases)), "1")
    assert "layers.<b>&" in (cases["nonfinite"].get("message") or "")  # type: ignore[union-attr]
    skipped = {case.get("name"): case.find("skipped") for case in suite.iter("testcase")}
    needs = skipped["dead-channels"]
    assert needs is not None
    assert needs.get("message") == "no data: it needs a probe with hookcore.probes.dead_channels"
    assert skipped["nonfinite"] is None
    assert suite.get("skipped") == str(sum(each is not None for each in skipped.values()))
    assert main(["check", save_layer(tmp_path / "again", bad=40), "--format", "json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["rules_without_data"]) == {
        name for name, each in skipped.items() if each is not None
    }


def test_a_crashed_training_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink, _ = keep(tmp_path)
    sink.send(build.frame(0, build.stats_of_magnitudes([1.0], "rms"), (Tap("layer", "output"),)))
    sink.fail(Failure("crashed", 0, "RuntimeError: out of memory"))
    sink.close()
    path = str(kept_in(tmp_path))
    assert main(["check", path]) == 1
    told = capsys.readouterr().out
    assert "error: The training crashed in step 0: RuntimeError: out of memory." in told
    assert "\nBesides the end of the training: " in told
    assert main(["check", path, "--format", "junit"]) == 1
    assert "out of memory" in capsys.readouterr().out


def test_a_run_without_steps_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", save_layer(tmp_path, steps=0)]) == 2
    assert "so it can't be judged" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none")]) == 2
    assert "is not a file, folder, or address" in capsys.readouterr().err


def test_a_server_answers_and_acknowledged_incidents_do_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    with served(lost_after_s=10_000.0) as server:
        run = build.open_run(server.runs, "one", started_s=1.0)
        for step in range(30):
            rms = [math.nan if step >= 20 else 1.0]
            build.append(run.store, step, rms, (Tap("layer", "output"),) if step == 0 else ())
        given = ["check", server.url, "--token", TOKEN, "--run", "one"]
        assert main(given) == 1
        assert "still running, up to step 29" in capsys.readouterr().out
        (incident,) = run.store.incidents()
        run.acknowledge(incident.key, True)
        assert main(given) == 0
        assert "(acknowledged)" in capsys.readouterr().out


def test_a_run_is_named_by_its_name_where_it_is_unique(capsys: pytest.CaptureFixture[str]) -> None:
    with served(lost_after_s=10_000.0) as server:
        for run, name in (("one", "alone"), ("two", "both"), ("three", "both")):
            found = build.open_run(server.runs, run, name=name)
            build.append(found.store, 0, [1.0], (Tap("layer", "output"),))
        for given, code in (("alone", 0), ("one", 0), ("both", 2), ("two", 0)):
            assert main(["check", server.url, "--token", TOKEN, "--run", given]) == code
        assert "2 runs have the name 'both': give the id of one" in capsys.readouterr().err


def test_dropped_incidents_are_counted_with_the_right_noun() -> None:
    found = [Incidents("run", 0, dropped, 1, ()) for dropped in (1, 1200)]
    rules = RunRules("run", (), ())
    told = [Checked("run", "", "ended", None, 9, "", "", each, (), (), rules).dropped_words for each in found]
    assert [words.partition(" dropped (1 of them")[0] for words in told] == ["1 more incident", "1,200 more incidents"]


def save_with_broken_rule(folder: Path) -> str:
    def broken(frame: FrameView) -> None:
        raise KeyError("no-such-scalar")

    sink, _ = keep(folder)
    rules = OwnRules([OwnRule("broken", broken), OwnRule("calm", lambda frame: None)], "trainer")
    taps = (Tap("layer", "output"),)
    for step in range(40):
        rms = [math.nan if step >= 20 else 1.0]
        made = build.frame(step, build.stats_of_magnitudes(rms, "rms"), taps if step == 0 else ())
        sink.send(rules.examine(made, taps))
    sink.close()
    return str(kept_in(folder))


def test_custom_rules_and_advice_are_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_with_broken_rule(tmp_path)
    assert main(["check", path]) == 1
    text = capsys.readouterr().out
    assert "usual causes: a division by zero" in text
    assert "try: replay the step" in text
    assert "your rule broken: it checked 3 frames and raised an exception in 3 of them; it was switched off" in text
    assert main(["check", path, "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {each["name"]: each["faults"] for each in told["own_rules"]} == {"broken": 3, "calm": 0}
    assert "no-such-scalar" in told["troubles"][0]
    assert len(told["advice"]["nonfinite"]["causes"]) == 3
    assert main(["check", path, "--format", "junit"]) == 1
    suite = ElementTree.fromstring(capsys.readouterr().out)
    errors = {case.get("name") for case in suite.iter("testcase") if case.find("error") is not None}
    assert errors == {f"{OWN_RULE}broken", "rules"}
    assert f"{OWN_RULE}calm" in {case.get("name") for case in suite.iter("testcase")}
    assert suite.get("errors") == "2"
    assert "usual causes" in (next(suite.iter("failure")).text or "")
