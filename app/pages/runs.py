"""The page of all runs."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from hookcore.store import Store

from ..attention import Reading, key_figures_of
from ..runs import Run, Runs
from .frame import Alerts, address_of, alerts_of, render
from .spark import Spark, spark_of

SPARK_POINTS: Final = 90
STATES: Final = ("live", "lost", "ended", "kept")

_log = logging.getLogger("hookcore.pages")
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class RunLine:
    """One line of the list of runs."""

    id: str
    name: str
    notes: str
    address: str
    state: str
    newest: int | None
    pace: float | None  # steps a second
    loss: Reading | None
    spark: Spark | None
    alerts: Alerts
    script: str
    host: str
    started_s: float

    @property
    def shown_name(self) -> str:
        """What it is called."""
        return self.name or self.id

    def fits(self, text: str) -> bool:
        """Whether every word of a search is somewhere in it."""
        where = "\n".join((self.id, self.name, self.notes, self.state, self.script, self.host)).casefold()
        return all(word in where for word in text.casefold().split())


def _order_of_loss(line: RunLine) -> tuple[int, float]:
    """The smallest first, then what is not finite, then those without one."""
    if line.loss is None:
        return 2, 0.0
    return (0, line.loss.value) if math.isfinite(line.loss.value) else (1, 0.0)


# What the list can be sorted by: its words, the key of a line, and whether the largest comes first.
SORTS: Final[dict[str, tuple[str, Callable[[RunLine], Any], bool]]] = {
    "name": ("Run", lambda line: line.shown_name.casefold(), False),
    "state": ("State", lambda line: STATES.index(line.state), False),
    "steps": ("Steps", lambda line: -1 if line.newest is None else line.newest, True),
    "loss": ("Loss", _order_of_loss, False),
    "alerts": ("Alerts", lambda line: (line.alerts.worst == "error", line.alerts.count), True),
    "started": ("Started", lambda line: line.started_s, True),
}


@dataclass(frozen=True, slots=True)
class Heading:
    """The head of a column that the list can be sorted by, and the sort that a click asks for."""

    words: str
    asks: str
    direction: str  # ascending, descending, or none: as aria-sort says it


@router.get("/", response_class=HTMLResponse)
def runs_page(request: Request, f: str = "", sort: str = "started") -> HTMLResponse:
    """All runs, the newest first, or as asked."""
    runs: Runs = request.app.state.runs
    lines = [line_of(run) for run in runs.all()]
    shown = sorted_lines([line for line in lines if line.fits(f)], sort)
    return render(
        request,
        "runs",
        runs=shown,
        total=len(lines),
        live=sum(line.state == "live" for line in lines),
        asked={"f": f, "sort": sort},
        headings={name: heading_of(name, sort) for name in SORTS},
        now_s=time.time(),
    )


def sorted_lines(lines: list[RunLine], sort: str) -> list[RunLine]:
    """The lines by the sort of that name; `-` turns it around. An unknown one is the newest first."""
    _, key, falls = SORTS.get(sort.removeprefix("-"), SORTS["started"])
    return sorted(lines, key=key, reverse=falls != sort.startswith("-"))


def heading_of(name: str, sort: str) -> Heading:
    """The head of a column while the list is sorted like this."""
    words, _, falls = SORTS[name]
    if sort.removeprefix("-") != name:
        return Heading(words, name, "none")
    turned = sort.startswith("-")
    return Heading(words, name if turned else f"-{name}", "descending" if falls != turned else "ascending")


def line_of(run: Run) -> RunLine:
    """Return the line of a run; one that can't be read says so, and leaves the others alone."""
    try:
        return _line_of(run)
    except Exception:
        _log.warning("hookcore: the run %s can't be listed", run.id, exc_info=True)
        notes = "This run can't be read; the server's log says why."
        return RunLine(
            run.id, run.name, notes, address_of(run), run.state, None, None, None, None, Alerts(), "", "", 0.0
        )


def _line_of(run: Run) -> RunLine:
    figures = key_figures_of(run.store)
    loss = figures.loss
    return RunLine(
        run.id,
        run.name,
        run.notes,
        address_of(run),
        run.state,
        figures.newest_step,
        figures.steps_per_s if run.state == "live" else None,
        loss,
        _spark_of(run.store, loss.name) if loss is not None else None,
        alerts_of(run),
        run.info.script,
        run.info.host,
        run.info.started_s,
    )


def _spark_of(store: Store, name: str) -> Spark | None:
    series = store.scalars(name, points=SPARK_POINTS)
    return spark_of(series.last_step, series.mean)
