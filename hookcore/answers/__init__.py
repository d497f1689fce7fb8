"""The answers of a server: what REST and the live stream write, OpenAPI describes, and the client reads."""

from __future__ import annotations

from hookcore.answers.base import Floats, Framed, Integers, Number, Tap, components, decode, library
from hookcore.answers.compare import (
    Apart,
    ComparedLayer,
    ComparedScalar,
    Comparison,
    DifferenceRow,
    Differences,
    Figure,
    Parting,
    Verdict,
)
from hookcore.answers.findings import Finding, Findings, Overview, Reading, Rule, Scope, Unjudged
from hookcore.answers.runs import (
    Accepted,
    Acknowledged,
    Command,
    CoverageList,
    Event,
    Events,
    Hooks,
    Module,
    Modules,
    ModuleTap,
    Problem,
    RemovedRun,
    RemovedRuns,
    Run,
    Runs,
    Settings,
    Taps,
)
from hookcore.answers.series import (
    Heatmap,
    Histograms,
    HistogramsList,
    Latest,
    LatestTap,
    Row,
    Scalars,
    Series,
    SeriesList,
)
from hookcore.answers.tensors import (
    RequestedMaps,
    RequestedSnapshot,
    Rollout,
    RolloutLayer,
    Snapshot,
    Snapshots,
    SnapshotValues,
    Statistics,
    Tiles,
)

# fmt: off
__all__ = [
    "Accepted", "Acknowledged", "Apart", "Command", "ComparedLayer", "ComparedScalar", "Comparison", "CoverageList",
    "DifferenceRow", "Differences", "Event", "Events", "Figure", "Finding", "Findings", "Floats", "Framed",
    "Heatmap", "Histograms", "HistogramsList", "Hooks", "Integers", "Latest", "LatestTap", "Module", "ModuleTap",
    "Modules", "Number", "Overview", "Parting", "Problem", "Reading", "RemovedRun", "RemovedRuns", "RequestedMaps",
    "RequestedSnapshot", "Rollout", "RolloutLayer", "Row", "Rule", "Run", "Runs", "Scalars", "Scope", "Series",
    "SeriesList", "Settings", "Snapshot", "SnapshotValues", "Snapshots", "Statistics", "Tap", "Taps", "Tiles",
    "Unjudged", "Verdict", "components", "decode", "library",
]
# fmt: on
