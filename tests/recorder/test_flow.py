# mypy: disable-error-code="no-untyped-call,no-any-return"
"""The data flow between calls of modules, compared with hand-written edges and with torch.fx."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.records.flow import Flow
from tests.flow_world import BasicBlock, Residual, batch, watch
from tests.harness import digest, random_state, seed_all
from tests.inside import module_of

Edges = dict[str, set[str]]


def name_of(flow: Flow, place: int) -> str:
    call = flow.calls[place]
    return (call.module or "(root)") + (f"#{call.call}" if call.call else "")


def edges_of(flow: Flow, how: str | None = None) -> Edges:
    """Return what feeds each call, by name. Containers are included if they compute something themselves."""
    return {
        name_of(flow, place): {name_of(flow, source) for source in call.fed_by}
        for place, call in enumerate(flow.calls)
        if (call.fed_by or not call.returns) and how in (None, call.how)
    }


def returns_of(flow: Flow) -> Edges:
    return {
        name_of(flow, place): {name_of(flow, source) for source in call.returns}
        for place, call in enumerate(flow.calls)
        if call.returns
    }


def flows_of(
    model: nn.Module, make: Callable[[], Any], steps: int = 1, loss: Callable[[Any], Tensor] = Tensor.sum
) -> tuple[Flow, ...]:
    """Train a model and return what was learned."""
    watcher = watch(model, phases=("train", "eval"))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(make())).backward()
        optimizer.step()
        watcher.flush()
    watcher.close()
    assert watcher.store is not None
    assert not [event for event in watcher.store.events() if event.name in ("flow-unknown", "hook-error")]
    return watcher.store.flows()


def flow_of(model: nn.Module, make: Callable[[], Any], loss: Callable[[Any], Tensor] = Tensor.sum) -> Flow:
    (flow,) = flows_of(model, make, loss=loss)
    return flow


class Branches(nn.Module):
    """Two branches; the second one runs first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        right = self.right(x)
        left = functional.gelu(self.left(x))
        out: Tensor = self.head(torch.cat([left, right], 1)[:, 2:6])
        return out


def test_a_chain() -> None:
    flow = flow_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Identity(), nn.Linear(4, 1)), batch)
    assert edges_of(flow) == {"0": set(), "1": {"0"}, "2": {"1"}, "3": {"2"}}
    assert returns_of(flow) == {"(root)": {"3"}}
    assert edges_of(flow, "order") == {}


def test_a_residual_connection_has_two_edges() -> None:
    flow = flow_of(nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 1)), batch)
    inside = {"1.a": {"0"}, "1.act": {"1.a"}, "1.b": {"1.act"}}
    assert edges_of(flow) == {"0": set(), **inside, "1": {"0", "1.b"}, "2": {"1"}}


def test_branches_and_a_concatenation() -> None:
    flow = flow_of(Branches(), batch)
    assert edges_of(flow) == {"stem": set(), "left": {"stem"}, "right": {"stem"}, "head": {"left", "right"}}
    assert [each.module for each in flow.calls] == ["stem", "right", "left", "head", ""]


def test_a_resnet_block_with_in_place_sums() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), BasicBlock(4, 4), BasicBlock(4, 6), nn.Flatten())
    flow = flow_of(model, lambda: torch.randn(2, 3, 8, 8))
    first = {"1.conv1": {"0"}, "1.bn1": {"1.conv1"}, "1.relu": {"1.bn1"}, "1.conv2": {"1.relu"}, "1.bn2": {"1.conv2"}}
    second = {f"2.{name[2:]}": {each.replace("1.", "2.", 1) for each in sources} for name, sources in first.items()}
    second["2.conv1"] = {"1.relu#1"}
    assert edges_of(flow) == {
        "0": set(),
        **first,
        "1.relu#1": {"1.bn2", "0"},
        **second,
        "2.downsample.0": {"1.relu#1"},
        "2.downsample.1": {"2.downsample.0"},
        "2.relu#1": {"2.bn2", "2.downsample.1"},
        "3": {"2.relu#1"},
    }
    assert returns_of(flow)["2.downsample"] == {"2.downsample.1"}


