"""The key figures of a run."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.times import rates_of, recent
from hookcore.records import Kind, Tap
from hookcore.records.vocabulary import OWN, loss_rank, losses_among
from hookcore.store import Latest, Store

MAX_SCALARS: Final = 50
_NEAR_STEPS: Final = 200  # newest steps, among which the newest value of a scalar usually is
NORM_KINDS: Final[tuple[Kind, ...]] = ("param_grad", "output_grad")  # the norm is of the first that is captured


@dataclass(frozen=True, slots=True)
class Reading:
    """A value and its source (a scalar or a tap). If its step is merged with earlier ones, it is a mean."""

    name: str
    value: float
    step: int
    number: int | None = None
    tap: Tap | None = None
    first_step: int = -1  # the first of the steps of which it is the mean

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean of several steps."""
        return 0 <= self.first_step < self.step


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """The key figures of a run, or of some of its steps; None for unknown ones."""

    first_step: int | None
    newest_step: int | None
    steps: int
    steps_per_s: float | None
    loss: Reading | None
    scalars: tuple[Reading, ...]  # the user's, including the loss
    gradient_kind: Kind | None  # the kind of the gradients below: of parameters, else of outputs
    gradient_norm: Reading | None
    smallest_gradient: Reading | None  # by root mean square, so that a large layer doesn't count as a large gradient
    largest_gradient: Reading | None
    nonfinite_modules: tuple[str, ...]  # in the newest captured values of each
    modules_captured: int
    modules: int
    taps: int
    loss_name: str = ""  # of the scalar that is, or would be, the loss
    merged: tuple[int, int] | None = None  # the gradients' steps, if they are merged: then their norm is unknown
    seen: int = 0  # taps with values
    losses: tuple[Reading, ...] = ()  # the loss, and those of further optimizers


def key_figures_of(
    store: Store, first: int | None = None, last: int | None = None, *, is_live: bool = True
) -> KeyFigures:
    """Return the key figures of a run: the newest ones, or the newest in these steps.

    The rate is that of these steps; without any, of the newest ones if the run is live, else of all.
    """
    steps, coverage = store.steps(), store.coverage()
    names = _names_of(store)
    losses = losses_among(names)
    read = (newest_of(store, name, last, first) for name in names[:MAX_SCALARS])
    scalars = tuple(reading for reading in read if reading is not None)
    latest = store.latest(first=first, last=last, merged=True)
    kind, norm, smallest, largest = _gradients(latest)
    seen = {tap.module for tap in latest.taps}
    is_whole = (first, last) == (None, None)
    captured = len(seen) if not is_whole else sum(each.captured for each in coverage)
    return KeyFigures(
        first_step=steps.first,
        newest_step=steps.newest,
        steps=steps.count,
        steps_per_s=rates_of(store, recent(store) if is_whole and is_live else first, last).steps,
        loss=next((each for each in scalars if each.name == names[0]), None),
        scalars=scalars,
        gradient_kind=kind,
        gradient_norm=norm,
        smallest_gradient=smallest,
        largest_gradient=largest,
        nonfinite_modules=_nonfinite_modules(latest, store.masks()),
        modules_captured=captured if coverage else len(seen),
        modules=len(coverage) or len(seen),
        taps=store.taps_announced,
        loss_name=next(iter(names), ""),
        merged=_merged_of(latest, kind),
        seen=len(latest.taps),
        losses=tuple(each for each in scalars if each.name in losses),
    )


def newest_of(store: Store, name: str, last: int | None = None, first: int | None = None) -> Reading | None:
    """Return the newest value of a scalar in these steps, or None."""
    newest = store.steps().newest if last is None else last
    if newest is None or name not in store.scalar_names():
        return None
    # It is usually among the newest steps; for a scalar that is rarely logged, search all of them.
    near = max(first or 0, newest - _NEAR_STEPS)
    for begin in (near, first):
        row = store.scalars(name, begin, last, _NEAR_STEPS + 1)
        if len(row.mean):
            end = int(row.last_step[-1])
            if begin != near:  # the points of many steps are down-sampled
                row = store.scalars(name, end, last, 1)
            value = float("nan") if row.nonfinite[-1] else float(row.mean[-1])
            return Reading(name, value, end, first_step=int(row.first_step[-1]))
    return None


def _names_of(store: Store) -> list[str]:
    """Return the names of the user's scalars; the loss is never among those that are left out."""
    return sorted((name for name in store.scalar_names() if not name.startswith(OWN)), key=loss_rank)


def _gradients(latest: Latest) -> tuple[Kind | None, Reading | None, Reading | None, Reading | None]:
    """Return the norm over all gradients of the newest step that has any, the smallest, and the largest."""
    column = {stat: place for place, stat in enumerate(latest.stats)}
    for kind in NORM_KINDS:
        places = _places_of(latest, kind)
        if not len(places):
            continue
        step = int(latest.steps[places].max())
        places = places[latest.steps[places] == step]
        if (latest.first_steps[places] != step).any():
            return kind, None, None, None  # the norm of means is not the mean of norms
        values = latest.values[places]
        bad = bool((values[:, column["nonfinite"]] > 0).any())
        norm = math.nan if bad else math.hypot(*values[:, column["norm"]].tolist())
        sizes = values[:, column["rms"]]
        ends = _ends(latest, places, sizes, step)
        return kind, Reading("gradient norm", norm, step), *ends
    return None, None, None, None


def _places_of(latest: Latest, kind: Kind | None) -> NDArray[np.intp]:
    return np.array([place for place, tap in enumerate(latest.taps) if tap.kind == kind], np.intp)


def _merged_of(latest: Latest, kind: Kind | None) -> tuple[int, int] | None:
    """Return the steps of the newest gradients if they are merged."""
    places = _places_of(latest, kind)
    if not len(places):
        return None
    newest = places[latest.steps[places].argmax()]
    first, last = int(latest.first_steps[newest]), int(latest.steps[newest])
    return (first, last) if first != last else None


def _ends(
    latest: Latest, places: NDArray[np.intp], sizes: NDArray[np.float64], step: int
) -> tuple[Reading | None, Reading | None]:
    """Return the smallest and the largest finite value."""
    known = np.flatnonzero(np.isfinite(sizes))
    if not len(known):
        return None, None

    def reading(at: np.intp) -> Reading:
        place = int(places[at])
        return Reading("rms", float(sizes[at]), step, int(latest.numbers[place]), latest.taps[place])

    return reading(known[sizes[known].argmin()]), reading(known[sizes[known].argmax()])


def _nonfinite_modules(latest: Latest, masks: Collection[int]) -> tuple[str, ...]:
    """Return the modules whose newest tensors had NaN, or infinities that aren't a mask's, in the order of capture."""
    nan, bad = (latest.values[:, latest.stats.index(name)] > 0 for name in ("nan", "nonfinite"))
    found = np.flatnonzero(nan | (bad & ~np.isin(latest.numbers, list(masks))))
    return tuple(dict.fromkeys(latest.taps[place].module for place in found.tolist()))
