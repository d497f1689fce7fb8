# mypy: disable-error-code="no-untyped-call,no-any-return"
"""The sizes of calls: operations, memory, and shapes, compared with calculations by hand and with torch's counter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import hookcore
from hookcore.delivery.archive import load_into, read_archive
from hookcore.records.flow import CallSize, Flow, FlowCall, TensorForm
from hookcore.store import Store
from tests.flow_world import BasicBlock, Residual, watch
from tests.inside import module_of

SIZES: Any = module_of("Sizes")


def train(
    model: nn.Module,
    make: Callable[[], Any],
    take: Callable[[Any], Tensor] = Tensor.sum,
    **settings: Any,
) -> Flow:
    """Train a model and return what was learned in the first step."""
    watcher = watch(model, phases=("train", "eval"), **settings)
    loss = take(model(make()))
    if loss.requires_grad:
        loss.backward()
    watcher.step()
    watcher.close()
    assert watcher.store is not None
    assert not [event for event in watcher.store.events() if event.name in ("flow-unknown", "hook-error")]
    flow = watcher.store.flows()[0]
    assert len(flow.sizes) == len(flow.calls)
    return flow


def by_name(flow: Flow) -> dict[str, CallSize]:
    return {
        (call.module or "(root)") + (f"#{call.call}" if call.call else ""): size
        for call, size in zip(flow.calls, flow.sizes, strict=True)
    }


def total(found: Iterable[CallSize]) -> int:
    known = [size.flops for size in found]
    assert None not in known
    return sum(each for each in known if each is not None)


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8)


def batch() -> Tensor:
    return torch.randn(3, 4)


# --- Operations by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "make", "expected"),
    [
        (nn.Linear(4, 5), batch, 2 * 3 * 4 * 5),
        (nn.Linear(4, 5, bias=False), lambda: torch.randn(2, 7, 4), 2 * 14 * 4 * 5),
        (nn.Conv2d(3, 6, 3), images, 2 * 2 * 6 * 36 * 3 * 9),
        (nn.Conv2d(3, 6, (3, 1), stride=2, padding=1, groups=3), images, 2 * 2 * 6 * 4 * 5 * 1 * 3),
        (nn.Conv2d(3, 6, 3), lambda: torch.randn(3, 8, 8), 2 * 6 * 36 * 3 * 9),  # without a batch
        (nn.ConvTranspose2d(3, 6, 3, stride=2), images, 2 * 2 * 3 * 64 * 6 * 9),
        (nn.Conv1d(4, 2, 3), lambda: torch.randn(5, 4, 9), 2 * 5 * 2 * 7 * 4 * 3),
        (nn.Conv3d(2, 3, 2), lambda: torch.randn(1, 2, 4, 4, 4), 2 * 3 * 27 * 2 * 8),
        (nn.Embedding(9, 4), lambda: torch.tensor([1, 2]), 0),
        (nn.BatchNorm2d(3), images, 0),
    ],
)
def test_operation_counts_of_torch_layers_match_counts_by_hand(
    model: nn.Module, make: Callable[[], Any], expected: int
) -> None:
    assert by_name(train(model, make))["(root)"].flops == expected


class Attention(nn.Module):
    """Heads of attention between two projections, as in most transformers."""

    def __init__(self, heads: int = 2, width: int = 8, kernel: bool = True) -> None:
        super().__init__()
        self.heads, self.kernel = heads, kernel
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        if self.kernel:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kernel", [True, False])
def test_attention_belongs_to_the_module_that_computes_it(kernel: bool) -> None:
    found = by_name(train(Attention(kernel=kernel), lambda: torch.randn(3, 5, 8)))
    scores = 2 * 3 * 2 * 5 * 5 * 4  # batch, heads, queries, keys, width of a head
    assert {name: size.flops for name, size in found.items()} == {
        "qkv": 2 * 15 * 8 * 24,
        "out": 2 * 15 * 8 * 8,
        "(root)": 2 * scores,  # the scores, and the weighted values
    }


def test_a_module_that_only_calls_another_has_no_operations_of_its_own() -> None:
    class Wrap(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)  # the calls share their nodes

    found = by_name(train(nn.Sequential(Wrap(nn.Linear(8, 8)), Wrap(Wrap(Attention()))), lambda: torch.randn(3, 5, 8)))
    assert {name: size.flops for name, size in found.items() if size.flops} == {
        "0.inner": 2 * 15 * 8 * 8,
        "1.inner.inner.qkv": 2 * 15 * 8 * 24,
        "1.inner.inner.out": 2 * 15 * 8 * 8,
        "1.inner.inner": 2 * 2 * 3 * 2 * 5 * 5 * 4,
    }


def test_grouped_queries_of_attention() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 7, 8), torch.randn(3, 2, 7, 6)
            q, k, v = (each * self.scale for each in (q, k, v))
            return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    assert by_name(train(Grouped(), batch))["(root)"].flops == 2 * 3 * 4 * 5 * 7 * (8 + 6)


# --- Operations by torch's counter ------------------------------------------------------------------------------------


def counted(model: nn.Module, make: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        model(make())
    return counter.get_total_flops()


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)
        self.weight = nn.Parameter(torch.randn(5, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x).relu())
        x = torch.einsum("bi,kij->bkj", x, self.weight)
        return torch.baddbmm(x, x @ x.transpose(1, 2), torch.addmm(x[0], x[0] @ x[0].T, x[0]).expand(3, 5, 4))


@pytest.mark.parametrize(
    ("model", "make"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.GELU(), Residual(), nn.Linear(4, 2)), None),
        (nn.Sequential(nn.Conv2d(3, 4, 3), BasicBlock(4, 4), BasicBlock(4, 6), nn.Flatten()), images),
        (nn.MultiheadAttention(8, 2, batch_first=True), lambda: torch.randn(3, 5, 8)),
        (nn.TransformerEncoderLayer(8, 2, 16), lambda: torch.randn(5, 3, 8)),
        (nn.GRUCell(4, 8), batch),
        (Attention(kernel=False), lambda: torch.randn(3, 5, 8)),
        (Mixed(), batch),
    ],
    ids=["mlp", "resnet", "attention", "encoder", "cell", "by hand", "mixed"],
)
def test_the_sum_agrees_with_torchs_counter(
    model: nn.Module, make: Callable[[], Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's counter doesn't know the attention kernel for CPUs, so the plain operators run here.
    monkeypatch.setattr(functional, "scaled_dot_product_attention", _plain_attention)
    if isinstance(model, nn.Sequential) and make is None:
        model, make = nn.Sequential(nn.Linear(4, 4), Residual(), nn.GELU(), nn.Linear(4, 2)), batch
    assert make is not None
    call = _Call(model)
    flow = train(call, make)
    assert total(flow.sizes) == counted(call, make) > 0


class _Call(nn.Module):
    """Calls a module with the arguments that it needs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        made = self.inner(x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)
        return made[0] if isinstance(made, tuple) else made


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def test_gpt2_and_each_of_its_parts_agree_with_the_counter() -> None:
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=16, n_positions=8, use_cache=False, attn_implementation="eager"
    )
    model = transformers.GPT2LMHeadModel(config)
    model.config.loss_type = "ForCausalLM"
    flow = train(model, lambda: torch.randint(0, 16, (2, 8)), take=lambda out: out.logits.sum())
    found = by_name(flow)
    assert total(flow.sizes) == counted(model, lambda: torch.randint(0, 16, (2, 8)))
    assert found["transformer.h.1.attn"].flops == 2 * (2 * 2 * 2 * 8 * 8 * 4)
    assert found["transformer.h.1.attn.c_attn"].flops == 2 * 16 * 8 * 24  # transformers' Conv1D isn't torch's
    assert found["lm_head"].flops == 2 * 16 * 8 * 16


