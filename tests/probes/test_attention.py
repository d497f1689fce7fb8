"""Attention without its matrix: the numbers of each head, how calls are found, and that nothing else changes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.errors import ArgumentError
from hookcore.probes import MAX_SCORES, QUERIES, SAMPLES, attention, attention_map
from hookcore.records.vocabulary import ATTENTION_MAP, ATTENTION_NUMBERS
from tests.harness import digest, process_state, random_state, seed_all
from tests.lanes import examples

MASKS = ("none", "causal", "bool", "padding", "window", "alibi", "soft cap", "causal, window, soft cap")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-5, torch.float16: 2e-5}


def options_of(mask: str, heads: int, queries: int, keys: int) -> dict[str, Any]:
    """Return the arguments of attention for a kind of mask."""
    ahead = torch.arange(keys) - torch.arange(queries)[:, None]
    found: dict[str, Any] = {}
    if "causal" in mask:
        found["is_causal"] = True
    if "window" in mask:
        found["window"] = (3, 2)
    if "soft cap" in mask:
        found["softcap"] = 1.5
    if mask == "bool":
        found["mask"] = torch.rand(1, heads, queries, keys) < 0.6
    if mask == "padding":
        found["mask"] = torch.where(torch.arange(keys) < keys - 2, 0.0, torch.finfo(torch.float32).min)[
            None, None, None
        ]
    if mask == "alibi":
        found["mask"] = -(0.5 ** torch.arange(1, heads + 1))[:, None, None] * ahead.abs()
    return found


def materialized(
    query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the numbers from the whole matrix in float64, and the matrix."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    logits = query @ key.mT * query.shape[3] ** -0.5
    cap, (before, after) = options.get("softcap"), options.get("window", (-1, -1))
    scores = cap * torch.tanh(logits / cap) if cap else logits
    ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]
    visible = torch.ones_like(scores, dtype=torch.bool)
    if options.get("is_causal"):
        visible &= ahead <= 0
    if before >= 0:
        visible &= (ahead >= -before) & (ahead <= after)
    mask = options.get("mask")
    if mask is not None and mask.dtype is torch.bool:
        visible &= mask
    elif mask is not None:
        scores, visible = scores + mask.double(), visible & (mask > -1e30)
    matrix = scores.masked_fill(~visible, -torch.inf).softmax(-1)

    samples = slice(None, None, -(-len(query) // SAMPLES))
    step = -(-query.shape[2] // QUERIES)
    queries = slice(step - 1, None, step)
    heads: dict[str, list[float]] = {name: [] for name in ATTENTION_NUMBERS}
    sizes = []
    for head in range(query.shape[1]):
        seen = visible[samples, head, queries]
        rows = seen.sum(-1) > 1
        weights, some = matrix[samples, head, queries][rows], scores[samples, head, queries][rows]
        heads["largest_logit"].append(logits[samples, head, queries][rows][seen[rows]].max().item())
        entropy = torch.special.entr(weights).sum(-1) / seen[rows].sum(-1).double().log()
        heads["entropy"].append(entropy.mean().item())
        hidden = some.masked_fill(~seen[rows], -torch.inf)
        heads["log_sum_exp"].append(hidden.logsumexp(-1).mean().item())
        heads["first_token"].append(weights[:, 0].mean().item())
        far = ahead[queries].abs().expand_as(seen)[rows]
        heads["distance"].append((weights * far).sum(-1).mean().item())
        mixed = (matrix[samples, head, queries] @ value[samples, head])[rows]
        sizes.append(mixed.square().mean().sqrt().item())
    heads["output"] = [size / (sum(sizes) / len(sizes)) for size in sizes]
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in heads.items()}, matrix


@pytest.mark.parametrize(
    ("mask", "kv_heads", "dtype"), list(product(MASKS, (4, 2, 1), (torch.float32, torch.bfloat16, torch.float64)))
)
def test_the_numbers_of_each_head_are_those_of_the_whole_matrix(mask: str, kv_heads: int, dtype: torch.dtype) -> None:
    seed_all()
    query = torch.randn(5, 4, 37, 8).to(dtype) * 3
    key, value = (torch.randn(5, kv_heads, 37, 8).to(dtype) for _ in range(2))
    options = options_of(mask, 4, 37, 37)
    expected, matrix = materialized(query, key, value, options)
    found = attention(query, key, value, **options)
    assert set(found) == set(ATTENTION_NUMBERS)
    for name, values in found.items():
        torch.testing.assert_close(
            values.double(), expected[name], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], msg=f"{name} of {mask}"
        )
    torch.testing.assert_close(
        attention_map(query, key, value, **options).double(), matrix, rtol=1e-4, atol=1e-5, equal_nan=True
    )


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 9), st.sampled_from([(1, 1), (4, 1), (6, 3)]), st.integers(2, 70), st.integers(1, 12),
    st.sampled_from(MASKS), st.sampled_from([torch.float32, torch.float64, torch.float16]), st.floats(0.01, 30),
)  # fmt: skip
def test_numbers_do_not_depend_on_how_keys_are_cut_into_parts(
    samples: int, heads: tuple[int, int], tokens: int, width: int, mask: str, dtype: torch.dtype, size: float
) -> None:
    torch.manual_seed(samples * tokens)
    query = (torch.randn(samples, heads[0], tokens, width) * size).to(dtype)
    key, value = (torch.randn(samples, heads[1], tokens, width).to(dtype) for _ in range(2))
    options = options_of(mask, heads[0], tokens, tokens)
    whole = attention(query, key, value, **options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hookcore.probes.MAX_SCORES", 1)  # the fewest keys at a time
        parts = attention(query, key, value, **options)
    for name, values in whole.items():
        torch.testing.assert_close(parts[name], values, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)


def test_a_row_that_sees_fewer_than_two_keys_does_not_count_and_one_token_is_an_entropy_of_zero() -> None:
    query = key = torch.eye(6)[None, None] * 200
    value = torch.ones(1, 1, 6, 2)
    found = attention(query, key, value)
    assert found["entropy"].item() == 0
    assert found["distance"].item() == 0
    assert found["largest_logit"].item() == pytest.approx(200 * 200 * 6**-0.5)
    alone = attention(query, key, value, torch.eye(6, dtype=torch.bool))
    assert all(values.isnan().all() for values in alone.values())


def test_a_head_whose_values_are_zero_is_told_from_the_others() -> None:
    seed_all()
    query, key, value = (torch.randn(2, 4, 9, 8) for _ in range(3))
    value[:, 1] = 0
    dead = attention(query, key, value)["output"]
    assert dead[1] == 0
    assert dead.mean().item() == pytest.approx(1)
    value[:] = 0
    assert attention(query, key, value)["output"].tolist() == [0.0] * 4


def test_attention_to_more_tokens_than_there_are_queries_has_no_distance() -> None:
    found = attention(torch.randn(1, 2, 4, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8))
    assert "distance" not in found
    with pytest.raises(ArgumentError, match="don't fit together"):
        attention(torch.randn(1, 3, 4, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8))
    with pytest.raises(ArgumentError, match="too large"):
        attention_map(*[torch.empty(1, 16, 4096, 1)] * 3)


def test_memory_is_bounded_by_the_scores_at_a_time() -> None:
    query, key = torch.randn(1, 2, 16, 4), torch.randn(1, 2, 2**18, 4)
    seen: list[int] = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            seen.extend(
                each.untyped_storage().nbytes() for each in [result] if isinstance(each, Tensor) and each is not key
            )
            return result

    with Sizes():
        attention(query, key, key)
    assert max(size for size in seen if size != key.nbytes) <= 4 * MAX_SCORES


# Calls in a training.


class Attention(nn.Module):
    """Attention with four heads by torch's fused operator."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.options = {"is_causal": True, **options}
        self.given: tuple[Tensor, ...] = ()

    def forward(self, values: Tensor) -> Tensor:
        query, key, value = self.qkv(values).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        self.given = tuple(each.detach() for each in (query, key, value))
        mixed = scaled_dot_product_attention(query, key, value, **self.options)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a layer, with skip connections."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(**options), nn.Linear(32, 32)

    def forward(self, values: Tensor) -> Tensor:
        values = values + self.attn(values)
        return values + self.mlp(values)


