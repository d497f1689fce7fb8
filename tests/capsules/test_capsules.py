"""A replay finds the operator and the line that made a non-finite value, and doesn't blame harmless ones."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookcore.capsules import Replay, as_text, read_about, record, replay
from hookcore.errors import ArgumentError, CapsuleError
from tests.harness import digest, random_state, seed_all
from tests.warm import python

INF = float("inf")


class Applied(nn.Module):
    """A layer followed by a function. The pickle contains the function's name."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


class Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] / (x - x)  # guilty


def zero_of(x: Tensor) -> Tensor:
    return x - x


def log_of_negative(x: Tensor) -> Tensor:
    return torch.log(-x.abs() - 1)  # guilty


def zero_by_zero(x: Tensor) -> Tensor:
    return zero_of(x) / zero_of(x)  # guilty


def infinity_minus_infinity(x: Tensor) -> Tensor:
    big = (x.abs() * 1000 + 1000).exp()  # guilty
    return big - big


def root_of_zero(x: Tensor) -> Tensor:
    return zero_of(x).square().sum().sqrt()  # guilty


def distance_of_equal(x: Tensor) -> Tensor:
    return zero_of(x).pow(2).sum(-1).pow(0.5)  # guilty


def overflow_in_half(x: Tensor) -> Tensor:
    return (x.half().abs() + 20).exp()  # guilty


def overflow_in_bfloat16(x: Tensor) -> Tensor:
    return (x.bfloat16().abs() + 100).exp()  # guilty


def power_of_negative(x: Tensor) -> Tensor:
    return (-x.abs() - 1).pow(0.3)  # guilty


def acos_outside(x: Tensor) -> Tensor:
    return torch.acos(x.abs() + 2)  # guilty


def custom_backward(x: Tensor) -> Tensor:
    result: Tensor = Inverse.apply(x)  # type: ignore[no-untyped-call]
    return result


def in_place(x: Tensor) -> Tensor:
    y = zero_of(x) + 1
    y.div_(zero_of(x).detach())  # guilty
    return y


def part_in_place(x: Tensor) -> Tensor:
    y = x.detach().clone()
    y[1].sub_(y[1] + 1).log_()  # guilty
    return x + y


def logsumexp_of_masked(x: Tensor) -> Tensor:
    masked = x.masked_fill(torch.ones_like(x, dtype=torch.bool), -INF)
    most = masked.max(-1, keepdim=True).values
    return (masked - most).exp().sum(-1).log() + most[:, 0]  # the difference is what is: # guilty


def softmax_of_masked(x: Tensor) -> Tensor:
    masked = x.masked_fill(torch.ones_like(x, dtype=torch.bool), -INF)
    return masked.softmax(-1)  # guilty


def deviation_of_one(x: Tensor) -> Tensor:
    return x[0, :1].std()  # guilty


