"""Incidents as they are now: their state, followed frame by frame, as the record that readers get."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import GRADIENT_KINDS, Tap
from hookcore.store.incidents.evidence import Gathering
from hookcore.store.incidents.incident import Incident, Link, Source, Steps
from hookcore.store.incidents.order import Causes
from hookcore.store.incidents.replay import Replay
from hookcore.store.incidents.standing import Standing
from hookcore.store.incidents.states import NEVER, Onset, Open, Over

MAX_CHAIN: Final = 256  # tensors that followed, with their first steps
NONFINITE: Final = "nonfinite"
UNCAPTURED: Final = -1  # the number of a tensor that was never captured
WHOLE: Final = Tap("", "output")  # the model itself stands for a layer that isn't known


@dataclass(frozen=True, slots=True)
class Accounts:
    """Makes the records of one store's incidents."""

    taps: list[Tap]  # only ever appended to
    numbers: dict[Tap, int]
    causes: Causes

    def of_nonfinite(self, incident: Open) -> Over:
        """Return the incident of non-finite values that is going on."""
        affected = np.flatnonzero(incident.onset != NEVER)
        onset = Onset.of(incident)
        culprit, source = self._culprit_of(incident, onset)
        is_known, is_captured = culprit is not None, culprit is not None and source == "capture"
        about = Incident(
            NONFINITE,
            self.whole(onset.step) if culprit is None else culprit,
            self._value_of(incident, onset, is_captured),
            onset.step,
            incident.last,
            incident.closed_at if incident.closed_at >= 0 else None,
            incident.steps,
            incident.skipped,
            onset.fine,
            incident.culprit_last if is_captured else incident.last,
            loss=incident.loss if is_captured else "",
            known=incident.known if is_captured else "",
            version=incident.version,
            found_step=incident.found,
            culprit_known=is_known,
            source=source,
        )
        return self._with_chain(about, affected, incident.onset[affected], incident.gathering)

    def _culprit_of(self, incident: Open, onset: Onset) -> tuple[Link | None, Source]:
        """Return what began it, or None: what was captured in a later step may only have followed."""
        alarm, step = incident.alarm, onset.step
        if alarm is not None and alarm.step == step and alarm.weight is not None:
            return Link(self._number_of(alarm.weight), alarm.weight, step), "check"
        if incident.begin != step:
            return None, "capture"
        first = self.taps[incident.culprit]
        # A step that the scaler skips leaves the weights as they are, so each of them stands for itself.
        stands_alone = incident.skipped and first.kind in GRADIENT_KINDS
        return (self._link(incident.culprit, step) if onset.is_exact or stands_alone else None), "capture"

    @staticmethod
    def _value_of(incident: Open, onset: Onset, is_captured: bool) -> float:
        if incident.alarm is not None and not is_captured and incident.alarm.step == onset.step:
            return incident.alarm.value
        return float("nan") if incident.with_nan[incident.culprit] else float("inf")

    def whole(self, step: int) -> Link:
        """Return the model itself, in the place of a layer that isn't known."""
        return Link(self._number_of(WHOLE), WHOLE, step)

    def _number_of(self, tap: Tap) -> int:
        return self.numbers.get(tap, UNCAPTURED)

    def _modules_of(self, numbers: NDArray[np.integer]) -> set[str]:
        return {self.taps[number].module for number in numbers.tolist()}

    def told(self, over: Over, replay: Replay) -> Over:
        """Return an incident with what the replay of its first step found."""
        about = over.about
        if about.message or about.unseen:
            return over
        replay = self._numbered(replay)
        version = max(about.version, replay.version)
        if about.culprit_known:
            return replace(over, about=replace(about, where=replay.where, version=version))
        replayed = {replay.culprit.tap, *(link.tap for link in replay.chain)}
        others = [self.taps[number] not in replayed for number in over.numbers.tolist()]
        modules = {tap.module for tap in replayed} | self._modules_of(over.numbers)
        about = replace(
            about,
            culprit=replay.culprit,
            value=replay.value,
            taps=about.taps + len(replay.chain) - others.count(False),
            modules=max(about.modules, len(modules)) - 1,
            culprit_known=True,
            source="replay",
            where=replay.where,
            version=version,
        )
        kept = np.array(others, bool)
        return replace(over, about=about, numbers=over.numbers[kept], onsets=over.onsets[kept], replay=replay)

    def _numbered(self, replay: Replay) -> Replay:
        """Return a replay with the numbers of its tensors, which may have been captured only later."""
        culprit, *chain = (replace(each, number=self._number_of(each.tap)) for each in (replay.culprit, *replay.chain))
        evidence = replay.evidence
        if evidence is not None:
            evidence = replace(evidence, numbers=tuple(map(self._number_of, evidence.taps)))
        return replace(replay, culprit=culprit, chain=tuple(chain), evidence=evidence)

    def of_rule(self, standing: Standing) -> Over:
        """Return an incident of a rule."""
        found = standing.found
        about = Incident(
            found.rule,
            self._link(found.number, found.since),
            found.value,
            found.since,
            standing.last,
            standing.over,
            standing.times if found.is_short else standing.last - found.since + 1,
            culprit_last=standing.last,
            version=standing.version,
            message=found.message,
            level=standing.severity,
            milder=standing.milder,
            usual=found.usual,
            found_step=standing.found_step,
            short=found.is_short,
            previous=found.since - found.unseen - 1 if found.unseen else None,
        )
        numbers = np.array(list(standing.onsets), np.int64)
        onsets = np.array(list(standing.onsets.values()), np.int64)
        return self._with_chain(about, numbers, onsets, standing.gathering)

    def read(self, incident: Over) -> Incident:
        """Return an incident with its chain and its evidence."""
        pairs = zip(incident.numbers.tolist(), incident.onsets.tolist(), strict=True)
        chain, evidence = tuple(self._link(*pair) for pair in pairs), None
        if incident.gathering is not None:
            evidence = incident.gathering.evidence()
        if incident.replay is not None:
            chain, evidence = (*incident.replay.chain, *chain), incident.replay.evidence or evidence
        return replace(incident.about, chain=chain, evidence=evidence)

    def _link(self, number: int, step: int) -> Link:
        return Link(number, self.taps[number], step)

    def _with_chain(
        self, about: Incident, affected: NDArray[np.int64], onsets: Steps, gathering: Gathering | None
    ) -> Over:
        others = affected != about.culprit.number if about.culprit_known else np.ones(len(affected), bool)
        modules = self.causes.modules(affected)
        own = about.culprit_known and (not others.all() or about.culprit.tap.module in self._modules_of(affected))
        numbers, onsets = affected[others], onsets[others]
        chain = self.causes.order(numbers, onsets)[:MAX_CHAIN]
        about = replace(about, taps=len(numbers), modules=modules - own)
        return Over(about, numbers[chain], onsets[chain], gathering)