# --- What isn't known -------------------------------------------------------------------------------------------------


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x @ x.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].sum() * torch.ones(3, 4)


def test_a_custom_autograd_function_hides_its_operators() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(Squared.apply(self.a(x)))

    found = by_name(train(Net(), batch))
    assert found["(root)"].flops is None
    assert found["(root)"].why == "the autograd function Squared hides its operators"
    assert (found["a"].flops, found["b"].flops) == (2 * 3 * 16, 2 * 3 * 3 * 2)


def test_without_gradients_only_layers_of_torch_are_known() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 1)).requires_grad_(False)
    found = by_name(train(model, batch))
    assert (found["0"].flops, found["1.a"].flops, found["(root)"].flops) == (96, 96, 0)
    assert (found["1"].flops, found["1"].why) == (None, SIZES.NO_GRADIENTS)


def test_a_frozen_layer_inside_a_graph_is_known() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Conv1d(3, 2, 1), nn.Linear(4, 1))
    model[1].requires_grad_(False)
    model[2].requires_grad_(False)
    found = by_name(train(model, lambda: torch.randn(2, 3, 4)))
    assert (found["1"].flops, found["2"].flops) == (2 * 6 * 16, 2 * 2 * 2 * 4 * 3)


def test_fused_recurrent_layers_are_unknown() -> None:
    found = by_name(train(nn.LSTM(4, 4), lambda: torch.randn(5, 3, 4), take=lambda out: out[0].sum()))
    assert found["(root)"].flops is None
    assert "one fused operator" in found["(root)"].why


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's own
def test_a_compiled_part_is_unknown_and_the_others_are_known() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x)))

    model = Net()
    model.b = torch.compile(model.b, backend="aot_eager")  # type: ignore[assignment]
    found = by_name(train(model, batch))
    assert (found["a"].flops, found["c"].flops, found["(root)"].flops) == (96, 24, 0)
    assert (found["b"].flops, found["b"].why) == (None, SIZES.COMPILED)
    torch._dynamo.reset()


