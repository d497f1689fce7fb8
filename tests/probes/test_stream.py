"""What stands out in activations, beside numbers in float64; and that measuring it changes nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.errors import ArgumentError
from hookcore.probes import UpdateSpectrum, logit_lens, outliers, spectrum
from hookcore.records.vocabulary import OUTLIER_NUMBERS
from tests.harness import digest, random_state, seed_all
from tests.inside import class_of
from tests.lanes import examples

PARTS = ("share", "before", "after")
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
        are_equal = np.square(spread).mean() < 1e-28  # but for rounding
        kurtosis = math.nan if are_equal else float((spread**4).mean() / (spread**2).mean() ** 2)
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
    equal = outliers(torch.full((3, 1), 1.5410, dtype=torch.float64))
    assert math.isnan(float(equal["kurtosis"]))
    assert float(equal["ratio"]) == 1.0
    half = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    assert math.isnan(float(outliers(half)["ratio"]))
    assert int(outliers(half)["channel"]) == 3
    assert outliers(torch.ones(3, dtype=torch.int64)) == outliers(torch.eye(3).to_sparse()) == {}


class Allocated(TorchDispatchMode):
    """Notes the largest memory that an operator returns."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        given = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for each in tree_leaves(output):
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, each.untyped_storage().nbytes())
        return output


@pytest.mark.parametrize("measure", [outliers, lambda tensor: class_of("size_of")(tensor)])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(64, 16, 128, 128),
        torch.ones(64, 16, 128, 128).to(memory_format=torch.channels_last),
        torch.ones(512, 128, 256).transpose(0, 1),
        torch.ones(4, 2**22),
    ],
    ids=["pictures", "channels last", "transposed", "few rows"],
)
def test_no_layout_of_an_activation_is_copied_as_a_whole(measure: Callable[[Tensor], Any], tensor: Tensor) -> None:
    with Allocated() as allocated:
        measure(tensor)
    assert 0 < allocated.largest <= 2**25 < tensor.nbytes


def test_values_that_cannot_be_read_and_too_many_channels_have_no_numbers() -> None:
    assert outliers(torch.ones(2, 3, device="meta")) == outliers(torch.ones(2**22 + 1)) == {}
    with FakeTensorMode():
        assert outliers(torch.ones(2, 3)) == {}


# The logit lens.


def look(hidden: Tensor, norm: nn.Module, head: nn.Linear, classes: Tensor | None, tokens: int) -> dict[str, float]:
    """Return what each of some hidden states predicts, in float64."""
    every = -(-(hidden.numel() // hidden.shape[-1]) // tokens)
    rows = hidden.double().reshape(-1, hidden.shape[-1])[::every]
    rows = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, correction=0, keepdim=True) + norm.eps).sqrt()  # type: ignore[operator]
    logs = (rows @ head.weight.detach().double().T).log_softmax(1)
    found = {"entropy": float(-(logs.exp() * logs).sum(1).mean())}
    if classes is not None:
        marks = classes.reshape(-1)[::every]
        known = (marks >= 0) & (marks < logs.shape[1])
        found["cross_entropy"] = float(-logs[known].gather(1, marks[known, None]).mean())
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 40)),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.sampled_from([1, 5, 64, 1000]),
    st.sampled_from([None, 0, 1, 3]),
    st.integers(0, 10**6),
)
def test_the_logit_lens_predicts_what_the_head_would(
    shape: tuple[int, int], dtype: torch.dtype, tokens: int, shift: int | None, seed: int
) -> None:
    seed_all(seed)
    norm, head = nn.LayerNorm(8), nn.Linear(8, 30, bias=False)
    hidden, classes = torch.randn(*shape, 16).to(dtype)[..., ::2], torch.randint(-5, 34, shape)
    if dtype is torch.float64:
        norm, head = norm.double(), head.double()
    targets = None if shift is None else lambda: classes
    with torch.no_grad():
        found = logit_lens(norm, head, targets=targets, shift=shift or 0, tokens=tokens)(hidden)
    moved = None if shift is None else torch.full_like(classes, -1)
    if moved is not None:
        moved[:, : max(0, shape[1] - (shift or 0))] = classes[:, shift:]
    expected = look(hidden, norm, head, moved, tokens)
    assert {name: float(each) for name, each in found.items()} == pytest.approx(
        expected, rel=3e-5, abs=1e-6, nan_ok=True
    )


