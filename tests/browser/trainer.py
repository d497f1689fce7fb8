"""A real training for the page tests: a small CNN whose features go into a small transformer.

python -m tests.browser.trainer URL [--name NAME] [--steps N] [--pause SECONDS] [--bad-at STEP] [--gpus] [--rest FILE]

It trains for its number of steps, or forever. `--bad-at` makes one layer's weights NaN at that step. `--gpus`
pretends that two GPUs are in use. `--rest` slows it down while the file exists, because no test looks at it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import hookcore
from tests.gpus import Nvml, device
from tests.inside import module_of

SIDE, FEATURES, CLASSES = 8, 16, 4
RESTING_S, LOOK_S = 2.0, 0.05
POSITIONS = [f"r{row} c{column}" for row in range(SIDE - 2) for column in range(SIDE - 2)]  # after two convolutions


class Net(nn.Module):
    """Classifies pictures. Has feature maps, attention weights, ReLUs, and a module that never fires."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, FEATURES, 3, padding=1), nn.ReLU(), nn.Conv2d(FEATURES, FEATURES, 3))
        self.attention = nn.MultiheadAttention(FEATURES, 2, batch_first=True)
        layer = nn.TransformerEncoderLayer(FEATURES, 2, 32, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.unused = nn.Linear(2, 2)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the scores of the classes."""
        sequence = self.features(pictures).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(sequence, sequence, sequence, need_weights=True, average_attn_weights=False)
        found: Tensor = self.head(self.encoder(sequence + mixed).mean(1))
        return found


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pictures with one bright quarter, and the number of that quarter."""
    quarters = torch.randint(0, CLASSES, (32,), generator=generator)
    pictures = torch.randn(32, 1, SIDE, SIDE, generator=generator) * 0.3
    half = SIDE // 2
    for picture, quarter in zip(pictures, quarters.tolist(), strict=True):
        top, left = half * (quarter // 2), half * (quarter % 2)
        picture[0, top : top + half, left : left + half] += 1.0
    return pictures, quarters


def pause(seconds: float, rest: Path | None) -> None:
    """Wait for some seconds, and longer while the file exists."""
    time.sleep(seconds)
    until = time.monotonic() + RESTING_S
    while rest is not None and rest.exists() and time.monotonic() < until:
        time.sleep(LOOK_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--name", default="quarters")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--bad-at", type=int, default=-1)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--rest", type=Path)
    given = parser.parse_args()
    if given.gpus:
        vars(module_of("Throughput")).update(
            cuda_devices=lambda: [device(0, "GPU-a"), device(1, "GPU-b")], open_nvml=Nvml
        )
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=given.rate)
    watcher = hookcore.watch(model, server=given.url, name=given.name, budget=None)
    for step in range(given.steps):
        pictures, quarters = draw(generator)
        if step == given.bad_at:
            with torch.no_grad():
                model.encoder.layers[1].linear1.weight[0, 0] = float("nan")
        watcher.tokens(POSITIONS)
        watcher.labels([f"quarter {quarter}" for quarter in quarters.tolist()])
        loss = nn.functional.cross_entropy(model(pictures), quarters)
        optimizer.zero_grad()
        loss.backward()
        watcher.log(loss=loss.item(), lr=given.rate)
        optimizer.step()
        pause(given.pause, given.rest)
    watcher.close()


if __name__ == "__main__":
    main()
