"""Whether the layers that the question `precision` warns of are those whose outputs change most if they are cast.

    python -m benchmarks.precision

Ten models with random weights are watched for one step. Then one layer after the other is computed with its weights and
its inputs cast by torch to float8, scaled by their largest value. Two errors are measured: that of the layer's output,
as a mean over its rows (tokens, or places of an image), and that of the model's. All layers of a model with random
weights are nearly alike, so each model runs a second time with what trained ones have: large channels in a third of the
norms, heavy tails in a third of the weights, and in a third of the layers a row of inputs that is far larger than all
others. One minute and a half.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import hookcore
from benchmarks import models
from hookcore.reading.answers import CastTo

TYPES: Final = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
TOP: Final = 3
MOST: Final = 0.1  # the error from which on a layer counts as harmed
LAYERS: Final = ("Linear", "Conv2d", "Conv1D")
DECODER: Final = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4,
}  # fmt: skip
OPT: Final = {"ffn_dim": 352, "word_embed_proj_dim": 128, "max_position_embeddings": 64}
T5: Final = {"vocab_size": 256, "d_model": 128, "d_ff": 352, "d_kv": 32, "num_layers": 4, "num_heads": 4}
GPT2: Final = {"vocab_size": 256, "n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64}
MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "MLP": lambda: nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(128, 128), nn.GELU()))),
    "ResNet-18": lambda: models.resnet18().model,
    "GPT": lambda: models.GPT(vocabulary=256, width=128, heads=4, layers=4, length=64),
    "GPT-2": lambda: hugging_face("GPT2", **GPT2),
    "Llama": lambda: hugging_face("Llama", **DECODER, num_key_value_heads=2),
    "Qwen2": lambda: hugging_face("Qwen2", **DECODER, num_key_value_heads=2),
    "OPT": lambda: hugging_face("OPT", **{**DECODER, **OPT}),
    "BERT": lambda: hugging_face("Bert", **DECODER),
    "T5": lambda: hugging_face("T5", **T5).get_encoder(),
    "ViT": lambda: hugging_face("ViT", **DECODER, image_size=64),
}  # fmt: skip


def hugging_face(name: str, **config: Any) -> nn.Module:
    """Return a small model of transformers with random weights."""
    import transformers

    made = getattr(transformers, f"{name}Config")(**config)
    model: nn.Module = getattr(transformers, f"{name}Model")(made)
    return model


def batch_of(name: str) -> Tensor:
    """Return inputs for a model."""
    if name == "MLP":
        return torch.randn(256, 128)
    return torch.randn(8, 3, 64, 64) if name in ("ResNet-18", "ViT") else torch.randint(0, 256, (4, 64))


def output_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the output as one tensor."""
    found: Any = model(inputs)
    output: Tensor = found if isinstance(found, Tensor) else found[0]
    return output


class Spiked(nn.Module):
    """A layer whose inputs have one row that is far larger than the others."""

    def __init__(self, layer: nn.Module, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._modules["layer"], name) if name in ("weight", "bias") else super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        factors = torch.ones_like(x)
        (factors[0, :, 0, 0] if x.dim() == 4 else factors.flatten(0, -2)[0])[...] = self.factor
        found: Tensor = self.layer(x * factors)
        return found


