"""Trains a transformer to reverse digits. Its attention collapses; with `--fixed`, it doesn't."""

import sys

import torch
from torch import nn

import hookcore

RATE = 0.01 if "--fixed" in sys.argv else 0.2
WIDTH, HEADS, TOKENS = 32, 4, 12


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return self.out((self.softmax(scores) @ v).transpose(1, 2).flatten(2))


class Reverser(nn.Module):
    def __init__(self):
        super().__init__()
        self.digits, self.places = nn.Embedding(10, WIDTH), nn.Embedding(TOKENS, WIDTH)
        for embedding in (self.digits, self.places):
            nn.init.normal_(embedding.weight, std=0.1)
        self.attention = Attention()
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, digits):
        x = self.digits(digits) + self.places.weight
        return self.head(x + self.attention(x))


torch.manual_seed(0)
model = Reverser()
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
with hookcore.watch(model, budget=None) as watcher:
    watcher.probe("entropy", hookcore.probes.attention_entropy, include="attention.softmax", every=2)
    for _ in range(70):
        digits = torch.randint(10, (32, TOKENS))
        loss = nn.functional.cross_entropy(model(digits).flatten(0, 1), digits.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
entropy = watcher.reader().series("attention.softmax probe [entropy]", "max").mean
print(f"entropy of the broadest head: {entropy[0]:.2f} at first, {entropy[-1]:.2f} last")
