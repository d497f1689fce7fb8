"""A module with the registrations as methods."""

# Torch types an attribute of a module as Tensor or Module, and leaves `backward` and `register_hook` untyped.
# mypy: disable-error-code="no-untyped-call,union-attr,operator,arg-type,index,attr-defined"
# mypy: disable-error-code="var-annotated,comparison-overlap,list-item"
from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from hookcore import hooks
from hookcore.errors import ArgumentError, ClosedError
from tests.leaks import nothing, nothing_left_behind  # noqa: F401

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def test_wrapping_does_not_touch_the_module() -> None:
    model = build()
    before = {name: copy.copy(value) for name, value in model.__dict__.items()}
    hooked = hooks.HookedModule(model)
    assert hooked.inner is model
    assert model.__dict__ == before
    assert type(model) is nn.Sequential
    assert not isinstance(hooked, nn.Module)


def test_calls_attributes_and_items_are_those_of_the_inner_module() -> None:
    model = build().eval()
    hooked = hooks.HookedModule(model)
    assert torch.equal(hooked(X), model(X))
    assert list(map(id, hooked.parameters())) == list(map(id, model.parameters()))
    assert [name for name, _ in hooked.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert hooked[0] is model[0]
    assert len(hooked) == 3
    assert list(hooked) == list(model)
    assert model[0] in list(hooked)
    assert hooked
    assert "named_buffers" in dir(hooked)
    hooked.mark = 7
    assert model.mark == 7
    del hooked.mark
    assert not hasattr(hooked, "mark")
    assert repr(hooked) == f"HookedModule({model!r})"


def test_methods_that_return_the_module_return_the_wrapper() -> None:
    model = build()
    hooked = hooks.HookedModule(model)
    assert hooked.eval() is hooked
    assert not model.training
    assert hooked.train() is hooked
    assert model[1].training
    assert hooked.to(torch.float64) is hooked
    assert model[0].weight.dtype is torch.float64
    assert hooked.requires_grad_(False) is hooked
    assert not model[0].weight.requires_grad


def test_the_state_dict_has_the_keys_of_the_inner_module_and_can_be_loaded() -> None:
    source, target = hooks.HookedModule(build()), hooks.HookedModule(build())
    with torch.no_grad():
        source.inner[0].weight.fill_(3)
    assert list(source.state_dict()) == list(build().state_dict())
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.inner[0].weight, source.inner[0].weight)


def test_registration_methods_behave_like_those_of_the_api() -> None:
    hooked = hooks.HookedModule(build().eval())
    seen: list[str] = []
    plain = hooked.inner(X)
    hooked.on_forward_pre(lambda _m, args, kwargs: seen.append("pre"), with_kwargs=True)
    hooked.on_forward(lambda _m, _a, out: out * 2)
    hooked.on_full_backward_pre(lambda *_: seen.append("backward pre"))
    hooked.on_full_backward(lambda *_: seen.append("backward"))
    hooked.on_backward_end(lambda: seen.append("end"))
    output = hooked(X.clone().requires_grad_())
    assert torch.equal(output, plain * 2)
    output.sum().backward()
    assert seen == ["pre", "backward pre", "backward", "end"]
    assert len(hooked.handles) == 5
    hooked.handles[1].remove()
    assert torch.equal(hooked(X), plain)
    assert len(hooked.handles) == 4
    hooked.remove_hooks()
    assert hooked.handles == ()
    assert hooks.inventory(hooked) == ()


def test_removed_handles_do_not_accumulate() -> None:
    hooked = hooks.HookedModule(build())
    dropped = []
    for _ in range(50):
        handle = hooked.on_forward(nothing)
        handle.remove()
        dropped.append(weakref.ref(handle))
    del handle
    gc.collect()
    assert sum(each() is not None for each in dropped) <= 1


