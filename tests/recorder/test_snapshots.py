# mypy: disable-error-code="no-untyped-call"
"""Raw tensors captured on request: exactly what the hook saw, without an effect on the training."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.errors import ArgumentError
from hookcore.hooks import internals
from hookcore.observe import copies
from hookcore.records import TENSOR_KINDS, Command, Event, Kind, Snapshot, Tap
from tests.harness import STEPS, Attach, Outcome, process_state, run_case, watch
from tests.inside import class_of, module_of, recorder_of
from tests.zoo import CASES, Case, Trial


def ask(watcher: hookcore.Watcher, module: str, kind: str = "output", index: str = "", call: int = 0) -> None:
    recorder_of(watcher).requests.take_snapshot(Tap(module, cast(Kind, kind), index, call))


def taken(watcher: hookcore.Watcher) -> list[Snapshot]:
    assert watcher.flush()
    assert watcher.errors == []
    return list(watcher.store.snapshots())


def events(watcher: hookcore.Watcher, name: str) -> list[Event]:
    watcher.flush()
    return [event for event in watcher.store.events() if event.name == name]


def same(snapshot: Snapshot, tensor: Any) -> None:
    expected = tensor.detach().numpy()
    assert snapshot.shape == expected.shape
    assert snapshot.values.dtype == expected.dtype
    np.testing.assert_array_equal(snapshot.values, expected)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()


# --- Truth ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attach", ["global", "module"])
@pytest.mark.parametrize("asked", [{}, {"include": ["2"], "kinds": ["param_grad"]}], ids=["captured", "not captured"])
def test_every_kind_is_exactly_the_original_tensor(attach: str, asked: dict[str, Any]) -> None:
    model, inputs = net(), torch.randn(3, 4, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    twin: Any = net()
    hidden = twin[0](inputs.detach())
    kept = hidden.detach().clone()
    hidden.retain_grad()
    (twin[2](torch.relu(hidden)).square().sum()).backward()
    weight = twin[0].weight.detach().clone()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    with watch(model, attach=attach, **asked) as watcher:
        for kind, module, index in (
            ("output", "0", ""),
            ("output_grad", "0", ""),
            ("input", "0", "0"),
            ("input_grad", "0", "0"),
            ("param", "0", "weight"),
            ("param_grad", "0", "weight"),
            ("update", "0", "weight"),
        ):
            ask(watcher, module, kind, index)
        step(model, optimizer, inputs)
        step(model, optimizer, inputs)
        found = {snapshot.tap.kind: snapshot for snapshot in taken(watcher)}
        assert set(found) == set(TENSOR_KINDS)
        step(model, optimizer, inputs)
        assert len(events(watcher, "snapshot-taken")) == 7
    same(found["output"], kept)  # before the ReLU overwrote it
    same(found["output_grad"], hidden.grad)
    same(found["input"], inputs)
    assert found["input_grad"].shape == inputs.shape  # its values are checked in the next test
    same(found["param"], weight)
    same(found["param_grad"], twin[0].weight.grad)
    same(found["update"], twin[0].weight - weight)
    assert {snapshot.step for snapshot in found.values()} == {0}


def test_the_input_gradient_equals_autograds() -> None:
    model, inputs = net(), torch.randn(3, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(net()(inputs).square().sum(), inputs)
    with watch(model) as watcher:
        ask(watcher, "0", "input_grad", "0")
        model(inputs).square().sum().backward()
        watcher.step()
        (snapshot,) = taken(watcher)
    same(snapshot, expected)
    assert inputs._backward_hooks is None or not inputs._backward_hooks


class Calls(nn.Module):
    """Calls one module three times, the last time by keyword, and returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.seen: list[Tensor] = []
        self.inner.register_forward_hook(lambda module, args, output: self.seen.append(output.detach().clone()))

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.inner(self.inner(x))
        return {"out": [self.inner(input=x)], "none": None}


def test_calls_micro_batches_places_and_keywords_are_distinguished() -> None:
    model = Calls()
    with watch(model, include="is:root") as watcher:
        for micro_batch in range(2):
            if micro_batch == 0:
                ask(watcher, "inner", call=1)
                ask(watcher, "inner", "input", "input", call=2)
                ask(watcher, "", index="out.0")
            model(torch.randn(2, 4))["out"][0].sum().backward()
        watcher.step()
        found = {(snapshot.tap.module, snapshot.tap.kind): snapshot for snapshot in taken(watcher)}
    same(found["inner", "output"], model.seen[1])
    same(found["inner", "input"], model.seen[1])
    same(found["", "output"], model.seen[2])


