"""How often the sample behind a jump of the loss is named: `python -m benchmarks.samples`.

Name kinds of trainings to run only these: `python -m benchmarks.samples "two ranks" positions`.

Each training has one poisoned sample among shuffled ones, or none: then the learning rate is raised for two steps, or
nothing happens. The saved steps are replayed, and must name the poisoned sample, or none. Two ranks train with gloo.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import hookcore
from hookcore.capsules import replay
from hookcore.reading.answers import SampleShares

SAMPLES, BATCH, EPOCHS, WORDS = 1024, 8, 2, 32
TEXTS = 4096  # so that the loss is small before the second epoch brings the poisoned one again
Trouble = Literal["sample", "rate", "nothing"]
TROUBLES: tuple[Trouble, ...] = ("rate", "nothing")  # of healthy samples


@dataclass(frozen=True)
class Case:
    """A training. `seed` also chooses the poisoned sample."""

    kind: Literal["classes", "numbers", "pictures", "micro-batches", "two ranks", "positions", "packed rows"]
    seed: int
    trouble: Trouble = "sample"

    @property
    def counts(self) -> bool:
        """Whether the model guesses a number."""
        return self.kind in ("numbers", "pictures")

    @property
    def poisoned(self) -> int:
        return 37 * self.seed % SAMPLES if self.trouble == "sample" else -1


POISONED = [
    *(Case("classes", seed) for seed in (1, 2)),
    *(Case("numbers", seed) for seed in (3, 4)),
    Case("pictures", 5),
    *(Case("micro-batches", seed) for seed in (6, 7)),
    *(Case("two ranks", seed) for seed in (8, 9)),
    *(Case("positions", seed) for seed in (10, 11)),
    Case("packed rows", 12),
]
HEALTHY = [
    *(Case("classes", 20, trouble) for trouble in TROUBLES),
    *(Case("numbers", 21, trouble) for trouble in TROUBLES),
    *(Case("pictures", 22, trouble) for trouble in TROUBLES),
    *(Case("positions", 23, trouble) for trouble in TROUBLES),
]


class Rows(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples with something to learn, of which one may be poisoned."""

    def __init__(self, case: Case, world: int) -> None:
        draw, self.many = torch.Generator().manual_seed(case.seed), SAMPLES * world
        shape = (self.many, 3, 8, 8) if case.kind == "pictures" else (self.many, 16)
        self.rows = torch.randn(shape, generator=draw)
        flat = self.rows.flatten(1)
        self.targets = flat[:, :4].sum(1, keepdim=True) if case.counts else (flat[:, :8].sum(1) > 0).long()
        if case.poisoned >= 0 and case.counts:
            self.targets[case.poisoned] = 400.0
        elif case.poisoned >= 0:
            self.rows[case.poisoned] *= 300
            self.targets[case.poisoned] = 1 - self.targets[case.poisoned]

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.rows[index], self.targets[index], index


class Texts(Dataset[tuple[Tensor, int]]):
    """Texts of 4 to 12 words, each the one before plus one, of which one may be long noise."""

    def __init__(self, case: Case) -> None:
        draw = torch.Generator().manual_seed(case.seed)
        sizes = torch.randint(4, 13, (TEXTS,), generator=draw).tolist()
        self.texts = [(torch.arange(size) + index) % WORDS for index, size in enumerate(sizes)]
        if case.poisoned >= 0:
            self.texts[case.poisoned] = torch.randint(0, WORDS, (48,), generator=draw)

    def __len__(self) -> int:
        return TEXTS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.texts[index], index


class Speaker(nn.Module):
    """A tiny model of packed texts, which returns the logits of each position."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.Linear(64, WORDS)

    def forward(self, words: Tensor, position_ids: Tensor | None = None) -> Tensor:
        found: Tensor = self.head(torch.relu(self.mix(self.words(words))))
        return found


def pack(texts: list[tuple[Tensor, int]], rows: int = 2) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Pack texts into rows of equal length. Padding belongs to the last text of a row."""
    parts = [texts[row::rows] for row in range(rows)]
    width = max(sum(len(text) for text, _ in part) for part in parts)
    words, positions = torch.zeros(rows, width, dtype=torch.int64), torch.zeros(rows, width, dtype=torch.int64)
    for row, part in enumerate(parts):
        filled = torch.cat([text for text, _ in part])
        places = torch.cat([torch.arange(len(text)) for text, _ in part])
        words[row, : len(filled)], positions[row, : len(places)] = filled, places
        positions[row, len(places) :] = torch.arange(width - len(places)) + places[-1] + 1
    return words, positions, [[index for _, index in part] for part in parts]


