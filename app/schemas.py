"""The store's answers in JSON and as tables. Every number is one that JSON has, or one of three words (formats.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import JSONResponse

from hookcore.records import Event, Snapshot, Tap, text_of
from hookcore.store import Heatmap, Histograms, Latest, Series, TapList
from hookcore.store.checks import label_of

from .findings import Finding, Reading, Scope, key_of_event
from .formats import Table, array_json, json_of, plain, rows_json, word_of
from .runs import Run

SERIES_COLUMNS: Final = ("first_step", "last_step", "mean", "min", "max", "present", "nonfinite")
QUANTILE_COLUMNS: Final = SERIES_COLUMNS[:5]
TAP_COLUMNS: Final = ("module", "kind", "index", "call", "phase")


class StrictJson(JSONResponse):
    """A response that any JSON parser can read."""

    def render(self, content: Any) -> bytes:
        return json_of(content)


def number_of(value: float) -> float | str:
    """`value` as JSON can say it."""
    return word_of(value)


def numbers_of(values: NDArray[Any]) -> list[Any]:
    """A one-dimensional array as a list that JSON can say."""
    return [word_of(value) for value in values.tolist()]


def tap_as_json(number: int | None, tap: Tap) -> dict[str, Any]:
    """A tap, its number, and its label: the text by which it can be asked for."""
    return {
        "number": number,
        "module": tap.module,
        "kind": tap.kind,
        "index": tap.index,
        "call": tap.call,
        "phase": tap.phase,
        "label": label_of(tap),
    }


def taps_as_json(found: TapList) -> dict[str, Any]:
    """The taps, with their run-wide numbers."""
    return {"taps": [tap_as_json(int(number), tap) for number, tap in zip(found.numbers, found.taps, strict=True)]}


def series_as_json(series: Series, columns: Sequence[str] = SERIES_COLUMNS) -> dict[str, Any]:
    """One stat over time, column by column: item i of each list speaks of the steps first_step[i] to last_step[i]."""
    return {
        "name": series.name,
        "tap": series.tap,
        **{name: array_json(getattr(series, name)) for name in columns},
    }


def series_table(
    many: Sequence[Series], labels: Sequence[str], columns: Sequence[str] = SERIES_COLUMNS, *, stats: bool = False
) -> Table:
    """Many series one below the other; `tap` is -1 for a scalar. `stats` adds which stat each is of."""
    sizes = [len(series.first_step) for series in many]
    numbers = np.array([-1 if series.tap is None else series.tap for series in many], np.int64)
    names = [label for label, size in zip(labels, sizes, strict=True) for _ in range(size)]
    table: dict[str, Any] = {"tap": np.repeat(numbers, sizes), "label": names}
    if stats:
        table["stat"] = [series.name for series, size in zip(many, sizes, strict=True) for _ in range(size)]
    for name in columns:
        parts = [getattr(series, name) for series in many]
        table[name] = np.concatenate(parts) if parts else np.empty(0, np.int64 if "step" in name else np.float64)
    return Table(table)


def latest_as_json(latest: Latest) -> dict[str, Any]:
    """The newest values of each tap, in the order of `stats`."""
    rows = zip(latest.numbers.tolist(), latest.taps, latest.steps.tolist(), rows_json(latest.values), strict=True)
    taps = [{**tap_as_json(number, tap), "step": step, "values": values} for number, tap, step, values in rows]
    return {"stats": list(latest.stats), "taps": taps}


def tap_columns(numbers: NDArray[np.int64], taps: Sequence[Tap]) -> dict[str, Any]:
    """Numbers and taps, as columns of a table."""
    columns: dict[str, Any] = {"tap": numbers}
    for name in TAP_COLUMNS:
        values = [getattr(tap, name) for tap in taps]
        columns[name] = np.array(values, np.int64) if name == "call" else values
    return columns


def latest_table(latest: Latest) -> Table:
    """A row for each tap, a column for each stat."""
    columns = tap_columns(latest.numbers, latest.taps) | {"step": latest.steps}
    columns |= {stat: latest.values[:, place] for place, stat in enumerate(latest.stats)}
    return Table(columns)


def heatmap_as_json(heatmap: Heatmap, counts: bool) -> dict[str, Any]:
    """Matrices [row, column]; `counts` adds in how many steps a cell's taps were there, and not finite."""
    rows = [
        {**tap_as_json(int(number), tap), "taps": int(group)}
        for number, tap, group in zip(heatmap.numbers, heatmap.taps, heatmap.groups, strict=True)
    ]
    answer = {
        "stat": heatmap.stat,
        "rows": rows,
        "first_step": array_json(heatmap.first_step),
        "last_step": array_json(heatmap.last_step),
        "worst": array_json(heatmap.worst),
        "state": array_json(heatmap.state),
    }
    if counts:
        answer |= {"present": array_json(heatmap.present), "nonfinite": array_json(heatmap.nonfinite)}
    return answer


