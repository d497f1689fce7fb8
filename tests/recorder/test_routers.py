"""Routers of mixtures of experts: which modules are recognized, and what is counted of their choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcore
from benchmarks.diagnosis.models import Choosing, Experts, Mixture
from hookcore.store import Store

Floats = NDArray[np.float64]
Choose = Callable[[Floats], NDArray[np.bool_]]  # the logits of tokens -> which experts each chooses
SHAPE = {
    **dict.fromkeys(("hidden_size", "intermediate_size"), 32),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 4),
    **{"num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0, "head_dim": 8},
}
LATENT = {
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **{"n_routed_experts": 8, "first_k_dense_replace": 0, "n_shared_experts": 1, "moe_intermediate_size": 16},
}


def top(count: int) -> Choose:
    def choose(logits: Floats) -> NDArray[np.bool_]:
        return logits >= np.sort(logits, axis=1)[:, -count:][:, :1]

    return choose


def of_groups(logits: Floats) -> NDArray[np.bool_]:
    """Choose two experts of the better of two groups, by sigmoids, as DeepSeek-V3 does."""
    scores = 1 / (1 + np.exp(-logits))
    groups = np.sort(scores.reshape(len(scores), 2, 4), axis=2)[:, :, -2:].sum(axis=2)
    other = np.repeat(groups < groups.max(axis=1, keepdims=True), 4, axis=1)
    return top(2)(np.where(other, -1.0, scores))


MODELS: dict[str, tuple[str, dict[str, Any], Choose]] = {
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}, top(2)),
    "qwen3": ("Qwen3MoeConfig", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, top(2)),
    "olmoe": ("OlmoeConfig", {"num_experts": 8, "num_experts_per_tok": 3}, top(3)),
    "deepseek": ("DeepseekV3Config", {**LATENT, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}, of_groups),
    "gpt-oss": ("GptOssConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}, top(2)),
}


def make(name: str) -> nn.Module:
    config, options, _ = MODELS[name]
    torch.manual_seed(1)
    made: nn.Module = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**SHAPE | options))
    return made.train()


def train(model: nn.Module, steps: int = 2, parts: int = 2) -> None:
    """Take steps of two micro-batches of different lengths."""
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            tokens = torch.randint(1, 64, (4, 8 + 4 * part))
            model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


def numbers(store: Store, name: str, stat: str = "mean") -> dict[str, float]:
    """Return the newest value of a probe by the path of its module."""
    taps = store.taps(kind="probe")
    chosen = taps.at([place for place, tap in enumerate(taps.taps) if tap.index == name])
    values = store.latest(stat=stat, taps=chosen).values[:, 0]
    return {tap.module: float(value) for tap, value in zip(chosen.taps, values, strict=True)}


def loads(store: Store) -> dict[str, list[float]]:
    """Return the shares of each router's experts in the first measured step."""
    routers = [(number, tap) for number, tap in store.channel_taps() if tap.index == "expert_load"]
    return {tap.module: store.channels(number).values[:, 0].tolist() for number, tap in routers}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_have_the_loads_that_follow_from_their_logits(name: str) -> None:
    twin, model, choose = make(name), make(name), MODELS[name][2]
    seen: dict[str, list[Floats]] = {}
    for path, module in twin.named_modules():
        if path.endswith((".gate", ".router")):
            module.register_forward_hook(
                lambda _, __, output, path=path: seen.setdefault(path, []).append(output[0].detach().double().numpy())
            )
    with hookcore.watch(model, server=None, budget=None) as watcher:
        train(model)
        watcher.flush()
        found, entropies = loads(watcher.store), numbers(watcher.store, "router_entropy")
        largest = numbers(watcher.store, "expert_load", "max")
    train(twin)
    assert all(torch.equal(mine, its) for mine, its in zip(model.parameters(), twin.parameters(), strict=True))
    assert set(found) == set(seen) == {path for path in seen if "layers." in path}
    for path, calls in seen.items():
        logits = np.concatenate(calls[:2])  # of both micro-batches of the first step
        chosen = choose(logits).sum(axis=0)
        assert found[path] == pytest.approx((chosen / chosen.sum()).tolist(), abs=1e-12)
        assert largest[path] == pytest.approx(chosen.max() / chosen.sum(), abs=1e-6)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        entropy = -(shares * np.log(shares)).sum(axis=1).mean() / np.log(logits.shape[1])
        assert entropies[path] == pytest.approx(entropy, rel=1e-5)


