"""Trains a deep network. Gradients vanish, or explode with `--explode`; with `--fixed`, they do neither."""

import sys

import torch
from torch import nn

import hookcore

FIXED, EXPLODE = "--fixed" in sys.argv, "--explode" in sys.argv
WIDTH, DEPTH = 64, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH) if FIXED else nn.Identity()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU() if EXPLODE else nn.Sigmoid()
        if EXPLODE:
            nn.init.normal_(self.linear.weight, std=1.0)

    def forward(self, x):
        y = self.act(self.linear(self.norm(x)))
        return x + y if FIXED else y


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, WIDTH), *(Block() for _ in range(DEPTH)), nn.Linear(WIDTH, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with hookcore.watch(model, budget=None) as watcher:
    for _ in range(66):
        inputs = torch.randn(64, 16)
        targets = inputs[:, :4].prod(dim=1, keepdim=True)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
