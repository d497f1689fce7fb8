"""Whether `hookcore coordcheck` tells right from wrong parametrizations, and blames the right layer.

    python -m benchmarks.coordcheck            # all cases: about 25 minutes on one core
    python -m benchmarks.coordcheck --only gpt # those whose name has this in it

A case is a model, its parametrization (muP or standard), its optimizer, and at most one fault. Its name, such as
`gpt_mup_adam_tied`, is also a function that `coordcheck` can call.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from hookcore.commands.scaling import check

BASE: Final = 64  # the width at which both parametrizations are the same
TOKENS, LENGTH, HEADS = 48, 24, 4


@dataclass(frozen=True, slots=True)
class Case:
    """A way to make a model. `blamed`: the layer that has the fault."""

    model: str
    scheme: str = "mup"
    optimizer: str = "adam"
    fault: str = ""
    where: str = ""
    blamed: str = ""
    axis: str = "width"

    @property
    def name(self) -> str:
        """The name of its function."""
        return "_".join(filter(None, (self.model, self.scheme, self.optimizer, self.fault)))


# Ten of each, all with other seeds; then by depth.
PAIRS: Final = (
    *(("mlp", "sgd"), ("mlp", "adam"), ("gpt", "sgd"), ("gpt", "adam")) * 2,
    ("mlp", "sgd"),
    ("mlp", "adam"),
)
RIGHT: Final = (*(Case(model, "mup", each) for model, each in PAIRS), Case("gpt", axis="depth"))
STANDARD: Final = (*(Case(model, "standard", each) for model, each in PAIRS), Case("gpt", "standard", axis="depth"))
FAULTS: Final = (
    Case("mlp", fault="init", where="hidden.0"),
    Case("mlp", "mup", "sgd", "init", "hidden.0"),
    Case("gpt", fault="init", where="blocks.1.mlp.0"),
    Case("mlp", fault="readout", blamed="head"),
    Case("mlp", "mup", "sgd", "readout", blamed="head"),
    Case("gpt", fault="readout", blamed="head"),
    Case("gpt", fault="embedding", where="embed"),
    Case("gpt", fault="attention", blamed="attention"),
    Case("mlp", fault="rate", where="hidden.0"),
    Case("gpt", fault="rate", where="blocks.1.mlp.0"),
    Case("mlp", fault="bias", where="hidden.0"),
    Case("mlp", "mup", "sgd", "bias", "hidden.0"),
    Case("gpt", fault="tied", blamed="head"),
    Case("gpt", fault="branch", blamed="blocks.*.mlp", axis="depth"),
)


class MLP(nn.Module):
    """Three layers and a readout with a multiplier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, 10)
        self.multiplier = 1.0

    def forward(self, given: Tensor) -> Tensor:
        values = functional.relu(self.first(given))
        for layer in self.hidden:
            values = functional.relu(layer(values))
        return self.head(values * self.multiplier)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.scale = (width // HEADS) ** -0.5

    def forward(self, given: Tensor) -> Tensor:
        query, key, value = (
            layer(given).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.branches = (1.0, 1.0)

    def forward(self, given: Tensor) -> Tensor:
        given = given + self.branches[0] * self.attention(self.norm1(given))
        return given + self.branches[1] * self.mlp(self.norm2(given))


class GPT(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.multiplier = 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values) * self.multiplier)


RATES: Final = {"sgd": 0.1, "adam": 1e-3}


def _kind(name: str, weight: Tensor) -> str:
    if name == "head.bias":
        return "last"
    if name.startswith("head"):
        return "readout"
    return "input" if weight.dim() < 2 or name.startswith(("first", "embed", "places")) else "hidden"


def _spread(case: Case, name: str, kind: str, weight: Tensor, many: float) -> float:
    """Return the standard deviation of a matrix at the start."""
    if kind == "input":
        return 0.25 if case.model == "mlp" else 0.5
    std = weight.shape[1] ** -0.5 * (math.sqrt(2) if case.model == "mlp" and kind == "hidden" else 1.0)
    if kind == "readout" and case.scheme == "mup":
        return std * math.sqrt(many)  # the same at all widths: the multiplier makes up for it
    return std * math.sqrt(many) if case.fault == "init" and name == f"{case.where}.weight" else std


def _rate(case: Case, name: str, kind: str, many: float, deep: float) -> float:
    """Return the factor of a parameter's learning rate."""
    if case.scheme == "standard":
        return 1.0
    of = {"adam": {"hidden": 1 / many}, "sgd": {"input": many, "readout": many}}[case.optimizer]
    rate = of.get(kind, 1.0)
    if name == f"{case.where}.{'bias' if case.fault == 'bias' else 'weight'}":
        rate *= {"embedding": 1 / many, "rate": many, "bias": many}.get(case.fault, 1.0)
    return rate / math.sqrt(deep) if name.startswith("blocks") and case.optimizer == "adam" else rate


def make(case: Case, width: int = BASE, depth: int = 2, lr: float | None = None) -> Any:
    """Return a model, its optimizer, and what computes the loss."""
    many, deep = width / BASE, depth / 2
    model: Any = MLP(width) if case.model == "mlp" else GPT(width, depth)
    if case.scheme == "mup":
        model.multiplier = 1.0 if case.fault in ("readout", "tied") else 1 / many
    rate, groups = lr or RATES[case.optimizer], []
    for name, weight in model.named_parameters():
        kind = _kind(name, weight)
        if weight.dim() > 1:
            nn.init.normal_(weight, std=_spread(case, name, kind, weight, many))
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
        groups.append({"params": [weight], "lr": rate * _rate(case, name, kind, many, deep)})
    if case.fault == "tied":
        model.head.weight = model.embed.weight
    for block in getattr(model, "blocks", ()):
        if case.scheme == "mup":
            block.attention.scale *= 1.0 if case.fault == "attention" else many**-0.5
            block.branches = deep**-0.5, 1.0 if case.fault == "branch" else deep**-0.5
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[case.optimizer](groups, lr=rate)
    if case.model == "mlp":
        given, wanted = torch.randn(64, 16), torch.randint(10, (64,))
        return model, optimizer, lambda: functional.cross_entropy(model(given), wanted)
    tokens = torch.randint(TOKENS, (8, LENGTH + 1))
    return (
        model,
        optimizer,
        lambda: functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()),
    )


