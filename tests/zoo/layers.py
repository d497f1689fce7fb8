# mypy: disable-error-code="no-untyped-call"
"""Layers and number formats."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.zoo.case import Trial, adamw, mean_square, mlp, noise, sgd, training, zoo


class Attention(nn.Module):
    """Self-attention on one tensor. torch checks whether query, key, and value are the same."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x, need_weights=self.need_weights)


class Embeds(nn.Module):
    """Embeddings, some of them with sparse gradients."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6, sparse=sparse, padding_idx=0)
        self.bags = nn.EmbeddingBag(12, 6, mode="sum", sparse=sparse)

    def forward(self, x: Tensor) -> Any:
        return self.words(x).sum(1) * self.bags(x)


class Quantised(nn.Module):
    """An untrained, dynamically quantized part before a trained one."""

    def __init__(self) -> None:
        super().__init__()
        floats = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.fixed = torch.ao.quantization.quantize_dynamic(floats, {nn.Linear}, dtype=torch.qint8)
        self.codes = self.Codes()
        self.head = nn.Linear(6, 2)

    class Codes(nn.Module):
        """Returns a quantized tensor."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.quint8)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.fixed(x) + self.codes(x).dequantize())


class MetaPart(nn.Module):
    """A part without memory, which computes only shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.shadow = nn.Linear(6, 4, device="meta")
        self.real = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        assert self.shadow(x.to("meta")).shape == (5, 4)
        return self.real(x)


class Scripted(nn.Module):
    """Has two parts that TorchScript runs."""

    def __init__(self, how: str) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.inner = torch.jit.script(inner) if how == "script" else torch.jit.trace(inner, torch.ones(5, 6))
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        # TorchScript's optimizations, and thus its last bits, depend on what it ran before in this process.
        with torch.jit._fuser.optimized_execution(False):
            return self.last(self.inner(x))


class Pools(nn.Module):
    """Layers that return integers in addition to their values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.unpool = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.MaxPool2d(2, return_indices=True),
            nn.MaxUnpool2d(2),
        )
        self.shuffle, self.up = nn.PixelShuffle(2), nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Any:
        values, places = self.pool(self.conv(x))
        return self.up(self.shuffle(self.unpool(values, places)))


