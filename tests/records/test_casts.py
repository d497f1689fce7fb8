"""What a cast to a format of low precision makes of a histogram's values, against casts of these values by torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hookcore.records.sketch import BLOCKS, FORMATS, MOST, Cast, Magnitudes, NumberFormat, Sketch, cast_blocks, casts_of

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Any]
MANY: Final = 100_000
TYPES: Final = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
}
LEVELS: Final = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # of E2M1, to which torch has no cast
DISTRIBUTIONS: Final[dict[str, Draw]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "uniform": lambda rng, n: rng.uniform(-3, 3, n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "lognormal": lambda rng, n: rng.lognormal(0, 3, n),
    "heavy tails": lambda rng, n: rng.standard_t(2, n),
    "tiny": lambda rng, n: 1e-7 * rng.normal(size=n),
    "half zero": lambda rng, n: np.maximum(rng.normal(size=n), 0),
    "outliers": lambda rng, n: np.where(rng.random(n) < 1e-3, 1e3, 1.0) * rng.normal(size=n),
}
WITH_FEW: Final = frozenset({"lognormal", "heavy tails", "outliers"})  # a few values have most of the power


def drawn(name: str, many: int = MANY, seed: int = 0) -> Values:
    values = DISTRIBUTIONS[name](np.random.default_rng(seed), many).astype(np.float32)
    found: Values = np.abs(values[values != 0]).astype(np.float64)
    return found


def cast(scaled: Values, to: NumberFormat) -> tuple[Values, NDArray[np.bool_]]:
    """Return what torch makes of magnitudes, too large ones as the largest, and which these are."""
    limit = to.largest + to.unit(np.array([to.largest]))[0] / 2
    too_large = scaled >= limit if to.name in ("e5m2", "fp16", "bf16") else scaled > limit
    if to.name == "e2m1":
        found = LEVELS[np.abs(scaled[:, None] - LEVELS).argmin(axis=1)]
    else:
        found = torch.from_numpy(scaled).float().to(TYPES[to.name]).double().numpy()
    return np.where(too_large, to.largest, found), too_large


def truth_of(values: Values, to: NumberFormat, share: float) -> dict[str, float]:
    level = values.max() if share == 1 else np.sort(values)[int(np.ceil(share * len(values))) - 1]
    scaled = values * (to.largest / level if to.is_scaled else 1.0)
    found, too_large = cast(scaled, to)
    most = np.argsort(scaled)[: round(MOST * len(scaled))]
    return {
        "underflow": float((found == 0).mean()),
        "subnormal": float(((found > 0) & (found < 2.0**to.exponent)).mean()),
        "saturated": float(too_large.mean()),
        "error": float(np.abs(found / scaled - 1).mean()),
        "noise": float(np.sqrt(((found - scaled) ** 2).sum() / (scaled**2).sum())),
        "most_noise": float(np.sqrt(((found - scaled)[most] ** 2).sum() / (scaled[most] ** 2).sum())),
    }


@pytest.mark.parametrize("share", [1.0, 0.999], ids=["max", "p99.9"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_shares_and_errors_are_those_of_a_cast(distribution: str, name: str, share: float) -> None:
    values, to = drawn(distribution), FORMATS[name]
    largest = float(values.max())
    counted = Magnitudes.of(Sketch.of(values).counts.astype(np.float64), largest, is_whole=True)
    found, truth = casts_of([counted], share, [largest])[0][name], truth_of(values, to, share)
    for what in ("underflow", "subnormal", "saturated"):
        usual, least, most = getattr(found, what)
        assert least - 1e-12 <= truth[what] <= most + 1e-12, what
        assert least <= usual <= most
    assert found.error == pytest.approx(truth["error"], rel=0.04)
    factor = 2.0 if distribution in WITH_FEW else 1.06
    assert truth["noise"] / factor <= found.noise <= truth["noise"] * factor
    assert found.most_noise == pytest.approx(truth["most_noise"], rel=0.06)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_sample_says_how_far_it_may_be_off(distribution: str, name: str) -> None:
    values, to = drawn(distribution), FORMATS[name]
    largest, inside = float(values.max()), 0
    for seed in range(6):
        some = np.random.default_rng(seed).choice(values, 2000, replace=False)
        counted = Magnitudes.of(Sketch.of(some).counts.astype(np.float64), largest, is_whole=False)
        found, truth = casts_of([counted], 1.0, [largest])[0][name], truth_of(values, to, 1.0)
        bounds = [(truth[what], *getattr(found, what)[1:]) for what in ("underflow", "subnormal", "saturated")]
        inside += all(least <= share <= most for share, least, most in bounds)
    assert inside == 6


def test_a_histogram_without_the_largest_value_is_less_sure_of_a_scale() -> None:
    values, to = drawn("lognormal"), FORMATS["e4m3"]
    counts = Sketch.of(values).counts.astype(np.float64)
    known, unknown = (
        casts_of([Magnitudes.of(counts, largest, is_whole=True)], 1.0, [largest])[0]["e4m3"]
        for largest in (values.max(), np.nan)
    )
    truth = truth_of(values, to, 1.0)["subnormal"]
    assert known.subnormal[2] - known.subnormal[1] < unknown.subnormal[2] - unknown.subnormal[1]
    assert unknown.subnormal[1] <= truth <= unknown.subnormal[2]


def test_a_sample_that_lacks_the_largest_value_is_cast_with_its_scale() -> None:
    values = np.linspace(1.0, 2.0, 100)
    counted = Magnitudes.of(Sketch.of(values).counts.astype(np.float64), 1e300, is_whole=False)
    found = casts_of([counted], 1.0, [1e300])[0]["e4m3"]
    assert (found.underflow[0], found.noise) == (1.0, 1.0)


def test_values_beyond_the_range_of_a_histogram_have_a_fate_too() -> None:
    values = np.array([1e-40, 1.0, 1e300])
    counted = Magnitudes.of(Sketch.of(values).counts.astype(np.float64), 1e300, is_whole=True)
    found = casts_of([counted], 1.0, [1e300])[0]["fp16"]
    assert found.underflow == found.saturated == pytest.approx((1 / 3,) * 3)
    scaled = casts_of([counted], 1.0, [1e300])[0]["e5m2"]
    assert scaled.underflow[0] == pytest.approx(2 / 3)
    assert scaled.error == pytest.approx(2 / 3, abs=0.1)


@pytest.mark.parametrize("share", [1.0, 0.999], ids=["max", "p99.9"])
def test_tensors_that_are_cast_together_are_cast_as_each_alone(share: float) -> None:
    drawings = [drawn(distribution)[:1000] for distribution in DISTRIBUTIONS]
    largest = [float(np.abs(values).max()) for values in drawings]
    many = [
        Magnitudes.of(Sketch.of(values).counts.astype(np.float64), size, is_whole=place % 2 == 0)
        for place, (values, size) in enumerate(zip(drawings, largest, strict=True))
    ]
    together = casts_of(many, share, largest)
    alone = [casts_of([each], share, [size])[0] for each, size in zip(many, largest, strict=True)]
    assert len(together) == len(many)
    for one, other in zip(together, alone, strict=True):
        for name, what in product(FORMATS, Cast.__dataclass_fields__):
            assert getattr(one[name], what) == pytest.approx(getattr(other[name], what), rel=1e-12), (name, what)
    assert casts_of([], share, []) == []


def block_twin(block: Values, name: str, of_tensor: float) -> Values:
    """Return what a block of magnitudes becomes, as the specifications of MX and NVFP4 say it."""
    largest = float(block.max()) or 1.0
    if name == "nvfp4":
        scale = (
            float(torch.tensor(largest / 6 / of_tensor).clamp(max=448.0).to(torch.float8_e4m3fn).double()) * of_tensor
        )
        if scale == 0:
            return np.zeros_like(block)
    else:
        scale = 2.0 ** (np.floor(np.log2(largest)) - (8 if name == "mxfp8" else 2))
    scaled = block / scale
    if name == "mxfp8":
        return torch.from_numpy(np.minimum(scaled, 448.0)).float().to(torch.float8_e4m3fn).double().numpy() * scale
    found: Values = LEVELS[np.abs(scaled[:, None] - LEVELS).argmin(axis=1)] * scale
    return found


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_casts_in_blocks_are_those_of_each_block_with_its_scale(distribution: str, name: str) -> None:
    rng = np.random.default_rng(0)
    values = np.asarray(DISTRIBUTIONS[distribution](rng, 64 * 70)).astype(np.float32).astype(np.float64).reshape(64, 70)
    to = BLOCKS[name]
    cast = cast_blocks(values, to)
    assert cast is not None
    size, given = to.size, np.abs(values)
    of_tensor = given.max() / 6 / 448
    starts = range(0, 70, size)
    found = np.hstack([np.stack([block_twin(row[at : at + size], name, of_tensor) for row in given]) for at in starts])
    some = given > 0
    assert cast.underflow == pytest.approx(float((found[some] == 0).mean()), abs=2e-3)
    assert cast.noise == pytest.approx(np.linalg.norm(found - given) / np.linalg.norm(given), rel=1e-3)
