"""A watched data-parallel training under torchrun. In its first attempt, rank 1 dies after a few steps."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hookcore

if __name__ == "__main__":
    attempt, rank, world = (os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
    # Not torchrun's store, in which gloo finds addresses of the attempt before.
    meeting = f"file://{sys.argv[2]}/meeting-{attempt}"
    dist.init_process_group("gloo", meeting, rank=int(rank), world_size=int(world))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    with hookcore.watch(model, budget=None, name="elastic") as watcher:
        for _ in range(int(sys.argv[1])):
            optimizer.zero_grad()
            parallel(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
        if attempt == "0":
            assert watcher.flush()
            dist.barrier()
            if dist.get_rank() == 1:
                os._exit(3)
            dist.barrier()  # until torchrun ends it
    dist.destroy_process_group()
