"""Hooks around the forward and backward passes of modules."""

# Torch types an attribute of a module as Tensor or Module, and leaves `backward` and `register_hook` untyped.
# mypy: disable-error-code="no-untyped-call,union-attr,operator,arg-type,index,attr-defined"
# mypy: disable-error-code="var-annotated,comparison-overlap,list-item"
from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from hookcore import hooks
from hookcore.errors import ArgumentError, HookError
from tests.leaks import nothing, nothing_left_behind  # noqa: F401


class Scale(nn.Module):
    def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        if factor < 0:
            raise ValueError("negative")
        return x * factor


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


X = torch.linspace(-1, 1, 15).reshape(5, 3)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_forward_hook_gets_torchs_own_arguments(model: nn.Sequential, everywhere: bool) -> None:
    seen: list[tuple[Any, ...]] = []
    with hooks.on_forward(None if everywhere else model[2], lambda *given: seen.append(given)):
        output = model(X)
    wanted = [model[0], model[1], model[2], model] if everywhere else [model[2]]
    assert [given[0] for given in seen] == wanted
    last = seen[-2] if everywhere else seen[-1]
    assert torch.equal(last[1][0], model[1](model[0](X)))
    assert last[2] is output


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_result_of_a_forward_hook_replaces_the_output(everywhere: bool) -> None:
    module = Scale()
    target = None if everywhere else module
    with hooks.on_forward(target, lambda _m, _a, out: out + 1), hooks.on_forward(target, lambda _m, _a, out: out * 10):
        assert module(torch.tensor(2.0)) == 30
    assert module(torch.tensor(2.0)) == 2


