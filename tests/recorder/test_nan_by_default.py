"""A project of several files: default settings name the layer, the step, and the line of its first NaN.

The step isn't captured, so everything that is known about it comes from the sentinel, the saved step, and its replay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.archive_world import kept_in
from tests.serving import TOKEN, served
from tests.warm import python

pytestmark = pytest.mark.slow

BAD: Final = 120  # not a multiple of the stride
FILES: Final = {
    "config.py": '''
"""What is trained, and for how long."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """The settings of a training."""

    width: int = 32
    depth: int = 5
    classes: int = 4
    batch: int = 16
    features: int = 12
    steps: int = 250
    dropped_from: int = 120
    dropped_stage: int = 3
    pause: float = 0.0
    lr: float = 1e-3
    seed: int = 3


def read_config() -> Config:
    """Return the settings given on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    return Config(pause=given.pause)
''',
    "data.py": '''
"""Samples of a few classes, in batches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from config import Config


class Clusters(Dataset):
    """Points around the centers of their classes."""

    def __init__(self, config: Config, count: int = 512) -> None:
        generator = torch.Generator().manual_seed(config.seed)
        centers = torch.randn(config.classes, config.features, generator=generator)
        self.labels = torch.randint(config.classes, (count,), generator=generator)
        noise = torch.randn(count, config.features, generator=generator)
        self.points = centers[self.labels] * 2 + noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return self.points[index], self.labels[index]


def loader_of(config: Config) -> DataLoader:
    """Return the batches of one epoch."""
    return DataLoader(Clusters(config), batch_size=config.batch, shuffle=True, drop_last=True)


def batches(config: Config) -> Iterator:
    """Yield batches, epoch after epoch, until all steps are done."""
    loader, done = loader_of(config), 0
    while True:
        for batch in loader:
            if done == config.steps:
                return
            done += 1
            yield batch
''',
    "models/__init__.py": '''
"""The network and its parts."""

from models.net import Net

__all__ = ["Net"]
''',
    "models/norm.py": '''
"""Normalization on a logarithmic scale."""

from __future__ import annotations

import torch
from torch import nn


class LogNorm(nn.Module):
    """Scales each sample by its standard deviation, which is computed from the logarithm of its variance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centered = x - x.mean(-1, keepdim=True)
        variance = centered.square().mean(-1, keepdim=True)
        scale = torch.log(variance)  # guilty
        return centered * torch.exp(-0.5 * scale) * self.gain + self.shift
''',
    "models/drop.py": '''
"""Dropout of whole samples, which a schedule may set to everything."""

from __future__ import annotations

import torch
from torch import nn


class SampleDrop(nn.Module):
    """Sets a share of the samples to zero."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.share == 0:
            return x
        kept = torch.rand(len(x), 1, device=x.device) >= self.share
        return x * kept
''',
    "models/stage.py": '''
"""A stage of the network."""

from __future__ import annotations

import torch
from torch import nn

from models.drop import SampleDrop
from models.norm import LogNorm


class Stage(nn.Module):
    """A residual block: normalize what a linear layer made, and add the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.drop = SampleDrop()
        self.norm = LogNorm(width)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.norm(self.drop(self.linear(x))))
''',
    "models/net.py": '''
"""The network."""

from __future__ import annotations

import torch
from torch import nn

from config import Config
from models.stage import Stage


