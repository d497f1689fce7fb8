"""Classifies images. The loss doesn't fall; with `--fixed`, it does."""

import sys

import torch
from torch import nn
from torch.nn import functional

import hookcore

FIXED = "--fixed" in sys.argv


def load_images():
    labels = torch.randint(10, (2048,))
    images = torch.randn(10, 64)[labels] + torch.randn(2048, 64)
    return images, labels


def shuffle(images, labels):
    order = torch.randperm(len(images))
    return images[order], labels[order if FIXED else torch.randperm(len(labels))]


torch.manual_seed(0)
images, labels = load_images()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with hookcore.watch(model, budget=None) as watcher:
    for _ in range(8):
        images, labels = shuffle(images, labels)
        for inputs, targets in zip(images.split(64), labels.split(64), strict=True):
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for each in found:
    print(f"{each.severity}: {each.rule}: {each.message}")