def several_outputs(x: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(x[0, :1])  # guilty
    return mean + deviation


def selected_log(x: Tensor) -> Tensor:
    zero = zero_of(x)
    return torch.where(zero > 0, zero.log(), zero)  # the discarded log is what fails in the backward pass: # guilty


def number_from_python(x: Tensor) -> Tensor:
    deviation = x[0, :1].std().item()  # guilty
    return x / deviation


GUILTY = [
    log_of_negative,
    zero_by_zero,
    infinity_minus_infinity,
    root_of_zero,
    distance_of_equal,
    overflow_in_half,
    overflow_in_bfloat16,
    power_of_negative,
    acos_outside,
    custom_backward,
    in_place,
    part_in_place,
    logsumexp_of_masked,
    softmax_of_masked,
    deviation_of_one,
    several_outputs,
    selected_log,
    number_from_python,
]
IN_BACKWARD = {root_of_zero, distance_of_equal, custom_backward, selected_log}


def masked_attention(x: Tensor) -> Tensor:
    mask = torch.tensor([0.0, -INF, 0.0, -INF])
    return (x + mask).softmax(-1) + x.masked_fill(x.new_ones(3, 4, dtype=torch.bool).tril(-1), -INF).softmax(-1)


def uninitialized(x: Tensor) -> Tensor:
    y = torch.empty(4096)
    y[: x.numel()] = x.reshape(-1)
    return y[: x.numel()] * 2


def discarded(x: Tensor) -> Tensor:
    return torch.nan_to_num(zero_of(x).detach().log()) * 0 + x


def norm_of_zero(x: Tensor) -> Tensor:
    return zero_of(x).norm() + x.sum()


HARMLESS = [masked_attention, uninitialized, discarded, norm_of_zero]


def train(model: nn.Module, *args: Any, reduce: Callable[[Any], Tensor] | None = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    output = model(*args)
    (output.float().sum() if reduce is None else reduce(output)).backward()
    optimizer.step()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "step.capsule"


def recorded(path: Path, function: Callable[[Tensor], Tensor], when: Any = "error") -> Replay:
    seed_all()
    model, batch = Applied(function), torch.randn(3, 4)
    with record(model, path, when) as recording:
        if when == "asked":
            model(batch).float().sum().backward()
            recording.write()
        else:
            train(model, batch)
    assert recording.written == path, recording.failure
    return replay(path)


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom:UserWarning")
@pytest.mark.parametrize("function", GUILTY)
def test_the_offending_line_is_found(path: Path, function: Callable[[Tensor], Tensor]) -> None:
    found = recorded(path, function)
    assert found.culprit is not None
    assert found.culprit.line is not None, found.culprit
    line = found.culprit.line
    assert "# guilty" in line.source[line.line - line.first], (found.culprit.operator, line)
    assert found.culprit.phase == ("backward" if function in IN_BACKWARD else "forward")
    assert {line.file for line in found.culprit.stack} == {__file__}
    assert found.culprit.elements
    assert found.culprit.output is not None
    assert found.exact, found.differences
    assert function in IN_BACKWARD or found.bad_results[0] == "activation"


@pytest.fixture
def filled_with_nan() -> Iterator[None]:
    """Let uninitialized memory contain NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("filled_with_nan")
@pytest.mark.parametrize("function", HARMLESS)
def test_nothing_is_blamed_for_values_that_reach_no_result(path: Path, function: Callable[[Tensor], Tensor]) -> None:
    found = recorded(path, function, "asked")
    assert found.culprit is None
    assert found.bad_results == ()
    assert found.exact, found.differences


@pytest.mark.usefixtures("filled_with_nan")
def test_memory_that_was_read_before_it_was_written_is_reported(path: Path) -> None:
    found = recorded(path, forgets_to_write)
    assert found.culprit is not None
    assert found.culprit.origin == "uninitialized"


def forgets_to_write(x: Tensor) -> Tensor:
    y = torch.empty(3, 4)
    y[:2] = x[:2].detach()
    return x + y


def test_a_mask_that_reaches_the_output_is_not_blamed_on_an_operator(path: Path) -> None:
    found = recorded(path, masked_logits, "asked")
    assert found.culprit is not None
    assert found.culprit.origin == "constant"
    assert "perhaps a mask" in as_text(found)


def masked_logits(x: Tensor) -> Tensor:
    return x.masked_fill(x > 0, -INF)


def test_the_facts_of_the_culprit_are_those_of_its_tensors(path: Path) -> None:
    found = recorded(path, zero_by_zero)
    assert found.culprit is not None
    assert found.culprit.operator == "aten.div.Tensor"
    above, below = found.culprit.inputs
    assert (above.name, above.shape, above.strides, above.dtype) == ("self", (3, 4), (4, 1), "float32")
    assert (above.min, above.max, above.mean, above.nan, above.inf) == (0, 0, 0, 0, 0)
    assert set(below.values) == {"0"}
    assert found.culprit.output is not None
    assert found.culprit.output.nan == found.culprit.bad == 12
    assert found.culprit.elements[:2] == ((0, 0), (0, 1))
    text = as_text(found)
    assert "> " in text
    assert "aten.div.Tensor made the first non-finite value" in text
    assert json.loads(json.dumps(found.as_dict()))["exact"] is True


def test_the_first_operator_above_a_threshold_is_found(path: Path) -> None:
    recorded(path, grows, "asked")
    assert replay(path).culprit is None
    culprit = replay(path, above=50).culprit
    assert culprit is not None
    assert culprit.line is not None
    assert "# guilty" in culprit.line.source[culprit.line.line - culprit.line.first]
    with pytest.raises(ArgumentError, match="above=0 is invalid"):
        replay(path, above=0)


def grows(x: Tensor) -> Tensor:
    x = x.sigmoid() + 1
    x = x * 100  # guilty
    return (x * 100).tanh()


@pytest.mark.parametrize(("name", "place"), [("argument", "argument 0"), ("weight", "weight layer.weight")])
def test_bad_values_from_before_the_step_are_named(path: Path, name: str, place: str) -> None:
    model, batch = Applied(torch.tanh), torch.randn(3, 4)
    if name == "argument":
        batch[1, 2] = float("nan")
    else:
        model.layer.weight.data[2, 1] = float("nan")
    with record(model, path):
        train(model, batch)
    found = replay(path)
    assert found.culprit is not None
    assert (found.culprit.origin, found.culprit.operator) == ("given", place)
    assert found.culprit.elements == ((1, 2) if name == "argument" else (2, 1),)


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_loss_that_fails_outside_of_the_model_is_distinguished_from_the_model(bad: str, path: Path) -> None:
    model = Applied(torch.tanh)
    losses = {"nan": lambda y: (y - y).square().sum().sqrt(), "inf": lambda y: y.sum() * float("inf")}
    with record(model, path):
        train(model, torch.randn(3, 4), reduce=losses[bad])
    found = replay(path)
    assert found.culprit is not None
    assert (found.culprit.origin, found.culprit.operator) == ("given", "activation gradient")
    assert not found.culprit.on_purpose
    assert "look at the loss" in found.culprit.sentence


def test_the_capsule_has_the_bad_micro_batch_of_an_accumulation(path: Path) -> None:
    model = Applied(acos_of_outliers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model.layer.weight.fill_(0.1)
    batches = [torch.zeros(2, 4), torch.full((2, 4), 90.0), torch.ones(2, 4)]
    with record(model, path) as recording:
        for batch in batches:
            model(batch).sum().backward()
        optimizer.step()
    assert recording.written == path
    found = replay(path)
    assert found.culprit is not None
    assert found.culprit.operator.startswith("aten.acos")
    assert found.about["weights"] == "before the update"
    assert "micro-batch" in found.about["reason"]
    assert found.exact


def acos_of_outliers(x: Tensor) -> Tensor:
    return torch.acos(x / 2)


def test_an_overflow_of_scaled_gradients_is_found(path: Path) -> None:
    model = Applied(small_in_half)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with record(model, path, "asked") as recording:
        scaler.scale(model(torch.randn(3, 4)).sum()).backward()
        recording.write()
    culprit = replay(path).culprit
    assert culprit is not None
    assert culprit.phase == "backward"


def small_in_half(x: Tensor) -> Tensor:
    return (x * 2).half().float()


class Everything(nn.Module):
    """Has dropout, BatchNorm, an RNN, keyword arguments, nested outputs, and three random number generators."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.rnn = nn.GRU(6, 6, batch_first=True)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, *, scale: Tensor) -> Any:
        noise = random.random() + float(np.random.rand())
        x = self.drop(self.norm(x) * scale + noise)
        hidden, last = self.rnn(x[:, None])
        return {"hidden": hidden, "logits": self.drop(hidden[:, -1] @ last[0].T)}


def both(output: Any) -> Tensor:
    result: Tensor = output["logits"].square().mean() + output["hidden"].sum()
    return result


def test_a_replay_is_equal_to_the_bit(path: Path) -> None:
    seed_all()
    model = Everything()
    optimizer = torch.optim.Adam(model.parameters())
    with record(model, path, "asked") as recording:
        for _ in range(3):
            optimizer.zero_grad()
            both(model(torch.randn(5, 6), scale=torch.rand(6))).backward()
        recording.write()
    gradients = digest([each.grad for each in model.parameters()])
    before = random_state()
    found = replay(path)
    assert random_state() == before, "a replay leaves this process's generators alone"
    assert found.exact, found.differences
    assert gradients == digest([each.grad for each in model.parameters()])


@pytest.mark.parametrize("when", ["error", "asked"])
def test_recording_changes_no_bit(path: Path, when: Any) -> None:
    def run(is_recorded: bool) -> tuple[str, str, bool]:
        seed_all()
        model = Everything()
        optimizer = torch.optim.Adam(model.parameters())
        leaf = True

        def steps() -> None:
            nonlocal leaf
            for _ in range(4):
                batch = torch.randn(5, 6)
                optimizer.zero_grad()
                both(model(batch, scale=torch.rand(6))).backward()
                optimizer.step()
                leaf = leaf and batch.is_leaf and not batch.requires_grad

        if is_recorded:
            with record(model, path, when) as recording:
                steps()
                if when == "asked":
                    assert recording.write() is not None, recording.failure
        else:
            steps()
        return digest([model.state_dict(), [each.grad for each in model.parameters()]]), random_state(), leaf

    assert run(True) == run(False)


class Token:
    """An object that lives as long as the graph, because one of the graph's hooks refers to it."""

    def __call__(self, *_: Any) -> None:
        pass


def test_a_recording_keeps_no_graph_and_leaves_no_hook(path: Path) -> None:
    model = Applied(torch.tanh)
    with record(model, path) as recording:
        output = model(torch.randn(3, 4))
        output.grad_fn.register_hook(token := Token())
        node = weakref.ref(token)
        output.sum().backward()
        del output, token
        gc.collect()
        assert node() is None
    assert recording.written is None
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_changed_weights_and_batches_are_reported(path: Path) -> None:
    model, batch = Applied(torch.tanh), torch.randn(3, 4)
    with record(model, path, "asked") as recording:
        train(model, batch)
        batch.zero_()
        recording.write()
    about = read_about(path)
    assert about["weights"] == "after the update"
    assert about["changed"] == ["argument 0"]
    found = replay(path)
    assert not found.exact
    assert any("weights" in each for each in found.differences)
    assert any("argument 0" in each for each in found.differences)


def test_an_exception_that_leaves_the_block_is_recorded(path: Path) -> None:
    model = Applied(raising)
    with pytest.raises(ValueError, match="no more"), record(model, path, "exception"):
        train(model, torch.randn(3, 4))
    assert read_about(path)["reason"] == "exception: ValueError: no more"
    found = replay(path)
    assert found.error.startswith("ValueError: no more (in ")


def raising(_: Tensor) -> Tensor:
    raise ValueError("no more")


def test_a_view_of_a_large_data_set_does_not_bring_all_of_it(path: Path) -> None:
    data, model = torch.randn(100_000, 4), Applied(torch.tanh)
    with record(model, path, "asked") as recording:
        train(model, data[:3])
        recording.write()
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize("trouble", ["unpicklable", "limit", "folder"])
def test_a_capsule_that_cannot_be_written_disturbs_nothing(
    path: Path, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Applied((lambda x: x.log()) if trouble == "unpicklable" else log_of_negative)
    place = path.parent / "missing" / "x.capsule" if trouble == "folder" else path
    with record(model, place, max_bytes=100 if trouble == "limit" else 1 << 20) as recording:
        train(model, -torch.ones(3, 4))
    assert recording.written is None
    assert recording.failure
    assert "hookcore: no capsule" in capsys.readouterr().err
    assert list(path.parent.iterdir()) == []


def test_a_model_that_cannot_be_pickled_is_built_by_its_constructor(path: Path) -> None:
    model = make_unpicklable()
    with record(model, path, "asked", constructor=f"{__name__}:make_unpicklable") as recording:
        train(model, torch.randn(3, 4))
    with record(model, path, "asked", constructor=f"{__name__}:make_unpicklable") as recording:
        model(torch.randn(3, 4)).sum().backward()
        recording.write()
    assert replay(path).exact


def make_unpicklable() -> nn.Module:
    return Applied(lambda x: x.tanh())


def test_the_description_is_readable_without_opening_the_pickle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(path, zero_by_zero)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    about = read_about(path)
    assert "runs code" in about["warning"]
    assert about["model"] == f"{__name__}.Applied"


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 1000])
def test_a_damaged_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CapsuleError, match="can't be read as a capsule"):
        replay(path)


