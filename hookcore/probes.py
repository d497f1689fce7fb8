"""Functions for `watcher.probe`: `watcher.probe("rank", hookcore.probes.effective_rank, include="blocks.*")`."""

from __future__ import annotations

import copy
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, distributed, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hookcore.config.patterns import select
from hookcore.config.readers import read_include
from hookcore.errors import ArgumentError
from hookcore.hooks import on_forward
from hookcore.hooks.internals import tree_iter
from hookcore.observe.copies import sample, square_of, unit
from hookcore.observe.plain import generators_kept, make_plain
from hookcore.observe.reference import wide_type
from hookcore.records.vocabulary import MICRO_COSINE, MICRO_NORM, OUTLIER_NUMBERS

__all__ = [
    "GradientCosine",
    "MicroBatches",
    "NoiseScale",
    "UpdateSpectrum",
    "attention",
    "attention_entropy",
    "channel_rms",
    "channel_zeros",
    "dead_channels",
    "effective_rank",
    "logit_lens",
    "outliers",
    "representations",
    "saturation",
    "sharpness",
    "spectrum",
]

# They change nothing, draw no random numbers, and return a number or a 1-D tensor. Where a tensor has channels, these
# are its second dimension if it has more than three (as in N, C, H, W), else its last (as in N, T, C).

MAX_ROWS: Final = 512  # of the matrix whose rank is computed
MAX_CHANNELS: Final = 4096  # as many numbers as a probe may return


