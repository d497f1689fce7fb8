# mypy: disable-error-code="no-untyped-call"
"""Coverage gives the real reason for each module, and events report what hookcore couldn't do."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.observe import device
from hookcore.recorder.calls.plans import Plan
from tests.harness import watch
from tests.inside import module_of, recorder_of
from tests.zoo.case import mean_square

unseen = module_of("LaterModules")


class Odd(nn.Module):
    """Has modules that no hook sees, each for a different reason."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.table = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.lent = nn.Linear(4, 4)
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
        self.cut, self.unused, self.sometimes = Cut(), nn.Linear(4, 4), nn.Linear(4, 4)
        self.calls = 0

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x)[0] + self.cut(x)
        x = self.scripted(self.table["a"](self.layers[0](x))) * self.scales[0]
        x = linear(x, self.lent.weight)
        self.calls += 1
        x = self.sometimes(x) if self.calls == 1 else x
        return linear(x, self.head.weight)


class Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach().requires_grad_()


def train(
    model: nn.Module, watcher: hookcore.Watcher, *inputs: Any, steps: int = 2, call: Any = None
) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (call or model)(*inputs).square().mean().backward()
        optimizer.step()
    assert watcher.flush()
    return {item.path: item for item in watcher.coverage()}


@pytest.mark.filterwarnings("ignore")
def test_every_module_has_its_true_reason() -> None:
    model = Odd()
    with watch(model) as watcher:
        coverage = train(model, watcher, torch.randint(0, 7, (2, 3)))
        assert not watcher.store.events(name="flow-unknown")
    expected = {
        "attention.out_proj": "its parent (MultiheadAttention) uses its weight directly",
        "layers": "a container (ModuleList)",
        "table": "a container (ModuleDict)",
        "scales": "a container (ParameterList)",
        "head": "its weight is tied to embed",
        "lent": "its weights got gradients: its parent uses them directly",
        "scripted.0": "inside TorchScript (scripted)",
        "cut": "its output is cut from the graph",
        "unused": "not called in any captured step",
        "sometimes": "not reached in step 1, the last one captured",
    }
    assert {path: text in coverage[path].reason for path, text in expected.items()} == dict.fromkeys(expected, True)
    assert coverage["sometimes"].captured
    assert coverage["embed"].captured
    assert not coverage["embed"].reason
    assert all(item.captured or item.reason for item in coverage.values())


@pytest.mark.filterwarnings("ignore")
def test_inputs_without_a_gradient_have_their_reason() -> None:
    class Inputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Parameter(torch.ones(2, 4))
            self.tokens, self.of_data, self.of_weight, self.of_both = nn.Embedding(5, 4), *(nn.Tanh() for _ in range(3))
            self.again = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, tokens: Tensor, data: Tensor) -> Tensor:
            x = self.tokens(tokens) + self.of_data(data) + self.of_weight(self.prompt)
            return checkpoint(self.again, self.of_both(x), use_reentrant=True)  # type: ignore[no-any-return]

    model = Inputs()
    with watch(model, kinds=("input", "input_grad", "output")) as watcher:
        coverage = train(model, watcher, torch.randint(0, 5, (2,)), torch.randn(2, 4))
        assert not [tap for tap in watcher.store.taps().taps if tap.module == "of_weight" and tap.kind == "input_grad"]
    expected = {
        "of_data": "an input needs no gradient",
        "of_weight": "its input is a parameter: see the parameter's gradient",
        "again.0": "",
        "again.1": "calls that run again in the backward pass, as in a reentrant checkpoint",
        "of_both": "",
        "tokens": "",  # whole numbers have no gradient
    }
    assert {path: coverage[path].reason for path, text in expected.items() if not text} == {
        path: "" for path, text in expected.items() if not text
    }
    assert {path: text in coverage[path].reason for path, text in expected.items()} == dict.fromkeys(expected, True)
    assert all(("input_grad" in coverage[path].kinds) == (path in ("again.0", "of_both")) for path in expected)


def test_gradients_that_a_script_takes_from_elsewhere_are_a_possible_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model) as watcher:
        for _ in range(2):  # as in federated learning: a copy is trained
            twin = copy.deepcopy(model)
            twin(torch.randn(3, 4)).square().mean().backward()
            for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
                parameter.grad = other.grad
            optimizer.step()
        assert watcher.flush()
        copied = {item.path: item.reason for item in watcher.coverage()}
    with watch(model) as watcher:
        for _ in range(2):
            parameters = list(model.parameters())
            slopes = torch.autograd.grad(model(torch.randn(3, 4)).square().mean(), parameters)
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.grad = slope
            optimizer.step()
        assert watcher.flush()
        computed = {item.path: item.reason for item in watcher.coverage()}
    assert "or the script sets the gradients" in copied["0"]
    assert all("torch.autograd.grad" in reason for reason in computed.values())


