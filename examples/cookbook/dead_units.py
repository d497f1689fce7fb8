"""Predicts prices from raw columns. A layer dies; with `--fixed`, the columns are normalized, and it doesn't."""

import sys

import torch
from torch import nn

import hookcore

FIXED = "--fixed" in sys.argv


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.relu1 = nn.Linear(5, 64), nn.ReLU()
        self.second, self.relu2 = nn.Linear(64, 64), nn.ReLU()
        self.head = nn.Linear(64, 1)

    def forward(self, columns):
        return self.head(self.relu2(self.second(self.relu1(self.first(columns)))))


def load_houses():
    """Return area in square feet, rooms, year, distance, and floor; and the price in thousands."""
    centers, spreads = torch.tensor([1800.0, 4.0, 1975.0, 12.0, 3.0]), torch.tensor([700.0, 1.5, 30.0, 8.0, 2.0])
    columns = centers + spreads * torch.randn(4096, 5)
    prices = 0.15 * columns[:, :1] + 20 * columns[:, 1:2] - 3 * columns[:, 3:4] + 10 * torch.randn(4096, 1)
    if FIXED:
        columns, prices = (columns - centers) / spreads, (prices - prices.mean()) / prices.std()
    return columns, prices


torch.manual_seed(0)
columns, prices = load_houses()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with hookcore.watch(model, budget=None) as watcher:
    for step in range(130):
        batch = torch.arange(64 * step, 64 * step + 64) % len(columns)
        loss = nn.functional.huber_loss(model(columns[batch]), prices[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
