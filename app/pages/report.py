"""A run as one HTML file to keep, send, or print. It needs no server and no network, and imports no web framework."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from jinja2 import Environment
from markupsafe import Markup
from numpy.typing import NDArray

import hookcore
from hookcore.errors import ArgumentError
from hookcore.findings import RULES, Finding, Rule, key_figures_of, rule_about, without_data
from hookcore.reading import Reader
from hookcore.reading.answers import Heatmap, Series
from hookcore.reading.pictures import address_of, image_of, map_of
from hookcore.records import ROOT, Kind, Severity
from hookcore.records.vocabulary import KIND_TITLES, KIND_WORDS, OWN, counted, loss_rank, losses_among
from hookcore.store.incidents import Incident

from .. import assets
from ..analysis import figures
from ..analysis.cost import cost_of
from ..analysis.figures.lines import MARGIN, spark_of
from ..analysis.modules import losses_of, types_of
from ..formats import json_of, plain, text_of_setting, words_of
from ..runs import Run
from ..runs.edits import rules_of
from .frame import code

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
    value: float
    since_step: int
    message: str
    downstream: int
    earliest_step: int
    culprit_known: bool
    spark: tuple[float, ...] = ()


def alerts_of(run: Run, current: Sequence[Finding], view: ReportSteps) -> Sequence[Finding | PastIncident]:
    """Return today's findings, one for each incident; of some steps, the incidents that touch them, as of the last."""
    first, last = view.values
    if last is None:
        return [finding for finding in current if not finding.is_part]
    return [_past(incident, last) for incident in reversed(run.store.incidents()) if incident.touches(first, last)]


def _past(incident: Incident, last: int) -> PastIncident:
    then, tap = incident.as_of(last), incident.culprit.tap
    about = incident.rule, then.severity, tap.module, tap.kind, incident.value, incident.first_step, then.sentence
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
        figure = figures.series([(each.name, each) for each in chart], figures.LIGHT, names, "value", captured=False)
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
    picture = picture_of(figures.captured_only(found))
    yield _chart(f"map-{kind}", f"{title} ({stat})", figure, text, picture=picture, bad=bad > 0, tall=True)


def _worst(findings: tuple[Finding, ...]) -> list[Finding]:
    """Return the first finding of each of the worst taps that were captured, without notes about the past."""
    by_tap: dict[int, Finding] = {}
    for finding in findings:
        if finding.number >= 0 and finding.culprit_known and (finding.severity != "info" or finding.until_step is None):
            by_tap.setdefault(finding.number, finding)
    return list(by_tap.values())[:WORST]


def _layer(reader: Reader, place: int, finding: Finding, view: ReportSteps) -> Iterator[Chart]:
    label = finding.tap.words.replace(ROOT, types_of(reader).get("") or ROOT)
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
    return max((tap.step for taps in latest for tap in taps), default=last)


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


# Assembles the report into one file.

MAX_BYTES: Final = MAX_CHART_BYTES + 4_000_000  # with Plotly (1.5 MB) and the tables
MAX_ROWS: Final = 200  # of a table
_FOLDER: Final = assets.TEMPLATES / "report"
_MAX_TEXT: Final = 500  # characters of a cell


@dataclass(frozen=True, slots=True)
class Script:
    """An inline script, and the hash that allows it to run."""

    text: Markup
    digest: str


