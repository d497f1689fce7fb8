# mypy: disable-error-code="no-untyped-call"
"""Models that are copied, saved, loaded, moved, and discarded while they are trained."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.zoo.case import Trial, adamw, mean_square, mlp, noise, sgd, training, zoo


@zoo()
def moving_average_by_deepcopy() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    trial = training(model, inputs, optimizer=adamw)
    average = copy.deepcopy(model)

    def step(number: int) -> Any:
        loss = trial.step(number)
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
            again = copy.deepcopy(model).eval()(inputs)
            return loss, average(inputs), again

    return Trial(model, step, (average,))


@zoo()
def averaged_model_of_torch() -> Trial:
    model, inputs = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)), noise(5, 6)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    trial = training(model, inputs)

    def step(number: int) -> Any:
        loss = trial.step(number)
        average.update_parameters(model)
        return loss

    return Trial(model, step, (average,))


@zoo()
def saved_and_loaded_between_steps() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    trial = training(model, inputs)

    def step(number: int) -> Any:
        loss = trial.step(number)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        model.load_state_dict({name: value * 0.9 for name, value in loaded.state_dict().items()})
        return loss, list(loaded.state_dict())

    return Trial(model, step)


@zoo()
def copied_and_pickled_between_forward_and_backward() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())

    def step(number: int) -> Any:
        optimizer.zero_grad()
        out = model(inputs)
        twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        loss = mean_square(out)
        loss.backward()
        optimizer.step()
        return loss.detach(), [parameter.detach() for parameter in twin.parameters()]

    return Trial(model, step)


@zoo()
def model_moved_to_another_format() -> Trial:
    model, inputs = mlp(), noise(5, 6)

    def step(number: int) -> Any:
        dtype = (torch.float32, torch.float64, torch.bfloat16)[number % 3]
        model.to(dtype)
        loss = mean_square(model(inputs.to(dtype)))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
        model.zero_grad()
        return loss.detach()

    return Trial(model, step)


@zoo()
def short_lived_models() -> Trial:
    model, inputs = mlp(), noise(5, 6)
    trial = training(model, inputs)

    def step(number: int) -> Any:
        loss = trial.step(number)
        short = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        brief = mean_square(short(model(inputs)))
        brief.backward()
        model.zero_grad()
        del short
        gc.collect()
        return loss, brief.detach()

    return Trial(model, step)


@zoo()
def parameters_swapped_for_others() -> Trial:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Any:
            return self.head(self.body(x))

    model, inputs = Head(), noise(5, 6)

    def step(number: int) -> Any:
        model.head.weight = nn.Parameter(model.head.weight.detach() * 0.5)
        optimizer = sgd(model.parameters())
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss.detach()

    return Trial(model, step)
