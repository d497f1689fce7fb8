"""The overview's key figures as tiles, and its findings and scalars with sparklines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hookcore.answers import Capsule
from hookcore.findings import Finding, KeyFigures, Reading
from hookcore.records import Tap
from hookcore.records.vocabulary import OWN, loss_rank
from hookcore.store import Store

from ...analysis.cost import Cost, cost_of
from ...figures.numerals import shown, thousands
from ...figures.spark import Spark, spark_of
from ...runs import Run
from ..frame import address_of
from .event_list import Line, alert_lines, finding_lines
from .provenance import incident_of
from .saved_steps import cause_of
from .span import Span

SHOWN_SCALARS: Final = 12
POINTS: Final = 90  # of a sparkline
AROUND: Final = 60  # steps before and after the onset of a finding, in its sparkline
_KINDS: Final = {"param_grad": "parameters", "output_grad": "outputs"}


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure: its number, a line of detail, and the target of its link."""

    key: str
    title: str
    text: str
    detail: str = ""
    address: str = ""
    value: float | None = None  # of a plain number, formatted as the reader prefers
    tone: str = ""  # bad, nan: always with words
    help: str = ""
    is_words: bool = False


@dataclass(frozen=True, slots=True)
class AlertLine:
    """An alert with its sparkline."""

    line: Line
    spark: Spark | None
    address: str
    type: str
    cause: str = ""  # what a replay found
    incident: str = ""  # the address of the incident's page, if there is a cause

    @property
    def finding(self) -> Finding | None:
        """The finding, if it is one."""
        return self.line.finding


@dataclass(frozen=True, slots=True)
class ScalarLine:
    """A scalar that the user logged: its newest value and its sparkline."""

    name: str
    value: float
    step: int
    spark: Spark | None


def tiles_of(run: Run, figures: KeyFigures, at: int | None) -> list[Tile]:
    """Return the key figures of a run; `at` is the step that the page shows."""
    return [
        _loss(figures, at),
        _norm(run, figures, at),
        _gradient(run, figures, "smallest", figures.smallest_gradient, at),
        _gradient(run, figures, "largest", figures.largest_gradient, at),
        _nonfinite(run, figures),
        _watched(run, figures),
        _cost(run, cost_of(run)),
    ]


def _loss(figures: KeyFigures, at: int | None) -> Tile:
    loss = figures.loss
    if loss is None:
        return Tile("loss", "Loss", "-", "not logged: watcher.log(loss=...)")
    older = f"step {loss.step:,}" if loss.step != at else ""
    return _number(Tile("loss", loss.name, "", older), loss.value)


def _norm(run: Run, figures: KeyFigures, at: int | None) -> Tile:
    norm, kind = figures.gradient_norm, figures.gradient_kind or ""
    tile = Tile(
        "norm",
        "Gradient norm",
        "-",
        f"of all {_KINDS[kind]}{_older(norm, at)}" if kind else "no backward pass yet",
        address_of(run, "flow", kind=kind, stat="norm"),
        help="Square root of the sum of squares of all gradients captured in one step.",
    )
    return tile if norm is None else _number(tile, norm.value)


def _gradient(run: Run, figures: KeyFigures, which: str, found: Reading | None, at: int | None) -> Tile:
    tile = Tile(
        which,
        f"{which.capitalize()} gradient",
        "-",
        "all non-finite" if figures.gradient_kind else "",
        help="By root mean square (RMS).",
    )
    if found is None or found.tap is None:
        return tile
    address = layer_address(run, found.tap, found.step)
    where = f"{found.tap.module or '(root)'}{_older(found, at)}"
    return _number(Tile(which, tile.title, "", where, address, help=tile.help), found.value)


def _older(reading: Reading | None, at: int | None) -> str:
    """Return the step of a value if the page shows another one: not every step is captured."""
    return f", step {reading.step:,}" if reading is not None and reading.step != at else ""


def _nonfinite(run: Run, figures: KeyFigures) -> Tile:
    found = figures.nonfinite_modules
    detail = ""
    if found:
        first = next((each for each in run.findings.current() if each.rule == "nonfinite"), None)
        detail = _few(found) if first is None else f"first: {first.module or '(root)'}"
        if first is not None and first.unseen:
            detail += " or another layer"
    elif figures.newest_step is not None:
        detail = "all newest values are finite"
    address = address_of(run, "flow", f="is:nan") if found else address_of(run, "flow")
    return Tile("nonfinite", "Non-finite layers", thousands(len(found)), detail, address, tone="nan" if found else "")


