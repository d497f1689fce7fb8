"""Which steps a report is about, and their charts within a size limit, also for readers without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.findings import Finding
from hookcore.reading import Reader
from hookcore.reading.answers import Heatmap, Series
from hookcore.reading.pictures import address_of, image_of, map_of
from hookcore.records import Kind, Severity
from hookcore.records.vocabulary import KIND_TITLES, OWN, loss_rank, losses_among
from hookcore.store.incidents import Incident

from ...analysis import figures
from ...analysis.figures.lines import MARGIN, spark_of
from ...formats import json_of, words_of
from ...runs import Run

# Which steps a report is about.


@dataclass(frozen=True, slots=True)
class ReportSteps:
    """The steps of charts, and the step that numbers and findings are of; None for all of them, and the newest one."""

    first: int | None = None
    last: int | None = None
    at: int | None = None

    @property
    def values(self) -> tuple[int | None, int | None]:
        """The steps of which the newest values are shown."""
        return (self.first, self.last) if self.at is None else (self.at, self.at)

    @property
    def listed(self) -> tuple[int | None, int | None]:
        """The steps of which events are listed: up to the held one."""
        return self.first, self.last if self.at is None else self.at

    @property
    def is_whole(self) -> bool:
        """Whether it is about the run as it is now."""
        return self.values == (None, None)

    def within(self, reader: Reader) -> ReportSteps:
        """Return the same with both ends. A step outside the run is an error."""
        known = reader.steps()
        if self.is_whole or known.first is None or known.newest is None:
            return self
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ArgumentError(f"the first step, {self.first}, is after the last one, {self.last}")
        first = known.first if self.first is None else self.first
        last = known.newest if self.last is None else min(self.last, known.newest)
        if self.at is not None and not first <= self.at <= last:
            raise ArgumentError(f"at={self.at} is outside of the steps {first} to {last}")
        if first > last:
            raise ArgumentError(f"these steps are outside of the run, which has {known.first} to {known.newest}")
        return ReportSteps(first, last, self.at)

    @property
    def words(self) -> str:
        """The steps of the numbers; empty for the newest ones."""
        first, last = self.values
        if first is None or last is None:
            return ""
        return words_of(first, last)


@dataclass(frozen=True, slots=True)
class PastIncident:
    """An incident as it was known at a step, as a row of the table of findings."""

    rule: str
    severity: Severity
    module: str
    kind: str
    since_step: int
    message: str
    downstream: int
    earliest_step: int
    culprit_known: bool
    spark: tuple[float, ...] = ()


def alerts_of(run: Run, current: Sequence[Finding], view: ReportSteps) -> Sequence[Finding | PastIncident]:
    """Return today's findings; of a report about some steps, the incidents that touch them, as of the last one."""
    first, last = view.values
    if last is None:
        return current
    return [_past(each, last) for each in reversed(run.store.incidents()) if each.touches(first, last)]


def _past(incident: Incident, last: int) -> PastIncident:
    then, tap = incident.as_of(last), incident.culprit.tap
    about = incident.rule, then.severity, tap.module, tap.kind, incident.first_step, then.sentence
    return PastIncident(*about, 0, incident.earliest_step, incident.culprit_known)  # the sentence says what followed


# Pictures for readers without JavaScript: a line as SVG, a map as PNG.

WIDTH, HEIGHT = 640, 160
MAX_MARKS: Final = 200


def line_of(values: NDArray[np.float64], width: int = WIDTH, height: int = HEIGHT) -> Markup:
    """Draw a line through the finite values, with marks at the bottom where a stretch of others begins and ends."""
    spark = spark_of(np.arange(len(values)), values, box=(width, height))
    if spark is None or not spark.path:
        return Markup("")
    marks = "".join(f'<circle class="nan" cx="{x}" cy="{height - MARGIN}" r="3"/>' for x in spark.bad_x[:MAX_MARKS])
    return Markup(  # numbers only
        f'<svg class="line" viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{spark.path}"/>{marks}</svg>'
    )


def picture_of(found: Heatmap) -> str:
    """Return a heatmap as a data URL: colors of the logarithms, and of non-finite values."""
    return address_of(image_of(map_of(found)))


# The charts of a report, within a size limit.

