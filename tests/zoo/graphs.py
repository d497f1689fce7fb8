# mypy: disable-error-code="no-untyped-call"
"""Unusual autograd graphs: checkpoints, several backward passes, functional transforms."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from tests.zoo.case import Trial, mean_square, mlp, noise, sgd, training, zoo


def block() -> nn.Sequential:
    """Return a block for a checkpoint. Its dropout must be the same both times."""
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 12), nn.GELU(), nn.Dropout(0.3), nn.Linear(12, 6))


class Checkpointed(nn.Module):
    """Blocks that run again in the backward pass."""

    def __init__(self, run: Callable[..., Any], blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(blocks))
        self.head = nn.Linear(6, 2)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        for part in self.blocks:
            x = x + self.run(part, x)
        return self.head(x)


def keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep the results of matrix products, and recompute the others."""
    kept = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE


def keep_most(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep nearly all results in order. With one more operator, all later ones would be wrong."""
    changed_in_place = {torch.ops.aten.empty_like.default, torch.ops.aten.bernoulli_.float, torch.ops.aten.div_.Scalar}
    return CheckpointPolicy.PREFER_RECOMPUTE if op in changed_in_place else CheckpointPolicy.MUST_SAVE


def nested_checkpoint(part: nn.Sequential, x: Tensor) -> Any:
    """Nest one checkpoint in another."""

    def outer(value: Tensor) -> Any:
        return checkpoint(part[2:], checkpoint(part[:2], value, use_reentrant=False), use_reentrant=False)

    return checkpoint(outer, x, use_reentrant=False)


class Square(torch.autograd.Function):
    """A user's autograd Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


class Explodes(torch.autograd.Function):
    """Raises in its backward, on request."""

    armed = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if Explodes.armed:
            raise ValueError("no gradient today")
        return grads[0]


class Applies(nn.Module):
    """A Function between two layers."""

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 6), self.Middle(function), nn.Linear(6, 2)

    class Middle(nn.Module):
        """Runs only the Function."""

        def __init__(self, function: type[torch.autograd.Function]) -> None:
            super().__init__()
            self.function = function

        def forward(self, x: Tensor) -> Any:
            return self.function.apply(x)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.middle(self.first(x)))


class Forces(nn.Module):
    """Differentiates its own energy in its forward, like models of molecules."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        energy = self.energy(x).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force


class LearnsInside(nn.Module):
    """Runs a complete backward pass on a part of itself inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.probe = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        self.probe(hidden.detach()).pow(2).mean().backward()
        return self.last(hidden)


def _step_of(model: nn.Module, backward: Callable[[int], Any]) -> Trial:
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        optimizer.zero_grad()
        result = backward(number)
        optimizer.step()
        return result

    return Trial(model, step)


@zoo()
def checkpoint_reentrant() -> Trial:
    return training(Checkpointed(partial(checkpoint, use_reentrant=True)), noise(5, 6).requires_grad_())


@zoo()
def checkpoint_not_reentrant() -> Trial:
    return training(Checkpointed(partial(checkpoint, use_reentrant=False)), noise(5, 6))


@zoo()
def checkpoint_inside_a_checkpoint() -> Trial:
    return training(Checkpointed(nested_checkpoint), noise(5, 6))


@zoo()
def checkpoint_selective() -> Trial:
    contexts = partial(create_selective_checkpoint_contexts, keep_products)
    return training(Checkpointed(partial(checkpoint, use_reentrant=False, context_fn=contexts)), noise(5, 6))


@zoo()
def checkpoint_selective_that_keeps_nearly_all() -> Trial:
    contexts = partial(create_selective_checkpoint_contexts, keep_most)
    return training(Checkpointed(partial(checkpoint, use_reentrant=False, context_fn=contexts)), noise(5, 6))


@zoo()
def checkpoint_of_the_whole_model() -> Trial:
    model = block()
    return training(model, noise(5, 6), call=partial(checkpoint, model, use_reentrant=False))


@zoo()
def gradient_accumulation() -> Trial:
    model = mlp()
    batches = [noise(5, 6) for _ in range(4)]

    def backward(number: int) -> Any:
        losses = [mean_square(model(batch)) / 4 for batch in batches]
        for loss in losses:
            loss.backward()
        return [loss.detach() for loss in losses]

    return _step_of(model, backward)


@zoo()
def gradient_accumulation_one_after_the_other() -> Trial:
    model = mlp()
    batches = [noise(5, 6) for _ in range(4)]

    def backward(number: int) -> Any:
        losses = []
        for batch in batches:
            loss = mean_square(model(batch)) / 4
            loss.backward()
            losses.append(loss.detach())
        return losses

    return _step_of(model, backward)


@zoo()
def backward_twice_through_one_graph() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        loss = mean_square(model(inputs))
        loss.backward(retain_graph=True)
        loss.backward()
        return loss.detach()

    return _step_of(model, backward)


@zoo()
def two_heads_two_backward_passes() -> Trial:
    model = nn.ModuleDict({"body": mlp(), "one": nn.Linear(3, 1), "two": nn.Linear(3, 1)})
    inputs = noise(5, 6)

    def backward(number: int) -> Any:
        hidden = model["body"](inputs)
        one, two = mean_square(model["one"](hidden)), mean_square(model["two"](hidden))
        one.backward(retain_graph=True)
        two.backward()
        return one.detach(), two.detach()

    return _step_of(model, backward)


