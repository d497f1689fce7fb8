# mypy: disable-error-code="no-untyped-call"
"""Which layers of a training a cast to low precision would harm, against casts of their tensors."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hookcore.errors import ArgumentError
from hookcore.reading.answers import CastTo, Precision, PrecisionTap, decode
from hookcore.reading.local import StoreReader
from tests.harness import seed_all, watch
from tests.lanes import examples


class Outliers(nn.Module):
    """Multiplies one channel, as massive activations do."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.cat([torch.full((1,), 1e6), torch.ones(63)])


def trained(sketch_values: int | None) -> tuple[StoreReader, list[Tensor]]:
    """Return a reader of a short training, and the output of its layer with outliers in each step."""
    seed_all()
    model = nn.Sequential(nn.Linear(16, 64), Outliers(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-12)
    seen: list[Tensor] = []
    model[1].register_forward_hook(lambda _module, _args, output: seen.append(output.detach().clone()))
    with watch(model, sketch_values=sketch_values) as watcher:
        for _ in range(3):
            model(torch.randn(256, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return StoreReader(watcher.store), seen


def tap_of(reader: StoreReader, scale: str, label: str = "1 output") -> PrecisionTap:
    return next(each for each in reader.precision("e4m3", scale).taps if each.label == label)


def cast_of(model: nn.Module, batch: Tensor, label: str = "1 output", format: str = "e4m3") -> CastTo:
    """Return what a cast would make of a tensor of one step."""
    with watch(model, sketch_values=None) as watcher:
        model(batch).square().mean().backward()
        torch.optim.SGD(model.parameters(), 0.0).step()
    return tap_of(StoreReader(watcher.store), "max", label).formats[format]


@pytest.mark.parametrize("scale", ["max", "p99.9"])
@pytest.mark.parametrize("sketch_values", [None, 2048])
def test_the_layer_with_outliers_is_the_worst_and_has_the_shares_of_a_cast(
    scale: str, sketch_values: int | None
) -> None:
    reader, seen = trained(sketch_values)
    values = torch.cat([each.reshape(-1) for each in seen]).double().abs()
    found = reader.precision("e4m3", scale)
    outputs = [each for each in found.taps if each.kind == "output"]
    assert outputs[0].label == "1 output"
    assert [each.formats["e4m3"].fits for each in outputs if each.label in ("0 output", "1 output")] == [False, True]
    tap = tap_of(reader, scale)
    assert tap.sampled == (sketch_values is not None)
    level = values.max() if scale == "max" else values.sort().values[math.ceil(0.999 * len(values)) - 1]
    rounded = (values * 448 / level).float().clamp(max=448.0).to(torch.float8_e4m3fn).double()
    usual, least, most = tap.formats["e4m3"].underflow
    assert least <= float((rounded == 0).double().mean()) <= most
    assert usual == pytest.approx(float((rounded == 0).double().mean()), abs=0.02)


class OneRow(nn.Module):
    """Makes one row of a batch far larger than the others."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.cat([torch.full((1, 1), 1e6), torch.ones(len(x) - 1, 1)])


def test_a_few_large_values_that_hide_in_the_noise_that_the_others_are_lost_are_left_out_of_it() -> None:
    seed_all()
    cast = cast_of(nn.Sequential(nn.Linear(16, 64), OneRow(), nn.Linear(64, 4)), torch.randn(256, 16))
    assert not cast.fits
    assert cast.noise < 0.05, "the large row keeps its digits"
    assert cast.most_noise > 0.5
    zero, normal, largest = cast.limits
    assert (normal / zero, largest / zero) == pytest.approx((15.0, 464 * 2**10), rel=1e-9)


class OnePicture(nn.Module):
    """Makes one picture of a batch of eight far larger than the others."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.cat([torch.full((1, 1, 1, 1), 1e11), torch.ones(len(x) - 1, 1, 1, 1)])


@pytest.mark.parametrize("format", ["e4m3", "e5m2"])
def test_values_that_are_lost_because_many_others_are_far_larger_are_found(format: str) -> None:
    seed_all()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), OnePicture(), nn.Conv2d(8, 2, 3))
    cast = cast_of(model, torch.randn(8, 3, 12, 12), "2 output", format)
    assert not cast.fits
    assert cast.noise < 0.1, "the large picture keeps its digits"
    assert cast.most_noise > 0.5
    assert cast.most == pytest.approx(7 / 8, abs=0.03)


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 4.0), st.sampled_from(["normal", "lognormal", "uniform", "student"]))
def test_values_of_one_kind_are_one_group_however_far_they_spread(seed: int, spread: float, kind: str) -> None:
    made = np.random.default_rng(seed)
    drawn = {
        "normal": made.normal(size=4000),
        "lognormal": np.exp(spread * made.normal(size=4000)) * made.choice([-1, 1], 4000),
        "uniform": made.uniform(-1, 1, 4000),
        "student": made.standard_t(1 + spread, 4000),
    }[kind].astype(np.float32)
    model = nn.Sequential(nn.Identity(), nn.Linear(1, 1))
    assert cast_of(model, torch.from_numpy(drawn)[:, None], "0 output").most == 0.99


def test_small_values_that_become_zero_next_to_larger_ones_are_no_reason_to_stay() -> None:
    seed_all()
    cast = cast_of(nn.Sequential(nn.Linear(16, 64), Spread(), nn.Linear(64, 4)), torch.randn(256, 16))
    assert cast.underflow[0] > 0.2
    assert cast.fits


class Spread(nn.Module):
    """Spreads its values over many powers of ten, in each row alike."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.exp(-0.3 * torch.arange(64.0))


def test_an_unknown_format_or_scale_is_an_error_that_names_the_known_ones() -> None:
    reader, _ = trained(None)
    with pytest.raises(ArgumentError, match=r"unknown format 'fp8'.*e4m3"):
        reader.precision("fp8")
    with pytest.raises(ArgumentError, match=r"unknown scale 'p99'.*p99\.9"):
        reader.precision(scale="p99")


def test_a_kind_without_values_has_no_answer_and_probes_are_left_out() -> None:
    reader, _ = trained(None)
    assert reader.precision(kind="input").taps == ()
    assert reader.precision(kind="probe").total == 0


def test_the_answer_of_a_server_that_knows_no_share_of_the_noise_is_read() -> None:
    reader, _ = trained(None)
    found = reader.precision("e4m3", "max")
    sent = msgspec.to_builtins(found, enc_hook=float)
    for tap in sent["taps"]:
        for cast in tap["formats"].values():
            assert cast.pop("most") > 0
    older = decode(msgspec.json.encode(sent), Precision)
    assert [each.label for each in older.taps] == [each.label for each in found.taps]
    assert {cast.most for tap in older.taps for cast in tap.formats.values()} == {0.99}, "what it has left out"