MAX_CHART_BYTES: Final = 6_000_000
MAPS: Final[tuple[tuple[Kind, str, str], ...]] = (
    ("output", "rms", KIND_TITLES["output"].capitalize()),
    ("output_grad", "norm", KIND_TITLES["output_grad"].capitalize()),
    ("param_grad", "norm", KIND_TITLES["param_grad"].capitalize()),
    ("update", "ratio", "Updates as shares of their weights"),
)
MAP_ROWS, MAP_COLUMNS = 250, 300
MAX_BARS: Final = 400
_PROFILE: Final[tuple[Kind, ...]] = ("output", "output_grad")
MAX_SCALARS: Final = 6
WORST: Final = 6  # layers with their own charts
POINTS: Final = 600
NOTHING: Final = Markup()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: JSON for Plotly, and its fallback without JavaScript."""

    name: str
    title: str
    figure: bytes
    text: str  # a description in words
    line: Markup = NOTHING
    picture: str = ""
    bad: bool = False  # whether the picture shows non-finite values
    tall: bool = False


def charts_of(reader: Reader, findings: tuple[Finding, ...], view: ReportSteps) -> tuple[list[Chart], list[str]]:
    """Return the charts that fit, most informative first, and the titles of the others."""
    taken: list[Chart] = []
    left_out = _names(reader)[MAX_SCALARS:]
    size = 0
    for chart in _all(reader, findings, view):
        size += len(chart.figure) + len(chart.picture)
        if size > MAX_CHART_BYTES:
            left_out.append(chart.title)
        else:
            taken.append(chart)
    return taken, left_out


def _all(reader: Reader, findings: tuple[Finding, ...], view: ReportSteps) -> Iterator[Chart]:
    yield from _scalars(reader, view)
    for kind, stat, title in MAPS:
        yield from _map(reader, kind, stat, title, view)
    if len(reader.taps(None, "output").taps) <= MAX_BARS:
        yield from _profile(reader, view)
    last = view.values[1]
    known = tuple(each for each in findings if last is None or each.since_step <= last)
    for place, finding in enumerate(_worst(known)):
        yield from _layer(reader, place, finding, view)


def _chart(name: str, title: str, figure: dict[str, Any], text: str, **more: Any) -> Chart:
    figure["layout"].pop("title", None)  # the page has it as a heading
    figure["layout"]["margin"] = {"l": 64, "r": 16, "t": 30, "b": 44}
    return Chart(name, title, json_of(figure), text, **more)


def _names(reader: Reader) -> list[str]:
    """Return the logged values, the loss first."""
    return sorted((name for name in reader.scalars().names if not name.startswith(OWN)), key=loss_rank)


def _scalars(reader: Reader, view: ReportSteps) -> Iterator[Chart]:
    drawn = _names(reader)[:MAX_SCALARS]
    found = [each for each in reader.scalars(drawn, view.first, view.last, points=POINTS).series if len(each.mean)]
    losses = losses_among(each.name for each in found)
    together = [each for each in found if each.name in losses]
    rest = [[each] for each in found if each.name not in losses]
    for place, chart in enumerate([together, *rest] if together else rest):
        names = ", ".join(each.name for each in chart)
        figure = figures.series([(each.name, each) for each in chart], figures.LIGHT, names, "value")
        text = "; ".join(map(_in_words, chart))
        yield _chart(f"scalar-{place}", names, figure, text, line=line_of(chart[0].mean))


def _in_words(series: Series) -> str:
    """Return the name of a scalar, its steps, and its first and newest value."""
    bad = int((series.nonfinite > 0).sum()) if series.nonfinite is not None else 0
    known = series.mean[np.isfinite(series.mean)]
    text = f"{series.name}, steps {series.first_step[0]} to {series.last_step[-1]}"
    if len(known):
        text += f": from {figures.shown(float(known[0]))} to {figures.shown(float(known[-1]))}"
    return text + (f"; not finite in {bad} place{'s' if bad > 1 else ''}" if bad else "")


def _map(reader: Reader, kind: Kind, stat: str, title: str, view: ReportSteps) -> Iterator[Chart]:
    found = reader.heatmap(kind, stat, first=view.first, last=view.last, columns=MAP_COLUMNS, rows=MAP_ROWS)
    bad = int((found.state >= figures.NAN).sum())
    if not bad and not np.isfinite(found.worst).any():
        return
    text = f"{len(reader.taps(None, kind).taps)} layers, steps {found.first_step[0]} to {found.last_step[-1]}"
    text += f"; {bad} cells are not finite" if bad else "; everything is finite"
    figure = figures.heatmap(found, figures.LIGHT, title)
    yield _chart(f"map-{kind}", f"{title} ({stat})", figure, text, picture=picture_of(found), bad=bad > 0, tall=True)


def _worst(findings: tuple[Finding, ...]) -> list[Finding]:
    """Return the first finding of each of the worst taps that were captured, without notes about the past."""
    by_tap: dict[int, Finding] = {}
    for finding in findings:
        if finding.number >= 0 and finding.culprit_known and (finding.severity != "info" or finding.until_step is None):
            by_tap.setdefault(finding.number, finding)
    return list(by_tap.values())[:WORST]


def _layer(reader: Reader, place: int, finding: Finding, view: ReportSteps) -> Iterator[Chart]:
    label = finding.tap.words
    series = reader.series(finding.number, finding.stat, view.first, view.last, POINTS)
    if not len(series.mean):
        return
    figure = figures.series([(label, series)], figures.LIGHT, label, finding.stat)
    # A message may mention things that happened after these steps.
    said = finding.message if view.is_whole else f"steps {series.first_step[0]} to {series.last_step[-1]}"
    yield _chart(f"layer-{place}", f"{label}: {finding.stat}", figure, said, line=line_of(series.mean))
    found = reader.histograms(finding.number, view.first, view.last, columns=150, bins=60)
    if found.counts.size:
        shown = figures.histograms(found, figures.LIGHT, label)
        text = f"how the values of {label} were distributed"
        yield _chart(f"histogram-{place}", f"{label}: distribution", shown, text, tall=True)


def _newest(reader: Reader, view: ReportSteps) -> int | None:
    """Return the newest captured one of the steps."""
    first, last = view.values
    latest = (reader.latest(None, kind, first=first, last=last).taps for kind in _PROFILE)
    return max((each.step for taps in latest for each in taps), default=last)


def _profile(reader: Reader, view: ReportSteps) -> Iterator[Chart]:
    """Yield the newest of the steps by layer, unless there are too many layers for bars."""
    newest = _newest(reader, view)
    found = {kind: reader.many_series(None, kind, "rms", newest, newest, 1) for kind in _PROFILE}
    kinds = [(kind, known) for kind, many in found.items() if (known := [each for each in many if len(each.mean)])]
    if kinds:
        figure, (first, last) = figures.profile(kinds, figures.LIGHT, "", "rms"), figures.ends_of(kinds)
        text = f"{'the newest captured step, ' if view.is_whole else ''}from the input to the output"
        steps = f"Step {last}" if first == last else f"Means of steps {first} to {last}"
        yield _chart("profile", f"{steps}, layer by layer (rms)", figure, text, tall=True)
