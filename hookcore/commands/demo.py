"""A real training for the dashboard: a small network that learns to read digits, with five optional problems."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

import torch
from torch import Tensor, nn

from hookcore.config import WatchSettings
from hookcore.errors import ArgumentError
from hookcore.records.vocabulary import counted
from hookcore.watcher import Watcher, watch

# The demo's networks, its handwritten digits of 8 by 8 pixels, and five problems that begin at a given step.

# Handwritten digits of 8 by 8 pixels, as scikit-learn ships them.

SIDE: Final = 8
CLASSES: Final = 10
BATCH: Final = 64
_TESTED: Final = 297  # of the 1797 images, held out
_MOVES: Final = (-1, 0, 1)  # pixels


@dataclass(frozen=True, slots=True)
class Digits:
    """Images with values from 0 to 1, and the digit that each one shows."""

    pictures: Tensor
    labels: Tensor
    test_pictures: Tensor
    test_labels: Tensor


def load() -> Digits:
    """Load the digits, shuffled and split the same way every time."""
    try:
        found = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise ArgumentError(
            f"the demo's images come with scikit-learn, which cannot be imported ({error}): "
            "run `pip install scikit-learn`"
        ) from None
    pictures = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, rest = order[:_TESTED], order[_TESTED:]
    return Digits(pictures[rest], labels[rest], pictures[test], labels[test])


def batches(digits: Digits, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield endless batches. Each image is shifted by up to one pixel, so there is always something left to learn."""
    moved = torch.stack([digits.pictures.roll((down, right), (2, 3)) for down in _MOVES for right in _MOVES])
    while True:
        order = torch.randperm(len(digits.labels), generator=generator)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield moved[torch.randint(len(moved), (BATCH,), generator=generator), chosen], digits.labels[chosen]


# The demo's two networks, with a few thousand weights each.

WIDTH: Final = 16  # channels of the CNN
TOKEN: Final = 32  # size of a token of the transformer
DEPTH: Final = 6


class Standardize(nn.Module):
    """Gives every image mean 0 and standard deviation 1. A uniform image has no standard deviation to divide by."""

    def forward(self, pictures: Tensor) -> Tensor:
        deviation, mean = torch.std_mean(pictures, dim=(1, 2, 3), keepdim=True)
        return (pictures - mean) / deviation


class ConvBlock(nn.Module):
    """A convolution and a ReLU with a skip connection; the plain variant has neither skip connection nor norm."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.Identity() if plain else nn.GroupNorm(4, WIDTH)
        self.relu = nn.ReLU()
        self.plain = plain

    def forward(self, features: Tensor) -> Tensor:
        found = cast(Tensor, self.relu(self.norm(self.conv(features))))
        return found if self.plain else features + found


class DigitsCNN(nn.Module):
    """Convolutions, pooling at half depth, and a linear head."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.standardize = Standardize()
        self.stem = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(plain) for _ in range(DEPTH)))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(WIDTH * (SIDE // 2) ** 2, CLASSES)
        _start(self)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return a score for each digit."""
        features = self.blocks(self.stem(self.standardize(pictures)))
        return cast(Tensor, self.head(self.pool(features).flatten(1)))


class AttentionBlock(nn.Module):
    """Attention and an MLP, each with a skip connection; the plain variant has neither skip connections nor norms."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.norm1 = nn.Identity() if plain else nn.LayerNorm(TOKEN)
        self.attention = nn.MultiheadAttention(TOKEN, 4, batch_first=True)
        self.norm2 = nn.Identity() if plain else nn.LayerNorm(TOKEN)
        self.wide = nn.Linear(TOKEN, 2 * TOKEN)
        self.relu = nn.ReLU()
        self.narrow = nn.Linear(2 * TOKEN, TOKEN)
        self.plain = plain

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        mixed, _ = self.attention(normed, normed, normed, average_attn_weights=False)
        tokens = mixed if self.plain else tokens + mixed
        found = cast(Tensor, self.narrow(self.relu(self.wide(self.norm2(tokens)))))
        return found if self.plain else tokens + found


class DigitsTransformer(nn.Module):
    """Sixteen patches of 2 by 2 pixels that attend to each other."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.standardize = Standardize()
        self.cut = nn.Unfold(2, stride=2)
        self.embed = nn.Linear(4, TOKEN)
        self.places = nn.Parameter(torch.zeros((SIDE // 2) ** 2, TOKEN))
        self.blocks = nn.Sequential(*(AttentionBlock(plain) for _ in range(DEPTH // 2)))
        self.head = nn.Linear(TOKEN * (SIDE // 2) ** 2, CLASSES)
        _start(self)
        nn.init.normal_(self.places, std=0.5)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return a score for each digit."""
        tokens = self.embed(self.cut(self.standardize(pictures)).transpose(1, 2)) + self.places
        return cast(Tensor, self.head(self.blocks(tokens).flatten(1)))


MODELS: Final = {"cnn": DigitsCNN, "transformer": DigitsTransformer}
CALLED: Final = {"cnn": "CNN", "transformer": "transformer"}


def _start(model: nn.Module) -> None:
    """Initialize the weights so that signals keep their scale through ReLUs."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


Batch = tuple[Tensor, Tensor]
SPIKES_EVERY: Final = 150  # steps


@dataclass(frozen=True, slots=True)
class Trouble:
    """The effect of a problem: `begin` runs once, `spoil` changes every later batch, `reduce` computes every loss."""

    story: str
    plain: bool = False  # whether it needs a network without norms and skip connections
    begin: Callable[[nn.Module, torch.optim.Optimizer], None] = lambda _model, _optimizer: None
    spoil: Callable[[int, Batch], Batch] = lambda _since, batch: batch
    reduce: Callable[[int, Tensor], Tensor] = lambda _since, loss: loss


def _blank_one(since: int, batch: Batch) -> Batch:
    pictures, labels = batch
    if since == 0:
        pictures = pictures.clone()
        pictures[0] = 0
    return pictures, labels


def _decay_weights(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.1 / group["lr"]  # decays a tenth of every weight in each step


def _climb(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["maximize"] = True


def _silence(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    """Give the module before the first ReLU of the second block a bias that no input can outweigh."""
    before = model.get_submodule("blocks.1.norm" if hasattr(model, "stem") else "blocks.1.wide")
    with torch.no_grad():
        before.get_parameter("bias").fill_(-12)


def _sum_now_and_then(since: int, loss: Tensor) -> Tensor:
    return loss * BATCH if since % SPIKES_EVERY == 0 else loss


TROUBLES: Final = {
    "nan": Trouble(
        "one image of the batch is blank, and the layer that divides by its standard deviation turns it into NaN",
        spoil=_blank_one,
    ),
    "vanishing": Trouble(
        "weight decay is far too strong and shrinks every layer, and with it the gradients that flow back",
        plain=True,
        begin=_decay_weights,
    ),
    "exploding": Trouble(
        "the loss has the wrong sign, so every step increases it: layers and gradients grow without bound",
        plain=True,
        begin=_climb,
    ),
    "dead-relu": Trouble(
        "one layer's bias is far below zero, as after a step that was far too large, and its ReLU never fires again",
        begin=_silence,
    ),
    "spike": Trouble(
        f"every {SPIKES_EVERY} steps, the loss is the sum over the batch instead of the mean",
        reduce=_sum_now_and_then,
    ),
}


# The demo's training loop.

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