def __getattr__(name: str) -> Callable[..., Any]:
    for case in (*RIGHT, *STANDARD, *FAULTS):
        if case.name == name:
            return functools.partial(make, case)
    raise AttributeError(name)


SIZES: Final = {"width": (64, 128, 256, 512), "depth": (2, 4, 8, 16)}
STEPS, SEEDS = 4, 3


def run(case: Case, first: int) -> tuple[str, set[str]]:
    """Return the verdict, and the layers that are blamed."""
    seeds = range(first, first + SEEDS)
    found = check(f"benchmarks.coordcheck:{case.name}", case.axis, SIZES[case.axis], STEPS, seeds, "benchmark")
    for each in found.judged:
        if each.verdict != "flat":
            print(f"      {each.verdict}: {found.sentence(each)}")
    return found.verdict, {each.layer for each in found.judged if each.verdict in ("grows", "shrinks")}


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    only = parser.parse_args().only
    os.environ.update({"HOOKCORE_SERVER": "none", "HOOKCORE_KEEP": "none"})
    torch.set_num_threads(1)
    good = dict[str, list[bool]]()
    for kind, cases in (("right", RIGHT), ("standard", STANDARD), ("faults", FAULTS)):
        for place, case in enumerate(cases):
            if only not in f"{case.name} {case.axis}":
                continue
            verdict, blamed = run(case, SEEDS * place)
            wanted = case.where or case.blamed
            good.setdefault(kind, []).append(
                verdict == "flat"
                if kind == "right"
                else verdict == "not flat" and all(map(wanted.__eq__, blamed))
                if wanted and wanted != "attention"
                else verdict == "not flat" and all(each.endswith(wanted) for each in blamed)
            )
            print(
                f"{'ok   ' if good[kind][-1] else 'WRONG'} {case.name:28} {case.axis} {verdict:9} {sorted(blamed)}",
                flush=True,
            )
    for kind, results in good.items():
        print(f"{kind}: {sum(results)} of {len(results)}")


if __name__ == "__main__":
    main()