class Stack(nn.Module):
    """Two blocks, each in a checkpoint if that is wished."""

    def __init__(self, reentrant: bool | None = None, **options: Any) -> None:
        super().__init__()
        self.blocks, self.reentrant = nn.ModuleList(Block(**options) for _ in range(2)), reentrant

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            again = self.reentrant
            values = block(values) if again is None else checkpoint(block, values, use_reentrant=again)
        return values


def train(model: nn.Module, steps: int, parts: int = 1, see: Callable[[int], None] = lambda _: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        see(step)
        optimizer.zero_grad()
        for _ in range(parts):
            output = model(torch.randn(3, 12, 32, requires_grad=True))
            (output[0] if isinstance(output, tuple) else output).pow(2).mean().backward()
        optimizer.step()


def watch(model: nn.Module, **options: Any) -> hookcore.Watcher:
    return hookcore.watch(model, **{"server": None, "budget": None, **options})


def probed(watcher: hookcore.Watcher) -> dict[str, list[int]]:
    """Return the steps in which each number of a probe was measured."""
    watcher.flush()
    reader = watcher.reader()
    probes = [tap for tap in watcher.store.taps().taps if tap.kind == "probe"]
    taps = [tap for tap in probes if not tap.index.startswith(("outliers", "residual"))]
    return {tap.label: reader.series(tap.label, "mean").first_step.tolist() for tap in taps}


def unknown(watcher: hookcore.Watcher) -> list[str]:
    return [each.message for each in watcher.store.events() if each.name == "probe-unknown"]


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_fused_attention_is_measured_in_rare_steps_by_itself(reentrant: bool | None) -> None:
    seed_all()
    model, given_at = Stack(reentrant), list[tuple[Tensor, ...]]()
    with watch(model, state_every=5) as watcher:

        def see(step: int) -> None:
            if step == 5:  # what step 4 has left
                given_at.append(model.blocks[1].attn.given)  # type: ignore[union-attr]

        train(model, 12, see=see)
        names = {f"blocks.{block}.attn probe [attention {name}]" for block in (0, 1) for name in ATTENTION_NUMBERS}
        assert probed(watcher) == {key: [4, 9] for key in names}
        for name, values in attention(*given_at[0], is_causal=True).items():
            series = watcher.reader().series(f"blocks.1.attn probe [attention {name}]", "max")
            assert series.mean[0] == pytest.approx(values.max().item(), rel=1e-6)
        heads = watcher.reader().channels("blocks.1.attn probe [attention entropy]")
        assert heads.values.shape[0] == 4 or heads.values.shape[-1] == 4
        assert not unknown(watcher)
        assert not watcher.errors
        assert not any(name.startswith("probe ") for name in watcher.store.labels()), "the script asked for none"


@pytest.mark.parametrize("attach", ["global", "module"])
def test_a_probe_looks_at_attention_as_often_as_wished_where_it_is_wished(attach: str) -> None:
    model = Stack()
    with watch(model, attach=attach) as watcher:
        watcher.probe("heads", hookcore.probes.attention, include="blocks.1.*", every=3)
        train(model, 7, parts=2)
        expected = {f"blocks.1.attn probe [heads {name}]" for name in ATTENTION_NUMBERS}
        assert probed(watcher) == {key: [0, 3, 6] for key in expected}
        counted = watcher.reader().series("blocks.1.attn probe [heads entropy]", "count").mean.tolist()
        assert counted == [4.0] * 3  # heads; the first of two micro-batches stands for the step


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Flat(), "step by step, and its weights aren't"),
        (lambda: Linearized(), "step by step"),
        (lambda: torch.compile(Attention(), backend="aot_eager"), "compiled"),
    ],
)
def test_attention_that_cannot_be_seen_is_said_to_be_unknown(make: Callable[[], Any], told: str) -> None:
    model = make()
    with watch(model, state_every=2) as watcher:
        train(model, 5)
        assert not probed(watcher)
        assert any(told in each for each in unknown(watcher))
        assert any(told in each.reason for each in watcher.coverage())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", ["boundary", "materialized", "inside"])
