"""Incidents: problems, as they were found when they happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from hookcore import records
from hookcore.reading.answers.base import Answer, FloatMatrix, Floats, Integers, Number, Tap
from hookcore.records import Severity
from hookcore.store import incidents


class Link(Tap, frozen=True):
    """A tensor of an incident."""

    first_step: Annotated[int, Meta(description="the first step in which it was affected")]


class Incident(Answer, frozen=True):
    """A problem from its first step until all affected tensors had recovered.

    A culprit and a first step that are known never change.
    """

    id: Annotated[str, Meta(description="its name in addresses, also after a restart")]
    key: Annotated[str, Meta(description="the key to acknowledge it, together with the finding about its culprit")]
    rule: str
    severity: Severity
    acknowledged: bool
    muted: Annotated[bool, Meta(description="whether a mute covers it, so that it raises no alert")]
    sentence: str
    culprit: Annotated[Link, Meta(description="what began it; the whole model if `culprit_known` is false")]
    culprit_known: Annotated[
        bool, Meta(description="whether the first layer is known; if not, `remedy` says what to do")
    ]
    source: Annotated[
        incidents.Source,
        Meta(description="how the culprit is known: captured, found by the trainer's check of every step, or replayed"),
    ]
    where: Annotated[str, Meta(description="the line of code that a replay found; empty if none did")]
    headline: Annotated[str, Meta(description="what began when and where, without a period")]
    remedy: Annotated[str, Meta(description="how to find an unknown culprit; empty if it is known")]
    value: Annotated[Number, Meta(description="the culprit's value when the incident was found")]
    usual: Annotated[Number, Meta(description="the value before; NaN if unknown")]
    first_step: Annotated[int, Meta(description="the first step in which it was found")]
    earliest_step: Annotated[int, Meta(description="the first step in which it may have begun; `first_step` if exact")]
    last_step: Annotated[int, Meta(description="the newest step in which it was found")]
    recovered: Annotated[int | None, Meta(description="the step in which it was over; null while it lasts")]
    found_step: Annotated[int, Meta(description="the newest step when the incident was found")]
    steps: Annotated[int, Meta(description="affected steps: captured ones of NaN or infinity, or from first to last")]
    unseen: Annotated[int, Meta(description="unknown steps right before the first one: from `earliest_step` on")]
    skipped: Annotated[bool, Meta(description="whether a gradient scaler skipped one of the steps")]
    loss: Annotated[str, Meta(description="a loss that was non-finite in the first step, although no output was")]
    chain: Annotated[tuple[Link, ...], Meta(description="the tensors that followed, in the order of cause")]
    taps: Annotated[int, Meta(description="the number of tensors that followed; the chain has the first 256")]
    modules: Annotated[int, Meta(description="the number of other affected modules")]
    has_evidence: Annotated[bool, Meta(description="whether the values around the onset were saved")]

    @classmethod
    def of(cls, found: incidents.Incident, acknowledged: bool, muted: bool) -> Incident:
        return cls(**_fields_of(found), acknowledged=acknowledged, muted=muted)


class Around(Answer, frozen=True):
    """A logged value around the onset of an incident."""

    name: str
    steps: Integers
    values: Floats


class Evidence(Answer, frozen=True):
    """Exact values in the captured steps around an onset."""

    taps: Annotated[tuple[Tap, ...], Meta(description="the culprit, other tensors of its module, and its neighbors")]
    steps: Integers
    stats: Annotated[dict[str, FloatMatrix], Meta(description="each stat, by step and tap; NaN where not captured")]
    scalars: tuple[Around, ...]

    @classmethod
    def of(cls, found: incidents.Evidence) -> Evidence:
        """Return the answer for the values around an onset."""
        return cls(
            tuple(map(Tap.of, found.numbers, found.taps)),
            found.steps,
            dict(zip(records.STATS, found.stats, strict=True)),
            tuple(Around(each.name, each.steps, each.values) for each in found.logged),
        )


class IncidentDetail(Incident, frozen=True):
    """An incident with its evidence."""

    evidence: Annotated[Evidence | None, Meta(description="null if there was no room for it")]

    @classmethod
    def of(cls, found: incidents.Incident, acknowledged: bool, muted: bool) -> IncidentDetail:
        """Return the answer for an incident with its evidence."""
        evidence = None if found.evidence is None else Evidence.of(found.evidence)
        return cls(**_fields_of(found), acknowledged=acknowledged, muted=muted, evidence=evidence)


class Incidents(Answer, frozen=True):
    """Incidents, oldest first. Can be iterated over."""

    run: str
    total: int
    dropped: Annotated[int, Meta(description="incidents that were dropped to make room for others")]
    dropped_alerts: Annotated[int, Meta(description="the warnings and errors among these")]
    incidents: tuple[Incident, ...]

    def __getitem__(self, place: int) -> Incident:
        return self.incidents[place]

    def __iter__(self) -> Iterator[Incident]:
        return iter(self.incidents)

    def __len__(self) -> int:
        return len(self.incidents)


def _fields_of(found: incidents.Incident) -> dict[str, Any]:
    same = (
        "id",
        "key",
        "rule",
        "severity",
        "sentence",
        "headline",
        "remedy",
        "culprit_known",
        "source",
        "where",
        "first_step",
        "earliest_step",
        "last_step",
        "recovered",
        "steps",
        "unseen",
    )
    return {name: getattr(found, name) for name in (*same, "found_step", "skipped", "loss", "taps", "modules")} | {
        "culprit": _link(found.culprit),
        "value": Number(found.value),
        "usual": Number(found.usual),
        "chain": tuple(map(_link, found.chain)),
        "has_evidence": found.evidence is not None,
    }


def _link(link: incidents.Link) -> Link:
    return Link.of(link.number, link.tap, first_step=link.first_step)
