"""What stands out in activations, beside numbers in float64; and that measuring it changes nothing."""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.probes import outliers
from hookcore.records.vocabulary import OUTLIER_NUMBERS
from tests.harness import digest, random_state, seed_all
from tests.lanes import examples

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def twin(tensor: Tensor) -> dict[str, float]:
    """Return the numbers of outliers, by NumPy in float64."""
    values = tensor.detach().to(torch.float64).numpy()
    values = np.moveaxis(values, 1, -1) if values.ndim > 3 else values.reshape((1,) * (2 - values.ndim) + values.shape)
    if not values.size or not np.isfinite(values).all():
        return dict.fromkeys(OUTLIER_NUMBERS, math.nan)
    channels, tokens = values.shape[-1], int(np.prod(values.shape[1:-1])) if values.ndim > 2 else len(values)
    unit = np.abs(values).max() or 1.0
    rows = values.reshape(-1, channels)
    sizes = np.sqrt(np.square(rows / unit).mean(axis=0))
    median, place = np.sort(sizes)[(channels - 1) // 2], int(np.abs(rows).argmax())
    spread = (rows - rows.mean()) / unit
    with np.errstate(all="ignore"):
        kurtosis = float((spread**4).mean() / (spread**2).mean() ** 2)
    found = (sizes.max() / median if median else math.nan, sizes.argmax(), kurtosis, rows.flat[place])
    where = place % channels, place // channels % tokens
    return dict(zip(OUTLIER_NUMBERS, map(float, (*found, *where)), strict=True))


def assert_equal(tensor: Tensor) -> None:
    found, expected = outliers(tensor), twin(tensor)
    assert list(found) == list(OUTLIER_NUMBERS)
    assert {name: float(each) for name, each in found.items()} == pytest.approx(expected, rel=1e-9, nan_ok=True)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=0, max_size=5),
    st.sampled_from(TYPES),
    st.sampled_from(["whole", "strided", "transposed", "repeated"]),
    st.sampled_from([None, None, 300.0, math.nan, math.inf, -math.inf]),
    st.integers(0, 10**6),
)
def test_outliers_are_those_of_the_same_values_in_float64(
    shape: list[int], dtype: torch.dtype, layout: str, planted: float | None, seed: int
) -> None:
    numbers = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=numbers, dtype=torch.float64).to(dtype)
    if planted is not None and tensor.numel():
        tensor.view(-1)[seed % tensor.numel()] = planted
    if layout == "strided" and tensor.dim():
        tensor = tensor[..., ::2]
    elif layout == "transposed" and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    elif layout == "repeated" and tensor.dim() > 1:
        tensor = tensor[:1].expand_as(tensor)
    assert_equal(tensor)


@pytest.mark.parametrize("shape", [(3, 500, 1100), (7, 3), (2, 9, 5, 4), (1, 1, 2**21), (5, 2**20 + 1)])
def test_large_tensors_are_read_in_pieces_and_single_channels_and_pictures_too(shape: tuple[int, ...]) -> None:
    seed_all()
    tensor = torch.randn(shape)
    tensor.view(-1)[tensor.numel() * 2 // 3] = -50.0
    assert_equal(tensor)
    assert_equal(tensor[..., :1])


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e300])
def test_no_power_of_tiny_or_huge_values_vanishes_or_overflows(size: float) -> None:
    seed_all()
    assert_equal(torch.randn(4, 8, dtype=torch.float64) * size)
    assert_equal(torch.randn(4, 8).clamp(-5, 5) * min(max(size, 1e-37), 1e37))


def test_zeros_have_no_ratio_and_what_is_not_dense_or_no_float_has_no_numbers() -> None:
    zeros = {name: float(each) for name, each in outliers(torch.zeros(3, 4)).items()}
    assert zeros == pytest.approx(
        {**dict.fromkeys(OUTLIER_NUMBERS, 0.0), "ratio": math.nan, "kurtosis": math.nan}, nan_ok=True
    )
    half = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    assert math.isnan(float(outliers(half)["ratio"]))
    assert int(outliers(half)["channel"]) == 3
    assert outliers(torch.ones(3, dtype=torch.int64)) == outliers(torch.eye(3).to_sparse()) == {}


# In a training.