def layers_of(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the layers that multiply matrices."""
    return [(name, each) for name, each in model.named_modules() if type(each).__name__ in LAYERS]


def roughen(model: nn.Module) -> None:
    """Give norms large channels, weights heavy tails, and inputs a massive row: one in three of each."""
    norms: list[Any] = [each for each in model.modules() if "norm" in type(each).__name__.lower()]
    layers = layers_of(model)
    with torch.no_grad():
        for norm in norms[::3]:
            channels = torch.randperm(len(norm.weight))[: max(1, len(norm.weight) // 64)]
            norm.weight[channels] *= drawn(1, 3)
        for _, layer in layers[::3]:
            tails = torch.exp(float(1 + 2 * torch.rand(())) * torch.randn_like(layer.weight))
            layer.weight.mul_(tails / tails.square().mean().sqrt())
    for path, layer in layers[1::3]:
        parent, _, name = path.rpartition(".")
        model.get_submodule(parent)._modules[name] = Spiked(layer, drawn(2, 5.5 if layer.weight.dim() == 2 else 4))


def drawn(low: float, high: float) -> float:
    """Return a power of ten with an exponent between two numbers."""
    return float(10 ** (low + (high - low) * torch.rand(())))


def cast(values: Tensor, to: torch.dtype) -> Tensor:
    """Return what a cast leaves of values, scaled by their maximum."""
    scale = torch.finfo(to).max / values.abs().max()
    return (values * scale).to(to).to(values.dtype) / scale


@contextlib.contextmanager
def lowered(layer: Any, to: torch.dtype) -> Iterator[None]:
    """Compute a layer with casts of its weights and inputs."""
    kept = layer.weight.data
    hook = layer.register_forward_pre_hook(lambda _, args: (cast(args[0], to), *args[1:]))
    layer.weight.data = cast(kept, to)
    try:
        yield
    finally:
        layer.weight.data = kept
        hook.remove()


def apart(one: Tensor, two: Tensor) -> float:
    """Return how far the rows of one tensor are from those of another, relative to these: the mean over rows."""
    if one.dim() == 4:
        one, two = one.movedim(1, -1), two.movedim(1, -1)
    lost, norm = (one - two).double().norm(dim=-1), two.double().norm(dim=-1)
    return float((lost / norm)[norm > 0].mean())


@dataclass(frozen=True, slots=True)
class Layer:
    """What was predicted of a layer, and what its cast changed."""

    path: str
    noise: float  # of its inputs and weights together
    own: float  # error of its output
    model: float  # error of the model's output


Predicted = dict[str, dict[str, float]]  # the noise of a layer's inputs and weights together, by format and path


def predict(model: nn.Module, inputs: Tensor) -> Predicted:
    """Return what `precision` says of the inputs and the weights of each layer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    everything: Any = {"every": 1, "budget": None, "sketches": 1, "sketch_values": None}
    with hookcore.watch(model, server=None, kinds=("input", "param"), **everything) as watcher:
        output_of(model, inputs).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found: dict[str, list[dict[str, CastTo]]] = {}
    for each in watcher.reader().precision(limit=1000).taps:
        if each.index != "bias":
            found.setdefault(each.module, []).append(each.formats)
    pairs = {path: casts for path, casts in found.items() if len(casts) == 2}
    return {
        format: {path: _noise([each[format] for each in casts]) for path, casts in pairs.items()} for format in TYPES
    }


def _noise(casts: list[CastTo]) -> float:
    return math.hypot(*(max(each.noise, each.most_noise) for each in casts))


def look_at(name: str, is_rough: bool) -> dict[str, list[Layer]]:
    """Watch a model for a step, then cast each of its layers to each format."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    if is_rough:
        roughen(model)
    inputs = batch_of(name)
    predicted = predict(model, inputs)
    with torch.no_grad():
        whole = output_of(model, inputs)
        return {
            format: [
                Layer(path, noise, *_errors(model, model.get_submodule(path), inputs, whole, TYPES[format]))
                for path, _ in layers_of(model)
                if (noise := predicted[format].get(path)) is not None
            ]
            for format in TYPES
        }


def _errors(model: nn.Module, layer: Any, inputs: Tensor, whole: Tensor, to: torch.dtype) -> tuple[float, float]:
    """Return what a cast of one layer changes of its output, and of the model's."""
    outputs: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, output: outputs.append(output))
    output_of(model, inputs)
    with lowered(layer, to):
        changed = output_of(model, inputs)
    hook.remove()
    return apart(outputs[1], outputs[0]), apart(changed, whole)


def ranks(values: list[float]) -> NDArray[np.intp]:
    return np.argsort(np.argsort(values))


def agreement(predicted: list[float], measured: list[float]) -> str:
    """Return the rank correlation, and how many of the three worst layers are the same."""
    one, two = ranks(predicted), ranks(measured)
    least = len(one) - TOP
    return f"{np.corrcoef(one, two)[0, 1]:.2f} | {int(((one >= least) & (two >= least)).sum())}"


def main() -> None:
    print("| model | format | layers | error of their outputs | harmed | named | wrongly | ranks, own output | worst 3 "
          "| ranks, model | worst 3 |\n|---|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for is_rough in (True, False):
        for name in MODELS:
            for format, found in look_at(name, is_rough).items():
                noise, own, whole = ([getattr(each, what) for each in found] for what in ("noise", "own", "model"))
                harmed, named = (
                    {each.path for each in found if getattr(each, what) > MOST} for what in ("own", "noise")
                )
                words = f"{name}{'' if is_rough else ', as initialized'} | {format} | {len(found)}"
                counts = f"{len(harmed)} | {len(harmed & named)} | {len(named - harmed)}"
                print(f"| {words} | {min(own):.3f} to {max(own):.3f} | {counts} | {agreement(noise, own)} | "
                      f"{agreement(noise, whole)} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