@zoo()
def gradient_penalty() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        x = inputs.clone().requires_grad_()
        loss = mean_square(model(x))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        total = loss + slope.pow(2).sum()
        total.backward()
        return total.detach()

    return _step_of(model, backward)


@zoo()
def backward_with_create_graph() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        loss = mean_square(model(inputs))
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        torch.stack([slope.pow(2).sum() for slope in slopes]).sum().backward()
        return loss.detach()

    return _step_of(model, backward)


@zoo()
def gradients_by_autograd_grad() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        loss = mean_square(model(inputs))
        parameters = list(model.parameters())
        for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = slope
        return loss.detach()

    return _step_of(model, backward)


@zoo()
def backward_into_some_parameters() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        loss = mean_square(model(inputs))
        loss.backward(inputs=[model[3].weight])
        return loss.detach()

    return _step_of(model, backward)


@zoo()
def backward_of_a_tensor_with_a_gradient() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        out = model(inputs)
        torch.autograd.backward([out, out.sin()], [torch.ones(5, 3), torch.full((5, 3), 0.5)])
        return out.detach()

    return _step_of(model, backward)


@zoo()
def forces_in_the_forward() -> Trial:
    return training(Forces(), noise(5, 6))


@zoo()
def backward_inside_the_forward() -> Trial:
    return training(LearnsInside(), noise(5, 6))


@zoo()
def function_of_the_users() -> Trial:
    return training(Applies(Square), noise(5, 6))


@zoo()
def exception_in_backward_then_recovery() -> Trial:
    model, inputs = Applies(Explodes), noise(5, 6)

    def backward(number: int) -> Any:
        seen = ""
        Explodes.armed = True
        try:
            mean_square(model(inputs)).backward()
        except ValueError as error:
            seen = str(error)
        Explodes.armed = False
        loss = mean_square(model(inputs))
        loss.backward()
        return loss.detach(), seen

    return _step_of(model, backward)


@zoo()
def functional_call_with_other_weights() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        weights = {name: parameter * 0.9 for name, parameter in model.named_parameters()}
        loss = mean_square(functional_call(model, weights, (inputs,)))
        loss.backward()
        return loss.detach()

    return _step_of(model, backward)


@zoo()
def gradient_per_sample_by_vmap() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), noise(5, 6)

    def loss_of(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return mean_square(functional_call(model, weights, (x.unsqueeze(0),)))

    def backward(number: int) -> Any:
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        slopes = vmap(grad(loss_of), in_dims=(None, 0))(weights, inputs)
        for name, parameter in model.named_parameters():
            parameter.grad = slopes[name].mean(0)
        return slopes

    return _step_of(model, backward)


@zoo()
def jacobian_and_forward_mode() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), noise(5, 6)

    def backward(number: int) -> Any:
        jacobian = jacrev(model)(inputs)
        slope = jvp(model, (inputs,), (torch.ones(5, 6),))[1]
        loss = mean_square(model(inputs))
        loss.backward()
        return jacobian.detach(), slope.detach(), loss.detach()

    return _step_of(model, backward)


@zoo()
def saved_tensors_packed_by_the_user() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        packed: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            packed.append(tensor.numel())
            return tensor.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = mean_square(model(inputs))
        loss.backward()
        return loss.detach(), packed

    return _step_of(model, backward)


@zoo()
def anomaly_detection() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            loss = mean_square(model(inputs))
            loss.backward()
        return loss.detach()

    return _step_of(model, backward)


@zoo("no-twin")
def traced_by_three_tracers_during_training() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), noise(5, 6)

    def backward(number: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = torch.jit.trace(model, inputs)
        symbolic = torch.fx.symbolic_trace(model)
        low = make_fx(lambda x: model(x))(inputs)
        loss = mean_square(script(inputs)) + mean_square(symbolic(inputs)) + mean_square(model(inputs))
        loss.backward()
        nodes = [[str(node.target) for node in graph.graph.nodes] for graph in (symbolic, low)]
        return loss.detach(), nodes, str(script.inlined_graph).count("aten::")

    return _step_of(model, backward)


@zoo("no-twin")
def shapes_computed_with_fake_tensors() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        with FakeTensorMode(allow_non_fake_inputs=True):
            shape = tuple(model(torch.empty(7, 6)).shape)
        loss = mean_square(model(inputs))
        loss.backward()
        return loss.detach(), shape

    return _step_of(model, backward)


@zoo()
def tensors_saved_on_the_cpu_by_torch() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def backward(number: int) -> Any:
        with torch.autograd.graph.save_on_cpu():
            loss = mean_square(model(inputs))
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            again = mean_square(model(inputs))
        (loss + again).backward()
        return loss.detach()

    return _step_of(model, backward)


@zoo()
def checkpoint_of_a_sequence() -> Trial:
    model = nn.Sequential(*(block() for _ in range(3)))
    return training(model, noise(5, 6), call=lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False))


@zoo("no-twin")
def a_gradient_hook_that_runs_another_backward_pass() -> Trial:
    model, inputs = nn.ModuleDict({"main": mlp(), "probe": nn.Linear(3, 1)}), noise(5, 6)

    def backward(number: int) -> Any:
        out = model["main"](inputs)

        def probe(grad: Tensor) -> None:
            with torch.enable_grad():
                mean_square(model["probe"](grad.detach())).backward()

        out.register_hook(probe)
        loss = mean_square(out)
        loss.backward()
        return loss.detach()

    return _step_of(model, backward)
