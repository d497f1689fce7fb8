"""Hooks in the autograd graph."""

# Torch types an attribute of a module as Tensor or Module, and leaves `backward` and `register_hook` untyped.
# mypy: disable-error-code="no-untyped-call,union-attr,operator,arg-type,index,attr-defined"
# mypy: disable-error-code="var-annotated,comparison-overlap,list-item"
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.graph import Node

from hookcore import hooks
from hookcore.errors import ArgumentError, HookError
from tests.leaks import nothing, nothing_left_behind  # noqa: F401


def graph() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a leaf, a tensor computed from it, and a loss."""
    leaf = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    middle = leaf * leaf
    return leaf, middle, (middle * torch.tensor([2.0, 3.0, 4.0])).sum()


def test_a_gradient_hook_sees_what_autograd_computes() -> None:
    leaf, middle, loss = graph()
    truth = torch.autograd.grad(loss, [leaf, middle], retain_graph=True)
    seen: dict[str, torch.Tensor] = {}
    hooks.on_gradient(leaf, lambda grad: seen.update(leaf=grad.clone()))
    hooks.on_gradient(middle, lambda grad: seen.update(middle=grad.clone()))
    loss.backward()
    assert torch.equal(seen["leaf"], truth[0])
    assert torch.equal(seen["middle"], truth[1])


def test_gradient_hooks_chain_in_order_and_replace_the_gradient() -> None:
    leaf, middle, loss = graph()
    hooks.on_gradient(middle, lambda grad: grad + 1)
    hooks.on_gradient(middle, lambda grad: grad * 10)
    loss.backward()
    assert torch.equal(leaf.grad, torch.tensor([3.0, 4.0, 5.0]) * 10 * 2 * leaf.detach())


def test_a_gradient_hook_can_remove_itself() -> None:
    _, middle, loss = graph()
    calls: list[str] = []

    def once(_grad: torch.Tensor) -> None:
        calls.append("once")
        handle.remove()

    handle = hooks.on_gradient(middle, once)
    hooks.on_gradient(middle, lambda _grad: calls.append("other"))
    loss.backward(retain_graph=True)
    loss.backward()
    assert calls == ["once", "other", "other"]


def test_an_accumulated_gradient_is_seen_after_each_backward_and_can_be_changed() -> None:
    leaf, _, loss = graph()
    seen: list[torch.Tensor] = []

    def halve(tensor: torch.Tensor) -> None:
        assert tensor is leaf
        assert tensor.grad is not None
        seen.append(tensor.grad.clone())
        tensor.grad /= 2

    handle = hooks.on_gradient_accumulated(leaf, halve)
    truth = torch.autograd.grad(loss, leaf, retain_graph=True)[0]
    assert seen == []
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    assert torch.equal(seen[0], truth)
    assert torch.equal(seen[1], truth / 2 + truth)
    handle.remove()
    loss.backward()
    assert len(seen) == 2


def test_all_gradients_arrive_together_with_none_for_those_not_computed() -> None:
    leaf, middle, loss = graph()
    unused = leaf * 5
    truth = torch.autograd.grad(loss, [leaf, middle], retain_graph=True)
    seen: list[Any] = []
    with hooks.on_gradients([leaf, middle, unused], seen.append):
        loss.backward(retain_graph=True)
    assert len(seen) == 1
    assert torch.equal(seen[0][0], truth[0])
    assert torch.equal(seen[0][1], truth[1])
    assert seen[0][2] is None
    loss.backward()
    assert len(seen) == 1


def test_any_mode_gets_the_first_gradient() -> None:
    leaf, middle, loss = graph()
    seen: list[torch.Tensor] = []
    handle = hooks.on_gradients((leaf, middle), seen.append, mode="any")
    loss.backward(retain_graph=True)
    assert [grad.tolist() for grad in seen] == [[2.0, 3.0, 4.0]]
    handle.remove()
    assert not handle.active
    loss.backward()
    assert len(seen) == 1


def test_node_hooks_see_and_replace_gradients_before_and_after_the_node() -> None:
    leaf, middle, loss = graph()
    seen: list[Any] = []
    node = middle.grad_fn
    assert node is not None
    before = hooks.on_node_pre(node, lambda grads: seen.append(grads))
    raised = hooks.on_node_pre(middle, lambda grads: (grads[0] + 1,))
    after = hooks.on_node(node, lambda grad_inputs, grad_outputs: seen.append((grad_inputs, grad_outputs)))
    doubled = hooks.on_node(middle, lambda grad_inputs, _outputs: tuple(grad * 2 for grad in grad_inputs))
    loss.backward(retain_graph=True)
    came = torch.tensor([2.0, 3.0, 4.0])
    assert torch.equal(seen[0][0], came)
    assert torch.equal(seen[1][1][0], came + 1)
    assert torch.equal(seen[1][0][0], (came + 1) * leaf.detach())
    assert torch.equal(leaf.grad, (came + 1) * leaf.detach() * 2 * 2)
    for handle in (before, raised, after, doubled):
        handle.remove()
        assert not handle.active
    leaf.grad = None
    loss.backward()
    assert len(seen) == 2
    assert torch.equal(leaf.grad, came * 2 * leaf.detach())


def test_node_hooks_can_remove_themselves() -> None:
    _, middle, loss = graph()
    calls: list[str] = []

    def once(*_args: Any) -> None:
        calls.append("once")
        handle.remove()

    handle = hooks.on_node(middle, once)
    hooks.on_node(middle, lambda *_: calls.append("other"))
    loss.backward(retain_graph=True)
    loss.backward()
    assert calls == ["once", "other", "other"]


def test_a_node_has_torchs_own_type() -> None:
    assert isinstance(graph()[1].grad_fn, Node)


@pytest.mark.parametrize(
    "register", [hooks.on_gradient, hooks.on_gradient_accumulated, hooks.on_node, hooks.on_node_pre]
)
def test_a_tensor_that_needs_no_gradient_is_refused(register: Any) -> None:
    with pytest.raises(HookError, match=r"shape \(2, 3\) that needs no gradient.*Expected requires_grad=True.*Call"):
        register(torch.ones(2, 3), nothing)


def test_leaves_and_computed_tensors_are_distinguished() -> None:
    leaf, middle, _ = graph()
    with pytest.raises(HookError, match=r"was computed \(<MulBackward0.*expected a leaf.*Use on_gradient"):
        hooks.on_gradient_accumulated(middle, nothing)
    with pytest.raises(HookError, match=r"Got a leaf of shape \(3,\), which no node computed.*Use on_gradient"):
        hooks.on_node(leaf, nothing)


def test_wrong_arguments_are_refused_before_anything_is_registered() -> None:
    leaf, _, _ = graph()
    with pytest.raises(ArgumentError, match=r"Got None as the hook"):
        hooks.on_gradient(leaf, None)
    with pytest.raises(ArgumentError, match=r"Got 1.0; expected a torch.Tensor"):
        hooks.on_gradient(1.0, nothing)
    with pytest.raises(ArgumentError, match=r"expected an autograd node or a tensor. Pass `tensor.grad_fn`"):
        hooks.on_node("node", nothing)
    with pytest.raises(ArgumentError, match=r"expected several tensors. Pass a list"):
        hooks.on_gradients(leaf, nothing)
    with pytest.raises(ArgumentError, match=r"Got no tensor at all"):
        hooks.on_gradients([], nothing)
    with pytest.raises(ArgumentError, match=r"Got mode='al'; expected one of 'all', 'any'. Did you mean 'all'"):
        hooks.on_gradients([leaf], nothing, mode="al")
    with pytest.raises(HookError, match=r"needs no gradient"):
        hooks.on_gradients([leaf, torch.ones(1)], nothing)
    assert not leaf._backward_hooks
