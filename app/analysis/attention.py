"""Attention maps of a run, and their rollout: how much each position before the first layer influences the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.records import PROBE, Snapshot, Tap
from hookcore.records.vocabulary import ATTENTION, ATTENTION_MAP, functions_of
from hookcore.store import Store

# Attention rollout: how much each position before the first layer influences each position of the last. In float64.
#
# A layer's output is half its attention and half its input, by the skip connection (Abnar and Zuidema 2020): `0.5 * A +
# 0.5 * I`, with rows normalized to sum to 1. The product of all layers, the last one on the left, is the rollout.
#
# With gradients, a head's map is `relu(A * dA)`, so that only attention that supports the outcome remains. Its rows are
# normalized to sum to 1 before the mix, because the scale of gradients is arbitrary. A row without any weight left
# becomes the identity.

Fuse = Literal["mean", "max", "min"]
Floats = NDArray[np.float64]

ROW_ERROR: Final = 0.02  # the sum of a row of half floats may differ this much from 1
DROPPED_ERROR: Final = 0.1  # with dropout, only the mean of all rows is near 1
_FUSES: Final[dict[Fuse, Callable[..., Floats]]] = {"mean": np.mean, "max": np.max, "min": np.min}


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The attention of one layer, [sample, head, to, from], and its gradient."""

    name: str
    weights: Floats
    gradient: Floats | None = None


def maps_of(values: NDArray[Any]) -> Floats:
    """Return a tensor as [sample, head, to, from]. Without a dimension for heads, there is one head."""
    if values.ndim not in (3, 4):
        raise ArgumentError(
            f"attention of shape {values.shape} is not supported: it must be [sample, (head,) to, from]"
        )
    maps = values if values.ndim == 4 else values[:, None]
    return maps.astype(np.float64)


def is_attention(values: NDArray[Any], *, dropped: bool) -> bool:
    """Return whether a tensor looks like attention between positions: square, not negative, with rows that sum to 1.

    With `dropped`, so does what attention is after dropout: rows around 1, and zeros. Any rectified output may be like
    that by chance, so that something else must say that the tensor is attention.
    """
    if values.ndim not in (3, 4) or values.dtype.kind != "f" or values.shape[-1] != values.shape[-2]:
        return False
    if values.shape[-1] < 2 or not values.size:
        return False
    numbers = values.astype(np.float64)
    rows = numbers.sum(axis=-1)
    rows = rows[np.isfinite(rows)]  # a fully masked row is NaN
    if not len(rows) or bool((numbers < 0).any()):
        return False
    if bool((np.abs(rows - 1) <= ROW_ERROR).all()):
        return True
    return dropped and abs(float(rows.mean()) - 1) <= DROPPED_ERROR and bool((numbers == 0).any())


def rollout(
    layers: Sequence[AttentionLayer],
    *,
    sample: int = 0,
    fuse: Fuse = "mean",
    discard: float = 0.0,
    gradient: bool = False,
) -> Floats:
    """Return the influence of each position before the first layer (column) on each of the last (row). Rows sum to 1.

    `discard` removes this share of the weights of each row of a layer's map, the smallest ones, but never those of the
    first position, where class tokens are, and never the largest. Maps of different sizes are refused.
    """
    if not layers:
        raise ArgumentError("a rollout needs the attention of at least one layer")
    if not 0 <= discard < 1:
        raise ArgumentError(f"discard={discard} is not a share: give a number from 0 to below 1")
    _require_one_size(layers, sample)
    found: Floats = np.eye(layers[0].weights.shape[-1])
    for layer in layers:
        found = mixed(fused(layer, sample, fuse, gradient), discard) @ found
    return found


def fused(layer: AttentionLayer, sample: int, fuse: Fuse, gradient: bool) -> Floats:
    """Return one map of a layer's heads. Non-finite values count as no attention."""
    weights = np.nan_to_num(layer.weights[sample], nan=0.0, posinf=0.0, neginf=0.0)
    if not gradient:
        heads: Floats = _FUSES[fuse](weights, axis=0)
        return heads
    if layer.gradient is None:
        raise ArgumentError(f"{layer.name} has no attention gradient at this step: request it, or use gradient=false")
    if layer.gradient.shape != layer.weights.shape:
        shapes = f"{layer.weights.shape} and {layer.gradient.shape}"
        raise ArgumentError(f"the attention of {layer.name} and its gradient differ in shape: {shapes}")
    slope = np.nan_to_num(layer.gradient[sample], nan=0.0, posinf=0.0, neginf=0.0)
    largest = float(np.abs(slope).max()) or 1.0  # products of small gradients must not vanish
    weighted: Floats = _FUSES[fuse](np.maximum(weights * (slope / largest), 0.0), axis=0)
    return _rows_to_one(weighted)


def mixed(attention: Floats, discard: float) -> Floats:
    """Return half the attention without its smallest weights plus half the identity. Rows sum to 1."""
    kept = np.array(attention)
    size = kept.shape[-1]
    many = int(discard * size)
    if many:
        smallest = np.argsort(kept, axis=-1, kind="stable")[:, : min(many, size - 1)]
        first = kept[:, 0].copy()
        np.put_along_axis(kept, smallest, 0.0, axis=-1)
        kept[:, 0] = first
    return _rows_to_one(0.5 * kept + 0.5 * np.eye(size))


def _rows_to_one(matrix: Floats) -> Floats:
    sums = matrix.sum(axis=-1, keepdims=True)
    found: Floats = np.divide(matrix, sums, out=np.eye(matrix.shape[-1]), where=sums > 0)
    return found


