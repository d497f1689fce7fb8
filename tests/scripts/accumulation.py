"""Gradients of four micro-batches per step, clipped."""

import sys

import torch
from torch import nn

if __name__ == "__main__":
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in range(20):
        inputs = torch.randn(8, 6)
        (nn.functional.mse_loss(model(inputs), inputs[:, :1]) / 4).backward()
        if batch % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    torch.save(model.state_dict(), sys.argv[1])
