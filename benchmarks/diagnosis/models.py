"""The models of the trainings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


def mlp(depth: int = 3, width: int = 32, act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """Return linear layers with activations."""
    layers: list[nn.Module] = [nn.Linear(16, width), act()]
    for _ in range(depth - 2):
        layers += [nn.Linear(width, width), *([nn.LayerNorm(width)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(width, 4))


def with_dropout(share: float) -> nn.Sequential:
    """Return an MLP that drops this share of its values."""
    hidden = (nn.Linear(16, 64), nn.ReLU(), nn.Dropout(share), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(share))
    return nn.Sequential(*hidden, nn.Linear(64, 4))


class Residual(nn.Module):
    """A layer with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.narrow(nn.functional.gelu(self.wide(self.norm(values))))


def residual(blocks: int = 8) -> nn.Sequential:
    """Return a stack with skip connections."""
    return nn.Sequential(nn.Linear(16, 32), *(Residual(32) for _ in range(blocks)), nn.Linear(32, 4))


class Dropping(nn.Module):
    """A stack whose layers are left out at random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 32), nn.Linear(32, 4)
        self.blocks = nn.ModuleList(Residual(32) for _ in range(6))

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values)
        for block in self.blocks:
            if not self.training or torch.rand(()) > 0.3:
                values = block(values)
        return self.head(values)


class Recurrent(nn.Module):
    """A recurrent layer and a head."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.cells, self.head = kind(4, 24, batch_first=True), nn.Linear(24, 4)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.cells(values)[0][:, -1])


class Experts(nn.Module):
    """Four experts, of which each sample uses one, with some noise; the last is used rarely, or never."""

    def __init__(self, last: float = -2.0, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise
        self.gate, self.head = nn.Linear(16, 4), nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU()) for _ in range(4))
        with torch.no_grad():
            self.gate.bias[3] = last

    def forward(self, values: Tensor) -> Tensor:
        logits = self.gate(values)
        weights = logits.softmax(1)
        best = (logits + self.noise * torch.randn_like(logits)).argmax(1) if self.noise else logits.argmax(1)
        mixed = values.new_zeros(len(values), 32)
        for number, expert in enumerate(self.experts):
            rows = (best == number).nonzero()[:, 0]
            if len(rows):
                mixed = mixed.index_add(0, rows, expert(values[rows]) * weights[rows, number, None])
        return self.head(mixed)


class Choosing(nn.Module):
    """A router that returns what it chooses. A bias that follows the load balances it, by this much in each step."""

    def __init__(self, width: int, experts: int, top_k: int, follows: float) -> None:
        super().__init__()
        self.weight, self.top_k, self.follows = nn.Parameter(0.1 * torch.randn(experts, width)), top_k, follows
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = values @ self.weight.T
        scores = logits.sigmoid()
        chosen = (scores.detach() + self.bias).topk(self.top_k, dim=-1).indices
        if self.training and self.follows:
            load = torch.bincount(chosen.flatten(), minlength=len(self.weight)).float()
            self.bias += self.follows * (load.mean() - load).sign()
        weights = scores.gather(1, chosen)
        return logits, weights, chosen


class Mixture(nn.Module):
    """A layer in which each sample chooses some of many experts, whose weights are stacked; with a skip connection."""

    def __init__(self, experts: int = 8, top_k: int = 2, follows: float = 0.0) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 32), nn.Linear(32, 4)
        self.router, self.experts = Choosing(32, experts, top_k, follows), Stacked(experts, 32)

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values).relu()
        _, weights, chosen = self.router(values)
        return self.head(values + self.experts(values, weights, chosen))


class Stacked(nn.Module):
    """Experts that are one tensor."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width, width) / width**0.5)

    def forward(self, values: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        every = torch.einsum("tw,ewv->tev", values, self.weight).relu()
        return (every.gather(1, chosen[..., None].expand(-1, -1, every.shape[2])) * weights[..., None]).sum(dim=1)


class _Through(torch.autograd.Function):
    """Changes values in the forward pass, or gradients in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, change: Any, change_back: Any) -> Tensor:
        ctx.change_back = change_back
        return change(values) if change else values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.change_back(gradient) if ctx.change_back else gradient, None, None


