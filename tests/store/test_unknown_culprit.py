"""A problem that may have begun in uncaptured steps: nothing names a layer or a step that isn't known."""

from __future__ import annotations

import html
import math
from dataclasses import replace
from pathlib import Path

import pytest

from hookcore.delivery.archive import load_into, read_archive
from hookcore.findings import FindingsCache, follow
from hookcore.records import Event, Tap
from hookcore.store import Store
from hookcore.store.incidents import Incident, Link, Replay
from tests.archive_world import keep, kept_in
from tests.build import append, frame, open_run, stats_of_magnitudes, steady
from tests.build import store_of as filled
from tests.nonfinite_world import alarm
from tests.serving import make_world

TAPS = (Tap("embed", "output"), Tap("norm", "output"), Tap("", "output"), Tap("embed", "param_grad", "weight"))
FINE = [1.0] * len(TAPS)
BAD = [math.nan] * len(TAPS)


def store_of(*steps: int) -> Store:
    """Return a store in which these steps were captured and fine."""
    store = Store(2**22)
    for place, step in enumerate(steps):
        append(store, step, FINE, TAPS if place == 0 else ())
    return store


def only(store: Store) -> Incident:
    (incident,) = store.incidents()
    (head,) = store.incident_heads()
    assert repr(replace(incident, chain=(), evidence=None)) == repr(head)  # NaN doesn't equal itself
    return incident


def test_a_gap_before_the_first_captured_bad_step_leaves_the_layer_unknown() -> None:
    store = store_of(0, 64, 96)
    append(store, 128, BAD)
    found = only(store)
    assert (found.culprit_known, found.culprit.tap, found.culprit.number) == (False, TAPS[2], 2)
    assert (found.earliest_step, found.first_step, found.id) == (97, 128, "nonfinite-128")
    assert found.sentence == (
        "NaN began between steps 97 and 128; the layer isn't known. "
        "To find the layer, train again with budget=None or with hookcore.record. "
        "It reached 3 modules that were captured."
    )
    assert [link.tap for link in found.chain] == [*TAPS]  # none is left out as the culprit
    assert found.evidence is not None
    (finding,) = FindingsCache(store).current()
    assert (finding.module, finding.culprit_known, finding.earliest_step) == ("", False, 97)
    assert finding.message == "NaN began between steps 97 and 128; the layer isn't known"


def test_an_incident_says_why_its_step_cannot_be_repeated() -> None:
    store = store_of(0, 64, 96)
    because = "a copy of its weights takes 9.0 MB on the device, more than capsule_size=8 bytes"
    missed = Event(120, 120.0, "capsule-missed", "not saved", about={"why": "capsule-size", "because": because})
    store.append(frame(120, stats_of_magnitudes([]), events=(alarm(120, 119), missed)))
    found = only(store)
    assert found.remedy == (
        f"The step can't be repeated: {because}. "
        "To find the layer, train again with budget=None or with hookcore.record."
    )
    assert found.remedy in found.sentence


@pytest.mark.parametrize("exact", [True, False])
def test_an_incident_says_what_a_replay_compared_that_found_nothing(exact: bool) -> None:
    store = store_of(0, 64, 96)
    store.append(frame(120, stats_of_magnitudes([]), events=(alarm(120, 119),)))
    version = store.incidents_version
    replayed = Event(120, 130.0, "explained", "nothing", about={"exact": exact, "found": "nothing"})
    store.append(frame(121, stats_of_magnitudes([]), events=(replayed,)))
    found = only(store)
    assert store.incidents_version > version
    assert found.headline == "NaN began at step 120; the layer isn't known"
    assert found.remedy.startswith(
        "The replay of the step found nothing non-finite in the model's outputs, gradients, and buffers"
    )
    assert ("the outputs are those of the training. So look at how the loss is computed" in found.remedy) == exact
    assert ("train again with budget=None" in found.remedy) == (not exact)


def test_a_replay_that_raised_leaves_the_layer_to_be_found() -> None:
    store = store_of(0, 64, 96)
    replayed = Event(120, 130.0, "explained", "nothing", about={"exact": True})
    store.append(frame(120, stats_of_magnitudes([]), events=(alarm(120, 119), replayed)))
    assert only(store).remedy.startswith("To find it, explain the saved step")