KILLED = """
import os, signal, sys
import torch
from hookcore.capsules import record

setattr(sys.modules[sys.argv[1]], sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
model = torch.nn.Linear(2, 2)
with record(model, "step.capsule", "asked") as recording:
    model(torch.ones(1, 2)).sum().backward()
    recording.write()
"""


@pytest.mark.parametrize("when", ["torch.save", "os.fsync", "os.replace"])
def test_a_process_that_is_killed_while_it_writes_leaves_the_older_capsule(
    path: Path, when: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_bytes(b"the older one")
    killed = subprocess.run([python(), "-c", KILLED, *when.split(".")], cwd=path.parent, check=False)
    assert killed.returncode == -9
    assert path.read_bytes() == b"the older one"
    beside = path.with_name(f".other.capsule.{2**22 + 1}.1.unfinished")
    beside.touch()
    with record(nn.Linear(2, 2), path, "asked"):
        assert sorted(path.parent.iterdir()) == sorted((path, beside))
    assert capsys.readouterr().err == f"hookcore: removed 1 unfinished files that killed processes left for {path}\n"


SCRIPT = """
import torch
from torch import nn
from helper import divide
from hookcore.capsules import record

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return divide(self.layer(x))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
with record(model, "step.capsule"):
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    open("trained", "a").write("x")
"""


def test_a_model_of_the_main_script_is_found_and_the_script_does_not_train_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("def divide(d):\n    d = d - d\n    return d / d.std()\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run([python(), "train.py"], cwd=tmp_path, check=True)
    command = [python(), "-m", "hookcore_app.cli", "replay", "../step.capsule", "--json"]
    told = subprocess.run(command, cwd=elsewhere, check=True, capture_output=True, text=True)
    line = json.loads(told.stdout)["culprit"]["stack"][-1]
    assert (Path(line["file"]).name, line["line"], line["function"]) == ("helper.py", 3, "divide")
    assert "runs code" in told.stderr
    assert (tmp_path / "trained").read_text() == "x"