@pytest.mark.parametrize("reentrant", [True, False])
def test_inside_a_checkpoint(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.inner = nn.Linear(4, 4), Residual()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.a(x), use_reentrant=reentrant) * 2

    found = by_name(train(Checkpointed(), batch))
    assert (found["a"].flops, found["inner.a"].flops, found["inner.b"].flops) == (96, 96, 96)
    assert (found["inner"].flops is None) == reentrant  # its own operators leave no trace
    assert (found["(root)"].flops is None) == reentrant


def test_a_torch_version_without_numbers_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SIZES, "next_node_number", None)
    found = by_name(train(nn.Sequential(nn.Linear(4, 4), Residual()), batch))
    assert (found["0"].flops, found["1"].flops, found["1"].why) == (96, None, SIZES.UNNUMBERED)


# --- Calls, micro-batches, memory, and forms --------------------------------------------------------------------------


def test_each_call_of_a_module_has_its_own_and_calls_beyond_the_limit_share_one() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(6):
                x = self.cell(x[: len(x) - 1]).tanh()
            return x

    def make() -> Tensor:
        return torch.randn(9, 4)

    assert [size.flops for size in train(Loop(), make).sizes][:-1] == [32 * rows for rows in (8, 7, 6, 5, 4, 3)]
    few = train(Loop(), make, calls=3)
    assert [size.flops for size in few.sizes] == [32 * 8, 32 * 7, 32 * (6 + 5 + 4 + 3), 0]
    assert [size.memory for size in few.sizes][:3] == [16 * 8, 16 * 7, 16 * (6 + 5 + 4 + 3)]


def test_the_first_micro_batch_counts() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Residual())
    watcher = watch(model)
    for rows in (3, 5, 2):
        model(torch.randn(rows, 4)).sum().backward()
    watcher.step()
    watcher.close()
    assert watcher.store is not None
    found = by_name(watcher.store.flows()[0])
    assert {name: size.flops for name, size in found.items()} == {
        **dict.fromkeys(("0", "1.a", "1.b"), 96),
        **dict.fromkeys(("1.act", "1", "(root)"), 0),
    }
    assert found["0"].outputs == (TensorForm("", "float32", (3, 4)),)


def test_only_new_memory_counts() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 5), Residual5())
    found = by_name(train(model, images))
    assert {name: size.memory for name, size in found.items()} == {
        "0": 2 * 4 * 36 * 4,
        "1": 0,
        "2": 0,
        "3": 2 * 5 * 4,
        "4.a": 2 * 5 * 4,
        "4": 2 * 5 * 4,  # the sum
        "(root)": 0,
    }
    assert {name: size.made_by for name, size in found.items() if size.made_by} == {"4": "Add"}


class Residual5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.a(x)


