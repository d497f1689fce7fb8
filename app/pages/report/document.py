"""Assembles the report into one file."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

import hookcore
from hookcore.findings import RULES, Finding, Rule, key_figures_of, without_data
from hookcore.records import ROOT
from hookcore.records.vocabulary import KIND_WORDS, counted

from ... import assets
from ...analysis import figures
from ...analysis.cost import cost_of
from ...analysis.modules import losses_of
from ...formats import plain, text_of_setting
from ...runs import Run
from ...runs.edits import rules_of
from .charts import MAX_CHART_BYTES, PastIncident, ReportSteps, alerts_of, charts_of, line_of

MAX_BYTES: Final = MAX_CHART_BYTES + 4_000_000  # with Plotly (1.5 MB) and the tables
MAX_ROWS: Final = 200  # of a table
_FOLDER: Final = assets.TEMPLATES / "report"
_MAX_TEXT: Final = 500  # characters of a cell


@dataclass(frozen=True, slots=True)
class Script:
    """An inline script, and the hash that allows it to run."""

    text: Markup
    digest: str


def report_of(run: Run, wanted: ReportSteps = ReportSteps()) -> bytes:  # noqa: B008 (it is frozen)
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
    return [
        rule for found in dict.fromkeys(each.rule for each in findings) for name, rule in RULES.items() if name == found
    ]


@cache
def _templates() -> Environment:
    templates = assets.open_templates("report")
    templates.globals["ROOT"] = ROOT
    templates.filters |= {"counted": counted, "shown": figures.shown, "cut": _cut, "time": _time}
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
