# mypy: disable-error-code="no-untyped-call"
"""Different ways to call modules, or not to call them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Trial, mean_square, mlp, noise, sgd, training, zoo


class Thrice(nn.Module):
    """Calls one child three times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        for _ in range(3):
            x = self.cell(x).tanh()
        return self.last(x)


class TiedModule(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = self.first
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.second(self.first(x).sin()))


class TiedWeight(nn.Module):
    """One parameter in two modules, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(10, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.middle(self.embedding(x)))


class KeywordOnly(nn.Module):
    """Has a child that takes only keyword arguments."""

    class Child(nn.Module):
        """Takes only keyword arguments."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4)

        def forward(self, *, x: Tensor, scale: float = 1.0) -> Any:
            return self.inner(x) * scale

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor) -> Any:
        return self.child(x=x, scale=0.5)


class ByHand(nn.Module):
    """Iterates over a ModuleList and a ModuleDict, which are never called. Empty ones are falsy."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(6, 2), "b": nn.Linear(6, 2)})
        self.empty, self.nothing = nn.ModuleList(), nn.Sequential()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(6))])

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = self.nothing(block(x)) * self.weights[0]
        return [head(x) for head in self.heads.values()]


class CallsForward(nn.Module):
    """Calls a child's forward directly, which bypasses every hook."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet, self.loud = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        return self.loud(self.quiet.forward(x))


class OwnCall(nn.Module):
    """Overrides `__call__`, so that no hook ever runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def __call__(self, x: Tensor) -> Any:
        return self.inner(x * 2)


class Descends(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor, depth: int = 12) -> Any:
        return self.inner(x) if depth == 0 else self(x.sin(), depth - 1) + x


class Unhashable(nn.Module):
    """Compares by value and therefore has no hash, so it can't be in a set or a key."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError("asked for its truth")

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class UnhashableParent(nn.Module):
    """Has a child without a hash. torch itself puts modules into sets when it iterates over them."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "hidden", Unhashable())
        self.last = nn.Linear(4, 2)

    hidden: Unhashable

    def forward(self, x: Tensor) -> Any:
        return self.last(self.hidden(x))


class Raises(nn.Module):
    """Raises on request."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        out = self.inner(x)
        if x.sum() > 100:
            raise ValueError("too large")
        return out


class Rescues(nn.Module):
    """Takes a different path if a child raises."""

    def __init__(self) -> None:
        super().__init__()
        self.risky, self.safe, self.last = Raises(), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        try:
            out = self.risky(x * 1e6)
        except ValueError:
            out = self.safe(x)
        return self.last(self.risky(out.sigmoid()))


class Varies(nn.Module):
    """Takes a different path at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.paths = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.count = 0

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        for index in range(self.count):
            x = self.paths[index % 3](x)
        return x


class Grows(nn.Module):
    """Gets new and different parts as training continues."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        for child in self.children():
            x = child(x)
        return x


class Peculiar(nn.Module):
    """Has computed attributes, some of which raise."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    @property
    def training_steps(self) -> int:
        raise RuntimeError("asked for a property")

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            return super().__getattr__(name)
        raise RuntimeError(f"asked for {name}")

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class Frozen(nn.Module):
    """Layers without gradients before, between and after those with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.between, self.last = (nn.Linear(6, 6) for _ in range(4))
        for part in (self.first, self.between):
            part.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(self.second(self.first(x))))