def heatmap_table(heatmap: Heatmap) -> Table:
    """A row for each row, a column for each span of steps, named by its first step; npy holds the matrix."""
    columns = tap_columns(heatmap.numbers, heatmap.taps) | {"taps": heatmap.groups}
    columns |= {str(step): heatmap.worst[:, place] for place, step in enumerate(heatmap.first_step.tolist())}
    return Table(columns, heatmap.worst)


def histograms_as_json(found: Histograms) -> dict[str, Any]:
    """counts[i][j] values of column i lie between edges[j] and edges[j + 1]."""
    names = ("first_step", "last_step", "edges", "counts", "nan", "negative_infinity", "positive_infinity")
    return {"tap": found.tap, **{name: array_json(getattr(found, name)) for name in names}}


def histograms_table(found: Histograms) -> Table:
    """A row for each span of steps, a column for each bin, named by its lower edge; npy holds the counts."""
    names = ("first_step", "last_step", "nan", "negative_infinity", "positive_infinity")
    columns: dict[str, Any] = {name: getattr(found, name) for name in names}
    columns |= {f"from {edge!r}": found.counts[:, place] for place, edge in enumerate(found.edges[:-1].tolist())}
    return Table(columns, found.counts)


def histograms_list(many: Sequence[Histograms]) -> Table:
    """A row for each bin of each column that holds something: taps have edges of their own."""
    parts: list[dict[str, NDArray[Any]]] = []
    for each in many:
        column, place = np.nonzero(each.counts)
        parts.append(
            {
                "tap": np.full(len(column), each.tap, np.int64),
                "first_step": each.first_step[column],
                "last_step": each.last_step[column],
                "from": each.edges[place],
                "to": each.edges[place + 1],
                "count": each.counts[column, place],
            }
        )
    return Table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def snapshot_as_json(number: int, snapshot: Snapshot) -> dict[str, Any]:
    """What is known of a snapshot, without its values."""
    return {
        "number": number,
        "asked": snapshot.number >= 0,
        "tap": tap_as_json(None, snapshot.tap),
        "step": snapshot.step,
        "time_s": word_of(snapshot.time_s),
        "dtype": snapshot.dtype,
        "stored": snapshot.values.dtype.name,
        "shape": list(snapshot.shape),
        "kept_shape": list(snapshot.values.shape),
        "truncated": snapshot.truncated,
        "nbytes": snapshot.values.nbytes,
    }


def event_as_json(run: Run, event: Event) -> dict[str, Any]:
    """An event, and whether somebody acknowledged it."""
    key = key_of_event(event)
    said: dict[str, Any] = plain(asdict(event))
    return said | {"key": key, "acknowledged": key in run.acknowledgements}


def events_as_json(run: Run, events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events, oldest first."""
    return [event_as_json(run, event) for event in events]


def finding_as_json(run: Run, finding: Finding, type_: str = "") -> dict[str, Any]:
    """What needs attention, with the class of its module."""
    return {
        "key": finding.key,
        "rule": finding.rule,
        "severity": finding.severity,
        "acknowledged": run.has_seen(finding),
        "tap": tap_as_json(finding.number, finding.tap),
        "type": type_,
        "stat": finding.stat,
        "value": word_of(finding.value),
        "usual": word_of(finding.usual),
        "since_step": finding.since_step,
        "until_step": finding.until_step,
        "message": finding.message,
        "spark": [word_of(value) for value in finding.spark],
        "downstream": finding.downstream,
        "last_step": finding.last_step,
    }


def scope_as_json(scope: Scope) -> dict[str, Any]:
    """Return how much the findings are based on."""
    return asdict(scope) | {"unjudged": [asdict(each) | {"sentence": each.sentence} for each in scope.unjudged]}


def reading_as_json(reading: Reading | None) -> dict[str, Any] | None:
    """A number and whence it is."""
    if reading is None:
        return None
    tap = None if reading.tap is None else tap_as_json(reading.number, reading.tap)
    return {"name": reading.name, "value": word_of(reading.value), "step": reading.step, "tap": tap}


def run_as_json(run: Run) -> dict[str, Any]:
    """What a run is and how far; its key stays here."""
    info, steps, usage = run.info, run.store.steps(), run.store.usage()
    return {
        "id": run.id,
        "name": run.name,
        "notes": run.notes,
        "state": run.state,
        "failure": None if run.failure is None else asdict(run.failure),
        "in_memory": run.loaded,
        "folder": "" if run.folder is None else text_of(str(run.folder)),
        "first_step": steps.first,
        "newest_step": steps.newest,
        "steps": steps.count,
        "ended_at_step": run.ended_at_step,
        "taps": run.store.taps_announced,
        "started_s": word_of(info.started_s),
        "host": info.host,
        "pid": plain(info.pid),
        "script": info.script,
        "versions": plain(info.versions),
        "settings": plain(info.settings),
        "labels": run.store.labels(),
        "books": {name: plain(getattr(run.books, name)) for name in run.books.__struct_fields__},
        "usage": {
            "max_bytes": usage.max_bytes,
            "nbytes": usage.nbytes,
            "parts": {name: asdict(part) for name, part in usage.parts.items()},
            "dropped": plain(usage.dropped),
            "merged": plain(usage.merged),
        },
    }
