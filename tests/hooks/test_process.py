"""Hooks around steps, saved tensors, the end of a backward pass, and an export with torch.package."""

# Torch types an attribute of a module as Tensor or Module, and leaves `backward` and `register_hook` untyped.
# mypy: disable-error-code="no-untyped-call,union-attr,operator,arg-type,index,attr-defined"
# mypy: disable-error-code="var-annotated,comparison-overlap,list-item"
from __future__ import annotations

import io
import sys
import threading
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.package import PackageExporter

from hookcore import hooks
from hookcore.errors import ArgumentError, HookError
from hookcore.hooks import tensors
from hookcore.hooks.internals import top_saved_pair
from hookcore.hooks.tensors import top_pair
from tests.leaks import nothing, nothing_left_behind  # noqa: F401

# -- steps ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    parameter = nn.Parameter(torch.tensor([1.0]))
    parameter.grad = torch.tensor([2.0])
    return torch.optim.SGD([parameter], lr=0.5)


def value(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["params"][0].detach())


@pytest.mark.parametrize("everywhere", [False, True])
def test_step_hooks_see_the_parameter_before_and_after(optimizer: torch.optim.Optimizer, everywhere: bool) -> None:
    seen: list[Any] = []
    target = None if everywhere else optimizer

    def saw(given: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        seen.append((given is optimizer, args[0] is optimizer, kwargs, value(optimizer)))

    with hooks.on_optimizer_step_pre(target, saw), hooks.on_optimizer_step(target, saw):
        optimizer.step()
    optimizer.step()
    assert seen == [(True, True, {}, 1.0), (True, True, {}, 0.0)]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_step_pre_hook_replaces_the_arguments_and_the_next_one_sees_them(
    optimizer: torch.optim.Optimizer, everywhere: bool
) -> None:
    target, calls = None if everywhere else optimizer, []
    seen: list[Any] = []

    def closure() -> torch.Tensor:
        calls.append("closure")
        return torch.tensor(0.0)

    give = hooks.on_optimizer_step_pre(target, lambda _o, args, _k: (args, {"closure": closure}))
    see = hooks.on_optimizer_step_pre(target, lambda _o, _a, kwargs: seen.append(kwargs))
    with give, see:
        optimizer.step()
    assert seen == [{"closure": closure}]
    assert calls == ["closure"]


def test_step_hooks_fire_in_torchs_order(optimizer: torch.optim.Optimizer) -> None:
    order: list[str] = []

    def note(word: str) -> Any:
        return lambda *_: order.append(word)

    registered = [
        hooks.on_optimizer_step(optimizer, note("own post")),
        hooks.on_optimizer_step_pre(optimizer, note("own pre 1")),
        hooks.on_optimizer_step_pre(optimizer, note("own pre 2")),
        hooks.on_optimizer_step_pre(None, note("global pre")),
        hooks.on_optimizer_step(None, note("global post")),
    ]
    optimizer.step()
    for handle in registered:
        handle.remove()
    optimizer.step()
    assert order == ["global pre", "own pre 1", "own pre 2", "own post", "global post"]


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("register", [hooks.on_optimizer_step_pre, hooks.on_optimizer_step])
def test_a_step_hook_can_remove_itself_and_the_step_continues(
    optimizer: torch.optim.Optimizer, register: Any, everywhere: bool
) -> None:
    target, calls = None if everywhere else optimizer, []

    def once(*_args: Any) -> None:
        calls.append("once")
        handle.remove()

    handle = register(target, once)
    other = register(target, lambda *_: calls.append("other"))
    optimizer.step()
    assert value(optimizer) == 0.0
    assert not handle.active
    assert [record.active for record in (handle, other)] == [False, True]
    optimizer.step()
    other.remove()
    assert calls == ["once", "other", "other"]


def test_an_entry_that_is_removed_at_the_end_of_a_step_is_not_listed(optimizer: torch.optim.Optimizer) -> None:
    handle = hooks.on_optimizer_step_pre(optimizer, lambda *_: handle.remove())
    optimizer.step()
    assert hooks.inventory(optimizers=[optimizer]) == ()
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("register", [hooks.on_optimizer_step_pre, hooks.on_optimizer_step])
def test_anything_but_a_torch_optimizer_is_refused(register: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Got an object of type Linear; expected a torch.optim.Optimizer, or None"):
        register(nn.Linear(1, 1), nothing)
    with pytest.raises(ArgumentError, match=r"expected a function \(optimizer, args, kwargs\)"):
        register(None, "hook")


# -- saved tensors -------------------------------------------------------------------------------------------------


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def test_saved_tensors_go_through_the_pair_and_can_be_replaced() -> None:
    x = torch.tensor([3.0], requires_grad=True)
    packed: list[float] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(float(tensor))
        return tensor.detach()

    with hooks.on_saved_tensors(pack, lambda saved: saved * 10) as handle:
        assert handle.active
        y = x * x
    x * x
    y.backward()
    assert packed == [3.0, 3.0]
    assert x.grad == 60
    assert not handle.active


def test_only_the_innermost_pair_is_called() -> None:
    calls: list[str] = []

    def note(word: str) -> Any:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            calls.append(word)
            return tensor.detach()

        return pack

    x = torch.tensor([3.0], requires_grad=True)
    with hooks.on_saved_tensors(note("outer"), same):
        with hooks.on_saved_tensors(note("inner"), same):
            x.exp()
        x.exp()
    assert calls == ["inner", "outer"]


@pytest.mark.skipif(top_saved_pair is None, reason="this torch can't say which pair is on top")
def test_a_pair_removed_out_of_order_leaves_the_others_in_order() -> None:
    packs = [lambda tensor: tensor.detach() for _ in range(3)]
    first = hooks.on_saved_tensors(packs[0], same)
    second = hooks.on_saved_tensors(packs[1], same)
    with saved_tensors_hooks(packs[2], same):  # another pair on top of these two
        first.remove()
        assert top_pair() == (packs[2], same)
        assert second.active
        assert not first.active
    assert top_pair() == (packs[1], same)
    first.remove()
    second.remove()
    assert top_pair() is None


def test_if_torch_cannot_say_which_pair_is_on_top_a_lower_pair_stays_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensors, "_read_top", None)
    packed: list[torch.Tensor] = []
    lower = hooks.on_saved_tensors(lambda tensor: packed.append(tensor), same)
    upper = hooks.on_saved_tensors(same, same)
    with pytest.raises(HookError, match="Remove the later one first"):
        lower.remove()
    x = torch.ones(2, requires_grad=True)
    counts = []
    for handle in (upper, lower, lower):
        x.exp()
        counts.append(len(packed))
        handle.remove()
    x.exp()
    assert [*counts, len(packed)] == [0, 1, 1, 1]


def test_a_pair_of_saved_tensor_hooks_belongs_to_its_thread() -> None:
    handle = hooks.on_saved_tensors(same, same)
    errors: list[Exception] = []
    seen: list[Any] = []

    def elsewhere() -> None:
        seen.append(top_pair())
        try:
            handle.remove()
        except HookError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere, name="other")
    thread.start()
    thread.join()
    assert seen == [None]
    said = "can't be removed in 'other'; torch keeps one stack per thread. Remove it in its own thread"
    assert said in str(errors[0])
    assert handle.active
    handle.remove()