class PerChannel:
    """A function with one number for each channel; of more than 4,096 channels, the largest one of each group."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the numbers."""
        values = self._function(_by_channel(tensor))
        group = -(-len(values) // MAX_CHANNELS) or 1
        if group == 1:
            return values
        padded = torch.nn.functional.pad(values, (0, -len(values) % group), value=-torch.inf)
        return padded.reshape(-1, group).amax(dim=1)

    def channels(self, tensor: Tensor) -> int:
        return len(_by_channel(tensor))


def effective_rank(tensor: Tensor) -> Tensor:
    """Return in how many directions the vectors of a tensor vary: e to the entropy of its normalized singular values.

    1 means that all vectors are multiples of one, and the number of features that they use all directions alike; NaN
    that a value is not finite, or all are zero. The vectors are the tensor's last dimension, or its channels; of many,
    512 evenly spaced ones are used.
    """
    rows = _vectors(tensor)
    rows = rows[:: max(1, -(-len(rows) // MAX_ROWS))]
    rows = rows[:, :: max(1, -(-rows.shape[1] // MAX_ROWS))]
    values = torch.linalg.svdvals(rows.nan_to_num(0.0, 0.0, 0.0))
    shares = values / values.sum()
    rank = torch.special.entr(shares).sum().exp()
    return torch.where(torch.isfinite(rows).all(), rank, torch.nan)


def saturation(tensor: Tensor, low: float = -0.97, high: float = 0.97) -> Tensor:
    """Return the share of values outside of a range, as those of a tanh that hardly lets a gradient through.

    For a sigmoid, use `functools.partial(saturation, low=0.03)`.
    """
    return ((tensor < low) | (tensor > high)).float().mean()


def dead_channels(tensor: Tensor) -> Tensor:
    """Return the share of channels that are zero everywhere."""
    return (_by_channel(tensor) == 0).all(dim=1).float().mean()


@PerChannel
def channel_rms(channels: Tensor) -> Tensor:
    """Return the root mean square of each channel of a tensor."""
    return channels.float().pow(2).mean(dim=1).sqrt()


@PerChannel
def channel_zeros(channels: Tensor) -> Tensor:
    """Return the share of each channel's values that are zero: 1 for a dead channel."""
    return (channels == 0).float().mean(dim=1)


def attention_entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy of each head's attention, as a share of the largest possible: 0 looks at one token only.

    `weights` are probabilities: batch, heads, queries, keys. Without a dimension of heads, one number is returned.
    """
    keys = weights.shape[-1]
    entropy = torch.special.entr(weights.float()).sum(dim=-1) / torch.tensor(float(max(2, keys))).log()
    if entropy.dim() < 3:
        mean: Tensor = entropy.mean()
        return mean
    heads: Tensor = entropy.transpose(0, -2).reshape(entropy.shape[-2], -1).mean(dim=1)
    return heads


# Outliers: a channel or a single value far above the others.

_PIECE: Final = 2**20  # values at a time, so that the float64 copies stay small
_MOST_CHANNELS: Final = 2**22
_ROUNDING: Final = 1e-28  # the variance of equal values of size 1


def outliers(tensor: Tensor) -> dict[str, Tensor]:
    """Return how far the largest channel and the largest value of a tensor are above the others, and where they are.

    - `ratio`: the root mean square of the largest channel, as a multiple of that of the median channel.
    - `channel`: the number of that channel.
    - `kurtosis`: the fourth moment of all values around their mean, divided by their squared variance: 3 if normal.
    - `largest`: the value with the largest magnitude. It is in channel `largest_channel`, at token `largest_token`.

    Tokens are the dimension before the channels; of pictures, pixels row by row. All numbers are NaN if there is no
    value or one isn't finite; `ratio`, too, if half of the channels are zero, and `kurtosis` if all values are equal.
    Integers, tensors that aren't dense or are sharded, and those with more than four million channels have no numbers.
    """
    if not _has_values(tensor):
        return {}
    samples = tensor.flatten(2).mT if tensor.dim() > 3 else tensor[(None,) * (3 - tensor.dim())]
    channels, tokens = samples.shape[-1], samples.shape[1]
    if not samples.numel():
        return dict.fromkeys(OUTLIER_NUMBERS, torch.tensor(torch.nan))
    if channels > _MOST_CHANNELS:
        return {}
    pieces = _pieces(samples)
    mean = top = second = fourth = torch.zeros((), dtype=wide_type(tensor.device), device=tensor.device)
    at, squares, begun = top.long(), top.repeat(channels), 0
    for piece in pieces:
        values = piece.to(top.dtype).reshape(-1)
        mean = mean + (values / tensor.numel()).sum()
        largest, where = values.abs().max(dim=0)
        is_larger = largest > top.abs()
        top = torch.where(is_larger, values.gather(0, where[None])[0], top)
        at, begun = torch.where(is_larger, where + begun, at), begun + values.numel()
    unit = torch.where(top == 0, 1.0, top.abs())  # so that no power overflows
    for piece in pieces:
        values = piece.to(top.dtype).reshape(-1, channels) / unit
        squares = squares + values.square().sum(dim=0)
        spread = (values - mean / unit).square()
        second, fourth = second + spread.sum(), fourth + spread.square().sum()
    size, channel = squares.max(dim=0)
    ratio = (size / squares.median()).sqrt().masked_fill(squares.median() == 0, torch.nan)
    kurtosis = torch.where(second > _ROUNDING * tensor.numel(), fourth * tensor.numel() / second**2, torch.nan)
    numbers = (ratio, channel, kurtosis, top, at % channels, at // channels % tokens)
    is_known = torch.isfinite(mean)
    known = (torch.where(is_known, each.to(top.dtype), torch.nan) for each in numbers)
    return dict(zip(OUTLIER_NUMBERS, known, strict=True))


def _pieces(samples: Tensor) -> list[Tensor]:
    """Split [samples, tokens, channels] into views, in order: whatever its strides, no copy of all is made."""
    sample = max(1, samples[0].numel())
    if sample <= _PIECE:
        return list(torch.split(samples, _PIECE // sample))
    tokens = max(1, _PIECE // samples.shape[-1])
    return [piece for each in torch.split(samples, 1) for piece in torch.split(each, tokens, dim=1)]


def _has_values(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, whole, and of floating-point numbers that can be read."""
    is_dense = tensor.layout is torch.strided and not tensor.is_nested and type(tensor).__name__ != "DTensor"
    return is_dense and tensor.is_floating_point() and not isinstance(make_plain(tensor), str)


# Singular values, by iterating a block of vectors.

LEADING: Final = 4  # singular values
_BLOCK: Final = 2 * LEADING  # vectors, of which the last ones only help
_ITERATIONS: Final = 12


def spectrum(tensor: Tensor) -> dict[str, Tensor]:
    """Return the stable rank of a matrix and its four leading singular values, `stable_rank` and `singular`.

    The stable rank is the sum of all squared singular values, divided by the largest squared one. Dimensions after the
    first one count as one, as for the weight of a convolution. The values are found by twelve iterations of a block of
    eight vectors, which are always the same: they are never too large, and too small by a few percent at most, unless
    many are nearly equal. With eight rows or columns or fewer, they are exact. All are NaN if a value isn't finite.
    Vectors, integers, and tensors that aren't dense or are sharded have no numbers.
    """
    if not _has_values(tensor) or tensor.dim() < 2 or not tensor.numel():
        return {}
    matrix = tensor.detach().flatten(1).to(torch.float64 if tensor.dtype is torch.float64 else torch.float32)
    matrix = matrix.mT if matrix.shape[0] < matrix.shape[1] else matrix
    unit = matrix.abs().amax()
    matrix = (matrix / torch.where(unit == 0, 1.0, unit)).nan_to_num(0.0, 0.0, 0.0)
    width = matrix.shape[1]
    fixed = torch.Generator().manual_seed(0)  # one of its own
    block = torch.randn(width, min(_BLOCK, width), generator=fixed, dtype=torch.float64).to(matrix)
    for _ in range(_ITERATIONS):
        block = matrix.mT @ (matrix @ torch.linalg.qr(block).Q)
    images = matrix @ torch.linalg.qr(block).Q
    squares = torch.linalg.eigvalsh(images.mT @ images).flip(0).clamp(min=0.0)
    singular = torch.where(torch.isfinite(unit), squares[:LEADING].sqrt() * unit, torch.nan)
    total = matrix.square().sum(dtype=wide_type(matrix.device))
    rank = torch.where(torch.isfinite(unit), total / squares[0], torch.nan)
    return {"stable_rank": rank, "singular": singular}


class UpdateSpectrum:
    """The spectrum of what a step changes in a weight, with weight decay: a probe with `kinds="param"`.

    It compares the weight before two successive steps, for which it keeps a copy of it.
    """

    in_a_row: ClassVar = 2

    def __init__(self) -> None:
        self._before: Tensor | None = None

    def __call__(self, weight: Tensor) -> dict[str, Tensor] | None:
        """Return the numbers, or None for the first weight."""
        before, self._before = self._before, None
        if before is None:
            self._before = weight.detach().clone()
            return None
        fits = before.shape == weight.shape and before.device == weight.device and before.dtype == weight.dtype
        return spectrum(weight.detach().to(wide_type(weight.device)) - before) if fits else {}


# The logit lens: what a model would predict if it ended after a layer.

_AT_ONCE: Final = 16  # tokens, whose logits may be many
IGNORED: Final = -100  # as torch's losses do


def logit_lens(
    norm: Callable[[Tensor], Tensor] | None,
    head: Callable[[Tensor], Tensor],
    *,
    targets: Callable[[], Tensor] | None = None,
    shift: int = 0,
    tokens: int = 64,
) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a probe of hidden states: `watcher.probe("lens", logit_lens(model.norm, model.head), include="h.*")`.

    It applies the model's last normalization and its head to `tokens` hidden states, spread evenly over the batch, and
    returns means over them, in nats: `entropy` of the predictions, and with `targets` their `cross_entropy`. That is a
    function that returns the class of each token, in the shape of the batch; negative ones don't count. With `shift=1`,
    the target of a token is the next one's. `norm` and `head` are modules without modules inside, or functions that
    call no module. Hooks on these modules don't run.
    """
    if type(tokens) is not int or tokens < 1 or type(shift) is not int or shift < 0:
        raise ArgumentError(f"tokens={tokens!r}, shift={shift!r} is invalid: use integers of at least 1 and 0")
    parts = [each for each in (norm, head) if each is not None]
    for part in parts:
        if isinstance(part, nn.Module) and (part._modules or part._buffers or not callable(part)):
            raise ArgumentError(
                f"{type(part).__name__} is invalid: use a module without modules inside and without buffers, or a "
                "function of its weights, as in logit_lens(norm, lambda hidden: hidden @ model.words.weight.T)"
            )
    return functools.partial(_look_through, parts, targets, shift, tokens)


def _look_through(
    parts: Sequence[Callable[[Tensor], Tensor]],
    targets: Callable[[], Tensor] | None,
    shift: int,
    tokens: int,
    hidden: Tensor,
) -> dict[str, Tensor]:
    """Return the numbers of a logit lens."""
    classes = None if targets is None else targets()
    if classes is not None:
        if classes.shape != hidden.shape[:-1]:
            raise ArgumentError(
                f"targets of shape {tuple(classes.shape)} don't fit hidden states of shape {tuple(hidden.shape)}: "
                f"return {tuple(hidden.shape[:-1])}"
            )
        shift = min(shift, classes.shape[-1]) if classes.dim() else 0
        classes = nn.functional.pad(classes[..., shift:], (0, shift), value=IGNORED) if shift else classes
    every = max(1, -(-hidden.shape[:-1].numel() // tokens))
    rows = hidden.reshape(-1, hidden.shape[-1])[::every]
    marks = None if classes is None else classes.reshape(-1)[::every]
    entropy, losses, counted = torch.zeros((3,), dtype=wide_type(rows.device), device=rows.device).unbind()
    for start in range(0, len(rows), _AT_ONCE):
        logs = _logits(parts, rows[start : start + _AT_ONCE]).log_softmax(dim=-1)
        entropy = entropy + torch.special.entr(logs.exp()).sum(dtype=entropy.dtype)
        if marks is not None:
            these = marks[start : start + _AT_ONCE].long()
            counts = (these >= 0) & (these < logs.shape[-1])
            found = logs.gather(1, these.clamp(0, logs.shape[-1] - 1)[:, None])[:, 0]
            losses = losses - torch.where(counts, found, 0.0).sum(dtype=losses.dtype)
            counted = counted + counts.sum()
    numbers = {"entropy": entropy / len(rows)}
    return numbers if marks is None else {**numbers, "cross_entropy": losses / counted}


def _logits(parts: Sequence[Callable[[Tensor], Tensor]], rows: Tensor) -> Tensor:
    for part in parts:
        module: Any = part
        if isinstance(part, nn.Module):
            dtypes = [each.dtype for each in part.parameters() if each.is_floating_point()]
            rows = module.forward(rows.to(dtypes[0]) if dtypes else rows)  # no hook sees this call
        else:
            rows = module(rows)
    return rows.double() if rows.dtype == torch.float64 else rows.float()


# Representations of a fixed batch, whose similarity (CKA) is known from the products of their samples.

SAMPLES_OF_BATCH: Final = 64
MAX_LAYERS: Final = 64
_LEAST_SAMPLES: Final = 4  # for an estimate without bias


def representations(
    model: nn.Module, batch: Any, include: Any, *, tokens: bool = False
) -> tuple[str, dict[str, Tensor]]:
    """Run a copy of a model on a batch. Return the hash of the batch, and how alike its samples are in some modules.

    That is a matrix for each path that `include` matches: the products of what the module returns for 64 samples, or
    fewer, spread evenly over the batch, without their mean. A sample is a row of the first dimension, or with `tokens`
    of all but the last. The copy is in evaluation mode, so that the model, its mode, its buffers, and its gradients
    stay untouched, and the random number generators are set back. `batch` is a tensor, a tuple of arguments, or a
    dictionary of them by name. Hooks of yours that the copy has inherited run.
    """
    twin = copy.deepcopy(_inner(model, "CKA")).eval()
    known = {path: module for path, module in twin.named_modules() if path}
    modules = select(known, {path for path, each in known.items() if not each._modules}, read_include(include)).chosen
    if not 0 < len(modules) <= MAX_LAYERS:
        raise ArgumentError(
            f"include={include!r} matches {len(modules)} modules: use patterns that match 1 to {MAX_LAYERS}"
        )
    args, kwargs = tuple[Any, ...](), dict[str, Any]()
    if isinstance(batch, Mapping):
        kwargs = dict(batch)
    else:
        args = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    made = _Representations(tokens)
    with ExitStack() as stack:
        for path in modules:
            hook = functools.partial(made.saw, path)
            stack.callback(on_forward(twin.get_submodule(path), lambda _m, _a, output, hook=hook: hook(output)).remove)
        stack.enter_context(generators_kept())
        stack.enter_context(torch.no_grad())
        twin(*args, **kwargs)
    return _hash_of((args, kwargs, tokens, made.count)), made.ordered(modules)


class _Representations:
    """The products of samples in what modules return, each when it is there: no output is held."""

    def __init__(self, tokens: bool) -> None:
        self._tokens = tokens
        self._found: dict[str, Tensor] = {}
        self._first = ""  # the path of the first one
        self.count = 0  # samples of the batch

    def saw(self, path: str, output: Any) -> None:
        """Take what a module returns in its first call."""
        values = next((each for each in tree_iter(output) if isinstance(each, Tensor)), None)
        if path in self._found:
            return
        if values is None or not _has_values(values) or not values.dim() or not values.numel():
            what = "no tensor" if values is None else f"a tensor of shape {tuple(values.shape)} and type {values.dtype}"
            raise ArgumentError(f"{path!r} returns {what}: choose modules that return dense floating-point numbers")
        rows = values.flatten(0, -2) if self._tokens and values.dim() > 1 else values.reshape(len(values), -1)
        self.count, self._first = self.count or len(rows), self._first or path
        if len(rows) != self.count or self.count < _LEAST_SAMPLES:
            raise ArgumentError(
                f"{path!r} returns {len(rows)} {'tokens' if self._tokens else 'samples'}, and {self._first!r} returns "
                f"{self.count}: choose modules that return as many, at least {_LEAST_SAMPLES} (with tokens=True, a "
                "sample is a token)"
            )
        chosen = min(SAMPLES_OF_BATCH, self.count)
        self._found[path] = _products(rows[torch.arange(chosen, device=rows.device) * self.count // chosen])

    def ordered(self, modules: Sequence[str]) -> dict[str, Tensor]:
        """Return all. Raises ArgumentError if a module wasn't called."""
        if missing := [path for path in modules if path not in self._found]:
            raise ArgumentError(f"{missing[0]!r} isn't called for this batch: choose modules that are")
        return {path: self._found[path] for path in modules}


def _products(rows: Tensor) -> Tensor:
    """Return the products of rows without their mean, as a share of the largest; NaN if their rows are all alike."""
    wide, pieces = wide_type(rows.device), torch.split(rows, max(1, _PIECE // len(rows)), dim=1)
    unit = rows.abs().amax().to(wide)
    unit = torch.where(unit == 0, 1.0, unit)
    found = torch.zeros((len(rows), len(rows)), dtype=wide, device=rows.device)
    spread = torch.zeros((), dtype=wide, device=rows.device)
    usual = torch.stack([(piece.to(wide) / unit).abs().sum() for piece in pieces]).sum() / rows.numel()
    for piece in pieces:
        values = piece.to(wide) / unit
        # What rounding changes goes with a value, or with the usual one: some that are all alike may be far larger.
        near = torch.maximum(values.abs().amax(dim=0), usual)
        values = values - values.mean(dim=0)
        spread = torch.maximum(spread, (values.abs() / torch.where(near == 0, 1.0, near)).amax())
        found = found + values @ values.mT
    most, least = found.diagonal().amax(), 4 * torch.finfo(rows.dtype).eps
    return torch.where(spread > least, found / torch.where(most == 0, 1.0, most), torch.nan).float()


def _hash_of(given: Any) -> str:
    """Return a short hash of tensors and other values."""
    found = hashlib.blake2b(digest_size=4)
    for each in tree_iter(given):
        if isinstance(each, Tensor):
            found.update(f"{each.dtype} {tuple(each.shape)}".encode())
            found.update(each.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(each).encode())
    return found.hexdigest()


# Attention: the numbers of each head from queries and keys, without the matrix of all weights.

SAMPLES: Final = 4  # of a batch
QUERIES: Final = 16  # of each sample
MAX_SCORES: Final = 2**20  # at a time
MAX_MAP: Final = 15 * 2**20  # weights of attention maps


Modify = Callable[..., Tensor]  # (score,) sample, head, query, key


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    score_mod: Modify | None = None,
    mask_mod: Modify | None = None,
) -> dict[str, Tensor]:
    """Return numbers of each head, from a fixed sample of 16 queries in each of 4 samples, spread evenly.

    `query`, `key`, and `value` are [sample, head, token, width], as for `scaled_dot_product_attention`; a head of keys
    may serve several of queries. A `mask` is True where a query sees a key, or it is added to the logits. `window` is
    how many keys before and after its own place a query sees (-1: all), and a logit x becomes
    `softcap * tanh(x / softcap)`. `score_mod` and `mask_mod` are functions as `flex_attention` takes them, but they get
    tensors of several indices, so they must work element by element. Queries that see fewer than two keys don't count.
    Dropout is left out.

    - `largest_logit`: the largest product of a query and a key, times the scale; before mask, cap, and `score_mod`.
    - `entropy`: as a share of the largest possible: 0 looks at one token only, 1 at all alike.
    - `log_sum_exp`: of the logits, as the softmax sees them.
    - `first_token`: the weight of the first key.
    - `distance`: the mean number of tokens between a query and what it looks at; only with as many keys as queries.
    - `output`: the root mean square of what the head returns, as a multiple of the mean over heads.
    """
    what = _Attention(query, key, value, mask, is_causal, scale, window, softcap, score_mod, mask_mod)
    step = -(-query.shape[2] // QUERIES)
    part = what.part(slice(None, None, -(-len(query) // SAMPLES)), slice(step - 1, None, step))
    size = max(16, MAX_SCORES // max(1, part.rows.shape[0] * query.shape[1] * len(part.places)))
    running = _Running(part)
    for start in range(0, key.shape[2], size):
        running.add(start, min(start + size, key.shape[2]))
    return running.numbers()


def attention_weights(weights: Tensor) -> dict[str, Tensor]:
    """Return those numbers of `attention` that the weights show, [sample, head, query, key], from the same queries.

    - `entropy`: as a share of the largest possible. If no sampled query looks at a later key, only the keys up to its
      own place count for that; other masks aren't known, so the keys that they hide count, too.
    - `first_token`, `distance`: as `attention` says.
    """
    queries, keys = weights.shape[2:]
    step = -(-queries // QUERIES)
    rows = weights[:: -(-len(weights) // SAMPLES), :, step - 1 :: step]
    rows = rows if rows.dtype is torch.float64 else rows.float()
    places = torch.arange(queries, device=rows.device)[step - 1 :: step]
    ahead = torch.arange(keys, device=rows.device) - places[:, None]
    is_causal = (rows.masked_fill(ahead <= 0, 0.0) == 0).all() & (queries == keys)
    seen = torch.where(is_causal, places + 1, keys)
    counts = (seen > 1).expand(rows.shape[:3])
    entropy = torch.special.entr(rows).sum(-1) / seen.clamp(min=2).to(rows.dtype).log()
    found = {"entropy": _average(entropy, counts).clamp(0.0, 1.0), "first_token": _average(rows[..., 0], counts)}
    return found | ({"distance": _average((rows * ahead.abs()).sum(-1), counts)} if queries == keys else {})


def attention_map(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
    """Return the weights of the first samples, as many as fit in 15,728,640 values: [sample, head, query, key]."""
    what = _Attention(query, key, value, mask, **how)
    queries, keys = query.shape[2], key.shape[2]
    of_sample = query.shape[1] * queries * keys
    if of_sample > MAX_MAP:
        raise ArgumentError(f"a map of {of_sample:,} weights is too large: at most {MAX_MAP:,} are computed")
    samples = slice(MAX_MAP // of_sample)
    size = max(1, MAX_SCORES // (min(len(query), samples.stop) * query.shape[1] * keys))
    found = []
    for start in range(0, queries, size):
        _, scores, visible = what.part(samples, slice(start, start + size)).scores(0, keys)
        found.append(scores.masked_fill(~visible, -torch.inf).softmax(-1))
    return torch.cat(found, dim=2)


class _Attention:
    """What a call of attention got."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        score_mod: Modify | None = None,
        mask_mod: Modify | None = None,
    ) -> None:
        shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
        fits = all(len(shape) == 4 and all(shape) for shape in shapes) and shapes[1][:3] == shapes[2][:3]
        if not fits or len(query) != len(key) or query.shape[1] % key.shape[1] or query.shape[3] != key.shape[3]:
            raise ArgumentError(
                f"queries, keys, and values of the shapes {shapes} don't fit together: they must be [sample, head, "
                "token, width], and the heads of queries a multiple of those of keys"
            )
        self.query, self.key, self.value, self.is_causal, self.window = query, key, value, is_causal, window
        self.scale = query.shape[3] ** -0.5 if scale is None else scale
        self.mask = None if mask is None else mask[(None,) * (4 - mask.dim())]
        self.softcap, self.score_mod, self.mask_mod = softcap, score_mod, mask_mod

    def part(self, samples: slice, queries: slice) -> _Part:
        """Return some queries of some samples."""
        return _Part(self, samples, queries)


class _Part:
    """Some queries of some samples, and their scores. Queries that share a head of keys are rows of one matrix."""

    def __init__(self, of: _Attention, samples: slice, queries: slice) -> None:
        wide = torch.float64 if of.query.dtype is torch.float64 else torch.float32
        chosen = of.query[samples, :, queries].to(wide) * of.scale
        self.of, self.key, self.value = of, of.key[samples], of.value[samples]
        self.places = torch.arange(of.query.shape[2], device=chosen.device)[queries]
        self.rows, self.samples = self.together(chosen), torch.arange(len(of.query), device=chosen.device)[samples]
        self.mask = None if of.mask is None else _cut(_cut(of.mask, 0, samples), 2, queries)

    def together(self, tensor: Tensor) -> Tensor:
        """Return queries by their head of keys."""
        return tensor.reshape(len(tensor), self.key.shape[1], -1, tensor.shape[3])

    def apart(self, tensor: Tensor) -> Tensor:
        """Return queries by their own head."""
        return tensor.reshape(len(tensor), -1, len(self.places), tensor.shape[3])

    def scores(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return products of these queries with some keys, what the softmax gets of them, and who sees whom."""
        products = self.apart(self.rows @ self.key[:, :, start:stop].to(self.rows.dtype).mT)
        cap, (before, after) = self.of.softcap, self.of.window
        scores = cap * torch.tanh(products / cap) if cap else products
        if self.of.score_mod is not None:
            scores = self.modified("score_mod", self.of.score_mod, start, stop, scores)
        ahead = self.ahead(start, stop)
        visible = ahead <= 0 if self.of.is_causal else torch.ones_like(ahead, dtype=torch.bool)
        visible = visible & (ahead >= -before) if before >= 0 else visible
        visible = visible & (ahead <= after) if after >= 0 else visible
        if self.mask is not None:
            mask = _cut(self.mask, 3, slice(start, stop))
            if mask.dtype is not torch.bool:
                scores = scores + mask.to(scores.dtype)
                mask = mask > torch.finfo(mask.dtype).min / 2  # some mask with the smallest number instead of -inf
            visible = visible & mask
        if self.of.mask_mod is not None:
            visible = visible & self.modified("mask_mod", self.of.mask_mod, start, stop)
        return products, scores, visible.expand_as(scores)

    def modified(self, name: str, function: Modify, start: int, stop: int, *scores: Tensor) -> Tensor:
        """Return what a function of the user's makes of each score, or says of each pair of a query and a key."""
        heads, keys = (
            torch.arange(*ends, device=self.places.device) for ends in ((self.of.query.shape[1],), (start, stop))
        )
        places = self.samples[:, None, None, None], heads[:, None, None], self.places[:, None], keys
        shape = len(self.samples), len(heads), len(self.places), len(keys)
        found = function(*scores, *places)
        try:
            return found.expand(shape)
        except (AttributeError, RuntimeError):
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ArgumentError(
                f"{name} returned {what} for indices of the shape {shape}: it must work element by element"
            ) from None

    def ahead(self, start: int, stop: int) -> Tensor:
        """Return how far keys are behind queries, negative if they come before."""
        return torch.arange(start, stop, device=self.places.device) - self.places[:, None]


class _Running:
    """A softmax over keys that come in parts, and what it weights."""

    def __init__(self, part: _Part) -> None:
        shape = part.rows.shape[0], part.of.query.shape[1], len(part.places)
        self._part = part
        self._seen = torch.zeros(shape, dtype=torch.int64, device=part.rows.device)  # keys
        self._top = part.rows.new_full(shape, -torch.inf)  # of the scores
        self._largest = self._top.clone()  # of the products
        self._total, self._slope, self._first, self._far = part.rows.new_zeros((4, *shape)).unbind()
        self._mixed = part.rows.new_zeros((*shape, part.value.shape[3]))

    def add(self, start: int, stop: int) -> None:
        """Add some keys. Everything so far is a multiple of e to the power of the largest score, which may rise."""
        part = self._part
        products, scores, visible = part.scores(start, stop)
        self._largest = torch.maximum(self._largest, products.masked_fill(~visible, -torch.inf).amax(-1))
        top = torch.maximum(self._top, scores.masked_fill(~visible, -torch.inf).amax(-1))
        base = top.masked_fill(top == -torch.inf, 0.0)
        fall = (self._top - base).masked_fill(self._top == -torch.inf, 0.0)
        old = (self._top - base).exp()
        below = (scores - base[..., None]).masked_fill(~visible, 0.0)
        weights = below.exp().masked_fill(~visible, 0.0)
        self._top, self._seen = top, self._seen + visible.sum(-1)
        self._slope = old * (self._slope + fall * self._total) + (weights * below).sum(-1)
        self._total = old * self._total + weights.sum(-1)
        self._first = old * self._first if start else weights[..., 0]
        self._far = old * self._far + (weights * part.ahead(start, stop).abs()).sum(-1)
        mixed = part.apart(part.together(weights) @ part.value[:, :, start:stop].to(weights.dtype))
        self._mixed = old[..., None] * self._mixed + mixed

    def numbers(self) -> dict[str, Tensor]:
        """Return the numbers of each head."""
        counts = self._seen > 1
        total, of = self._total, self._part.of
        most = self._seen.clamp(min=2).to(total.dtype).log()
        found = {
            "largest_logit": _most(self._largest, counts),
            "entropy": _average((total.log() - self._slope / total) / most, counts).clamp(0.0, 1.0),
            "log_sum_exp": _average(self._top + total.log(), counts),
            "first_token": _average(self._first / total, counts),
            "distance": _average(self._far / total, counts),
        }
        if of.query.shape[2] != of.key.shape[2]:
            del found["distance"]
        size = _average((self._mixed / total[..., None]).square().mean(-1), counts).sqrt()
        usual = size.mean()
        return found | {"output": torch.where(usual == 0, usual, size / usual)}


def _cut(tensor: Tensor, dim: int, part: slice) -> Tensor:
    """Return a part of a dimension, or all of one that is repeated."""
    return tensor if tensor.shape[dim] == 1 else tensor[(slice(None),) * dim + (part,)]


def _average(values: Tensor, counts: Tensor) -> Tensor:
    """Return the mean over samples and queries that count, for each head."""
    return values.masked_fill(~counts, 0.0).sum((0, 2)) / counts.sum((0, 2))


def _most(values: Tensor, counts: Tensor) -> Tensor:
    largest = values.masked_fill(~counts, -torch.inf).amax((0, 2))
    return largest.masked_fill(~counts.any(2).any(0), torch.nan)


def _vectors(tensor: Tensor) -> Tensor:
    wide = tensor.float()
    if wide.dim() > 3:  # channels of pictures
        wide = wide.movedim(1, -1)
    return wide.reshape(-1, wide.shape[-1]) if wide.dim() > 1 else wide.reshape(1, -1)


def _by_channel(tensor: Tensor) -> Tensor:
    """Return one row for each channel."""
    place = 1 if tensor.dim() > 3 else -1
    return tensor.movedim(place, 0).flatten(1) if tensor.dim() > 1 else tensor.reshape(-1, 1)


# Probes of gradients that remember: the cosine of successive ones, and their noise.

MAX_SAMPLE: Final = 4096  # values of a tensor
MAX_SAMPLES: Final = 2**22  # values of all of a model's parameters
MAX_PASSES: Final = 256  # of a step
DECAY: Final = 0.9  # of the averages of the noise scale, with each result


class GradientCosine:
    """The cosine between a parameter's gradients in two successive steps: 1 if they agree, below 0 if they oppose.

    Of more than 4,096 values, a fixed sample of 4,096 is compared, which estimates it within about 0.02. NaN if a
    gradient is zero everywhere, or isn't finite. A sparse gradient has none.
    """

    in_a_row: ClassVar = 2  # steps that belong together; in each of them, the object gets its tensor once

    def __init__(self) -> None:
        self.previous: Tensor | None = None

    def __call__(self, gradient: Tensor) -> Tensor | None:
        """Return the cosine, or None for the first gradient."""
        now = sample(gradient, MAX_SAMPLE)
        previous, self.previous = self.previous, now
        if now is None or previous is None or previous.shape != now.shape or previous.device != now.device:
            return None
        product: Tensor = torch.dot(unit(previous), unit(now))
        return product.clamp(-1.0, 1.0)


class PassGradients(ABC):
    """What each backward pass of a step adds to a model's gradients, as vectors; of large parameters, samples."""

    every_pass: ClassVar = False  # whether they are looked at as they arrive, also if there is only this process
    most: ClassVar = MAX_SAMPLES  # values in a vector

    def __init__(self) -> None:
        self._before: Tensor | None = None  # the pass
        self._marks: list[tuple[int, int]] = []  # which gradients there were before it
        self._seen: dict[int, Tensor] = {}  # what the pass adds in this process, by the parameter's place
        self._shapes: dict[int, torch.Size] = {}
        self._most = MAX_SAMPLE
        self.total: Tensor | None = None  # of what the passes of this step added
        self._precision = 0.0  # of the gradients
        self._why = ""  # this step has no result

    def begin_pass(self, parameters: Sequence[Tensor]) -> None:
        """Remember the gradients before a backward pass."""
        self._most = max(64, min(MAX_SAMPLE, self.most // max(1, len(parameters))))  # of each parameter
        self._before, self._marks = self._read(parameters), _marks_of(parameters)
        self._seen, self._shapes = {}, {}

    def wants_local(self) -> bool:
        """Return whether to look at what arrives: if it must be, or if other ranks add to the gradients."""
        return self._before is not None and (self.every_pass or _ranks() > 1)

    def see_local(self, place: int, gradient: Tensor) -> None:
        """Keep a sample of what this process adds to a gradient."""
        part = sample(gradient, self._most)
        if part is not None:
            known = self._seen.get(place)
            self._seen[place] = part if known is None else known + part
            self._shapes[place] = gradient.shape

    def end_pass(self, parameters: Sequence[Tensor]) -> None:
        """Add what the pass has added."""
        looked, before, now = self.wants_local(), self._before, self._read(parameters)
        self._before = None
        if before is None or now is None or self._marks == _marks_of(parameters):  # a pass of another model
            return
        if before.shape != now.shape or (self.total is not None and self.total.shape != now.shape):
            self._why = "its parameters changed within a step"
            return
        self._precision = max(torch.finfo(each.grad.dtype).eps for each in parameters if each.grad is not None)
        own = self._local(parameters) if looked else now - before
        if own is not None:
            added = own if _ranks() == 1 else now - before
            self.total = added if self.total is None else self.total + added
            self._add(own)

    @abstractmethod
    def _add(self, own: Tensor) -> None:
        """Add what the pass has added in this process."""

    @abstractmethod
    def end_step(self) -> Any:
        """Return numbers, also several by name, or a sentence that says why they are unknown."""

    def _take(self) -> tuple[Tensor | None, str]:
        """End the step: return what its passes added in all ranks, and why that isn't known."""
        total, why, self.total, self._why = self.total, self._why, None, ""
        self._before, self._seen, self._shapes = None, {}, {}
        return total, why

    def _local(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """Return what this process has added in a pass, as one vector."""
        if not self._seen or any(self._shapes[place] != parameters[place].shape for place in self._seen):
            self._why = "the ranks share its parameters in another way than DistributedDataParallel"
            return None
        return torch.cat([self._weighted(each, self._seen.get(place)) for place, each in enumerate(parameters)])

    def _weighted(self, parameter: Tensor, part: Tensor | None) -> Tensor:
        """Return a sample of a gradient, weighted: sums of squares stand for all values. Zeros if there is none."""
        count = min(self._most, parameter.numel())
        if part is None:
            return torch.zeros(count, device=parameter.device)
        return part * float((parameter.numel() / max(1, count)) ** 0.5)

    def _read(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """Return the gradients as one vector."""
        parts = []
        for each in parameters:
            part = None if each.grad is None else sample(each.grad, self._most)
            if each.grad is not None and (part is None or len(part) != min(self._most, each.numel())):
                self._why = "sparse, complex, or sharded gradients aren't supported"
                return None
            parts.append(self._weighted(each, part))
        return torch.cat(parts) if parts else None


_ALONE: Final = "it needs steps that accumulate the gradients of several micro-batches, each in a backward pass"


class NoiseScale(PassGradients):
    """The simple noise scale of a model's gradients, in micro-batches: tr(S) / |G|² of McCandlish et al. (2018).

    If a step has far fewer micro-batches than that, its gradient is mostly noise. Both parts are estimated without
    bias, from the gradients of this process's micro-batches and from the mean of all, in steps with at least two
    micro-batches of the same size: several backward passes, or several ranks of DistributedDataParallel. They are
    averaged over about the last ten results, because those of one step are very noisy. NaN if the gradient can't be
    told from noise. Of parameters with more than 4,096 values, a fixed sample is used.
    """

    def __init__(self) -> None:
        super().__init__()
        self._own: Tensor | None = None  # the total before the gradients were reduced between ranks
        self._squares: Tensor | None = None  # of the norms of this process's gradients, summed
        self._passes = 0
        self._averages: tuple[int, Tensor] | None = None  # the number of values; of noise and signal

    def _add(self, own: Tensor) -> None:
        square = own.square().sum(dtype=wide_type(own.device))
        self._passes += 1
        self._own = own if self._own is None else self._own + own
        self._squares = square if self._squares is None else self._squares + square

    def end_step(self) -> Tensor | str:
        """Return the noise scale, or why it is unknown."""
        (total, why), passes, own, squares = self._take(), self._passes, self._own, self._squares
        self._own, self._squares, self._passes = None, None, 0
        count = passes * _ranks()  # micro-batches
        if why or total is None or own is None or squares is None or count < 2:
            return why or _ALONE
        mean, small = total / passes, squares / passes
        big = mean.square().sum(dtype=small.dtype)
        # The mean squared distance between a gradient of this process and the mean of all.
        apart = small - 2 * (mean * (own / passes)).sum(dtype=small.dtype) + big
        noise = apart * count / (count - 1)
        new = torch.stack([noise, big - noise / count]) / small  # neither the loss scale nor a large step counts more
        is_known = torch.isfinite(new).all()
        if count > passes:  # if only rounding is between them, nothing was reduced between the ranks
            is_known &= (total - own).square().sum() > (8 * self._precision) ** 2 * total.square().sum()
        if self._averages is None or self._averages[0] != total.numel() or self._averages[1].device != new.device:
            self._averages = total.numel(), torch.zeros_like(new)
        values, old = self._averages
        average = torch.where(is_known, old * DECAY + new, old)
        self._averages = values, average
        return torch.where(average[1] > 0, average[0] / average[1], torch.nan)


class MicroBatches(PassGradients):
    """The norm of what each micro-batch of this process adds to a model's gradient, and its cosine to the sum.

    Norms are of all values, before ranks reduce them, and the sum is that of all ranks. For the cosine, about 1 MB is
    kept of each micro-batch: at most 4,096 values of a parameter. There may be 256 of them in a step.
    """

    every_pass: ClassVar = True
    most: ClassVar = 2**18
    scaled: ClassVar = (MICRO_NORM,)  # results that are multiplied by the scale of the loss

    def __init__(self) -> None:
        super().__init__()
        self._squares: dict[int, Tensor | None] = {}  # of the norms of what arrived; None if it came in several parts
        self._each: list[tuple[Tensor, Tensor]] = []  # of the passes so far: norms and vectors

    def see_local(self, place: int, gradient: Tensor) -> None:
        """Measure what arrives, and keep a sample of it."""
        is_first = place not in self._seen
        super().see_local(place, gradient)
        if place in self._seen:
            self._squares[place] = square_of(gradient) if is_first else None

    def _add(self, own: Tensor) -> None:
        squares = [self._squares[place] for place in self._seen]  # others are of an earlier pass, which added nothing
        known = [each for each in squares if each is not None]
        square = torch.stack(known).sum() if len(known) == len(squares) else square_of(own)
        if len(self._each) == MAX_PASSES:
            self._why = f"a step had more than {MAX_PASSES} micro-batches"
        else:
            self._each.append((square.sqrt(), own))

    def end_step(self) -> dict[str, Tensor] | str:
        """Return the numbers, one for each micro-batch, or why they are unknown."""
        (total, why), each, self._each = self._take(), self._each, []
        if why or total is None or len(each) * _ranks() < 2:
            return why or _ALONE
        whole = total.to(wide_type(total.device))
        cosines = [torch.dot(unit(own.to(whole.dtype)), unit(whole)).clamp(-1.0, 1.0) for _, own in each]
        return {MICRO_NORM: torch.stack([norm for norm, _ in each]), MICRO_COSINE: torch.stack(cosines)}


def _marks_of(parameters: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return what changes if a gradient does; reading it waits for no device."""
    return [(id(parameter.grad), -1 if parameter.grad is None else parameter.grad._version) for parameter in parameters]


def _ranks() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def sharpness(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Tensor:
    """Return the curvature of a loss along its gradient, gᵀHg / gᵀg: `sharpness(model, lambda copy: f(copy(x), y))`.

    `loss` is called with a copy of the model, in the model's mode, so that its weights, gradients, and buffers stay
    untouched. The random number generators are set back afterward. It takes the memory of a second model, and the time
    of about four backward passes. NaN if the gradient is zero. Frozen parameters have no part in it.
    """
    twin = copy.deepcopy(_inner(model, "sharpness"))
    parameters = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    with (
        generators_kept(),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),  # the derivative of a fused kernel has no derivative
        torch.backends.cudnn.flags(enabled=False),  # nor has that of its recurrent layers
    ):
        value = loss(twin)
        _require_scalar(value)
        gradients = _gradients(value, parameters, create_graph=True)
        if all(gradient is None for gradient in gradients):
            raise ArgumentError(
                "the loss depends on no trainable parameter of the model that it was given: use the argument, as in "
                "sharpness(model, lambda copy: criterion(copy(x), y)), and don't detach its output"
            )
        directions = [None if gradient is None else gradient.detach() for gradient in gradients]
        slope = _product(gradients, directions)
        products = _gradients(slope, parameters) if slope.requires_grad else []
    with torch.no_grad():
        squares = _product(directions, directions)
        if all(product is None for product in products):  # linear in the parameters
            return torch.zeros_like(squares) / squares
        return _product(products, directions) / squares


def _gradients(value: Tensor, parameters: list[nn.Parameter], create_graph: bool = False) -> list[Tensor | None]:
    return list(torch.autograd.grad(value, parameters, create_graph=create_graph, allow_unused=True))


def _product(left: list[Tensor | None], right: list[Tensor | None]) -> Tensor:
    pairs = [(one * two).sum() for one, two in zip(left, right, strict=True) if one is not None and two is not None]
    return torch.stack([pair.to(pairs[0].device) for pair in pairs]).sum()


def _inner(model: Any, what: str) -> nn.Module:
    """Return the module inside of wrappers that a copy can't do without."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model={type(model).__name__} is invalid: give a torch.nn.Module")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        model = model.module
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise ArgumentError(f"{what} doesn't support sharded parameters (FSDP, tensor parallel)")
    return model  # type: ignore[no-any-return]


def _require_scalar(value: object) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ArgumentError(f"the loss is {what}: return a tensor with a single number")
