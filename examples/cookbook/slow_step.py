"""Classifies images that are read from a slow disk. Each step waits for them; with `--fixed`, workers read ahead."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import hookcore

WORKERS = 8 if "--fixed" in sys.argv else 0
READ_S = 0.003  # that the disk takes for an image


class Photos(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, place):
        time.sleep(READ_S)
        generator = torch.Generator().manual_seed(place)
        label = place % 10
        return torch.randn(1, 16, 16, generator=generator) + label / 10, label


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 256, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Photos(), batch_size=16, num_workers=WORKERS)
    # hookcore measures a step every two seconds, and wants eight of them. This script is short, so that four must do.
    rules = {"slow-data-loading": {"steps": 4}}
    with hookcore.watch(model, budget=None, rules=rules) as watcher:
        until = time.monotonic() + 2.5
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if time.monotonic() > until:
                break
    print(f"{watcher.client().overview().steps_per_s:.0f} steps per second")
    for incident in watcher.incidents():
        print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