class Net(nn.Module):
    """Embeds the features, passes them through the stages, and classifies them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Linear(config.features, config.width)
        self.stages = nn.ModuleList(Stage(config.width) for _ in range(config.depth))
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)
''',
    "schedules.py": '''
"""What changes while the network is trained."""

from __future__ import annotations

import math

from config import Config
from models import Net


def lr_at(config: Config, step: int) -> float:
    """Return the learning rate of a step: a short warmup, then half a cosine."""
    if step < 10:
        return config.lr * (step + 1) / 10
    return config.lr * 0.5 * (1 + math.cos(math.pi * step / (4 * config.steps)))


def set_drop(net: Net, config: Config, step: int) -> None:
    """Drop every sample of one stage from a step on."""
    stage = net.stages[config.dropped_stage]
    stage.drop.share = 1.1 if step >= config.dropped_from else 0.0
''',
    "training.py": '''
"""The loop."""

from __future__ import annotations

import time

import torch
from torch import nn

from config import Config
from data import batches
from models import Net
from schedules import lr_at, set_drop


class Trainer:
    """Trains a network."""

    def __init__(self, net: Net, config: Config) -> None:
        self.net, self.config = net, config
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=config.lr)
        self.criterion = nn.CrossEntropyLoss()

    def train(self) -> None:
        """Take all steps."""
        self.net.train()
        for step, (points, labels) in enumerate(batches(self.config)):
            set_drop(self.net, self.config, step)
            for group in self.optimizer.param_groups:
                group["lr"] = lr_at(self.config, step)
            self.take_step(points, labels)
            time.sleep(self.config.pause)

    def take_step(self, points: torch.Tensor, labels: torch.Tensor) -> None:
        """Take one step."""
        loss = self.criterion(self.net(points), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
''',
}
SCRIPT: Final = '''
"""Train the network."""

import os
import time
from pathlib import Path

import torch
{imports}
from config import read_config
from models import Net
from training import Trainer

if __name__ == "__main__":
    config = read_config()
    torch.manual_seed(config.seed)
    net = Net(config)
    {watched}
    Trainer(net, config).train()
    until = time.monotonic() + 200  # longer than a training that ends waits for the replay: the machine may be busy
    while not [*Path(os.environ["HOOKCORE_HOME"]).rglob("step-*.json")] and time.monotonic() < until:
        time.sleep(0.05)
'''
SCRIPTS: Final = {
    "run": SCRIPT.format(imports="", watched=""),
    "watch": SCRIPT.format(imports="\nimport hookcore", watched="hookcore.watch()"),
}
NORM: Final = "Net/stages.3.norm"
GUILTY: Final = next(
    number for number, line in enumerate(FILES["models/norm.py"].lstrip().splitlines(), 1) if "guilty" in line
)


def write_project(folder: Path, script: str) -> None:
    """Write the files of a project."""
    for name, source in {**FILES, "train.py": script}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.lstrip())


def train(folder: Path, how: str, pause: float) -> tuple[Path, str]:
    """Train the project as a user does, and return the saved run, and what the terminal said."""
    project = folder / "project"
    write_project(project, SCRIPTS[how])
    # `hookcore run` needs a Python that isn't a fork, because it watches what that one imports.
    started = [sys.executable, "-m", "hookcore_app.cli", "run"] if how == "run" else [python()]
    command = [*started, "train.py"]
    environment = {
        **os.environ,
        "HOOKCORE_HOME": str(folder / "home"),
        "HOOKCORE_EXPLAIN": "auto",
        "HOOKCORE_EVERY": "16",
        "HOOKCORE_ALLOWANCE": "0",
    }
    del environment["HOOKCORE_SERVER"]
    with served(keep=str(folder / "kept")) as server:
        ours = {"HOOKCORE_URL": server.url, "HOOKCORE_TOKEN": TOKEN}
        ended = subprocess.run(
            [*command, "--pause", str(pause)],
            cwd=project,
            env=environment | ours,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ended.returncode == 0, ended.stderr
    return kept_in(folder / "kept"), ended.stderr


def check(kept: Path, *options: str) -> str:
    """Return what `hookcore check` prints about the run."""
    command = [python(), "-m", "hookcore_app.cli", "check", str(kept), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.rota
@pytest.mark.parametrize("pause", [0.004, 0.0005])
@pytest.mark.parametrize("how", ["run", "watch"])
def test_the_layer_the_step_and_the_line_of_the_first_nan_are_named_by_default(
    how: str, pause: float, tmp_path: Path
) -> None:
    kept, terminal = train(tmp_path, how, pause)
    told, checked = check(kept), json.loads(check(kept, "--format", "json"))
    first, loss = [each for each in checked["incidents"] if each["severity"] == "error"]
    assert (first["rule"], first["culprit"]["module"], first["culprit_known"]) == ("nonfinite", NORM, True), told
    assert (first["first_step"], first["earliest_step"], first["source"]) == (BAD, BAD, "replay")
    assert first["where"] == f"norm.py:{GUILTY}"
    assert (loss["rule"], loss["first_step"]) == ("loss", BAD)
    sentence = f"NaN first appeared in the activation of {NORM}, at step {BAD}"
    for text in told, terminal:
        assert sentence in text, text
        assert f"norm.py:{GUILTY}" in text
