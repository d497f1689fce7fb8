"""The same numbers by torch's own operators, for devices without a kernel and for tests of the kernels.

Nothing here waits for the device: every result stays on it. Long tensors are processed in pieces, so that the float64
copies stay small compared with the training's own memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from hookcore.observe import layout
from hookcore.records import sketch

PIECE: Final = 1 << 22  # values
_COUNTS: Final = slice(layout.NAN_COUNT, layout.SKETCHED + 1)  # adjacent cells that are simply added
_EXACT_IN_FLOAT32: Final = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.bool}
)


def wide_type(device: torch.device) -> torch.dtype:
    """Return the type for moments. Apple's GPUs have no float64, so counts are exact up to 2 ** 24 there."""
    return torch.float32 if device.type == "mps" else torch.float64


def measure(tensor: Tensor) -> Tensor:
    """Return a row of cells (see `hookcore.observe.layout`) of a dense tensor, on its device. SKETCHED stays 0."""
    pieces = [_measure_piece(piece) for piece in _pieces(flat(tensor))]
    if not pieces:
        row = torch.zeros(layout.CELLS, dtype=wide_type(tensor.device), device=tensor.device)
    else:
        row = pieces[0] if len(pieces) == 1 else combine(torch.stack(pieces))
    row[layout.PARTS] = 1
    return row


def flat(tensor: Tensor) -> Tensor:
    """Return the values in one dimension, copied only if they aren't in order. Complex values become magnitudes."""
    values = tensor.detach().reshape(-1)
    return magnitudes(values) if values.is_complex() else values


def magnitudes(tensor: Tensor) -> Tensor:
    """Return the magnitudes of complex numbers. Those of finite numbers are finite."""
    if tensor.device.type == "mps":  # has no float64
        return tensor.abs()
    sizes = tensor.to(torch.complex128).abs()
    return torch.where(tensor.isfinite(), sizes.clamp(max=torch.finfo(sizes.dtype).max), sizes)


def _pieces(values: Tensor) -> Iterator[Tensor]:
    return (values[first : first + PIECE] for first in range(0, values.numel(), PIECE))


def _measure_piece(values: Tensor) -> Tensor:
    x = values.to(wide_type(values.device))
    finite = x.isfinite()
    number = finite.sum(dtype=x.dtype)
    some = number.clamp(min=1)
    least = _zero_where_none(torch.where(finite, x, torch.inf).amin(), number)
    most = _zero_where_none(torch.where(finite, x, -torch.inf).amax(), number)
    scale = _scale_of(torch.maximum(most, -least)) if values.dtype == torch.float64 else torch.zeros_like(number)
    near = torch.ldexp(torch.where(finite, x, 0), -scale) if values.dtype == torch.float64 else x
    # The second pass measures from the first pass's mean, so that nothing cancels.
    rough = (torch.where(finite, near, 0) / some).sum()
    away = torch.where(finite, near - rough, 0)
    rest = away.sum() / some
    row = torch.zeros(layout.CELLS, dtype=x.dtype, device=x.device)
    row[layout.FINITE] = number
    row[layout.MEAN] = rough + rest
    row[layout.DEVIATION] = ((away * away).sum() - number * rest * rest).clamp(min=0)
    row[layout.MIN] = least
    row[layout.MAX] = most
    row[layout.SCALE] = scale
    row[layout.NAN_COUNT] = x.isnan().sum()
    row[layout.POS_INF_COUNT] = x.isposinf().sum()
    row[layout.NEG_INF_COUNT] = x.isneginf().sum()
    row[layout.ZERO_COUNT] = (x == 0).sum()
    return row


def combine(rows: Tensor) -> Tensor:
    """Merge rows, [..., rows, CELLS] to [..., CELLS], by Chan's formula, as if their values were one tensor."""
    number = rows[..., layout.FINITE]
    empty = number == 0
    mean, deviation, scale = _in_one_unit(rows)
    total = number.sum(-1)
    merged_mean = (mean * (number / total.clamp(min=1)[..., None])).sum(-1)
    apart = mean - merged_mean[..., None]
    merged = torch.zeros_like(rows[..., 0, :])
    merged[..., layout.FINITE] = total
    merged[..., layout.MEAN] = merged_mean
    merged[..., layout.DEVIATION] = (deviation + number * apart * apart).sum(-1)
    least = rows[..., layout.MIN].masked_fill(empty, torch.inf).amin(-1)
    most = rows[..., layout.MAX].masked_fill(empty, -torch.inf).amax(-1)
    merged[..., layout.MIN] = _zero_where_none(least, total)
    merged[..., layout.MAX] = _zero_where_none(most, total)
    merged[..., layout.SCALE] = scale
    merged[..., _COUNTS] = rows[..., _COUNTS].sum(-2)
    return merged


