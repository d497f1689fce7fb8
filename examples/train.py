"""The smallest complete example: watch a model, train it, read the data. Run `python examples/train.py`."""

from __future__ import annotations

import torch
from torch import nn

import hookcore


def main() -> None:
    """Train for a hundred steps and print each layer's newest numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with hookcore.watch(model, include="is:leaf", server=None) as watcher:
        for _ in range(100):
            inputs = torch.randn(32, 20)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
            optimizer.zero_grad()
            loss.backward()
            watcher.log(loss=loss)
            optimizer.step()
    latest = watcher.store.latest()
    column = {name: place for place, name in enumerate(latest.stats)}
    print(f"{'module':8} {'kind':12} {'mean':>10} {'std':>10} {'norm':>10} {'zero':>6}")
    for tap, values in zip(latest.taps, latest.values, strict=True):
        mean, std, norm, zero = (values[column[name]] for name in ("mean", "std", "norm", "zero_fraction"))
        name = f"{tap.module}.{tap.index}" if tap.index else tap.module
        print(f"{name:8} {tap.kind:12} {mean:10.3g} {std:10.3g} {norm:10.3g} {zero:6.1%}")
    losses = watcher.store.scalars("loss")
    print(f"loss: {losses.mean[0]:.3g} in step {losses.first_step[0]}, {losses.mean[-1]:.3g} in the last")


if __name__ == "__main__":
    main()