def test_a_pair_is_gone_with_its_thread() -> None:
    left: list[hooks.HookHandle] = []
    thread = threading.Thread(target=lambda: left.append(hooks.on_saved_tensors(same, same)))
    thread.start()
    thread.join()
    assert not left[0].active
    left[0].remove()
    assert top_pair() is None


def test_saved_tensors_hooks_that_torch_forbids_are_refused() -> None:
    with disable_saved_tensors_hooks("not in here"), pytest.raises(HookError, match=r"Torch refused.*not in here"):
        hooks.on_saved_tensors(same, same)
    with pytest.raises(ArgumentError, match=r"expected a function \(packed\)"):
        hooks.on_saved_tensors(same, 1)


# -- the end of a backward pass ------------------------------------------------------------------------------------


def test_the_end_of_the_running_backward_comes_after_every_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    ends: list[Any] = []
    y.register_hook(lambda _grad: ends.append(hooks.on_backward_end(lambda: ends.append(x.grad.clone()))))
    y.sum().backward()
    assert len(ends) == 2
    assert torch.equal(ends[1], torch.full((2,), 2.0))
    assert not ends[0].active


def test_a_removed_end_is_not_called_and_a_dropped_one_is() -> None:
    x = torch.ones(2, requires_grad=True)
    calls: list[str] = []

    def arm(_grad: torch.Tensor) -> None:
        hooks.on_backward_end(lambda: calls.append("dropped"))
        handle = hooks.on_backward_end(lambda: calls.append("removed"))
        assert handle.active
        handle.remove()
        assert not handle.active

    x.register_hook(arm)
    (x * 2).sum().backward()
    assert calls == ["dropped"]


