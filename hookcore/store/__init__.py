"""The frames of a run in bounded memory, and queries over them. NumPy only: no torch, no web, no disk."""

from __future__ import annotations

from hookcore.store.answers import (
    Channels,
    Heatmap,
    Histograms,
    Latest,
    PartUsage,
    Quantiles,
    Series,
    Similarities,
    StepRange,
    TapList,
    Usage,
)
from hookcore.store.ledger import NonfiniteTaps
from hookcore.store.store import (
    DEFAULT_BYTES,
    MAX_ROWS,
    STAT_NAMES,
    RankStore,
    RowsOf,
    Store,
    of_all_values,
    rows_of_all,
)

__all__ = [
    "DEFAULT_BYTES",
    "MAX_ROWS",
    "STAT_NAMES",
    "Channels",
    "Heatmap",
    "Histograms",
    "Latest",
    "NonfiniteTaps",
    "PartUsage",
    "Quantiles",
    "RankStore",
    "RowsOf",
    "Series",
    "Similarities",
    "StepRange",
    "Store",
    "TapList",
    "Usage",
    "of_all_values",
    "rows_of_all",
]
