"""Fine-tunes a model in bfloat16. The updates are lost; with `--fixed`, they aren't."""

import sys

import torch
from torch import nn

import hookcore

FIXED = "--fixed" in sys.argv

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(50, 64), nn.Flatten(), nn.Linear(8 * 64, 128), nn.GELU(), nn.Linear(128, 50))
if not FIXED:
    model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
kinds = ("output", "output_grad", "param_grad", "update")
with hookcore.watch(model, budget=None, kinds=kinds) as watcher:
    for _ in range(130):
        words = torch.randint(50, (64, 8))
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(words), words[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
found = watcher.client().findings()
print(found.course.sentence, found.scope.sentence, sep="\n")
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