def test_attention_in_a_compiled_region_is_said_to_be_unknown_where_people_look(compiled: Any) -> None:
    model: Any = torch.compile(Stack(), backend="aot_eager")
    with watch(model, state_every=2, compiled=compiled) as watcher:
        train(model, 3)
        assert not probed(watcher)
        (event,) = [each for each in watcher.store.events() if each.name == "probe-unknown"]
        assert "compiled" in event.message
        assert event.module == "blocks.0.attn"
        covered = {each.path: each.reason for each in watcher.coverage()}
        for path in ("blocks.0.attn", "blocks.1.attn"):
            assert "attention isn't measured: it is compiled" in covered[path]
        assert "attention isn't measured" not in covered["blocks.0.mlp"]
    torch._dynamo.reset()


def test_fused_attention_in_an_evaluation_is_said_to_be_unknown_and_that_of_training_is_measured() -> None:
    model = Stack()
    with watch(model, state_every=2, phases=("train", "eval")) as watcher:
        for _ in range(3):
            train(model.train(), 2)
            with torch.no_grad():
                model.eval()(torch.randn(2, 5, 32))
        watcher.flush()
        assert {tap.phase for tap in watcher.store.taps().taps if tap.kind == "probe"} == {"train"}
        assert len(probed(watcher)) == 2 * len(ATTENTION_NUMBERS)
        assert any("ran without gradients" in each for each in unknown(watcher))
        covered = {each.path: each for each in watcher.coverage()}
        assert "ran without gradients" in covered["blocks.1.attn"].reason
        assert covered["blocks.1.attn"].captured


