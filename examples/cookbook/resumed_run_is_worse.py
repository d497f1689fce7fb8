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


def train(model, optimizer, first, last):
    for step in range(first, last):
        inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :4].prod(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_watched(model, optimizer, name):
    """Train for 20 steps after step 200, and return the id of the run."""
    with hookcore.watch(model, name=name, kinds=("output", "param_grad", "update"), budget=None) as watcher:
        train(model, optimizer, 200, 220)
    return watcher.client().overview().run


torch.manual_seed(0)
model, optimizer = make()
train(model, optimizer, 0, 200)
checkpoint = {"model": model.state_dict()}
if FIXED:
    checkpoint["optimizer"] = optimizer.state_dict()
checkpoint = copy.deepcopy(checkpoint)
one = train_watched(model, optimizer, "went on")

model, optimizer = make()
model.load_state_dict(checkpoint["model"])
if FIXED:
    optimizer.load_state_dict(checkpoint["optimizer"])
two = train_watched(model, optimizer, "resumed")
print(hookcore.Client().compare(one, two).verdict.message)