def test_an_uncaptured_step_is_not_reported_as_reaching_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, every=3) as watcher:
        for step in range(9):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            watcher.log(number=float(step))
        watcher.flush()
        assert watcher.store.steps().newest == 8
        assert {item.path: item.reason for item in watcher.coverage()} == {"": "", "0": "", "1": ""}


def test_a_gradient_without_room_is_not_reported_as_missing() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    with watch(model) as watcher:
        recorder_of(watcher).context.statistics.table.capacity = 19  # 16 for the weights, and 18 for the modules
        coverage = train(model, watcher, torch.randn(3, 4))
    partly = [item for item in coverage.values() if "output" in item.kinds and "output_grad" not in item.kinds]
    assert partly
    assert {item.reason for item in partly} == {unseen.NO_ROOM}


def test_finding_reasons_for_many_modules_reads_each_weight_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def counted(plan: Plan) -> set[int]:
        looks.append(plan.path)
        return weights_of(plan)

    weights_of = unseen.weights_of
    monkeypatch.setattr(unseen, "weights_of", counted)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(60)))
    for layer in model[1:]:
        layer.weight = model[0].weight
    with watch(model) as watcher:
        watcher.flush()
        looks.clear()
        reasons = {item.path: item.reason for item in watcher.coverage()}
    assert "its weight is tied to 1," in reasons["0"]
    assert "its weight is tied to 0," in reasons["59"]
    assert len(looks) <= 10 * len(reasons)  # instead of 60 times each


def test_integers_among_the_outputs_of_a_module_say_nothing_about_its_gradients() -> None:
    class Coded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.layer(x)
            return y, y.argmax(1)

    model = Coded()
    with watch(model) as watcher:
        model(torch.randn(3, 4))[0].sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        watcher.flush()
        assert [each.reason for each in watcher.coverage()] == ["", ""]


def test_modules_inside_a_compiled_function_have_that_reason_and_an_event() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))

    def loss_of(x: Tensor) -> Tensor:
        return model(x)  # type: ignore[no-any-return]

    compiled = torch.compile(loss_of, backend="eager")
    with watch(model) as watcher:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            compiled(torch.ones(5, 4)).square().mean().backward()
            watcher.step()
        watcher.flush()
        coverage = {item.path: item for item in watcher.coverage()}
        watcher.close()
        events = [event.name for event in watcher.store.events()]
    assert "inside a compiled function (loss_of, test_reasons.py:" in coverage["0"].reason
    assert "inside-compiled-function" in events


def test_a_model_called_by_forward_is_not_reported_as_inside_a_nearby_compiled_function() -> None:
    torch.compile(lambda x: x * 2, backend="eager")(torch.ones(3))
    model = nn.Linear(4, 5)
    with watch(model) as watcher:
        for _ in range(3):
            model.forward(torch.ones(5, 4)).square().mean().backward()
            watcher.step()
        watcher.flush()
        reason = watcher.coverage()[0].reason
    assert "only its .forward() is called" in reason


def test_modules_below_a_compiled_forward_have_that_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    model.forward = torch.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    with watch(model) as watcher:
        coverage = train(model, watcher, torch.ones(5, 4))
    assert coverage[""].captured
    assert not coverage["0"].captured
    assert "inside the compiled forward" in coverage["0"].reason


def test_a_model_that_is_recreated_in_every_step_has_one_entry_for_each_module() -> None:
    with watch() as watcher:
        for _ in range(30):
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        watcher.flush()
        coverage = watcher.coverage()
    assert len(coverage) == len({item.path for item in coverage})
    # The recorder's thread may hold a model for a moment, so a few may be alive at the same time, but not thirty.
    assert len(coverage) <= 40
    assert all(item.captured for item in coverage)


def test_a_tensor_without_room_is_not_called_captured() -> None:
    model = nn.Sequential(*(nn.ReLU() for _ in range(400)), nn.Linear(2, 2))
    with hookcore.watch(model, server=None, budget=None, memory="2MB", kinds="output") as watcher:
        coverage = train(model, watcher, torch.ones(1, 2))
        taps = {tap.module for tap in watcher.store.taps().taps}
        watcher.close()
        events = [event.name for event in watcher.store.events()]
    assert {item.path for item in coverage.values() if item.captured} == taps
    assert all("no room for its values" in item.reason for item in coverage.values() if item.path not in taps)
    assert "taps-not-captured" in events


