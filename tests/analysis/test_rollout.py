"""Attention rollout, compared with plain loops in exact fractions, checked by its properties, and over REST."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore.errors import ArgumentError
from hookcore.records import STAT_COLUMN, ModuleRecord, Snapshot, Tap
from hookcore_app.analysis.attention import AttentionLayer, is_attention, maps_of, rollout
from tests.api_world import World, csv_columns, floats, make_frame, npy, same
from tests.lanes import examples

FUSES = ("mean", "max", "min")


def attention(seed: int, samples: int = 2, heads: int = 3, size: int = 5, causal: bool = False) -> Any:
    """Return maps whose rows sum to 1."""
    scores = np.random.default_rng(seed).normal(0, 2, (samples, heads, size, size))
    if causal:
        scores = np.where(np.tri(size, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def layers_of(seed: int, many: int = 3, size: int = 5, heads: int = 3) -> list[AttentionLayer]:
    """Return layers with gradients."""
    draw = np.random.default_rng(seed + 1000)
    return [
        AttentionLayer(
            f"layer {place}",
            attention(seed + place, heads=heads, size=size),
            draw.normal(0, 1e-5, (2, heads, size, size)),
        )
        for place in range(many)
    ]


def by_hand(
    layers: list[AttentionLayer], sample: int, fuse: str, discard: float, gradient: bool
) -> list[list[Fraction]]:
    """Compute the rollout in exact fractions, element by element."""
    size = layers[0].weights.shape[-1]
    found = [[Fraction(int(row == column)) for column in range(size)] for row in range(size)]
    for layer in layers:
        matrix = [_row_by_hand(layer, sample, row, fuse, discard, gradient) for row in range(size)]
        found = [
            [sum((matrix[row][k] * found[k][column] for k in range(size)), Fraction(0)) for column in range(size)]
            for row in range(size)
        ]
    return found


def _row_by_hand(
    layer: AttentionLayer, sample: int, row: int, fuse: str, discard: float, gradient: bool
) -> list[Fraction]:
    heads = range(layer.weights.shape[1])
    size = layer.weights.shape[-1]
    weights = []
    for column in range(size):
        values = [Fraction(float(layer.weights[sample, head, row, column])) for head in heads]
        if gradient and layer.gradient is not None:
            slopes = [Fraction(float(layer.gradient[sample, head, row, column])) for head in heads]
            values = [max(value * slope, Fraction(0)) for value, slope in zip(values, slopes, strict=True)]
        weights.append({"mean": sum(values, Fraction(0)) / len(values), "max": max(values), "min": min(values)}[fuse])
    if gradient:
        total = sum(weights)
        weights = [each / total for each in weights] if total else [Fraction(int(row == k)) for k in range(size)]
    for place in sorted(range(size), key=lambda k: weights[k])[: min(int(discard * size), size - 1)]:
        if place != 0:
            weights[place] = Fraction(0)
    mixed = [each / 2 + Fraction(int(row == place), 2) for place, each in enumerate(weights)]
    return [each / sum(mixed) for each in mixed]


@pytest.mark.parametrize("fuse", FUSES)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("discard", [0.0, 0.3, 0.9])
def test_the_rollout_equals_exact_arithmetic(fuse: Any, gradient: bool, discard: float) -> None:
    layers = layers_of(3)
    for sample in (0, 1):
        found = rollout(layers, sample=sample, fuse=fuse, discard=discard, gradient=gradient)
        expected = np.array(by_hand(layers, sample, fuse, discard, gradient), float)
        assert np.allclose(found, expected, rtol=1e-12, atol=1e-15)


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(2, 9),
    st.sampled_from(FUSES),
    st.floats(0, 0.99),
    st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_row_sums_to_one_and_nothing_is_negative(
    seed: int, many: int, size: int, fuse: Any, discard: float, gradient: bool
) -> None:
    found = rollout(layers_of(seed, many, size), fuse=fuse, discard=discard, gradient=gradient)
    assert np.allclose(found.sum(-1), 1, atol=1e-12)
    assert (found >= 0).all()


@given(st.integers(0, 10_000), st.permutations(range(5)))
@settings(max_examples=examples(30), deadline=None)
def test_permuted_positions_give_the_permuted_rollout(seed: int, order: list[int]) -> None:
    layers = layers_of(seed)
    moved = [
        AttentionLayer(each.name, each.weights[..., order, :][..., order], each.gradient[..., order, :][..., order])  # type: ignore[index]
        for each in layers
    ]
    for gradient in (False, True):
        expected = rollout(layers, gradient=gradient)[order][:, order]
        assert np.allclose(rollout(moved, gradient=gradient), expected, rtol=1e-12)


def test_causal_attention_stays_causal() -> None:
    layers = [AttentionLayer(str(place), attention(place, causal=True)) for place in range(4)]
    assert np.triu(rollout(layers), 1).max() == 0


def test_discarding_keeps_the_first_position_and_the_largest_weight() -> None:
    weights = np.array([[[[0.01, 0.29, 0.7], [0.01, 0.5, 0.49], [0.9, 0.06, 0.04]]]])
    found = rollout([AttentionLayer("one", weights)], discard=0.99)
    assert (found[:, 0] > 0).all()
    assert found[0, 1] == 0
    assert found[0, 2] > 0
    assert found[2, 1] == 0


def test_a_gradient_against_all_attention_leaves_the_identity() -> None:
    weights = attention(1)
    assert np.array_equal(rollout([AttentionLayer("one", weights, -np.ones_like(weights))], gradient=True), np.eye(5))


def test_gradients_need_no_scale() -> None:
    weights, slope = attention(1), np.random.default_rng(1).normal(size=(2, 3, 5, 5))
    found = [rollout([AttentionLayer("one", weights, slope * scale)], gradient=True) for scale in (1.0, 1e-300, 1e250)]
    assert np.allclose(found[0], found[1], rtol=1e-9)
    assert np.allclose(found[0], found[2], rtol=1e-9)


def test_maps_that_cannot_be_rolled_out_are_refused_with_a_reason() -> None:
    one = AttentionLayer("one", attention(1))
    with pytest.raises(ArgumentError, match="at least one layer"):
        rollout([])
    with pytest.raises(ArgumentError, match=r"two 4 x 4.*match="):
        rollout([one, AttentionLayer("two", attention(1, size=4))])
    with pytest.raises(ArgumentError, match="one size"):
        rollout([AttentionLayer("cross", attention(1)[..., :3, :])])
    with pytest.raises(ArgumentError, match="sample=2 was not captured"):
        rollout([one], sample=2)
    with pytest.raises(ArgumentError, match="one has no attention gradient"):
        rollout([one], gradient=True)
    with pytest.raises(ArgumentError, match="differ in shape"):
        rollout([AttentionLayer("one", one.weights, one.weights[:1])], gradient=True)
    with pytest.raises(ArgumentError, match="discard=1"):
        rollout([one], discard=1)


def test_attention_maps_are_distinguished_from_other_outputs() -> None:
    weights = attention(1).astype(np.float32)
    assert is_attention(weights, dropped=True)
    assert is_attention(weights[:, 0], dropped=True)
    assert is_attention(weights.astype(np.float16), dropped=True)
    masked = weights.copy()
    masked[0, 0, 2] = np.nan
    assert is_attention(masked, dropped=True)
    drawn = np.random.default_rng(0).random((8, 4, 32, 32)) > 0.1
    after_dropout = attention(2, 8, 4, 32) * drawn / 0.9
    assert is_attention(after_dropout, dropped=True)
    assert not is_attention(after_dropout, dropped=False)
    assert not is_attention(weights * 2, dropped=True)
    assert not is_attention(weights - 0.1, dropped=True)
    assert not is_attention(weights[..., :3, :], dropped=True)
    assert not is_attention(weights[0, 0], dropped=True)
    assert not is_attention(np.eye(4, dtype=np.int64)[None], dropped=True)
    assert not is_attention(np.full((1, 3, 3), np.nan), dropped=True)
    assert not is_attention(np.empty((0, 3, 3)), dropped=True)
    assert maps_of(weights[:, 0]).shape == (2, 1, 5, 5)


# -- over REST ---------------------------------------------------------------------------------------------------------


def test_a_map_that_a_module_passes_on_counts_once(world: World) -> None:
    inner = Tap("blocks.0.attn.softmax", "output")
    weights = attention(1).astype(np.float32)
    keep(world, ATTENTION[0], 20, weights, 101)
    keep(world, inner, 20, weights, 102)
    keep(world, Tap(inner.module, "output_grad"), 20, weights, 103)
    assert [each["number"] for each in world.json("attention-rollout")["layers"]] == [102]
    keep(world, Tap("blocks.2", "output"), 20, weights, 104)
    assert len(world.json("attention-rollout")["layers"]) == 2


def test_a_rectified_output_is_no_attention_after_dropout(world: World) -> None:
    weights = attention(1).astype(np.float32)
    rectified = np.maximum(np.random.default_rng(3).normal(size=(2, 4, 5, 5)), 0).astype(np.float32)
    rectified /= rectified.sum(axis=-1).mean()
    keep(world, ATTENTION[0], 20, weights, 101)
    keep(world, Tap("features.1", "output"), 20, rectified, 102)
    keep(world, Tap("features.attention_dropout", "output"), 20, rectified, 103)
    assert [each["number"] for each in world.json("attention-rollout")["layers"]] == [101, 103]


def test_a_model_that_returns_the_maps_of_all_its_layers_adds_none(world: World) -> None:
    for place, layer in enumerate(ATTENTION):
        weights = attention(place).astype(np.float32)
        keep(world, layer, 20, weights, 110 + place)
        keep(world, Tap("", "output", f"attentions.{place}"), 20, weights, 120 + place)
        keep(world, Tap("blocks", "output", f"attentions.{place}"), 20, weights, 130 + place)
    assert [each["number"] for each in world.json("attention-rollout")["layers"]] == [110, 111]


def test_a_missing_gradient_is_not_requested(world: World) -> None:
    without = Tap("blocks.1.attn", "output_grad", "1")
    world.run.store.append(make_frame(21, [0.1] * 5, new_taps=(without,)))
    asked = [each["tap"] for each in world.client.post("/api/v1/attention-rollout").json()["asked"]]
    gradients = [each["module"] for each in asked if each["kind"] == "output_grad"]
    assert gradients == ["blocks.0.attn"]


ATTENTION = (Tap("blocks.0.attn", "output", "1"), Tap("blocks.1.attn", "output", "1"))
GRADIENT = Tap("blocks.0.attn", "output_grad", "1")


@pytest.fixture
def world() -> World:
    """Return the REST fixture with two attention layers that are announced out of order."""
    world = World()
    records = [
        ModuleRecord(path, kind, None) for path, kind in (("blocks.0.attn", "Attention"), ("blocks.1.attn", "Mix"))
    ]
    world.run.store.describe(records, [], [])
    frame = make_frame(20, [0.1] * 8, new_taps=(ATTENTION[1], ATTENTION[0], GRADIENT))
    columns = [STAT_COLUMN[name] for name in ("mean", "min", "max", "zero")]
    frame.stats[5:7, columns] = [[0.2, 0.0, 0.9, 0.0], [0.2, 0.0, 1.0, 40.0]]
    frame.stats[:5, columns[1]] = -0.1
    world.run.store.append(frame)
    return world


def keep(world: World, tap: Tap, step: int, values: Any, number: int) -> None:
    world.run.store.add_snapshot(Snapshot(tap, step, 1.0, "float32", values.shape, values, number=number))
    world.run.changes.tell()


def test_possible_attention_maps_are_requested_together(world: World) -> None:
    answer = world.client.post("/api/v1/attention-rollout")
    assert answer.status_code == 202
    said = answer.json()
    asked = {(each["tap"]["module"], each["tap"]["kind"]): each["number"] for each in said["asked"]}
    assert set(asked) == {("blocks.0.attn", "output"), ("blocks.1.attn", "output"), ("blocks.0.attn", "output_grad")}
    waiting = {command.number: command.tap for command in world.run.commands}
    assert set(waiting) == set(asked.values())
    assert waiting[asked["blocks.0.attn", "output_grad"]] == GRADIENT
    assert "layers" not in str(world.client.post("/api/v1/attention-rollout?match=blocks.1*").json()["asked"])


def test_maps_of_fused_attention_that_was_measured_are_requested_and_rolled_out(world: World) -> None:
    measured = (Tap("fused", "probe", "heads entropy"), Tap("fused", "probe", "heads entropy 1"))
    evaluated = (
        Tap("fused", "probe", "heads entropy", phase="eval"),
        Tap("tower", "probe", "heads entropy", phase="eval"),
    )
    others = Tap("fused", "probe", "heads distance"), Tap("fused", "probe", "rank entropy")
    labels = {"probe heads": "hookcore.probes.attention", "probe rank": "own.rank"}
    world.run.store.append(
        make_frame(21, [0.5] * 6, new_taps=(*measured, *others, *evaluated), numbers=range(8, 14), labels=labels)
    )
    asked = [each["tap"] for each in world.client.post("/api/v1/attention-rollout").json()["asked"]]
    found = [(each["kind"], each["index"]) for each in asked if each["module"] == "fused"]
    assert found == [("output", "recomputed attention"), ("output", "recomputed attention 1")]
    phases = {each["module"]: each["phase"] for each in asked if each["index"] == "recomputed attention"}
    assert phases == {"fused": "train", "tower": "eval"}
    keep(world, Tap("fused", "output", "recomputed attention"), 22, attention(1, causal=True).astype(np.float32), 101)
    assert [each["number"] for each in world.json("attention-rollout")["layers"]] == [101]


def test_a_run_without_attention_says_how_to_get_it(world: World) -> None:
    answer = world.client.post("/api/v1/attention-rollout?match=head")
    assert answer.status_code == 404
    assert "need_weights=True" in answer.json()["error"]
    said = world.json("attention-rollout")
    assert (said["step"], said["steps"], said["layers"], said["matrix"]) == (None, [], [], [])
    assert "POST /api/v1/attention-rollout" in world.error("attention-rollout", 404, step=3)


def test_the_rollout_of_captured_maps_is_available_in_every_format(world: World) -> None:
    maps = [attention(place).astype(np.float32) for place in range(2)]
    slope = np.random.default_rng(5).normal(size=maps[0].shape).astype(np.float32)
    keep(world, ATTENTION[1], 20, maps[1], 101)
    keep(world, ATTENTION[0], 20, maps[0], 102)
    keep(world, GRADIENT, 20, slope, 103)
    keep(world, ATTENTION[0], 12, maps[1], 99)
    layers = [AttentionLayer("0", maps_of(maps[0]), maps_of(slope)), AttentionLayer("1", maps_of(maps[1]))]
    said = world.json("attention-rollout", sample=1, fuse="max", discard=0.3)
    assert same(said["matrix"], rollout(layers, sample=1, fuse="max", discard=0.3))
    assert [each["number"] for each in said["layers"]] == [102, 101]
    assert [each["gradient"] for each in said["layers"]] == [103, None]
    assert (said["step"], said["steps"], said["samples"], said["layers"][0]["heads"]) == (20, [12, 20], 2, 3)
    expected = rollout(layers)
    assert same(npy(world.get("attention-rollout", "application/x-npy").content), expected)
    lines = csv_columns(world.get("attention-rollout", format="csv").content)
    assert same(floats(list(lines.values())).T, expected)
    assert world.json("attention-rollout", step=12)["layers"][0]["number"] == 99
    assert "of step 13: available steps: 12, 20" in world.error("attention-rollout", 404, step=13)
    only = world.json("attention-rollout", match="blocks.0*", gradient="true")
    assert same(only["matrix"], rollout(layers[:1], gradient=True))
    assert "blocks.1.attn has no attention gradient" in world.error("attention-rollout", 400, gradient="true")
    assert "sample=7" in world.error("attention-rollout", 400, sample=7)
