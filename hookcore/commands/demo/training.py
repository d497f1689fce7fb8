"""The demo's training loop."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from hookcore.commands.demo.networks import CALLED, MODELS, TROUBLES, Digits, Trouble, batches, load
from hookcore.config import WatchSettings
from hookcore.records.vocabulary import counted
from hookcore.watcher import Watcher, watch

RATE: Final = 2e-3
PRINT_EVERY: Final = 50  # steps between two printed lines


@dataclass(frozen=True, slots=True)
class Demo:
    """The network to train, and the problem to simulate."""

    model: str = "cnn"
    trouble: str = ""  # one of TROUBLES, or empty
    at: int = 100  # the step at which the problem begins
    steps: int = 0  # 0: run until stopped
    most_per_s: float = 25.0  # maximum speed, which leaves time to watch; 0: no limit
    device: str = "cpu"


def train(demo: Demo, say: Callable[[str], None] = print) -> Watcher:
    """Train as configured and return the watcher, closed; Ctrl+C stops early."""
    digits = load()
    trouble = TROUBLES.get(demo.trouble, Trouble(""))
    torch.set_num_threads(1)  # so small a network gains nothing from more threads, and the dashboard needs a core too
    torch.manual_seed(0)
    model = MODELS[demo.model](trouble.plain).to(demo.device)
    watcher = watch(model, **_settings(demo))
    say(_opening(demo, trouble, model))
    if watcher.url is not None:
        say(f"A tour in five steps: {watcher.url}?tour=1")
    try:
        _train(demo, trouble, digits, model, watcher, say)
    except KeyboardInterrupt:
        say(_closing(watcher))
    finally:
        watcher.close()
    return watcher


def _settings(demo: Demo) -> WatchSettings:
    name = os.environ.get("HOOKCORE_NAME", "") or " ".join(filter(None, ("demo", demo.model, demo.trouble)))
    if os.environ.get("HOOKCORE_BUDGET"):
        return {"name": name}
    # Watching so small a network costs as much as training it: the default budget would capture few steps.
    return {"name": name, "budget": None}


def _opening(demo: Demo, trouble: Trouble, model: nn.Module) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    lines = [f"A {CALLED[demo.model]} with {count:,} weights learns to read digits. Ctrl+C stops it."]
    if trouble.story:
        lines.append(f"At step {demo.at}, the trouble begins: {trouble.story}.")
    return "\n".join(lines)


def _closing(watcher: Watcher) -> str:
    stays = ". The run's page stays available; `hookcore stop` stops the dashboard" if watcher.delivery else ""
    return f"\nStopped after {counted(watcher.current_step, 'step')}{stays}."


def _train(
    demo: Demo, trouble: Trouble, digits: Digits, model: nn.Module, watcher: Watcher, say: Callable[[str], None]
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    source = batches(digits, torch.Generator().manual_seed(1))
    pace = _Pace(demo.most_per_s)
    for step in range(demo.steps) if demo.steps else itertools.count():
        since = step - demo.at
        if since == 0:
            trouble.begin(model, optimizer)
        batch = next(source)
        pictures, labels = trouble.spoil(since, batch) if since >= 0 else batch
        scores = model(pictures.to(demo.device))
        loss = nn.functional.cross_entropy(scores, labels.to(demo.device))
        loss = trouble.reduce(since, loss) if since >= 0 else loss
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        watcher.log(loss=loss, accuracy=_share_right(scores, labels), lr=optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % PRINT_EVERY == 0 or step + 1 == demo.steps:
            say(_progress(step + 1, loss, _test(model, digits), pace.per_s))
        pace.keep()


def _share_right(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores.detach().argmax(1) == labels.to(scores.device)).float().mean()


def _test(model: nn.Module, digits: Digits) -> float:
    """Return the accuracy on held-out images."""
    device = next(model.parameters()).device
    with torch.no_grad():
        return float(_share_right(model(digits.test_pictures.to(device)), digits.test_labels))


def _progress(step: int, loss: Tensor, accuracy: float, per_s: float) -> str:
    return f"step {step:>6}   loss {float(loss.detach()):<9.4g}  right {accuracy:6.1%}   {per_s:.0f} steps/s"


class _Pace:
    """Limits the number of steps per second by waiting after each step."""

    def __init__(self, most_per_s: float) -> None:
        self._least_s = 1 / most_per_s if most_per_s else 0.0
        self._began_s = self._last_s = time.monotonic()
        self._steps = 0

    @property
    def per_s(self) -> float:
        """Return the average number of steps per second."""
        return self._steps / max(1e-9, time.monotonic() - self._began_s)

    def keep(self) -> None:
        """Wait at the end of a step, if needed."""
        self._steps += 1
        now = time.monotonic()
        if now < self._last_s + self._least_s:
            time.sleep(self._last_s + self._least_s - now)
        self._last_s = max(now, self._last_s + self._least_s)
