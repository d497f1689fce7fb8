"""A compiled model."""

import sys

import torch
from torch import nn

if __name__ == "__main__":
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    fast = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(8):
        inputs = torch.randn(8, 6)
        loss = nn.functional.cross_entropy(fast(inputs), inputs.argmax(1) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), sys.argv[1])