def model_of(case: Case) -> nn.Module:
    if case.kind in ("positions", "packed rows"):
        return Speaker()
    if case.kind == "pictures":
        layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 1)
        return nn.Sequential(*layers)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1 if case.kind == "numbers" else 2))


def losses(case: Case, model: nn.Module, watcher: Any, rank: int, world: int) -> Iterator[tuple[Tensor, bool]]:
    """Yield the loss of each backward pass, and whether a step follows."""
    if case.kind in ("positions", "packed rows"):
        texts = DataLoader(Texts(case), 4 * BATCH, shuffle=True, num_workers=2, collate_fn=pack)
        for words, positions, ids in texts:
            if case.kind == "packed rows":
                watcher.samples(ids)
            else:
                watcher.samples([index for row in ids for index in row])
            logits = model(words[:, :-1], position_ids=positions[:, :-1])
            # Nothing says with which word a text begins.
            targets = words[:, 1:].where(positions[:, 1:] > 0, -100)
            yield F.cross_entropy(logits.reshape(-1, WORDS), targets.reshape(-1)), True
        return
    rows = Rows(case, world)
    sampler = DistributedSampler(rows, world, rank, seed=case.seed) if world > 1 else None
    given = DataLoader(rows, BATCH, shuffle=sampler is None, sampler=sampler, num_workers=2)
    for place, (batch, targets, _) in enumerate(given):
        made = model(batch)
        loss = F.mse_loss(made, targets) if case.counts else F.cross_entropy(made, targets)
        yield (loss / 2, bool(place % 2)) if case.kind == "micro-batches" else (loss, True)


def train(case: Case, home: str, rank: int = 0, world: int = 1) -> None:
    """Train with a watch. Its capsules are below `home`."""
    os.environ["HOOKCORE_HOME"] = home
    torch.manual_seed(case.seed)
    torch.set_num_threads(1)
    model = inner = model_of(case)  # a replay has no other ranks
    if world > 1:
        torch.distributed.init_process_group("gloo", f"file://{home}/store", rank=rank, world_size=world)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with hookcore.watch(inner, server=None, capsule="error", explain="never") as watcher:
        for epoch in range(EPOCHS):
            for place, (loss, ends) in enumerate(losses(case, model, watcher, rank, world)):
                loss.backward()  # type: ignore[no-untyped-call]
                if not ends:
                    continue
                is_raised = case.trouble == "rate" and epoch == 1 and place in (3, 4)
                optimizer.param_groups[0]["lr"] = 1.0 if is_raised else 3e-3
                optimizer.step()
                optimizer.zero_grad()
    if world > 1:
        torch.distributed.destroy_process_group()


def _rank(rank: int, case: Case, home: str) -> None:
    train(case, home, rank, 2)


def shares_of(case: Case) -> list[SampleShares]:
    """Train, and return how each saved loss is divided."""
    with tempfile.TemporaryDirectory() as home:
        if case.kind == "two ranks":
            torch.multiprocessing.spawn(_rank, (case, home), nprocs=2)  # type: ignore[no-untyped-call]
        else:
            train(case, home)
        found = [replay(path).shares for path in sorted(Path(home).rglob("*.capsule"))]
    return [each for each in found if each is not None]


def verdict_of(case: Case, found: list[SampleShares]) -> bool:
    """Return whether only the poisoned sample was named, or none if none is."""
    named = [each.samples[0].ids for each in found if each.stands_out]
    if case.poisoned < 0:
        return not named
    return bool(named) and all(case.poisoned in ids for ids in named)


def main(kinds: list[str]) -> None:
    for title, every in (("poisoned", POISONED), ("healthy", HEALTHY)):
        cases, right = [each for each in every if not kinds or each.kind in kinds], 0
        for case in cases:
            found = shares_of(case)
            right += verdict_of(case, found)
            said = " | ".join(each.sentence for each in found) or "no jump was saved"
            print(
                f"{verdict_of(case, found)!s:5} {case.kind}, seed {case.seed}, {case.trouble} {case.poisoned}: {said}"
            )
        print(f"{title}: {right} of {len(cases)}", flush=True)


if __name__ == "__main__":
    sys.modules["benchmarks.samples"] = sys.modules["__main__"]
    main(sys.argv[1:])
