"""Fits a function with a learning rate that is too high. It is too low with `--low`, and right with `--fixed`."""

import sys

import torch
from torch import nn

import hookcore

RATE = 1e-6 if "--low" in sys.argv else 0.1 if "--fixed" in sys.argv else 5.0

torch.manual_seed(0)
inputs = torch.randn(2048, 8)
targets = inputs.square().mean(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
with hookcore.watch(model, budget=None) as watcher:
    for _ in range(260):
        batch = torch.randint(2048, (512,))
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
