"""Findings: the first bad layer comes first, layers are compared with their own past, and noise is no finding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookcore.errors import ArgumentError
from hookcore.findings import RULES, Finding, FindingsCache, findings_of, follow, key_figures_of, read_choices
from hookcore.records import KINDS, Coverage, Event, Kind, ModuleRecord, Tap
from hookcore.store import Store
from hookcore.store.incidents import around
from tests.build import append, steady, store_of
from tests.inside import module_of
from tests.lanes import examples

STEPS, LAYERS = 60, 6
WINDOW = 512  # newest steps that are examined
OUTPUTS = tuple(Tap(f"layers.{number}", "output") for number in range(LAYERS))
GRADIENTS = tuple(Tap(f"layers.{number}", "output_grad") for number in range(LAYERS))
quick = settings(deadline=None, derandomize=True, max_examples=examples(30), suppress_health_check=list(HealthCheck))
few = settings(quick, max_examples=examples(15))


def only(findings: Sequence[Finding], rule: str) -> list[Finding]:
    return [finding for finding in findings if finding.rule == rule]


# -- non-finite values -------------------------------------------------------------------------------------------------


@quick
@given(
    layer=st.integers(0, LAYERS - 1),
    step=st.integers(1, STEPS - 1),  # infinities that exist from the start are a mask
    for_ever=st.booleans(),
    what=st.sampled_from([math.nan, math.inf]),
    noise=st.floats(0, 0.5),
    kinds=st.sampled_from([OUTPUTS, GRADIENTS]),
)
def test_non_finite_values_in_any_layer_at_any_step_lead_the_list(
    layer: int, step: int, for_ever: bool, what: float, noise: float, kinds: tuple[Tap, ...]
) -> None:
    rms = steady(noise=noise)
    rms[step : None if for_ever else step + 1, layer] = what
    first, *_ = findings_of(store_of(rms, kinds))
    lasts = for_ever or step == STEPS - 1
    assert (first.rule, first.number, first.since_step, first.downstream) == ("nonfinite", layer, step, 0)
    assert first.until_step == (None if lasts else step)
    assert first.severity == ("error" if lasts else "warning")
    assert (math.isnan(first.value), math.isinf(first.value)) == (math.isnan(what), math.isinf(what))
    assert len(first.spark) <= 48
    assert all(math.isfinite(value) for value in first.spark)


@few
@given(step=st.integers(0, 700), layer=st.integers(0, LAYERS - 1), spread=st.integers(0, 3), length=st.integers(1, 40))
def test_layers_that_followed_are_counted_with_the_first(step: int, layer: int, spread: int, length: int) -> None:
    rms = steady(step + length)
    for later in range(layer, LAYERS):
        rms[step + (later - layer) * spread :, later] = math.nan
    reached = sum(step + (later - layer) * spread < len(rms) for later in range(layer, LAYERS))
    (first,) = only(findings_of(store_of(rms)), "nonfinite")
    assert (first.number, first.since_step, first.downstream) == (layer, step, reached - 1)


def test_the_first_layer_leads_in_the_forward_pass_and_the_last_in_the_backward_pass() -> None:
    rms = steady()
    rms[30:] = math.nan
    assert findings_of(store_of(rms, OUTPUTS))[0].module == "layers.0"
    assert findings_of(store_of(rms, GRADIENTS))[0].module == f"layers.{LAYERS - 1}"
    both = np.concatenate([rms, rms], axis=1)
    (first,) = findings_of(store_of(both, GRADIENTS + OUTPUTS))
    assert (first.module, first.kind, first.downstream) == ("layers.0", "output", LAYERS - 1)


def test_a_weight_made_non_finite_by_the_update_leads_the_tensors_it_spoils_in_the_next_step() -> None:
    taps = (Tap("a", "output"), Tap("b", "output"), Tap("b", "param", "weight"))
    rms = steady(taps=3)
    rms[20:, 2], rms[21:, 1] = math.nan, math.nan
    (first,) = findings_of(store_of(rms, taps))
    assert (first.kind, first.module, first.since_step, first.downstream) == ("param", "b", 20, 0)


def test_a_container_does_not_lead_in_the_backward_pass() -> None:
    taps = (Tap("block.fc", "output_grad"), Tap("block", "output_grad"), Tap("", "output_grad"))
    rms = steady(taps=3)
    rms[20:] = math.nan
    assert findings_of(store_of(rms, taps))[0].module == "block.fc"


def test_the_start_of_an_incident_is_known_however_long_ago_it_was() -> None:
    rms = steady(3 * WINDOW)
    rms[137:, 2:] = math.nan
    store, cache = Store(2**26), None
    for step, row in enumerate(rms):
        append(store, step, row, OUTPUTS if step == 0 else ())
        if step % 200 == 150:
            cache = cache or FindingsCache(store)
            assert cache.current()[0].since_step == 137
    (first,) = only(findings_of(store), "nonfinite")
    assert (first.number, first.since_step, first.downstream) == (2, 137, LAYERS - 3)
    assert cache is not None
    assert _told(cache.current()) == _told(findings_of(store))


def test_a_layer_that_recovered_long_ago_is_a_note_with_its_exact_step() -> None:
    rms = steady(WINDOW + 100)
    rms[20, 3] = math.nan
    (found,) = findings_of(store_of(rms))
    assert (found.severity, found.since_step, found.until_step, found.last_step) == ("info", 20, 20, 20)
    assert found.message == "NaN in the activation at step 20; finite again"


def test_a_tensor_that_was_infinite_before_nan_is_not_called_nan_from_its_first_step() -> None:
    rms = steady(WINDOW)
    rms[40, 3], rms[41:, 3] = math.inf, math.nan
    assert findings_of(store_of(rms))[0].message == "an infinity, then NaN in the activation since step 40"


def test_a_non_finite_gradient_discarded_by_the_scaler_is_a_note() -> None:
    rms = steady()
    rms[30] = math.inf
    store = store_of(rms, GRADIENTS)
    assert findings_of(store)[0].severity == "warning"
    store.add_event(Event(30, 0.0, "skipped-step", "GradScaler skipped a step", "warning"))
    assert findings_of(store)[0].severity == "info"
    assert "skipped" in findings_of(store)[0].message


def test_infinities_are_not_nan() -> None:
    rms = steady()
    rms[30:, 1], rms[30:, 2] = math.inf, math.nan
    (first,) = findings_of(store_of(rms))
    assert first.value == math.inf
    assert first.message == "an infinity in the activation since step 30"


# -- comparisons with the past -----------------------------------------------------------------------------------------


@quick
@given(
    noise=st.floats(0, 1.0),
    seed=st.integers(0, 1000),
    steps=st.integers(1, 300),
    kind=st.sampled_from([kind for kind in KINDS if kind != "update"]),
)
def test_steady_noise_is_not_a_finding_whatever_the_sizes_of_the_layers(
    noise: float, seed: int, steps: int, kind: Kind
) -> None:
    taps = tuple(Tap(f"layers.{number}", kind) for number in range(LAYERS))
    assert findings_of(store_of(steady(steps, noise=noise, seed=seed), taps)) == ()


@few
@given(layer=st.integers(0, LAYERS - 1), step=st.integers(20, 299), noise=st.floats(0, 0.2), size=st.floats(20, 1e9))
def test_a_spike_is_found_at_its_exact_step(layer: int, step: int, noise: float, size: float) -> None:
    rms = steady(300, noise=noise)
    rms[step, layer] = 10.0 ** np.linspace(-6, 3, LAYERS)[layer] * size
    (found,) = findings_of(store_of(rms))
    assert (found.rule, found.number, found.since_step, found.until_step) == ("spike", layer, step, step)
    assert found.value == pytest.approx(rms[step, layer])
    assert found.severity == ("warning" if found.value > 100 * found.usual else "info")


@few
@given(size=st.floats(5.5, 7.0))
def test_a_value_that_grows_step_by_step_and_falls_back_is_not_a_spike(size: float) -> None:
    rms = steady(150, noise=0.0)
    rms[60:80, 2] *= np.geomspace(1, size, 20)  # only the last few are far above the usual value
    store = follow(Store())
    for step, values in enumerate(rms):
        append(store, step, values, new=() if step else OUTPUTS)
    assert [each.rule for each in store.incidents()] == []


@few
@given(
    layer=st.integers(0, LAYERS - 1),
    onset=st.integers(110, 180),
    size=st.floats(50, 1e6),
    grows=st.booleans(),
)
def test_values_that_stay_far_above_their_past_are_exploding(layer: int, onset: int, size: float, grows: bool) -> None:
    rms = steady(200)
    rms[onset:, layer] *= np.geomspace(min(2.0, size), size, 200 - onset) if grows else size
    found = only(findings_of(store_of(rms)), "exploding")
    assert [each.number for each in found] == [layer]
    assert found[0].value > 20 * found[0].usual
    assert onset - 2 <= found[0].since_step
    assert f"since step {found[0].since_step}" in found[0].message


def test_an_old_explosion_is_still_found_by_comparison_with_the_start_of_the_run() -> None:
    rms = steady(1500)
    rms[120:, 2:] *= np.geomspace(1, 1e9, 1500 - 120)[:, None] ** 0.2 * 1e4
    store = store_of(rms[:700])
    cache = FindingsCache(store)
    assert only(cache.current(), "exploding")
    for step in range(700, 1500):
        append(store, step, rms[step])
    (found,) = cache.current()
    assert _told(cache.current()) == _told(findings_of(store))
    assert (found.rule, found.severity, found.module, found.downstream) == (
        "exploding",
        "error",
        "layers.2",
        LAYERS - 3,
    )
    assert found.value > 1e4 * found.usual
    assert found.message.endswith("since step 120")


def test_the_layer_that_exploded_first_leads_however_long_ago_it_was() -> None:
    rms = steady(2000)
    for later, layer in enumerate((4, 3, 5, 2, 1, 0)):
        rms[200 + 60 * later :, layer] *= 1e6
    store = store_of(rms[:900])
    cache = FindingsCache(store)
    cache.current()
    for step in range(900, 2000):
        append(store, step, rms[step])
    first = only(cache.current(), "exploding")[-1]
    assert _told(cache.current()) == _told(findings_of(store))
    assert (first.module, first.since_step) == ("layers.4", 200)


def test_hundredfold_growth_over_a_long_run_is_not_a_finding() -> None:
    rms = steady(1500) * np.geomspace(1, 100, 1500)[:, None]
    assert findings_of(store_of(rms)) == ()


def test_layers_that_explode_one_after_another_are_one_finding_of_the_first() -> None:
    rms = steady(100)
    for layer in range(2, LAYERS):
        rms[80 + layer - 2 :, layer] *= 1e3
    (found,) = findings_of(store_of(rms))
    assert (found.rule, found.number, found.since_step, found.downstream) == ("exploding", 2, 80, LAYERS - 3)


def test_a_gradient_far_below_its_history_vanishes_and_a_small_steady_one_does_not() -> None:
    rms = steady(100)
    rms[80:, 4] *= 1e-4
    (found,) = findings_of(store_of(rms, GRADIENTS))
    assert (found.rule, found.number, found.since_step, found.severity) == ("vanishing", 4, 80, "warning")
    assert findings_of(store_of(rms, OUTPUTS)) == ()  # only for gradients


def test_a_gradient_that_became_zero_vanishes() -> None:
    rms = steady(100)
    rms[80:, 4] = 0.0
    (found,) = findings_of(store_of(rms, GRADIENTS))
    assert (found.rule, found.number, found.value, found.since_step) == ("vanishing", 4, 0.0, 80)
    assert found.message == "the activation gradient has been zero since step 80"


def test_an_alternating_gradient_does_not_vanish_until_it_misses_several_turns() -> None:
    for turn in (3, 5, 6, 12):
        rms = steady(200)
        rms[np.arange(200) % turn != 0, 4] = 0.0  # as for a generator that takes one step for several of its critic
        assert findings_of(store_of(rms, GRADIENTS)) == ()
        rms[120:, 4] = 0.0
        (found,) = findings_of(store_of(rms, GRADIENTS))
        assert (found.rule, found.number) == ("vanishing", 4)
        assert 120 - turn < found.since_step <= 120


def test_a_gradient_that_stays_zero_keeps_vanishing_and_one_that_was_always_zero_does_not() -> None:
    rms = steady(800)
    rms[200:, 4] = 0.0
    rms[:, 2] = 0.0
    (found,) = findings_of(store_of(rms, GRADIENTS))
    assert (found.rule, found.number, found.message) == (
        "vanishing",
        4,
        "the activation gradient has been zero since step 200",
    )


def test_a_gradient_tiny_compared_with_the_others_vanishes_when_it_shrinks() -> None:
    rms = np.ones((100, LAYERS))
    rms[:, 1] = 1e-6
    assert findings_of(store_of(rms, GRADIENTS)) == ()
    rms[85:, 1] = 1e-7
    assert [(each.rule, each.number) for each in findings_of(store_of(rms, GRADIENTS))] == [("vanishing", 1)]


def test_gradients_that_all_fall_alike_are_a_note() -> None:
    rms = steady(100)
    rms[70:] *= 1e-4
    (found,) = findings_of(store_of(rms, GRADIENTS))
    assert (found.rule, found.severity, found.downstream) == ("vanishing", "info", LAYERS - 1)


def test_the_start_of_a_run_is_not_a_spike() -> None:
    rms = steady(100)
    rms[:3] *= 1e3
    assert findings_of(store_of(rms)) == ()


# -- dead, stalled, too large ------------------------------------------------------------------------------------------


def test_an_output_of_only_zeros_is_dead_since_its_last_value() -> None:
    zeros = np.zeros((STEPS, LAYERS))
    zeros[20:, 2] = 8
    zeros[:, 4] = 7.9
    zeros[::2, 5] = 8
    (found,) = findings_of(store_of(steady(), zero=zeros))
    assert (found.rule, found.number, found.since_step, found.value) == ("dead", 2, 20, 1.0)


@pytest.mark.parametrize("steps", [STEPS, 3 * WINDOW])
def test_one_of_several_results_that_was_never_anything_but_zero_is_a_note(steps: int) -> None:
    taps = (Tap("attention", "output", "0"), Tap("attention", "output", "1"), *(Tap(each, "output") for each in "abc"))
    zeros = np.zeros((steps, len(taps)))
    zeros[:, 1] = 8  # the bias of the positions, of which a cross-attention has none
    store = store_of(steady(steps, len(taps)), taps, zero=zeros)
    (found,) = findings_of(store)
    assert (found.rule, found.number, found.severity) == ("dead", 1, "info")
    assert found.message.endswith("its module's first result isn't, so it may be meant")
    assert FindingsCache(store).dead() == set()
    zeros[:20, 1] = 0
    (late,) = findings_of(store_of(steady(steps, len(taps)), taps, zero=zeros))
    zeros[:, :2] = 8
    both = findings_of(store_of(steady(steps, len(taps)), taps, zero=zeros))
    zeros[:, 1] = 0  # an activation beside the weights of an attention, which always live
    (first,) = findings_of(store_of(steady(steps, len(taps)), taps, zero=zeros))
    assert {each.severity for each in (late, *both, first)} == {"warning"}
    assert len(both) == 2


UPDATES = tuple(Tap(f"layers.{number}", "update", "weight") for number in range(LAYERS))


def test_an_update_that_is_a_large_share_of_its_weight_is_found() -> None:
    ratio = np.full((STEPS, LAYERS), 1e-3)
    ratio[40:, 1] = 0.5
    ratio[:, 4] = 2e-2
    (found,) = findings_of(store_of(steady(), UPDATES, ratio=ratio))
    assert (found.rule, found.number, found.since_step, found.stat) == ("large-update", 1, 40, "ratio")
    gate = np.full((STEPS, LAYERS), 8)
    gate[:, 1] = 7  # so few values pass through zero together
    assert not findings_of(store_of(steady(), UPDATES, ratio=ratio, count=gate))


def test_weights_that_no_longer_change_are_stalled() -> None:
    ratio = np.full((STEPS, LAYERS), 1e-3)
    ratio[40:, 1:3] = 0.0
    (found,) = findings_of(store_of(steady(), UPDATES, ratio=ratio))
    assert (found.rule, found.number, found.severity, found.downstream) == ("stalled", 1, "info", 1)


# -- all findings ------------------------------------------------------------------------------------------------------


def test_an_empty_store_has_no_finding() -> None:
    assert findings_of(Store(2**20)) == ()
    assert findings_of(store_of(np.empty((0, LAYERS)))) == ()


@few
@given(
    events=st.lists(
        st.tuples(st.integers(1, 599), st.integers(0, LAYERS - 1), st.sampled_from([math.nan, math.inf, 1e4, 0.0])),
        max_size=4,
    ),
    asked=st.sets(st.integers(1, 600), max_size=5),
)
def test_the_cache_changes_no_answer(events: list[tuple[int, int, float]], asked: set[int]) -> None:
    rms = steady(600)
    for step, layer, factor in events:
        rms[step : step + 7, layer] *= factor
    store = Store(2**24)  # it merges no rows, so later queries see the same
    cache = FindingsCache(store)
    for step, row in enumerate(rms):
        append(store, step, row, OUTPUTS if step == 0 else ())
        if step in asked:
            cache.current()
    assert _told(cache.current()) == _told(findings_of(store))


def _told(findings: Sequence[Finding]) -> list[Any]:
    return [(each.key, each.severity, each.since_step, each.until_step, each.downstream) for each in findings]


def test_unchanged_data_is_not_judged_again() -> None:
    cache = FindingsCache(store_of(steady()))
    assert cache.current() is cache.current()


def test_taps_that_are_added_later_are_judged_too() -> None:
    store = store_of(steady(40, 3), OUTPUTS[:3])
    cache = FindingsCache(store)
    assert cache.current() == ()
    rms = steady(20)
    rms[10:, 5] = math.nan
    for step, row in enumerate(rms):
        append(store, 40 + step, row, OUTPUTS[3:] if step == 0 else ())
    assert [(each.number, each.since_step) for each in cache.current()] == [(5, 50)]


@pytest.mark.parametrize("after", range(1, 5))
@pytest.mark.parametrize("read", ["steps", "taps", "incidents", "masks", "nonfinite_taps", "peaks", "latest", "events"])
@pytest.mark.parametrize("values", [(math.nan, math.inf), (math.inf, 1.0)], ids=["bad", "mask"])
def test_tensors_that_arrive_while_rules_read_the_store_do_not_disturb_them(
    monkeypatch: pytest.MonkeyPatch, read: str, after: int, values: tuple[float, float]
) -> None:
    """Pages ask for findings in threads of their own, while frames arrive."""
    rms = steady(40, 3)
    store, usual, reads = store_of(rms[:-1], OUTPUTS[:3]), getattr(Store, read), itertools.count(1)

    def reading(self: Store, *given: Any, **others: Any) -> Any:
        found = usual(self, *given, **others)
        if next(reads) == after:
            append(self, len(rms) - 1, [*rms[-1], *values], OUTPUTS[3:5])
        return found

    cache = FindingsCache(store)
    with monkeypatch.context() as patch:
        patch.setattr(Store, read, reading)
        cache.current()
    step = (store.steps().newest or 0) + 1
    append(store, step, [*rms[-1], *values], OUTPUTS[3:5] if store.taps_known == 3 else ())
    (first,) = only(cache.current(), "nonfinite")
    assert (first.number, first.severity) == (3, "info" if math.isfinite(values[1]) else "error")


def test_uncaptured_steps_leave_no_gap() -> None:
    store = Store(2**26)
    rms = steady(100)
    rms[80:, 1] *= 1e3
    for place, row in enumerate(rms):
        append(store, 5 * place, row, OUTPUTS if place == 0 else ())
    assert [(each.rule, each.since_step) for each in findings_of(store)] == [("exploding", 400)]


def test_long_uncaptured_stretches_are_not_a_finding() -> None:
    store = Store(2**26)
    for place, step in enumerate((0, 1, 2, 300, 301, 500)):
        append(store, step, steady(1)[0], OUTPUTS if place == 0 else ())
        assert findings_of(store) == ()
    append(store, 900, [math.nan] * LAYERS)
    (found,) = findings_of(store)
    assert (found.culprit_known, found.module, found.earliest_step, found.since_step) == (False, "", 501, 900)


def test_keys_are_stable_while_a_rule_finds_a_tap_and_differ_between_taps() -> None:
    rms = steady(100)
    rms[60:, 1] = math.nan
    one = findings_of(store_of(rms[:70]))[0]
    two = findings_of(store_of(rms))[0]
    assert one.key == two.key == "nonfinite:layers.1 output"
    event = Event(3, 1.5, "note", "text", module="a")
    assert event.key == Event(3, 1.5, "note", "text", module="a").key
    assert event.key != Event(4, 1.5, "note", "text", module="a").key


OUR_OWN = (  # rules that SageMaker Debugger doesn't have
    *("loss", "spike", "not-in-optimizer", "frozen-by-mistake", "duplicate-in-optimizers"),
    *("batch-norm-drift", "gradient-clipped-always", "rank-collapse", "attention-entropy-collapse", "desync"),
    *("learning-rate-too-high", "learning-rate-too-low", "never-used", "slow-data-loading", "long-evaluation"),
    *("idle-gpu", "late-rank", "state-stays-zero", "second-moments", "spike-precursor"),
    *("dead-expert", "router-collapse", "outlier-channel", "dominant-micro-batch", "gradient-underflow"),
    *("float8-clipped", "uneven-expert-ranks"),
    *("attention-logit-growth", "attention-first-token", "dead-heads"),
)


def test_every_rule_explains_itself() -> None:
    for name, rule in RULES.items():
        assert rule.name == name
        assert len(rule.help) > 40
        assert rule.title
        assert len(rule.causes) == 3
        assert rule.tries
        assert rule.known_as or name in OUR_OWN
    with pytest.raises(ArgumentError, match="is not a rule") as caught:
        read_choices({"no-rule": False})
    listed = str(caught.value).partition("the rules are ")[2].partition(".")[0]
    assert set(listed.split(", ")) == set(RULES)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, LAYERS - 1)), max_size=20), st.integers(0, 4))
def test_every_onset_is_in_one_group_led_by_the_earliest(onsets: list[tuple[int, int]], gap: int) -> None:
    groups = module_of("Group", "findings").groups_of(onsets, range(LAYERS), OUTPUTS, gap)
    assert all(two.column - one.column > gap for one, two in itertools.pairwise(groups))
    for column, place in onsets:
        leader = [group for group in groups if group.column <= column][-1]
        assert (leader.column, leader.place) <= (column, place)


def test_the_ancestors_of_a_module_are_all_paths_above_it() -> None:
    assert around(["a.b.c", "a.d", ""]) == {"a.b", "a", ""}


# -- the key figures ---------------------------------------------------------------------------------------------------


def test_key_figures_of_a_run() -> None:
    taps = (Tap("a", "output"), Tap("a", "param_grad", "weight"), Tap("b", "param_grad", "weight"))
    store = Store(2**24)
    for step in range(20):
        scalars = {"lr": 0.1, "loss": 1.0 / (step + 1), "hookcore/cost": 0.04, "hookcore/every": 2.0}
        append(store, step, [1.0, 3.0, 4.0], taps if step == 0 else (), scalars=scalars)
    modules = [ModuleRecord("a", "Linear", ""), ModuleRecord("b", "Linear", ""), ModuleRecord("c", "ReLU", "")]
    store.describe(modules, [Coverage(each.path, each.type, each.path != "c") for each in modules])
    figures = key_figures_of(store)
    assert (figures.first_step, figures.newest_step, figures.steps) == (0, 19, 20)
    assert figures.steps_per_s == pytest.approx(2.0)
    assert figures.loss is not None
    assert (figures.loss.name, figures.loss.value, figures.loss.step) == ("loss", pytest.approx(0.05), 19)
    assert {each.name for each in figures.scalars} == {"loss", "lr"}
    assert figures.gradient_kind == "param_grad"
    assert figures.gradient_norm is not None
    assert figures.gradient_norm.value == pytest.approx(5.0)
    assert figures.smallest_gradient is not None
    assert figures.largest_gradient is not None
    assert (figures.smallest_gradient.tap, figures.largest_gradient.tap) == (taps[1], taps[2])
    assert (figures.modules_captured, figures.modules, figures.taps) == (2, 3, 3)
    assert figures.nonfinite_modules == ()


def test_the_norm_of_gradients_is_nan_if_one_of_them_is_non_finite() -> None:
    store = store_of([[1.0, math.nan, 2.0]], GRADIENTS[:3])
    figures = key_figures_of(store)
    assert figures.gradient_kind == "output_grad"
    assert figures.gradient_norm is not None
    assert math.isnan(figures.gradient_norm.value)
    assert figures.nonfinite_modules == ("layers.1",)
    assert figures.largest_gradient is not None
    assert figures.largest_gradient.value == 2.0


def test_a_gradient_that_is_zero_but_for_a_nan_is_not_the_smallest() -> None:
    figures = key_figures_of(store_of([[1.0, 0.0, 2.0]], GRADIENTS[:3], nan=[[0, 4, 0]]))
    assert figures.smallest_gradient is not None
    assert figures.smallest_gradient.value == 1.0


def test_key_figures_of_an_empty_run_are_none() -> None:
    figures = key_figures_of(Store(2**20))
    assert figures.newest_step is None
    assert figures.loss is None
    assert figures.gradient_norm is None
    assert figures.steps_per_s is None
