"""Classifies photos that are read from a slow disk. Each step waits for them; with `--fixed`, they are read once."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import hookcore

FIXED = "--fixed" in sys.argv


def read(place):
    """Read a photo, which takes the disk three milliseconds."""
    time.sleep(0.003)
    generator = torch.Generator().manual_seed(place)
    return torch.randn(1, 16, 16, generator=generator) + place % 10 / 10, place % 10


class Photos(Dataset):
    def __init__(self):
        self.kept = [read(place) for place in range(len(self))] if FIXED else None

    def __len__(self):
        return 128

    def __getitem__(self, place):
        return self.kept[place] if FIXED else read(place)


torch.manual_seed(0)
layers = nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Photos(), batch_size=16, shuffle=True)
# hookcore measures a step every two seconds, and wants eight of them. This script is short, so that four must do.
rules = {"slow-data-loading": {"steps": 4}}
with hookcore.watch(model, budget=None, rules=rules) as watcher:
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print(f"{watcher.client().overview().steps_per_s:.0f} steps per second")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
