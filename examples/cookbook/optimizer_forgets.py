"""Trains with an optimizer that forgets its momentum in each step. With `--fixed`, it keeps it."""

import sys

import torch
from torch import nn

import hookcore

FIXED = "--fixed" in sys.argv


class Momentum(torch.optim.Optimizer):
    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                if FIXED:
                    momentum.mul_(0.9).add_(weight.grad)
                else:
                    momentum = 0.9 * momentum + weight.grad  # a new tensor, which is never stored
                weight.sub_(group["lr"] * momentum)


torch.manual_seed(0)
inputs = torch.randn(2048, 8)
targets = inputs.square().mean(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = Momentum(model.parameters(), lr=0.01)
with hookcore.watch(model, budget=None, state_every=20) as watcher:
    for _ in range(200):
        batch = torch.randint(2048, (256,))
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
