"""The sketch: every float in exactly one correct bin, exact merging, and quantiles within their stated error."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookcore.errors import ArgumentError
from hookcore.records import sketch
from hookcore.records.sketch import Sketch, bins_of
from tests.sketches import block_of, merged, shifted, sketch_of, sketch_of_row

DOUBLES = st.floats(allow_nan=True, allow_infinity=True, width=64)
LISTS = st.lists(DOUBLES, max_size=60)
SMALLEST, LARGEST = 2.0**sketch.MIN_EXPONENT, 2.0**sketch.MAX_EXPONENT  # the ends of the bins
IN_RANGE = st.floats(SMALLEST, LARGEST, exclude_max=True)
SIGNED = st.builds(lambda value, sign: value * sign, IN_RANGE, st.sampled_from([-1.0, 1.0]))


def bin_by_definition(value: float) -> int:
    """Return the bin by `frexp` and comparisons, one value at a time, without tables or bit tricks."""
    if math.isnan(value):
        return sketch.NAN
    if value == 0:
        return sketch.ZERO
    positive = value > 0
    magnitude = abs(value)
    if math.isinf(magnitude):
        return sketch.POS_INF if positive else sketch.NEG_INF
    if magnitude < 2.0**sketch.MIN_EXPONENT:
        return sketch.POS_UNDER if positive else sketch.NEG_UNDER
    if magnitude >= 2.0**sketch.MAX_EXPONENT:
        return sketch.POS_OVER if positive else sketch.NEG_OVER
    mantissa, exponent = math.frexp(magnitude)  # mantissa in [0.5, 1)
    eighth = int((mantissa * 2 - 1) * 8)
    step = (exponent - 1 - sketch.MIN_EXPONENT) * 8 + eighth
    return sketch.POS_FIRST + step if positive else sketch.NEG_FIRST + sketch.MAGNITUDES - 1 - step


def rank_value(values: np.ndarray, q: float) -> float:
    kept = np.sort(values[~np.isnan(values)])
    return float(kept[max(1, math.ceil(q * len(kept))) - 1])


def over(made: Sketch) -> int:
    """Return the number of finite values above the range."""
    return int(made.counts[[sketch.NEG_OVER, sketch.POS_OVER]].sum())


def quantile(made: Sketch, q: float) -> float:
    return float(made.quantiles([q])[0])


@given(DOUBLES)
def test_every_double_has_the_bin_of_its_definition(value: float) -> None:
    assert bins_of(value) == bin_by_definition(value)


@given(st.integers(0, 2**64 - 1))
def test_every_bit_pattern_of_a_double_has_its_bin(pattern: int) -> None:
    value = np.uint64(pattern).view(np.float64)
    assert bins_of(value) == bin_by_definition(float(value))


def test_every_half_precision_float_has_its_bin() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    assert bins_of(halves).tolist() == [bin_by_definition(float(half)) for half in halves]


def test_every_bfloat16_has_its_bin() -> None:
    wide = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        assert bins_of(wide).tolist() == [bin_by_definition(float(value)) for value in wide]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("exponent", [sketch.MIN_EXPONENT, -1, 0, 1, sketch.MAX_EXPONENT])
def test_neighbors_of_an_edge_are_on_the_correct_side(exponent: int, sign: float) -> None:
    edge = 2.0**exponent
    for value in (np.nextafter(edge, 0), edge, np.nextafter(edge, np.inf)):
        assert bins_of(sign * value) == bin_by_definition(float(sign * value))


def test_the_extremes_of_double_precision_have_the_outer_bins() -> None:
    smallest, largest = np.nextafter(0, 1), np.finfo(np.float64).max
    values = [-np.inf, -largest, -smallest, -0.0, 0.0, smallest, largest, np.inf, np.nan]
    expected = [
        sketch.NEG_INF,
        sketch.NEG_OVER,
        sketch.NEG_UNDER,
        sketch.ZERO,
        sketch.ZERO,
        sketch.POS_UNDER,
        sketch.POS_OVER,
        sketch.POS_INF,
        sketch.NAN,
    ]
    assert bins_of(values).tolist() == expected


def test_edges_ascend_and_their_bins_are_symmetric() -> None:
    edges = sketch.EDGES
    assert len(edges) == sketch.BINS
    assert (np.diff(edges[1:-1]) >= 0).all()
    assert (np.diff(np.delete(edges[1:-2], sketch.ZERO - 1)) > 0).all()  # only the zero bin has no width
    assert np.array_equal(edges[sketch.POS_FIRST : sketch.POS_OVER + 1], -edges[sketch.NEG_FIRST : sketch.ZERO][::-1])


@given(SIGNED)
def test_a_value_is_between_the_edges_of_its_bin_and_close_to_its_center(value: float) -> None:
    number = int(bins_of(value))
    low, high = sketch.EDGES[number], sketch.EDGES[number + 1]
    assert low <= value <= high
    assert abs(sketch.CENTRES[number] - value) <= abs(value) * sketch.RELATIVE_ERROR * (1 + 1e-12)


@given(LISTS, LISTS, LISTS)
def test_merging_sketches_equals_the_sketch_of_all_values(a: list[float], b: list[float], c: list[float]) -> None:
    together = merged(sketch_of(a), sketch_of(b), sketch_of(c))
    assert together == sketch_of(a + b + c)
    assert together.total == len(a) + len(b) + len(c)


@given(LISTS)
def test_values_without_a_place_on_the_line_are_counted_separately(values: list[float]) -> None:
    array, made = np.array(values, np.float64), sketch_of(values)
    magnitude = np.abs(array)
    assert made.nan == np.isnan(array).sum()
    assert made.counts[sketch.ZERO] == (array == 0).sum()
    assert made.counts[sketch.POS_INF] == (array == np.inf).sum()
    assert made.counts[sketch.NEG_INF] == (array == -np.inf).sum()
    assert made.counts[[sketch.NEG_UNDER, sketch.POS_UNDER]].sum() == ((magnitude > 0) & (magnitude < SMALLEST)).sum()
    assert over(made) == ((magnitude >= LARGEST) & np.isfinite(array)).sum()


@given(st.lists(st.one_of(SIGNED, st.sampled_from([0.0, np.nan, np.inf, -np.inf])), min_size=1), st.floats(0, 1))
def test_a_quantile_is_within_its_stated_error_of_the_value_of_that_rank(values: list[float], q: float) -> None:
    array = np.array(values)
    answer = quantile(sketch_of(array), q)
    if np.isnan(array).all():
        assert math.isnan(answer)
        return
    exact = rank_value(array, q)
    if math.isinf(exact) or exact == 0:
        assert answer == exact
    else:
        assert abs(answer - exact) <= abs(exact) * 0.07


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e5])
def test_quantiles_of_a_large_sample_agree_with_numpy(scale: float) -> None:
    values = np.random.default_rng(3).normal(0.1, 1, 20_001) * scale
    qs = np.array([0, 0.001, 0.25, 0.5, 0.75, 0.999, 1])
    exact = np.quantile(values, qs, method="inverted_cdf")
    assert np.abs(sketch_of(values).quantiles(qs) / exact - 1).max() <= 0.07


@given(st.lists(DOUBLES, min_size=1), st.lists(st.floats(0, 1), min_size=2))
def test_quantiles_ascend_with_q(values: list[float], qs: list[float]) -> None:
    answers = sketch_of(values).quantiles(sorted(qs))
    assert np.isnan(answers).all() or all(low <= high for low, high in pairwise(answers))


def test_quantiles_of_values_out_of_range_are_the_edge_or_the_known_extreme() -> None:
    made = sketch_of([-1e60, 1e-60, 1e60])
    assert made.quantiles([0, 0.5, 1]).tolist() == [-LARGEST, SMALLEST, LARGEST]
    assert made.known_quantiles([0, 1], -1e60, 1e60).tolist() == pytest.approx([-1e60, 1e60])
    assert sketch_of([1e-60]).known_quantiles([0.5], 1e-60, 1e-60) == pytest.approx(1e-60)


ANY_SIZE = st.builds(
    lambda exponent, mantissa, sign: sign * mantissa * 10.0**exponent,
    st.integers(-300, 300),
    st.floats(1, 2),
    st.sampled_from([-1.0, 1.0]),
)
NEAR = st.builds(lambda base, factors: [base * each for each in factors], ANY_SIZE, st.lists(st.floats(1, 1.05)))


@given(
    st.one_of(st.lists(ANY_SIZE, min_size=1), NEAR.filter(len)),
    st.lists(st.floats(0, 1), min_size=1),
    st.sampled_from([1.0, 16.0, 65536.0]),
)
def test_a_quantile_at_any_magnitude_is_within_its_error_or_unknown(
    values: list[float], qs: list[float], scale: float
) -> None:
    array = np.array([*values, 0.0, np.inf])
    finite = array[np.isfinite(array)]
    made = shifted(sketch_of(array * scale), -round(8 * math.log2(scale)))
    asked = [0.0, *qs]
    answers = made.known_quantiles(asked, finite.min(), finite.max(), LARGEST / scale)
    for q, answer in zip(asked, answers.tolist(), strict=True):
        exact = rank_value(array, q)
        if math.isnan(answer):
            assert not SMALLEST <= abs(exact) < LARGEST / scale  # unknown only outside the range
        else:
            assert answer == exact or abs(answer - exact) <= 0.07 * abs(exact)
    assert answers[0] == pytest.approx(finite.min(), rel=0.07)  # the smallest value is always known


def test_close_values_are_distinguished_at_any_magnitude() -> None:
    for size in (1e-300, 1e-45, 1e-40, 1e9, 1e40, 1e300):
        values = np.linspace(size, 1.1 * size, 101)
        answers = sketch_of(values).known_quantiles([0.1, 0.5, 0.9], values.min(), values.max())
        assert np.abs(answers / np.quantile(values, [0.1, 0.5, 0.9]) - 1).max() <= 0.07


def test_infinities_stay_infinite_when_the_extremes_of_the_finite_values_are_known() -> None:
    assert sketch_of([-np.inf, 1.0, np.inf]).known_quantiles([0, 1], 1.0, 1.0).tolist() == [-np.inf, np.inf]


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_quantile_outside_of_zero_to_one_is_refused(q: float) -> None:
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        quantile(sketch_of([1.0]), q)


@given(st.lists(SIGNED), st.integers(-9, 9))
def test_shifting_by_octaves_equals_the_sketch_of_the_multiplied_values(values: list[float], octaves: int) -> None:
    array = np.array(values, np.float64)
    assert shifted(sketch_of(array), 8 * octaves) == sketch_of(array * 2.0**octaves)


def test_values_shifted_out_of_range_are_counted_as_out_of_range() -> None:
    values = [-(LARGEST / 2), -1.0, 0.0, SMALLEST, LARGEST / 2]
    up, down = shifted(sketch_of(values), 8), shifted(sketch_of(values), -8)
    assert (
        up.counts[sketch.NEG_OVER],
        up.counts[sketch.POS_OVER],
        up.counts[[sketch.NEG_UNDER, sketch.POS_UNDER]].sum(),
    ) == (1, 1, 0)
    assert (down.counts[sketch.POS_UNDER], down.counts[sketch.NEG_UNDER], over(down)) == (1, 0, 0)
    assert shifted(sketch_of(values), 100_000).counts[sketch.ZERO] == 1
    assert over(shifted(sketch_of(values), 100_000)) == 4


@given(st.lists(LISTS, max_size=5))
def test_a_block_returns_the_sketches_it_was_built_from(rows: list[list[float]]) -> None:
    sketches = [sketch_of(row) for row in rows]
    block = block_of(sketches)
    assert [sketch_of_row(block, row) for row in range(len(rows))] == sketches
    for row in range(len(rows)):
        assert (np.diff(block.bins[block.start[row] : block.start[row + 1]].astype(int)) > 0).all()


@given(st.lists(st.tuples(LISTS, st.booleans()), max_size=4), st.integers(-700, 700))
def test_shifting_rows_of_a_block_shifts_only_those_sketches(rows: list[tuple[list[float], bool]], steps: int) -> None:
    sketches = [sketch_of(values) for values, _ in rows]
    chosen = np.array([shift for _, shift in rows], bool)
    moved = sketch.shifted_rows(block_of(sketches), chosen, steps)
    for row, (made, shift) in enumerate(zip(sketches, chosen, strict=True)):
        expected = shifted(made, steps) if shift else made
        assert sketch_of_row(moved, row) == expected


def test_a_sketch_has_as_many_counts_as_bins_and_is_read_only() -> None:
    with pytest.raises(ArgumentError, match=f"{sketch.BINS} bins"):
        Sketch(np.zeros(3, np.uint64))
    with pytest.raises(ValueError, match="read-only"):
        sketch_of([1.0]).counts[0] = 1


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False), min_size=1))
def test_every_normal_float32_has_a_bin_of_its_magnitude(values: list[float]) -> None:
    made = sketch_of(values)
    assert (over(made), made.counts[[sketch.NEG_UNDER, sketch.POS_UNDER]].sum()) == (0, 0)
    for q in (0.0, 0.25, 0.5, 1.0):
        exact = rank_value(np.array(values), q)
        assert quantile(made, q) == pytest.approx(exact, rel=sketch.RELATIVE_ERROR * (1 + 1e-12))