class Checkpointed(nn.Module):
    """A layer whose forward pass is repeated in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.mixture, self.reentrant = nn.Linear(16, 16), Mixture(), reentrant

    def forward(self, values: Tensor) -> Any:
        return checkpoint(self.mixture, self.first(values), use_reentrant=self.reentrant)


def choices_of(model: nn.Module, autocast: bool = False, router: Callable[[Any], None] = lambda _: None) -> Any:
    """Return the number of choices in a step of two micro-batches of 40 samples; a router's number is its path."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        router(watcher)
        for _ in range(2):
            model(torch.randn(40, 16)).sum().backward()
        optimizer.step()
        watcher.flush()
        store = watcher.store
        counted = {tap.module: store.choices(tap)[1][:, 0].sum() for _, tap in store.channel_taps()}
        reasons = {each.path: each.reason for each in watcher.coverage() if "choice" in each.reason}
    return counted, reasons


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_counts_its_choices_once(reentrant: bool) -> None:
    assert choices_of(Checkpointed(reentrant)) == ({"mixture.router": 160}, {})


def test_experts_that_are_modules_count_the_samples_they_get() -> None:
    model = Experts(noise=3.0)  # so that it doesn't choose the largest logits
    got = dict.fromkeys(range(4), 0)
    for number, expert in enumerate(model.experts):
        expert.register_forward_hook(lambda _, given, __, at=number: got.__setitem__(at, got[at] + len(given[0])))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for part in range(2):
            model(torch.randn(40 + part, 16)).sum().backward()
        optimizer.step()
        watcher.flush()
        (shares,) = loads(watcher.store).values()
    assert shares == [got[number] / 81 for number in range(4)]


class Dense(nn.Module):
    """A router of experts that all get all samples. It may say that it chooses some of them."""

    def __init__(self, outputs: int = 2, **said: int) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(16, 4), nn.Linear(16, outputs)
        vars(self).update(said)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, values: Tensor) -> Tensor:
        weights = self.gate(values).softmax(dim=1)
        every = torch.stack([expert(values) for expert in self.experts], dim=1)
        mixed: Tensor = self.head((weights[..., None] * every).sum(dim=1))
        return mixed


class FilledUp(Dense):
    """It chooses one expert, and fills the rows of each up to a capacity."""

    def forward(self, values: Tensor) -> Tensor:
        rows = values.new_zeros(4, len(values), 16)
        for place, expert in enumerate(self.gate(values).argmax(dim=1).tolist()):
            rows[expert, place] = values[place]
        every = [expert(part[: len(values) // 2]) for expert, part in zip(self.experts, rows, strict=True)]
        mixed: Tensor = self.head(torch.stack(every).sum(dim=0) + self.gate(values).sum())
        return mixed


class Alone(nn.Module):
    """A gate that only the user can name."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.body = nn.Linear(16, 6), nn.Linear(16, 6)

    def forward(self, values: Tensor) -> Tensor:
        kept = self.gate(values).topk(2, dim=1)
        return torch.zeros(len(values), 6).scatter(1, kept.indices, kept.values.softmax(dim=1)) * self.body(values)


def test_what_nothing_shows_is_unknown_and_says_why() -> None:
    for said in (Dense(top_k=2), FilledUp(top_k=1)):
        counted, reasons = choices_of(said)
        assert (counted, set(reasons)) == ({}, {"gate"})
        assert "watcher.router(module, top_k=...)" in reasons["gate"]
    for quiet in (Dense(), Dense(outputs=4), Dense(outputs=4, top_k=2), Alone(), nn.Linear(16, 4)):
        assert choices_of(quiet) == ({}, {})


def test_a_user_can_name_a_router() -> None:
    model = Alone()
    assert choices_of(model, router=lambda watcher: watcher.router(model.gate, top_k=2)) == ({"gate": 160}, {})
    with hookcore.watch(model, server=None) as watcher:
        for wrong, words in (
            (lambda: watcher.router(nn.ReLU()), "isn't clear"),
            (lambda: watcher.router(model.gate, top_k=7), "at most as many choices"),
            (lambda: watcher.router(model.gate, experts=0), "an integer of 1 or more"),
            (lambda: watcher.router(nn.Linear(16, 6)), "part of no watched model"),
            (lambda: watcher.router("gate"), "a module of the watched model"),
            (lambda: watcher.probe("expert_load", torch.sum), "hookcore's own number"),
        ):
            with pytest.raises(hookcore.HookcoreError, match=words):
                wrong()


class Numbering(nn.Module):
    """A router that returns the numbers of experts in a small type, and its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 200)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.layer(values)
        return (logits.topk(2, dim=1).indices % 128).to(torch.int8), logits


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Numbering()

    def forward(self, values: Tensor) -> Tensor:
        logits: Tensor = self.gate(values)[1]
        return logits


def test_numbers_of_experts_may_have_a_type_that_has_no_room_for_all_of_them() -> None:
    model = Numbered()
    counted, _ = choices_of(model, router=lambda watcher: watcher.router(model.gate, experts=200))
    assert counted == {"gate": 160}


def test_excluded_routers_are_left_alone() -> None:
    model = Mixture()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None, exclude="router") as watcher:
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
        watcher.flush()
        assert not watcher.store.taps(kind="probe").taps


class Masked(nn.Module):
    """A router with a capacity, which returns probabilities and a mask, as Megatron's does; and its experts."""

    num_local_experts = 2

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.router, self.experts, self.num_local_experts = Masking(capacity), nn.Linear(16, 16), 2

    def forward(self, values: Tensor) -> Tensor:
        probabilities, _ = self.router(values)
        mixed: Tensor = self.experts(values) * probabilities.sum(dim=1, keepdim=True)
        return mixed


class Masking(nn.Module):
    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.weight, self.capacity = nn.Parameter(torch.randn(4, 16)), capacity

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        logits = values @ self.weight.T
        chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.topk(2, dim=1).indices, True)
        kept = chosen & (chosen.cumsum(dim=0) <= self.capacity)
        return logits.softmax(dim=1) * kept, kept


