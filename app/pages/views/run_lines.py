"""The lines of the list of runs, also of runs that are on disk, and their order."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hookcore.findings import key_figures_of
from hookcore.reading import Reader
from hookcore.reading.answers.runs import RankSummary, State
from hookcore.records import Failure
from hookcore.store import StepRange

from ...analysis.figures.spark import Spark, spark_of
from ...formats import word_of
from ...runs import STATES, JointRun, Run
from ...runs.ranked import summary_of as summary_of_ranks
from ...runs.saved import noted_at
from ...runs.traits import Traits, results_of
from ..frame import Alerts, address_of, alerts_of

SPARK_POINTS: Final = 90
MAX_ALERTS: Final = 1000  # of a run that is on disk
MAX_TEXT: Final = 1000
Points: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]

_log = logging.getLogger("hookcore.pages")


@dataclass(frozen=True, slots=True)
class Loss:
    """The newest loss, and its name."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class RunLine:
    """A row of the list of runs."""

    id: str
    name: str
    trouble: str  # why it can't be read, or ""
    address: str
    state: State
    steps: int
    newest: int | None
    pace: float | None  # steps per second
    loss: Loss | None
    spark: Spark | None
    alerts: Alerts
    noted_at: int | None  # the step up to which loss and alerts are known, if the run on disk has later ones
    script: str
    host: str
    started_s: float
    failure: Failure | None
    in_memory: bool
    on_disk: bool
    ranks: RankSummary | None

    @property
    def shown_name(self) -> str:
        return self.name or self.id


def _order_of_loss(line: RunLine) -> tuple[int, float]:
    """Sort finite losses first, then non-finite ones, then missing ones."""
    if line.loss is None:
        return 2, 0.0
    return (0, line.loss.value) if math.isfinite(line.loss.value) else (1, 0.0)


# The orders of the list: title, sort key of a line, and whether the largest comes first.
SORTS: Final[dict[str, tuple[str, Callable[[RunLine], Any], bool]]] = {
    "name": ("Run", lambda line: line.shown_name.casefold(), False),
    "state": ("State", lambda line: STATES.index(line.state), False),
    "steps": ("Steps", lambda line: line.steps, True),
    "loss": ("Loss", _order_of_loss, False),
    "alerts": ("Problems", lambda line: (line.alerts.worst == "error", line.alerts.count), True),
    "started": ("Started", lambda line: line.started_s, True),
}


def sorted_lines(lines: list[RunLine], sort: str) -> list[RunLine]:
    """Sort lines by name; `-` reverses the order. An unknown name means newest first."""
    _, key, falls = SORTS.get(sort.removeprefix("-"), SORTS["started"])
    return sorted(lines, key=key, reverse=falls != sort.startswith("-"))


def line_of(run: Run) -> RunLine:
    """Return the line of a run; a run that can't be read must not hide the others."""
    try:
        return _line_of(run) if run.loaded else _summarized(run)
    except Exception:
        _log.warning("hookcore: the run %s can't be listed", run.id, exc_info=True)
        return replace(
            _line(run, None, None, None, Alerts(), StepRange(None, None, 0)),
            trouble="This run can't be read; the server's log says why.",
        )


def _line_of(run: Run) -> RunLine:
    figures = key_figures_of(run.store)
    loss = None if figures.loss is None else Loss(figures.loss.name, figures.loss.value)
    points = _points_of(run.reader, loss.name) if loss is not None else None
    return _line(
        run, figures.steps_per_s if run.state == "live" else None, loss, points, alerts_of(run), run.reader.steps()
    )


def _line(
    run: Run, steps_per_s: float | None, loss: Loss | None, points: Points | None, alerts: Alerts, steps: StepRange
) -> RunLine:
    return RunLine(
        run.id,
        run.name,
        "",
        address_of(run),
        run.state,
        int(Traits(run).value("steps") or 0),
        steps.newest,
        steps_per_s,
        loss,
        None if points is None else spark_of(*points),
        alerts,
        None if run.loaded else noted_at(run),
        run.info.script,
        run.info.host,
        run.info.started_s,
        run.end.failure,
        run.loaded,
        run.saved.folder is not None,
        summary_of_ranks(run) if isinstance(run, JointRun) else None,
    )


def _points_of(reader: Reader, name: str) -> Points:
    series = reader.scalars(name, points=SPARK_POINTS)[name]
    return series.last_step, series.mean


# -- runs that are on disk ------------------------------------------------------------------------------------------


def summary_of(run: Run) -> dict[str, Any]:
    """Return the list's data of a run on disk, in JSON types."""
    line = line_of(run)
    shown = line.alerts
    alerts = [list(shown.severities[:MAX_ALERTS]), shown.title, shown.where, shown.message, shown.hedge]
    results = {name: word_of(value) for name, value in results_of(run.store).items()}
    said: dict[str, Any] = {"alerts": alerts, "model": model_of(run), "results": results}
    if line.loss is not None:
        steps, values = _points_of(run.reader, line.loss.name)
        said["loss"] = [line.loss.name, word_of(line.loss.value)]
        said["points"] = [steps.tolist(), [word_of(value) for value in values.tolist()]]
    return said


def model_of(run: Run) -> str:
    """Return a digest of the paths and classes of a run's modules; "" if they are unknown."""
    if not run.loaded:
        return str(run.saved.summary.get("model", ""))
    types = sorted((module.path, module.type) for module in run.reader.modules(taps=False))
    return blake2b(repr(types).encode("utf-8", "replace"), digest_size=16).hexdigest() if types else ""


def _summarized(run: Run) -> RunLine:
    """Return the line of a run on disk. Unexpected values in the summary are ignored."""
    loss = points = None
    alerts = Alerts()
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
        name, value = run.saved.summary["loss"]
        loss = Loss(str(name)[:MAX_TEXT], float(value))
        steps, values = run.saved.summary["points"]
        points = np.array(steps[:SPARK_POINTS], np.int64), np.array(values[:SPARK_POINTS], np.float64)
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
        severities, *words = run.saved.summary["alerts"]
        known = tuple(each for each in severities[:MAX_ALERTS] if each in ("warning", "error"))
        alerts = Alerts(known, *(str(each)[:MAX_TEXT] for each in words[:4]))
    return _line(run, None, loss, points, alerts, run.reader.steps())
