"""Restarts a schedule with too high a rate, so that the loss jumps. With `--fixed`, the restart is lower."""

import sys

import torch
from torch import nn

import hookcore

RESTART = 0.05 if "--fixed" in sys.argv else 1.0

torch.manual_seed(0)
inputs = torch.randn(2048, 8)
targets = inputs.square().mean(dim=1, keepdim=True) + 0.1 * torch.randn(2048, 1)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
kinds = ("output", "output_grad", "param_grad", "update")
with hookcore.watch(model, budget=None, kinds=kinds) as watcher:
    for step in range(200):
        optimizer.param_groups[0]["lr"] = RESTART if 150 <= step < 153 else 0.02
        batch = torch.randint(2048, (256,))
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence)
for finding in found:
    if finding.rule in ("loss-spike", "spike-precursor"):
        print(f"{finding.severity}: {finding.rule}: {finding.message}, in {finding.tap.module or 'the model'}")
