"""Findings in real trainings: none in healthy ones, the right ones in failing ones, and a remark if data is missing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.diagnosis import BAD, HEALTHY, RANKED, SICK, Case, diagnose, judge, judge_ranks
from hookcore.delivery.archive import load_into, read_archive
from hookcore.findings import Finding, FindingsCache, Unjudged, examine, findings_of
from hookcore.records import STAT_COLUMN, Coverage, Event, Frame, Tap
from hookcore.store import Store
from tests import build
from tests.archive_world import keep, kept_in
from tests.build import stats_of_magnitudes

CHAIN = tuple(Tap(name, "output") for name in ("standardize", "stem", "blocks.0", "head"))


def frame(step: int, rms: list[float], taps: tuple[Tap, ...] = (), loss: float | None = None, zero: float = 0) -> Frame:
    """Return a step in which the taps have these magnitudes. NaN and infinity stand for such values in tensors."""
    stats = stats_of_magnitudes(rms, rms=np.where(np.isfinite(rms), rms, np.nan))
    stats[-1, STAT_COLUMN["zero"]] = zero
    return build.frame(step, stats, taps, scalars={} if loss is None else {"loss": loss})


def chain(store: Store, last: int, *, bad: int, heals: bool, fine: int = 0) -> None:
    """Append steps of a chain of layers: the first makes a NaN in one step, and the others keep it or recover, too.

    After the first steps, every eighth one is captured, as under a budget. Layers that are `fine` make the steps wide,
    so that a small store soon merges them.
    """
    taps = (*CHAIN, *(Tap(f"fine.{number}", "output") for number in range(fine)))
    for step in (*range(min(last, 800)), *range(800, last, 8)):
        is_bad = step == bad or (step > bad and not heals)
        rms = [math.nan if step == bad else 1.0, *([math.nan if is_bad else 1.0] * 3), *[1.0] * fine]
        store.append(frame(step, rms, taps if step == 0 else ()))


QUICK = (
    *("tanh, weights far too large", "sigmoid at the end", "body detached", "head alone given to the optimizer"),
    *("rate of one layer is zero", "few samples, random labels", "one weight grows", "relu dies", "gradient fades"),
    *("loss masked from a step on", "running statistics never updated", "bounded activation at its bound"),
    *("one direction is left", "batches of zeros", "weights far too small, four layers"),
    *("clipped far below the usual norm", "forward once: log of zero", "backward once: sqrt at zero"),
    *("in one micro-batch: backward", "NaN in a weight"),
    *("mlp, adam, no loss logged", "gan", "frozen body", "experts, one rarely used", "lora", "solved regression"),
    *("bfloat16 weights", "branch off on purpose"),
)


def some_of(cases: dict[str, Case]) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else [pytest.mark.slow, pytest.mark.all]) for name in cases]


def test_there_are_enough_trainings_of_both_kinds() -> None:
    assert len(HEALTHY) >= 30
    assert len(SICK) >= 40
    assert set(QUICK) <= {*HEALTHY, *SICK}


@pytest.mark.parametrize("name", some_of(HEALTHY))
def test_a_healthy_training_has_no_findings(name: str) -> None:
    case = HEALTHY[name]
    diagnosis, store = diagnose(case)
    assert judge(case, diagnosis, store).alarms == ()
    assert diagnosis.scope.verdict == "clear"
    assert diagnosis.scope.sentence.startswith("No problems")
    assert f" found in the last {case.steps} steps" in diagnosis.scope.sentence


@pytest.mark.parametrize("name", some_of(SICK))
@pytest.mark.filterwarnings("ignore:std\\(\\)")
def test_a_failing_training_has_findings(name: str) -> None:
    case = SICK[name]
    diagnosis, store = diagnose(case)
    outcome = judge(case, diagnosis, store)
    assert outcome.found, outcome.named
    assert outcome.right is not False, outcome.named
    assert outcome.waited is not None or "info" in case.severities  # notes aren't incidents
    begun = {each.key: (each.culprit.number, each.first_step) for each in store.incidents()}
    for each in diagnosis.findings:  # a page that is opened now names what was found then
        if each.rule != "spike" and each.severity != "info" and each.key in begun:
            assert begun[each.key] == (each.number, each.since_step)


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize("name", RANKED)
def test_a_fault_in_one_rank_is_blamed_on_its_layer_in_that_ranks_run(name: str) -> None:
    outcomes = judge_ranks(name)
    assert (outcomes[BAD].named, outcomes[BAD].waited) == ("2", 0)
    others = [each for rank, each in enumerate(outcomes) if rank != BAD]
    assert [each.waited for each in others] == [0]  # their gradients are sums over all ranks


def test_gradients_that_fade_from_the_first_step_on_are_found_even_under_a_cadence() -> None:
    (found, *_) = diagnose(SICK["sigmoid, 60 layers"], every=5)[0].findings
    assert (found.rule, found.severity, found.module, found.since_step) == ("vanishing", "error", "0", 0)
    assert "times smaller over" in found.message


def test_a_dead_layer_is_judged_by_captured_steps_if_few_are_captured() -> None:
    found = [each for each in diagnose(SICK["dead relu from step 0"], every=7)[0].findings if each.rule == "dead"]
    assert [(each.module, each.since_step) for each in found] == [("3", 0)]
    assert "29 captured" in found[0].message


def told(finding: Finding) -> tuple[str, int, int | None, int | None, int]:
    return finding.module, finding.since_step, finding.until_step, finding.last_step, finding.downstream


@pytest.mark.parametrize("heals", [True, False], ids=["recovers", "continues"])
def test_the_layer_that_produced_a_nan_is_named_after_merging_and_after_reopening(heals: bool, tmp_path: Path) -> None:
    store = Store(2**20)
    chain(store, 5_000, bad=100, heals=heals, fine=28)
    assert store.usage().merged["stats"] > 1000  # of 1,325 captured steps
    expected = ("standardize", 100, 100 if heals else None, 100, 3)
    (found,) = findings_of(store)
    assert told(found) == expected
    assert found.severity == ("info" if heals else "error")
    sink, kept = keep(tmp_path)
    for step in range(300):
        is_bad = step == 100 or (step > 100 and not heals)
        rms = [math.nan if step == 100 else 1.0, *([math.nan if is_bad else 1.0] * 3)]
        sink.send(frame(step, rms, CHAIN if step == 0 else ()))
    sink.close()
    reopened = Store(2**20)
    load_into(reopened, read_archive(kept_in(tmp_path)))
    assert [told(each) for each in findings_of(reopened)] == [told(each) for each in findings_of(kept)] == [expected]


def test_a_nan_in_one_step_lasts_one_step_in_its_layer_and_longer_downstream() -> None:
    store = Store(2**24)
    chain(store, 800, bad=100, heals=False)
    (found,) = findings_of(store)
    assert found.message == "NaN in the activation at step 100; finite again there, but not in the layers that followed"
    assert (found.until_step, found.last_step) == (None, 100)


def test_uncaptured_steps_before_the_first_nan_are_reported() -> None:
    store = Store(2**24)
    for place, step in enumerate((0, 10, 20)):
        store.append(frame(step, [1.0, math.nan if step == 20 else 1.0], CHAIN[:2] if place == 0 else ()))
    assert findings_of(store)[0].message == "NaN began between steps 11 and 20; the layer isn't known"


def test_an_infinite_gradient_of_a_skipped_step_is_always_a_note() -> None:
    store = Store(2**20)
    taps = (Tap("a", "output_grad"), Tap("b", "output_grad"))
    for step in range(3000):
        store.append(frame(step, [math.inf if step == 50 else 1.0, 1.0], taps if step == 0 else ()))
        if step == 50:
            store.add_event(Event(50, 0.0, "skipped-step", "skipped", "warning"))
    (found,) = findings_of(store)
    assert (found.severity, found.since_step) == ("info", 50)
    assert "the gradient scaler skipped the step" in found.message


# -- growth and the loss -----------------------------------------------------------------------------------------------


def grown(losses: list[float] | None, factor: float = 60.0) -> tuple[Finding, ...]:
    """Return the findings about a layer whose output grows late, with a loss."""
    store = Store(2**24)
    for step in range(200):
        rms = [1.0, factor if step >= 150 else 1.0]
        loss = None if losses is None else losses[step]
        store.append(frame(step, rms, CHAIN[:2] if step == 0 else (), loss))
    return tuple(each for each in findings_of(store) if each.rule != "loss-not-decreasing")


def test_growth_is_an_explosion_only_if_the_loss_gets_worse() -> None:
    falls, rises = np.geomspace(2, 0.1, 200).tolist(), [1.0] * 150 + [1.5] * 50
    assert grown(falls) == ()
    assert [(each.rule, each.severity) for each in grown(rises)] == [("exploding", "warning")]
    assert [(each.rule, each.severity) for each in grown(falls, 1e5)] == [("exploding", "error")]
    (unsure,) = grown(None)
    assert unsure.severity == "info"
    assert "no loss is logged" in unsure.message


@pytest.mark.parametrize("name", ["loss", "train/loss", "loss_d"])
def test_a_loss_that_is_nan_or_diverges_is_found(name: str) -> None:
    for values, words in (
        ([1.0] * 30 + [math.nan] * 5, "non-finite since step 30"),
        ([1.0] * 30 + [1e6] * 20, "1e+06"),
    ):
        store = Store(2**24)
        for step, loss in enumerate(values):
            one = frame(step, [1.0, 1.0], CHAIN[:2] if step == 0 else ())
            store.append(replace(one, scalars={name: loss}))
        (found,) = [each for each in findings_of(store) if each.rule == "loss"]
        assert words in found.message
        assert found.message.startswith(name)
        assert (found.severity, found.since_step) == ("error", 30)


def test_the_step_since_which_a_loss_is_nan_stays_exact() -> None:
    store = Store(2**20)  # small, so that old steps are merged
    for step in range(8000):
        loss = math.nan if step >= 2003 or step == 77 else 1.0
        store.append(frame(step, [1.0, 1.0], CHAIN[:2] if step == 0 else (), loss))
    assert not (store.scalars("loss", points=100_000).first_step == 2003).any()
    (found,) = [each for each in findings_of(store) if each.rule == "loss"]
    assert (found.since_step, found.message) == (2003, "loss has been non-finite since step 2,003")
    assert store.nonfinite_since("loss") == 2003
    store.append(frame(8000, [1.0, 1.0], (), 1.0))
    assert store.nonfinite_since("loss") is None
    assert store.nonfinite_since("hookcore/time_s") is None


# -- the scope of findings ---------------------------------------------------------------------------------------------


def test_too_little_data_is_reported_and_not_called_clear() -> None:
    store = Store(2**24)
    assert examine(store).scope.verdict == "unknown"
    for step in range(5):
        store.append(frame(10 * step, [1.0, 1.0], CHAIN[:2] if step == 0 else ()))
    scope = examine(store).scope
    assert (scope.verdict, scope.captured, scope.steps) == ("unknown", 5, 41)
    assert scope.sentence == (
        "No NaN or infinity in the last 41 steps (5 captured). No evaluation was captured. "
        "Not enough captured to judge changes over time in any layer: 5 captured steps, 24 needed."
    )


def test_without_a_captured_evaluation_the_absence_of_problems_is_about_the_training_only() -> None:
    of_training, both = (Tap("a", "output"),), (Tap("a", "output"), Tap("a", "output", phase="eval"))
    for taps, evaluated in ((of_training, False), (both, True)):
        store = Store(2**24)
        for step in range(60):
            store.append(frame(step, [1.0] * len(taps), taps if step == 0 else ()))
        scope = examine(store).scope
        assert (scope.verdict, scope.evaluated) == ("clear", evaluated)
        assert scope.sentence.endswith("No evaluation was captured.") != evaluated


def test_layers_without_any_captured_step_have_none_and_not_at_most_none() -> None:
    said = [Unjudged("exploding", 1, 3, captured, 24).sentence for captured in (0, 5)]
    assert [each.partition("layers: ")[2] for each in said] == [
        "0 captured steps, 24 needed.",
        "at most 5 captured steps, 24 needed.",
    ]


def test_a_rarely_captured_layer_counts_as_not_judged() -> None:
    store = Store(2**24)
    for step in range(200):
        whole = frame(step, [1.0, 1.0, 1.0], CHAIN[:3] if step == 0 else ())
        if step % 40:
            whole = build.frame(step, whole.stats[:2])
        store.append(whole)
    scope = examine(store).scope
    assert scope.verdict == "clear"
    assert [(each.rule, each.layers, each.of) for each in scope.unjudged] == [("exploding", 1, 3)]
    assert scope.unjudged[0].sentence.endswith(" in 1 of 3 layers: captured in at most 5 spans of 2 steps, 24 needed.")


def test_steps_that_a_rule_groups_are_not_counted_as_captured_steps() -> None:
    store = Store(2**24)
    for step in [*range(29), 500]:
        store.append(frame(step, [1.0, 1.0], CHAIN[:2] if step == 0 else ()))
    assert examine(store).scope.sentence == (
        "No NaN or infinity in the last 501 steps (30 captured). No evaluation was captured. "
        "Not enough captured to judge changes over time in any layer: captured in 9 spans of 4 steps, 24 needed."
    )


def test_a_layer_that_was_zero_in_too_few_captured_steps_is_not_judged_or_called_alive() -> None:
    for steps, dead, unjudged in ((15, 0, 1), (16, 1, 0)):
        store = Store(2**24)
        for step in range(steps):
            store.append(frame(10 * step, [1.0, 0.0], CHAIN[:2] if step == 0 else (), zero=8))
        diagnosis = examine(store)
        assert sum(each.rule == "dead" for each in diagnosis.findings) == dead
        assert sum(each.rule == "dead" for each in diagnosis.scope.unjudged) == unjudged


def test_a_longer_window_is_used_if_few_steps_are_captured() -> None:
    store = Store(2**24)
    for place in range(100):
        store.append(
            frame(1000 * place, [1.0, 1e3 if place >= 90 else 1.0], CHAIN[:2] if place == 0 else (), 1.0 + place)
        )
    diagnosis = FindingsCache(store).diagnosis()
    assert [(each.rule, each.number) for each in diagnosis.findings] == [("exploding", 1)]
    assert (diagnosis.scope.captured, diagnosis.scope.captured_in_run) == (64, 100)
    assert diagnosis.scope.steps == 63_001


def test_modules_that_are_not_captured_are_counted() -> None:
    store = Store(2**24)
    store.describe((), (Coverage("a", "Linear", True), Coverage("b", "Linear", False, reason="not called")))
    store.append(frame(0, [1.0], (Tap("a", "output"),)))
    assert examine(store).scope.uncaptured == 1


def test_a_budget_that_captures_few_steps_causes_no_findings_in_a_healthy_training() -> None:
    case = Case(HEALTHY["mlp, small rate"].make, steps=250)
    diagnosis, store = diagnose(case, every=7)
    assert store.incidents() == []
    assert diagnosis.scope.sentence == (
        "No problems found in the last 250 steps (36 captured). No evaluation was captured."
    )
