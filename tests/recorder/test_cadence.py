"""Which steps are captured: by the stride, the budget, and the allowance; and which of them are timed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn

import hookcore
from hookcore.config import Settings
from hookcore.delivery.sinks import StoreSink
from hookcore.recorder import Recorder
from hookcore.recorder.clock.cadence import ESTIMATE_EVERY, LEAST_PAIRS, TIME_EVERY, WARM_UP, Cadence
from hookcore.records import Frame
from hookcore.store import Store
from tests.harness import watch
from tests.inside import recorder_of

NAN = float("nan")


def captured_steps(
    cadence: Cadence, steps: range, plain_s: float = 1.0, extra_s: float = 1.0, is_timed: bool = False
) -> list[int]:
    """Return the steps that are captured if steps take these times."""
    chosen = []
    for step in steps:
        captured = cadence.wants(step)
        chosen += [step] * captured
        spent_s = extra_s if captured and is_timed and cadence.wants_timing else NAN
        cadence.step_ended(captured, plain_s + captured * extra_s, spent_s)
    return chosen


# --- The budget -----------------------------------------------------------------------------------------------------


def test_a_budget_that_is_set_later_is_learned_by_alternating() -> None:
    cadence = Cadence(1, None)
    assert captured_steps(cadence, range(100)) == list(range(100))
    cadence.change(1, 0.1)
    assert captured_steps(cadence, range(100, 120)) == list(range(100, 120, 2))
    captured_steps(cadence, range(120, 160))
    assert cadence.cost == pytest.approx(1.0)
    assert cadence.stride == 32
    assert cadence.effective_cost == pytest.approx(1 / 32)


def test_what_steps_take_that_are_not_captured_belongs_to_the_budget() -> None:
    strides = []
    for followed_s in (0.0, 0.02, 0.2):
        cadence = Cadence(1, 0.1)
        cadence.took(0.0, captured=0, others=1)
        for step in range(400):
            captured = cadence.wants(step)
            if not captured:
                cadence.followed(followed_s)
            cadence.step_ended(captured, (2.0 if captured else 1.0) + followed_s)
        assert cadence.following == pytest.approx(followed_s)
        assert cadence.cost == pytest.approx(1.0)
        assert cadence.effective_cost == pytest.approx(1 / cadence.stride + followed_s)
        strides.append(cadence.stride)
    assert strides == [32, 32, 64]  # 6 %, 4 %, and at least 3 % are left for capturing


def test_a_cost_that_is_measured_as_more_than_the_step_is_never_said_to_be_none() -> None:
    cadence = Cadence(1, 0.1)
    for step in range(200):
        captured = cadence.wants(step)
        if not captured:
            cadence.followed(1.2)  # of a step that took 1.0: other work came in between
        cadence.step_ended(captured, 2.0 if captured else 1.0)
    assert cadence.following > 1
    assert cadence.effective_cost > 1


def test_the_cost_is_steady_on_a_machine_that_becomes_slower_and_faster() -> None:
    cadence, found = Cadence(1, 0.05, sketches=None), list[float]()
    for step in range(2000):
        elapsed_s = 0.005 * 2 ** math.sin(step / 150)
        if captured := cadence.wants(step):
            cadence.begin_captured(step)
            elapsed_s *= 1.5
        cadence.step_ended(captured, elapsed_s)
        found += [cadence.cost] * (cadence.cost == cadence.cost)
    assert len(found) > 1900
    assert found == pytest.approx([0.5] * len(found), rel=0.1)


def test_the_cost_is_unknown_until_enough_steps_of_both_sorts_were_compared() -> None:
    cadence = Cadence(16, None)
    for step in range(256):
        captured = cadence.wants(step)
        cadence.step_ended(captured, 1.5 if captured else 1.0)
        known_at = LEAST_PAIRS * 16 + ESTIMATE_EVERY - 1  # step 0 comes before any uncaptured one
        assert (cadence.cost == cadence.cost) == (step >= known_at)
    assert cadence.cost == pytest.approx(0.5)


def test_steps_that_went_the_short_way_and_others_count_by_their_numbers() -> None:
    cadence = Cadence(1, 0.1)
    for step in range(400):
        captured = cadence.wants(step)
        if not captured:
            cadence.followed(0.21, short=7)
            cadence.followed(0.11)
        cadence.step_ended(captured, 2.0 if captured else 1.0)
    assert cadence.following == pytest.approx(0.04 / 0.96)


def test_frames_of_steps_that_were_not_captured_are_no_part_of_the_cost_of_capturing() -> None:
    cadence = Cadence(1, 0.1)
    for _ in range(200):
        cadence.took(0.010, captured=0, others=10)
        cadence.took(0.019 + 0.100, captured=1, others=19)
    assert cadence.background_s == pytest.approx(0.1)


def test_what_the_threads_of_a_sink_take_belongs_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dear(StoreSink):
        taken_s = 0.0

        @property
        def spent_s(self) -> float:
            return self.taken_s

        def send_together(self, frames: Sequence[Frame]) -> bool:
            self.taken_s += 10.0 * len(frames)
            return super().send_together(frames)

    counted = list[tuple[float, int, int]]()
    monkeypatch.setattr(Cadence, "took", lambda _, *given: counted.append(given))
    recorder = Recorder(Settings.of({}, server=None, every=4, budget=None), Dear(Store(4_000_000)))
    model = nn.Linear(4, 1)
    recorder.capture.models.add(model)
    recorder.attach()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(40):
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert recorder.worker.flush(10)
    recorder.close()
    assert sum(captured for _, captured, _ in counted) == 10
    assert sum(others for *_, others in counted) >= 30
    assert all(10.0 * (captured + others) <= spent_s for spent_s, captured, others in counted)


def test_the_cost_of_following_is_measured_in_a_training_and_sent_to_readers() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, every=4, budget=None) as watcher:
        for _ in range(200):
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert watcher.flush()
        told = recorder_of(watcher).capture.control.current_settings()
        sent = watcher.store.scalars("hookcore/following_cost")
    assert told["following_cost"] > 0
    assert told["effective_cost"] > told["following_cost"]
    assert sent.mean[-1] > 0


def test_runs_with_different_costs_share_captured_steps() -> None:
    cheap, dear = (set(captured_steps(Cadence(1, 0.05), range(2000), extra_s=s)) for s in (0.2, 2.0))
    late_cheap, late_dear = ({step for step in steps if step > 100} for steps in (cheap, dear))
    assert late_dear < late_cheap
    assert len(late_cheap) > 4 * len(late_dear) > 0


def test_the_step_after_a_jump_of_the_loss_is_captured() -> None:
    cadence = Cadence(100, None)
    cadence.alarm("loss jumped to 8")
    cadence.alarm("another reason")
    said = {step: cadence.reason for step in range(1, 150) if cadence.wants(step)}
    assert said == {1: "loss jumped to 8", 100: ""}
    said = {}
    for step in (3, 200, 201):  # the second one would have been captured anyway
        cadence.alarm("again")
        assert cadence.wants(step)
        said[step] = cadence.reason
    assert said == {3: "again", 200: "", 201: "again"}


def test_the_cost_is_the_time_of_hookcore_divided_by_the_users_time() -> None:
    cadence, timed = Cadence(1, None), []
    for step in range(1000):
        assert cadence.wants(step)
        timed += [step] * cadence.wants_timing
        cadence.step_ended(True, 1.25, 0.25 if cadence.wants_timing else float("nan"))
        if len(timed) < 3:
            assert cadence.cost != cadence.cost  # still unknown
    assert cadence.cost == cadence.effective_cost == pytest.approx(0.25)
    assert min(timed) >= WARM_UP
    assert [step for step in timed if step > 200] == [step for step in range(201, 1000) if step % TIME_EVERY == 0]


def test_with_a_limit_or_with_uncaptured_steps_nothing_is_timed() -> None:
    for cadence in (Cadence(1, 0.05), Cadence(2, None)):
        for step in range(100):
            assert not cadence.wants_timing
            cadence.step_ended(cadence.wants(step), 1.0)


# --- The allowance --------------------------------------------------------------------------------------------------


def test_a_short_training_is_captured_whole_whatever_its_ratio() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcore.watch(model, server=None, allowance=60) as watcher:  # enough for a busy machine
        for _ in range(57):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    assert watcher.store.captured() == 57


def test_the_allowance_lasts_until_its_seconds_are_used_up_and_then_the_budget_counts() -> None:
    cadence = Cadence(1, 0.05, 0.3)
    steps = captured_steps(cadence, range(3000), plain_s=0.004, extra_s=0.0027, is_timed=True)
    whole = next(place for place, step in enumerate(steps) if place != step)
    assert whole == pytest.approx(0.3 / 0.0027, rel=0.1)  # and what a second adds
    assert (cadence.stride, cadence.cost) == (32, pytest.approx(0.675))
    without = Cadence(1, 0.05)
    assert set(captured_steps(without, range(3000), 0.004, 0.0027, True)) < set(steps)


def test_a_step_whose_share_of_capturing_is_unknown_counts_whole() -> None:
    steps = captured_steps(Cadence(1, 0.05, 0.3), range(100), plain_s=0.02, extra_s=0.01)
    whole = next(place for place, step in enumerate(steps) if place != step)
    assert 9 <= whole <= 12  # 0.3 s of steps that take 0.03 s


def test_ranks_that_have_used_up_their_allowances_at_different_times_share_their_captured_steps() -> None:
    early, late = (set(captured_steps(Cadence(1, 0.05, 0.3), range(3000), 0.004, s, True)) for s in (0.004, 0.0015))
    assert early < late


def test_a_long_time_without_capturing_brings_the_whole_allowance_back() -> None:
    cadence = Cadence(1, 0.05, 0.3)
    captured_steps(cadence, range(3000), 0.004, 0.0027, True)
    assert cadence.stride == 32
    cadence.step_ended(False, 60.0)  # an evaluation
    assert cadence.stride == 1
    assert [cadence.wants(step) for step in (3001, 3007, 3031)] == [True] * 3


def test_without_a_budget_or_without_an_allowance_nothing_changes() -> None:
    assert captured_steps(Cadence(1, None, 0.3), range(100), 0.004, 0.1, True) == list(range(100))
    assert captured_steps(Cadence(1, 0.05, 0), range(30), 0.004, 0.1, True) == list(range(0, 30, 2))


# --- Histograms -----------------------------------------------------------------------------------------------------


def sketched_steps(
    cadence: Cadence, steps: range, moments_s: float, histograms_s: float, plain_s: float = 1.0
) -> tuple[set[int], set[int]]:
    """Return the captured steps, and those of them with histograms, if these add so much to a step."""
    captured, sketched = set[int](), set[int]()
    for step in steps:
        elapsed_s = plain_s
        if is_captured := cadence.wants(step):
            cadence.begin_captured(step)
            captured.add(step)
            elapsed_s += moments_s
            if cadence.sketched:
                sketched.add(step)
                elapsed_s += histograms_s
        cadence.step_ended(is_captured, elapsed_s)
    return captured, sketched


@pytest.mark.parametrize(
    ("moments_s", "histograms_s", "strides"),
    [
        (0.05, 0.005, (1, 1)),  # within 6 % with all histograms
        (0.04, 0.1, (1, 8)),  # with an eighth of them
        (0.5, 0.5, (16, 2)),  # 8 captured steps with histograms would cost as much, but 4 don't fit
        (0.5, 0.02, (16, 1)),
        (0.1, 4.0, (16, 8)),
    ],
)
def test_the_budget_leaves_out_histograms_before_it_leaves_out_steps(
    moments_s: float, histograms_s: float, strides: tuple[int, int]
) -> None:
    cadence = Cadence(1, 0.1, sketches=None)
    sketched_steps(cadence, range(1000), moments_s, histograms_s)
    every = sketched_steps(Cadence(1, 0.1), range(1000), moments_s, histograms_s)[0]
    captured, sketched = sketched_steps(cadence, range(1024, 1536), moments_s, histograms_s)
    stride, thinning = strides
    assert (cadence.stride, cadence.thinning) == strides
    assert captured == set(range(1024, 1536, stride)) - ({1055 + 32 * k for k in range(16)} if stride == 1 else set())
    assert sketched == {step for step in captured if step % (stride * thinning) == 0}
    assert cadence.cost == pytest.approx(moments_s + histograms_s / thinning, rel=1e-6)
    assert {step for step in every if step > 500} <= set(range(0, 1000, stride))


def test_runs_with_different_costs_share_their_steps_with_histograms() -> None:
    cheap, dear = (
        sketched_steps(Cadence(1, 0.05, sketches=None), range(4096), moments_s, histograms_s)[1]
        for moments_s, histograms_s in ((0.1, 0.2), (0.5, 2.0))
    )
    late_cheap, late_dear = ({step for step in steps if step > 100} for steps in (cheap, dear))
    assert late_dear < late_cheap


def test_the_cost_of_histograms_follows_steps_that_become_slower() -> None:
    cadence = Cadence(1, 0.1, sketches=None)
    sketched_steps(cadence, range(1024), 0.2, 0.2)
    before = cadence.stride, cadence.thinning
    captured, _ = sketched_steps(cadence, range(1024, 6144), 2.0, 2.0, plain_s=10.0)  # ten times as long, all of it
    assert (cadence.stride, cadence.thinning) == before
    assert len(captured) < 5120 / 4 + 100  # in between, too


def test_steps_from_something_unusual_on_have_histograms() -> None:
    cadence = Cadence(4, None, sketches=16)
    assert sketched_steps(cadence, range(128), 0.1, 0.1)[1] == {0, 64}
    cadence.alarm("the loss jumped")
    captured, sketched = sketched_steps(cadence, range(129, 256), 0.1, 0.1)
    assert captured == {129, *range(132, 256, 4)}
    assert sketched == {129, *range(132, 160, 4), 192}


def test_a_training_counts_histograms_in_the_steps_that_were_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, every=2, sketches=3, budget=None) as watcher:
        for _ in range(24):
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert watcher.flush()
        store = watcher.store
    for tap in store.taps().taps:
        counted, rms = store.series(tap, "sketched"), store.series(tap, "rms")
        with_histogram = [0, 6, 12, 18]
        assert rms.first_step.tolist() == list(range(0, 24, 2))
        assert counted.first_step[counted.mean > 0].tolist() == with_histogram
        histograms = store.histograms(tap)
        assert histograms.first_step.tolist() == with_histogram
        assert histograms.counts.sum(axis=1).tolist() == counted.mean[counted.mean > 0].tolist()
        assert store.quantiles(tap, [0.5]).first_step.tolist() == with_histogram
        assert not len(store.histograms(tap, 2, 4).first_step)
