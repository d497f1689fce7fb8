"""Compresses rows into codes of a codebook. The encoder doesn't learn; with `--fixed`, it does."""

import sys

import torch
from torch import nn
from torch.nn import functional

import hookcore

FIXED = "--fixed" in sys.argv
CODES = 16


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CODES))
        self.codebook = nn.Embedding(CODES, 24)
        self.decoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, rows):
        logits = self.encoder(rows)
        if FIXED:
            code = functional.gumbel_softmax(logits, hard=True) @ self.codebook.weight
        else:
            code = self.codebook(logits.argmax(dim=1))
        return self.decoder(code)


torch.manual_seed(0)
centers = 3 * torch.randn(CODES, 32)
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with hookcore.watch(model, budget=None) as watcher:
    for _ in range(260):
        rows = centers[torch.randint(CODES, (64,))] + torch.randn(64, 32)
        loss = functional.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
