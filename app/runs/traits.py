"""What runs are found, sorted, and shown by: names with values, from the run, its configuration, facts, and results."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import numpy as np

from hookcore.findings.keyfigures import newest_of
from hookcore.records import Value
from hookcore.records.vocabulary import OWN as OWN_SCALARS
from hookcore.records.vocabulary import loss_among
from hookcore.store import Store

from .run import Run

_log: Final = logging.getLogger("hookcore.runs")
Answered = TypeVar("Answered")

MAX_RESULTS: Final = 100  # scalars of a run whose newest values are known
MAX_SAVED: Final = MAX_RESULTS + 2  # with the loss, which may be another one, and what follows from it
RECENT_LOSS: Final = "recent_loss"
RECENT_POINTS: Final = 1000
OWN: Final[Mapping[str, Callable[[Run], Value]]] = {
    "id": lambda run: run.id,
    "name": lambda run: run.name or run.id,
    "state": lambda run: run.state,
    "group": lambda run: run.edits.group,
    "notes": lambda run: run.edits.notes,
    "host": lambda run: run.info.host,
    "script": lambda run: run.info.script,
    "archived": lambda run: run.edits.archived,
    "steps": lambda run: _asked(run, lambda _: run.steps, None),
}


class Traits:
    """The traits of one run. Results are read when they are asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def tags(self) -> tuple[str, ...]:
        return self.run.edits.tags

    @property
    def facts(self) -> dict[str, Value]:
        """The recognized facts, and the versions that every run has."""
        info = self.run.info
        return {**info.facts, **{f"version.{name}": text for name, text in info.versions.items()}}

    @property
    def texts(self) -> Iterator[str]:
        """The texts in which words are searched."""
        run, info, edits = self.run, self.run.info, self.run.edits
        yield from (run.id, run.name, edits.notes, run.state, info.script, info.host, edits.group, *edits.tags)
        yield from (value for value in info.config.values() if isinstance(value, str))

    def find(self, name: str) -> str | None:
        """Return the full name of a trait: `lr` is also `optimizer.lr`. None if the run has none of this name."""
        if name in OWN:
            return name
        names = list(self.names())
        if name in names:
            return name
        endings = f".{name}", f"/{name}"
        return next((each for each in names if each.endswith(endings)), None)

    def value(self, name: str) -> Value:
        """Return the value of a trait by its full name, or None."""
        if name in OWN:
            return OWN[name](self.run)
        for values in (self.run.info.config, self.facts):
            if name in values:
                return values[name]
        return self._result(name)

    def text(self, name: str) -> str:
        """Return a value as groups are named, by the whole name or its end; "" if there is none."""
        full = self.find(name) if name else None
        return "" if full is None else text_of_value(self.value(full))

    def names(self) -> Iterator[str]:
        """Return the names of the configuration, then those of the facts, then those of the results."""
        yield from self.run.info.config
        yield from self.facts
        yield from self.results()

    def results(self) -> Iterable[str]:
        """Return the names of the scalars that it logged."""
        run = self.run
        return _asked(run, result_names, []) if run.loaded else saved_results(run)

    def result_values(self) -> Mapping[str, float]:
        """Return the results by their names."""
        run = self.run
        return _asked(run, results_of, {}) if run.loaded else saved_results(run)

    def _result(self, name: str) -> Value:
        if self.run.loaded:
            return _asked(self.run, lambda store: _result_of(store, name), None)
        return saved_results(self.run).get(name)


def text_of_value(value: Value) -> str:
    """Return a value as groups are named: 1 and 1.0 are the same."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _asked(run: Run, ask: Callable[[Store], Answered], otherwise: Answered) -> Answered:
    """Ask the run's store. A run that can't be read must not hide the others."""
    try:
        return ask(run.store)
    except Exception:
        _log.warning("hookcore: the run %s can't be read", run.id, exc_info=True)
        return otherwise


def result_names(store: Store) -> list[str]:
    """Return the names of the scalars that a run logged, and of what follows from them."""
    names = [name for name in store.scalar_names() if not name.startswith(OWN_SCALARS)]
    loss = loss_among(names)
    return list(dict.fromkeys([*names[:MAX_RESULTS], *([loss, RECENT_LOSS] if loss is not None else [])]))


def results_of(store: Store) -> dict[str, float]:
    """Return the newest values of the scalars that a run logged, and what follows from them."""
    found = {name: _result_of(store, name) for name in result_names(store)}
    return {name: value for name, value in found.items() if value is not None}


def _result_of(store: Store, name: str) -> float | None:
    names = store.scalar_names()
    if name == RECENT_LOSS and name not in names:
        return _recent(store, loss_among(names))
    reading = newest_of(store, name)
    return None if reading is None else reading.value


def _recent(store: Store, loss: str | None) -> float | None:
    """Return the mean of the last tenth of a loss: its newest value may be that of an odd batch."""
    if loss is None:
        return None
    series = store.scalars(loss, points=RECENT_POINTS)
    last = slice(-max(1, len(series.mean) // 10), None)
    counts, values = series.present[last].astype(np.float64), series.mean[last]
    return float(np.average(values, weights=counts)) if counts.sum() else None


def saved_results(run: Run) -> dict[str, float]:
    """Return the results in the summary of a run on disk. Unexpected values are left out."""
    said = run.saved.summary.get("results")
    found = {}
    for name, value in list(said.items())[:MAX_SAVED] if isinstance(said, dict) else ():
        with contextlib.suppress(ValueError, TypeError):
            found[str(name)] = float(value)
    return found