class Delayed(nn.Linear):
    """A layer that computes in float8 with delayed scaling. It keeps its scales as TransformerEngine's layers do."""

    def __init__(self, inside: int, outside: int, history: int = 16) -> None:
        super().__init__(inside, outside)
        limits = SimpleNamespace(max_fwd=448.0, max_bwd=57344.0)
        self.fp8_meta: dict[str, Any] = {
            "num_gemms": 1,
            "recipe": SimpleNamespace(fp8_format=SimpleNamespace(value=limits)),
            "scaling_fwd": SimpleNamespace(scale=torch.ones(3), amax_history=torch.zeros(history, 3), largest=448.0),
            "scaling_bwd": SimpleNamespace(scale=torch.ones(2), amax_history=torch.zeros(history, 2), largest=57344.0),
        }

    def _cast(self, values: Tensor, key: str, place: int) -> Tensor:
        """Cast to float8 and back, and note the largest magnitude."""
        state, dtype = self.fp8_meta[key], torch.float8_e5m2 if key == "scaling_bwd" else torch.float8_e4m3fn
        newest, scale = state.amax_history[0], state.scale[place]
        newest[place] = torch.maximum(newest[place], values.abs().amax())
        cast = (values * scale).clamp(-state.largest, state.largest).to(dtype)
        return cast.to(values.dtype) / scale

    def update_scales(self) -> None:
        """Move the histories up, and let the scales follow their maxima, as when a pass has ended."""
        for key in ("scaling_fwd", "scaling_bwd"):
            state = self.fp8_meta[key]
            largest = state.amax_history.amax(dim=0)
            state.scale.copy_(torch.where(largest > 0, state.largest / largest, state.scale))
            state.amax_history.copy_(state.amax_history.roll(-1, 0))
            state.amax_history[0] = 0

    def forward(self, values: Tensor) -> Tensor:
        values = _Through.apply(values, lambda each: self._cast(each, "scaling_fwd", 0), None)
        weight = _Through.apply(self.weight, lambda each: self._cast(each, "scaling_fwd", 1), None)
        result = nn.functional.linear(values, weight, self.bias)
        changed: Tensor = _Through.apply(result, None, lambda each: self._cast(each, "scaling_bwd", 0))
        return changed


def in_float8() -> nn.Sequential:
    """Return three layers that compute in float8."""
    return nn.Sequential(Delayed(16, 32), nn.ReLU(), Delayed(32, 32), nn.ReLU(), Delayed(32, 4))


def update_scales(model: nn.Module, but: tuple[str, ...] = ()) -> None:
    """Let the scales of layers in float8 follow, but not those of some."""
    for path, layer in model.named_children():
        if isinstance(layer, Delayed) and path not in but:
            layer.update_scales()


class Adapted(nn.Module):
    """A frozen linear layer with a trained update of low rank, which starts at zero."""

    def __init__(self, inside: int, outside: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside).requires_grad_(False)
        self.down, self.up = nn.Linear(inside, rank, bias=False), nn.Linear(rank, outside, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, values: Tensor) -> Tensor:
        return self.base(values) + self.up(self.down(values))


class Words(nn.Module):
    """An embedding of 500 words of which a batch uses a few, and a head."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(500, 16, sparse=sparse), nn.Linear(16, 4)

    def forward(self, values: Tensor) -> Tensor:
        chosen = (values.abs() * 60).long().clamp(max=499)
        return self.head(self.words(chosen).mean(1))


class Unused(nn.Module):
    """A model with a pooler whose output no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.pooler, self.head = mlp(3), nn.Linear(16, 8), nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        self.pooler(values)
        return self.head(self.body(values))


class Detached(nn.Module):
    """A model whose body gets no gradient from some step on."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self.body, self.head = mlp(4), nn.Linear(4, 4)
        self.since, self.calls = since, 0

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        values = self.body(values)
        return self.head(values.detach() if self.calls > self.since else values)


class Variational(nn.Module):
    """An autoencoder that samples."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log = self.encode(values).chunk(2, 1)
        return self.decode(mean + torch.randn_like(mean) * (log / 2).exp()), mean, log


def convolutions(norm: bool = True) -> nn.Sequential:
    """Return a small image network."""

    def block(inside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, 8, 3, padding=1), *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU()]

    return nn.Sequential(*block(1), *block(8), nn.Flatten(), nn.Linear(128, 4))


def transformer(tokens: int = 2) -> nn.Sequential:
    """Return two encoder layers over a few tokens."""
    layer = nn.TransformerEncoderLayer(16 // tokens, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(16, 4))


def scaled(model: nn.Sequential, factor: float) -> nn.Sequential:
    """Return the model with every weight multiplied."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= factor
    return model


def silenced() -> nn.Sequential:
    """Return a model with a ReLU that no input activates, from the first step on."""
    model = mlp(4)
    with torch.no_grad():
        model[2].bias.fill_(-50)  # type: ignore[union-attr,operator]
    return model


class Gated(nn.Module):
    """A model with a branch behind a gate, which is a buffer; a gate of zero lets nothing through."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.first, self.branch, self.head = nn.Linear(16, 32), mlp(2, 32), nn.Linear(36, 4)
        self.branch[0] = nn.Linear(32, 32)
        self.register_buffer("gate", torch.tensor(gate))

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values).relu()
        return self.head(torch.cat([values, self.branch(values * self.gate)], 1))


