"""Trains in two processes. Rank 1 is late, or has weights of its own with `--different`; with `--fixed`, neither."""

import os
import sys
import time

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import hookcore

FIXED, DIFFERENT = "--fixed" in sys.argv, "--different" in sys.argv


def augment(images, rank):
    """Crop and flip. The images of rank 1 are four times as large, because nobody resized them."""
    time.sleep(0.005 if FIXED or DIFFERENT or rank == 0 else 0.025)
    return images


def train(rank, address):
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    if DIFFERENT and rank == 1:
        model.module[2].reset_parameters()  # "initialize the head again", after DDP has made all ranks equal
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kinds = ("output", "output_grad", "param", "param_grad")
    rules = {"late-rank": {"mostly": 0.8}}  # the same rank is last in so many steps, also on a busy machine
    with hookcore.watch(model, kinds=kinds, budget=None, rules=rules):
        for _ in range(72):
            labels = torch.randint(10, (32,))
            images = augment(torch.randn(32, 64) + labels[:, None], rank)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    file = os.path.abspath(f"meeting-{os.getpid()}")
    multiprocessing.spawn(train, (f"file://{file}",), nprocs=2)
    client = hookcore.Client(run=next(run.id for run in hookcore.Client().runs() if run.ranks))
    print(client.findings().scope.sentence)
    for incident in client.incidents():
        print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