class Mixed(nn.Module):
    """Layers in four float formats."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.brain = nn.Linear(6, 6, dtype=torch.float16), nn.Linear(6, 6, dtype=torch.bfloat16)
        self.single, self.large = nn.Linear(6, 6), nn.Linear(6, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        return self.large(self.single(self.brain(self.small(x.half()).bfloat16()).float()).double())


@zoo()
def multi_layer_perceptron() -> Trial:
    return training(mlp(), noise(5, 6), optimizer=adamw)


@zoo()
def convolutions_of_one_two_and_three_dimensions() -> Trial:
    model = nn.ModuleList(
        (
            nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.ConvTranspose1d(4, 2, 3)),
            nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.SiLU(), nn.ConvTranspose2d(4, 2, 3)),
            nn.Sequential(nn.Conv3d(2, 4, 3), nn.InstanceNorm3d(4, affine=True), nn.ELU(), nn.ConvTranspose3d(4, 2, 3)),
        )
    )
    inputs = (noise(2, 2, 5), noise(2, 2, 5, 5), noise(1, 2, 4, 4, 4))
    return training(model, inputs, call=lambda many: [part(x) for part, x in zip(model, many, strict=True)])


@zoo()
def batch_norm_and_group_norm() -> Trial:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.LocalResponseNorm(2))
    return training(model, noise(2, 3, 5, 5))


@zoo()
def layer_norms_and_activations() -> Trial:
    model = nn.Sequential(
        nn.LayerNorm(6), nn.PReLU(), nn.RMSNorm(6), nn.Linear(6, 6), nn.GLU(), nn.Softmax(-1), nn.Bilinear(3, 3, 2)
    )
    return training(model, noise(5, 6), call=lambda x: model[6](model[:6](x), model[:6](x)))


@zoo()
def embeddings() -> Trial:
    return training(Embeds(sparse=False), torch.randint(0, 12, (3, 4)))


@zoo()
def sparse_gradients_with_sparse_adam() -> Trial:
    return training(
        Embeds(sparse=True), torch.randint(0, 12, (3, 4)), optimizer=lambda p: torch.optim.SparseAdam(p, lr=0.01)
    )


@zoo("no-twin")
def multi_head_attention_with_weights() -> Trial:
    return training(Attention(need_weights=True), noise(2, 4, 8))


@zoo("no-twin")
def multi_head_attention_without_weights() -> Trial:
    return training(Attention(need_weights=False), noise(2, 4, 8))


@zoo("no-twin")
def transformer_encoder_and_its_fast_path() -> Trial:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model, inputs = nn.TransformerEncoder(layer, 2), noise(2, 4, 8)
    padding = torch.tensor([[False, False, False, True], [False, False, True, True]])
    optimizer = adamw(model.parameters())

    def step(number: int) -> Any:
        model.eval()
        with torch.no_grad():
            fast = model(inputs, src_key_padding_mask=padding)
        model.train()
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        return fast, loss.detach()

    return Trial(model, step)


@zoo("no-twin")
def whole_transformer() -> Trial:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    return training(model, noise(2, 4, 8), noise(2, 3, 8), call=lambda x, y: model(x, y, tgt_mask=mask))


@zoo()
def recurrent_cells() -> Trial:
    model = nn.ModuleDict({"gru": nn.GRUCell(6, 4), "lstm": nn.LSTMCell(4, 4), "rnn": nn.RNN(6, 3, bidirectional=True)})

    def call(x: Tensor) -> Any:
        hidden = model["gru"](x[0])
        return model["lstm"](hidden), model["rnn"](x)

    return training(model, noise(3, 2, 6), call=call)


@zoo("no-twin")
def spectral_norm() -> Trial:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 2))
    return training(model, noise(5, 6))


@zoo()
def spectral_norm_by_hooks() -> Trial:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = nn.utils.spectral_norm(nn.Linear(6, 6))
    return training(nn.Sequential(first, nn.Tanh(), nn.Linear(6, 2)), noise(5, 6))


@zoo()
def weight_norm() -> Trial:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 6)), nn.Tanh(), parametrizations.orthogonal(nn.Linear(6, 6))
    )
    return training(model, noise(5, 6))


@zoo()
def adaptive_log_softmax() -> Trial:
    model = nn.AdaptiveLogSoftmaxWithLoss(6, 20, [5, 10])
    return training(model, noise(8, 6), torch.randint(0, 20, (8,)), loss=lambda out: out.loss)


@zoo()
def pooling_with_indices() -> Trial:
    return training(Pools(), noise(2, 1, 6, 6))


@zoo()
def several_losses_as_modules() -> Trial:
    model = nn.ModuleDict(
        {"body": mlp(), "triplet": nn.TripletMarginLoss(), "huber": nn.HuberLoss(), "nll": nn.NLLLoss()}
    )

    def call(x: Tensor) -> Any:
        a, b, c = model["body"](x), model["body"](x + 1), model["body"](x - 1)
        labels = torch.tensor([0, 1, 2, 0, 1])
        return model["triplet"](a, b, c), model["huber"](a, b), model["nll"](c.log_softmax(-1), labels).abs()

    return training(model, noise(5, 6), call=call)


@zoo()
def double_precision() -> Trial:
    return training(mlp().double(), noise(5, 6, dtype=torch.float64))


@zoo()
def half_precision_parameters() -> Trial:
    return training(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).half(), noise(5, 6).half())


@zoo()
def brain_float_parameters() -> Trial:
    return training(mlp().bfloat16(), noise(5, 6).bfloat16(), optimizer=adamw)


@zoo()
def four_float_formats_in_one_model() -> Trial:
    return training(Mixed(), noise(5, 6))


@zoo()
def quantised_part() -> Trial:
    return training(Quantised(), noise(5, 6))


@zoo()
def part_on_the_meta_device() -> Trial:
    return training(MetaPart(), noise(5, 6), optimizer=lambda p: sgd([x for x in p if not x.is_meta]))


@zoo("no-twin")
def scripted_part() -> Trial:
    return training(Scripted("script"), noise(5, 6))


@zoo("no-twin")
def traced_part() -> Trial:
    return training(Scripted("trace"), noise(5, 6))


@zoo()
def model_larger_than_one_kernel_block() -> Trial:
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(inplace=True), nn.Linear(300, 64))
    return training(model, noise(130, 64))


@zoo()
def pruned_weights() -> Trial:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    prune.l1_unstructured(model[0], "weight", 0.5)
    return training(model, noise(5, 6))


@zoo("no-twin")
def parametrizations_computed_once_a_step() -> Trial:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 2))

    def call(x: Tensor) -> Any:
        with parametrize.cached():
            return model(x), model(x * 2)

    return training(model, noise(5, 6), call=call)


@zoo()
def gradients_that_vanish_and_explode() -> Trial:
    layers = [nn.Linear(6, 6, bias=False) for _ in range(3)]
    with torch.no_grad():
        layers[0].weight.mul_(1e-30)
        layers[2].weight.mul_(1e30)
    return training(nn.Sequential(*layers), noise(5, 6) * 1e-12, optimizer=adamw)
