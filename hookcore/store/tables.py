"""Answers as tables: columns by name, and data frames. The store and the server share them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError

SERIES_COLUMNS: Final = ("first_step", "last_step", "mean", "min", "max", "present", "nonfinite")
_HISTOGRAM_COLUMNS: Final = ("first_step", "last_step", "nan", "negative_infinity", "positive_infinity")
_OTHERWISE: Final = ", or use .columns()"


class Tabular:
    """An answer that can become a data frame."""

    __slots__ = ()

    def columns(self) -> dict[str, Any]:
        """Return the columns by name."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        return library("pandas", _OTHERWISE).DataFrame(self.columns())

    def to_polars(self) -> Any:
        """Return a polars DataFrame."""
        return library("polars", _OTHERWISE).DataFrame(self.columns())


class SeriesTable(Tabular):
    """A table with a row for each point."""

    __slots__ = ()

    def columns(self) -> dict[str, Any]:
        """Return a row for each point."""
        return {name: series_column(self, name) for name in SERIES_COLUMNS}


def series_column(series: Any, name: str) -> NDArray[Any]:
    """Return a column of a series; NaN where it is unknown, as the counts of a quantile are."""
    values: NDArray[Any] | None = getattr(series, name)
    return np.full(len(series.first_step), np.nan) if values is None else values


class HistogramsTable(Tabular):
    """A table with a row for each span of steps, and a column for each bin."""

    __slots__ = ()
    counts: NDArray[Any]
    edges: NDArray[Any]

    def columns(self) -> dict[str, Any]:
        """Return a row for each span of steps, and a column for each bin, named by its lower edge."""
        bins = {f"from {edge!r}": self.counts[:, place] for place, edge in enumerate(self.edges[:-1].tolist())}
        return {name: getattr(self, name) for name in _HISTOGRAM_COLUMNS} | bins


class ChannelsTable(Tabular):
    """A table with a row for each channel, or group of channels."""

    __slots__ = ()
    channel: NDArray[np.int64]
    first_step: NDArray[np.int64]
    values: NDArray[Any]

    def columns(self) -> dict[str, Any]:
        """Return a row for each row of the map, and a column for each span of steps, named by its first step."""
        return {"channel": self.channel} | span_columns(self.first_step, self.values)


def tap_columns(numbers: Sequence[int | None] | NDArray[np.int64], taps: Sequence[Any]) -> dict[str, Any]:
    """Return a column for each part of the taps."""
    texts = {name: [getattr(tap, name) for tap in taps] for name in ("module", "kind", "index")}
    calls = np.array([tap.call for tap in taps], np.int64)
    phases = [tap.phase for tap in taps]
    return {"tap": np.asarray(numbers, np.int64), **texts, "call": calls, "phase": phases}


def span_columns(first_step: NDArray[np.int64], cells: NDArray[Any]) -> dict[str, Any]:
    """Return the columns of a map, each named by its first step."""
    return {str(step): cells[:, place] for place, step in enumerate(first_step.tolist())}


def library(name: str, otherwise: str = "") -> Any:
    """Import a library that may be missing."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ArgumentError(f"{package} is not installed here: `pip install {package}`{otherwise}") from None