def test_a_module_that_is_called_twice_and_tied_weights() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.shared, self.tied = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.tied.weight = self.inner.weight

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            tied: Tensor = self.tied(self.shared(self.shared(y).tanh()))
            return tied + y

    flow = flow_of(Twice(), batch)
    assert edges_of(flow) == {
        "inner": set(),
        "shared": {"inner"},
        "shared#1": {"shared"},
        "tied": {"shared#1"},
        "(root)": {"tied", "inner"},
    }


def test_nested_outputs_and_keyword_arguments() -> None:
    @dataclass
    class Pair:
        left: Tensor
        right: dict[str, Tensor]

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, *, given: Tensor) -> Pair:
            return Pair(self.a(given), {"b": self.b(given), "both": self.a(given) * self.b(given)})

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.inner, self.lstm, self.head = nn.Linear(4, 4), Inner(), nn.LSTM(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            pair = self.inner(given=self.stem(x))
            out, (hidden, _) = self.lstm(pair.right["both"][None])
            head: Tensor = self.head(out + hidden + pair.left)
            return head

    flow = flow_of(Outer(), batch)
    assert edges_of(flow) == {
        "stem": set(),
        **{name: {"stem"} for name in ("inner.a", "inner.b", "inner.a#1", "inner.b#1")},
        "inner": {"inner.a#1", "inner.b#1"},
        "lstm": {"inner"},
        "head": {"lstm", "inner.a"},
    }
    assert returns_of(flow) == {"inner": {"inner.a", "inner.b"}, "(root)": {"head"}}


def fx_edges(model: nn.Module) -> Edges:
    """Return what feeds each leaf of a model, as torch.fx traces it."""
    found: Edges = {}
    calls: dict[str, int] = {}
    names: dict[fx.Node, str] = {}
    graph = fx.symbolic_trace(model).graph

    def sources(node: fx.Node) -> set[str]:
        if node.op == "call_module":
            return {names[node]}
        return {name for each in node.all_input_nodes for name in sources(each)}

    for node in graph.nodes:
        if node.op == "call_module":
            call = calls[node.target] = calls.get(node.target, -1) + 1
            names[node] = str(node.target) + (f"#{call}" if call else "")
            found[names[node]] = {name for each in node.all_input_nodes for name in sources(each)}
    return found


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_have_the_edges_that_fx_finds(seed: int) -> None:
    class Net(nn.Module):
        """Layers whose inputs are sums, products, and concatenations of earlier outputs."""

        def __init__(self) -> None:
            super().__init__()
            drawn = torch.Generator().manual_seed(seed)
            self.layers = nn.ModuleList(
                [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4), nn.GELU()]
            )
            self.order = torch.randint(0, len(self.layers), (12,), generator=drawn).tolist()
            self.picked = torch.randint(0, 1000, (12, 3), generator=drawn).tolist()

        def forward(self, x: Tensor) -> Tensor:
            made = [self.layers[0](x)]
            for turn, (one, other, kind) in zip(self.order, self.picked, strict=True):
                left, right = made[one % len(made)], made[other % len(made)]
                joined = (left + right, left * right, torch.cat([left, right], 1)[:, 2:6], left.relu())[kind % 4]
                made.append(self.layers[turn](joined))
            return torch.stack(made).sum()

    model = Net()
    flow = flow_of(model, batch)
    assert {name: sources for name, sources in edges_of(flow).items() if name != "(root)"} == fx_edges(model)


def test_gpt2() -> None:
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=16, n_positions=8, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    model.config.loss_type = "ForCausalLM"
    flow = flow_of(model, lambda: torch.randint(0, 16, (2, 8)), loss=lambda out: out.logits.sum())
    expected: Edges = {"transformer.wte": set(), "transformer.wpe": set()}
    expected["transformer.drop"] = {"transformer.wte", "transformer.wpe"}
    before = "transformer.drop"
    for number in range(2):
        at = f"transformer.h.{number}"
        chain = ["ln_1", "attn.c_attn", "attn.c_proj", "attn.resid_dropout"]
        expected |= {f"{at}.{name}": {f"{at}.{last}"} for last, name in itertools.pairwise(chain)}
        expected[f"{at}.ln_1"] = {before}
        expected[f"{at}.ln_2"] = {before, f"{at}.attn.resid_dropout"}
        chain = ["ln_2", "mlp.c_fc", "mlp.act", "mlp.c_proj", "mlp.dropout"]
        expected |= {f"{at}.{name}": {f"{at}.{last}"} for last, name in itertools.pairwise(chain)}
        expected[at] = {before, f"{at}.attn.resid_dropout", f"{at}.mlp.dropout"}
        before = at
    expected |= {"transformer.ln_f": {before}, "transformer": {"transformer.ln_f"}}  # which returns a view of it
    expected["lm_head"] = {"transformer"}
    assert edges_of(flow) == expected
    assert edges_of(flow, "order") == {}


