"""One answer of each route, for the description in OpenAPI; a test holds them to the shapes they illustrate."""

from __future__ import annotations

from typing import Any, Final

TAP: Final[dict[str, Any]] = {
    "number": 0,
    "module": "layers.0",
    "kind": "output",
    "index": "",
    "call": 0,
    "phase": "train",
    "label": "layers.0 output",
}
_PAGE: Final = {"total": 1, "next": None}
_SPANS: Final = {"first_step": [0, 1], "last_step": [0, 1]}
RUN: Final[dict[str, Any]] = {
    "id": "run-1",
    "name": "train.py",
    "notes": "",
    "state": "live",
    "first_step": 0,
    "newest_step": 1,
    "steps": 2,
    "failure": None,
    "in_memory": True,
    "folder": "/home/me/.local/share/hookcore/runs/mlp-run-1.hookcore",
    "ended_at_step": None,
    "taps": 1,
    "started_s": 1767225600.0,
    "host": "box",
    "pid": 4242,
    "script": "train.py",
    "versions": {"torch": "2.13.0"},
    "settings": {"every": 1, "budget": 0.05},
    "labels": {"optimizer": "AdamW"},
    "books": {"produced": 2, "acknowledged": 2, "dropped": {}, "waiting": 0, "in_flight": 0},
    "usage": {
        "max_bytes": 512_000_000,
        "nbytes": 1_000_000,
        "parts": {"stats": {"nbytes": 900_000, "limit": 300_000_000}},
        "dropped": {"too_late": 0},
        "merged": {"stats": 0},
    },
}
RUNS: Final = {**_PAGE, "runs": [RUN]}
REMOVED_RUNS: Final = {
    "total": 1,
    "runs": [{"id": "run-0", "name": "old.py", "removed_s": 1763769600.0, "why": "deleted", "restorable": True}],
}
_COVERED: Final = {"path": "layers.0", "type": "Linear", "captured": True, "kinds": ["output"], "reason": ""}
MODULES: Final = {
    "run": "run-1",
    **_PAGE,
    "modules": [
        {
            "path": "layers.0",
            "parent": "layers",
            "type": "Linear",
            "parameters": 4160,
            "trainable": 4160,
            "aliases": [],
            "shapes": {"weight": [64, 20], "bias": [64], "output": [32, 64]},
            "coverage": _COVERED,
            "taps": [{**TAP, "values": 2048.0, "shape": [32, 64]}],
        }
    ],
}
TAPS: Final = {"run": "run-1", **_PAGE, "taps": [TAP]}
COVERAGE: Final = {"run": "run-1", **_PAGE, "coverage": [_COVERED]}
HOOKS: Final = {
    "run": "run-1",
    **_PAGE,
    "hooks": [
        {
            "scope": "module",
            "owner": "layers.0",
            "point": "forward",
            "function": "my_hook",
            "where": "train.py:12",
            "ours": False,
            "number": 0,
            "options": [],
            "legacy": False,
            "warning": "",
        }
    ],
}
_SERIES: Final = {**_SPANS, "mean": [0.5, "NaN"], "min": [0.5, "NaN"], "max": [0.5, "NaN"], "present": [1, 1]}
SERIES: Final = {
    "run": "run-1",
    "stat": "rms",
    **_PAGE,
    "series": [{"name": "rms", "tap": 0, **_SERIES, "nonfinite": [0, 1], "about": TAP}],
}
LOGS: Final = {
    "run": "run-1",
    **_PAGE,
    "names": ["loss"],
    "series": [{"name": "loss", "tap": None, **_SERIES, "nonfinite": [0, 1]}],
}
HEATMAP: Final = {
    "run": "run-1",
    "kind": "output",
    "stat": "rms",
    "rows": [{**TAP, "taps": 1}],
    **_SPANS,
    "worst": [[0.5, "NaN"]],
    "state": [[1, 2]],
}
HISTOGRAMS: Final = {
    "run": "run-1",
    "tap": 0,
    **_SPANS,
    "edges": [-1.0, 0.0, 1.0],
    "counts": [[3, 5], [4, 3]],
    "nan": [0, 1],
    "negative_infinity": [0, 0],
    "positive_infinity": [0, 0],
    "about": TAP,
}
LATEST: Final = {"run": "run-1", "stats": ["rms", "ratio"], "taps": [{**TAP, "step": 1, "values": [0.5, "NaN"]}]}
_SNAPSHOT: Final = {
    "number": 1767225600000,
    "asked": True,
    "tap": {**TAP, "number": None},
    "step": 1,
    "time_s": 1767225601.5,
    "dtype": "float32",
    "stored": "float32",
    "shape": [2, 2],
    "kept_shape": [2, 2],
    "truncated": False,
    "nbytes": 16,
}
TILES: Final = {
    "run": "run-1",
    "number": 0,
    "slice": "",
    "pool": "worst",
    "total": 1,
    "tile_shape": [2, 3],
    "factors": [1, 2],
    "values": [[[-2.0, "NaN"], ["Infinity", "-Infinity"]]],
}
STATISTICS: Final = {
    "run": "run-1",
    "number": 0,
    "slice": "0",
    "shape": [3],
    "statistics": {"count": 3, "nan": 1, "inf": 0, "zero": 0, "mean": -0.75, "std": 1.25, "min": -2.0, "max": 0.5},
}
ROLLOUT: Final = {
    "run": "run-1",
    "step": 3,
    "steps": [3],
    "sample": 0,
    "samples": 1,
    "fuse": "mean",
    "discard": 0.0,
    "gradient": False,
    "layers": [{"number": 1, "about": TAP, "heads": 1, "gradient": None}],
    "matrix": [[0.75, 0.25], [0.25, 0.75]],
}
ROLLOUT_REQUESTED: Final = {
    "run": "run-1",
    "asked": [{"number": 1767225600000, "about": {**TAP, "number": None}}],
    "left_out": 0,
    "look": "/api/v1/attention-rollout?run=run-1",
}
SNAPSHOTS: Final = {"run": "run-1", **_PAGE, "snapshots": [_SNAPSHOT]}
SNAPSHOT: Final = {"run": "run-1", **_SNAPSHOT, "slice": "0,:", "values": [0.5, "-Infinity"]}
EVENTS: Final = {
    "run": "run-1",
    "total": 1,
    "next": 1,
    "events": [
        {
            "step": 1,
            "time_s": 1767225601.5,
            "name": "skipped-step",
            "message": "the optimizer's step was skipped: a gradient was not finite",
            "severity": "warning",
            "module": "",
            "count": 1,
            "key": "event:0f1e2d3c4b5a697887",
            "acknowledged": False,
        }
    ],
}
SETTINGS: Final = {
    "run": "run-1",
    "state": "live",
    "settings": {"every": 1, "budget": 0.05},
    "waiting": [{"number": 1767225600000, "name": "settings", "changes": {"every": 10}}],
}
ACCEPTED: Final = {"run": "run-1", "number": 1767225600000, "look": "/api/v1/settings?run=run-1"}
_APART: Final = {
    "outcome": "different",
    "points": 2,
    "steps": 2,
    "parts_at": 1,
    "parts_by": 1,
    "largest": 0.25,
    "share": 0.5,
    "at_step": 1,
    "nonfinite": 0,
    "nonfinite_at": None,
    "nonfinite_by": None,
}
COMPARE: Final = {
    "runs": ["run-1", "run-2"],
    "kind": "output",
    "stat": "rms",
    "tolerance": 0.0,
    "verdict": {
        "outcome": "different",
        "message": "The runs first differ at step 1, in layers.0 output. 1 of 1 layers differs in the 2 steps that "
        "both runs captured. loss differs from step 1 on.",
        "steps_compared": 2,
        "steps_captured": [2, 2],
        "steps_not_comparable": 0,
    },
    "first": {"step": 1, "layer": TAP},
    "parted": 1,
    **_PAGE,
    "layers": [{"about": TAP, "taps": [0, 0], **_APART, **_SPANS, "difference": [0.0, 0.25]}],
    "logged": [{"name": "loss", **_APART}],
    "only_in": {"run-1": [], "run-2": [{**TAP, "number": 1, "module": "layers.1", "label": "layers.1 output"}]},
}
DIFFERENCES: Final = {
    "runs": ["run-1", "run-2"],
    "kind": "output",
    "stat": "rms",
    "rows": [{**TAP, "taps": 1, "numbers": [0, 0]}],
    **_SPANS,
    "worst": [[0.0, "NaN"]],
    "state": [[1, 2]],
}
_FINDING: Final = {
    "key": "nonfinite:layers.0 output",
    "rule": "nonfinite",
    "severity": "error",
    "acknowledged": False,
    "tap": TAP,
    "type": "Linear",
    "stat": "rms",
    "value": "NaN",
    "usual": "NaN",
    "since_step": 812,
    "until_step": None,
    "message": "NaN in the output since step 812",
    "spark": [0.5, 0.52, 0.49],
    "downstream": 208,
    "last_step": None,
}
_RULE: Final = {
    "name": "nonfinite",
    "severity": "error",
    "title": "NaN or infinity",
    "help": "A tensor held a NaN or an infinity.",
    "limits": {},
}
_UNJUDGED: Final = {
    "rule": "dead",
    "layers": 3,
    "of": 100,
    "captured": 9,
    "needed": 16,
    "sentence": "Not enough captured to judge dead layers in 3 of 100 layers: at most 9 captured steps, 16 needed.",
}
_SCOPE: Final = {
    "verdict": "problems",
    "sentence": f"1 problem found in the last 512 steps (36 captured). {_UNJUDGED['sentence']}",
    "first_step": 309,
    "last_step": 820,
    "steps": 512,
    "captured": 36,
    "captured_in_run": 58,
    "layers": 300,
    "uncaptured": 4,
    "unjudged": [_UNJUDGED],
}
ATTENTION: Final = {
    "run": "run-1",
    "total": 1,
    "newest_step": 820,
    "scope": _SCOPE,
    "findings": [_FINDING],
    "rules": [_RULE],
}
OVERVIEW: Final = {
    "run": "run-1",
    "state": "live",
    "first_step": 0,
    "newest_step": 820,
    "steps": 821,
    "steps_per_s": 18.5,
    "loss": {"name": "loss", "value": 0.25, "step": 820, "tap": None},
    "scalars": [{"name": "loss", "value": 0.25, "step": 820, "tap": None}],
    "gradient_kind": "output_grad",
    "gradient_norm": {"name": "gradient norm", "value": "NaN", "step": 820, "tap": None},
    "smallest_gradient": {"name": "rms", "value": 1e-05, "step": 820, "tap": {**TAP, "kind": "output_grad"}},
    "largest_gradient": {"name": "rms", "value": 0.125, "step": 820, "tap": {**TAP, "kind": "output_grad"}},
    "nonfinite": 209,
    "nonfinite_modules": ["layers.0"],
    "modules_captured": 300,
    "modules": 304,
    "taps": 600,
    "hook_cost": 0.021,
    "every": 2,
    "budget": 0.05,
    "steps_left_out": 410,
    "cost": "adds 2.1%, limit 5%; captures every 2nd step",
    "dropped": {},
    "findings": {"error": 1, "warning": 0, "info": 0},
}
ACKNOWLEDGED: Final = {"run": "run-1", "key": "nonfinite:layers.0 output", "acknowledged": True}
FIGURE: Final = {
    "data": [{"type": "scatter", "mode": "lines", "name": "loss", "x": [0, 1], "y": [0.5, 0.25]}],
    "layout": {"title": {"text": "loss"}, "xaxis": {"title": {"text": "step"}}, "yaxis": {"type": "log"}},
}
