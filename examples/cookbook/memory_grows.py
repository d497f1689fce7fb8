"""Trains, and keeps the validation losses. Memory grows; with `--fixed`, it doesn't."""

import sys
import time

import torch
from torch import nn

import hookcore

FIXED = "--fixed" in sys.argv
MEMORY, sizes = "hookcore/system/memory/process", []


@hookcore.rule
def memory_grows(frame):
    """The process takes half as much memory again as in the first sample."""
    if MEMORY in frame.scalars:
        sizes.append(frame.scalars[MEMORY] / 1e6)
    if len(sizes) > 2 and sizes[-1] > 1.5 * sizes[0]:
        return f"the memory of the process grew from {sizes[0]:.0f} to {sizes[-1]:.0f} MB"


def validate(model, inputs):
    with torch.set_grad_enabled(not FIXED):
        return nn.functional.mse_loss(model(inputs), inputs[:, :1])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
validation, losses = torch.randn(3072, 64), []
with hookcore.watch(model, budget=None) as watcher:
    for _ in range(100):
        time.sleep(0.02)  # loads the batch
        inputs = torch.randn(32, 64)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(validate(model, validation))
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
for event in watcher.reader().events(name="unused-forward").events[:1]:
    print(f"{event.severity}: {event.message}")
print(f"{sizes[0]:.0f} MB at first, {sizes[-1]:.0f} MB last")