def _few(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{paths[0] or '(root)'}{more}"


def _watched(run: Run, figures: KeyFigures) -> Tile:
    share = f"of {figures.modules:,} {'module' if figures.modules == 1 else 'modules'}" if figures.modules else ""
    return Tile("watched", "Modules captured", thousands(figures.modules_captured), share, address_of(run, "hooks"))


def _cost(run: Run, cost: Cost) -> Tile:
    return Tile(
        "cost",
        "Cost of watching",
        cost.headline,
        cost.terms,
        address_of(run, "hooks"),
        help="Share of the run's time that hookcore adds, averaged over all steps.",
        is_words=cost.added is None,
    )


def _number(tile: Tile, value: float) -> Tile:
    tone = tile.tone if math.isfinite(value) else "nan"
    return Tile(tile.key, tile.title, shown(value), tile.detail, tile.address, value, tone, tile.help)


def layer_address(run: Run, tap: Tap, step: int) -> str:
    """Return the address of a tap's layer at a step."""
    phase = "" if tap.phase == "train" else tap.phase
    return address_of(
        run, "layer", module=tap.module, kind=tap.kind, index=tap.index, call=tap.call or "", phase=phase, step=step
    )


def shown_alerts(
    run: Run, last: int | None, most: int, capsules: Sequence[Capsule] = ()
) -> tuple[list[AlertLine], int, int]:
    """Return the worst alerts that began by a step, their number, and the number of notes."""
    alerts = [line for line in alert_lines(run) if last is None or line.step <= last]
    notes = [
        line
        for line in finding_lines(run)
        if line.severity == "info" and not line.is_quiet and (last is None or line.step <= last)
    ]
    listed = (alerts + notes)[:most]
    modules = {line.module for line in listed}
    types = {module.path: module.type for module in run.store.modules() if module.path in modules}
    return [_explained(run, _alert(run, line, types), capsules) for line in listed], len(alerts), len(notes)


def _explained(run: Run, alert: AlertLine, capsules: Sequence[Capsule]) -> AlertLine:
    cause = cause_of(alert.line, capsules)
    if alert.finding is None or not cause:
        return alert
    incident = incident_of(run.store.incidents(), alert.finding)
    page = address_of(run, "events", event=alert.line.id)
    return replace(
        alert, cause=cause, incident=page if incident is None else address_of(run, "incident", id=incident.id)
    )


def _alert(run: Run, line: Line, types: dict[str, str]) -> AlertLine:
    if line.finding is None:
        type_ = types.get(line.module, "") if line.module else ""  # an event of the run has no module
        return AlertLine(line, None, address_of(run, "events", event=line.id), type_)
    address = layer_address(run, line.finding.tap, line.finding.since_step)
    type_ = "" if line.finding.is_of_loss else types.get(line.module, "")
    return AlertLine(line, spark_of_finding(run.store, line.finding), address, type_)


def spark_of_finding(store: Store, finding: Finding) -> Spark | None:
    """Return the sparkline around the onset of a finding, with marks at non-finite values."""
    if finding.is_of_loss:
        return spark_of(np.arange(len(finding.spark)), np.array(finding.spark, float), None, may_be_log=True)
    begin, end = max(0, finding.since_step - AROUND), finding.since_step + AROUND
    series = store.series(finding.number, finding.stat, begin, end, POINTS)
    values = np.where(series.nonfinite > 0, np.nan, series.mean)
    return spark_of(series.last_step, values, finding.since_step, may_be_log=True)


def scalar_lines(store: Store, most: int | None, span: Span | None) -> tuple[list[ScalarLine], int]:
    """Return the user's scalars in these steps, the loss first, and their number."""
    names = [name for name in store.scalar_names() if not name.startswith(OWN)]
    names.sort(key=loss_rank)
    found = (_scalar_line(store, name, span) for name in names[:most])
    return [line for line in found if line is not None], len(names)


def _scalar_line(store: Store, name: str, span: Span | None) -> ScalarLine | None:
    first, last = (span.first, span.last) if span is not None else (None, None)
    series = store.scalars(name, first, last, POINTS)
    if not len(series.mean):
        series = store.scalars(name, None, last, POINTS)
    if not len(series.mean):
        return None
    step = int(series.last_step[-1])
    newest = store.scalars(name, step, last, 1)
    return ScalarLine(name, float(newest.mean[-1]), step, spark_of(series.last_step, series.mean))


def why_empty(run: Run, figures: KeyFigures) -> str:
    """Return why there is no data and what to do, or an empty string."""
    if figures.newest_step is None:
        if run.state == "live":
            return "No step has been captured yet. Numbers appear after the first optimizer step or watcher.step()."
        return "No step was captured: the run ended before the end of its first step."
    if figures.taps == 0:
        return "No module has run a forward pass under this watcher yet. Was the model replaced, or compiled before?"
    if figures.gradient_kind is None:
        return (
            "No backward pass yet (model.eval()? torch.no_grad()? kinds without gradients?). "
            "Activations are shown; gradients appear after loss.backward()."
        )
    return ""
