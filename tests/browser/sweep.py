"""A real sweep: eight small trainings of two learning rates by four widths, one after the other.

python -m tests.browser.sweep URL
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import hookcore

RATES, WIDTHS = (0.003, 0.03, 0.3, 30.0), (4, 32)
STEPS = 150


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    teacher = torch.randn(16, 4, generator=generator)
    for rate in RATES:
        for width in WIDTHS:
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            config = {"lr": rate, "width": width, "seed": 1}
            name = f"sweep-of-learning-rates-and-widths-lr-{rate}-width-{width}"
            with hookcore.watch(model, server=sys.argv[1], name=name, config=config, tags="sweep") as watcher:
                for _ in range(STEPS):
                    inputs = torch.randn(64, 16, generator=generator)
                    loss = nn.functional.cross_entropy(model(inputs), (inputs @ teacher).argmax(1))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            watcher.flush()
            # The reference for the page: the loss on samples that no training has seen.
            fresh = torch.randn(4096, 16, generator=torch.Generator().manual_seed(5))
            with torch.no_grad():
                final = nn.functional.cross_entropy(model(fresh), (fresh @ teacher).argmax(1))
            print(rate, width, final.item(), flush=True)


if __name__ == "__main__":
    main()
