"""Fine-tunes a network with a new head that the optimizer doesn't know; with `--fixed`, it does."""

import sys

import torch
from torch import nn
from torch.nn import functional

import hookcore

FIXED = "--fixed" in sys.argv


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(32, classes)

    def forward(self, images):
        return self.head(self.pool(self.body(images)).flatten(1))


def load_pretrained():
    return Net(classes=1000)


torch.manual_seed(0)
model = load_pretrained()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.head = nn.Linear(32, 5)  # our data has five classes
if FIXED:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

labels = torch.randint(5, (512,))
images = torch.randn(5, 3, 16, 16)[labels] + torch.randn(512, 3, 16, 16)
with hookcore.watch(model, budget=None) as watcher:
    for _ in range(64):
        batch = torch.randint(512, (32,))
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