def test_the_check_of_every_step_gives_the_exact_step_and_no_layer() -> None:
    store = store_of(0, 64, 96)
    store.append(frame(120, stats_of_magnitudes([]), events=(alarm(120, 119),)))
    found = only(store)
    assert found.headline == "NaN began at step 120; the layer isn't known yet"
    assert (
        found.remedy == "To find it, explain the saved step, or train again with budget=None or with hookcore.record."
    )
    assert (found.earliest_step, found.steps, found.taps, found.severity) == (120, 0, 0, "error")
    append(store, 128, BAD)
    found = only(store)
    assert (found.culprit_known, found.first_step, found.last_step, found.steps) == (False, 120, 128, 1)
    assert (found.id, found.found_step) == ("nonfinite-120", 120)
    assert {link.first_step for link in found.chain} == {128}


def test_a_captured_step_that_the_check_names_has_a_known_layer() -> None:
    store = store_of(0, 64)
    store.append(frame(128, stats_of_magnitudes([1.0, math.nan, math.nan, 1.0], "rms"), events=(alarm(128, 127),)))
    found = only(store)
    assert (found.culprit_known, found.source, found.culprit.tap) == (True, "capture", TAPS[1])
    assert (found.earliest_step, found.first_step, found.sentence) == (
        128,
        128,
        "NaN first appeared in the activation of norm, at step 128. 1 other module followed.",
    )


def test_a_loss_that_alone_was_non_finite_in_a_captured_step_is_named_and_no_advice_is_given() -> None:
    store = store_of(0, 64)
    event = alarm(120, 119, value="inf", captured=True)
    store.append(frame(120, stats_of_magnitudes(FINE, "rms"), events=(event,)))
    append(store, 121, BAD)
    found = only(store)
    assert (found.culprit_known, found.first_step, found.remedy) == (False, 120, "")
    assert found.sentence == (
        "An infinity first appeared in the loss, at step 120; every captured tensor of that step was finite. "
        "It reached 3 modules that were captured."
    )
    (finding,) = FindingsCache(store).current()
    assert finding.message == f"a{found.headline[1:]}"


def test_a_captured_step_after_steps_that_were_not_looked_at_has_no_known_layer() -> None:
    store = store_of(0, 64)
    store.append(frame(128, stats_of_magnitudes(BAD, "rms"), events=(alarm(128, 100),)))
    found = only(store)
    assert (found.culprit_known, found.earliest_step, found.first_step) == (False, 101, 128)


@pytest.mark.parametrize("captured", [False, True])
def test_weights_that_were_bad_before_the_step_are_blamed_instead_of_outputs(captured: bool) -> None:
    store = store_of(0, 64)
    event = alarm(120, 119, "weights", "embed", name="embed.weight", value="-inf")
    store.append(frame(120, stats_of_magnitudes(BAD if captured else [], "rms"), events=(event,)))
    found = only(store)
    assert (found.culprit_known, found.source, found.value) == (True, "check", -math.inf)
    assert (found.culprit.tap, found.culprit.number) == (Tap("embed", "param", "weight"), -1)
    assert found.headline == "An infinity was in the parameter embed.weight before the model ran, at step 120"
    assert (found.taps, found.modules) == ((4, 2) if captured else (0, 0))
    (finding,) = FindingsCache(store).current()
    assert finding.message == f"a{found.headline[1:]}"


def test_a_flag_that_arrives_late_moves_the_first_step_and_keeps_the_address() -> None:
    store = store_of(0, 64)
    append(store, 128, BAD)
    store.append(frame(130, stats_of_magnitudes([]), events=(alarm(120, 119, late=True),)))
    found = only(store)
    assert (found.id, found.first_step, found.earliest_step, found.culprit_known) == ("nonfinite-128", 120, 120, False)
    store = store_of(0, 64)
    append(store, 128, BAD)
    store.append(frame(130, stats_of_magnitudes([]), events=(alarm(128, 127, late=True),)))
    found = only(store)
    assert (found.culprit_known, found.culprit.tap, found.earliest_step) == (True, TAPS[0], 128)


def test_an_incident_in_uncaptured_steps_is_over_at_the_next_captured_step() -> None:
    for late in (False, True):
        store = store_of(0, 64)
        if late:
            append(store, 121, FINE)
        store.append(frame(122, stats_of_magnitudes([]), events=(alarm(120, 119),)))
        append(store, 128, FINE)
        found = only(store)
        assert (found.recovered, found.is_over) == (121 if late else 128, True)
        (finding,) = FindingsCache(store).current()
        assert finding.severity == "warning"
        assert finding.message == "NaN began at step 120; the layer isn't known yet; finite again"
        append(store, 300, BAD)
        assert [(each.first_step, each.earliest_step) for each in store.incidents()] == [(120, 120), (300, 129)]


