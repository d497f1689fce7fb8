"""The answers of a server: what REST and the live stream write, OpenAPI describes, and the client reads."""

from __future__ import annotations

from hookcore.reading.answers.base import Number, Tabular, Tap, components
from hookcore.reading.answers.capsules import Capsule, Capsules, Explanation, SourceLine, Suspect, TensorFacts
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