class PartlyWithoutGrad(nn.Module):
    """A target network under no_grad, an encoder in inference mode, and a part in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(6, 4), nn.Linear(6, 4)
        self.encoder, self.settled = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        self.settled.eval()

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            goal = self.target(x)
        with torch.inference_mode():
            code = self.encoder(x)
        return self.online(self.settled(x) + code.clone()) - goal


@zoo()
def module_called_three_times() -> Trial:
    return training(Thrice(), noise(5, 6))


@zoo()
def tied_module() -> Trial:
    return training(TiedModule(), noise(5, 6))


@zoo()
def tied_weight() -> Trial:
    return training(TiedWeight(), torch.randint(0, 10, (3, 4)))


@zoo()
def keyword_only_inputs() -> Trial:
    return training(KeywordOnly(), noise(5, 6))


@zoo()
def module_list_walked_by_hand() -> Trial:
    return training(ByHand(), noise(5, 6))


@zoo()
def forward_called_directly() -> Trial:
    return training(CallsForward(), noise(5, 6))


@zoo()
def own_call_method() -> Trial:
    return training(nn.Sequential(nn.Linear(6, 6), OwnCall()), noise(5, 6))


@zoo()
def deep_recursion() -> Trial:
    return training(Descends(), noise(5, 6))


@zoo()
def unhashable_module() -> Trial:
    model = UnhashableParent()
    optimizer = sgd([*model.last.parameters(), *model.hidden.inner.parameters()])
    inputs = noise(5, 6)

    def step(number: int) -> Any:
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Trial(model, step)


@zoo()
def forward_that_raises_inside_the_model() -> Trial:
    return training(Rescues(), noise(5, 6))


@zoo()
def other_path_at_every_step() -> Trial:
    return training(Varies(), noise(5, 6))


@zoo()
def module_with_computed_attributes() -> Trial:
    return training(Peculiar(), noise(5, 6))


@zoo()
def frozen_layers() -> Trial:
    return training(Frozen(), noise(5, 6))


@zoo()
def parts_without_grad_and_in_eval_mode() -> Trial:
    return training(PartlyWithoutGrad(), noise(5, 6))


@zoo()
def lazy_modules() -> Trial:
    model = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(3))
    inputs = noise(4, 2, 7)
    optimizers: list[torch.optim.Optimizer] = []

    def step(number: int) -> Any:
        if not optimizers:
            model(inputs)
            optimizers.append(sgd(model.parameters()))
        optimizers[0].zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizers[0].step()
        return loss.detach()

    return Trial(model, step)


@zoo()
def parameters_added_later() -> Trial:
    model, inputs = Grows(), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        if number:
            part = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
            model.add_module(f"later{number}", part)
            optimizer.add_param_group({"params": list(part.parameters())})
            model.first.register_parameter(f"extra{number}", nn.Parameter(torch.zeros(2)))
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Trial(model, step)


@zoo()
def module_replaced_and_deleted() -> Trial:
    model, inputs = Grows(), noise(5, 6)
    model.second, model.third = nn.Linear(6, 6), nn.Linear(6, 6)

    def step(number: int) -> Any:
        if number == 1:
            model.second = nn.Linear(6, 6, bias=False)
        if number == 2:
            del model.third
        loss = mean_square(model(inputs))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.1 * parameter.grad)
        model.zero_grad()
        return loss.detach()

    return Trial(model, step)


@zoo()
def exception_in_forward_then_recovery() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 6), Raises(), nn.Linear(6, 2)), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        seen = ""
        try:
            model(inputs + 1e6 * (model.get_parameter("0.weight").sum().item() + 1e3))
        except ValueError as error:
            seen = str(error)
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        return loss.detach(), seen

    return Trial(model, step)


@zoo()
def loss_module_is_the_root() -> Trial:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = mlp(), nn.CrossEntropyLoss()

        def forward(self, x: Tensor, y: Tensor) -> Any:
            return self.criterion(self.model(x), y)

    return training(WithLoss(), noise(5, 6), torch.tensor([0, 1, 2, 0, 1]), loss=lambda value: value)


@zoo()
def children_called_without_their_parent() -> Trial:
    model = nn.ModuleDict({"encoder": mlp(), "decoder": nn.Linear(3, 6)})
    return training(model, noise(5, 6), call=lambda x: model["decoder"](model["encoder"](x)))


@zoo()
def evaluation_between_steps() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2)), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        model.eval()
        with torch.no_grad():
            before = model(inputs)
        with torch.inference_mode():
            again = model(inputs)
        model.train()
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        return before, again.clone(), loss.detach()

    return Trial(model, step)


@zoo()
def model_that_is_always_in_eval_mode() -> Trial:
    return training(mlp().eval(), noise(5, 6))


@zoo("no-backward")
def only_inference() -> Trial:
    model, inputs = mlp().eval(), noise(5, 6)

    def step(number: int) -> Any:
        with torch.inference_mode():
            return model(inputs).clone()

    return Trial(model, step)


@zoo()
def class_named_as_one_of_torchs() -> Trial:
    class OptimizedModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Any:
            return self.inner(x)

    return training(OptimizedModule(), noise(5, 6))