def test_an_alarm_in_an_incident_that_goes_on_changes_neither_its_step_nor_its_layer() -> None:
    store = store_of(0)
    append(store, 1, [1.0, math.nan, 1.0, 1.0])
    store.append(frame(5, stats_of_magnitudes([]), events=(alarm(5, 4),)))
    found = only(store)
    assert (found.first_step, found.last_step, found.culprit.tap, found.culprit_known) == (1, 5, TAPS[1], True)


def test_gradients_of_a_step_that_a_scaler_skipped_stand_for_themselves() -> None:
    store = store_of(0, 64)
    append(store, 128, [1.0, 1.0, 1.0, math.inf])
    store.add_event(Event(128, 128.0, "skipped-step", "skipped", "warning"))
    found = only(store)
    assert (found.culprit_known, found.culprit.tap, found.severity) == (True, TAPS[3], "info")


def test_the_replay_of_the_first_step_names_the_layer() -> None:
    store = store_of(0, 64)
    store.append(frame(120, stats_of_magnitudes([]), events=(alarm(120, 119),)))
    append(store, 121, BAD)
    replay = Replay(120, Link(1, TAPS[1], 120), math.nan, (Link(2, TAPS[2], 120),), "norm.py:14")
    store.explain(replay)
    found = only(store)
    assert (found.culprit_known, found.source, found.where) == (True, "replay", "norm.py:14")
    assert [(link.tap, link.first_step) for link in found.chain] == [(TAPS[2], 120), (TAPS[0], 121), (TAPS[3], 121)]
    assert (found.taps, found.modules, found.id) == (3, 2, "nonfinite-120")
    assert found.headline == (
        "NaN first appeared in the activation of norm, at step 120, as the replay of the step found in norm.py:14"
    )
    (finding,) = FindingsCache(store).current()
    assert (finding.module, finding.culprit_known) == ("norm", True)


def test_the_line_that_a_replay_found_is_named_for_a_captured_layer_too() -> None:
    store = store_of(0, 119)
    append(store, 120, BAD)
    before = only(store)
    store.explain(Replay(120, before.culprit, math.nan, (), "norm.py:14"))
    found = only(store)
    assert (found.culprit, found.source) == (before.culprit, "capture")
    assert found.headline == f"{before.headline}; the replay of the step leads to norm.py:14"
    assert "norm.py:14" in found.sentence


def test_the_replay_of_a_step_that_may_not_be_the_first_names_nothing() -> None:
    store = store_of(0, 64)
    append(store, 128, BAD)
    store.explain(Replay(128, Link(0, TAPS[0], 128), math.nan))
    assert not only(store).culprit_known


def test_a_step_before_the_first_one_that_was_captured_may_be_the_first() -> None:
    store = Store(2**22)
    store.append(frame(0, stats_of_magnitudes([]), scalars={"loss": 1.0}))
    append(store, 5, BAD, TAPS)
    assert only(store).earliest_step == 0


@pytest.mark.parametrize("late", [False, True])
def test_a_saved_run_has_the_same_incidents_of_uncaptured_steps(tmp_path: Path, late: bool) -> None:
    sink, _ = keep(tmp_path)
    store = Store(2**22)
    event = replace(alarm(120, 119, late=late), time_s=121.5 if late else 120.0)
    frames = [
        frame(0, stats_of_magnitudes(FINE, "rms"), TAPS),
        frame(121, stats_of_magnitudes(BAD, "rms")),
        frame(122, stats_of_magnitudes(BAD, "rms")),
        frame(300, stats_of_magnitudes(FINE, "rms")),
    ]
    with_it = 2 if late else 1
    frames[with_it] = replace(frames[with_it], events=(event,))
    for each in frames:
        store.append(each)
        sink.send(each)
    sink.close()
    again = Store(2**22)
    load_into(again, read_archive(kept_in(tmp_path)))
    assert repr(again.incident_heads()) == repr(store.incident_heads())
    assert again.incidents()[0].chain == store.incidents()[0].chain
    assert again.incidents()[0].first_step == 120
    assert [each.name for each in again.events()] == ["nonfinite-step"]


def test_an_incident_is_as_it_was_at_a_step() -> None:
    store = store_of(0, 64)
    store.append(frame(120, stats_of_magnitudes([]), events=(alarm(120, 119),)))
    append(store, 128, BAD)
    found = only(store).as_of(125)
    assert (found.first_step, found.last_step, found.taps, found.modules) == (120, 125, 0, 0)
    assert found.sentence == f"NaN began at step 120; the layer isn't known yet. {found.remedy}"