def report_of(run: Run, wanted: ReportSteps = ReportSteps()) -> bytes:
    """Return a run, or some of its steps, as one HTML file, which loads nothing and runs only its own scripts."""
    reader = run.reader
    view, current = wanted.within(reader), run.findings.current()
    findings = alerts_of(run, current, view)
    charts, left_out = charts_of(reader, current, view)
    not_captured = reader.coverage(captured=False)
    events = reader.events(*view.listed, limit=MAX_ROWS)
    scripts = [_plotly(), _draw()]
    values: dict[str, Any] = {
        "run": run,
        "state": run.state,
        "about": _about(run),
        "view": view,
        "figures": key_figures_of(run.store, *view.values, is_live=run.state == "live"),
        "scope": run.findings.scope(),
        "course": run.findings.course(),
        "cost": cost_of(run),
        "root": types_of(reader).get("") or ROOT,
        "findings": findings[:MAX_ROWS],
        "findings_left_out": max(0, len(findings) - MAX_ROWS),
        "rules": RULES,
        "advice": _advice_of(findings),
        "own_rules": rules_of(run).own,
        "without_data": without_data(run.store),
        "charts": charts,
        "charts_left_out": left_out,
        "not_captured": not_captured[:MAX_ROWS],
        "not_captured_left_out": max(0, len(not_captured) - MAX_ROWS),
        "events": events.events[::-1],
        "events_left_out": events.total - len(events.events),
        "settings": _pairs(run.info.settings),
        "versions": _pairs(run.info.versions),
        "lost": losses_of(run),
        "made_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "version": hookcore.__version__,
        "style": Markup((_FOLDER / "style.css").read_text("utf-8")),
        "scripts": [script.text for script in scripts],
        "policy": _policy(scripts),
        "colors": _data(json.dumps(_colors()).encode()),
        "data": _data,
        "spark": _spark,
        "most_bytes": MAX_BYTES,
    }
    html: str = _templates().get_template("page.html").render(values, kind_words=KIND_WORDS)
    return html.encode("utf-8", "replace")


def _advice_of(findings: Sequence[Finding | PastIncident]) -> list[Rule]:
    """Return the advice of the rules that found something, in the order of their findings."""
    first = {finding.rule: finding.value for finding in reversed(findings)}
    rules = (rule_about(name, first[name]) for name in dict.fromkeys(finding.rule for finding in findings))
    return [rule for rule in rules if rule is not None]


@cache
def _templates() -> Environment:
    templates = assets.open_templates("report")
    templates.filters |= {"counted": counted, "shown": figures.shown, "cut": _cut, "time": _time, "code": code}
    return templates


@cache
def _plotly() -> Script:
    asset = assets.read("vendor/plotly-cartesian.min.js")
    assert asset is not None
    return _script(asset.content.decode("utf-8"))


@cache
def _draw() -> Script:
    return _script((_FOLDER / "draw.js").read_text("utf-8"))


def _script(text: str) -> Script:
    """Escape the end of a script element, which can only occur inside a string of these scripts."""
    safe = text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return Script(Markup(safe), base64.b64encode(hashlib.sha256(safe.encode()).digest()).decode())


def _policy(scripts: list[Script]) -> str:
    """Return a policy that allows only these scripts and no network access."""
    allowed = " ".join(f"'sha256-{script.digest}'" for script in scripts)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _data(content: bytes) -> Markup:
    """Return JSON for a script element, which no user-given name can end."""
    text = content.decode("utf-8")
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _colors() -> list[list[str]]:
    """Return pairs of colors for the light and the dark theme."""
    light, dark = figures.LIGHT, figures.DARK
    pairs = {getattr(light, name): getattr(dark, name) for name in ("paper", "ink", "quiet", "line", "nan", "infinite")}
    pairs |= dict(zip(light.lines, dark.lines, strict=True))
    return [[day, night] for day, night in pairs.items()]


def _about(run: Run) -> dict[str, str]:
    info, steps = run.info, run.reader.steps()
    began = _time(info.started_s)
    facts = {
        "state": run.state,
        "steps": f"{steps.first} to {steps.newest}" if steps.count else "none",
        "not captured": counted(left_out, "step") if (left_out := cost_of(run).left_out) else "",
        "began": began,
        "script": info.script,
        "host": info.host,
        "run": run.id,
        "notes": run.edits.notes,
    }
    return {name: _cut(str(value)) for name, value in facts.items() if value not in ("", None)} | {
        name: _cut(text) for name, text in sorted(run.labels.items())[:20]
    }


def _pairs(values: Any) -> dict[str, str]:
    """Return settings as text."""
    data = plain(values)
    items = list(data.items())[:MAX_ROWS] if isinstance(data, dict) else []
    return {str(name): _cut(text_of_setting(value)) for name, value in items}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."


def _time(seconds: float) -> str:
    """Format a time, or say that it is unknown."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "unknown"


def _spark(values: tuple[float, ...]) -> Markup:
    with np.errstate(divide="ignore", invalid="ignore"):  # a trainer may send any number
        return line_of(np.log10(np.array(values, np.float64)), 96, 24) if values else Markup("")