class Stepwise(Attention):
    """The same attention as someone writes it, operator by operator."""

    def forward(self, values: Tensor) -> Tensor:
        query, key, value = self.qkv(values).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        logits = torch.einsum("shqw,shkw->shqk", query, key) * 8**-0.5
        if cap := self.options.get("softcap"):
            logits = cap * torch.tanh(logits / cap)
        if self.options["is_causal"]:
            logits = logits.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), -torch.inf)
        if (mask := self.options.get("mask")) is not None:
            logits = logits + mask
        weights = nn.functional.softmax(logits, dim=-1, dtype=self.options.get("wide", torch.float32)).to(value.dtype)
        self.given = (weights.detach(), query.detach(), key.detach())
        weights = nn.functional.dropout(weights, self.options.get("dropout", 0.0))
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class Flat(Attention):
    """The same with its heads among the samples, so that nothing says which is which."""

    def forward(self, values: Tensor) -> Tensor:
        query, key, value = self.qkv(values).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).flatten(1, 2)
        mixed = torch.bmm(torch.bmm(query, key.mT).softmax(-1), value)
        return self.out(mixed.unflatten(0, (-1, 4)).transpose(1, 2).flatten(2))


class Linearized(nn.Module):
    """A layer called attention whose softmax weights no product: it gates."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_gate = GateOfAttention()

    def forward(self, values: Tensor) -> Tensor:
        gated: Tensor = self.attention_gate(values)
        return gated


class GateOfAttention(nn.Module):
    """A gate over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, values: Tensor) -> Tensor:
        gate: Tensor = self.layer(values).softmax(-1)
        return gate * values


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"is_causal": False},
        {"is_causal": True, "softcap": 1.5, "dropout": 0.2},
        {"is_causal": False, "mask": torch.where(torch.arange(12) < 9, 0.0, torch.finfo(torch.float32).min)},
        {"is_causal": True, "wide": torch.float64},
    ],
)
def test_the_weights_of_attention_that_is_computed_step_by_step_are_measured(options: dict[str, Any]) -> None:
    seed_all()
    model, twin = Stepwise(**options), Stepwise(**options)
    twin.load_state_dict(model.state_dict())
    with watch(model, state_every=1) as watcher:
        torch.manual_seed(5)
        train(model, 2)
        watcher.flush()
        found = {name: watcher.reader().channels(f"(root) probe [attention {name}]") for name in STEPWISE}
        assert {each.partition("attention ")[2] for each in probed(watcher)} == {f"{name}]" for name in STEPWISE}
        assert not unknown(watcher)
        assert not watcher.errors
    torch.manual_seed(5)
    train(twin, 2)
    assert digest(twin.state_dict()) == digest(model.state_dict())
    weights = model.given[0].double()
    assert torch.equal(weights, twin.given[0].double())
    seen = torch.arange(1.0, 13.0).clamp(min=2) if options["is_causal"] else torch.full((12,), 12.0)
    counts = slice(1 if options["is_causal"] else 0, None)  # the first query sees one key
    ahead = (torch.arange(12) - torch.arange(12)[:, None]).abs()
    expected = {
        "entropy": (torch.special.entr(weights).sum(-1) / seen.double().log())[..., counts].mean((0, 2)),
        "first_token": weights[..., counts, 0].mean((0, 2)),
        "distance": (weights * ahead).sum(-1)[..., counts].mean((0, 2)),
    }
    for name, values in expected.items():
        assert found[name].values[:, -1].tolist() == pytest.approx(values.tolist(), rel=1e-4)