def test_a_loss_says_in_which_steps_it_may_have_become_non_finite() -> None:
    store = Store(2**22)
    for step in range(0, 200, 10):
        append(store, step, [1.0], TAPS[:1] if step == 0 else (), {"loss": math.nan if step >= 100 else 1.0})
    (found,) = FindingsCache(store).current()
    assert (found.rule, found.earliest_step, found.since_step) == ("loss", 91, 100)
    assert found.message == "loss has been non-finite since a step between 91 and 100"


def test_rules_say_in_which_uncaptured_steps_a_change_may_have_begun() -> None:
    store = follow(Store(2**26))
    rms = steady(100)
    rms[80:, 1] *= 1e5
    taps = tuple(Tap(f"layers.{number}", "output") for number in range(rms.shape[1]))
    for place, row in enumerate(rms):
        append(store, 50 * place, row, taps if place == 0 else ())
    (found,) = [each for each in FindingsCache(store).current() if each.rule == "exploding"]
    assert (found.earliest_step, found.since_step) == (3951, 4000)
    assert found.message.endswith("as large as usual since a step between 3,951 and 4,000")
    (incident,) = store.incidents()
    assert (incident.earliest_step, incident.first_step, incident.culprit.tap.module) == (3951, 4000, "layers.1")


def test_rules_are_exact_if_every_step_was_captured() -> None:
    rms = steady(100)
    rms[80:, 1] *= 1e5
    (found,) = [each for each in FindingsCache(filled(rms)).current() if each.rule == "exploding"]
    assert (found.earliest_step, found.since_step) == (80, 80)


def test_page_and_rest_say_why_the_step_of_an_incident_cannot_be_repeated() -> None:
    world = make_world()
    run = open_run(world.runs)
    run.store.announce(TAPS)
    run.store.append(frame(0, stats_of_magnitudes(FINE, "rms")))
    missed = Event(120, 120.0, "capsule-missed", "not saved", about={"why": "late", "because": "its copies were gone"})
    run.store.append(frame(120, stats_of_magnitudes([]), events=(alarm(120, 119), missed)))
    page = html.unescape(world.client.get("/runs/one/problems/incident?id=nonfinite-120").text)
    assert "Step 120 can't be repeated, so the operator and the line of code are unknown: its copies were gone." in page
    incident = world.client.get("/api/v1/incidents?run=one").json()["incidents"][0]
    assert incident["remedy"].startswith("The step can't be repeated: its copies were gone. To find the layer, train")
    (event,) = world.client.get("/api/v1/events?run=one&name=capsule-missed").json()["events"]
    assert event["about"]["why"] == "late"


@pytest.mark.parametrize("found", ["loss", "weights"])
def test_all_surfaces_say_the_same_of_a_step_that_was_not_captured(found: str) -> None:
    world = make_world()
    run = open_run(world.runs)
    run.store.announce(TAPS)
    module, name = ("embed", "embed.weight") if found == "weights" else ("", "loss")
    run.store.append(frame(0, stats_of_magnitudes(FINE, "rms")))
    run.store.append(frame(120, stats_of_magnitudes([]), events=(alarm(120, 119, found, module, name=name),)))
    run.store.append(frame(128, stats_of_magnitudes(BAD, "rms")))
    client, headline = world.client, only(run.store).headline
    assert ("the layer isn't known yet" in headline) == (found == "loss")
    incident = client.get("/api/v1/incidents?run=one").json()["incidents"][0]
    assert (incident["headline"], incident["culprit_known"]) == (headline, found == "weights")
    assert (incident["earliest_step"], incident["first_step"]) == (120, 120)
    finding = client.get("/api/v1/findings?run=one").json()["findings"][0]
    assert (finding["message"], finding["culprit_known"]) == (headline, found == "weights")
    pages = "runs/one", "runs/one/problems", "runs/one/problems/incident?id=nonfinite-120", "api/v1/report?run=one", ""
    for page in pages:
        assert headline in html.unescape(client.get(f"/{page}").text).replace("\u200b", "").replace("<wbr>", ""), page
    model = html.unescape(client.get("/runs/one/model?part=onset").text)
    assert headline in model or "embed" in model
    marks = client.get("/api/v1/timeline?run=one").json()["marks"]
    assert [mark["module"] for mark in marks if mark["incident"]] == ["embed" if found == "weights" else ""]
    assert client.get("/").text.count('<span class="badge error">1</span>') == 1  # the event is a part of the incident