class Scaled(nn.Module):
    """A residual layer whose branch starts at almost nothing, by a scale for each channel, or a last layer of zeros."""

    def __init__(self, width: int, scale: float | None) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)
        self.scale = nn.Parameter(torch.full((width,), 1.0 if scale is None else scale))
        if scale is None:
            nn.init.zeros_(self.narrow.weight)
            nn.init.zeros_(self.narrow.bias)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.scale * self.narrow(nn.functional.gelu(self.wide(self.norm(values))))


def scaled_residual(scale: float | None) -> nn.Sequential:
    """Return a stack of such layers."""
    return nn.Sequential(nn.Linear(16, 32), *(Scaled(32, scale) for _ in range(6)), nn.Linear(32, 4))


def normalized(momentum: float = 0.1) -> nn.Sequential:
    """Return an MLP with batch normalizations."""
    hidden = (nn.Linear(16, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU())
    more = (nn.Linear(32, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU())
    return nn.Sequential(*hidden, *more, nn.Linear(32, 4))


class Squeezed(nn.Module):
    """Replaces each sample's values by their mean from some call on."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self.since, self.calls = since, -1

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        return values if self.calls < self.since else values.mean(1, keepdim=True).expand_as(values).clone()


class Attention(nn.Module):
    """Attention with two heads, whose probabilities are the output of a module."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.probabilities, self.sharp = nn.Softmax(-1), 1.0

    def forward(self, values: Tensor) -> Tensor:
        queries, keys, read = (
            each(values).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.queries, self.keys, self.values)
        )
        weights = self.probabilities(self.sharp * queries @ keys.transpose(-1, -2) / 2)
        return values + (weights @ read).transpose(1, 2).flatten(2)


class Fused(nn.Module):
    """Attention with two heads by torch's fused operator. `to_first` is added to a head's logits of the first token."""

    def __init__(self, width: int = 8, **options: Any) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.options, self.to_first = options, torch.zeros(2)

    def forward(self, values: Tensor) -> Tensor:
        queries, keys, read = (
            each(values).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.queries, self.keys, self.values)
        )
        bias = torch.zeros(1, 2, 1, values.shape[1])
        bias[0, :, 0, 0] = self.to_first
        how = {"attn_mask": bias} if self.to_first.any() else self.options
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, read, **how)
        return values + mixed.transpose(1, 2).flatten(2)


class Stepwise(Fused):
    """The same attention, operator by operator."""

    def forward(self, values: Tensor) -> Tensor:
        queries, keys, read = (
            each(values).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.queries, self.keys, self.values)
        )
        logits = queries @ keys.mT * queries.shape[-1] ** -0.5
        if self.options.get("is_causal"):
            logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return values + (logits.softmax(-1) @ read).transpose(1, 2).flatten(2)


class Stream(nn.Module):
    """Blocks with skip connections; the normalized output of the last one is classified."""

    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(16, width), nn.LayerNorm(width), nn.Linear(width, 4)
        branches = (nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(blocks))
        self.blocks = nn.ModuleList(Added(branch, width) for branch in branches)

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values)
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))


class Added(nn.Module):
    """A branch that is added to what it got, with a gain for each channel."""

    def __init__(self, branch: nn.Module, width: int) -> None:
        super().__init__()
        self.branch, self.gains = branch, nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        return values + self.gains * self.branch(values)


class Masked(nn.Module):
    """Hides all but the two largest values of each row, as a router does, or the tokens to come."""

    def __init__(self, largest: int | None = None) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, values: Tensor) -> Tensor:
        if self.largest is None:
            return values.masked_fill(torch.ones_like(values, dtype=torch.bool).triu(1), -torch.inf)
        return values.masked_fill(values < values.topk(self.largest, -1).values[..., -1:], -torch.inf)


def masked(last: nn.Module | None = None) -> nn.Sequential:
    """Return a classifier with causal attention, a router, and another layer before the last one."""
    model = attentive()
    model[2].probabilities = nn.Sequential(Masked(), nn.Softmax(-1))
    router = nn.Linear(64, 8), Masked(2), nn.Softmax(-1)
    return nn.Sequential(*model[:4], *router, last or nn.Identity(), nn.Linear(8, 4))


def attentive(attention: type[nn.Module] = Attention, **options: Any) -> nn.Sequential:
    """Return a classifier with attention over eight tokens."""
    middle = attention(**options)
    return nn.Sequential(nn.Unflatten(1, (8, 2)), nn.Linear(2, 8), middle, nn.Flatten(), nn.Linear(64, 4))


def drawn(model: nn.Sequential, deviation: float) -> nn.Sequential:
    """Return the model with weights of this standard deviation, whatever the width of the layers, and no biases."""
    for each in model:
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=deviation)
            nn.init.zeros_(each.bias)
    return model


def constant(model: nn.Sequential, value: float, which: slice = slice(None)) -> nn.Sequential:
    """Return the model with all weights of some layers set to one number, and no biases."""
    for each in [layer for layer in model if isinstance(layer, nn.Linear)][which]:
        nn.init.constant_(each.weight, value)
        nn.init.zeros_(each.bias)
    return model