@pytest.mark.parametrize("everywhere", [False, True])
def test_chained_pre_hooks_each_see_the_result_of_the_previous_one(everywhere: bool) -> None:
    module, seen = Scale(), []
    target = None if everywhere else module

    def add(_module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        seen.append(float(args[0]))
        return (args[0] + 1,)

    def double(_module: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
        seen.append(float(args[0]))
        return args[0] * 2

    with hooks.on_forward_pre(target, add), hooks.on_forward_pre(target, double):
        assert module(torch.tensor(3.0)) == 8
    assert seen == [3, 4]


def test_hooks_fire_in_order_of_registration_and_a_prepended_one_first() -> None:
    module, order = Scale(), []
    for name in ("a", "b"):
        hooks.on_forward(module, lambda *_, name=name: order.append(name))
        hooks.on_forward_pre(module, lambda *_, name=name: order.append(f"pre {name}"))
    hooks.on_forward(module, lambda *_: order.append("first"), prepend=True)
    hooks.on_forward_pre(module, lambda *_: order.append("pre first"), prepend=True)
    module(X)
    assert order == ["pre first", "pre a", "pre b", "first", "a", "b"]


def test_keyword_inputs_reach_the_hooks_that_request_them_and_can_be_replaced() -> None:
    module, seen = Scale(), []
    pre = hooks.on_forward_pre(
        module, lambda _m, args, kwargs: (args, {"factor": kwargs["factor"] + 1}), with_kwargs=True
    )
    after = hooks.on_forward(module, lambda _m, _a, kwargs, _o: seen.append(kwargs), with_kwargs=True)
    everywhere = hooks.on_forward(None, lambda _m, _a, kwargs, out: out + kwargs["factor"], with_kwargs=True)
    with pre, after, everywhere:
        assert module(torch.tensor(2.0), factor=4.0) == 15
    assert seen == [{"factor": 5.0}]


@pytest.mark.parametrize("everywhere", [False, True])
def test_always_call_also_runs_when_the_forward_raised(everywhere: bool) -> None:
    module, seen = Scale(), []
    target = None if everywhere else module
    plain = hooks.on_forward(target, lambda *_: seen.append("plain"))
    always = hooks.on_forward(target, lambda _m, _a, out: seen.append(out), always_call=True)
    keywords = hooks.on_forward(
        target, lambda _m, _a, kw, out: seen.append((kw, out)), with_kwargs=True, always_call=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with plain, always, keywords, pytest.raises(ValueError, match=r"negative"):
            module(torch.tensor(2.0), factor=-1.0)
    # On this path, torch doesn't pass keyword inputs to hooks on the process.
    assert seen == [None, ({} if everywhere else {"factor": -1.0}, None)]


@pytest.mark.parametrize("everywhere", [False, True])
def test_backward_hooks_see_the_gradients_that_autograd_computes(model: nn.Sequential, everywhere: bool) -> None:
    x = X.clone().requires_grad_()
    hidden = model[0](x)
    activated = model[1](hidden)
    truth = torch.autograd.grad(model[2](activated).square().sum(), [hidden, activated])
    seen: dict[str, Any] = {}

    def before(module: nn.Module, grad_output: Any) -> None:
        if module is model[1]:
            seen["before"] = grad_output

    def after(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        if module is model[1]:
            seen["after"] = (grad_input, grad_output)

    target = None if everywhere else model[1]
    with hooks.on_full_backward_pre(target, before), hooks.on_full_backward(target, after):
        model(x).square().sum().backward()
    assert torch.equal(seen["before"][0], truth[1])
    assert torch.equal(seen["after"][0][0], truth[0])
    assert torch.equal(seen["after"][1][0], truth[1])


@pytest.mark.parametrize("everywhere", [False, True])
def test_backward_hooks_replace_gradients_in_a_chain(everywhere: bool) -> None:
    module, x = Scale(), torch.tensor(2.0, requires_grad=True)
    target = None if everywhere else module
    order: list[str] = []

    def add(_module: nn.Module, grad_output: Any) -> Any:
        order.append("pre")
        return (grad_output[0] + 1,)

    def double(_module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        order.append(f"after {float(grad_output[0])}")
        return (grad_input[0] * 2,)

    with hooks.on_full_backward_pre(target, add), hooks.on_full_backward(target, double):
        (gradient,) = torch.autograd.grad(module(x, factor=3.0), x)
    assert gradient == (1 + 1) * 3 * 2
    assert order == ["pre", "after 2.0"]


def test_full_backward_hooks_fire_in_order_and_prepended_first() -> None:
    module, order = Scale(), []
    for name in ("a", "b"):
        hooks.on_full_backward_pre(module, lambda *_, name=name: order.append(f"pre {name}"))
        hooks.on_full_backward(module, lambda *_, name=name: order.append(name))
    hooks.on_full_backward_pre(module, lambda *_: order.append("pre first"), prepend=True)
    hooks.on_full_backward(module, lambda *_: order.append("first"), prepend=True)
    module(torch.ones(2, requires_grad=True)).sum().backward()
    assert order == ["pre first", "pre a", "pre b", "first", "a", "b"]


def test_the_flag_of_a_module_is_cleared_with_its_last_full_backward_hook() -> None:
    module = Scale()
    first, second = hooks.on_full_backward(module, nothing), hooks.on_full_backward(module, nothing)
    first.remove()
    assert module._is_full_backward_hook is True
    second.remove()
    assert module._is_full_backward_hook is None
    module.register_backward_hook(nothing)


def test_the_function_itself_is_registered_without_a_wrapper() -> None:
    module = Scale()
    with hooks.on_forward(None, nothing), hooks.on_forward_pre(None, nothing):
        assert next(reversed(torch_modules._global_forward_hooks.values())) is nothing
        assert next(reversed(torch_modules._global_forward_pre_hooks.values())) is nothing
    hooks.on_forward(module, nothing)
    assert list(module._forward_hooks.values()) == [nothing]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_can_remove_itself_while_it_runs(everywhere: bool) -> None:
    module, calls = Scale(), []
    target = None if everywhere else module

    def once(*_args: Any) -> None:
        calls.append("once")
        handle.remove()

    handle = hooks.on_forward(target, once)
    with hooks.on_forward(target, lambda *_: calls.append("other")):
        module(X)
        module(X)
    assert calls == ["once", "other", "other"]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_can_remove_itself_after_an_exception_without_hiding_it(everywhere: bool) -> None:
    module, calls = Scale(), []
    target = None if everywhere else module

    def once(*_args: Any) -> None:
        calls.append("once")
        handle.remove()

    handle = hooks.on_forward(target, once, always_call=True)
    with hooks.on_forward(target, lambda *_: calls.append("other"), always_call=True):
        for _ in range(2):
            with pytest.raises(ValueError, match=r"negative"):
                module(X, factor=-1.0)
    assert calls == ["once", "other", "other"]
    assert not handle.active


def test_a_hook_with_keyword_inputs_that_an_earlier_hook_removes_is_skipped() -> None:
    module, calls = Scale(), []
    hooks.on_forward(module, lambda *_: late.remove())
    late = hooks.on_forward(module, lambda *_: calls.append(1), with_kwargs=True)
    hooks.on_forward_pre(module, lambda *_: early.remove())
    early = hooks.on_forward_pre(module, lambda *_: calls.append(2), with_kwargs=True)
    assert module(torch.tensor(1.0), factor=2.0) == 2
    assert calls == []


def test_registration_hooks_see_and_replace_new_members_of_a_module() -> None:
    seen: list[tuple[str, str]] = []

    def saw(_module: nn.Module, name: str, value: Any) -> Any:
        seen.append((name, type(value).__name__))
        return nn.Tanh() if name == "act" else None

    with hooks.on_module_registration(saw), hooks.on_parameter_registration(saw), hooks.on_buffer_registration(saw):
        module = nn.Module()
        module.act = nn.ReLU()
        module.weight = nn.Parameter(torch.ones(1))
        module.register_buffer("mean", torch.zeros(1))
    assert seen == [("act", "ReLU"), ("weight", "Parameter"), ("mean", "Tensor")]
    assert isinstance(module.act, nn.Tanh)


def test_a_registration_hook_can_remove_itself() -> None:
    names: list[str] = []

    def once(_module: nn.Module, name: str, _value: Any) -> None:
        names.append(name)
        handle.remove()

    handle = hooks.on_module_registration(once)
    other = hooks.on_module_registration(lambda _module, name, _value: names.append(name.upper()))
    module = nn.Module()
    module.a = nn.ReLU()
    module.b = nn.ReLU()
    other.remove()
    assert names == ["a", "A", "B"]


REGISTER = [hooks.on_forward_pre, hooks.on_forward, hooks.on_full_backward_pre, hooks.on_full_backward]


@pytest.mark.parametrize("register", REGISTER)
def test_the_error_for_a_wrong_argument_says_what_was_expected_and_what_to_do(register: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Got 3 as the hook; expected a function \(module.*Pass the function"):
        register(nn.Linear(1, 1), 3)
    with pytest.raises(ArgumentError, match=r"Got 'model'; expected a torch.nn.Module, or None.*Pass the module"):
        register("model", nothing)
    with pytest.raises(ArgumentError, match=r"Got the class Linear; expected a torch.nn.Module"):
        register(nn.Linear, nothing)
    with pytest.raises(
        ArgumentError, match=r"Got prepend=True for a hook on the whole process.*one module only.*leave"
    ):
        register(None, nothing, prepend=True)


def test_a_global_pre_hook_refuses_keyword_inputs_that_torch_cannot_give_it() -> None:
    with pytest.raises(ArgumentError, match=r"Got with_kwargs=True"):
        hooks.on_forward_pre(None, nothing, with_kwargs=True)


def test_a_full_backward_hook_is_refused_if_there_is_a_legacy_one() -> None:
    module = Scale()
    module.register_backward_hook(nothing)
    with pytest.raises(
        HookError, match=r"Scale has had a legacy hook.*no full backward hook with it.*Remove that hook"
    ):
        hooks.on_full_backward(module, nothing)
    legacy = torch_modules.register_module_backward_hook(nothing)
    with pytest.raises(HookError, match=r"process has had a legacy hook.*Remove that hook"):
        hooks.on_full_backward(None, nothing)
    legacy.remove()
    torch_modules._global_is_full_backward_hook = None


def test_an_unfinished_or_scripted_module_is_refused() -> None:
    class Unfinished(nn.Module):
        def __init__(self) -> None:
            hooks.on_forward(self, nothing)

    with pytest.raises(HookError, match=r"Unfinished whose torch.nn.Module.__init__ has not run.*super\(\)"):
        Unfinished()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(HookError, match=r"scripted module.*Register on the process"):
        hooks.on_forward(scripted, nothing)


def test_hooks_with_keyword_inputs_are_traced_into_a_compiled_graph() -> None:
    module = Scale()
    hooks.on_forward(module, lambda _m, _a, kwargs, out: out + kwargs["factor"], with_kwargs=True)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert compiled(torch.tensor(2.0), factor=4.0) == 12
