# mypy: disable-error-code="no-untyped-call"
"""`hookcore.trace`: the tensors of a few layers, in a `with` block."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import gc
import io
import itertools
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore import TraceError, hooks
from hookcore.hooks.tracing import NotCopied
from tests.harness import watch
from tests.lanes import examples


def mlp(inplace: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


class Calls(nn.Module):
    """Runs a given function that has access to a few layers."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


class Returns(nn.Module):
    """Returns a given value."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


# --- Values and gradients -------------------------------------------------------------------------------------------


def test_a_traced_layer_has_its_tensors_and_no_hook_remains(seed: int) -> None:
    model, x = mlp(), torch.randn(3, 4)
    with hookcore.trace(model, "2") as seen:
        model(x).square().sum().backward()
    assert list(seen) == ["2"]
    assert "2" in seen
    assert "3" not in seen
    layer = seen["2"]
    assert layer.output.shape == layer.output_grad.shape == layer.input.shape == layer.input_grad.shape == (3, 8)
    assert not layer.output.requires_grad
    assert torch.equal(layer.output, model[2](layer.input))
    assert len(layer.calls) == 1
    assert hooks.inventory(model) == ()


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "relu": nn.ReLU,
    "relu-inplace": lambda: nn.ReLU(inplace=True),
    "elu-inplace": lambda: nn.ELU(inplace=True),
    "norm": lambda: nn.LayerNorm(4),
    "dropout": lambda: nn.Dropout(0.3),
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=6), st.booleans(), st.integers(0, 2**16))
def test_values_and_gradients_equal_autograds(names: list[str], leaf: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), *(LAYERS[name]() for name in names))
    x = torch.randn(3, 4, requires_grad=leaf)
    state = torch.get_rng_state()
    try:
        model(x).square().sum().backward()
    except RuntimeError:
        reject()  # the next layer overwrites a value that torch needs
    torch.set_rng_state(state)
    with hookcore.trace(model) as seen:
        loss = model(x).square().sum()
        loss.backward()

    torch.set_rng_state(state)
    value, values = x, [x]
    for module in model:
        value = module(value.clone())  # so that no in-place operation changes the compared values
        values.append(value)
        value = value * 1
    again = value.square().sum()
    wanted = values if leaf else values[1:]
    gradients = torch.autograd.grad(again, wanted)
    assert torch.equal(loss, again)
    for number, (expected, gradient) in enumerate(zip(values[1:], gradients[leaf:], strict=True)):
        layer = seen[str(number)]
        assert torch.equal(layer.output, expected)
        assert torch.equal(layer.output_grad, gradient)
    for number, gradient in enumerate(gradients[:-1], start=not leaf):
        assert torch.equal(seen[str(number)].input_grad, gradient)
    assert torch.equal(seen[""].output_grad, gradients[-1])


def test_a_value_does_not_change_if_the_tensor_is_changed_later(seed: int) -> None:
    def run(model: Calls, x: Tensor) -> Tensor:
        hidden = model.first(x)
        hidden.mul_(2)
        hidden = model.second(hidden)
        hidden.data.fill_(7)
        return hidden

    model, x = Calls(run), torch.randn(3, 4)
    with hookcore.trace(model) as seen:
        model(x)
    first = model.first(x)
    assert torch.equal(seen["first"].output, first)
    assert torch.equal(seen["second"].input, first * 2)
    assert torch.equal(seen["second"].output, model.second(first * 2))
    assert seen[""].output.eq(7).all()


def test_a_gradient_does_not_change_later_either(seed: int) -> None:
    model = mlp()
    x = torch.randn(3, 4, requires_grad=True)
    with hookcore.trace(model, "0") as seen:
        model(x).sum().backward()
    assert x.grad is not None
    expected = x.grad.clone()
    x.grad.zero_()
    assert torch.equal(seen["0"].input_grad, expected)


def test_an_input_with_other_uses_has_the_sum_of_their_gradients(seed: int) -> None:
    model = Calls(lambda model, x: model.first(x) + 3 * model.second(x))
    x = torch.randn(3, 4, requires_grad=True)
    with hookcore.trace(model, "first") as seen:
        model(x).sum().backward()
    assert torch.equal(seen["first"].input_grad, x.grad)  # type: ignore[arg-type]


def test_a_leaf_that_is_returned_keeps_the_gradient_of_each_call_separate(seed: int) -> None:
    model, x = nn.Linear(4, 1, bias=False), torch.randn(3, 4, requires_grad=True)
    with hookcore.trace(model) as seen:
        for factor in (1, 2, 5):
            (factor * model(x).sum()).backward()
            assert not x._backward_hooks
        with torch.no_grad():
            model(x)
        model(x).sum().backward()
    gradients = [call.input_grad for call in seen[""].calls if call.number != 3]
    for factor, gradient in zip((1, 2, 5, 1), gradients, strict=True):
        assert torch.equal(gradient, factor * model.weight.detach().expand(3, 4))
    with pytest.raises(TraceError, match="without gradients"):
        _ = seen[""].calls[3].input_grad


def test_the_newest_backward_pass_wins(seed: int) -> None:
    model = nn.Linear(4, 2)
    with hookcore.trace(model) as seen:
        out = model(torch.randn(3, 4))
        out.sum().backward(retain_graph=True)
        (2 * out.sum()).backward()
    assert seen[""].output_grad.eq(2).all()


def test_calls_are_in_order_and_the_last_one_represents_the_layer(seed: int) -> None:
    model = Calls(lambda model, x: model.first(model.first(model.first(x))))
    x = torch.randn(3, 4)
    with hookcore.trace(model, "first") as seen:
        model(x).sum().backward()
    calls, layer = seen["first"].calls, seen["first"]
    assert len(calls) == 3
    for before, after in itertools.pairwise(calls):
        assert torch.equal(before.output, after.input)
        assert torch.equal(before.output_grad, after.input_grad)
    assert torch.equal(layer.output, calls[2].output)
    assert torch.equal(layer.output_grad, calls[2].output_grad)
    assert torch.equal(layer.input, calls[2].input)
    assert torch.equal(layer.input_grad, calls[2].input_grad)


def test_keyword_arguments_are_seen_before_the_module_changes_them(seed: int) -> None:
    def run(model: Calls, x: Tensor, *, scale: Tensor, words: list[str]) -> Tensor:
        out = model.first(x) * scale
        scale.detach().zero_()
        words.append("changed")
        return out

    model, scale = Calls(run), torch.full((4,), 2.0, requires_grad=True)
    with hookcore.trace(model) as seen:
        out = model(torch.randn(3, 4), scale=scale, words=["as", "given"])
        out.detach()
    args, kwargs = seen[""].calls[0].inputs
    assert len(args) == 1
    assert kwargs["scale"].eq(2).all()
    assert kwargs["words"] == ["as", "given"]
    assert torch.equal(seen[""].input, args[0])


def test_gradients_of_all_arguments(seed: int) -> None:
    model = Calls(lambda model, x, mask, *, bias: model.first(x) * mask + bias)
    x, bias = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    with hookcore.trace(model, "is:root") as seen:
        model(x, torch.ones(3, 4, dtype=torch.int64), bias=bias).sum().backward()
    args, kwargs = seen[""].calls[0].input_grads
    assert torch.equal(args[0], x.grad)  # type: ignore[arg-type]
    assert args[1] is None
    assert torch.equal(kwargs["bias"], bias.grad)


# --- Nested values --------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Record:
    hidden: Tensor
    note: str = "kept"
    parts: tuple[Tensor, ...] = ()


class Output(collections.OrderedDict[str, Any]):
    """Has its items also as attributes, and a constructor and methods that must not run."""

    made = 0

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        Output.made += 1
        self.__dict__.update(items)

    def __getitem__(self, key: str) -> Any:
        raise AssertionError("the user's code ran")

    def __iter__(self) -> Any:
        raise AssertionError("the user's code ran")


NESTED: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], list[Tensor]]]] = {
    "tuple": (lambda x: (x * 2, x * 3), list),
    "list-of-dicts": (lambda x: [{"a": x * 2}, {"b": [x * 3]}], lambda out: [out[0]["a"], out[1]["b"][0]]),
    "named": (lambda x: Pair(x * 2, (x * 3,)), lambda out: [out.left, out.right[0]]),
    "dataclass": (lambda x: Record(x * 2, parts=(x * 3,)), lambda out: [out.hidden, out.parts[0]]),
    "model-output": (
        lambda x: Output(hidden=x * 2, states=(x * 3,)),
        lambda out: [dict.__getitem__(out, "hidden"), out.states[0]],
    ),
    "of-torch": (lambda x: torch.max(x * 2, dim=0), lambda out: [out.values]),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_nested_output_is_returned_in_its_own_classes(name: str, seed: int) -> None:
    make, tensors = NESTED[name]
    model, x = Returns(make), torch.randn(3, 4, requires_grad=True)
    with hookcore.trace(model) as seen:
        out = model(x)
        made = Output.made
        live = tensors(out)
        sum((number + 1) * part.sum() for number, part in enumerate(live)).backward()  # type: ignore[union-attr]
    assert type(seen[""].output) is type(out)
    assert Output.made == made
    for number, (mine, part) in enumerate(zip(tensors(seen[""].output), live, strict=True)):
        assert mine is not part
        assert torch.equal(mine, part)
        assert tensors(seen[""].output_grad)[number].eq(number + 1).all()
    if name == "dataclass":
        assert (seen[""].output.note, seen[""].output_grad.note) == ("kept", None)
    if name == "model-output":
        assert dict.__getitem__(seen[""].output, "hidden") is seen[""].output.hidden


def test_a_packed_sequence_is_returned_as_one(seed: int) -> None:
    model = nn.GRU(4, 5)
    packed = pack_padded_sequence(torch.randn(6, 2, 4), torch.tensor([6, 3]))
    with hookcore.trace(model) as seen:
        out, last = model(packed)
        (out.data.sum() + last.sum()).backward()
    assert torch.equal(seen[""].output[0].data, out.data)
    assert seen[""].output_grad[1].eq(1).all()
    assert torch.equal(seen[""].input.batch_sizes, packed.batch_sizes)


def test_a_value_that_is_not_a_tensor_is_kept_if_immutable_and_otherwise_named(seed: int) -> None:
    class Cache:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    model = Returns(lambda x: (x * 2, 3, "text", None, torch.float16, Cache(x)))
    with hookcore.trace(model) as seen:
        model(torch.ones(2))
    output = seen[""].output
    assert output[1:5] == (3, "text", None, torch.float16)
    assert output[5] == NotCopied("it is a Cache object")


def test_a_container_that_contains_itself_ends_the_search(seed: int) -> None:
    def make(x: Tensor) -> list[Any]:
        found: list[Any] = [x * 2]
        found.append(found)
        return found

    model = Returns(make)
    with hookcore.trace(model) as seen:
        model(torch.ones(2))
    assert seen[""].output[1] == NotCopied("it is a list object")


def test_a_tensor_that_is_returned_twice_is_copied_once(seed: int) -> None:
    def make(x: Tensor) -> tuple[Tensor, Tensor]:
        return (y := x * 2), y

    model = Returns(make)
    with hookcore.trace(model) as seen:
        left, right = model(torch.ones(2, requires_grad=True))
        (left + right).sum().backward()
    assert seen[""].output[0] is seen[""].output[1]
    assert seen[""].output_grad[0].eq(2).all()


# --- Which layers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("include", "exclude", "paths"),
    [
        (None, None, ["", "0", "1", "2", "3", "4"]),
        ("type:Linear", None, ["0", "2", "4"]),
        (nn.Linear, "4", ["0", "2"]),
        (["re:[01]", "is:root"], None, ["", "0", "1"]),
        ("is:leaf", nn.Linear, ["1", "3"]),
    ],
)
def test_layers_are_selected_by_the_patterns_of_watch(include: Any, exclude: Any, paths: list[str]) -> None:
    model = mlp()
    with hookcore.trace(model, include, exclude) as seen:
        model(torch.randn(3, 4))
    with watch(model, include=include, exclude=exclude) as watcher:
        model(torch.randn(3, 4)).sum().backward()
        watcher.step()
        assert watcher.flush()
        assert [each.path for each in watcher.coverage() if each.captured] == paths
    assert list(seen) == paths
    assert len(seen) == len(paths)
    assert all(layer.output is not None for layer in map(seen.__getitem__, seen))


def test_a_shared_layer_is_the_same_under_each_of_its_names(seed: int) -> None:
    model = mlp()
    model.add_module("again", model[0])
    with hookcore.trace(model, ["0", "again"]) as seen:
        model[0](torch.randn(3, 4))
    assert seen["0"] is seen["again"]
    assert len(seen["again"].calls) == 1


def test_a_pattern_without_a_match_gets_the_nearest_name_as_a_hint() -> None:
    with pytest.raises(hookcore.PatternError, match=r"'laier1' matches no module. Did you mean 'layer1'"):
        hookcore.trace(nn.ModuleDict({"layer1": nn.Linear(1, 1)}), "laier1").__enter__()


def test_an_unknown_layer_gets_the_nearest_name_as_a_hint() -> None:
    model = nn.ModuleDict({"layer1": nn.Linear(1, 1), "other": nn.ReLU()})
    with hookcore.trace(model, "layer1") as seen:
        with pytest.raises(TraceError, match=r"no layer 'laier1'. Did you mean 'layer1'\?"):
            _ = seen["laier1"]
        with pytest.raises(TraceError, match=r"no layer 'xyz'. Traced: 'layer1'."):
            _ = seen["xyz"]
        with pytest.raises(TraceError, match=r"'other' is not traced: the patterns given to trace\(\) leave it out"):
            _ = seen["other"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"model": "resnet"}, r"trace\(\) was given a str; it takes a torch.nn.Module"),
        ({"kinds": "outputs"}, r"kinds='outputs' is invalid.* Did you mean 'output'\?"),
        ({"kinds": ()}, "Name at least one"),
        ({"include": 3}, "include=3 is invalid"),
    ],
)
def test_the_error_for_a_wrong_argument_says_what_is_allowed(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(hookcore.ArgumentError, match=told), hookcore.trace(**{"model": mlp(), **arguments}):
        pass


def test_environment_variables_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_INCLUDE", "4")
    monkeypatch.setenv("HOOKCORE_KINDS", "output")
    with hookcore.trace(mlp()) as seen:
        assert len(seen) == 6


# --- Missing values -------------------------------------------------------------------------------------------------


def test_a_layer_that_did_not_run_says_so(seed: int) -> None:
    model = mlp()
    with hookcore.trace(model, "0") as seen:
        with pytest.raises(TraceError, match="'0' has not run yet"):
            _ = seen["0"].output
        model[0].forward(torch.randn(3, 4))
    with pytest.raises(TraceError, match=r"'0' did not run inside the `with`.*\.forward\(\) runs no hooks"):
        _ = seen["0"].output_grad
    model(torch.randn(3, 4))
    assert seen["0"].calls == ()


def test_a_missing_gradient_says_why(seed: int) -> None:
    def run(model: Calls, x: Tensor) -> Tensor:
        return model.second(model.first(x).detach())

    model, x = Calls(run), torch.randn(3, 4)
    with hookcore.trace(model) as seen:
        model(x)
        with pytest.raises(TraceError, match=r"output_grad of call 0 of 'second' .* no backward pass has reached"):
            _ = seen["second"].output_grad
        with pytest.raises(TraceError, match="does not require grad: it was detached"):
            _ = seen["second"].input_grad
        model(x).sum().backward()
        with pytest.raises(TraceError, match="no backward pass has reached it yet"):
            _ = seen["first"].output_grad
        with torch.no_grad():
            model(x)
        with pytest.raises(TraceError, match=r"without gradients \(torch.no_grad"):
            _ = seen["second"].output_grad
    with pytest.raises(TraceError, match=r"no backward pass reached it. Call loss.backward\(\) inside the `with`"):
        _ = seen["second"].calls[0].output_grad
    assert seen["second"].calls[1].output_grad.eq(1).all()


def test_integers_have_no_gradient(seed: int) -> None:
    model = nn.Embedding(5, 3)
    with hookcore.trace(model) as seen:
        model(torch.tensor([1, 2])).sum().backward()
    assert seen[""].output_grad.eq(1).all()
    with pytest.raises(TraceError, match=r"values of type torch.int64 have no gradient"):
        _ = seen[""].input_grad


def test_a_call_that_raised_has_its_input_and_no_output(seed: int) -> None:
    model = mlp()
    with pytest.raises(RuntimeError, match="shapes"), hookcore.trace(model) as seen:
        model(torch.randn(3, 5))
    assert seen["0"].input.shape == (3, 5)
    with pytest.raises(TraceError, match="the output of call 0 of '0' is not available: the call raised"):
        _ = seen["0"].output
    with pytest.raises(TraceError, match="did not run"):
        _ = seen["1"].output
    assert hooks.inventory(model) == ()


def test_calls_that_raise_inside_others_are_distinguished(seed: int) -> None:
    def run(model: Calls, depth: int) -> int:
        if depth == 2:
            raise ValueError
        try:
            model(depth + 1)
        except ValueError:
            return -depth
        return depth

    model = Calls(run)
    with hookcore.trace(model, "is:root") as seen:
        assert model(0) == 0
    assert [call.input for call in seen[""].calls] == [0, 1, 2]
    assert [call.output for call in seen[""].calls[:2]] == [0, -1]


def test_a_kind_that_was_left_out_says_so(seed: int) -> None:
    model = mlp()
    with hookcore.trace(model, "0", kinds="output_grad") as seen:
        model(torch.randn(3, 4)).sum().backward()
    assert seen["0"].output_grad.shape == (3, 8)
    with pytest.raises(TraceError, match="output of call 0 of '0' was not traced: add 'output' to kinds"):
        _ = seen["0"].output
    with pytest.raises(TraceError, match="add 'input_grad' to kinds"):
        _ = seen["0"].input_grad


def test_a_call_without_arguments_has_no_input() -> None:
    model = Calls(lambda model: 1)
    with hookcore.trace(model, "is:root") as seen:
        model()
    assert seen[""].calls[0].inputs == ((), {})
    with pytest.raises(TraceError, match="the call had no arguments"):
        _ = seen[""].input


def test_a_tensor_that_cannot_be_copied_never_stops_the_training(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    def no_memory(tensor: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("none left")

    model = mlp()
    monkeypatch.setattr(Tensor, "clone", no_memory)
    with hookcore.trace(model) as seen:
        model(torch.randn(3, 4)).sum().backward()
    with pytest.raises(TraceError, match=r"it could not be copied .*none left"):
        _ = seen["0"].output
    with pytest.raises(TraceError, match="none left"):
        _ = seen["0"].output_grad
    assert model[0].weight.grad is not None


# --- Harmless -------------------------------------------------------------------------------------------------------


def test_no_hook_remains_after_an_exception(seed: int) -> None:
    model, x = mlp(), torch.randn(3, 4, requires_grad=True)
    outputs = []
    with contextlib.suppress(KeyError), hookcore.trace(model):
        outputs.append(model(x))
        raise KeyError
    assert hooks.inventory(model, tensors=[x, *outputs]) == ()
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_a_graph_that_outlives_the_trace_does_not_refer_to_it(seed: int) -> None:
    model = mlp()
    with hookcore.trace(model) as seen:
        out = model(torch.randn(3, 4))
    gone = weakref.ref(seen)
    copied = weakref.ref(seen["2"].output)
    del seen
    gc.collect()
    assert gone() is None
    assert copied() is None
    out.sum().backward()


def test_tensors_that_the_user_drops_are_freed_during_the_trace(seed: int) -> None:
    model = mlp()
    gc.collect()
    gc.disable()
    try:
        with hookcore.trace(model) as seen:
            x = torch.randn(3, 4, requires_grad=True)
            out = model(x)
            node: Any = out.grad_fn
            freed = [weakref.ref(x), weakref.ref(out)]
            node.metadata["canary"] = canary = nn.Identity()
            freed.append(weakref.ref(canary))
            out.sum().backward()
            del x, out, node, canary
            assert [each() for each in freed] == [None, None, None]
            assert seen["0"].input.shape == (3, 4)
    finally:
        gc.enable()


def test_the_model_is_freed_while_its_trace_is_still_in_use(seed: int) -> None:
    model = mlp()
    with hookcore.trace(model) as seen:
        model(torch.randn(3, 4))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert seen["4"].output.shape == (3, 2)


def _by_pickle(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def _by_save(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    assert b"hookcore" not in file.getvalue()
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copier", [copy.deepcopy, _by_pickle, _by_save])
def test_a_copy_of_a_traced_model_is_not_traced(copier: Callable[[Any], Any], seed: int) -> None:
    model, x = mlp(), torch.randn(3, 4)
    with hookcore.trace(model) as seen:
        twin = copier(model)
        assert torch.equal(twin(x), model(x))
    assert len(seen["0"].calls) == 1
    assert len(twin(x)) == 3


def test_the_users_hooks_stay_and_their_results_are_shown(seed: int) -> None:
    model, x = mlp(), torch.randn(3, 4)
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    model[0].register_forward_hook(lambda module, args, output: output + 5)
    before = [dict(model[0]._forward_hooks), dict(model[0]._forward_pre_hooks)]
    with hookcore.trace(model, "0") as seen:
        model(x)
    assert seen["0"].input.eq(0).all()
    assert torch.equal(seen["0"].output, model[0].bias.expand(3, 8) + 5)
    assert [dict(model[0]._forward_hooks), dict(model[0]._forward_pre_hooks)] == before


def test_traces_can_overlap(seed: int) -> None:
    model, x = mlp(), torch.randn(3, 4)
    with hookcore.trace(model, "0") as outer:
        model(x)
        with hookcore.trace(model, "0") as inner:
            model(x).sum().backward()
        model(x)
    assert (len(outer["0"].calls), len(inner["0"].calls)) == (3, 1)
    assert torch.equal(outer["0"].calls[1].output_grad, inner["0"].output_grad)


def test_a_trace_that_starts_or_ends_inside_a_call_does_not_affect_others(seed: int) -> None:
    def run(model: Calls, x: Tensor) -> Tensor:
        with hookcore.trace(model) as seen:
            out: Tensor = model.first(x)
        seen_inside.append(seen)
        return out

    seen_inside: list[Any] = []
    model = Calls(run)
    with hookcore.trace(model) as seen:
        model(torch.randn(3, 4))
    assert len(seen_inside[0]["first"].calls) == len(seen["first"].calls) == 1
    assert seen_inside[0][""].calls == ()
    started = hookcore.trace(model)
    left = Calls(lambda model, x: started.__exit__(None, None, None) or model.first(x))
    started = hookcore.trace(left)
    seen = started.__enter__()
    left(torch.randn(3, 4))
    with pytest.raises(TraceError, match="the call raised an exception, or is still running"):
        _ = seen[""].output
    assert hooks.inventory(left) == ()


def test_a_trace_and_a_watcher_see_the_same(seed: int) -> None:
    model, x = mlp(inplace=True), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    kinds = ("output", "output_grad", "input", "input_grad")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    with watch(model, kinds=kinds) as watcher:
        step()
        with hookcore.trace(model) as seen:
            step()
        step()
        assert watcher.flush()
        assert watcher.errors == []
        for kind in kinds:
            taps = watcher.store.taps(kind=kind).taps
            assert {tap.module for tap in taps} >= {"1", "2", "3", "4"}
            for tap in taps:
                norm = getattr(seen[tap.module], kind).double().norm().item()
                means = watcher.store.series(tap, "norm").mean
                # The watcher doesn't know its hooks yet, and once misses the inputs of the step's first modules.
                assert len(means) == 3 or (kind.startswith("input") and tap.module in ("", "0"))
                assert means == pytest.approx([norm] * len(means), rel=1e-5), tap


def test_threads_can_share_a_model(seed: int) -> None:
    model, inputs = mlp(), [torch.full((1, 4), float(number)) for number in range(8)]

    def run(x: Tensor) -> None:
        for _ in range(20):
            model(x).sum().backward()

    with hookcore.trace(model) as seen:
        threads = [threading.Thread(target=run, args=(x,)) for x in inputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    calls = seen["0"].calls
    assert [call.number for call in calls] == list(range(160))
    for call in calls:
        assert torch.equal(call.output, model[0](call.input))
        assert call.output_grad.shape == (1, 8)


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_recompute_of_a_checkpoint_is_not_a_second_call(reentrant: bool, seed: int) -> None:
    def run(model: Calls, x: Tensor, plain: bool = False) -> Tensor:
        def segment(x: Tensor) -> Tensor:
            return model.second(torch.tanh(model.second(x)))

        hidden = model.first(x)
        return segment(hidden) if plain else checkpoint(segment, hidden, use_reentrant=reentrant)

    model, x = Calls(run), torch.randn(3, 4)
    with hookcore.trace(model) as seen:
        model(x).square().sum().backward()
    with hookcore.trace(model) as plain:
        model(x, plain=True).square().sum().backward()
    for path, count in {"": 1, "first": 1, "second": 2}.items():
        assert len(seen[path].calls) == len(plain[path].calls) == count
        for mine, expected in zip(seen[path].calls, plain[path].calls, strict=True):
            assert torch.equal(mine.output, expected.output)
            assert torch.equal(mine.output_grad, expected.output_grad)
            if path:
                assert torch.equal(mine.input, expected.input)
    for mine, expected in zip(seen["second"].calls, plain["second"].calls, strict=True):
        assert torch.equal(mine.input_grad, expected.input_grad)


def test_a_checkpoint_without_a_backward_says_so(seed: int) -> None:
    model = Calls(lambda model, x: checkpoint(model.first, x, use_reentrant=True))
    with hookcore.trace(model) as seen:
        model(torch.randn(3, 4, requires_grad=True))
    with pytest.raises(TraceError, match="ran in a checkpoint, and no backward pass has repeated it"):
        _ = seen["first"].output_grad


def test_values_captured_in_inference_mode_can_be_trained_on(seed: int) -> None:
    model = mlp()
    with hookcore.trace(model) as seen, torch.inference_mode():
        model(torch.randn(3, 4))
    nn.Linear(2, 1)(seen["4"].output).sum().backward()


def test_values_under_functional_transforms_are_refused_by_name(seed: int) -> None:
    model = mlp()
    with hookcore.trace(model) as seen:
        result = torch.func.vmap(model)(torch.randn(3, 4))
    assert torch.is_tensor(result)
    with pytest.raises(TraceError, match=r"inside torch.func"):
        _ = seen["0"].output


# --- Compiled -------------------------------------------------------------------------------------------------------


def test_a_compiled_model_shows_its_inputs_and_outputs_and_says_what_is_hidden(seed: int) -> None:
    model, x = mlp(), torch.randn(3, 4)
    compiled = torch.compile(model, backend="eager")
    expected = compiled(x)
    with hookcore.trace(compiled) as seen:
        out = compiled(x)
        out.sum().backward()
    assert torch.equal(out, expected)
    assert torch.equal(seen[""].output, out)
    assert seen[""].output_grad.eq(1).all()
    with pytest.raises(TraceError, match="'0' can't be traced: it is inside a compiled region"):
        _ = seen["0"].output
    with pytest.raises(TraceError, match="inside a compiled region"), hookcore.trace(compiled, "0"):
        pass
    with hookcore.trace(model) as seen:
        model(x)
    assert seen["0"].output.shape == (3, 8)


@pytest.mark.filterwarnings("ignore")  # torch reads .grad of the graph's inputs
def test_a_compiled_part_is_captured_at_its_boundary(seed: int) -> None:
    model = mlp()
    model[2] = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend="eager")
    with hookcore.trace(model) as seen:
        model(torch.randn(3, 4)).sum().backward()
    assert seen["2"].output_grad.shape == seen["3"].input.shape == (3, 8)
    with pytest.raises(TraceError, match="compiled region"):
        _ = seen["2.0"].output


def test_layers_in_a_compiled_function_are_named(seed: int) -> None:
    model, x = mlp(), torch.randn(3, 4)

    @torch.compile(backend="eager")
    def my_step(x: Tensor) -> Tensor:
        found: Tensor = model(x)
        return found

    expected = my_step(x)
    torch._dynamo.utils.counters.clear()
    with hookcore.trace(model) as seen:
        assert torch.equal(my_step(x), expected)
    assert not torch._dynamo.utils.counters["graph_break"]
    with pytest.raises(TraceError, match=r"inside a compiled function are not seen \(.*my_step, test_tracing.py"):
        _ = seen["0"].output


def test_a_function_compiled_under_a_trace_has_none_of_its_hooks_in_its_graph(seed: int) -> None:
    model, x, graphs = mlp(), torch.randn(3, 4), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def step(x: Tensor) -> Tensor:
        found: Tensor = model(x)
        return found

    torch.compile(step, backend=backend)(x)
    torch._dynamo.reset()
    with hookcore.trace(model):
        torch.compile(step, backend=backend)(x)
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_error_for_a_scripted_module_says_that_it_accepts_no_hook(seed: int) -> None:
    model = mlp()
    model[3] = torch.jit.script(nn.Tanh())
    with hookcore.trace(model) as seen:
        model(torch.randn(3, 4))
    with pytest.raises(TraceError, match="'3' can't be traced: torch allows no hook on a RecursiveScriptModule"):
        _ = seen["3"].output


def test_importing_hookcore_does_not_load_tracing() -> None:
    code = "import sys, hookcore; assert not {'torch', 'hookcore.hooks.tracing'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
