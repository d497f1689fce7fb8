# mypy: disable-error-code="no-untyped-call"
"""Hooks of the user that replace inputs or outputs of a module: hookcore shows the real values."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookcore import hooks
from tests.harness import assert_stats, digest, read_step, watch

ATTACH = ("global", "module")
KINDS = ("input", "output", "output_grad")


class Nested(nn.Module):
    """Calls itself recursively, and takes a keyword input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, scale: Tensor, depth: int = 1) -> Tensor:
        return self(x, scale=scale, depth=0) * 2 if depth else self.inner(x) * scale


def multiply_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 100


def multiply_input(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0] * 10, *args[1:])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("attach", ATTACH)
def test_output_and_input_are_what_the_module_returned_and_received(attach: str, late: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    model[0].register_forward_pre_hook(multiply_input)
    with watch(model, attach=attach, kinds=KINDS) as watcher:
        for number in range(3):
            if number == int(late):
                model[0].register_forward_hook(multiply_output)
            x = torch.ones(5, 4)
            out = model[0](x)
            model[1](out).sum().backward()
            watcher.step()
            watcher.flush()
            seen = read_step(watcher, number)
            assert_stats(seen["0", "input", "0", 0], [x * 10])
            if attach == "module" and number == int(late):
                # In this call, hookcore's hook ran before the new one, so the module's result is unknown.
                assert ("0", "output", "", 0) not in seen
            else:
                assert_stats(seen["0", "output", "", 0], [out])
            assert_stats(seen["1", "input", "0", 0], [out])
        assert watcher.error_count == 0
    assert len(model[0]._forward_hooks) == len(model[0]._forward_pre_hooks) == 1


@pytest.mark.parametrize("attach", ATTACH)
def test_keyword_inputs_and_recursive_calls_are_seen_after_the_users_hooks(attach: str) -> None:
    model = Nested()
    model.register_forward_hook(multiply_output)
    with watch(model, attach=attach, kinds=KINDS) as watcher:
        out = model(torch.ones(2, 4), scale=torch.full((1,), 3.0))
        out.sum().backward()
        watcher.step()
        watcher.flush()
        seen = read_step(watcher, 0)
        assert watcher.error_count == 0
    assert_stats(seen["", "output", "", 1], [out])  # the inner call returns first
    assert seen["", "input", "scale", 0]["max"] == 3
    assert not [hook for hook in model._forward_hooks.values() if hook is not multiply_output]


def test_a_module_that_raises_keeps_none_of_hookcores_hooks_and_is_captured_next_time() -> None:
    class Fails(nn.Linear):
        fails = True

        def forward(self, x: Tensor) -> Tensor:
            if self.fails:
                raise ValueError("once")
            return super().forward(x)

    model = nn.Sequential(Fails(4, 4))
    model[0].register_forward_hook(multiply_output)
    with watch(model) as watcher:
        with pytest.raises(ValueError, match="once"):
            model(torch.ones(1, 4))
        Fails.fails = False
        out = model(torch.ones(1, 4))
        out.sum().backward()
        watcher.step()
        watcher.flush()
        assert_stats(read_step(watcher, 0)["0", "output", "", 0], [out])
    assert list(model[0]._forward_hooks.values()) == [multiply_output]


def test_modules_without_their_own_hooks_never_get_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(multiply_output)
    seen: list[int] = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()))
            return x

    model.append(Looks())
    with watch(model, kinds=KINDS) as watcher:
        model(torch.ones(1, 4)).sum().backward()
        watcher.step()
    assert seen == [1]


