"""The origin of a finding: the first layer, its inputs, the affected layers, and the steps around the onset. Pure:
records in, words and sparklines out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Kind, Tap
from hookcore.store import Store, TapList

from ...findings import Finding
from ...findings.order import Rank, rank_of
from ...findings.order import around as around_of
from .spark import Spark, spark_of

AROUND: Final = 50  # steps on either side
FOLLOWERS: Final = 12  # maximum number of taps in the list
PHASES: Final[dict[Kind, str]] = {
    "input": "forward",
    "output": "forward",
    "output_grad": "backward",
    "input_grad": "backward",
    "param_grad": "backward",
    "update": "optimizer",
    "param": "optimizer",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps with the same state."""

    first: int
    last: int
    state: str  # finite, bad, unseen


@dataclass(frozen=True, slots=True)
class Follower:
    """Another non-finite module: its first tensor, and since when."""

    tap: Tap
    step: int
    spark: Spark | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """The known facts about the origin of a finding."""

    phase: str
    before: str  # about the layer's inputs
    first: int
    last: int  # the last step of the sparklines
    spark: Spark | None
    strip: tuple[Stretch, ...]  # of the finding's own tap
    merged: int  # the maximum number of steps per point of the strip: old ones are merged
    followers: tuple[Follower, ...]  # in the order in which they became non-finite
    followers_left_out: int


@dataclass(frozen=True, slots=True)
class _Around:
    """Every tap in the steps around the onset [tap, row]; a row is a step, or several merged ones."""

    taps: TapList
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    worst: NDArray[np.float64]
    bad: NDArray[np.bool_]
    seen: NDArray[np.bool_]


def provenance_of(store: Store, finding: Finding) -> Provenance:
    """Return the known facts about the origin of a finding."""
    first, last = max(0, finding.since_step - AROUND), finding.since_step + AROUND
    around = _read(store, finding, first, last)
    place = int(np.flatnonzero(around.taps.numbers == finding.number)[0])
    is_bad = finding.rule == "nonfinite"
    followers = _followers(around, finding, place) if is_bad else []
    return Provenance(
        PHASES[finding.tap.kind],
        _before(around, finding, place) if is_bad else "",
        first,
        last,
        _line(around, place),
        _strip(around, place, first, min(last, store.steps().newest or last)),
        int((around.last - around.first).max(initial=0)) + 1,
        tuple(followers[:FOLLOWERS]),
        max(0, len(followers) - FOLLOWERS),
    )


def _strip(around: _Around, place: int, first: int, last: int) -> tuple[Stretch, ...]:
    state = dict.fromkeys(range(first, last + 1), "unseen")
    for row in np.flatnonzero(around.seen[place]).tolist():
        for step in range(max(first, int(around.first[row])), min(last, int(around.last[row])) + 1):
            state[step] = "bad" if around.bad[place, row] else "finite"
    found: list[Stretch] = []
    for step, each in state.items():
        begin = found.pop().first if found and found[-1].state == each else step
        found.append(Stretch(begin, step, each))
    return tuple(found)


def _read(store: Store, finding: Finding, first: int, last: int) -> _Around:
    taps = store.taps() if finding.rule == "nonfinite" else store.taps(None, finding.tap.kind)
    rows = store.rows(taps.numbers, finding.stat, first, last)
    worst = np.where(np.abs(rows.low) > np.abs(rows.high), rows.low, rows.high)
    worst[rows.nonfinite > 0] = np.nan
    return _Around(taps, rows.first, rows.last, worst.T, (rows.nonfinite > 0).T, (rows.present > 0).T)


def _line(around: _Around, place: int) -> Spark | None:
    seen = around.seen[place]
    return spark_of(around.first[seen], around.worst[place, seen])


def _followers(around: _Around, finding: Finding, place: int) -> list[Follower]:
    """Return the other modules that were non-finite from that step on, in the order of cause."""
    bad = around.bad & (around.last >= finding.since_step)
    places = [each for each in np.flatnonzero(bad.any(axis=1)).tolist() if each != place]
    onsets = {each: max(finding.since_step, int(around.first[bad[each].argmax()])) for each in places}
    ranks = _ranks(around, onsets)
    firsts: dict[str, int] = {}
    for each in sorted(places, key=lambda each: ranks[each]):
        if around.taps.taps[each].module != finding.module:
            firsts.setdefault(around.taps.taps[each].module, each)
    return [
        Follower(around.taps.taps[each], onsets[each], _line(around, each) if order < FOLLOWERS else None)
        for order, each in enumerate(firsts.values())
    ]


def _ranks(around: _Around, steps: dict[int, int]) -> dict[int, Rank]:
    holders = around_of(around.taps.taps[place].module for place in steps)
    return {
        place: rank_of(step, int(around.taps.numbers[place]), around.taps.taps[place], holders)
        for place, step in steps.items()
    }


def _before(around: _Around, finding: Finding, place: int) -> str:
    """Describe whether the tensor's inputs were finite, as far as they were captured."""
    step = finding.since_step
    words, sources = _sources_of(finding.tap, around.taps.taps)
    seen, is_bad = _at(around, step)
    known = [source for source in sources if seen[source]]
    bad = [around.taps.taps[source] for source in known if is_bad[source]]
    if bad:
        return f"Its {words} was non-finite: {bad[0].label}."
    if known:
        return f"Its {words} was finite in that step" + ("." if finding.unseen else ": it began here.")
    return f"Its {words} was not captured. {_earlier(around, step, place)}"


def _earlier(around: _Around, step: int, place: int) -> str:
    """Describe the tensors that the model computed earlier in that step."""
    seen, is_bad = _at(around, step)
    ranks = _ranks(around, dict.fromkeys([*np.flatnonzero(seen).tolist(), place], step))
    earlier = [each for each, rank in ranks.items() if rank < ranks[place]]
    if not earlier:
        return "Nothing was captured before it in that step."
    bad, where = int(is_bad[earlier].sum()), "captured before it in that step"
    if len(earlier) == 1:
        return f"The one tensor {where} was {'also non-finite' if bad else 'finite'}."
    if bad:
        return f"{bad:,} of the {len(earlier):,} tensors {where} {'was' if bad == 1 else 'were'} also non-finite."
    return f"All {len(earlier):,} tensors {where} were finite."


def _sources_of(tap: Tap, taps: Sequence[Tap]) -> tuple[str, list[int]]:
    """Return a tensor's captured inputs, as a word and as indexes."""
    kinds: dict[str, tuple[str, tuple[str, ...]]] = {
        "output": ("input", ("input",)),
        "input_grad": ("gradient from above", ("output_grad",)),
        "param_grad": ("gradient from above", ("output_grad",)),
        "update": ("gradient", ("param_grad",)),
        "param": ("update", ("update", "param_grad")),
    }
    words, wanted = kinds.get(tap.kind, ("input" if tap.kind == "input" else "gradient from above", ()))
    exact = tap.kind in ("update", "param")  # of one parameter, not of all of the module
    found = [
        place
        for place, each in enumerate(taps)
        if each.module == tap.module and each.kind in wanted and (not exact or each.index == tap.index)
    ]
    return words, found


def _at(around: _Around, step: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which taps were captured in a step, and which were non-finite."""
    rows = (around.first <= step) & (around.last >= step)
    return np.asarray(around.seen[:, rows].any(axis=1)), np.asarray(around.bad[:, rows].any(axis=1))
