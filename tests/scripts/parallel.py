"""DistributedDataParallel under torchrun; every rank saves its weights."""

import os
import sys

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        inputs = torch.randn(8, 6)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs[:, :1]).backward()
        optimizer.step()
    torch.save(model.module.state_dict(), f"{sys.argv[1]}{os.environ['RANK']}")
    torch.distributed.destroy_process_group()
