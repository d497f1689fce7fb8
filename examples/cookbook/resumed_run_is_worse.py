"""Resumes from a checkpoint that lacks the optimizer; with `--fixed`, it has it."""

import copy
import sys

import torch
from torch import nn

import hookcore

FIXED = "--fixed" in sys.argv


def make():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model, optimizer, first, last, name):
    """Train for some steps, and return the id of the run."""
    with hookcore.watch(model, name=name) as watcher:
        for step in range(first, last):
            inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(step))
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :4].prod(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return watcher.client().overview().run


torch.manual_seed(0)
model, optimizer = make()
one = train(model, optimizer, 0, 200, "first")
checkpoint = {"model": model.state_dict()}
if FIXED:
    checkpoint["optimizer"] = optimizer.state_dict()
checkpoint = copy.deepcopy(checkpoint)

model, optimizer = make()
model.load_state_dict(checkpoint["model"])
if FIXED:
    optimizer.load_state_dict(checkpoint["optimizer"])
two = train(model, optimizer, 200, 220, "resumed")
found = hookcore.Client().resume_check(two, one)
print(found.message)
for part in found.parts:
    print(f"{part.name}: {part.outcome}. {part.message}")