STEPWISE = ("entropy", "first_token", "distance")


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_attention_that_is_computed_step_by_step_is_measured_inside_checkpoints(reentrant: bool | None) -> None:
    seed_all()
    model = Stack(reentrant)
    for block in model.blocks:
        block.attn = Stepwise(is_causal=True)
    with watch(model, state_every=5) as watcher:
        train(model, 6)
        names = {f"blocks.{block}.attn probe [attention {name}]" for block in (0, 1) for name in STEPWISE}
        assert probed(watcher) == {key: [4] for key in names}
        assert not unknown(watcher)
        assert not watcher.errors


def test_of_many_queries_and_samples_the_same_are_looked_at_as_of_fused_attention() -> None:
    seed_all()
    query, key, value = torch.randn(3, 9, 4, 70, 8, dtype=torch.float64)
    for is_causal in (True, False):
        fused = attention(query, key, value, is_causal=is_causal)
        weights = materialized(query, key, value, {"is_causal": True} if is_causal else {})[1]
        for name, values in hookcore.probes.attention_weights(weights).items():
            torch.testing.assert_close(values, fused[name], rtol=1e-9, atol=1e-12)


class FlashAttnFunc(torch.autograd.Function):
    """A function in torch that keeps for the backward pass what the one of flash-attn does, which needs a GPU."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, how: dict[str, Any]) -> Tensor:
        ctx.save_for_backward(query, key, value, *how.get("more", ()))
        ctx.softmax_scale, ctx.causal, ctx.window_size = 0.3, True, how.get("window", (5, 0))
        ctx.softcap = 2.0
        for name in ("alibi_slopes", "attention_chunk", "mask_mod"):  # each release keeps some of them
            if name in how:
                setattr(ctx, name, how[name])
        return query * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return *[torch.ones_like(each) for each in ctx.saved_tensors[:3]], None


class Flash(nn.Module):
    """Attention by such a function."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.query, self.key, self.how, self.given = nn.Linear(32, 32), nn.Linear(32, 16), how, list[Tensor]()

    def forward(self, values: Tensor) -> Tensor:
        query, key = self.query(values).unflatten(2, (4, 8)), self.key(values).unflatten(2, (2, 8))
        self.given = [each.detach().transpose(1, 2) for each in (query, key, key)]
        mixed: Tensor = FlashAttnFunc.apply(query, key, key, self.how)
        return mixed.flatten(2)


@pytest.mark.parametrize(
    ("module", "how", "told"),
    [
        ("flash_attn.flash_attn_interface", {"alibi_slopes": None}, ""),
        ("flash_attn.flash_attn_interface", {"alibi_slopes": torch.ones(4)}, "ALiBi slopes"),
        ("flash_attn_interface", {"attention_chunk": 0}, ""),
        ("flash_attn_3.flash_attn_interface", {"attention_chunk": 4}, "chunks"),
        ("flash_attn.cute.interface", {"more": 7 * [None], "window": (5, None), "mask_mod": None}, ""),
        ("flash_attn.cute.interface", {"more": 6 * [None] + [torch.ones(4)], "mask_mod": None}, "a sink"),
        ("flash_attn.cute.interface", {"more": 7 * [None], "mask_mod": print}, "functions of its own"),
        ("another_flash", {}, "another release"),
    ],
)
def test_what_flash_attn_keeps_is_read(
    module: str, how: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlashAttnFunc, "__module__", module)
    model = Flash(**how)
    with watch(model, state_every=1) as watcher:
        train(model, 1)
        found = probed(watcher)
        if told:
            assert not found
            assert any(told in each for each in unknown(watcher))
            return
        before, after = how.get("window", (5, 0))
        window = before, -1 if after is None else after
        options = {"scale": 0.3, "is_causal": True, "window": window, "softcap": 2.0}
        assert len(found) == len(ATTENTION_NUMBERS)
        for name, values in attention(*model.given, **options).items():
            series = watcher.reader().series(f"(root) probe [attention {name}]", "max")
            assert series.mean[0] == pytest.approx(values.max().item(), rel=1e-6)


