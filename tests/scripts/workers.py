"""Data from a spawned worker process, with a data set class from this script. The whole model is saved by pickle."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        point = torch.tensor([index / 32.0])
        return point, point**2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, points):
        return self.net(points)


if __name__ == "__main__":
    torch.manual_seed(3)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for points, squares in DataLoader(Squares(), 8, shuffle=True, num_workers=1, multiprocessing_context="spawn"):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(points), squares).backward()
        optimizer.step()
    torch.save(model, sys.argv[1] + ".whole")
    again = torch.load(sys.argv[1] + ".whole", weights_only=False)
    torch.save(again.state_dict(), sys.argv[1])