def test_evaluation_is_a_separate_phase() -> None:
    model, inputs = net(), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        recorder_of(watcher).requests.take_snapshot(Tap("2", "output", phase="eval"))
        step(model, optimizer, inputs)
        model.eval()
        with torch.no_grad():
            expected = model(inputs)
        model.train()
        step(model, optimizer, inputs)
        (snapshot,) = taken(watcher)
    same(snapshot, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_module_gives_its_output_once_and_its_gradient(reentrant: bool) -> None:
    model, inputs = net(), torch.randn(3, 4, requires_grad=True)
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    twin = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    twin.load_state_dict(inner.state_dict())

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = inner, model

        def forward(self, x: Tensor) -> Any:
            return self.outer(checkpoint(self.inner, x, use_reentrant=reentrant))

    hidden = twin[0](inputs)
    hidden.retain_grad()
    net()(twin[1](hidden)).square().sum().backward()
    whole = Whole()
    with watch(whole) as watcher:
        ask(watcher, "inner.0")
        ask(watcher, "inner.0", "output_grad")
        whole(inputs).square().sum().backward()
        watcher.step()
        found = {snapshot.tap.kind: snapshot for snapshot in taken(watcher)}
    same(found["output"], hidden)
    same(found["output_grad"], hidden.grad)


class Gives(nn.Module):
    """Returns a given tensor of any kind."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.tensor = tensor

    def forward(self) -> Any:
        return self.tensor


HALF: Final = torch.tensor([1.5, float("nan"), float("-inf"), -0.0])
MAKES: Final[dict[str, tuple[Callable[[], Tensor], str, Any]]] = {
    "bfloat16": (lambda: HALF.bfloat16(), "bfloat16", HALF.numpy()),
    "float16": (lambda: HALF.half(), "float16", HALF.half().numpy()),
    "float64": (lambda: HALF.double(), "float64", HALF.double().numpy()),
    "bool": (lambda: torch.tensor([True, False]), "bool", np.array([True, False])),
    "int64": (lambda: torch.tensor([[2**62], [-1]]), "int64", np.array([[2**62], [-1]])),
    "uint16": (lambda: torch.tensor([65535], dtype=torch.uint16), "uint16", np.array([65535], np.uint16)),
    "complex64": (lambda: torch.tensor([1 + 2j]), "complex64", np.array([1 + 2j], np.complex64)),
    "conjugated": (lambda: torch.tensor([1 + 2j]).conj(), "complex64", np.array([1 - 2j], np.complex64)),
    "transposed": (
        lambda: torch.arange(6.0).reshape(2, 3).t(),
        "float32",
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
    ),
    "expanded": (lambda: torch.ones(1, 2).expand(3, 2), "float32", np.ones((3, 2), np.float32)),
    "sparse": (lambda: torch.eye(3).to_sparse(), "float32", np.eye(3, dtype=np.float32)),
    "compressed": (lambda: torch.eye(3).to_sparse_csr(), "float32", np.eye(3, dtype=np.float32)),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 2, torch.quint8),
        "quint8",
        np.ones(3, np.float32),
    ),
    "empty": (lambda: torch.empty(0, 3), "float32", np.empty((0, 3), np.float32)),
    "0-d": (lambda: torch.tensor(3.0), "float32", np.array(3, np.float32)),
    "float8": (lambda: torch.ones(2).to(torch.float8_e4m3fn), "float8_e4m3fn", np.ones(2, np.float32)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MAKES)
def test_any_kind_of_tensor_is_captured_unchanged(make: str) -> None:
    tensor, dtype, expected = MAKES[make]
    model = Gives(tensor())
    with watch(model) as watcher:
        ask(watcher, "")
        model()
        watcher.step()
        (snapshot,) = taken(watcher)
    assert (snapshot.dtype, snapshot.shape, snapshot.truncated) == (dtype, expected.shape, False)
    assert snapshot.values.dtype == expected.dtype
    np.testing.assert_array_equal(snapshot.values, expected)


def test_only_the_first_values_of_a_large_tensor_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MAX_BYTES", 100)
    model = Gives(torch.arange(60.0).reshape(3, 20).t())
    with watch(model) as watcher:
        ask(watcher, "")
        model()
        watcher.step()
        (snapshot,) = taken(watcher)
        watcher.step()
        (event,) = events(watcher, "snapshot-taken")
    assert (snapshot.shape, snapshot.truncated) == ((20, 3), True)
    np.testing.assert_array_equal(snapshot.values, model.tensor[:8].numpy())
    assert "the first 24 values" in event.message


def test_one_row_that_is_too_large_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MAX_BYTES", 40)
    copy = copies.take_copy(torch.arange(90.0).reshape(3, 2, 15))
    assert isinstance(copy, copies.Copy)
    np.testing.assert_array_equal(copy.finish(), np.arange(10))
    assert copy.truncated
    assert copy.shape == (3, 2, 15)


@pytest.mark.parametrize("tensor", [torch.empty(3, device="meta"), torch.ones(3).to_mkldnn()], ids=["meta", "mkldnn"])
def test_a_tensor_without_values_says_so_and_others_are_made_dense(tensor: Tensor) -> None:
    copy = copies.take_copy(tensor)
    if tensor.is_meta:
        assert isinstance(copy, str)
        assert "without data" in copy
    else:
        assert isinstance(copy, copies.Copy)
        np.testing.assert_array_equal(copy.finish(), np.ones(3))


def test_a_scaled_gradient_is_raw_and_labeled() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda gradient: seen.append(gradient.clone()))

    model[0].register_forward_hook(keep)
    with watch(model) as watcher:
        for number in range(3):
            if number == 1:
                ask(watcher, "0", "output_grad")
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        (snapshot,) = taken(watcher)
        watcher.step()
        (event,) = events(watcher, "snapshot-taken")
    same(snapshot, seen[1])
    assert "still multiplied by the loss scale 8" in event.message


@pytest.mark.skipif(not internals.SEES_INSIDE, reason="this torch can't trace the hooks into its graphs")
def test_inside_compiled_graphs_outputs_and_their_gradients_are_captured() -> None:
    model, inputs = net(), torch.randn(3, 4)
    twin = net()
    hidden = twin[0](inputs)
    kept = hidden.detach().clone()
    hidden.retain_grad()
    twin[2](torch.relu(hidden)).square().sum().backward()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with watch(model, compiled="inside") as watcher:
        ask(watcher, "0")
        ask(watcher, "0", "output_grad")
        ask(watcher, "0", "input", "0")
        compiled(inputs).square().sum().backward()
        watcher.step()
        found = {snapshot.tap.kind: snapshot for snapshot in taken(watcher)}
        (missed,) = events(watcher, "snapshot-missed")
    assert hidden.grad is not None
    assert torch.allclose(torch.tensor(found["output"].values), kept, rtol=1e-6)
    assert torch.allclose(torch.tensor(found["output_grad"].values), hidden.grad, rtol=1e-5)
    assert "captures only outputs and their gradients" in missed.message


def test_the_boundary_of_a_compiled_region_is_captured() -> None:
    model, inputs = net(), torch.randn(3, 4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with watch(model, include="is:leaf") as watcher:
        ask(watcher, "")
        output = compiled(inputs)
        output.square().sum().backward()
        watcher.step()
        (snapshot,) = taken(watcher)
    same(snapshot, output)


# --- Tensors that don't arrive --------------------------------------------------------------------------------------


def _missed(watcher: hookcore.Watcher) -> str:
    return " ".join(event.message for event in events(watcher, "snapshot-missed"))


def test_a_missing_tap_is_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("Snapshots"), "MAX_STEPS", 5)
    model, optimizer = net(), torch.optim.SGD(net().parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        ask(watcher, "0", index="7")
        ask(watcher, "0", "param", "wieght")
        for _ in range(6):
            step(model, optimizer, torch.randn(3, 4))
        said = _missed(watcher)
        assert not recorder_of(watcher).capture.observers.snapshots.active
    assert "did not arrive within 5 steps: there is no output '7'; the module has ''" in said
    assert "there is no parameter 'wieght'; the module has 'weight', 'bias'" in said


def test_a_script_requests_a_tensor_by_its_label_or_by_its_module() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        step(model, optimizer, torch.ones(3, 4))
        watcher.request_snapshot(tap="2 output_grad")
        watcher.request_snapshot("0", "param_grad", "weight")
        step(model, optimizer, torch.ones(3, 4))
        assert [each.tap.label for each in taken(watcher)] == ["2 output_grad", "0 param_grad [weight]"]
        with pytest.raises(ArgumentError, match="did you mean '2 output_grad'"):
            watcher.request_snapshot(tap="2 outputgrad")
        for given in ({}, {"module": "0", "tap": "0 output"}):
            with pytest.raises(ArgumentError, match="give either"):
                watcher.request_snapshot(**given)


def test_an_unknown_module_is_refused_immediately_with_the_nearest_name() -> None:
    with watch(Calls()) as watcher:
        ask(watcher, "iner")
        watcher.step()
        assert "there is no watched module 'iner'. Did you mean 'inner'?" in _missed(watcher)


def test_the_end_of_the_training_is_the_reason_for_pending_snapshots() -> None:
    model = net()
    with watch(model) as watcher:
        ask(watcher, "0")
        model(torch.ones(1, 4))
        ask(watcher, "2", call=3)
    assert "the training ended before it arrived" in " ".join(event.message for event in watcher.store.events())


def test_pending_snapshots_and_waiting_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("Snapshots"), "MAX_BYTES", 1000)
    monkeypatch.setattr(module_of("Snapshots"), "MAX_WAITING_BYTES", 1500)
    model, optimizer = net(), torch.optim.SGD(net().parameters(), lr=0.1)
    with watch(model) as watcher:
        snapshots = recorder_of(watcher).capture.observers.snapshots
        for call in range(64 + 3):
            ask(watcher, "0", call=call)
        monkeypatch.setattr(class_of("WaitingCopies"), "ship", lambda *_: None)  # the recorder's thread is busy
        for _ in range(20):
            model[0](torch.ones(20, 4))
        assert 0 < snapshots.copies.waiting_bytes <= 1500
        monkeypatch.undo()
        optimizer.step()
    said = [event.message for event in watcher.store.events() if event.name == "snapshot-missed"]
    assert sum("too many snapshots are pending" in message for message in said) == 3


class Leaves(torch.autograd.Function):
    """Reports when its node, and thus the graph, is gone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gone: list[Any]) -> Tensor:
        ctx.token = Token()
        gone.append(weakref.ref(ctx.token))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class Token:
    """An object for weak references."""