def test_a_map_that_cannot_be_computed_says_why() -> None:
    model = Stack(dropout_p=0.1)
    with watch(model) as watcher:
        watcher.request_snapshot("blocks.0.attn", "output", ATTENTION_MAP)
        train(model, 2)
    (missed,) = [each for each in watcher.store.events() if each.name == "snapshot-missed"]
    assert "step by step" in missed.message


def test_saved_tensors_of_the_users_hooks_are_not_asked_for() -> None:
    unpacked: list[Tensor] = []

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    model = Stack()
    with watch(model, state_every=1) as watcher:
        for _ in range(2):
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
                output = model(torch.randn(2, 5, 32))
            assert not unpacked
            output.sum().backward()
            watcher.step()
            unpacked.clear()
        assert not probed(watcher)
        assert any("kept by hooks" in each for each in unknown(watcher))


def test_maps_are_computed_on_request_and_labeled_as_recomputed() -> None:
    seed_all()
    model = Stack(scale=0.7)
    kept: list[Tensor] = []

    def see(step: int) -> None:
        if step == 2:
            watcher.request_snapshot("blocks.0.attn", "output", ATTENTION_MAP)
        if step == 3:
            query, key, _ = model.blocks[0].attn.given  # type: ignore[union-attr]
            ahead = torch.arange(12) - torch.arange(12)[:, None]
            kept.append((query @ key.mT * 0.7).masked_fill(ahead > 0, -torch.inf).softmax(-1))

    with watch(model) as watcher:
        train(model, 5, see=see)
        watcher.flush()
        (snapshot,) = watcher.store.snapshots()
    assert snapshot.tap.label == "blocks.0.attn output [recomputed attention]"
    torch.testing.assert_close(torch.tensor(snapshot.values), kept[0], rtol=1e-5, atol=1e-6)


# Harmless: beside an unwatched twin, to the bit.

transformers = import_module("transformers")
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "n_embd": 32, "num_hidden_layers": 2, "n_layer": 2, "num_attention_heads": 4,
    "n_head": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 64,
    "n_positions": 64, "sliding_window": 4, "pad_token_id": 0, "attn_pdrop": 0.0, "attention_dropout": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
MODELS = {
    "GPT2": ("GPT2LMHeadModel", "GPT2Config", "transformer.h.{}.attn"),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", "model.layers.{}.self_attn"),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", "model.layers.{}.self_attn"),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", "model.layers.{}.self_attn"),  # by no fused operator
    "Mistral": ("MistralForCausalLM", "MistralConfig", "model.layers.{}.self_attn"),
    "Bert": ("BertForMaskedLM", "BertConfig", "bert.encoder.layer.{}.attention.self"),
}
EAGER = [(name, "eager") for name in ("GPT2", "Gemma2", "Llama", "Bert")]


def make_model(name: str, how: str = "sdpa") -> Any:
    model, config, _ = MODELS[name]
    known = getattr(transformers, config)
    sizes = {key: value for key, value in SMALL.items() if hasattr(known(), key)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, model)(known(**sizes, attn_implementation=how)).train()


def train_language(model: nn.Module, watched: bool, **options: Any) -> tuple[str, str, dict[str, list[int]], list[str]]:
    seed_all(1)
    watcher = watch(model, **options) if watched else None
    if watcher is not None:
        watcher.probe("heads", hookcore.probes.attention, every=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(4):
        tokens = torch.randint(1, 64, (3, 14))
        seen = torch.ones_like(tokens)
        seen[1, 9:] = 0
        model(input_ids=tokens, labels=tokens, attention_mask=seen).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    state = digest(model.state_dict()), random_state()
    if watcher is None:
        return (*state, {}, [])
    found, told = probed(watcher), unknown(watcher)
    watcher.close()
    assert not watcher.errors
    return (*state, found, told)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "how"), [*((each, "sdpa") for each in sorted(MODELS.keys() - {"Gemma2"})), *EAGER])
