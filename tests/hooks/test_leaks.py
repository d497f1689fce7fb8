"""The fixture around every test of hooks, and the registry that it relies on."""

# Torch types an attribute of a module as Tensor or Module, and leaves `backward` and `register_hook` untyped.
# mypy: disable-error-code="no-untyped-call,union-attr,operator,arg-type,index,attr-defined"
# mypy: disable-error-code="var-annotated,comparison-overlap,list-item"
from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from hookcore import hooks
from hookcore.hooks import handle as handles
from tests.around import MODULE_TABLES
from tests.leaks import global_state, nothing, nothing_left_behind  # noqa: F401


def test_every_global_hook_leaves_torchs_tables_unchanged() -> None:
    before = global_state()
    registered = [
        hooks.on_forward_pre(None, nothing),
        hooks.on_forward(None, nothing, with_kwargs=True, always_call=True),
        hooks.on_full_backward_pre(None, nothing),
        hooks.on_full_backward(None, nothing),
        hooks.on_module_registration(nothing),
        hooks.on_parameter_registration(nothing),
        hooks.on_buffer_registration(nothing),
        hooks.on_optimizer_step_pre(None, nothing),
        hooks.on_optimizer_step(None, nothing),
    ]
    during = global_state()
    assert all(len(during[name]) == len(before[name]) + 1 for name in MODULE_TABLES)
    for handle in registered:
        handle.remove()
    assert global_state() == before


def test_the_global_full_backward_flag_is_cleared_only_with_the_last_hook() -> None:
    first = hooks.on_full_backward(None, nothing)
    second = hooks.on_full_backward(None, nothing)
    first.remove()
    assert torch_modules._global_is_full_backward_hook is True
    second.remove()
    assert torch_modules._global_is_full_backward_hook is None
    legacy = torch_modules.register_module_backward_hook(nothing)
    legacy.remove()
    torch_modules._global_is_full_backward_hook = None


def test_a_flag_set_by_other_code_is_left_alone() -> None:
    torch_modules.register_module_full_backward_hook(nothing).remove()
    try:
        hooks.on_full_backward(None, nothing).remove()
        assert torch_modules._global_is_full_backward_hook is True
    finally:
        torch_modules._global_is_full_backward_hook = None


def test_a_handle_has_its_own_number_and_can_be_removed_any_number_of_times() -> None:
    model = nn.Linear(2, 2)
    first, second = hooks.on_forward(model, nothing), hooks.on_forward(model, nothing)
    assert first.id != second.id
    assert first.active
    first.remove()
    first.remove()
    assert not first.active
    assert second.active
    assert list(model._forward_hooks.values()) == [nothing]
    assert "removed" in repr(first)
    assert "active" in repr(second)


def test_a_handle_is_a_context_manager_that_removes_even_after_an_exception() -> None:
    model = nn.Linear(2, 2)
    handle = hooks.on_forward(model, nothing)
    assert handle.active
    with pytest.raises(KeyError), handle:
        raise KeyError
    assert not handle.active
    assert not model._forward_hooks


def test_a_dropped_handle_leaves_its_hook_active() -> None:
    model, calls = nn.Linear(2, 2), []
    handle = hooks.on_forward(model, lambda *_: calls.append(1))
    dropped = weakref.ref(handle)
    del handle
    gc.collect()
    assert dropped() is None
    model(torch.ones(1, 2))
    assert calls == [1]


def test_handles_keep_neither_model_nor_tensor_nor_function_alive() -> None:
    model = nn.Linear(2, 2)
    computed = model(torch.ones(1, 2)) * 2
    kept = [
        hooks.on_forward_pre(model, lambda _module, _args: None),
        hooks.on_forward(model, lambda *_: None, with_kwargs=True),
        hooks.on_full_backward_pre(model, lambda *_: None),
        hooks.on_full_backward(model, lambda *_: None),
        hooks.on_gradient(computed, lambda _grad: None),
        hooks.on_gradient_accumulated(model.weight, lambda _parameter: None),
        hooks.on_gradients([computed, model.bias], lambda _grad: None, mode="any"),
        hooks.on_node_pre(computed, lambda _grads: None),
        hooks.on_node(computed, lambda *_: None),
        hooks.on_backward_end(nothing, of=model),
    ]
    captured = weakref.ref(model), weakref.ref(computed), weakref.ref(model.weight)
    assert all(handle.active for handle in kept)
    del model, computed
    gc.collect()
    gc.collect()
    assert [reference() for reference in captured] == [None, None, None]
    assert not any(handle.active for handle in kept)
    for handle in kept:
        handle.remove()


def test_removing_a_multi_gradient_hook_releases_the_graph_that_torch_keeps_for_it() -> None:
    leaf = torch.ones(2, requires_grad=True)
    computed = leaf * 2
    handle = hooks.on_gradients([computed, leaf], lambda _grads: None)
    captured = weakref.ref(leaf), weakref.ref(computed)
    handle.remove()
    del leaf, computed
    gc.collect()
    assert [reference() for reference in captured] == [None, None]
    assert not handle.active


def test_the_registry_forgets_the_hooks_of_dead_objects() -> None:
    gc.collect()
    before = len(handles.registry.owned)
    for _ in range(20):
        tensor = torch.ones(2, requires_grad=True) * 2
        hooks.on_gradient(tensor, nothing)
    del tensor
    gc.collect()
    assert len(handles.registry.owned) == before


def test_a_copied_handle_belongs_to_the_copied_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.handle = hooks.on_full_backward(model, nothing)  # type: ignore[assignment]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.handle.active
        assert twin.handle.id != model.handle.id
        twin.handle.remove()
        assert not twin._backward_hooks
        assert twin._is_full_backward_hook is None
    assert model.handle.active
    assert len(model._backward_hooks) == 1


def test_a_registration_waits_for_one_in_another_thread() -> None:
    # torch reads and increments the counter of handles in two steps, and equal numbers overwrite each other.
    model = nn.Linear(2, 2)
    thread = threading.Thread(target=hooks.on_forward, args=(model, nothing))
    with handles.registering():
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert not model._forward_hooks
    thread.join()
    assert len(model._forward_hooks) == 1


def test_a_forked_child_can_register_even_if_the_lock_was_held() -> None:
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with handles.registering():
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        hooks.on_forward(None, nothing).remove()
        os._exit(7)
    try:
        for _ in range(1000):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child never came back")
    finally:
        release.set()
        holder.join()
    assert os.waitstatus_to_exitcode(status) == 7


def test_all_public_names_exist_and_are_listed_once() -> None:
    assert len(set(hooks.__all__)) == len(hooks.__all__)
    assert all(hasattr(hooks, name) for name in hooks.__all__)
    assert {name for name in vars(hooks) if name.startswith("on_")} <= set(hooks.__all__)


def test_the_documentation_has_every_function_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
    table = set(re.findall(r"^\| `(on_\w+)\(", text, flags=re.MULTILINE))
    assert table == {name for name in hooks.__all__ if name.startswith("on_")}
    assert set(re.findall(r"`(on_\w+)", text)) == table
