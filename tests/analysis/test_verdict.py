"""A verdict on two runs says what was compared and what couldn't be. Values that weren't compared are never equal."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hookcore.records import Tap
from hookcore.store import Store
from hookcore_app.analysis.comparison import ComparisonQuery
from hookcore_app.analysis.verdict import Verdict, compare_runs, sweep_of
from tests.api_world import make_frame

NAN = math.nan
TAPS = (Tap("0", "output"), Tap("1", "output"))


def run_of(
    captured: dict[int, list[float]],
    losses: dict[int, float] | None = None,
    taps: tuple[Tap, ...] = TAPS,
    name: str = "loss",
) -> Store:
    """Return a run that captured some steps, and logged a loss in some."""
    store = Store(8_000_000)
    losses = losses or {}
    for step in sorted({*captured, *losses}):
        scalars = {name: losses[step]} if step in losses else {}
        values = captured.get(step, [])
        new = taps if step == min({*captured, *losses}) else ()
        store.append(make_frame(step, values, new_taps=new, scalars=scalars))
    return store


def verdict_of(one: Store, two: Store, tolerance: float = 0.0) -> Verdict:
    return compare_runs(one, two, ComparisonQuery("rms", tolerance=tolerance))


def losses(values: dict[int, float] | None = None, steps: int = 150) -> dict[int, float]:
    """Return a loss for every step, with some of them changed."""
    return {step: 1.0 / (step + 1) for step in range(steps)} | (values or {})


def test_equal_captured_steps_do_not_hide_a_different_loss() -> None:
    captured = {step: [1.0, 2.0] for step in range(0, 150, 3)}
    verdict = verdict_of(run_of(captured, losses()), run_of(captured, losses({101: 1e29, 102: NAN})))
    assert verdict.outcome == "different"
    assert verdict.say() == [
        "The runs first differ at step 101, in the logged value loss.",
        "The layers do not differ in the 50 steps that both runs captured.",
        "100 steps could not be compared: run A captured 50 steps, run B captured 50, and both captured 50.",
        "loss differs from step 101 on.",
    ]


def test_of_the_tensors_that_differ_first_the_one_that_caused_the_others_is_named() -> None:
    kinds = ("param_grad", "update", "output_grad", "output", "param")
    taps = tuple(Tap("0", kind, "" if "output" in kind else "weight") for kind in kinds)
    for cause in ("output", "param"):
        same = {step: [1.0] * 5 for step in range(4)}
        other = {
            step: [2.0 if step > 1 and (cause, kind) != ("output", "param") else 1.0 for kind in kinds] for step in same
        }
        parting = verdict_of(run_of(same, taps=taps), run_of(other, taps=taps)).parting
        assert parting is not None
        assert (parting.tap.kind, parting.parts_at) == (cause, 2)


def test_runs_without_a_common_step_are_never_equal() -> None:
    even, odd = ({step: [1.0, 2.0] for step in range(start, 100, 2)} for start in (0, 1))
    verdict = verdict_of(run_of(even), run_of(odd))
    assert verdict.outcome == "unknown"
    assert verdict.say()[:2] == [
        "Nothing was compared: no step was captured by both runs.",
        "100 steps could not be compared: run A captured 50 steps, run B captured 50, and both captured 0.",
    ]
    assert [(layer.outcome, layer.points, layer.parts_at) for layer in verdict.layers] == [
        ("not compared", 0, None)
    ] * 2
    assert all(math.isnan(layer.share) for layer in verdict.layers)


def test_equal_losses_without_a_common_captured_step_give_no_verdict_on_the_layers() -> None:
    even, odd = ({step: [1.0, 2.0] for step in range(start, 20, 2)} for start in (0, 1))
    verdict = verdict_of(run_of(even, losses(steps=20)), run_of(odd, losses(steps=20)))
    assert verdict.outcome == "unknown"
    assert "loss is the same in 20 steps that both runs logged." in verdict.say()


def test_a_loss_that_hookcore_found_is_called_as_on_the_pages() -> None:
    captured, unchanged = {step: [1.0, 2.0] for step in range(4)}, losses(steps=4)
    one, equal, bad = (run_of(captured, each, name="backward/loss") for each in (unchanged, unchanged, {3: NAN}))
    assert verdict_of(one, equal).say()[-1] == "loss is the same in 4 steps that both runs logged."
    assert verdict_of(bad, bad).say()[-1] == "loss is NaN or infinite in both runs, first at step 3."


def test_nan_in_both_runs_is_reported_as_nan_and_not_as_equal() -> None:
    captured = {0: [1.0, 2.0], 1: [NAN, 2.0], 2: [NAN, 2.0]}
    verdict = verdict_of(run_of(captured, {2: NAN}), run_of(captured, {2: NAN}))
    assert verdict.outcome == "no difference"
    assert [layer.outcome for layer in verdict.layers] == ["NaN in both", "no difference"]
    assert (verdict.layers[0].nonfinite, verdict.layers[0].nonfinite_at) == (2, 1)
    assert verdict.say()[-1] == "1 layer and loss are NaN or infinite in both runs, first at step 1."


def test_a_verdict_without_differences_says_how_much_was_compared() -> None:
    captured = {step: [1.0, 2.0] for step in range(50)}
    verdict = verdict_of(run_of(captured, losses(steps=50)), run_of(captured, losses(steps=50)))
    assert verdict.outcome == "no difference"
    assert verdict.say() == [
        "No difference in the 50 steps that both runs captured.",
        "loss is the same in 50 steps that both runs logged.",
    ]


def test_a_verdict_says_if_no_logged_value_was_compared() -> None:
    verdict = verdict_of(run_of({0: [1.0, 2.0]}, {0: 1.0}), run_of({0: [1.0, 2.0]}))
    assert verdict.say()[-1] == "Neither loss nor any other logged value was compared: the runs share none."


def test_a_layer_without_common_steps_is_counted_among_others() -> None:
    one = run_of({0: [1.0, 2.0], 1: [1.0, 2.0]})
    two = run_of({0: [1.0], 1: [1.0]}, taps=TAPS[:1])
    two.append(make_frame(2, [1.0, 2.0], new_taps=TAPS[1:]))
    assert "1 layer was not compared: no step in common." in verdict_of(one, two).say()


def test_merged_steps_are_compared_only_if_both_runs_merged_as_many() -> None:
    every = {step: [1.0, 2.0] for step in range(4000)}
    some = {step: [1.0, 2.0] for step in range(4000) if step % 3}
    one, two = Store(1 << 20), Store(1 << 20)  # small, so that old steps are merged
    for store, captured in ((one, every), (two, some)):
        for step, values in captured.items():
            store.append(make_frame(step, values, new_taps=TAPS if not store.taps().taps else ()))
    assert (one.series(0, "rms").last_step > one.series(0, "rms").first_step).any()
    verdict = verdict_of(one, two)
    assert 0 < verdict.extent.compared <= len(some)
    assert verdict.extent.compared + verdict.extent.not_comparable == 4000


def test_if_old_steps_were_merged_the_first_difference_is_a_range_of_steps() -> None:
    one, two = Store(1 << 20), Store(1 << 20)  # small, so that old steps are merged
    for store in (one, two):
        for step in range(4000):
            apart = store is two and step >= 1001
            values, new = [1.0 + apart, 2.0 + apart], TAPS if not step else ()
            scalars = {"loss": NAN if step >= 1501 else 1.0 + apart}
            store.append(make_frame(step, values, new_taps=new, scalars=scalars))
    verdict = verdict_of(one, two)
    layer, logged = verdict.layers[0], verdict.logged[0]
    for apart in (layer, logged):
        assert apart.parts_at < 1001 <= apart.parts_by
    assert logged.nonfinite_at <= 1501 <= logged.nonfinite_by
    said = " ".join(verdict.say())
    assert (
        f"The runs first differ between steps {layer.parts_at:,} and {layer.parts_by:,}, in the activation of 0."
        in said
    )
    assert "2 of them start to differ in the same merged steps: it is unknown which of these was first." in said
    assert f"loss first differs between steps {logged.parts_at:,} and {logged.parts_by:,}." in said
    assert f"first between steps {logged.nonfinite_at:,} and {logged.nonfinite_by:,}." in said


@pytest.mark.parametrize(("tolerance", "outcome"), [(0.0, "different"), (0.6, "no difference")])
def test_the_tolerance_applies_to_logged_values_too(tolerance: float, outcome: str) -> None:
    one, two = (run_of({0: [1.0, 2.0]}, {0: loss}) for loss in (1.0, 2.0))
    verdict = verdict_of(one, two, tolerance)
    assert verdict.outcome == outcome
    assert ("Differences of up to 60% of the larger value don't count." in verdict.say()) == (tolerance > 0)


def test_hookcores_own_numbers_are_not_part_of_a_verdict() -> None:
    one, two = run_of({0: [1.0, 2.0]}), run_of({0: [1.0, 2.0]})
    assert one.scalar_names()
    assert verdict_of(one, two).logged == []


def test_a_run_without_steps_is_not_compared() -> None:
    verdict = verdict_of(run_of({0: [1.0, 2.0]}), Store(8_000_000))
    assert verdict.outcome == "unknown"
    assert verdict.say()[0] == "Nothing was compared: no layer was captured in both runs."


def test_the_best_of_a_sweep_is_named_with_its_setting_and_from_where_on_runs_diverge() -> None:
    rates = [0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    losses = [2.27, 1.87, 0.44, 0.29, 0.45, 2.29, 6e9, math.nan]
    runs = [f"run{place}" for place in range(8)]
    reached, names = dict(zip(runs, losses, strict=True)), {run: run.upper() for run in runs}
    settings: dict[str, dict[str, Any]] = {
        "seed": {run: place % 2 for place, run in enumerate(runs)},
        "lr": dict(zip(runs, rates, strict=True)),
    }
    found = sweep_of("loss", reached, settings, names, {"run6": 3, "run7": 8})
    assert found is not None
    assert (found.best, found.diverged, found.lower) == ("run3", ("run6", "run7"), True)
    assert found.sentence == "lr 0.1 is best of 8, with loss 0.29; 3 and above diverge by step 8."
    assert [each.name for each in found.weights] == ["lr", "seed"]
    lr, seed = found.weights
    assert lr.share > 0.4 > seed.share
    assert lr.by_chance < 0.3 < seed.by_chance  # eight runs say little
    assert sweep_of("loss", reached, settings, names, {}) == replace(
        found, sentence="lr 0.1 is best of 8, with loss 0.29; 3 and above diverge."
    )


def test_a_run_that_crashed_is_not_the_best() -> None:
    reached, names = {"a": 0.2, "b": 0.5, "c": 0.9}, {"a": "A", "b": "B", "c": "C"}
    found = sweep_of("loss", reached, {}, names, {}, crashed=["a"])
    assert found is not None
    assert (found.best, found.diverged) == ("b", ())
    assert found.sentence == "B is best of 3, with loss 0.5. 1 run crashed, and can't be the best."
    none = sweep_of("loss", reached, {}, names, {}, crashed=list(reached))
    assert none is not None
    assert none.best == ""
    assert none.sentence.startswith("None of 3 runs ended without a crash or divergence.")


def test_the_direction_of_a_result_follows_its_name_unless_it_is_chosen() -> None:
    reached, names = {"a": 0.5, "b": 0.9}, {"a": "A", "b": "B"}
    best = {better: sweep_of("val/acc", reached, {}, names, {}, better) for better in ("", "low", "high")}
    assert {better: found.best for better, found in best.items() if found} == {"": "b", "low": "a", "high": "b"}
    assert best[""] is not None
    assert best[""].sentence == "B is best of 2, with val/acc 0.9."
    assert sweep_of("loss", {"a": math.nan, "b": math.inf}, {}, names, {}) is not None
    assert sweep_of("loss", {"a": 1.0}, {}, names, {}) is None