def test_attention_of_transformers_is_measured_and_no_bit_changes(name: str, how: str) -> None:
    seed_all()
    plain = train_language(make_model(name, how), watched=False)
    seed_all()
    seen = train_language(make_model(name, how), watched=True)
    assert seen[:2] == plain[:2]
    path, numbers = MODELS[name][2], ATTENTION_NUMBERS if how == "sdpa" else STEPWISE
    expected = {f"{path.format(layer)} probe [heads {each}]" for layer in (0, 1) for each in numbers}
    assert seen[2] == {key: [0, 2] for key in expected}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_training_leaves_no_graph_and_no_hook_behind() -> None:
    before = process_state()
    model = Stack()
    with watch(model, state_every=1) as watcher:
        output = model(torch.randn(2, 5, 32))
        node = output.grad_fn
        del output, node
        gc.collect()
        assert not [each for each in gc.get_objects() if type(each).__name__.startswith("ScaledDotProduct")]
        watcher.flush()
    assert process_state() == before


# Functions of FlexAttention.


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_functions_of_flex_attention_change_the_numbers_as_they_change_its_result(kv_heads: int) -> None:
    flex = import_module("torch.nn.attention.flex_attention")
    seed_all()
    query = torch.randn(3, 4, 40, 8, dtype=torch.float64)
    key, value = torch.randn(2, 3, kv_heads, 40, 8, dtype=torch.float64)
    slopes, document = torch.tensor([0.5, 0.25, 0.1, 0.0], dtype=torch.float64), torch.arange(40).expand(3, 40) // 17

    def lean(score: Tensor, sample: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return torch.tanh(score / 2) * 2 - slopes[head] * (row - column).abs()

    def within(sample: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (document[sample, row] == document[sample, column]) & (row >= column)

    found = attention(query, key, value, score_mod=lean, mask_mod=within)
    places = torch.arange(3)[:, None, None, None], torch.arange(4)[:, None, None], torch.arange(40)[:, None]
    visible = within(*places, torch.arange(40)).expand(3, 4, 40, 40)
    scores = query @ key.repeat_interleave(4 // kv_heads, 1).mT * 8**-0.5
    scores = lean(scores, *places, torch.arange(40)).masked_fill(~visible, -torch.inf)
    rows = slice(2, None, 3)
    weights, seen = scores.softmax(-1)[:, :, rows], visible[:, :, rows].sum(-1)
    counts = seen > 1
    entropy = torch.special.entr(weights).sum(-1) / seen.clamp(min=2).double().log()
    expected = (entropy * counts).sum((0, 2)) / counts.sum((0, 2))
    torch.testing.assert_close(found["entropy"], expected)
    sums = (scores[:, :, rows].logsumexp(-1).masked_fill(~counts, 0.0)).sum((0, 2)) / counts.sum((0, 2))
    torch.testing.assert_close(found["log_sum_exp"], sums)
    mask = flex.create_block_mask(within, 3, None, 40, 40, device="cpu")
    mixed = flex.flex_attention(query, key, value, score_mod=lean, block_mask=mask, enable_gqa=kv_heads < 4)
    mine = scores.softmax(-1) @ value.repeat_interleave(4 // kv_heads, 1)
    torch.testing.assert_close(mine, mixed, rtol=1e-6, atol=1e-6)
    assert attention_map(query, key, value, score_mod=lean, mask_mod=within)[:, :, rows] == pytest.approx(weights)


def test_a_function_that_does_not_work_element_by_element_is_refused() -> None:
    query = torch.randn(1, 2, 6, 4)
    with pytest.raises(ArgumentError, match=r"score_mod returned .* for indices of the shape \(1, 2, 6, 6\)"):
        attention(query, query, query, score_mod=lambda score, *_: score.sum(-1, keepdim=True)[..., [0] * 5])
