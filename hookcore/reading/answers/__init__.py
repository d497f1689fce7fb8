"""The answers of a server: what REST and the live stream write, OpenAPI describes, and the client reads."""

from __future__ import annotations

from hookcore.reading.answers.base import Floats, Integers, Number, Tabular, Tap, components, decode, library
from hookcore.reading.answers.capsules import (
    Capsule,
    Capsules,
    Explanation,
    ReplayedLayer,
    SourceLine,
    Suspect,
    TensorFacts,
)
from hookcore.reading.answers.compare import (
    Apart,
    ComparedLayer,
    ComparedScalar,
    Comparison,
    ComparisonHeatmap,
    DifferenceRow,
    Figure,
    Parting,
    Verdict,
)
from hookcore.reading.answers.different import Differences, DifferentLayer, DifferentScalar, StepSample
from hookcore.reading.answers.findings import (
    Course,
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
from hookcore.reading.answers.flow import Flow, FlowCall
from hookcore.reading.answers.incidents import Around, Evidence, Incident, IncidentDetail, Incidents, Link
from hookcore.reading.answers.login import LoginLink
from hookcore.reading.answers.media import Media, MediaList
from hookcore.reading.answers.model import Model, ModelBox, ModelEdge, ModelTensor
from hookcore.reading.answers.notifications import Notifications, NotificationTarget
from hookcore.reading.answers.overlay import Overlay, OverlayLine
from hookcore.reading.answers.ranks import LayerSpread, LayerSpreads, Rank, RankMap, Ranks, RankSpread, RankWaits
from hookcore.reading.answers.runs import (
    Accepted,
    Acknowledged,
    Annotation,
    Annotations,
    Board,
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
    PinnedChart,
    Problem,
    RankSummary,
    RemovedRun,
    RemovedRuns,
    Run,
    Runs,
    Settings,
    Taps,
    View,
    Views,
)
from hookcore.reading.answers.series import (
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
from hookcore.reading.answers.tensors import (
    RequestedMaps,
    RequestedSnapshot,
    Rollout,
    RolloutLayer,
    Snapshot,
    SnapshotNames,
    Snapshots,
    SnapshotValues,
    Statistics,
    Tiles,
)
from hookcore.reading.answers.timeline import Nearest, Timeline, TimelineMark

# fmt: off
__all__ = [
    "Accepted", "Acknowledged", "Annotation", "Annotations", "Apart", "Around", "Board", "Capsule", "Capsules",
    "ChannelTaps", "Channels", "Command",
    "ComparedLayer", "ComparedScalar", "Comparison", "ComparisonHeatmap", "Course", "CoverageList", "DifferenceRow",
    "Differences", "DifferentLayer", "DifferentScalar", "Event", "Events", "Evidence", "Explanation", "Figure",
    "Finding", "Findings", "Floats", "Flow", "FlowCall", "Heatmap", "Histograms", "HistogramsList", "Hooks",
    "Incident", "IncidentDetail", "Incidents", "Integers", "Latest", "LatestTap", "LayerSpread", "LayerSpreads",
    "Link", "LoginLink", "Media", "MediaList", "Model", "ModelBox", "ModelEdge", "ModelTensor", "Module", "ModuleTap",
    "Modules", "Mute", "Mutes", "Nearest",
    "NotificationTarget", "Notifications", "Number", "Overlay", "OverlayLine", "Overview", "OwnRule", "Parting",
    "PinnedChart", "Problem", "Rank", "RankMap", "RankSpread", "RankSummary", "RankWaits", "Ranks", "Reading",
    "ReplayedLayer",
    "RemovedRun", "RemovedRuns", "RequestedMaps", "RequestedSnapshot", "Rollout", "RolloutLayer", "Row", "Rule", "Run",
    "RunRule", "RunRules", "Runs", "Scalars", "Scope", "Series", "SeriesList", "Settings", "Snapshot", "SnapshotNames",
    "SnapshotValues", "Snapshots", "SourceLine", "Statistics", "StepSample", "Suspect", "Tabular", "Tap", "Taps",
    "TensorFacts", "Threshold", "Tiles", "Timeline", "TimelineMark", "Unjudged", "Verdict", "View", "Views",
    "components", "decode", "library",
]
# fmt: on