def test_a_model_without_matching_modules_is_an_event() -> None:
    with watch(include="re:[0-9]+") as watcher:
        watcher.close()
    with watch(include="conv*") as watcher:
        for _ in range(2):
            model = nn.Linear(4, 4)
            model(torch.ones(2, 4)).sum().backward()
            watcher.step()
        watcher.flush()
        watcher.close()
        found = [event.message for event in watcher.store.events() if event.name == "model-not-watched"]
        (covered,) = watcher.store.coverage()
    assert len(found) == 1
    assert "Linear" in found[0]
    assert (covered.path, covered.type, covered.captured) == ("Linear", "Linear", False)
    assert covered.reason.startswith("not watched: ")
    assert "conv*" in covered.reason


def test_a_gpu_without_triton_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    model, gpu = nn.Linear(2, 2), torch.device("cuda", 0)
    with watch(model) as watcher:
        arena = device.DeviceArena(gpu, 64, None)  # it touches no GPU before it measures something
        recorder_of(watcher).context.statistics.devices.arenas[gpu, 0] = arena
        train(model, watcher, torch.ones(1, 2))
        watcher.close()
        (event,) = (each for each in watcher.store.events() if each.name == "slow-kernel")
    assert event.severity == "warning"
    assert event.message.startswith("tensors on cuda:0 are measured with PyTorch operators: Triton is not installed")


class Noting(nn.Parameter):
    """Records the threads that read its gradient."""

    asked_by: ClassVar[set[int]] = set()

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        """Return the gradient, and record the thread."""
        self.asked_by.add(threading.get_ident())
        return super().grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        Tensor.grad.__set__(self, value)  # type: ignore[attr-defined]


def test_only_the_training_thread_reads_gradients() -> None:
    """torch sets and frees `.grad` without the interpreter lock, so reading it at that moment can crash the process."""
    Noting.asked_by.clear()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].weight = Noting(model[0].weight.detach())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for kinds in (("output",), ("output", "param_grad", "update")):
        with watch(model, kinds=kinds) as watcher:
            for _ in range(3):
                optimizer.zero_grad()
                (model[1](torch.randn(2, 4)).sum() * model[0].weight.sum()).backward()
                optimizer.step()
            described = threading.Thread(target=recorder_of(watcher).description.send)
            described.start()
            described.join()
            told = {each.path: each.reason for each in watcher.coverage()}
        assert "its weights got gradients" in told["0"]
    assert Noting.asked_by == {threading.get_ident()}


def test_weights_added_to_the_optimizer_later_are_known_to_get_gradients() -> None:
    """If only outputs are captured, hookcore looks at an optimizer's parameters until all have had gradients."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    with watch(model, kinds=("output",)) as watcher:
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": [*model[0].parameters()]})
            model[1](linear(torch.randn(2, 4), model[0].weight)).sum().backward()
            optimizer.step()
        told = {each.path: each.reason for each in watcher.coverage()}
    assert "its weights got gradients" in told["0"]


@pytest.mark.filterwarnings("ignore")
def test_a_deleted_model_keeps_its_reasons() -> None:
    model = Odd()
    with watch(model) as watcher:
        alive = train(model, watcher, torch.arange(6).reshape(2, 3))
        del model
        gc.collect()
        gone = {item.path: item.reason for item in watcher.coverage()}
        for path in ("", "layers", "table", "attention.out_proj", "head"):
            assert gone[path] == alive[path].reason, path


def test_a_model_inside_torch_func_is_not_called_frozen() -> None:
    model = nn.Linear(4, 1)

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return mean_square(torch.func.functional_call(model, weights, (torch.ones(2, 4),)))

    with watch(model) as watcher:
        torch.func.grad(loss)(dict(model.named_parameters()))
        watcher.step()
        (found,) = watcher.coverage()
    assert found.reason.startswith("inside torch.func")
    assert "frozen" not in found.reason


def test_a_compiled_model_with_hooks_on_its_modules_reports_that_nothing_is_captured() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    with watch(model, attach="module") as watcher:
        found = train(model, watcher, torch.ones(3, 4), steps=3, call=torch.compile(model, backend="eager"))
    assert not found[""].captured
    assert all("attach='module'" in item.reason for item in found.values())
    (event,) = [event for event in watcher.store.events() if event.name == "inside-compiled-function"]
    assert "attach='global'" in event.message


class Freed(nn.Module):
    """Returns a tensor whose memory was freed, as wrappers of large models leave it."""

    def __init__(self, dtype: torch.dtype, begin: int, step: int) -> None:
        super().__init__()
        self.dtype, self.part = dtype, slice(begin, begin + 64 * step, step)

    def forward(self, _: Tensor) -> Tensor:
        whole = torch.ones(200_000, dtype=self.dtype)
        found = whole[self.part]
        whole.untyped_storage().resize_(0)
        return found


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("begin", [0, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_a_tensor_whose_memory_was_freed_is_never_read(dtype: torch.dtype, begin: int, step: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Freed(dtype, begin, step))
    weight, buffer = nn.Parameter(torch.ones(9)), torch.ones(9)
    model.register_parameter("weight", weight)
    model.register_buffer("buffer", buffer)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, kinds={"input", "output", "output_grad", "param", "param_grad", "update"}) as watcher:
        watcher.probe("size", lambda tensor: tensor.abs().sum(), every=1)
        watcher.request_snapshot("1", "output")
        for number in range(4):
            if number == 1:
                weight.untyped_storage().resize_(0)
                buffer.untyped_storage().resize_(0)
            inner = model[0](torch.ones(2, 4))
            model[1](inner)
            inner.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        watcher.flush()
        coverage = {item.path: item for item in watcher.coverage()}
    assert "its memory was freed" in coverage["1"].reason
    assert watcher.errors == []
    assert "snapshot-missed" in [event.name for event in watcher.store.events()]


class NoMemory(nn.Module):
    """Returns a tensor that never had memory."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, _: Tensor) -> Tensor:
        return self.make()


