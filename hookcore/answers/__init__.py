"""The answers of a server: what REST and the live stream write, OpenAPI describes, and the client reads."""

from __future__ import annotations

from hookcore.answers.base import Floats, Integers, Number, Tabular, Tap, components, decode, library
from hookcore.answers.capsules import Capsule, Capsules, Explanation, SourceLine, Suspect, TensorFacts
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
from hookcore.answers.findings import (
    Finding,
    Findings,
    Overview,
    OwnRule,
    Reading,
    Rule,
    RunRule,
    RunRules,
    Scope,
    Threshold,
    Unjudged,
)
from hookcore.answers.flow import Flow, FlowCall
from hookcore.answers.incidents import Around, Evidence, Incident, IncidentDetail, Incidents, Link
from hookcore.answers.notifications import Notifications, NotificationTarget
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
    Mute,
    Mutes,
    Problem,
    RemovedRun,
    RemovedRuns,
    Run,
    Runs,
    Settings,
    Taps,
)
from hookcore.answers.series import (
    Channels,
    ChannelTaps,
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
    "Accepted", "Acknowledged", "Apart", "Around", "Capsule", "Capsules", "ChannelTaps", "Channels", "Command",
    "ComparedLayer", "ComparedScalar", "Comparison", "CoverageList", "DifferenceRow", "Differences", "Event",
    "Events", "Evidence", "Explanation", "Figure", "Finding", "Findings", "Floats", "Flow", "FlowCall", "Heatmap",
    "Histograms", "HistogramsList", "Hooks", "Incident", "IncidentDetail", "Incidents", "Integers", "Latest",
    "LatestTap", "Link", "Module", "ModuleTap", "Modules", "Mute", "Mutes", "NotificationTarget", "Notifications",
    "Number", "Overview", "OwnRule", "Parting", "Problem", "Reading", "RemovedRun", "RemovedRuns", "RequestedMaps",
    "RequestedSnapshot", "Rollout", "RolloutLayer", "Row", "Rule", "Run", "RunRule", "RunRules", "Runs", "Scalars",
    "Scope", "Series", "SeriesList", "Settings", "Snapshot", "SnapshotValues", "Snapshots", "SourceLine",
    "Statistics", "Suspect", "Tabular", "Tap", "Taps", "TensorFacts", "Threshold", "Tiles", "Unjudged", "Verdict",
    "components", "decode", "library",
]
# fmt: on
