"""Trains twice with the same seed. An evaluation changes the training; with `--fixed`, it doesn't."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookcore

FIXED = "--fixed" in sys.argv


def train(name, evaluates):
    torch.manual_seed(0)
    inputs = torch.randn(256, 16)
    data = TensorDataset(inputs, inputs[:, :4].sum(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(0) if FIXED else None
    loader = DataLoader(data, batch_size=32, shuffle=True, generator=order)
    with hookcore.watch(model, name=name, budget=None) as watcher:
        for _ in range(5):
            for batch, targets in loader:
                loss = nn.functional.mse_loss(model(batch), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if evaluates:
                evaluate(model, data)
    return watcher.client().overview().run


def evaluate(model, data):
    """Log the error on some random samples."""
    with torch.no_grad():
        inputs, targets = data[torch.randint(len(data), (64,))]
        return nn.functional.mse_loss(model(inputs), targets).item()


one, two = train("without", evaluates=False), train("with", evaluates=True)
print(hookcore.Client().compare(one, two).verdict.message)
