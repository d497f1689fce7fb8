"""A reader of a store in this process, and the modules of a run as answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.reading.answers.base import TapName
from hookcore.reading.pictures import cut
from hookcore.reading.quiet import Muting, Quiet
from hookcore.reading.reader import Reader
from hookcore.records import PROBE, Coverage, Event, HookRecord, Kind, ModuleRecord, Severity, Snapshot
from hookcore.records.sketch import FORMATS, Cast, Magnitudes, casts_of
from hookcore.store import StepRange, Store, TapList
from hookcore.store.checks import matcher, quantile_of, require_kind, unknown
from hookcore.store.incidents import Incident
from hookcore.store.unlike import Sample

_SAME: Final = ("path", "parent", "type", "parameters", "trainable", "aliases", "source")  # as in the record


def modules_of(store: Store, modules: Sequence[ModuleRecord], *, taps: bool) -> list[answers.Module]:
    """Return these modules with their coverage and, if wanted, their taps."""
    coverage = {covered.path: covered for covered in store.coverage()}
    taps_of = _taps_in(store, modules) if taps else {}
    return [
        answers.Module(
            **{name: getattr(module, name) for name in _SAME},
            shapes=dict(module.shapes),
            coverage=coverage.get(module.path),
            taps=tuple(taps_of.get(module.path, ())),
            placements=dict(module.placements),
        )
        for module in modules
    ]


def _taps_in(store: Store, modules: Sequence[ModuleRecord]) -> dict[str, list[answers.ModuleTap]]:
    """Return the taps of some modules, by path."""
    latest = store.latest(stat="count")
    counts = dict(zip(latest.numbers.tolist(), map(Number, latest.values[:, 0].tolist()), strict=True))
    snapshots = {snapshot.tap: snapshot.shape for snapshot in store.snapshots()}
    shapes = {module.path: dict(module.shapes) for module in modules}
    taps: dict[str, list[answers.ModuleTap]] = {module.path: [] for module in modules}
    for number, tap in store.taps():
        if tap.module in taps:
            shape = snapshots.get(tap, shapes[tap.module].get(tap.tensor))
            taps[tap.module].append(answers.ModuleTap.of(number, tap, values=counts.get(number), shape=shape))
    return taps


_NEAR: Final = 64  # steps on either side, in which to look for a captured one first


class StoreReader(Reader):
    """Answers questions about the run of a store, as `hookcore.Client` does for a run on a server."""

    def __init__(self, store: Store, run: str = "", quiet: Quiet | None = None) -> None:
        self._store, self._run, self._quiet = store, run, Quiet() if quiet is None else quiet

    def steps(self) -> StepRange:
        return self._store.steps()

    def nearest(self, step: int) -> answers.Nearest:
        steps, reach = self._store.steps(), _NEAR
        while True:
            first, last = self._store.captured_rows(step - reach, step + reach)
            at = np.flatnonzero((first <= step) & (last >= step))
            before, after = last[last < step][-1:].tolist(), first[first > step][:1].tolist()
            all_before = bool(before) or steps.first is None or step - reach < steps.first
            if all_before and (after or steps.newest is None or step + reach > steps.newest):
                own = (int(first[at[0]]), int(last[at[0]])) if len(at) else (None, None)
                return answers.Nearest(self._run, step, *own, *(before or [None]), *(after or [None]))
            reach *= 8

    def samples(self, step: int) -> answers.Samples:
        found = self._store.samples_of(step)
        listed = tuple(
            answers.SampleBatch(each.source, each.ids, each.rows, each.left_out, each.why or None)
            for each in found.batches
        )
        return answers.Samples(self._run, step, found.why, listed)

    def modules(self, match: str | None = None, taps: bool = True) -> list[answers.Module]:
        fits = self._store.matcher(match)
        return self.modules_of([module for module in self._store.modules() if fits(module.path)], taps=taps)

    def modules_of(self, modules: Sequence[ModuleRecord], *, taps: bool = True) -> list[answers.Module]:
        return modules_of(self._store, modules, taps=taps)

    def taps(self, match: str | None = None, kind: Kind | None = None) -> answers.Taps:
        named = self._store.taps(match, kind).fact(_named)  # the list of all taps is cached until there are more
        return answers.Taps(len(named), None, self._run, named)

    def find(self, tap: TapName) -> answers.Tap:
        """Return the tap with a number (which may be text) or a label."""
        return self._find(tap)[1]

    def _find(self, tap: TapName) -> tuple[int, answers.Tap]:
        if isinstance(tap, str) and tap.isascii() and tap.isdigit():
            tap = int(tap[:20])
        number, record = self._store.find_tap(tap)
        return number, answers.Tap.of(number, record)

    def coverage(self, match: str | None = None, captured: bool | None = None) -> list[Coverage]:
        fits = self._store.matcher(match)
        return [
            covered for covered in self._store.coverage() if fits(covered.path) and captured in (None, covered.captured)
        ]

    def hooks(self) -> list[HookRecord]:
        return list(self._store.hooks())

    def flow(self, step: int | None = None) -> answers.Flow:
        return answers.Flow.of(self._run, self._store.flows(), step)

    def model(self, step: int | None = None) -> answers.Model:
        flows, modules = self._store.flows(), self._store.modules()
        return answers.Model.of(self._run, modules, flows, step, _why_no_flow(self._store, step))

    def series(
        self, tap: TapName, stat: str = "rms", first: int | None = None, last: int | None = None, points: int = 1000
    ) -> answers.Series:
        return self.stats(tap, (stat,), first, last, points)[0]

    def stats(
        self, tap: TapName, stats: Sequence[str], first: int | None = None, last: int | None = None, points: int = 1000
    ) -> list[answers.Series]:
        number, named = self._find(tap)
        shares = {stat: quantile_of(stat) for stat in stats}
        qs = {stat: share for stat, share in shares.items() if share is not None}
        quantiles = self._store.quantiles(number, list(qs.values()), first, last, points) if qs else None
        made = {} if quantiles is None else dict(zip(qs, quantiles.values.T, strict=True))
        return [
            answers.Series(stat, named, quantiles.first_step, quantiles.last_step, *[made[stat]] * 3)
            if quantiles is not None and stat in made
            else answers.Series.of(self._store.series(number, stat, first, last, points), named)
            for stat in stats
        ]

    def many_series(
        self,
        match: str | None = None,
        kind: Kind | None = None,
        stat: str = "rms",
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
    ) -> list[answers.Series]:
        return [self.series(number, stat, first, last, points) for number, _ in self._store.taps(match, kind)]

    def heatmap(
        self,
        kind: Kind = "output",
        stat: str = "rms",
        match: str | None = None,
        first: int | None = None,
        last: int | None = None,
        columns: int = 500,
        rows: int = 1000,
        *,
        counts: bool = False,
    ) -> answers.Heatmap:
        """Return the worst value of each tap of a kind over time, in at most `columns` by `rows` cells.

        `counts` adds in how many steps each cell was captured, and was non-finite.
        """
        require_kind(kind)
        cells = self._store.heatmap(self._store.taps(match, kind), stat, first, last, columns, rows)
        return answers.Heatmap.of(self._run, kind, cells, counts=counts)

    def histograms(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 200, bins: int = 80
    ) -> answers.Histograms:
        return replace(self.many_histograms((tap,), first, last, columns, bins)[0], run=self._run)

    def many_histograms(
        self,
        taps: Sequence[TapName],
        first: int | None = None,
        last: int | None = None,
        columns: int = 200,
        bins: int = 80,
    ) -> list[answers.Histograms]:
        numbered, bounds = [self._find(tap) for tap in taps], (first, last, columns, bins)
        return [answers.Histograms.of(named, self._store.histograms(number, *bounds)) for number, named in numbered]

    def precision(
        self,
        format: str = "e4m3",
        scale: str = "max",
        match: str | None = None,
        kind: Kind | None = None,
        first: int | None = None,
        last: int | None = None,
        limit: int = 100,
    ) -> answers.Precision:
        for what, given, allowed in (("format", format, FORMATS), ("scale", scale, SCALES)):
            if given not in allowed:
                raise ArgumentError(unknown(what, given, list(allowed)))
        store, sample = self._store, self._store.sample(first, last)
        wanted = store.taps(match, kind)
        wanted = wanted.at([place for place, tap in enumerate(wanted.taps) if tap.kind != PROBE])
        found = [each for each in _casts_of(store, sample, wanted, SCALES[scale], first, last) if each.values]
        found.sort(key=lambda each: _harm(each.formats[format]), reverse=True)
        return answers.Precision(
            self._run, sample.first, sample.last, format, scale, len(wanted.taps), tuple(found[:limit])
        )

    def channels(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 240, rows: int = 512
    ) -> answers.Channels:
        number, named = self._find(tap)
        return answers.Channels.of(self._run, named, self._store.channels(number, first, last, columns, rows))

    def channel_taps(self, match: str | None = None) -> answers.ChannelTaps:
        taps = self._store.channel_taps(match)
        return answers.ChannelTaps(self._run, tuple(answers.Tap.of(number, tap) for number, tap in taps))

    def latest(
        self,
        match: str | None = None,
        kind: Kind | None = None,
        stat: str | None = None,
        sort: str | None = None,
        limit: int = 1000,
        first: int | None = None,
        last: int | None = None,
        taps: Sequence[TapName] | None = None,
    ) -> answers.Latest:
        wanted = self._store.taps(match, kind)
        if taps is not None:
            chosen = [self._find(tap)[0] for tap in taps]
            wanted = wanted.at(np.flatnonzero(np.isin(wanted.numbers, chosen)).tolist())
        newest = self._store.latest(wanted, stat, sort, limit, first, last, merged=True)
        return answers.Latest.of(self._run, newest)

    def scalars(
        self,
        names: str | Sequence[str] = (),
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        match: str | None = None,
    ) -> answers.Scalars:
        chosen = dict.fromkeys((names,) if isinstance(names, str) else names)
        series = tuple(answers.Series.of(self._store.scalars(name, first, last, points)) for name in chosen)
        listed = tuple(filter(matcher(match), self._store.scalar_names()))
        return answers.Scalars(len(listed), None, self._run, listed, series)

    def events(
        self,
        first: int | None = None,
        last: int | None = None,
        name: str | None = None,
        severity: Severity | None = None,
        after: int | None = None,
        limit: int = 200,
    ) -> answers.Events:
        taken, kept = self._store.events_after(after or 0)
        start = taken - len(kept)
        fitting = [
            (start + place, event) for place, event in enumerate(kept) if event.fits(first, last, name, severity)
        ]
        shown = fitting[-limit:] if after is None else fitting[:limit]
        behind = shown[-1][0] + 1 if after is not None and len(fitting) > limit else taken
        events = self.events_of(event for _, event in shown)
        return answers.Events(self._run, len(fitting), behind, events)

    def incidents(
        self, first: int | None = None, last: int | None = None, rule: str | None = None
    ) -> answers.Incidents:
        touching = [
            incident
            for incident in self._store.incidents()
            if rule in (None, incident.rule) and incident.touches(first, last)
        ]
        listed = self.incidents_of(touching)
        dropped = self._store.usage().merged["incidents"], self._store.dropped_alerts
        return answers.Incidents(self._run, len(touching), *dropped, listed)

    def incident(self, id: str) -> answers.Incident:
        by_id = {incident.id: incident for incident in self._store.incidents()}
        if id not in by_id:
            raise ArgumentError(unknown("incident", id, list(by_id)))
        return answers.Incident.of(by_id[id], *self._judged(self._quiet.muting(self._store), by_id[id]), in_full=True)

    def events_of(self, events: Iterable[Event]) -> tuple[answers.Event, ...]:
        quiet, muting = self._quiet, self._quiet.muting(self._store)
        return tuple(
            answers.Event.of(event, event.key in quiet.acknowledged, muting(event.name, event.module) is not None)
            for event in events
        )

    def incidents_of(self, incidents: Iterable[Incident]) -> tuple[answers.Incident, ...]:
        muting = self._quiet.muting(self._store)
        return tuple(answers.Incident.of(incident, *self._judged(muting, incident)) for incident in incidents)

    def _judged(self, muting: Muting, incident: Incident) -> tuple[bool, bool]:
        """Return whether an incident is acknowledged, and whether it is muted."""
        seen = self._quiet.has_seen(incident.key, incident.first_step)
        return seen, muting(incident.rule, incident.culprit.tap.module) is not None

    def media(self, name: str | None = None, first: int | None = None, last: int | None = None) -> list[answers.Media]:
        return [
            answers.Media.of(number, item)
            for number, item in self._store.numbered_media()
            if name in (None, item.tap.module)
            and (first is None or item.step >= first)
            and (last is None or item.step <= last)
        ]

    def media_content(self, number: int) -> bytes:
        item = self.medium(number)
        if item is None:
            raise ArgumentError(f"there is no item {number} of the run {self._run}; media() lists them")
        return item.values.tobytes()

    def medium(self, number: int) -> Snapshot | None:
        """Return the logged item with a number, or None."""
        return dict(self._store.numbered_media()).get(number)

    def snapshots(self, match: str | None = None, kind: Kind | None = None) -> list[answers.Snapshot]:
        fits = self._store.matcher(match)
        return [
            answers.Snapshot.of(number, snapshot)
            for number, snapshot in self._store.numbered_snapshots()
            if fits(snapshot.tap.module) and kind in (None, snapshot.tap.kind)
        ]

    def snapshot(self, number: int) -> Snapshot | None:
        """Return the snapshot with a number, including its values, or None."""
        return dict(self._store.numbered_snapshots()).get(number)

    def tensor(self, number: int, slice: str = "") -> NDArray[Any]:
        snapshot = self.snapshot(number)
        if snapshot is None:
            raise ArgumentError(f"there is no snapshot {number} of the run {self._run}; snapshots() lists them")
        return cut(snapshot.values, slice)


SCALES: Final = {"max": 1.0, "p99.9": 0.999}  # the share of values that fit
MAX_CAST: Final = 1000  # taps of an answer
_AT_ONCE: Final = 32  # taps that are cast together: their arrays fit in a processor's cache
MOST_LOST: Final = 0.5  # of the values, if a format fits
MOST_NOISE: Final = 0.1


def _casts_of(
    store: Store, sample: Sample, taps: TapList, share: float, first: int | None, last: int | None
) -> Iterator[answers.PrecisionTap]:
    """Yield what casts would make of the values of taps in some steps."""
    numbers = taps.numbers[:MAX_CAST].astype(np.int64)
    largest = np.full(len(numbers), np.nan)
    for stat in ("min", "max"):
        rows = store.rows(numbers, stat, first, last)
        for side in (rows.low, rows.high):
            largest = np.fmax.reduce([largest, *np.abs(side)])
    counted, sketched = (store.rows(numbers, stat, first, last).mean for stat in ("count", "sketched"))
    whole = np.logical_and.reduce(np.nan_to_num(sketched) >= np.nan_to_num(counted), axis=0)
    sums = sample.sums(numbers)
    listed = list(taps.at(range(len(numbers))))
    for start in range(0, len(listed), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        sizes = largest[part].tolist()
        values = [Magnitudes.of(*each) for each in zip(sums[part], sizes, whole[part].tolist(), strict=True)]
        filled = [place for place, each in enumerate(values) if each.total]
        casts = casts_of([values[place] for place in filled], share, [sizes[place] for place in filled])
        found: list[dict[str, Cast]] = [{} for _ in values]
        for place, cast in zip(filled, casts, strict=True):
            found[place] = cast
        for (number, tap), each, cast in zip(listed[part], values, found, strict=True):
            formats = {name: _cast_to(to, FORMATS[name].is_scaled) for name, to in cast.items()}
            yield answers.PrecisionTap.of(
                number, tap, values=int(each.total), sampled=not each.is_whole, formats=formats
            )


def _cast_to(cast: Cast, is_scaled: bool) -> answers.CastTo:
    """Return what a cast makes of a tensor. Small values may be lost: what is computed of their rows hardly changes."""
    lost, has_infinite = cast.underflow[0] + cast.saturated[0], cast.saturated[0] > 0 and not is_scaled
    fits = max(cast.noise, cast.most_noise) <= MOST_NOISE and lost <= MOST_LOST and not has_infinite
    underflow, subnormal, saturated = map(_estimate, (cast.underflow, cast.subnormal, cast.saturated))
    error, noise, most_noise, most = map(Number, (cast.error, cast.noise, cast.most_noise, cast.most))
    limits = _estimate(cast.limits)
    return answers.CastTo(underflow, subnormal, saturated, error, noise, most_noise, limits, fits, most)


def _estimate(three: tuple[float, float, float]) -> answers.Estimate:
    one, two, last = map(Number, three)
    return one, two, last


def _harm(cast: answers.CastTo) -> tuple[bool, float, float]:
    """Return a key that sorts casts by how much they harm: by what is lost of the output of most rows."""
    return not cast.fits, max(cast.noise, cast.most_noise), cast.underflow[0] + cast.saturated[0]


def _named(taps: TapList) -> tuple[answers.Tap, ...]:
    return tuple(answers.Tap.of(*numbered) for numbered in taps)


def _why_no_flow(store: Store, step: int | None) -> str:
    """Return why the data flow is unknown."""
    flows = store.flows()
    if flows and step is not None:
        return f"The data flow was learned in step {flows[0].step:,}; it isn't known what it was in step {step:,}."
    events = store.events(name="flow-unknown")
    if events:
        return f"{events[-1].message[:1].upper()}{events[-1].message[1:]}."
    if store.steps().newest is None:
        return "No step has been captured. The data flow is learned from the first one."
    return (
        "No captured step has shown the data flow. It is learned from the calls of the modules one by one, so "
        "not with compiled='inside'."
    )