def _require_one_size(layers: Sequence[AttentionLayer], sample: int) -> None:
    sizes = {layer.weights.shape[-2:] for layer in layers}
    if len(sizes) > 1 or len(set(next(iter(sizes)))) > 1:
        listed = ", ".join(f"{layer.name} {' x '.join(map(str, layer.weights.shape[-2:]))}" for layer in layers[:20])
        raise ArgumentError(f"a rollout needs square maps of one size, but there are {listed}: choose some with match=")
    samples = min(len(layer.weights) for layer in layers)
    if not 0 <= sample < samples:
        raise ArgumentError(f"sample={sample} was not captured: there are {samples}, numbered from 0")


# Attention maps of a run: the captured ones, and the taps that look like attention.

MAX_WEIGHT: Final = 4.0  # attention after dropout has weights above 1
MEAN_ERROR: Final = 2e-3  # of half floats


@dataclass(frozen=True, slots=True)
class Captured:
    """The snapshot numbers of one layer's attention at one step, and of its gradient."""

    number: int
    snapshot: Snapshot
    gradient: tuple[int, Snapshot] | None


def maps_at(store: Store, match: str | None) -> dict[int, list[Captured]]:
    """Return the captured attention maps of each step, in the model's order. The newest of repeated ones counts."""
    fits, types = store.matcher(match), store.module_types()
    found: dict[tuple[int, Tap], tuple[int, Snapshot]] = {}
    for number, each in store.numbered_snapshots():
        found[each.step, each.tap] = number, each
    order = {module.path: place for place, module in enumerate(store.modules())}
    steps: dict[int, list[Captured]] = {}
    for (step, tap), (number, each) in found.items():
        if tap.kind == "output" and fits(tap.module) and looks_like_attention(each, types.get(tap.module, "")):
            steps.setdefault(step, []).append(Captured(number, each, found.get((step, gradient_of(tap)))))
    for step, layers in steps.items():
        layers.sort(key=lambda kept: (order.get(kept.snapshot.tap.module, len(order)), kept.snapshot.tap.call))
        steps[step] = _each_once(layers)
    return steps


def _each_once(layers: list[Captured]) -> list[Captured]:
    """Return each map once. A softmax returns it first, then the attention around it, then a model that lists all."""
    found: list[Captured] = []
    for layer in layers:
        same = next((place for place, other in enumerate(found) if _is_same(other.snapshot, layer.snapshot)), None)
        if same is None:
            found.append(layer)
        elif _rank(layer) > _rank(found[same]):
            found[same] = layer
    return found


def _rank(kept: Captured) -> tuple[bool, int]:
    """Rank equal maps: one with a gradient first, then the innermost."""
    return kept.gradient is not None, len(kept.snapshot.tap.module)


def _is_same(one: Snapshot, two: Snapshot) -> bool:
    return _hands_on(one, two) or _hands_on(two, one)


def _hands_on(outer: Snapshot, inner: Snapshot) -> bool:
    inside = inner.tap.module.startswith(f"{outer.tap.module}." if outer.tap.module else "")
    return inside and np.array_equal(outer.values, inner.values, equal_nan=True)


def gradient_of(tap: Tap) -> Tap:
    """Return the tap of the gradient of an output."""
    return Tap(tap.module, "output_grad", tap.index, tap.call, tap.phase)


def taps_like_attention(store: Store, match: str | None) -> list[Tap]:
    """Return outputs whose newest numbers fit attention maps.

    None of their values is negative, and their mean is one over an integer, because rows sum to 1. Those with a fitting
    module name come first; with dropout, only those count. The result may contain others, which are recognized by their
    shape when they arrive.
    """
    latest = store.latest(store.taps(match, "output"))
    column = {name: latest.values[:, place] for place, name in enumerate(latest.stats)}
    types = store.module_types()
    named = np.array([_is_named_so(tap, types.get(tap.module, "")) for tap in latest.taps], bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = 1 / column["mean"]
        exact = np.abs(size - np.rint(size)) < MEAN_ERROR * size
        possible = (column["min"] >= 0) & (column["max"] <= MAX_WEIGHT) & np.isfinite(size) & (size > 1.5)
    chosen = np.flatnonzero(possible & (exact | (named & (column["zero"] > 0))))
    return [latest.taps[place] for place in sorted(chosen.tolist(), key=lambda place: not named[place])]


def taps_recomputed(store: Store, match: str | None) -> list[Tap]:
    """Return the maps of fused attention, which a trainer computes on request: one for each call that was measured.

    That of an evaluation is left out if the same was measured in training, because the next one may be far away.
    """
    names = [name for name, text in functions_of(store.labels()).items() if text == ATTENTION]
    found: dict[Tap, None] = {}
    for tap in store.taps(match, PROBE).taps:
        for name in names:
            if tap.index.startswith(measured := f"{name} entropy"):
                place = tap.index.removeprefix(measured)
                found[Tap(tap.module, "output", f"{ATTENTION_MAP}{place}", tap.call, tap.phase)] = None
    return [tap for tap in found if tap.phase == "train" or replace(tap, phase="train") not in found]


def looks_like_attention(snapshot: Snapshot, type_: str = "") -> bool:
    """Return whether a tensor looks like attention maps. After dropout, its names must say so, too."""
    return is_attention(snapshot.values, dropped=_is_named_so(snapshot.tap, type_))


def _is_named_so(tap: Tap, type_: str) -> bool:
    return any(word in f"{tap.module} {tap.index} {type_}".lower() for word in ("att", "softmax"))