def test_choices_beyond_the_capacity_are_dropped() -> None:
    model, capacity = Masked(7), 7
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = torch.randn(20, 16)
    logits = (inputs @ model.router.weight.T).detach().numpy()
    kept = np.minimum(top(2)(logits).sum(axis=0), capacity)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        model(inputs).sum().backward()
        optimizer.step()
        watcher.flush()
        assert loads(watcher.store) == {"router": (kept / kept.sum()).tolist()}
        assert numbers(watcher.store, "expert_dropped")["router"] == pytest.approx(1 - kept.sum() / 40, abs=1e-6)
        assert numbers(watcher.store, "router_entropy") == {}  # the probabilities of choices alone don't tell it


def test_probabilities_have_the_same_entropy_as_their_logits() -> None:
    class Soft(Choosing):
        def forward(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits, weights, chosen = super().forward(values)
            return logits.softmax(dim=1), weights, chosen

    entropies = []
    for kind in (Choosing, Soft):
        torch.manual_seed(0)
        model = Mixture()
        model.router.__class__ = kind
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with hookcore.watch(model, server=None, budget=None) as watcher:
            with torch.autocast("cpu", torch.bfloat16):
                model(torch.randn(64, 16)).sum().backward()
            optimizer.step()
            watcher.flush()
            entropies.append(numbers(watcher.store, "router_entropy")["router"])
    assert entropies[0] == pytest.approx(entropies[1], rel=0.02)
    assert entropies[0] < 1


@pytest.mark.parametrize("compiled", ["boundary", "inside"])
def test_a_router_inside_of_a_compiled_model_is_unknown_and_says_why(compiled: str) -> None:
    model = Mixture()
    run: Any = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None, compiled=compiled) as watcher:
        run(torch.randn(8, 16)).sum().backward()
        optimizer.step()
        watcher.flush()
        (why,) = (each.reason for each in watcher.coverage() if each.path == "router")
        assert not watcher.store.taps(kind="probe").taps
    assert "compiled" in why


class Unknowable(nn.Parameter):
    """A parameter whose class doesn't say how many dimensions it has."""

    def dim(self) -> int:
        raise RuntimeError("no dimensions")


def test_a_class_that_fails_while_routers_are_searched_does_not_end_the_training() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))
    model[2].bias = Unknowable(torch.zeros(2))
    with hookcore.watch(model, server=None) as watcher:
        model(torch.randn(3, 5)).sum().backward()
        watcher.step()
        watcher.flush()
    assert {event.message for event in watcher.errors} == {"search for routers: RuntimeError: no dimensions"}