def test_shapes_and_types_of_inputs_and_outputs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, mask=torch.ones(3, dtype=torch.bool))["out"]

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 2, dtype=torch.float64)

        def forward(self, x: Tensor, *, mask: Tensor) -> dict[str, Tensor]:
            return {"out": self.a(x.double()), "half": x.half()}

    found = by_name(train(Net(), batch))["inner"]
    assert found.inputs == (TensorForm("0", "float32", (3, 4)), TensorForm("mask", "bool", (3,)))
    assert found.outputs == (TensorForm("out", "float64", (3, 2)), TensorForm("half", "float16", (3, 4)))
    assert found.memory == 3 * 4 * 2  # `out` is the output of the linear layer


def test_a_call_lists_its_first_tensors() -> None:
    class Many(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x * number for number in range(12)]

    model = nn.Sequential(nn.Linear(4, 4), Many())
    found = by_name(train(model, batch, take=lambda out: out[0].sum()))["1"]
    assert [form.place for form in found.outputs] == [str(number) for number in range(8)]
    assert found.memory == 12 * 3 * 4 * 4


def test_calls_know_the_call_around_them() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Residual(), Residual()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x)) + self.first.a(x)  # a part of another module

    flow = train(Outer(), batch)
    names = [(call.module or "(root)") + (f"#{call.call}" if call.call else "") for call in flow.calls]
    inside = {name: names[call.inside] for name, call in zip(names, flow.calls, strict=True) if call.inside >= 0}
    assert inside == {
        **{f"{block}.{part}": block for block in ("first", "second") for part in ("a", "act", "b")},
        **dict.fromkeys(("first", "second", "first.a#1"), "(root)"),
    }


def test_a_recursive_module() -> None:
    class Fractal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, depth: int = 3) -> Tensor:
            return self.layer(self(x, depth - 1) if depth else x) + x

    flow = train(Fractal(), batch, calls=2)
    assert flow.is_sound
    assert {call.inside for call in flow.calls} <= {-1, *range(len(flow.calls))}


# --- Harmless, and kept -----------------------------------------------------------------------------------------------


def test_measuring_sizes_unpacks_no_saved_tensor() -> None:
    def unpacked(watched: bool) -> list[tuple[int, ...]]:
        seen: list[tuple[int, ...]] = []

        def unpack(tensor: Tensor) -> Tensor:
            seen.append(tuple(tensor.shape))
            return tensor

        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv1d(3, 5, 1), Attention(), nn.Linear(8, 1))
        watcher = watch(model) if watched else None
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            out = model(torch.randn(2, 3, 8))
            assert seen == []
            out.sum().backward()
        if watcher is not None:
            watcher.step()
            watcher.close()
            assert watcher.store is not None
            assert total(watcher.store.flows()[0].sizes) > 0
        return seen

    assert unpacked(True) == unpacked(False)


def test_sizes_are_saved_with_the_run(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), BasicBlock(4, 6), nn.Flatten(), nn.Linear(216, 2))
    watcher = hookcore.watch(model, server=None, budget=None, keep=tmp_path)
    model(images()).sum().backward()
    watcher.step()
    watcher.close()
    again = Store(2**26)
    load_into(again, read_archive(next(tmp_path.glob("*.hookcore"))))
    assert watcher.store is not None
    assert again.flows() == watcher.store.flows()
    assert again.flows()[0].sizes[0].flops == 2 * 2 * 4 * 36 * 27
    sources = {each.path: each.source.rpartition("/")[2] for each in again.modules()}
    assert sources["1"].startswith("flow_world.py:")
    assert sources["0"].startswith("conv.py:")


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ((FlowCall("a"), FlowCall("b", inside=2)), ()),
        ((FlowCall("a", inside=1), FlowCall("b", inside=0)), ()),
        ((FlowCall("a"),), (CallSize(flops=-1),)),
        ((FlowCall("a"),), (CallSize(outputs=(TensorForm("", "float32", (-2,)),)),)),
        ((FlowCall("a"), FlowCall("b")), (CallSize(),)),
    ],
)
def test_inconsistent_sizes_are_not_sound(calls: tuple[FlowCall, ...], found: tuple[CallSize, ...]) -> None:
    assert not Flow(0, calls, sizes=found).is_sound
    assert Flow(0, (FlowCall("a", inside=1), FlowCall("b")), sizes=(CallSize(), CallSize())).is_sound