def test_into_inner_returns_the_module_without_hookcores_hooks_but_with_all_others() -> None:
    model = build()
    model.register_forward_hook(nothing)
    hooked = hooks.HookedModule(model)
    handle = hooked.on_full_backward(nothing)
    assert hooked.into_inner() is model
    assert not handle.active
    assert list(model._forward_hooks.values()) == [nothing]
    assert model._is_full_backward_hook is None
    for use in (lambda: hooked.inner, lambda: hooked(X), lambda: hooked.weight, lambda: hooked.on_forward(nothing)):
        with pytest.raises(ClosedError, match=r"has given its module back. Use that module"):
            use()
    assert repr(hooked) == "HookedModule(given back)"


def test_into_inner_can_leave_the_hooks_on() -> None:
    model = build()
    hooked = hooks.HookedModule(model)
    handle = hooked.on_forward(nothing)
    assert hooked.into_inner(keep_hooks=True) is model
    assert handle.active
    handle.remove()
    assert not model._forward_hooks


def test_a_copy_has_the_module_and_other_hooks_but_not_the_ones_registered_here() -> None:
    model = build().eval()
    model.register_forward_hook(nothing)
    hooked = hooks.HookedModule(model)
    calls: list[int] = []
    hooked.on_forward(lambda *_: calls.append(1), with_kwargs=True, always_call=True)
    hooked.on_full_backward(lambda *_: calls.append(2))
    hooked.on_backward_end(lambda: calls.append(3))
    for twin in (copy.deepcopy(hooked), pickle.loads(pickle.dumps(hooked))):
        assert type(twin) is hooks.HookedModule
        assert twin.inner is not model
        assert list(twin.inner._forward_hooks.values()) == [nothing]
        assert not twin.inner._forward_hooks_always_called
        assert twin.inner._is_full_backward_hook is None
        assert twin.handles == ()
        twin(X.clone().requires_grad_()).sum().backward()
        assert torch.equal(twin(X), model.forward(X))
    assert calls == []
    assert len(hooked.handles) == 3
    hooked(X.clone().requires_grad_()).sum().backward()
    assert calls == [1, 2, 3]


def test_a_shallow_copy_wraps_the_same_module() -> None:
    hooked = hooks.HookedModule(build())
    hooked.on_forward(nothing)
    twin = copy.copy(hooked)
    assert twin.inner is hooked.inner
    assert twin.handles == ()


def test_a_deepcopy_inside_a_larger_object_keeps_shared_modules_shared() -> None:
    model = build()
    pair = [hooks.HookedModule(model), model]
    twins: Any = copy.deepcopy(pair)
    assert twins[0].inner is twins[1]


def test_the_wrapper_does_not_keep_a_module_that_it_returned() -> None:
    hooked = hooks.HookedModule(build())
    hooked.on_forward(lambda *_: None)
    dead = weakref.ref(hooked.into_inner())
    gc.collect()
    assert dead() is None


def test_threads_register_and_remove_while_others_run_the_forward() -> None:
    hooked = hooks.HookedModule(build().eval())
    truth = hooked(X)
    stop = threading.Event()
    errors: list[BaseException] = []
    forwards: list[int] = []

    def run() -> None:
        try:
            while not stop.is_set():
                assert torch.equal(hooked(X), truth)
                forwards.append(1)
        except BaseException as error:
            errors.append(error)

    def register() -> None:
        try:
            for _ in range(300):
                hooked.on_forward_pre(lambda _m, _a, _kwargs: None, with_kwargs=True).remove()
                with hooked.on_forward(lambda _m, _a, _kwargs, _out: None, with_kwargs=True, always_call=True):
                    hooked.on_forward(nothing).remove()
        except BaseException as error:
            errors.append(error)

    runners = [threading.Thread(target=run) for _ in range(3)]
    registrars = [threading.Thread(target=register) for _ in range(3)]
    for thread in [*runners, *registrars]:
        thread.start()
    for thread in registrars:
        thread.join()
    stop.set()
    for thread in runners:
        thread.join()
    assert errors == []
    assert forwards
    assert hooked.handles == ()
    assert hooks.inventory(hooked) == ()


def test_anything_but_a_module_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Got 'model'; expected a torch.nn.Module"):
        hooks.HookedModule("model")  # type: ignore[type-var]