class Block(nn.Module):
    """Two branches with skip connections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix, self.mlp = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, values: Tensor) -> Tensor:
        values = values + self.mix(self.norm(values))
        return values + self.dropout(self.mlp(values))


class Stack(nn.Module):
    """Blocks, each in a checkpoint if that is wished."""

    def __init__(self, reentrant: bool | None = None, width: int = 8) -> None:
        super().__init__()
        self.blocks, self.reentrant = nn.ModuleList(Block(width) for _ in range(3)), reentrant
        self.given: list[Tensor] = []

    def forward(self, values: Tensor) -> Tensor:
        self.given = []
        for block in self.blocks:
            again = self.reentrant
            values = block(values) if again is None else checkpoint(block, values, use_reentrant=again)
            self.given.append(values.detach())
        return values


def watch(model: nn.Module, **options: Any) -> hookcore.Watcher:
    return hookcore.watch(model, **{"server": None, "budget": None, **options})


def train(model: nn.Module, steps: int, parts: int = 1, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    """Train, and return what the blocks gave in the first micro-batch of each step."""
    optimizer, given_at = torch.optim.AdamW(model.parameters(), lr=0.01), list[list[Tensor]]()
    for _ in range(steps):
        for part in range(parts):
            model(torch.randn(2, 5, 8, requires_grad=True, dtype=dtype)).square().mean().backward()
            if not part:
                given_at.append(list(getattr(model, "given", [])))
        optimizer.step()
        optimizer.zero_grad()
    return given_at


def probed(watcher: hookcore.Watcher) -> dict[str, dict[int, float]]:
    """Return the values of each number of a probe by step."""
    watcher.flush()
    found = {}
    for tap in watcher.store.taps(kind="probe").taps:
        series = watcher.reader().series(tap.label, "mean")
        found[tap.label] = dict(zip(series.first_step.tolist(), series.mean.tolist(), strict=True))
    return found


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_outliers_of_blocks_are_measured_in_rare_steps_by_themselves(reentrant: bool | None) -> None:
    seed_all()
    model = Stack(reentrant)
    with watch(model, state_every=5) as watcher:
        given_at = train(model, 11, parts=2)
        found = probed(watcher)
        for block in range(3):
            for step in (4, 9):
                expected = twin(given_at[step][block])
                for name in OUTLIER_NUMBERS:
                    assert found[f"blocks.{block} probe [outliers {name}]"] == pytest.approx(
                        {each: twin(given_at[each][block])[name] for each in (4, 9)}, rel=1e-6
                    )
                assert expected["kurtosis"] > 1
        assert watcher.store.labels()["probe outliers"] == "hookcore.probes.outliers"
        assert not [tap for tap in found if not tap.startswith("blocks.") or tap.count(".") > 1]
        assert not watcher.errors


def test_a_probe_of_the_user_looks_at_other_layers_and_more_often() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU())
    with watch(model) as watcher:
        watcher.probe("out", outliers, include="0", kinds=("output", "output_grad", "param"), every=3)
        watcher.probe("many", lambda tensor: dict.fromkeys(map(str, range(40)), tensor.sum()), include="0")
        train(model, 5)
        found = probed(watcher)
        weight = found["0 probe [out ratio param weight]"]
        assert list(weight) == [0, 3]
        assert set(found) == {
            f"0 probe [out {name}{place}]"
            for name in OUTLIER_NUMBERS
            for place in ("", " output_grad", " param weight", " param bias")
        }
        (told,) = (each.message for each in watcher.store.events() if each.name == "probe-failed")
        assert "40 names" in told


def test_outliers_in_evaluation_do_not_count() -> None:
    model = Stack()
    with watch(model, state_every=1, phases=("train", "eval")) as watcher:
        for _ in range(3):
            model.eval()
            with torch.no_grad():
                model(torch.full((2, 5, 8), 1e6))
            model.train()
            model(torch.ones(2, 5, 8)).sum().backward()
            watcher.step()
        largest = probed(watcher)["blocks.0 probe [outliers largest]"]
    assert all(abs(each) < 1e3 for each in largest.values())


transformers = import_module("transformers")
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "n_embd": 32, "num_hidden_layers": 2, "n_layer": 2, "num_attention_heads": 4,
    "n_head": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 64,
    "n_positions": 64,
}  # fmt: skip
MODELS = {
    "GPT2": ("GPT2LMHeadModel", "GPT2Config", "transformer.h"),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", "model.layers"),
}


def make_language(name: str) -> Any:
    model, config, _ = MODELS[name]
    known = getattr(transformers, config)
    sizes = {key: value for key, value in SIZES.items() if hasattr(known(), key)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, model)(known(**sizes)).train()


def train_language(model: Any, **options: Any) -> tuple[str, str, dict[str, dict[int, float]]]:
    """Train, watched if there are options. Return what the training led to, and what was measured."""
    seed_all(1)
    watcher = watch(model, **options) if options else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(4):
        tokens = torch.randint(1, 64, (3, 14))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    state = digest(model.state_dict()), random_state()
    if watcher is None:
        return (*state, {})
    found = probed(watcher)
    watcher.close()
    assert not watcher.errors
    return (*state, found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["plain", "checkpointed", "bfloat16"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_of_transformers_are_measured_and_no_bit_changes(name: str, how: str) -> None:
    def make() -> Any:
        seed_all()
        model = make_language(name)
        if how == "checkpointed":
            model.gradient_checkpointing_enable()
        return model.to(torch.bfloat16) if how == "bfloat16" else model

    plain, seen = train_language(make()), train_language(make(), state_every=1)
    assert seen[:2] == plain[:2]
    for layer in (0, 1):
        tops = {tap: set(steps) for tap, steps in seen[2].items() if tap.startswith(f"{MODELS[name][2]}.{layer} probe")}
        assert len(tops) == len(OUTLIER_NUMBERS)
        assert all(steps == {0, 1, 2, 3} for steps in tops.values())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compiled", "compiled inside"])
def test_compiled_models_are_the_same_to_the_bit(how: str) -> None:
    found = []
    for watched in (False, True):
        seed_all()
        torch._dynamo.reset()
        model = Stack()
        called: Any = torch.compile(model, backend="aot_eager")
        options = {"compiled": "inside"} if how == "compiled inside" else {}
        watcher = watch(called, state_every=1, **options) if watched else None
        train(called, 4)
        found.append((digest(model.state_dict()), random_state()))
        if watcher is not None:
            watcher.close()
            assert not watcher.errors
            assert not [each for each in watcher.store.events() if each.name == "probe-failed"]
    assert found[0] == found[1]
