"""The origin of a finding: the first layer, its inputs, the affected layers, and the steps around the onset. Pure:
records in, words and sparklines out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings import Finding
from hookcore.records import ROOT, STAT_COLUMN, Kind, Tap
from hookcore.records.vocabulary import KIND_WORDS
from hookcore.store import Store, TapList
from hookcore.store.incidents import Evidence, Incident, Link, Rank, rank_of
from hookcore.store.incidents import around as around_of
from hookcore.store.schemas import STAT_SCHEMA

from ...analysis.figures.spark import Spark, spark_of

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
    """Another affected module: its first tensor, and since when."""

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
    followers: tuple[Follower, ...]  # in the order in which they were affected
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

    def at(self, place: int) -> _Around:
        one = slice(place, place + 1)
        return _Around(self.taps.at([place]), self.first, self.last, self.worst[one], self.bad[one], self.seen[one])


def provenance_of(store: Store, finding: Finding) -> Provenance | None:
    """Return the known facts about the origin of a finding: those of its incident, if there is one.

    If its tensor was never captured, such as a weight, those of the first captured one that followed; None if none did.
    """
    first, last = max(0, finding.since_step - AROUND), finding.since_step + AROUND
    incident, before, left_out = incident_of(store.incidents(), finding), "", 0
    number = finding.number
    if number < 0:
        number = next((each.number for each in (() if incident is None else incident.chain) if each.number >= 0), -1)
    if number < 0:
        return None
    around = _read(store, finding, first, last)  # after the incident, so that it has all tensors that followed
    place = int(np.flatnonzero(around.taps.numbers == number)[0])
    shown = around.at(place)
    followers: tuple[Follower, ...] = ()
    if incident is not None:
        exact = None if incident.evidence is None else _exact(incident.evidence, finding.stat, first, last)
        shown = around.at(place) if exact is None else exact.at(0)
        before = _before(around, incident, place) if incident.rule == "nonfinite" else ""
        followers, left_out = _followers(incident, around, exact)
    return Provenance(
        PHASES[finding.tap.kind],
        before,
        first,
        last,
        _line(shown, 0),
        _strip(shown, 0, first, min(last, store.steps().newest or last)),
        int((shown.last - shown.first).max(initial=0)) + 1,
        followers,
        left_out,
    )


def incident_of(incidents: Sequence[Incident], finding: Finding) -> Incident | None:
    """Return the incident that a finding is about."""
    wanted = finding.key, finding.since_step
    return next((each for each in incidents if (each.key, each.first_step) == wanted), None)


def _exact(evidence: Evidence, stat: str, first: int, last: int) -> _Around:
    """Return what an incident keeps of the culprit and its neighbors. Nothing of it is merged."""
    inside = (evidence.steps >= first) & (evidence.steps <= last)
    steps, stats = evidence.steps[inside], evidence.stats[:, inside]
    bad = stats[STAT_COLUMN["nan"]] + stats[STAT_COLUMN["inf"]] > 0
    size = np.where(bad, np.nan, STAT_SCHEMA.read(STAT_SCHEMA.names.index(stat), stats.__getitem__))
    taps = TapList(np.array(evidence.numbers, np.int64), evidence.taps)
    return _Around(taps, steps, steps, size.T, bad.T, ~np.isnan(stats[STAT_COLUMN["count"]]).T)


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
    taps = store.taps()
    rows = store.rows(taps.numbers, finding.stat, first, last)
    worst = np.where(np.abs(rows.low) > np.abs(rows.high), rows.low, rows.high)
    worst[rows.nonfinite > 0] = np.nan
    return _Around(taps, rows.first, rows.last, worst.T, (rows.nonfinite > 0).T, (rows.present > 0).T)


def _line(around: _Around, place: int) -> Spark | None:
    seen = around.seen[place]
    return spark_of(around.first[seen], around.worst[place, seen])


def _followers(incident: Incident, around: _Around, exact: _Around | None) -> tuple[tuple[Follower, ...], int]:
    """Return the first tensor of each other module that followed, and the number of modules beyond these."""
    firsts: dict[str, Link] = {}
    for link in incident.chain:
        if link.tap.module != incident.culprit.tap.module:
            firsts.setdefault(link.tap.module, link)
    found = list(firsts.values())[:FOLLOWERS]
    return tuple(Follower(link.tap, link.first_step, _line_of(link, around, exact)) for link in found), max(
        0, incident.modules - len(found)
    )


def _line_of(link: Link, around: _Around, exact: _Around | None) -> Spark | None:
    known = exact if exact is not None and link.number in exact.taps.numbers else around
    places = np.flatnonzero(known.taps.numbers == link.number)
    return _line(known, int(places[0])) if len(places) else None  # a replay names tensors that were never captured


def _ranks(around: _Around, steps: dict[int, int]) -> dict[int, Rank]:
    holders = around_of(around.taps.taps[place].module for place in steps)
    return {
        place: rank_of(step, int(around.taps.numbers[place]), around.taps.taps[place], holders)
        for place, step in steps.items()
    }


def _before(around: _Around, incident: Incident, place: int) -> str:
    """Describe whether the tensor's inputs were finite, as far as they were captured."""
    words, sources = _sources_of(incident.culprit.tap, around.taps.taps)
    seen, is_bad = _at(around, incident)
    known = [source for source in sources if seen[source]]
    bad = [around.taps.taps[source] for source in known if is_bad[source]]
    if bad:
        return f"Its {words} was non-finite: the {KIND_WORDS[bad[0].kind]} of {bad[0].module or ROOT}."
    if known:
        return f"Its {words} was finite in that step" + ("." if incident.unseen else ": it began here.")
    return f"Its {words} was not captured. {_earlier(around, incident, place)}"


def _earlier(around: _Around, incident: Incident, place: int) -> str:
    """Describe the tensors that the model computed earlier in that step."""
    seen, is_bad = _at(around, incident)
    ranks = _ranks(around, dict.fromkeys([*np.flatnonzero(seen).tolist(), place], incident.first_step))
    earlier = [each for each, rank in ranks.items() if rank < ranks[place]]
    if not earlier:
        return "No tensor was captured before it in that step."
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


def _at(around: _Around, incident: Incident) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which taps were captured in the first step, and which were non-finite then."""
    step = incident.first_step
    rows = (around.first <= step) & (around.last >= step)
    first = [link.number for link in (incident.culprit, *incident.chain) if link.first_step == step]
    return np.asarray(around.seen[:, rows].any(axis=1)), np.isin(around.taps.numbers, first)