def test_a_snapshot_holds_no_graph() -> None:
    model, gone = net(), list[Any]()
    gc.collect()
    gc.disable()
    try:
        with watch(model) as watcher:
            for _ in range(3):
                for kind in ("output", "output_grad"):
                    ask(watcher, "0", kind)
                    ask(watcher, "2", kind)
                Leaves.apply(model(torch.ones(2, 4)), gone).sum().backward()
                watcher.step()
            assert [reference() for reference in gone] == [None] * 3
            assert len(taken(watcher)) == 12
    finally:
        gc.enable()


def test_a_step_that_the_cadence_skips_is_captured_for_a_snapshot() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1000) as watcher:
        for number in range(6):
            if number == 2:
                recorder_of(watcher).on_command(Command(1, "snapshot", tap=Tap("0", "output")))
                recorder_of(watcher).on_command(Command(1, "snapshot", tap=Tap("0", "output")))
            step(model, optimizer, torch.randn(3, 4))
        (snapshot,) = taken(watcher)
    assert (snapshot.step, snapshot.number) == (3, 1)


# --- Automatic snapshots --------------------------------------------------------------------------------------------


class Reader(nn.Module):
    """Attention, a tower of layers, and an output."""

    def __init__(self, layers: int = 2, width: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.tower = nn.Sequential(nn.Linear(8, width), *(nn.Linear(width, width) for _ in range(layers - 1)))

    def forward(self, inputs: Tensor) -> Tensor:
        mixed, _ = self.attention(inputs, inputs, inputs, average_attn_weights=False)
        return cast(Tensor, self.tower(mixed))


def trained(steps: int, samples: int = 3, layers: int = 2, width: int = 8, **settings: Any) -> hookcore.Watcher:
    model = Reader(layers, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, budget=None, **settings) as watcher:
        for _ in range(steps):
            step(model, optimizer, torch.randn(samples, 5, 8))
        assert watcher.flush()
    return watcher


def test_a_run_that_has_ended_has_attention_maps_and_outputs_that_nobody_asked_for() -> None:
    watcher = trained(40, snapshot_every=20)
    found = [(each.step, each.tap.label, each.shape, each.truncated) for each in watcher.store.snapshots()]
    maps, outputs = (3, 2, 5, 5), (3, 5, 8)
    of_a_step = [("attention output [1]", maps, False), ("tower.0 output", outputs, False)]
    of_a_step.append(("tower.1 output", outputs, False))
    assert found == [(number, *each) for number in (16, 36) for each in of_a_step]
    assert watcher.errors == []
    assert [event for event in watcher.store.events() if "snapshot" in event.name] == []


def test_long_runs_have_ever_fewer_automatic_snapshots_and_none_without_the_setting() -> None:
    watcher = trained(70, layers=1, snapshot_every=1)
    steps = sorted({each.step for each in watcher.store.snapshots()})
    assert steps == [*range(8), 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert trained(20, snapshot_every=None).store.snapshots() == []


def test_large_tensors_have_their_first_samples_in_an_automatic_snapshot_and_what_has_no_room_is_counted() -> None:
    watcher = trained(1, samples=400, layers=64, snapshot_every=1, memory="16MB")  # room: 160 KB
    kept = watcher.store.snapshots()
    (attention,) = (each for each in kept if each.tap.module == "attention")
    assert attention.truncated
    assert attention.shape == (400, 2, 5, 5)
    assert attention.values.shape == (50, 2, 5, 5)
    tower = [each for each in kept if each.tap.module.startswith("tower.")]
    assert len(tower) == 21  # every third of 65: all over the model
    assert {each.values.shape for each in tower} == {(11, 5, 8)}
    assert events(watcher, "snapshot-left-out") == []
    large = trained(1, samples=5, layers=1, snapshot_every=1, memory="16MB", width=2048)
    assert [each.tap.label for each in large.store.snapshots()] == ["attention output [1]"]
    (left_out,) = events(large, "snapshot-left-out")
    assert (left_out.count, left_out.severity) == (1, "info")


# --- Harmless -------------------------------------------------------------------------------------------------------


@functools.cache
def _unwatched(name: str) -> Outcome:
    return run_case(CASES[name])


def _asking(settings: dict[str, Any], watchers: list[hookcore.Watcher]) -> Attach:
    @contextlib.contextmanager
    def attach(trial: Trial) -> Iterator[None]:
        watchers.extend(watch(model, **settings) for model in (trial.model, *trial.others))
        step: Callable[[int], Any] = trial.step

        def stepped(number: int) -> Any:
            for watcher in watchers:
                _ask_for_everything(watcher)
            return step(number)

        trial.step = stepped
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.flush()
                watcher.close()

    return attach


def _ask_for_everything(watcher: hookcore.Watcher) -> None:
    for plan in recorder_of(watcher).context.plans.live():
        for kind in ("output", "output_grad", "input", "input_grad"):
            ask(watcher, plan.path, kind, "0" if kind.startswith("input") else "")
        module = plan.ref()
        for name, _ in module._parameters.items() if module is not None else ():
            for kind in ("param", "param_grad", "update"):
                ask(watcher, plan.path, kind, name)


WAYS: Final[dict[str, dict[str, Any]]] = {
    "captured": {"snapshot_every": 1},
    "not-captured": {"include": "is:root", "kinds": "param_grad"},
    "per-module": {"attach": "module"},
}


def _cases() -> list[Any]:
    """Return each case in the default way and in one of the others, in turn, which only differ in who sees a tensor."""
    return [
        pytest.param(case, way, id=f"{name}-{way}")
        for number, (name, case) in enumerate(CASES.items())
        for way in ("captured", ("not-captured", "per-module")[number % 2])
    ]


@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize(("case", "way"), _cases())
def test_snapshots_of_everything_in_every_step_change_no_bit(case: Case, way: str) -> None:
    expected = _unwatched(case.name)
    before, watchers = process_state(), list[hookcore.Watcher]()
    seen = run_case(case, _asking(WAYS[way], watchers))
    for number in range(STEPS):
        assert seen.steps[number] == expected.steps[number], f"step {number}"
    if way == "per-module":
        seen.hooks = expected.hooks  # that is their purpose; afterward, they are gone
    assert seen == expected
    assert not seen.warnings - expected.warnings
    assert process_state() == before
    assert [event.message for watcher in watchers for event in watcher.errors] == []