@torch.no_grad()
def test_a_logit_lens_of_nothing_or_of_nan_is_nan_and_wrong_arguments_say_what_is_right() -> None:
    head = nn.Linear(4, 3)
    lens = logit_lens(None, head, targets=lambda: torch.zeros(2, 0, dtype=torch.long))
    assert all(math.isnan(each) for each in lens(torch.zeros(2, 0, 4)).values())
    assert math.isnan(logit_lens(None, head)(torch.full((2, 4), math.nan))["entropy"])
    for norm, wrong in (
        (nn.Sequential(head), {}),
        (nn.BatchNorm1d(4), {}),
        (None, {"tokens": 0}),
        (None, {"shift": -1}),
    ):
        with pytest.raises(ArgumentError, match="is invalid: use"):
            logit_lens(norm, head, **wrong)
    with pytest.raises(ArgumentError, match=r"return \(2, 3\)"):
        logit_lens(None, head, targets=lambda: torch.zeros(2, 4))(torch.zeros(2, 3, 4))


def decayed(rows: int, columns: int, base: float) -> Tensor:
    """Return a matrix whose singular values fall by a factor."""
    left, right = (torch.linalg.qr(torch.randn(each, each, dtype=torch.float64)).Q for each in (rows, columns))
    many = min(rows, columns)
    return left[:, :many] * base ** torch.arange(many) @ right[:, :many].T


@settings(max_examples=examples(60), deadline=None)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from(TYPES),
    st.sampled_from([0.3, 0.9]),
    st.sampled_from([1e-12, 1.0, 1e12]),
    st.integers(0, 10**6),
)
def test_singular_values_are_those_of_the_whole_decomposition(
    shape: tuple[int, int], dtype: torch.dtype, base: float, size: float, seed: int
) -> None:
    seed_all(seed)
    matrix = (decayed(*shape, base) * (size if dtype is not torch.float16 else 1.0)).to(dtype)
    before = random_state()
    found = spectrum(matrix)
    assert random_state() == before
    values = torch.linalg.svdvals(matrix.double())
    rank = float(values.square().sum() / values[0] ** 2)
    assert float(found["stable_rank"]) == pytest.approx(rank, rel=2e-3)
    least = 2e-3 * float(values[0])
    torch.testing.assert_close(found["singular"].double(), values[:4], rtol=2e-3, atol=least)


def test_random_matrices_convolutions_zeros_and_nan_have_a_spectrum_and_vectors_have_none() -> None:
    seed_all()
    for matrix in (torch.randn(300, 500), torch.randn(16, 8, 3, 3), torch.randn(64, 48).mT[::2]):
        values = torch.linalg.svdvals(matrix.flatten(1).double())[:4]
        found = spectrum(matrix)["singular"].double()
        assert bool((found <= values * (1 + 1e-5)).all() and (found >= values * 0.97).all())
    assert spectrum(torch.zeros(9, 12))["singular"].tolist() == [0.0] * 4
    assert math.isnan(spectrum(torch.zeros(9, 12))["stable_rank"])
    for bad in (math.nan, math.inf):
        matrix = torch.randn(9, 12)
        matrix[3, 3] = bad
        assert all(bool(each.isnan().all()) for each in spectrum(matrix).values())
    assert spectrum(torch.randn(5)) == spectrum(torch.randn(0, 5)) == spectrum(torch.ones(3, 3).long()) == {}


