"""Sums the loss over the batch, and clips the gradients: each step is clipped. With `--fixed`, few are."""

import sys

import torch
from torch import nn

import hookcore

REDUCTION = "mean" if "--fixed" in sys.argv else "sum"

torch.manual_seed(0)
inputs = torch.randn(2048, 8)
targets = inputs.square().mean(dim=1, keepdim=True) + 0.1 * torch.randn(2048, 1)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with hookcore.watch(model, budget=None) as watcher:
    for _ in range(200):
        batch = torch.randint(2048, (256,))
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch], reduction=REDUCTION)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
client = watcher.client()
figures, found = client.overview(), client.findings()
print(found.course.sentence)
before, after = figures.gradient_norm_before.value, figures.gradient_norm.value
print(f"The norm of all gradients: {before:.3g} before clipping, {after:.3g} after it")
for finding in found:
    print(f"{finding.severity}: {finding.rule}: {finding.message}")
