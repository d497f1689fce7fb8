"""The models whose training is timed. Plain modules, random data, weights that hardly change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Training:
    """A model with everything for a training step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    targets: Tensor
    halved: bool = False  # in bfloat16, by autocast

    def step(self) -> None:
        """Take a step as a user's loop does: forward, backward, update."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.inputs.device.type, torch.bfloat16) if self.halved else nullcontext():
            logits = self.model(self.inputs)
            loss = functional.cross_entropy(logits.flatten(0, -2), self.targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def finish(self) -> None:
        """Wait for the device."""
        if self.inputs.is_cuda:
            torch.cuda.synchronize()


def small_mlp() -> Training:
    """Return three linear layers, batch 32."""
    model = nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )  # fmt: skip
    return _classifier(model, torch.randn(32, 784))


def narrow_net() -> Training:
    """Return 240 layers of 32 values each, batch 32: nearly all of a step is overhead."""
    layers: list[nn.Module] = []
    for _ in range(120):
        linear = nn.Linear(32, 32)
        nn.init.orthogonal_(linear.weight)  # the gradient reaches the first layer without vanishing
        layers += [linear, nn.Tanh()]
    return _classifier(nn.Sequential(*layers), torch.randn(32, 32), classes=32)


def resnet18() -> Training:
    """Return ResNet-18 on 64x64 images with in-place ReLU, batch 32."""
    return _classifier(ResNet18(classes=100), torch.randn(32, 3, 64, 64), classes=100)


def small_gpt() -> Training:
    """Return a GPT with 10.8 M parameters: 6 layers, sequence 128, batch 8."""
    model = GPT(vocabulary=96, width=384, heads=6, layers=6, length=128)
    tokens = torch.randint(0, 96, (8, 129))
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-5), tokens[:, :-1], tokens[:, 1:].contiguous())


def small_moe() -> Training:
    """Return the same with experts: in each layer, a token chooses two of eight. 17.9 M parameters."""
    model = GPT(vocabulary=96, width=384, heads=6, layers=6, length=128, experts=8)
    tokens = torch.randint(0, 96, (8, 129))
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-5), tokens[:, :-1], tokens[:, 1:].contiguous())


def resnet18_on_gpu() -> Training:
    """Return ResNet-18 on 224x224 images, batch 256, in bfloat16."""
    return _on_gpu(_classifier(ResNet18(classes=1000), torch.randn(256, 3, 224, 224), classes=1000))


def gpt2_on_gpu() -> Training:
    """Return a GPT as large as GPT-2: 12 layers, width 768, sequence 1024, batch 8, in bfloat16."""
    model = GPT(vocabulary=50_304, width=768, heads=12, layers=12, length=1024)
    tokens = torch.randint(0, 50_304, (8, 1025))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return _on_gpu(Training(model, optimizer, tokens[:, :-1], tokens[:, 1:].contiguous()))


def _on_gpu(training: Training) -> Training:
    model = training.model.to("cuda")
    return Training(model, training.optimizer, training.inputs.to("cuda"), training.targets.to("cuda"), halved=True)


def _classifier(model: nn.Module, inputs: Tensor, classes: int = 10) -> Training:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    return Training(model, optimizer, inputs, torch.randint(0, classes, (len(inputs),)))


class Residual(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.relu2 = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.shortcut is None else self.shortcut(x)
        y: Tensor = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        y += short
        out: Tensor = self.relu2(y)
        return out


class ResNet18(nn.Module):
    """The usual ResNet-18: a stem and four stages of two blocks."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        widths = [64, 64, 128, 256, 512]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Residual(inside, outside, 1 if stage == 0 else 2), Residual(outside, outside, 1))
                for stage, (inside, outside) in enumerate(pairwise(widths))
            )
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.flatten(self.pool(self.stages(self.stem(x)))))
        return out


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.project(y.transpose(1, 2).reshape(batch, length, width))
        return out


class Experts(nn.Module):
    """A router, and experts of which it chooses two for each token, as in Mixtral."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = self.gate(tokens).softmax(-1).topk(self.top_k)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            mixed.index_add_(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return mixed.view_as(x)


class Block(nn.Module):
    """A transformer layer, normalized first, with or without experts."""

    def __init__(self, width: int, heads: int, experts: int = 0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mixture = Experts(width, experts) if experts else None
        if not experts:
            self.widen = nn.Linear(width, 4 * width)
            self.gelu = nn.GELU()
            self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        out: Tensor = x + (self.narrow(self.gelu(self.widen(y))) if self.mixture is None else self.mixture(y))
        return out


class GPT(nn.Module):
    """Token and position embeddings, transformer layers, a head."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, length: int, experts: int = 0
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, experts) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))
        return logits


MODELS: dict[str, Callable[[], Training]] = {
    "mlp": small_mlp,
    "resnet": resnet18,
    "gpt": small_gpt,
    "narrow": narrow_net,
}
BY_NAME: dict[str, Callable[[], Training]] = {  # trained only if that is asked for
    "moe": small_moe,
    "resnet-gpu": resnet18_on_gpu,
    "gpt-gpu": gpt2_on_gpu,
}