@pytest.mark.parametrize("attach", ATTACH)
def test_a_snapshot_is_what_the_module_really_returned(attach: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    model[0].register_forward_hook(multiply_output)
    with watch(model, attach=attach) as watcher:
        watcher.request_snapshot("0")
        watcher.request_snapshot("0", kind="input")
        for _ in range(3):
            out = model[0](torch.ones(2, 4))
            out.sum().backward()
            watcher.step()
        watcher.flush()
        taken = watcher.store.snapshots()
        values = {snapshot.tap.kind: snapshot.values for snapshot in taken}
    assert torch.equal(torch.from_numpy(values["output"].copy()).reshape(2, 5), out.detach())


class WithKeywords:
    """A hook that can be pickled."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        return None


class PreWithKeywords:
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        return None


@pytest.fixture
def unpickled() -> Iterator[nn.Sequential]:
    """Return a model whose hooks have numbers from another process: all numbers that hookcore's could get next."""
    before = RemovableHandle.next_id
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    for number in range(before, before + 60, 3):
        RemovableHandle.next_id = number
        model[0].register_forward_hook(WithKeywords(), with_kwargs=True)
        model[0].register_forward_pre_hook(PreWithKeywords(), with_kwargs=True)
        model[2].register_forward_hook(multiply_output, always_call=True)
    data = pickle.dumps(model)
    RemovableHandle.next_id = before
    yield pickle.loads(data)
    RemovableHandle.next_id = before + 1000


@pytest.mark.parametrize("settings", [{}, {"kinds": KINDS}, {"attach": "module", "kinds": KINDS}, {"every": 2}])
def test_a_model_with_the_hook_numbers_of_another_process_continues_to_train(
    unpickled: nn.Sequential, settings: dict[str, Any]
) -> None:
    tables = [len(module._forward_hooks) for module in unpickled]
    twin = pickle.loads(pickle.dumps(unpickled))

    def train(model: nn.Module) -> str:
        optimizer = torch.optim.SGD(model.parameters(), 1e-9)
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        return digest(dict(model.state_dict()))

    with watch(unpickled, **settings) as watcher:
        seen = train(unpickled)
        assert watcher.error_count == 0
        watcher.flush()
        assert watcher.store.steps().count
    assert seen == train(twin)
    assert [len(module._forward_hooks) for module in unpickled] == tables


def test_a_hook_on_such_a_module_replaces_none_and_gets_the_arguments_it_requested(unpickled: nn.Sequential) -> None:
    calls: list[int] = []
    before = len(unpickled[0]._forward_hooks)
    handles = [
        hooks.on_forward(unpickled[0], lambda module, args, output: calls.append(1)),
        hooks.on_forward(None, lambda module, args, output: calls.append(2)),
        hooks.on_forward(None, lambda module, args, kwargs, output: calls.append(3), with_kwargs=True),
        hooks.on_forward_pre(unpickled[0], lambda module, args: calls.append(4)),
        hooks.on_forward_pre(None, lambda module, args: calls.append(5)),
    ]
    assert len(unpickled[0]._forward_hooks) == before + 1
    unpickled[0](torch.ones(1, 4))
    assert sorted(calls) == [1, 2, 3, 4, 5]
    for handle in handles:
        handle.remove()
    assert len(unpickled[0]._forward_hooks) == before


def test_a_model_saved_with_hookcores_hooks_loads_without_hookcore() -> None:
    model = nn.Sequential(nn.Linear(4, 5))
    model[0].register_forward_pre_hook(PreWithKeywords(), with_kwargs=True)
    with watch(model, attach="module", kinds=KINDS) as watcher:
        watcher.step()
        file = io.BytesIO()
        torch.save(model, file)
    assert b"hookcore" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded(torch.ones(1, 4)).shape == (1, 5)


def test_a_copy_of_torchs_tables_of_hooks_has_hookcores_own() -> None:
    """A library may copy and restore them."""
    tables = torch.nn.modules.module._global_forward_pre_hooks, torch.nn.modules.module._global_forward_hooks
    model = nn.Linear(4, 4)
    with watch(model, every=1):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
        for table in tables:
            assert list(copy.deepcopy(table).values()) == list(table.values()) != []


def test_hooks_that_are_registered_during_a_collection_keep_numbers_of_their_own() -> None:
    model, tensor, handles = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.ones(1), list[Any]()
    tensor.requires_grad_()

    def register(phase: str, _: object) -> None:
        if phase == "start":
            handles.extend(tensor.register_hook(print) for _ in range(2))

    thresholds = gc.get_threshold()
    with watch(model) as watcher:
        gc.callbacks.append(register)
        gc.set_threshold(1)
        try:
            for _ in range(10):
                model(torch.ones(2, 4)).sum().backward()
                watcher.step()
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(register)
    assert handles
    assert len({handle.id for handle in handles}) == len(handles)
