"""One example answer for each route, for OpenAPI."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from hookcore import answers
from hookcore.answers import Number
from hookcore.records import Coverage, Failure, HookRecord, Tap
from hookcore.store import PartUsage, Usage
from hookcore.wire import Books

NAN: Final = Number("nan")
TAP: Final = answers.Tap.of(0, Tap("layers.0", "output"))
UNNUMBERED: Final = answers.Tap.of(None, Tap("layers.0", "output"))
GRADIENT: Final = answers.Tap.of(0, Tap("layers.0", "output_grad"))
_PAGE: Final[dict[str, Any]] = {"total": 1, "next": None, "run": "run-1"}
_STEPS: Final = np.array([0, 1])
_SPANS: Final[dict[str, Any]] = {"first_step": _STEPS, "last_step": _STEPS}
RUN: Final = answers.Run(
    id="run-1",
    name="train.py",
    notes="",
    state="crashed",
    failure=Failure("crashed", 1, "RuntimeError: out of memory"),
    in_memory=True,
    folder="/home/me/.local/share/hookcore/runs/mlp-run-1.hookcore",
    first_step=0,
    newest_step=1,
    steps=2,
    ended_at_step=1,
    taps=1,
    started_s=Number(1767225600),
    host="box",
    pid=4242,
    script="train.py",
    versions={"torch": "2.13.0"},
    settings={"every": 1, "budget": 0.05},
    labels={"optimizer": "AdamW"},
    books=Books(produced=2, acknowledged=2),
    usage=Usage(512_000_000, 1_000_000, {"stats": PartUsage(900_000, 300_000_000)}, {"too_late": 0}, {"stats": 0}),
)
RUNS: Final = answers.Runs(1, None, (RUN,))
REMOVED_RUNS: Final = answers.RemovedRuns(
    1, (answers.RemovedRun("run-0", "old.py", Number(1763769600), "deleted", True),)
)
_COVERED: Final = Coverage("layers.0", "Linear", True, ("output",))
MODULES: Final = answers.Modules(
    **_PAGE,
    modules=(
        answers.Module(
            path="layers.0",
            parent="layers",
            type="Linear",
            parameters=1344,
            trainable=1344,
            aliases=(),
            shapes={"weight": (64, 20), "bias": (64,), "output": (32, 64)},
            coverage=_COVERED,
            taps=(answers.ModuleTap.of(0, Tap("layers.0", "output"), values=Number(2048), shape=(32, 64)),),
        ),
    ),
)
TAPS: Final = answers.Taps(**_PAGE, taps=(TAP,))
COVERAGE: Final = answers.CoverageList(**_PAGE, coverage=(_COVERED,))
HOOKS: Final = answers.Hooks(
    **_PAGE, hooks=(HookRecord("module", "layers.0", "forward", "my_hook", "train.py:12", False, 0),)
)
_LINE: Final = np.array([0.5, np.nan])
_NONFINITE: Final = np.array([0, 1])
_SERIES: Final = answers.Series("rms", TAP, _STEPS, _STEPS, _LINE, _LINE, _LINE, np.ones(2, np.int64), _NONFINITE)
SERIES: Final = answers.SeriesList(**_PAGE, stat="rms", series=(_SERIES,))
SCALARS: Final = answers.Scalars(**_PAGE, names=("loss",), series=(replace(_SERIES, name="loss", tap=None),))
HEATMAP: Final = answers.Heatmap(
    run="run-1",
    kind="output",
    stat="rms",
    rows=(answers.Row.of(0, Tap("layers.0", "output"), group=1),),
    **_SPANS,
    worst=_LINE.reshape(1, 2),
    state=np.array([[1, 2]], np.uint8),
)
HISTOGRAMS: Final = answers.Histograms(
    run="run-1",
    tap=TAP,
    **_SPANS,
    edges=np.array([-1.0, 0.0, 1.0]),
    counts=np.array([[3, 5], [4, 3]]),
    nan=_NONFINITE,
    negative_infinity=np.zeros(2, np.int64),
    positive_infinity=np.zeros(2, np.int64),
)
LATEST: Final = answers.Latest(
    "run-1", ("rms", "ratio"), (answers.LatestTap.of(0, Tap("layers.0", "output"), step=1, values=_LINE),)
)
_SNAPSHOT: Final[dict[str, Any]] = {
    "number": 1767225600000,
    "asked": True,
    "tap": UNNUMBERED,
    "step": 1,
    "time_s": Number(1767225601.5),
    "dtype": "float32",
    "stored": "float32",
    "shape": (2, 2),
    "kept_shape": (2, 2),
    "truncated": False,
    "nbytes": 16,
}
SNAPSHOTS: Final = answers.Snapshots(**_PAGE, snapshots=(answers.Snapshot(**_SNAPSHOT),))
SNAPSHOT: Final = answers.SnapshotValues(**_SNAPSHOT, run="run-1", slice="0,:", values=np.array([0.5, -np.inf]))
TILES: Final = answers.Tiles(
    run="run-1",
    number=0,
    slice="",
    pool="worst",
    total=1,
    tile_shape=(2, 3),
    factors=(1, 2),
    values=np.array([[[-2.0, np.nan], [np.inf, -np.inf]]]),
)
STATISTICS: Final = answers.Statistics(
    run="run-1",
    number=0,
    slice="0",
    shape=(3,),
    statistics={"count": Number(3), "nan": Number(1), "mean": Number(-0.75), "min": Number(-2), "max": Number(0.5)},
)
ROLLOUT: Final = answers.Rollout(
    run="run-1",
    step=3,
    steps=(3,),
    sample=0,
    samples=1,
    fuse="mean",
    discard=0.0,
    gradient=False,
    layers=(answers.RolloutLayer(number=1, tap=UNNUMBERED, heads=1, gradient=None),),
    matrix=np.array([[0.75, 0.25], [0.25, 0.75]]),
)
ROLLOUT_REQUESTED: Final = answers.RequestedMaps(
    run="run-1",
    asked=(answers.RequestedSnapshot(1767225600000, UNNUMBERED),),
    left_out=0,
    look="/api/v1/attention-rollout?run=run-1",
)
EVENTS: Final = answers.Events(
    run="run-1",
    total=1,
    next=1,
    events=(
        answers.Event(
            step=1,
            time_s=Number(1767225601.5),
            name="skipped-step",
            message="the optimizer's step was skipped: a gradient was not finite",
            severity="warning",
            module="",
            count=1,
            key="event:0f1e2d3c4b5a697887",
            acknowledged=False,
        ),
    ),
)
SETTINGS: Final = answers.Settings(
    run="run-1",
    state="live",
    settings={"every": 1, "budget": 0.05},
    waiting=(answers.Command(1767225600000, "settings", {"every": 10}),),
)
ACCEPTED: Final = answers.Accepted("run-1", 1767225600000, "/api/v1/settings?run=run-1")
_APART: Final[dict[str, Any]] = {
    "outcome": "different",
    "points": 2,
    "steps": 2,
    "parts_at": 1,
    "parts_by": 1,
    "largest": Number(0.25),
    "share": Number(0.5),
    "at_step": 1,
    "nonfinite": 0,
    "nonfinite_at": None,
    "nonfinite_by": None,
}
COMPARE: Final = answers.Comparison(
    total=1,
    next=None,
    runs=("run-1", "run-2"),
    kind="output",
    stat="rms",
    tolerance=0.0,
    verdict=answers.Verdict(
        outcome="different",
        message="The runs first differ at step 1, in layers.0 output. 1 of 1 layers differs in the 2 steps that "
        "both runs captured. loss differs from step 1 on.",
        steps_compared=2,
        steps_captured=(2, 2),
        steps_not_comparable=0,
    ),
    first=answers.Parting(1, TAP),
    parted=1,
    layers=(answers.ComparedLayer(**_APART, tap=TAP, numbers=(0, 0), **_SPANS, difference=np.array([0.0, 0.25])),),
    logged=(answers.ComparedScalar(**_APART, name="loss"),),
    only_in={"run-1": (), "run-2": (answers.Tap.of(1, Tap("layers.1", "output")),)},
)
DIFFERENCES: Final = answers.Differences(
    runs=("run-1", "run-2"),
    kind="output",
    stat="rms",
    rows=(answers.DifferenceRow.of(0, Tap("layers.0", "output"), group=1, numbers=(0, 0)),),
    **_SPANS,
    worst=np.array([[0.0, np.nan]]),
    state=np.array([[1, 2]], np.uint8),
)
_UNJUDGED: Final = answers.Unjudged(
    rule="dead",
    layers=3,
    of=100,
    captured=9,
    needed=16,
    sentence="Not enough captured to judge dead layers in 3 of 100 layers: at most 9 captured steps, 16 needed.",
)
FINDINGS: Final = answers.Findings(
    run="run-1",
    total=1,
    newest_step=820,
    scope=answers.Scope(
        verdict="problems",
        sentence=f"1 problem found in the last 512 steps (36 captured). {_UNJUDGED.sentence}",
        first_step=309,
        last_step=820,
        steps=512,
        captured=36,
        captured_in_run=58,
        layers=300,
        uncaptured=4,
        unjudged=(_UNJUDGED,),
    ),
    findings=(
        answers.Finding(
            key="nonfinite:layers.0 output",
            rule="nonfinite",
            severity="error",
            acknowledged=False,
            tap=TAP,
            type="Linear",
            stat="rms",
            value=NAN,
            usual=NAN,
            since_step=812,
            until_step=None,
            message="NaN in the output since step 812",
            spark=np.array([0.5, 0.52, 0.49]),
            downstream=208,
            last_step=None,
        ),
    ),
    rules=(
        answers.Rule(
            name="nonfinite",
            severity="error",
            title="NaN or infinity",
            help="A tensor held a NaN or an infinity.",
            limits={},
        ),
    ),
)
_LOSS: Final = answers.Reading("loss", Number(0.25), 820, None)
OVERVIEW: Final = answers.Overview(
    run="run-1",
    state="live",
    first_step=0,
    newest_step=820,
    steps=821,
    steps_per_s=Number(18.5),
    loss=_LOSS,
    scalars=(_LOSS,),
    gradient_kind="output_grad",
    gradient_norm=answers.Reading("gradient norm", NAN, 820, None),
    smallest_gradient=answers.Reading("rms", Number(1e-5), 820, GRADIENT),
    largest_gradient=answers.Reading("rms", Number(0.125), 820, GRADIENT),
    nonfinite=209,
    nonfinite_modules=("layers.0",),
    modules_captured=300,
    modules=304,
    taps=600,
    hook_cost=Number(0.021),
    every=2,
    budget=0.05,
    steps_left_out=410,
    cost="adds 2.1%, limit 5%; captures every 2nd step",
    dropped={},
    findings={"error": 1, "warning": 0, "info": 0},
)
ACKNOWLEDGED: Final = answers.Acknowledged("run-1", "nonfinite:layers.0 output", True)
FIGURE: Final = answers.Figure(
    data=({"type": "scatter", "mode": "lines", "name": "loss", "x": [0, 1], "y": [0.5, 0.25]},),
    layout={"title": {"text": "loss"}, "xaxis": {"title": {"text": "step"}}, "yaxis": {"type": "log"}},
)
