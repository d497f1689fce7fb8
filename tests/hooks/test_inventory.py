"""The inventory of all hooks, no matter who registered them."""

# Torch types an attribute of a module as Tensor or Module, and leaves `backward` and `register_hook` untyped.
# mypy: disable-error-code="no-untyped-call,union-attr,operator,arg-type,index,attr-defined"
# mypy: disable-error-code="var-annotated,comparison-overlap,list-item"
from __future__ import annotations

import functools
import warnings
from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as torch_modules

from hookcore import hooks
from hookcore.errors import ArgumentError
from hookcore.hooks import internals
from tests.leaks import nothing, nothing_left_behind  # noqa: F401

THIS = __name__


def line_of(function: Any) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno}"


class Hostile(nn.Module):
    """Raises at every attribute access once its constructor has ended, and when its parameters are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 2)
        self.finished = True

    def __getattribute__(self, name: str) -> Any:
        if name not in ("__class__", "__dict__") and "finished" in object.__getattribute__(self, "__dict__"):
            raise AssertionError(f"touched {name}")
        return super().__getattribute__(name)


class HostileHook:
    """A callable object that raises at every access except a call."""

    def __call__(self, *_args: Any) -> None: ...

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError(f"touched {name}")


class Bound:
    def method(self, *_args: Any) -> None: ...

    def __call__(self, *_args: Any) -> None: ...


def test_every_table_of_a_module_is_listed_with_its_owner_and_the_place_of_the_function() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh()))
    leaf = model[1][0]
    leaf.register_forward_pre_hook(nothing, with_kwargs=True)
    leaf.register_forward_hook(nothing, with_kwargs=True, always_call=True)
    leaf.register_full_backward_pre_hook(nothing)
    leaf.register_full_backward_hook(nothing)
    leaf.register_state_dict_pre_hook(nothing)
    leaf.register_state_dict_post_hook(nothing)
    leaf.register_load_state_dict_pre_hook(nothing)
    leaf.register_load_state_dict_post_hook(nothing)
    records = hooks.inventory(model)
    assert [record.point for record in records] == [
        "forward pre",
        "forward",
        "full backward pre",
        "full backward",
        "state dict pre",
        "state dict",
        "load state dict pre",
        "load state dict",
    ]
    assert {(record.scope, record.owner, record.ours, record.legacy) for record in records} == {
        ("module", "1.0", False, False)
    }
    assert {record.function for record in records} == {"tests.leaks.nothing"}
    assert {record.where for record in records} == {f"{nothing.__code__.co_filename}:{nothing.__code__.co_firstlineno}"}
    assert records[0].options == ("with_kwargs",)
    assert records[1].options == ("with_kwargs", "always_call")
    assert records[0].number == next(iter(leaf._forward_pre_hooks))


def test_hookcores_hooks_are_distinguished_from_others_even_after_the_handle_is_dropped() -> None:
    model = nn.Linear(2, 2)
    model.register_forward_hook(nothing)
    hooks.on_forward(model, nothing)
    hooks.on_forward(model, nothing, with_kwargs=True)
    removed = hooks.on_forward(model, nothing)
    removed.remove()
    assert [record.ours for record in hooks.inventory(model)] == [False, True, True]
    assert {record.function for record in hooks.inventory(model)} == {"tests.leaks.nothing"}


def test_parameters_and_tensors_are_listed_and_shared_ones_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[0].weight.register_hook(nothing)
    hooks.on_gradient_accumulated(model[0].weight, nothing)
    computed = model[0].bias * 2
    hooks.on_gradient(computed, nothing)
    records = hooks.inventory(model, tensors=[torch.ones(1), computed])
    assert [(record.scope, record.owner, record.point, record.ours) for record in records] == [
        ("parameter", "0.weight", "gradient", False),
        ("parameter", "0.weight", "gradient accumulated", True),
        ("tensor", "1", "gradient", True),
    ]
    assert hooks.inventory(tensors=computed) == (
        hooks.HookRecord("tensor", "0", "gradient", records[2].function, records[2].where, True, records[2].number),
    )


def test_the_functions_inside_multi_gradient_and_backward_end_hooks_are_named() -> None:
    first, second = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    every = [
        hooks.on_gradients([first, second], nothing),
        hooks.on_gradients([first, second], nothing, mode="any"),
        hooks.on_backward_end(nothing, of=first),
    ]
    records = hooks.inventory(tensors=[first])
    assert [record.point for record in records] == ["gradient", "gradient", "backward end"]
    assert {record.function for record in records} == {"tests.leaks.nothing"}
    for handle in every:
        handle.remove()


def test_a_legacy_hook_is_marked_with_a_correct_reason() -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    shapes: list[Any] = []
    model[0].register_backward_hook(lambda _m, grad_input, _g: shapes.extend(tuple(g.shape) for g in grad_input))
    (record,) = hooks.inventory(model)
    assert record.legacy
    assert (record.point, record.owner) == ("legacy backward", "0")
    assert "last autograd node" in record.warning
    assert "bias, input and transposed weight" in record.warning
    with pytest.warns(FutureWarning, match=r"missing some grad_input"):
        model(torch.ones(5, 2, requires_grad=True)).sum().backward()
    assert shapes == [(3,), (5, 2), (2, 3)]


def test_a_global_legacy_hook_is_marked_too() -> None:
    legacy = torch_modules.register_module_backward_hook(nothing)
    (record,) = hooks.inventory()
    assert (record.scope, record.point, record.legacy) == ("process", "legacy backward", True)
    legacy.remove()
    torch_modules._global_is_full_backward_hook = None


def test_the_hooks_on_the_process_are_listed_for_every_model() -> None:
    registered = [
        hooks.on_forward_pre(None, nothing),
        hooks.on_forward(None, nothing, always_call=True),
        hooks.on_full_backward_pre(None, nothing),
        hooks.on_full_backward(None, nothing),
        hooks.on_module_registration(nothing),
        hooks.on_parameter_registration(nothing),
        hooks.on_buffer_registration(nothing),
        hooks.on_optimizer_step_pre(None, nothing),
        hooks.on_optimizer_step(None, nothing),
    ]
    foreign = torch_modules.register_module_forward_hook(nothing)
    records = hooks.inventory(nn.Linear(1, 1))
    assert sorted(record.point for record in records) == sorted([handle.point for handle in registered] + ["forward"])
    assert [record.ours for record in records].count(False) == 1
    assert {record.scope for record in records} == {"process"}
    foreign.remove()
    for handle in registered:
        handle.remove()
    assert hooks.inventory() == ()


def test_the_hooks_of_optimizers_are_listed() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    hooks.on_optimizer_step(optimizer, nothing)
    optimizer.register_state_dict_pre_hook(nothing)
    records = hooks.inventory(optimizers=optimizer)
    assert [(record.scope, record.owner, record.point, record.ours) for record in records] == [
        ("optimizer", "0", "step", True),
        ("optimizer", "0", "state dict pre", False),
    ]


@pytest.mark.skipif(internals.top_saved_pair is None, reason="this torch can't say which pair is on top")
def test_the_pair_in_force_in_this_thread_is_listed() -> None:
    with saved_tensors_hooks(nothing, nothing):
        assert [(record.scope, record.point, record.ours) for record in hooks.inventory()] == [
            ("thread", "saved tensors pack", False),
            ("thread", "saved tensors unpack", False),
        ]
    with hooks.on_saved_tensors(nothing, nothing):
        assert [record.ours for record in hooks.inventory()] == [True, True]


def find_origin(function: Any) -> tuple[str, str]:
    """Return the name and the line that the inventory shows for a hook."""
    model = nn.Linear(1, 1)
    model.register_forward_hook(function)
    (record,) = hooks.inventory(model)
    return record.function, record.where


def test_functions_are_found_inside_their_wrappers() -> None:
    @functools.wraps(nothing)
    def wrapped(*args: Any) -> None:
        nothing(*args)

    bound = Bound()
    assert find_origin(nothing) == ("tests.leaks.nothing", find_origin(wrapped)[1])
    assert find_origin(functools.partial(functools.partial(nothing, 1), 2)) == find_origin(nothing)
    assert find_origin(bound.method) == (f"{THIS}.Bound.method", line_of(Bound.method))
    assert find_origin(functools.partial(bound.method)) == find_origin(bound.method)
    assert find_origin(bound) == (f"{THIS}.Bound", line_of(Bound.__call__))
    assert find_origin(print) == ("builtins.print", "")
    assert find_origin(Bound) == (f"{THIS}.Bound", "")


def test_a_function_that_wraps_itself_ends_the_search() -> None:
    def loop(*_args: Any) -> None: ...

    loop.__wrapped__ = loop
    assert find_origin(loop)[1] == line_of(loop)


def test_no_code_of_a_model_or_of_a_hook_is_run() -> None:
    model = Hostile()
    inside = object.__getattribute__(model, "__dict__")["_modules"]["inside"]
    inside.register_forward_hook(HostileHook())
    inside.weight.register_hook(functools.partial(HostileHook()))
    records = hooks.inventory(model)
    assert [(record.owner, record.function) for record in records] == [
        ("inside", f"{THIS}.HostileHook"),
        ("inside.weight", f"{THIS}.HostileHook"),
    ]
    assert {record.where for record in records} == {line_of(HostileHook.__call__)}


def test_a_computed_weight_is_not_computed_for_the_list() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.nn.utils.spectral_norm(nn.Linear(3, 3))
    before = model.weight_u.clone()
    assert [record.point for record in hooks.inventory(model)] == ["forward pre", "state dict", "load state dict pre"]
    assert torch.equal(model.weight_u, before)


def test_a_record_is_frozen() -> None:
    hooks_on = nn.Linear(1, 1)
    hooks.on_forward(hooks_on, nothing)
    with pytest.raises(AttributeError):
        hooks.inventory(hooks_on)[0].ours = False  # type: ignore[misc]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Got 'model' as the model; expected a torch.nn.Module"):
        hooks.inventory("model")
    with pytest.raises(ArgumentError, match=r"Got 1; expected objects of type Tensor"):
        hooks.inventory(tensors=[1])
    with pytest.raises(ArgumentError, match=r"Got None; expected objects of type Optimizer"):
        hooks.inventory(optimizers=[None])