class ZeroGradient(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        return torch._efficientzerotensor(gradient.shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch._efficientzerotensor((5,)),
        lambda: torch._efficientzerotensor((5,), dtype=torch.float64)[2:],
        lambda: torch._to_functional_tensor(torch.ones(5)),
    ],
    ids=["zeros", "a part of zeros", "functional"],
)
@pytest.mark.parametrize("every", [1, 1 << 20])
def test_a_tensor_without_memory_is_never_read(make: Callable[[], Tensor], every: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), NoMemory(make))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, phases={"train", "eval"}, every=every) as watcher:
        watcher.request_snapshot("1", "output")
        for number in range(70):
            inner = model[0](torch.ones(2, 4))
            model[1](inner)
            loss = (ZeroGradient.apply(inner) if number % 3 == 1 else inner).square().mean()  # type: ignore[no-untyped-call]
            torch.autograd.backward(loss, torch._efficientzerotensor(()) if number % 3 == 2 else None)
            for parameter in model.parameters():
                if number > 35:
                    parameter.grad = torch._efficientzerotensor(parameter.shape)
            optimizer.step()
            optimizer.zero_grad()
        watcher.flush()
        coverage = {item.path: item for item in watcher.coverage()}
        assert watcher.errors == []
    assert "it never had any" in coverage["1"].reason


@pytest.mark.parametrize("capsule", ["error", "never"])
def test_uncaptured_steps_read_no_gradient_whose_memory_was_freed(capsule: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    with watch(model, every=1 << 20, capsule=capsule) as watcher:
        for _ in range(70):
            model(torch.ones(3, 4)).square().mean().backward()
            for parameter in model[0].parameters():
                assert parameter.grad is not None
                parameter.grad.untyped_storage().resize_(0)
            optimizer.step()
            model.zero_grad()
        assert watcher.errors == []


@pytest.mark.parametrize("every", [1, 1 << 20])
def test_gradients_in_a_large_buffer_are_not_read_while_its_memory_is_freed(every: int) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 8))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, 0.01)
    buffer = torch.zeros(sum(each.numel() for each in parameters))
    whole, waiting, held = buffer.untyped_storage().nbytes(), set[int](), list[torch.Tensor]()
    for each, part in zip(parameters, buffer.split([each.numel() for each in parameters]), strict=True):
        each.grad = part.view_as(each)

    def offload(parameter: Tensor) -> None:
        waiting.discard(id(parameter))
        if not waiting:
            held.append(buffer.clone())
            buffer.untyped_storage().resize_(0)

    for each in parameters:
        each.register_post_accumulate_grad_hook(offload)
    with watch(model, every=every, capsule="never") as watcher:
        for _ in range(80):
            waiting.update(map(id, parameters))
            model(torch.ones(3, 256)).square().mean().backward()
            buffer.untyped_storage().resize_(whole)
            buffer.copy_(held.pop())
            optimizer.step()
            buffer.zero_()
        assert watcher.flush()
        assert watcher.store.steps().count == watcher.current_step == 80
        assert watcher.errors == []


def test_a_number_whose_memory_was_freed_is_not_read() -> None:
    whole = torch.ones(200_000)
    number = whole[100_000]
    whole.untyped_storage().resize_(0)
    with watch(nn.Linear(2, 2)) as watcher:
        watcher.log(number=number)
        watcher.step()
        assert watcher.flush()
        assert "number" not in watcher.store.scalar_names()
        assert [error for error in watcher.errors if "not allocated" in str(error)]