# --- Without a graph --------------------------------------------------------------------------------------------------


def test_evaluation_without_gradients_is_linked_by_shared_memory_or_else_by_order() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Flatten(), Residual(), nn.Linear(4, 1)).eval()
    watcher = watch(model, phases=("eval",))
    with torch.no_grad():
        model(batch())
    watcher.step()
    watcher.close()
    assert watcher.store is not None
    (flow,) = watcher.store.flows()
    known = {"0": set(), "1": {"0"}, "2": {"1"}, "3.a": {"2"}, "3.act": {"3.a"}, "3.b": {"3.act"}, "4": {"3"}}
    assert edges_of(flow, "identity") == known
    assert edges_of(flow, "order") == {"3": {"3.b"}}  # the sum is of operators
    assert {each.phase for each in flow.calls} == {"eval"}


class Selects(nn.Module):
    """Takes the first row of a batch, next to a layer that takes all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.first, self.b, self.c = nn.Linear(4, 4), Part(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(self.first(x)) + self.b(x)


class Part(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:1]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_module_that_returns_part_of_its_input_does_not_feed_consumers_of_the_whole(frozen: bool) -> None:
    model = Selects()
    for layer in (model.a, model.first):
        layer.requires_grad_(not frozen)
    edges = edges_of(flow_of(model, batch))
    assert [edges[name] for name in ("first", "c", "b")] == [{"a"}, {"first"}, {"a"}]


def test_a_model_with_a_frozen_beginning() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    assert edges_of(flow_of(model, batch)) == {"0": set(), "1": {"0"}, "2": {"1"}, "3": {"2"}}


def test_a_cut_graph() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            cut: Tensor = self.b(self.a(x).detach())
            return cut

    assert edges_of(flow_of(Cut(), batch)) == {"a": set(), "b": {"a"}}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.inner, self.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            kept = checkpoint(self.inner, self.a(x), use_reentrant=reentrant)
            return self.b(kept)

    flow = flow_of(Checkpointed(), batch)
    assert edges_of(flow) == {"a": set(), "inner.0": {"a"}, "inner.1": {"inner.0"}, "b": {"inner.1"}}
    assert returns_of(flow) == {"inner": {"inner.1"}, "(root)": {"b"}}


# --- When it is learned -----------------------------------------------------------------------------------------------


class EarlyExit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.exits = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.head(x if self.exits else self.b(x))


def test_the_flow_is_learned_once_and_again_when_other_modules_run() -> None:
    model = EarlyExit()
    turns = iter([False] * 6 + [True] * 6 + [False] * 6)

    def make() -> Tensor:
        model.exits = next(turns)
        return batch()

    first, second = flows_of(model, make, steps=18)
    assert edges_of(first) == {"a": set(), "b": {"a"}, "head": {"b"}}
    assert edges_of(second) == {"a": set(), "head": {"a"}}
    assert first.step == 0
    assert 6 < second.step < 12


def test_the_flow_is_learned_again_when_the_tree_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    steps = iter(range(100))

    def make() -> Tensor:
        if next(steps) == 3:
            model.insert(1, nn.Tanh())
        return batch()

    first, second = flows_of(model, make, steps=8)
    assert edges_of(first) == {"0": set(), "1": {"0"}}
    assert edges_of(second) == {"0": set(), "1": {"0"}, "2": {"1"}}


def test_a_generator_feeds_a_discriminator() -> None:
    generator, discriminator = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1))
    one, other = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (generator, discriminator))
    with hookcore.watch(server=None, budget=None) as watcher:
        for _ in range(6):
            other.zero_grad()
            fake = generator(batch())
            (discriminator(fake.detach()) - discriminator(batch())).mean().backward()
            other.step()
            one.zero_grad()
            discriminator(generator(batch())).mean().backward()
            one.step()
            watcher.flush()
        watcher.flush()
        assert watcher.store is not None
        found = watcher.store.flows()
    names = {each.module for flow in found for each in flow.calls}
    given, first = ("Sequential/1", "Sequential-2/0") if "Sequential-2/0" in names else sorted(names)[-2:]
    fed = [edges_of(flow) for flow in found]
    assert any(each.get(first) == {given} for each in fed), fed


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's own
def test_compiled_regions_are_known_at_their_boundary() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x)))

    model = Net()
    model.b = torch.compile(model.b, backend="aot_eager")  # type: ignore[assignment]
    edges = edges_of(flow_of(model, batch))
    assert edges["c"] == {"b"}
    assert edges["b"] == {"a"}
    torch._dynamo.reset()


def test_a_step_that_is_too_large_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("Flows"), "MAX_NODES", 3)
    model = nn.Linear(4, 4)
    watcher = watch(model)
    x = model(batch())
    for _ in range(9):
        x = x * 1.5
    model(x).sum().backward()
    watcher.step()
    watcher.close()
    assert watcher.store is not None
    assert not watcher.store.flows()
    (event,) = [each for each in watcher.store.events() if each.name == "flow-unknown"]
    assert "unknown, because a step has more than 3 nodes in its autograd graph" in event.message


def test_the_number_of_learned_structures_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("Flows"), "MAX_FLOWS", 1)
    model = EarlyExit()
    turns = iter([False] * 3 + [True] * 5)

    def make() -> Tensor:
        model.exits = next(turns)
        return batch()

    assert len(flows_of(model, make, steps=8)) == 1


# --- Harmless ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attach", ["global", "module"])
def test_the_training_is_the_same_to_the_bit(attach: str) -> None:
    def train(watched: bool) -> tuple[str, str]:
        seed_all()
        model = nn.Sequential(nn.Linear(4, 4), Residual(), nn.Dropout(0.3), Branches())
        optimizer = torch.optim.Adam(model.parameters())
        watcher = watch(model, attach=attach) if watched else None
        for _ in range(5):
            optimizer.zero_grad()
            model(batch()).square().sum().backward()
            optimizer.step()
        if watcher is not None:
            watcher.close()
            assert watcher.store is not None
            (flow,) = watcher.store.flows()
            assert edges_of(flow)["2"] == {"1"}
        return digest(model.state_dict()), digest(random_state())

    assert train(True) == train(False)


def test_a_users_mode_sees_no_operators_of_hookcore() -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    def operators(watched: bool) -> list[str]:
        model = nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 1))
        watcher = watch(model) if watched else None
        with Seen() as seen:
            model(batch()).sum().backward()
        if watcher is not None:
            watcher.step()
            watcher.close()
            assert watcher.store is not None
            assert watcher.store.flows()
        return seen.names

    assert operators(True) == operators(False)


def test_no_tensor_outlives_the_step() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 1))
    watcher = watch(model)
    gc.collect()
    gc.disable()
    try:
        given = batch()
        out = model(given)
        kept = [weakref.ref(given), weakref.ref(out)]
        out.sum().backward()
        del given, out
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()
    watcher.close()


def test_a_graph_that_is_given_up_is_freed_at_once() -> None:
    """Nodes are freed while the forward pass continues, even if their outputs were marked."""

    class Freed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, told: list[Any]) -> Tensor:
            marker = Marker()
            ctx.marker = marker
            told.append(weakref.ref(marker))
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return grads[0] * 2, None

    class Marker:
        pass

    class Inner(nn.Module):
        def forward(self, x: Tensor, told: list[Any]) -> Tensor:
            return Freed.apply(x, told)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.inner, self.b = nn.Linear(4, 4), Inner(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            told: list[Any] = []
            x = self.a(x)
            self.inner(x, told)  # its output isn't used
            assert told[0]() is None
            return self.b(x)

    gc.disable()
    try:
        flow = flow_of(Net(), batch)
    finally:
        gc.enable()
    assert edges_of(flow) == {"a": set(), "inner": {"a"}, "b": {"a"}}


def test_memory_is_constant_over_many_steps() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 1))
    watcher = watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = []
    for step in range(200):
        optimizer.zero_grad()
        model(batch()).sum().backward()
        optimizer.step()
        if step in (50, 199):
            watcher.flush()
            gc.collect()
            counts.append(sum(isinstance(each, Tensor) for each in gc.get_objects()))
    watcher.close()
    assert counts[0] == counts[1]
