"""The heads of nn.MultiheadAttention, computed again from what it got: if it returns weights, and without gradients."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.probes import QUERIES, SAMPLES
from hookcore.records.vocabulary import ATTENTION_MAP, ATTENTION_NUMBERS
from tests.harness import digest, random_state, seed_all
from tests.lanes import examples

PADDING = ("", "bool", "added")
MASKS = ("", "bool", "bool of each head", "added", "added to each head")
WITHOUT = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
EXACT = {torch.float64: 2e-6, torch.float32: 2e-4}  # they are kept in float32


class Heads(nn.Module):
    """A model that is one attention."""

    def __init__(self, heads: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attend = heads

    def forward(self, *inputs: Tensor, **how: Any) -> Any:
        return self.attend(*inputs, **how)


def masks_of(kinds: tuple[str, str], samples: int, heads: int, queries: int, keys: int) -> dict[str, Tensor]:
    """Return masks of keys and of pairs. Each query sees the first two keys."""
    padding, mask = kinds
    found: dict[str, Tensor] = {}
    hidden = torch.rand(samples, keys) < 0.3
    pairs = torch.rand(queries, keys) < 0.3
    each = torch.rand(samples * heads, queries, keys) < 0.3
    for tensor in (hidden, pairs, each):
        tensor[..., :2] = False
    if padding == "bool":
        found["key_padding_mask"] = hidden
    if padding == "added":
        found["key_padding_mask"] = torch.where(hidden, -torch.inf, torch.randn(samples, keys))
    if mask == "bool":
        found["attn_mask"] = pairs
    if mask == "bool of each head":
        found["attn_mask"] = each
    if mask == "added":
        found["attn_mask"] = torch.where(pairs, -torch.inf, torch.randn(queries, keys))
    if mask == "added to each head":
        found["attn_mask"] = torch.where(each, -torch.inf, torch.randn(each.shape))
    return found


def twin_of(heads: nn.MultiheadAttention, inputs: list[Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the numbers in float64, of weights that torch itself has returned."""
    twin = copy.deepcopy(heads).double().eval()
    masks = {name: each.double() if each.is_floating_point() else each for name, each in masks.items()}
    with torch.no_grad():
        given_weights = twin(*(each.double() for each in inputs), **masks, average_attn_weights=False)[1]
    if inputs[0].dim() == 2:
        given_weights, inputs = given_weights[None], [each[None] for each in inputs]
    elif not heads.batch_first:
        inputs = [each.transpose(0, 1) for each in inputs]
    packed = twin.in_proj_weight
    parts = packed.chunk(3) if packed is not None else (twin.q_proj_weight, twin.k_proj_weight, twin.v_proj_weight)
    biases = [0.0] * 3 if twin.in_proj_bias is None else twin.in_proj_bias.chunk(3)
    query, key, value = (
        (each.double() @ weight.T + bias).unflatten(2, (heads.num_heads, -1)).transpose(1, 2)
        for each, weight, bias in zip(inputs, parts, biases, strict=True)
    )
    keys, many = key.shape[2], len(query)
    if twin.bias_k is not None:
        more = [
            each.view(1, 1, heads.num_heads, -1).transpose(1, 2).expand(many, -1, -1, -1)
            for each in (twin.bias_k, twin.bias_v)
        ]
        key, value = torch.cat((key, more[0]), 2), torch.cat((value, more[1]), 2)
    if heads.add_zero_attn:
        key, value = (torch.cat((each, torch.zeros_like(each[:, :, :1])), 2) for each in (key, value))
    added = torch.zeros(many, heads.num_heads, query.shape[2], key.shape[2], dtype=torch.float64)
    for name, mask in masks.items():
        number = mask if mask.is_floating_point() else torch.zeros(mask.shape).double().masked_fill(mask, -torch.inf)
        if name == "key_padding_mask":
            number = number.view(many, 1, 1, -1)
        added[..., :keys] += number.unflatten(0, (many, -1)) if number.dim() == 3 else number
    logits = query @ key.mT / query.shape[3] ** 0.5
    torch.testing.assert_close((logits + added).softmax(-1), given_weights, rtol=1e-9, atol=1e-9)
    visible = added > -1e30
    step = -(-query.shape[2] // QUERIES)
    samples, rows = slice(None, None, -(-many // SAMPLES)), slice(step - 1, None, step)
    seen, weights = visible[samples, :, rows], given_weights[samples, :, rows]
    counts, most = seen.sum(-1) > 1, seen.sum(-1).clamp(min=2).double().log()
    mixed = (given_weights @ value)[samples, :, rows].square().mean(-1)
    far = (torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]).abs()[rows]

    def mean(values: Tensor) -> Tensor:
        return values.masked_fill(~counts, 0.0).sum((0, 2)) / counts.sum((0, 2))

    size = mean(mixed).sqrt()
    found = {
        "largest_logit": logits[samples, :, rows].masked_fill(~(seen & counts[..., None]), -torch.inf).amax((0, 2, 3)),
        "entropy": mean(torch.special.entr(weights).sum(-1) / most),
        "log_sum_exp": mean((logits + added)[samples, :, rows].logsumexp(-1)),
        "first_token": mean(weights[..., 0]),
        "distance": mean((weights * far).sum(-1)),
        "output": size / size.mean(),
    }
    if query.shape[2] != key.shape[2]:
        del found["distance"]
    return found


def measured(watcher: hookcore.Watcher, path: str, phase: str = "train") -> dict[str, Tensor]:
    """Return the newest numbers of each head."""
    watcher.flush()
    taps = [tap for tap in watcher.store.taps().taps if tap.kind == "probe" and tap.module == path]
    taps = [tap for tap in taps if tap.phase == phase and tap.index.startswith("attention") and not tap.call]
    found = {tap.index.partition(" ")[2]: watcher.reader().channels(tap.label).values[:, -1] for tap in taps}
    return {name: torch.tensor(values) for name, values in found.items()}


def watch(model: nn.Module | None, **options: Any) -> hookcore.Watcher:
    defaults = {"server": None, "budget": None, "state_every": 1, "phases": ("train", "eval")}
    return hookcore.watch(model, **{**defaults, **options})


def unknown(watcher: hookcore.Watcher) -> list[str]:
    watcher.flush()
    return [each.message for each in watcher.store.events() if each.name == "probe-unknown"]


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], within: float) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        torch.testing.assert_close(found[name].double(), values, rtol=within, atol=within, msg=name)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@settings(max_examples=examples(90), deadline=None)
@given(
    st.sampled_from(["training", "no_grad", "inference"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.tuples(st.sampled_from(PADDING), st.sampled_from(MASKS)),
    st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(2, 40), st.sampled_from([1, 2, 3])),
    st.sampled_from(["self", "other", "widths"]),
    st.fixed_dictionaries({name: st.booleans() for name in ("batch_first", "bias", "add_bias_kv", "add_zero_attn")}),
    st.booleans(), st.booleans(), st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_heads_are_those_of_the_weights_that_torch_returns(
    way: str, dtype: torch.dtype, kinds: tuple[str, str], sizes: tuple[int, int, int, int], given_to: str,
    options: dict[str, bool], is_batched: bool, need_weights: bool, dropout: float,
) -> None:  # fmt: skip
    samples, queries, keys, heads = sizes
    seed_all(samples * queries + keys)
    widths = {"kdim": 5, "vdim": 7} if given_to == "widths" else {}
    attend = nn.MultiheadAttention(4 * heads, heads, dropout=dropout, dtype=dtype, **options, **widths)
    with torch.no_grad():
        for weight in attend.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    shapes = [(samples, many, width) for many, width in ((queries, 4 * heads), (keys, 4 * heads), (keys, 4 * heads))]
    if given_to == "self":
        shapes, keys = [shapes[0]] * 3, queries
    if given_to == "widths":
        shapes[1:] = [(samples, keys, 5), (samples, keys, 7)]
    inputs = [torch.randn(shape, dtype=dtype) for shape in shapes]
    inputs = [inputs[0]] * 3 if given_to == "self" else inputs
    if keys < 2:
        return
    if not is_batched:
        inputs, samples = [each[0] for each in inputs], 1
    elif not options["batch_first"]:
        inputs = [each.transpose(0, 1) for each in inputs]
    masks = {
        name: each.to(dtype).clamp(min=torch.finfo(dtype).min) if each.is_floating_point() else each
        for name, each in masks_of(kinds, samples, heads, queries, keys).items()
    }
    if not is_batched and "key_padding_mask" in masks:
        masks["key_padding_mask"] = masks["key_padding_mask"][0]
    model = Heads(attend)
    expected = twin_of(attend, inputs, masks)
    torch.manual_seed(3)
    with torch.no_grad():
        plain = model.train(way == "training")(*inputs, **masks, need_weights=need_weights)[0]
    drawn = random_state()
    with watch(model, state_every=1) as watcher:
        torch.manual_seed(3)
        with WITHOUT[way]() if way != "training" else nullcontext():
            output = model(*inputs, **masks, need_weights=need_weights)[0]
        assert random_state() == drawn
        if way == "training":
            output.pow(2).mean().backward()
        watcher.step()
        found = measured(watcher, "attend", "train" if way == "training" else "eval")
        assert not unknown(watcher)
        assert not watcher.errors
    if way != "training" or not dropout:  # the plain call had no gradients, which may choose another operator
        torch.testing.assert_close(output.detach(), plain, rtol=1e-4, atol=1e-5)
    compare(found, expected, EXACT[dtype])


class Encoder(nn.Module):
    """A stack of torch's layers, and a head."""

    def __init__(self, norm_first: bool = False, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
        self.layers = nn.TransformerEncoder(layer, 2, **options)
        self.out = nn.Linear(16, 1)

    def forward(self, tokens: Tensor, **masks: Tensor) -> Tensor:
        encoded: Tensor = self.layers(tokens, **masks)
        return self.out(encoded.nan_to_num())  # type: ignore[no-any-return]


def called_in(model: nn.Module, *args: Any, **masks: Tensor) -> tuple[Tensor, set[str]]:
    """Return the output of a model in evaluation, and the operators that ran for it."""
    model.eval()
    with torch.no_grad(), torch.autograd.profiler.profile() as ran:
        output = model(*args, **masks)
    return output, {event.name for event in ran.function_events}


def inputs_of_layers(model: Encoder, tokens: Tensor, masks: dict[str, Tensor]) -> list[Tensor]:
    """Return what the attention of each layer gets, without fast paths."""
    got: list[Tensor] = []
    torch.backends.mha.set_fastpath_enabled(False)
    hooks = [
        layer.self_attn.register_forward_pre_hook(lambda _, args: got.append(args[0].detach()))
        for layer in model.layers.layers
    ]
    try:
        model(tokens, **masks)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for hook in hooks:
            hook.remove()
    return got


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mask", ["", "padding", "nested", "pairs"])
def test_the_fast_path_of_a_layer_is_measured_and_stays_the_fast_path(norm_first: bool, mask: str) -> None:
    seed_all()
    model = Encoder(norm_first, enable_nested_tensor=mask == "nested" and not norm_first)
    tokens, masks = torch.randn(6, 9, 16), dict[str, Tensor]()
    if mask in ("padding", "nested"):
        hidden = torch.arange(9) >= torch.tensor([9, 9, 4, 9, 6, 9])[:, None]
        masks = {"src_key_padding_mask": hidden}
    if mask == "pairs":
        masks = {"mask": torch.ones(9, 9, dtype=torch.bool).triu(1)}
    plain, operators = called_in(model, tokens, **masks)
    assert "aten::_transformer_encoder_layer_fwd" in operators
    got = inputs_of_layers(model, tokens, masks)
    with watch(model) as watcher:
        output, again = called_in(model, tokens, **masks)
        assert {each for each in again if "transformer" in each or "attention" in each} <= operators
        assert "aten::_transformer_encoder_layer_fwd" in again
        assert torch.equal(output, plain)
        watcher.step()
        assert not unknown(watcher)
        assert not watcher.errors
        for place, each in enumerate(got):
            heads: Any = model.layers.layers[place].self_attn
            found = measured(watcher, f"layers.layers.{place}.self_attn", "eval")
            given_masks = {"attn_mask": masks["mask"]} if mask == "pairs" else {}
            if mask == "nested" and not norm_first:  # queries of padding aren't there: compare samples one by one
                assert 0 < found["first_token"].mean() < 1
                continue
            if mask in ("padding", "nested"):
                given_masks = {"key_padding_mask": hidden}
            compare(found, twin_of(heads, [each] * 3, given_masks), 1e-4)


@pytest.mark.filterwarnings("ignore")
def test_samples_of_several_lengths_count_as_much_as_they_are_long() -> None:
    seed_all()
    lengths = [9, 4, 6, 2]
    model = Encoder(enable_nested_tensor=True).eval()
    tokens = torch.randn(4, 9, 16)
    hidden = torch.arange(9) >= torch.tensor(lengths)[:, None]
    with watch(model) as watcher:
        with torch.inference_mode():
            model(tokens, src_key_padding_mask=hidden)
        watcher.step()
        found = measured(watcher, "layers.layers.0.self_attn", "eval")
        assert not unknown(watcher)
    heads: Any = model.layers.layers[0].self_attn
    sums = torch.zeros(2, 4, dtype=torch.float64)
    logits = []
    for sample, length in zip(tokens, lengths, strict=True):
        each = twin_of(heads, [sample[None, :length]] * 3, {})
        sums += torch.stack([each["entropy"], each["distance"]]) * length
        logits.append(each["largest_logit"])
    torch.testing.assert_close(found["entropy"].double(), sums[0] / sum(lengths), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found["distance"].double(), sums[1] / sum(lengths), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found["largest_logit"].double(), torch.stack(logits).amax(0), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_layer_whose_fast_path_takes_added_numbers_for_a_mask_is_measured_so() -> None:
    seed_all()
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    tokens, added = torch.randn(3, 7, 16), torch.where(torch.rand(7, 7) < 0.5, 0.0, -0.25)
    added[:, :2] = 0.0
    with torch.no_grad():
        assert torch.equal(layer(tokens, added), layer(tokens, added != 0)), "as torch has done since 2.0"
    with watch(layer) as watcher:
        with torch.no_grad():
            layer(tokens, added)
        watcher.step()
        expected = twin_of(layer.self_attn, [tokens] * 3, {"attn_mask": added != 0})
        compare(measured(watcher, "self_attn", "eval"), expected, 1e-4)


class Classifier(nn.Module):
    """An attention that returns its weights, as it does by default, and a layer."""

    def __init__(self, dropout: float = 0.0, repeats: bool | None = None) -> None:
        super().__init__()
        self.attend, self.repeats = nn.MultiheadAttention(16, 4, dropout=dropout, batch_first=True), repeats
        self.out = nn.Linear(16, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        def mix(values: Tensor) -> Tensor:
            mixed: Tensor = self.attend(values, values, values)[0]
            return mixed

        again = self.repeats
        is_plain = again is None or not self.training
        mixed = mix(tokens) if is_plain else checkpoint(mix, tokens, use_reentrant=again)
        return self.out(mixed)  # type: ignore[no-any-return]


def train(model: nn.Module, steps: int, evaluates: Any = lambda step: 0) -> tuple[str, str]:
    """Train, with so many batches of an evaluation after each step. Return hashes of weights and of what was drawn."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        model.train()
        optimizer.zero_grad()
        model(torch.randn(5, 6, 16, requires_grad=True)).pow(2).mean().backward()
        optimizer.step()
        model.eval()
        for _ in range(evaluates(step)):
            with torch.no_grad():
                model(torch.randn(5, 6, 16))
    return digest(model.state_dict()), random_state()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("repeats", [None, False, True])
def test_a_training_with_weights_and_evaluations_is_measured_and_no_bit_changes(
    dropout: float, repeats: bool | None
) -> None:
    seed_all()
    plain = train(Classifier(dropout, repeats), 6, lambda step: 2)
    seed_all()
    model = Classifier(dropout, repeats)
    with watch(model, state_every=3) as watcher:
        assert train(model, 6, lambda step: 2) == plain
        watcher.flush()
        reader = watcher.reader()
        for phase, steps in (("", [2, 5]), (" (eval)", [1, 4])):
            for name in ATTENTION_NUMBERS:
                series = reader.series(f"attend probe [attention {name}]{phase}", "mean")
                assert series.first_step.tolist() == steps, f"{name}{phase}"
        labels = [tap.label for tap in watcher.store.taps().taps if tap.kind == "probe" and "attention" in tap.index]
        assert len(labels) == 2 * len(ATTENTION_NUMBERS), "the first batch stands for an evaluation"
        assert not unknown(watcher)
        assert not watcher.errors


def test_evaluations_are_measured_only_if_they_are_captured_and_not_more_often_than_asked() -> None:
    model = Classifier()
    with watch(model, state_every=4, phases=("train",)) as watcher:
        train(model, 6, lambda step: 1)
        watcher.flush()
        assert not [tap for tap in watcher.store.taps().taps if tap.phase == "eval"]
    model = Classifier()
    with watch(model, state_every=10, phases=("eval",)) as watcher:
        watcher.probe("often", hookcore.probes.attention, every=5)
        train(model, 25, lambda step: step % 2)
        watcher.flush()
        probes = [tap for tap in watcher.store.taps().taps if tap.kind == "probe" and "entropy" in tap.index]
        assert [tap.label for tap in probes] == ["attend probe [often entropy] (eval)"]
        assert watcher.reader().series(probes[0].label, "mean").first_step.tolist() == [2, 8, 14, 20]


def test_an_evaluation_is_measured_although_a_teacher_runs_without_gradients_in_each_step() -> None:
    class Teacher(Classifier): ...

    class Critic(Classifier): ...

    seed_all()
    student, teacher, critic = Classifier(), Teacher().eval(), Critic()
    optimizer = torch.optim.AdamW(student.parameters())
    with watch(None, state_every=4) as watcher:
        for step in range(16):
            tokens = torch.randn(5, 6, 16)
            with torch.no_grad():
                aim = teacher(tokens) + critic(tokens)  # the one in evaluation mode, the other in training mode
            (student.train()(tokens) - aim).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 9:
                with torch.no_grad():
                    student.eval()(tokens)
        watcher.flush()
        reader, found = watcher.reader(), dict[str, list[int]]()
        for tap in watcher.store.taps().taps:
            if tap.kind == "probe" and tap.index == "attention entropy":
                found[tap.label.replace("attend probe [attention entropy]", "")] = reader.series(
                    tap.label, "mean"
                ).first_step.tolist()
        assert found == {
            **{"Classifier/": [3, 7, 11, 15], "Classifier/ (eval)": [10]},
            **{f"{each}/ (eval)": [0, 4, 8, 12] for each in ("Teacher", "Critic")},
        }


def test_maps_of_an_evaluation_are_computed_on_request() -> None:
    seed_all()
    model = Classifier().eval()
    tokens = torch.randn(5, 6, 16)
    with torch.no_grad():
        expected = model.attend(tokens, tokens, tokens, average_attn_weights=False)[1]
    with watch(model) as watcher:
        watcher.request_snapshot("attend", "output", ATTENTION_MAP, phase="eval")
        for _ in range(2):
            with torch.no_grad():
                model(tokens)
            watcher.step()
        watcher.flush()
        (snapshot,) = watcher.store.snapshots()
    torch.testing.assert_close(torch.tensor(snapshot.values), expected, rtol=1e-5, atol=1e-6)


def test_a_type_that_autocast_chooses_is_that_of_the_queries_and_keys() -> None:
    seed_all()
    model = Classifier().eval()
    tokens = torch.randn(5, 6, 16)
    with watch(model) as watcher:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            model(tokens)
        watcher.step()
        found = measured(watcher, "attend", "eval")
        assert not unknown(watcher)
    compare(found, twin_of(model.attend, [tokens] * 3, {}), 2e-2)
    cast = copy.deepcopy(model.attend).bfloat16()
    with watch(Heads(cast.eval())) as watcher:
        with torch.no_grad():
            cast(*[tokens.bfloat16()] * 3)
        watcher.step()
        for name, values in measured(watcher, "attend", "eval").items():
            torch.testing.assert_close(values, found[name], rtol=1e-5, atol=1e-6, msg=name)


def test_weights_that_are_computed_are_left_alone_and_it_is_said_why() -> None:
    model = Classifier().eval()
    weight_norm(model.attend, "in_proj_weight")
    with watch(model) as watcher:
        with torch.no_grad():
            model(torch.randn(2, 6, 16))
        watcher.step()
        assert not measured(watcher, "attend", "eval")
        assert any("parametrization" in each for each in unknown(watcher))
        assert any("parametrization" in each.reason for each in watcher.coverage() if each.path == "attend")


# Models that were not written for this, next to twins in float64.


class Decoder(nn.Module):
    """Words that look at those before them, and at a memory, some of which is padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.words, self.layers, self.head = nn.Embedding(50, 32), nn.TransformerDecoder(layer, 2), nn.Linear(32, 50)

    def forward(self, words: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], dtype=memory.dtype)
        how = {"tgt_mask": mask, "tgt_is_causal": True, "memory_key_padding_mask": padding}
        return self.head(self.layers(self.words(words), memory, **how))  # type: ignore[no-any-return]

    def batch(self) -> tuple[Tensor, ...]:
        padding = torch.arange(9) >= torch.tensor([9, 5, 9, 2, 9])[:, None]
        return torch.randint(0, 50, (5, 12)), torch.randn(5, 9, 32), padding


class Perceiver(nn.Module):
    """Learned queries that look at inputs of other widths, and then at each other, with weights and added keys."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.norm, self.out = nn.Parameter(torch.randn(6, 32)), nn.LayerNorm(32), nn.Linear(32, 3)
        self.cross = nn.MultiheadAttention(32, 2, kdim=10, vdim=7, add_bias_kv=True)
        self.mix = nn.MultiheadAttention(32, 4, bias=False, add_zero_attn=True)

    def forward(self, keys: Tensor, values: Tensor, added: Tensor) -> Tensor:
        latents = self.latents[:, None].expand(-1, keys.shape[1], -1)
        mixed = self.cross(latents, keys, value=values, attn_mask=added, average_attn_weights=False)[0]
        normed = self.norm(mixed)
        return self.out((mixed + self.mix(normed, normed, normed)[0]).mean(0))  # type: ignore[no-any-return]

    def batch(self) -> tuple[Tensor, ...]:
        return torch.randn(20, 7, 10), torch.randn(20, 7, 7), torch.randn(6, 20)


class Towers(nn.Module):
    """Two encoders, of which one is frozen and stays in evaluation mode, in torch's fast path."""

    def __init__(self) -> None:
        super().__init__()
        frozen = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.words, self.text = nn.Embedding(30, 16).requires_grad_(False), nn.TransformerEncoder(frozen, 2)
        self.patches, self.image = nn.Linear(12, 16), nn.TransformerEncoder(layer, 2)
        self.text.requires_grad_(False)

    def train(self, mode: bool = True) -> Towers:
        super().train(mode)
        self.text.eval()
        return self

    def forward(self, words: Tensor, patches: Tensor, padding: Tensor) -> Tensor:
        text = self.text(self.words(words), src_key_padding_mask=padding).nan_to_num().mean(1)
        image: Tensor = self.image(self.patches(patches)).mean(1)
        return text @ image.T

    def batch(self) -> tuple[Tensor, ...]:
        padding = torch.arange(8) >= torch.tensor([8, 5, 8, 3, 6])[:, None]
        return torch.randint(0, 30, (5, 8)), torch.randn(5, 9, 12), padding


Given = tuple[nn.Module, tuple[Tensor, ...]]


def train_with(model: Any, kept: dict[str, Given]) -> tuple[str, str, float]:
    """Train three steps, with an evaluation behind the second one. Keep what the numbers are about."""
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    total = 0.0
    for step in range(4):
        given = model.train().batch()
        if step == 2:
            kept["train"] = copy.deepcopy(model), given
        model(*given).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            given = model.eval().batch()
            kept["eval"] = copy.deepcopy(model), given
            with torch.inference_mode():
                total += model(*given).sum().item()
    return digest(model.state_dict()), random_state(), total


def numbers_of(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, dict[str, Tensor]]:
    """Return the numbers of each attention in a call, in float64."""
    twin, got = copy.deepcopy(model).double(), dict[str, dict[str, Tensor]]()
    calls: list[tuple[Any, Any, dict[str, Any]]] = []
    paths = {path: module for path, module in twin.named_modules() if isinstance(module, nn.MultiheadAttention)}
    hooks = [  # which turn off the fast paths
        each.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True) for each in paths.values()
    ]
    with torch.no_grad():
        twin(*(each.double() if each.is_floating_point() else each for each in batch))
    for hook in hooks:
        hook.remove()
    for heads, args, keywords in calls:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | keywords
        masks = {name: given[name] for name in ("key_padding_mask", "attn_mask") if given.get(name) is not None}
        path = next(path for path, module in paths.items() if module is heads)
        got[path] = twin_of(heads, [given[name].detach() for name in ("query", "key", "value")], masks)
    return got


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "attach"),  # hooks on modules turn off the fast path of a layer
    [(Decoder, "global"), (Decoder, "module"), (Perceiver, "global"), (Perceiver, "module"), (Towers, "global")],
)
def test_models_that_were_not_written_for_this_have_the_numbers_of_their_twins(make: Any, attach: str) -> None:
    seed_all()
    plain, kept = train_with(make(), {}), dict[str, Given]()
    seed_all()
    model: Any = make()
    with watch(model, attach=attach, state_every=3) as watcher:
        assert train_with(model, kept) == plain
        assert not unknown(watcher)
        assert not watcher.errors
        for phase, given in kept.items():
            twins = numbers_of(*given)
            assert twins
            for path, expected in twins.items():
                compare(measured(watcher, path, phase), expected, 2e-4)