def test_the_spectrum_of_updates_is_that_of_what_steps_change_and_no_bit_changes() -> None:
    states, weights = [], list[Tensor]()
    for watched in (False, True):
        seed_all()
        model = Stack()
        watcher = watch(model) if watched else None
        if watcher is not None:
            watcher.probe("weights", spectrum, include="blocks.1.mix", kinds="param", every=4)
            watcher.probe("updates", UpdateSpectrum, include="blocks.1.mix", kinds="param", every=4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(7):
            weights += [model.blocks[1].mix.weight.detach().double().clone()] if watched else []  # type: ignore[union-attr]
            model(torch.randn(2, 5, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append((digest(model.state_dict()), random_state()))
        if watcher is not None:
            found = probed(watcher)
            watcher.close()
            assert not watcher.errors
            ranks = {"weights": weights, "updates": [new - old for old, new in pairwise([weights[0], *weights])]}
            for name, steps in (("weights", (0, 4)), ("updates", (1, 5))):
                values = [torch.linalg.svdvals(ranks[name][step]) for step in steps]
                expected = [float(each.square().sum() / each[0] ** 2) for each in values]
                told = found[f"blocks.1.mix probe [{name} stable_rank param weight]"]
                assert told == pytest.approx(dict(zip(steps, expected, strict=True)), rel=1e-4)
                means = [float(each[:4].mean()) for each in values]
                told = found[f"blocks.1.mix probe [{name} singular param weight]"]
                assert told == pytest.approx(dict(zip(steps, means, strict=True)), rel=1e-4)
            assert not [tap for tap in found if "bias" in tap]
    assert states[0] == states[1]


def test_numbers_wait_for_no_device() -> None:
    with FakeTensorMode():  # whose values can't be read
        hidden, classes = torch.randn(2, 5, 8), torch.randint(0, 9, (2, 5))
        outliers(hidden)
        class_of("size_of")(hidden)
        logit_lens(nn.LayerNorm(8), nn.Linear(8, 9), targets=lambda: classes)(hidden)


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
        self.first, self.given = nn.Linear(width, width), list[Tensor]()

    def forward(self, values: Tensor) -> Tensor:
        self.given, values = [], self.first(values)
        for block in self.blocks:
            again = self.reentrant
            values = block(values) if again is None else checkpoint(block, values, use_reentrant=again)
            self.given.append(values.detach())
        return values


class Language(nn.Module):
    """A small language model, whose head counts the calls that hooks see."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(30, 8), nn.ModuleList(Block(8) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 30)
        self.calls, self.given = 0, torch.empty(0)
        self.head.register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        self.calls += 1

    def forward(self, words: Tensor) -> Tensor:
        values = self.words(words)
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))


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
        assert not [tap for tap in found if "outliers" in tap and (not tap.startswith("blocks.") or tap.count(".") > 1)]
        assert not watcher.errors


def test_measuring_blocks_sets_no_generator_because_another_thread_may_draw_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, sets = Stack(), list[int]()
    with watch(model, state_every=5) as watcher:
        monkeypatch.setattr(torch, "set_rng_state", lambda _state: sets.append(watcher.current_step))
        train(model, 11)
        assert any("outliers" in tap for tap in probed(watcher))
        assert not sets
        watcher.probe("own", lambda tensor: tensor.sum(), include="first", every=1)
        train(model, 2)
        assert sets


@pytest.mark.parametrize("how", ["plain", "checkpoint", "reentrant", "bfloat16", "micro-batches"])
def test_the_share_of_each_branch_in_the_residual_stream_is_measured_in_rare_steps(how: str) -> None:
    seed_all()
    dtype = torch.bfloat16 if how == "bfloat16" else torch.float32
    model = Stack({"checkpoint": False, "reentrant": True}.get(how)).to(dtype)
    sizes: dict[str, list[float]] = {}

    def note(path: str, tensor: Tensor) -> None:
        if watcher.current_step in (4, 9) and not torch._C._current_graph_task_id() >= 0:
            sizes.setdefault(path, []).append(float(tensor.detach().double().square().mean().sqrt()))

    for path, module in model.named_modules():
        if path.endswith(("mix", "dropout")) or path.count(".") == 1:
            module.register_forward_hook(lambda _module, _args, output, path=path: note(path, output))
        if path.endswith(("norm", "mlp")):
            module.register_forward_pre_hook(lambda _module, args, path=path: note(path, args[0]))
    with watch(model, state_every=5) as watcher:
        train(model, 11, 2 if how == "micro-batches" else 1, dtype)
        found = {tap: values for tap, values in probed(watcher).items() if "residual" in tap}
        assert not watcher.errors
    if how == "reentrant":  # whose first pass has no graph
        assert not found
        return
    parts = 2 if how == "micro-batches" else 1
    for block in range(3):
        path = f"blocks.{block}"
        streams = sizes[f"{path}.norm"], sizes[f"{path}.mlp"], sizes[path]
        for branch, before, after in (("mix", *streams[:2]), ("dropout", *streams[1:])):
            added = sizes[f"{path}.{branch}"]
            expected = {
                "before": before,
                "after": after,
                "share": [one / two for one, two in zip(added, after, strict=True)],
            }
            for name in PARTS:
                values = found[f"{path}.{branch} probe [residual {name}]"]
                assert values == pytest.approx(dict(zip((4, 9), expected[name][::parts], strict=True)), rel=1e-6)
    assert len(found) == 6 * 3


@pytest.mark.parametrize(
    ("forward", "told", "taps"),
    [
        (lambda model, values: values + model[0](values), False, 2),
        (lambda model, values: (model[0](values) + values).relu_() + 1, False, 0),  # nothing gets or returns the sum
        (lambda model, values: model[1](values + 0.5 * model[0](values)), True, 0),
        (lambda model, values: torch.add(values, model[0](values), alpha=0.5), True, 0),
        (lambda model, values: values + model[0](values) + model[1](values), True, 0),
        (lambda model, values: model[1](model[0](values) + model[1](values)), False, 0),
        (lambda model, values: model[1](values.detach() + model[0](values)), False, 0),
        (lambda model, values: model[1](values + model[0](values).sum()), True, 0),
    ],
)
def test_only_what_is_computed_from_the_stream_and_added_to_it_is_a_branch(
    forward: Callable[[nn.ModuleList, Tensor], Tensor], told: bool, taps: int
) -> None:
    class Model(nn.ModuleList):
        def forward(self, values: Tensor) -> Tensor:
            return forward(self, values)

    model = Model([nn.Linear(4, 4), nn.Linear(4, 4)])
    whole = nn.Sequential(nn.Linear(4, 4), model)
    with watch(whole, state_every=1) as watcher:
        whole(torch.randn(3, 4)).sum().backward()
        watcher.step()
        found = probed(watcher)
        unknown = [each for each in watcher.store.events() if each.name == "probe-unknown"]
        assert bool(unknown) == told
        assert len(found) == (taps + 1 if taps else 0)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 6), max_size=4), st.sampled_from(TYPES), st.booleans(), st.integers(0, 10**6))
def test_the_size_of_a_tensor_is_that_in_float64(
    shape: list[int], dtype: torch.dtype, strided: bool, seed: int
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    tensor = tensor.transpose(0, -1)[..., ::2] if strided and shape else tensor
    expected = float(tensor.double().square().mean().sqrt())
    assert float(class_of("size_of")(tensor)) == pytest.approx(expected, rel=1e-9)


def test_a_stream_that_cannot_be_measured_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    model = Stack()
    with watch(model, state_every=1) as watcher:
        with monkeypatch.context() as patched:
            patched.setattr(torch.linalg, "vector_norm", fail)
            model(torch.randn(2, 5, 8)).square().mean().backward()
            watcher.step()
        assert any("no memory" in str(each) for each in watcher.errors)
        assert watcher.current_step == 1


def test_blocks_of_nested_tensors_are_left_out_without_an_error() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
    with watch(model, state_every=1) as watcher:
        with warnings.catch_warnings(action="ignore"):
            rows = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(5, 4)], layout=torch.strided)
        model(rows).to_padded_tensor(0.0).sum().backward()
        watcher.step()
        assert not probed(watcher)
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
        assert {tap for tap in found if "residual" not in tap} == {
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


def test_a_logit_lens_at_the_last_block_is_the_loss_and_no_hook_sees_its_calls() -> None:
    found, states = [], []
    for watched in (False, True):
        seed_all()
        model = Language()
        watcher = watch(model) if watched else None
        if watcher is not None:
            lens = logit_lens(model.norm, model.head, targets=partial(getattr, model, "given"), shift=1, tokens=1000)
            watcher.probe("lens", lens, include="blocks.*", every=1)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
        for _ in range(4):
            words = model.given = torch.randint(0, 30, (2, 9))
            model.calls = 0
            logits = model(words)
            assert model.calls == 1
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append((digest(model.state_dict()), random_state()))
        if watcher is not None:
            found = [probed(watcher)[f"blocks.{block} probe [lens cross_entropy]"] for block in (0, 1)]
            assert list(found[1].values()) == pytest.approx(losses, rel=1e-5)
            assert list(found[0].values()) != pytest.approx(losses, rel=1e-2)
            assert {tap.call for tap in watcher.store.taps().taps} == {0}  # of the head, too
            watcher.close()
            assert not watcher.errors
    assert states[0] == states[1]


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

    modules = dict(make().named_modules())
    plain, seen = train_language(make()), train_language(make(), state_every=1)
    assert seen[:2] == plain[:2]
    for layer in (0, 1):
        path = f"{MODELS[name][2]}.{layer}"
        branches = [each for each in (f"{path}.{inner}" for inner in ("attn", "self_attn", "mlp")) if each in modules]
        assert len(branches) == 2
        expected = {f"{path} probe [outliers {each}]" for each in OUTLIER_NUMBERS}
        expected |= {f"{branch} probe [residual {each}]" for branch in branches for each in PARTS}
        assert {tap: set(steps) for tap, steps in seen[2].items() if path in tap and "attention" not in tap} == {
            tap: {0, 1, 2, 3} for tap in expected
        }


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
