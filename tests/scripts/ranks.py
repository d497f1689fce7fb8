"""A watched data-parallel training under torchrun. `HOOKCORE_KEEP` says where each rank saves its run."""

import os
import sys

if sys.argv[1:] == ["restarted"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(3)  # before the imports, which take seconds

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hookcore

if __name__ == "__main__":
    what = sys.argv[1]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    variables = dict(os.environ)
    watcher = None if what == "watched later" else hookcore.watch(model, budget=None)
    dist.init_process_group("gloo")
    watcher = watcher or hookcore.watch(model, budget=None)
    assert dict(os.environ) == variables
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    watcher.close()
    dist.barrier()
    dist.destroy_process_group()
