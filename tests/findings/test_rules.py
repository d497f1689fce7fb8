"""The rules while frames arrive: when they look, and what stays the same in the incidents that they find."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore.delivery.archive import load_into, read_archive
from hookcore.findings import Finding, FindingsCache, examine, follow
from hookcore.records import Event, Severity, Tap
from hookcore.store import Store
from hookcore.store.incidents import Found, Incident, Incidents
from tests import build
from tests.archive_world import keep, kept_in
from tests.inside import module_of
from tests.lanes import examples

FOLLOWER: Any = module_of("Follower", "findings")
BLOCK, MAX_LOOKS, Gate = FOLLOWER.BLOCK, FOLLOWER.MAX_LOOKS, FOLLOWER.Gate
ACCOUNTS: Any = module_of("Accounts", "store.incidents")
GRACE, MAX_STANDING, RECURS = ACCOUNTS.GRACE, ACCOUNTS.MAX_STANDING, ACCOUNTS.RECURS

TAPS = tuple(Tap(name, kind) for kind in ("output", "param_grad") for name in ("first", "second", "third"))  # type: ignore[arg-type]


def append(store: Store, step: int, sizes: list[float], **scalars: float) -> None:
    build.append(store, step, sizes, TAPS if store.steps().newest is None else (), scalars)


class Watched(FOLLOWER.Follower):  # type: ignore[misc]
    """Records the frames at which the rules look."""

    looks: list[int]

    def look(self) -> None:
        self.looks.append(self._frames)
        super().look()


def watched(store: Store) -> Watched:
    follower = Watched(store)
    store.attach(follower)
    follower.looks = []
    return follower


def noise(step: int) -> list[float]:
    return np.exp(0.1 * np.random.default_rng(step).standard_normal(len(TAPS))).tolist()


def test_a_steady_run_is_checked_rarely() -> None:
    store = Store(2**23)
    follower = watched(store)
    for step in range(1100):
        append(store, step, noise(step), loss=1.0)
    assert follower.looks == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert store.incidents() == []


def test_the_ranks_are_checked_in_turn() -> None:
    looks = []
    for rank in (0, 3, 15, 16):
        store = Store(2**23)
        follower = watched(store)
        follower.take_turns(rank)
        for step in range(150):
            append(store, step, noise(step), loss=1.0)
        looks.append(follower.looks)
    assert looks == [[8, 16, 32, 64, 128], [11, 19, 35, 67, 131], [23, 31, 47, 79, 143], [8, 16, 32, 64, 128]]


def test_a_sudden_change_is_checked_within_a_block_and_again_while_it_lasts() -> None:
    store = Store(2**23)
    follower = watched(store)
    for step in range(500):
        append(store, step, [each * (1e6 if step >= 301 else 1.0) for each in noise(step)])
    after = [frame for frame in follower.looks if frame > 300]
    assert 301 < after[0] <= 301 + BLOCK
    assert 4 <= len(after) <= MAX_LOOKS


def test_a_wild_run_is_not_checked_more_often_than_allowed() -> None:
    store = Store(2**23)
    follower = watched(store)
    for step in range(2000):
        append(store, step, [each ** (60 * (step // 10 % 2)) for each in noise(step)])
    assert len(follower.looks) <= 9 + MAX_LOOKS + 2000 / 512


def test_a_loss_that_becomes_non_finite_is_reported_in_the_same_step() -> None:
    store = follow(Store(2**23))
    for step in range(100):
        append(store, step, noise(step), loss=math.nan if step >= 77 else 1.0)
        assert bool(store.incidents()) == (step >= 77)
    (incident,) = store.incidents()
    assert (incident.rule, incident.first_step, incident.found_step) == ("loss", 77, 77)
    assert incident.sentence == "Loss has been non-finite since step 77."


def test_a_loss_that_is_finite_again_is_over_although_no_tensor_is_captured_meanwhile() -> None:
    store = follow(Store(2**23))
    for step in range(140):
        if step < 70:
            append(store, step, noise(step), loss=1.0)
        else:
            store.append(build.frame(step, build.stats_of(0), scalars={"loss": math.nan if step == 77 else 1.0}))
    (incident,) = store.incidents()
    assert incident.sentence == "Loss has been non-finite since step 77. It was over at step 78."
    diagnosis = examine(store)
    assert diagnosis.course.word == "flat"
    (note,) = [each for each in diagnosis.findings if each.rule == "loss"]
    assert (note.severity, note.message) == (
        "info",
        "loss has been non-finite since step 77; no longer found at step 78",
    )


def test_the_rules_keep_no_columns_between_checks() -> None:
    store = Store(2**23)
    follower = watched(store)
    for step in range(300):
        append(store, step, noise(step))
    sizes = follower.inputs.sizes
    assert sizes is not None
    assert sizes.columns.size.size == 0
    assert np.isfinite(sizes.early).all()  # it can't be read again later


def test_findings_change_with_an_incident_that_is_found_without_a_new_frame() -> None:
    store = follow(Store(2**23))
    for step in range(100):
        append(store, step, noise(step))
    cache = FindingsCache(store)
    assert cache.current() == ()
    store.judge([found(0, 40, 41)])
    (note,) = cache.current()
    assert (note.severity, note.since_step, note.until_step, note.message) == ("info", 40, 41, "it grew")


@pytest.mark.parametrize(("loss", "severity"), [(0.01, "info"), (50.0, "warning"), (None, "warning")])
def test_a_spike_is_a_warning_if_the_loss_rose_above_its_start_or_is_unknown(
    loss: float | None, severity: Severity
) -> None:
    store = follow(Store(2**23))
    for step in range(300):
        size = 1e-6 if step > 20 else 1.0
        values = [size * each * (1000 if step == 250 else 1) for each in noise(step)]
        logged = {} if loss is None else {"loss": loss if step == 250 else max(1e-4, 2.0 - 0.1 * step)}
        append(store, step, values, **logged)
    spikes = [each for each in store.incidents() if each.rule == "spike"]
    assert [(each.first_step, each.severity) for each in spikes] == [(250, severity)]


def test_no_gradient_fades_in_a_solved_training() -> None:
    store = follow(Store(2**23))
    for step in range(400):
        values = [each * (0.0 if step > 300 else 1.0) for each in noise(step)]
        append(store, step, [1.0, 1.0, 1.0, *values[3:]], loss=2.0 * 0.9**step if step <= 300 else 0.0)
    assert [each.sentence for each in store.incidents() if each.severity != "info"] == []


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_a_gate_stays_closed_within_the_usual_range_and_opens_outside(data: st.DataObject) -> None:
    gate, lanes = Gate(), np.arange(8)
    scale = 10.0 ** data.draw(st.integers(-12, 12))
    seed, rare = data.draw(st.integers(0, 99)), data.draw(st.booleans())
    draws = np.random.default_rng(seed)

    def told(factor: float, frames: int) -> bool:
        answers = []
        for _ in range(frames):
            some = lanes[draws.random(8) < 0.5] if rare else lanes  # under a budget, not every tensor is captured
            answers.append(gate.take(some, scale * factor * np.exp(0.1 * draws.standard_normal(len(some)))))
        return any(answers)

    assert not told(1.0, 200)
    assert told(data.draw(st.sampled_from([1e-3, 1e3, 0.0])), 2 * BLOCK)


def test_values_that_are_missing_or_not_finite_never_open_the_gate() -> None:
    gate = Gate()
    for step in range(200):
        gate_told = gate.take(np.array([step % 3, 3]), np.array([math.nan if step % 5 else 1.0, math.inf]))
        assert not gate_told


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_gate_judges_frames_that_come_together_as_it_judges_them_one_by_one(seed: int) -> None:
    draws, alone, together = np.random.default_rng(seed), Gate(), Gate()
    for _ in range(8):
        lanes = np.sort(draws.choice(6, draws.integers(1, 6), replace=False))
        values = 10.0 ** draws.integers(-4, 4) * np.exp(draws.standard_normal((draws.integers(1, 30), len(lanes))))
        values[draws.random(values.shape) < 0.05] = draws.choice([0.0, math.nan, math.inf])
        one_by_one = [alone.take(lanes, row) for row in values]
        found = list[bool]()

        def stops(_: int, is_due: bool, seen: list[bool] = found) -> bool:
            seen.append(bool(is_due))
            return is_due or draws.random() < 0.1  # for another reason

        while (at := len(found)) < len(values):
            assert together.take_until(lanes, values[at:], stops) in (0, len(found) - at)
        assert found == one_by_one


class Taps:
    """The part of a store that incidents need, without values."""

    def __init__(self) -> None:
        self.taps = list(TAPS)
        self.tap_numbers = {tap: number for number, tap in enumerate(TAPS)}

    def first_step(self) -> int | None:
        return None

    def captured_around(self, step: int) -> tuple[int | None, int | None]:
        return None, None

    def lanes_of_scalars(self) -> dict[str, int]:
        return {}

    def stat_rows(self, lanes: Any, first: int, before: int) -> Any:
        return np.empty(0, np.int64), np.empty((13, 0, len(lanes)))

    scalar_rows = stat_rows


def found(
    number: int,
    since: int,
    until: int | None = None,
    *others: tuple[int, int],
    rule: str = "exploding",
    severity: Severity = "warning",
) -> Found:
    return Found(rule, severity, number, 5.0, 1.0, since, until, "it grew", ((number, since), *others))


def looked(*looks: tuple[int, list[Found]]) -> list[Incident]:
    incidents = Incidents(Taps(), 2**20)
    for step, seen in looks:
        incidents.judge(step, seen)
    return incidents.all()


def test_an_incident_keeps_its_culprit_first_step_and_message() -> None:
    (incident,) = looked(
        (10, [found(1, 4, None, (2, 5))]),
        (20, [found(2, 3, None, (0, 2))]),  # later columns blame another tensor, and an earlier step
        (30, [found(0, 2, severity="error")]),
    )
    assert (incident.id, incident.culprit.number, incident.first_step) == ("exploding-4-1", 1, 4)
    assert {link.number: link.first_step for link in incident.chain} == {2: 5, 0: 4}
    assert (incident.severity, incident.last_step, incident.found_step, incident.is_over) == ("error", 30, 10, False)


def test_an_incident_that_became_worse_is_as_serious_at_a_step_as_it_was_then() -> None:
    (incident,) = looked(
        (10, [found(1, 4, severity="info")]),
        (20, [found(1, 4)]),
        (30, [found(1, 4)]),
        (40, [found(1, 4, severity="error")]),
        (50, [found(1, 4, severity="info")]),  # the worst severity stays
    )
    then = {step: incident.as_of(step).severity for step in (5, 10, 19, 20, 39, 40, 60)}
    assert then == {5: "info", 10: "info", 19: "info", 20: "warning", 39: "warning", 40: "error", 60: "error"}
    assert incident.as_of(25).as_of(15).severity == "info"


def test_an_incident_ends_if_two_checks_do_not_find_it_and_may_come_back() -> None:
    first = (10, [found(0, 4)])
    assert [each.recovered for each in looked(first, (100, []))] == [None]
    assert [each.recovered for each in looked(first, (100, []), (101, []))] == [100]
    assert [each.recovered for each in looked(first, (100, []), (101, []), (110, [found(0, 4)]))] == [None]
    later = looked(first, (100, []), (101, []), (200, [found(0, 150)]))
    assert [(each.first_step, each.recovered) for each in later] == [(4, 100), (150, None)]


def test_simultaneous_onsets_are_one_incident() -> None:
    assert len(looked((50, [found(0, 4), found(1, 4 + GRACE)]))) == 1
    assert len(looked((50, [found(0, 4), found(1, 5 + GRACE)]))) == 2
    assert len(looked((50, [found(0, 4), found(1, 4, rule="vanishing")]))) == 2


def test_a_recurring_spike_is_counted_and_one_within_a_lasting_incident_is_not_reported() -> None:
    (spike,) = looked(
        (20, [found(0, 9, 9, rule="spike")]),
        (200, []),
        (300, [found(1, 290, 290, (0, 290), rule="spike")]),
    )
    assert (spike.first_step, spike.last_step, spike.steps, spike.culprit.number) == (9, 290, 2, 0)
    assert spike.sentence.endswith("it has happened 2 times, last at step 290.")
    far = looked((20, [found(0, 9, 9, rule="spike")]), (9000, [found(0, 9 + RECURS + 1, 9 + RECURS + 1, rule="spike")]))
    assert len(far) == 2
    both = looked((20, [found(0, 9), found(0, 12, 12, rule="spike")]))
    assert [each.rule for each in both] == ["exploding"]


def test_incidents_without_room_are_counted_once() -> None:
    incidents = Incidents(Taps(), 2**20)
    seen = [found(number % 6, 100 * number, rule=f"rule {number}") for number in range(MAX_STANDING + 5)]
    for step in (5000, 5001, 5002):
        incidents.judge(step, seen)
    assert (len(incidents.all()), incidents.dropped) == (MAX_STANDING, 5)


def test_a_failing_rule_loses_no_frame_and_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such column")

    monkeypatch.setattr(FOLLOWER, "findings_of", fail)
    store = follow(Store(2**23))
    for step in range(100):
        append(store, step, noise(step))
    assert store.steps().count == 100
    events: list[Event] = store.events()
    assert [(each.name, each.severity) for each in events] == [("rule-failed", "warning")]
    assert "no such column" in events[0].message


def test_a_finding_keeps_the_worst_severity_and_says_if_its_incident_is_no_longer_found() -> None:
    store = follow(Store(2**23))
    for step in range(100):
        append(store, step, noise(step))
    store.judge([found(0, 40, None, (1, 41), severity="error")])
    told = Finding("exploding", "info", 1, TAPS[1], "rms", 5.0, 1.0, 41, None, "it grew", (), 0, members=((1, 41),))
    settle = module_of("RuleInputs", "findings").settle
    settled = settle(store, [told])
    assert [(each.number, each.severity) for each in settled] == [(1, "info"), (0, "error")]
    assert "last found at step 99" in settled[1].message
    both = replace(told, members=((0, 40), (1, 41)))
    assert [(each.number, each.severity, each.since_step) for each in settle(store, [both, told])] == [
        (0, "error", 40),
        (1, "info", 41),
    ]


def test_a_part_of_a_loss_may_grow_while_the_whole_falls() -> None:
    store = follow(Store(2**23))
    for step in range(300):
        append(store, step, noise(step), loss=50.0 * 0.99**step, kl_loss=0.02 if step < 150 else 18.0)
    assert store.incidents() == []


def test_a_saved_run_keeps_a_nan_among_many_skipped_steps(tmp_path: Path) -> None:
    sink, store = keep(tmp_path)
    follow(store)
    gradient, output = Tap("layer", "output_grad"), Tap("layer", "output")
    for step in range(1900):
        skipped = step % 45 == 44
        values = [math.inf if skipped else 1.0, math.nan if step == 1000 else 1.0]
        event = Event(step, 0.0, "skipped-step", "skipped", "info")
        frame = build.frame(
            step,
            build.stats_of_magnitudes(values, "rms"),
            (gradient, output) if step == 0 else (),
            events=(event,) if skipped else (),
        )
        sink.send(frame)
    sink.close()
    again = follow(Store(2**26))
    load_into(again, read_archive(kept_in(tmp_path)))
    again.settle()
    for each in (store, again):
        kept = [incident.first_step for incident in each.incidents() if incident.severity == "error"]
        assert kept == [1000]
        assert each.usage().merged["incidents"] > 0
        assert each.dropped_alerts == 0
