# mypy: disable-error-code="no-untyped-call"
"""Training loops: optimizers, scaling, several models, threads and processes."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.zoo.case import Trial, adamw, mean_square, mlp, noise, sgd, training, zoo


@zoo()
def autocast_to_bfloat16() -> Trial:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))

    def call(x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    return training(model, noise(5, 6), call=call)


@zoo()
def loss_scaling_with_skipped_steps() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    optimizer, scaler = adamw(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def step(number: int) -> Any:
        optimizer.zero_grad()
        # The first gradient of the second step overflows, so that the scaler skips that step.
        loss = mean_square(model(inputs)) * (1e38 if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), scaler.get_scale()

    return Trial(model, step)


@zoo()
def loss_scaling_with_clipping_and_accumulation() -> Trial:
    model, batches = mlp(), [noise(5, 6) for _ in range(2)]
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cpu", init_scale=64.0)

    def step(number: int) -> Any:
        optimizer.zero_grad(set_to_none=False)
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = mean_square(model(batch))
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), norm, scaler.get_scale()

    return Trial(model, step)


@zoo()
def clipping() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        nn.utils.clip_grad_value_(model.parameters(), 0.005)
        optimizer.step()
        return loss.detach(), norm

    return Trial(model, step)


@zoo()
def lbfgs_with_a_closure() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)), noise(5, 6)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        return loss

    return Trial(model, lambda number: optimizer.step(closure))


@zoo()
def sgd_with_a_closure() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())

    def closure() -> float:
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        return loss.item()

    return Trial(model, lambda number: optimizer.step(closure=closure))


@zoo()
def optimizer_inside_the_backward_pass() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.05) for parameter in model.parameters()}

    def apply(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(apply)

    def step(number: int) -> Any:
        loss = mean_square(model(inputs))
        loss.backward()
        return loss.detach()

    return Trial(model, step)


@zoo()
def two_optimizers_for_one_model() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    first, last = sgd(model[0].parameters()), adamw(model[3].parameters())

    def step(number: int) -> Any:
        first.zero_grad()
        last.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        first.step()
        last.step()
        return loss.detach()

    return Trial(model, step)


@zoo()
def adversarial_pair_with_gradient_penalty() -> Trial:
    forger, critic = mlp(), nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1))
    forger_steps, critic_steps = adamw(forger.parameters()), adamw(critic.parameters())
    real, seed = noise(5, 3), noise(5, 6)

    def train_critic() -> Tensor:
        critic_steps.zero_grad()
        fake = forger(seed).detach()
        between = (real + fake).div(2).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss: Tensor = critic(fake).mean() - critic(real).mean() + (slope.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        critic_steps.step()
        return loss.detach()

    def train_forger() -> Tensor:
        forger_steps.zero_grad()
        loss: Tensor = -critic(forger(seed)).mean()
        loss.backward()
        forger_steps.step()
        return loss.detach()

    return Trial(critic, lambda number: (train_critic(), train_forger()), (forger,))


@zoo()
def sgd_by_hand() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def step(number: int) -> Any:
        loss = mean_square(model(inputs))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None
        return loss.detach()

    return Trial(model, step)


@zoo()
def backward_without_any_step() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def step(number: int) -> Any:
        mean_square(model(inputs)).backward()
        return None

    return Trial(model, step)


class StepsTwice(torch.optim.SGD):
    """An optimizer whose step calls its parent's, so that the hooks of a step run twice."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@zoo()
def optimizer_that_calls_its_parents_step() -> Trial:
    return training(mlp(), noise(5, 6), optimizer=lambda parameters: StepsTwice(parameters, lr=0.05))


@zoo()
def optimizers_of_many_kinds_with_a_schedule() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    groups = [{"params": [parameter], "lr": 0.01 * (i + 1)} for i, parameter in enumerate(model.parameters())]
    kinds = (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.Adam)
    optimizers = [kind([group]) for kind, group in zip(kinds, groups, strict=True)]
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for optimizer in optimizers]

    def step(number: int) -> Any:
        model.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        return loss.detach()

    return Trial(model, step)


@zoo()
def step_without_a_new_gradient() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        optimizer.step()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        optimizer.step()
        return loss.detach()

    return Trial(model, step)


class Numbers(Dataset[Tensor]):
    """A data set whose items are computed in the worker, with a module in it."""

    def __init__(self) -> None:
        self.rows = noise(6, 6)
        self.layer = nn.Linear(6, 6)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return self.layer(self.rows[index]).detach()  # type: ignore[no-any-return]


@zoo()
def data_loader_with_forked_workers() -> Trial:
    model, data = mlp(), Numbers()
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        losses = []
        for batch in DataLoader(data, batch_size=3, num_workers=1, shuffle=True, multiprocessing_context="fork"):
            optimizer.zero_grad()
            loss = mean_square(model(batch))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    return Trial(model, step)


@zoo()
def two_models_in_two_threads() -> Trial:
    models = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2)]
    inputs = noise(5, 6)
    optimizers = [sgd(model.parameters()) for model in models]

    def train(which: int, losses: list[Any]) -> None:
        for _ in range(5):
            optimizers[which].zero_grad()
            loss = mean_square(models[which](inputs))
            loss.backward()
            optimizers[which].step()
            losses[which].append(loss.detach())

    def step(number: int) -> Any:
        losses: list[Any] = [[], []]
        threads = [threading.Thread(target=train, args=(which, losses)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return losses

    return Trial(models[0], step, (models[1],))


@zoo()
def forward_and_backward_in_different_threads() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        optimizer.step()
        return loss.detach()

    return Trial(model, step)


@zoo()
def random_numbers_of_three_kinds() -> Trial:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.last = nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Any:
            x = self.drop(self.first(x)) + torch.randn(5, 6) * float(np.random.rand()) + random.random()
            return self.last(nn.functional.dropout(x, 0.5))

    return training(Noisy(), noise(5, 6))


@zoo()
def default_dtype_and_device_contexts() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"):
                shadow = torch.zeros(3).device.type
                optimizer.zero_grad()
                loss = mean_square(model(inputs))
                loss.backward()
        finally:
            torch.set_default_dtype(before)
        optimizer.step()
        return loss.detach(), shadow

    return Trial(model, step)


@zoo()
def modes_of_the_users_around_the_step() -> Trial:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class CountsOps(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    class CountsCalls(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    model, inputs = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        with CountsCalls() as calls, CountsOps() as ops:
            optimizer.zero_grad()
            loss = mean_square(model(inputs))
            loss.backward()
            optimizer.step()
        return loss.detach(), calls.calls, ops.ops

    return Trial(model, step)


@zoo()
def layers_left_out_at_random() -> Trial:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

        def forward(self, x: Tensor) -> Any:
            for part in self.blocks:
                if torch.rand(()) < 0.5:
                    x = x + part(x)
            return x

    return training(Skips(), noise(5, 6).requires_grad_())


@zoo()
def a_part_that_is_trained_alone_for_a_while() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        model[0].requires_grad_(number != 1)
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Trial(model, step)
