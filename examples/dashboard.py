"""Trains a small network on two spirals and shows its layers live, from a thread of the same process.

    python examples/dashboard.py

The page stays up after the training until Ctrl+C.
"""

from __future__ import annotations

import argparse
import threading

import torch
from torch import Tensor, nn

import hookcore

BATCH = 128


def make_spirals(points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points on two intertwined spirals, and the spiral of each point."""
    labels = torch.randint(2, (points,), generator=generator)
    turn = torch.rand(points, generator=generator).sqrt() * 3 * torch.pi
    angle = turn + labels * torch.pi
    places = torch.stack([angle.cos(), angle.sin()], dim=1) * turn[:, None] / (3 * torch.pi)
    return places + 0.02 * torch.randn(points, 2, generator=generator), labels


def make_model() -> nn.Sequential:
    """Return a network with enough layers to be interesting."""
    return nn.Sequential(
        nn.Linear(2, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.LayerNorm(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 2),
    )


def train(model: nn.Module, watcher: hookcore.Watcher, steps: int) -> float:
    """Train as usual; return the share of correct answers on new points."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        places, labels = make_spirals(BATCH, generator)
        loss = nn.functional.cross_entropy(model(places), labels)
        optimizer.zero_grad()
        loss.backward()
        watcher.log(loss=loss)
        optimizer.step()
    places, labels = make_spirals(10_000, generator)
    with torch.no_grad():
        return float((model(places).argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Read the command line, train, and serve."""
    parser = argparse.ArgumentParser(description="Trains a small network and shows its layers live.")
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    torch.set_num_threads(1)  # so small a network gains nothing from more threads, and the server needs a core too
    torch.manual_seed(0)
    model = make_model()
    with hookcore.watch(model, server="thread") as watcher:
        print(watcher.url, flush=True)
        share = train(model, watcher, given.steps)
        print(f"{share:.1%} right after {given.steps} steps; Ctrl+C ends", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("ending", flush=True)


if __name__ == "__main__":
    main()
