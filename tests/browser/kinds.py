"""Three small trainings of other kinds, for pictures: `python -m tests.browser.kinds URL`.

A deep network of sigmoids, whose gradients vanish; experts, of which two are never used; and a GAN of two models.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import hookcore

STEPS, WIDTH = 60, 16


class Experts(nn.Module):
    """Sends each row to one of the first experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, 1)) for _ in range(6))

    def forward(self, rows: Tensor) -> Tensor:
        """Return a number for each row."""
        shares = self.router(rows).softmax(-1)
        chosen = shares.argmax(-1)
        found = rows.new_zeros(len(rows), 1)
        for expert in chosen.unique().tolist():
            places = (chosen == expert).nonzero().squeeze(-1)
            found = found.index_add(0, places, self.experts[expert](rows[places]) * shares[places, expert, None])
        return found


def train(name: str, model: nn.Module, url: str) -> None:
    """Train a model of one number for each row."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcore.watch(model, server=url, name=name, budget=None) as watcher:
        for _ in range(STEPS):
            rows = torch.randn(64, WIDTH)
            loss = nn.functional.mse_loss(model(rows), rows[:, :1] * 2)
            optimizer.zero_grad()
            loss.backward()
            watcher.log(**{"train/loss": loss.item(), "train/accuracy": 1 / (1 + loss.item()), "lr": 0.1})
            optimizer.step()


def train_pair(name: str, url: str) -> None:
    """Train a generator against a discriminator."""
    maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, WIDTH))
    judge = nn.Sequential(nn.Linear(WIDTH, 32), nn.LeakyReLU(), nn.Linear(32, 1))
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in (maker, judge)]
    binary = nn.functional.binary_cross_entropy_with_logits
    with hookcore.watch(server=url, name=name, budget=None):
        for _ in range(STEPS):
            made, real = maker(torch.randn(32, 4)), torch.randn(32, WIDTH) + 2
            found = judge(torch.cat([real, made.detach()]))
            loss = binary(found, torch.cat([torch.ones(32, 1), torch.zeros(32, 1)]))
            for optimizer, each in ((optimizers[1], loss), (optimizers[0], None)):
                optimizer.zero_grad()
                wanted = binary(judge(made), torch.ones(32, 1)) if each is None else each
                wanted.backward()
                optimizer.step()


def main() -> None:
    torch.manual_seed(1)
    deep = [layer for _ in range(16) for layer in (nn.Linear(WIDTH, WIDTH), nn.Sigmoid())]
    train("sigmoids", nn.Sequential(*deep, nn.Linear(WIDTH, 1)), sys.argv[1])
    train("experts", Experts(), sys.argv[1])
    train_pair("gan", sys.argv[1])


if __name__ == "__main__":
    main()