def test_outside_a_backward_pass_there_is_no_end_to_wait_for() -> None:
    with pytest.raises(HookError, match=r"No backward is running.*expected a call from inside one.*Pass `of=model`"):
        hooks.on_backward_end(nothing)


@pytest.mark.parametrize("what", ["module", "tensor", "tensors"])
def test_every_end_of_a_backward_through_something_is_called_once(what: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    of: Any = {"module": model, "tensor": model[0].weight, "tensors": model.parameters()}[what]
    complete: list[bool] = []
    handle = hooks.on_backward_end(lambda: complete.append(all(p.grad is not None for p in model.parameters())), of=of)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    (torch.ones(2, requires_grad=True) * 2).sum().backward()  # bypasses the model
    assert complete == [True] * 3
    handle.remove()
    model(torch.ones(1, 2)).sum().backward()
    assert len(complete) == 3
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_end_hooks_are_skipped_for_a_backward_that_raises_and_called_for_the_next() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    ends: list[int] = []
    with hooks.on_backward_end(lambda: ends.append(1), of=y):
        for _ in range(100):  # more than the limit

            def fail(_grad: torch.Tensor) -> None:
                raise KeyError("in backward")

            broken = x.register_hook(fail)
            with pytest.raises(KeyError):
                y.sum().backward(retain_graph=True)
            broken.remove()
        assert ends == []
        y.sum().backward()
    assert ends == [1]


def test_an_end_removed_during_the_backward_is_not_called() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    ends: list[int] = []
    handle = hooks.on_backward_end(lambda: ends.append(1), of=y)
    x.register_hook(lambda _grad: handle.remove())
    y.sum().backward()
    assert ends == []


def test_a_module_without_gradients_is_refused() -> None:
    with pytest.raises(HookError, match=r"Tanh has no parameter that needs a gradient.*Pass a tensor"):
        hooks.on_backward_end(nothing, of=nn.Tanh())


# -- torch.package -------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    (tmp_path / "packed_leaf.py").write_text("VALUE = 1\n")
    (tmp_path / "packed_top.py").write_text("import packed_leaf\nimport json\nimport torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("packed_leaf", "packed_top"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__("packed_top")


def test_every_decision_of_an_export_is_recorded_in_order(sources: types.ModuleType) -> None:
    called: list[Any] = []
    with PackageExporter(io.BytesIO()) as exporter:
        handle = hooks.on_package(
            exporter,
            extern=lambda given, name: called.append(("extern", given is exporter, name)),
            mock=lambda given, name: called.append(("mock", given is exporter, name)),
        )
        exporter.intern("packed_top")
        exporter.mock("packed_leaf")
        exporter.extern(["torch", "torch.**", "json"])
        exporter.save_module(sources.__name__)
        assert handle.decisions == ()
    decisions = {(decision.action, decision.module) for decision in handle.decisions}
    assert {("intern", "packed_top"), ("mock", "packed_leaf"), ("extern", "torch")} <= decisions
    assert [decision.order for decision in handle.decisions] == list(range(len(handle.decisions)))
    assert ("mock", True, "packed_leaf") in called
    assert ("extern", True, "torch") in called
    assert not any(word == "intern" for word, _, _ in called)


def test_package_hooks_can_be_removed_before_and_during_the_export(sources: types.ModuleType) -> None:
    with PackageExporter(io.BytesIO()) as exporter:
        before = hooks.on_package(exporter)
        before.remove()
        during = hooks.on_package(exporter, intern=lambda *_: during.remove())
        after = hooks.on_package(exporter)
        exporter.intern(["packed_top", "packed_leaf"])
        exporter.extern(["torch", "torch.**", "json"])
        exporter.save_module(sources.__name__)
    assert before.decisions == ()
    assert [decision.action for decision in during.decisions].count("intern") == 1
    assert [decision.action for decision in after.decisions].count("intern") == 2
    after.remove()


def test_anything_but_an_exporter_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Got 'file.pt'; expected a torch.package.PackageExporter"):
        hooks.on_package("file.pt")