def _scale_of(magnitude: Tensor) -> Tensor:
    """Return `layout.scale_of` without waiting for the device."""
    far = torch.where(magnitude > layout.HUGE, layout.FAR_EXPONENT, 0)
    return torch.where((magnitude > 0) & (magnitude < layout.TINY), -layout.FAR_EXPONENT, far).to(magnitude.dtype)


def _in_one_unit(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, deviations, and their common scale, which is the largest of all rows that aren't zero."""
    mean, deviation, scale = (rows[..., cell] for cell in (layout.MEAN, layout.DEVIATION, layout.SCALE))
    if rows.dtype != torch.float64:
        return mean, deviation, torch.zeros_like(scale[..., 0])
    some = (mean != 0) | (deviation != 0)
    largest = scale.masked_fill(~some, -torch.inf).amax(-1)
    largest = largest.masked_fill(largest.isinf(), 0)
    by = torch.where(some, scale - largest[..., None], 0)
    return torch.ldexp(mean, by), torch.ldexp(torch.ldexp(deviation, by), by), largest


def _zero_where_none(extreme: Tensor, number: Tensor) -> Tensor:
    return torch.where(number > 0, extreme, 0)


def stride_of(values: int, limit: int | None) -> int:
    """Return the distance between sampled values: 1 up to the limit, then an odd stride; 0 for none of them."""
    if limit == 0:
        return 0
    if limit is None or values < 2 * limit:
        return 1
    stride = values // limit
    return stride - 1 + stride % 2


def sample(tensor: Tensor, limit: int | None, offset: int) -> Tensor:
    """Return the values for a sketch. `offset` differs in every step, so that all values get their turn."""
    values = flat(tensor)
    stride = stride_of(values.numel(), limit)
    return values[offset % stride :: stride] if stride else values[:0]


def bins(tensor: Tensor, limit: int | None = None, offset: int = 0) -> Tensor:
    """Return the int64 histogram over the bins of `hookcore.records.sketch`, on the tensor's device."""
    histogram = torch.zeros(sketch.BINS, dtype=torch.int64, device=tensor.device)
    for piece in _pieces(sample(tensor, limit, offset)):
        numbers = bin_numbers(piece)
        # Not bincount, because on a GPU it waits for the largest number.
        histogram.scatter_add_(0, numbers, torch.ones_like(numbers))
    return histogram


def bin_numbers(values: Tensor) -> Tensor:
    """Return the bin of each value, from the bits of its float."""
    if values.dtype in _EXACT_IN_FLOAT32 or values.device.type == "mps":
        words = values.to(torch.float32).view(torch.int32)
        return _bins_of_words(words, sign_at=31, mantissa_bits=23, bias=127)
    return _bins_of_words(values.to(torch.float64).view(torch.int64), sign_at=63, mantissa_bits=52, bias=1023)


def _bins_of_words(words: Tensor, sign_at: int, mantissa_bits: int, bias: int) -> Tensor:
    sign = words >> sign_at  # 0, or -1 below zero
    magnitude = words & ((1 << sign_at) - 1)
    infinite = (2 * bias + 1) << mantissa_bits
    lowest = (bias + sketch.MIN_EXPONENT) * sketch.STEPS_PER_OCTAVE
    step = ((magnitude >> (mantissa_bits - 3)) - lowest).clamp(-1, sketch.MAGNITUDES)
    step = step.masked_fill(magnitude == infinite, sketch.MAGNITUDES + 1)
    # Below zero, the bins run the other way: POS_FIRST + step is mirrored at ZERO.
    numbers = torch.where(sign < 0, 2 * sketch.ZERO - sketch.POS_FIRST - step, sketch.POS_FIRST + step)
    numbers = numbers.masked_fill(magnitude == 0, sketch.ZERO)
    return numbers.masked_fill(magnitude > infinite, sketch.NAN).to(torch.int64)
