"""Requests that all stores must answer in the same way, and the reasons for the exceptions."""

from __future__ import annotations

from typing import Any, Final

RUNS: Final = ("one", "rank-1", "ranks-job")

# -- REST: read --------------------------------------------------------------------------------------------------------

OF_A_RUN: Final = (
    "runs/{run}",
    "runs/{run}/modules",
    "runs/{run}/find?f=layers",
    "runs/{run}/find?f=is:nan&limit=2",
    "runs/{run}/hook-rows",
    "runs/{run}/module-rows",
    "runs/{run}/module-rows?from=10&to=125",
    "taps?run={run}",
    "taps?run={run}&kind=output&match=layers.*",
    "coverage?run={run}",
    "hooks?run={run}",
    "flow?run={run}",
    "flow?run={run}&step=100",
    "model?run={run}",
    "findings?run={run}",
    "overview?run={run}",
    "mutes?run={run}",
    "rules?run={run}",
    "annotations?run={run}",
    "incidents?run={run}",
    "incidents/nonfinite-120?run={run}",
    "capsules?run={run}",
    "series?run={run}&stat=rms&tap=2",
    "series?run={run}&stat=mean&kind=output_grad&match=*&points=37",
    "series?run={run}&stat=nan&tap=4&from=50&to=260&points=20",
    "heatmap?run={run}&kind=output&stat=rms",
    "heatmap?run={run}&kind=output&stat=rms&columns=40&rows=2&from=10&to=280",
    "heatmap?run={run}&kind=output_grad&stat=nan&columns=77&counts=true",
    "histograms?run={run}&tap=0",
    "histograms?run={run}&tap=0&columns=25&bins=16&from=20&to=200",
    "channels?run={run}&tap=9",
    "latest?run={run}",
    "latest?run={run}&kind=output&sort=rms&limit=3",
    "latest?run={run}&from=40&to=60",
    "latest?run={run}&from=100&to=270&sort=rms",
    "overview?run={run}&from=10&to=90",
    "timeline?run={run}&from=10&to=200",
    "timeline?run={run}&columns=40",
    "nearest?run={run}&step=41",
    "scalars?run={run}",
    "scalars?run={run}&name=accuracy",
    "scalars?run={run}&name=loss&points=30&from=100",
    "snapshots?run={run}",
    "media?run={run}",
    "media/3?run={run}",
    "events?run={run}",
    "events?run={run}&from=100&to=200",
    "settings?run={run}",
    "commands?run={run}&numbers=1,2",
    "differences?run={run}&kind=output&from=0&to=100&other_from=150&other_to=250",
    "attention-rollout?run={run}",
    "attention-rollout?run={run}&step=67&sample=1&fuse=max",
    "figure?run={run}&chart=series&tap=0&stat=rms",
    "figure?run={run}&chart=heatmap&kind=output&stat=rms",
    "figure?run={run}&chart=histograms&tap=0",
    "figure?run={run}&chart=scalars&name=loss",
)
OF_SEVERAL: Final = (
    "runs",
    "runs?query=state:ended",
    "removed-runs",
    "runs/two",
    "annotations?run=two",
    "mutes?run=two",
    "rules?run=two",
    "openapi.json",
    "views",
    "board",
    "notifications",
    "compare?runs=one,two",
    "compare?runs=one,two&kind=output&stat=mean&points=50",
    "compare/heatmap?runs=one,two&kind=output",
    "differences?run=one&other=two&kind=output",
    "overlay?runs=one,two,ranks-job&scalar=loss",
    "overlay?runs=one,two,rank-1&tap=embed+output&stat=mean&points=40&from=20&to=250&band=true&group_by=lr",
    "ranks?run=ranks-job",
    "ranks/map?run=ranks-job&tap=0&stat=rms&columns=50",
    "ranks/map?run=ranks-job&name=loss",
    "ranks/spread?run=ranks-job&kind=output",
    "ranks/spread?run=ranks-job&kind=output_grad&stat=mean&step=121&sort=apart&limit=2",
    "snapshots/0?run=one&format=json",
    "snapshots/0?run=ranks-job&format=npy",
    "snapshots/0/statistics?run=one",
    "snapshots/0/tiles?run=one&rows=2&columns=2",
    "snapshots/2/names?run=one",
    "snapshots/0/names?run=rank-1",
    "report?run=one",
    "report?run=ranks-job&from=20&to=200",
)
# The event stream never ends, so its address is requested in another way.
STREAMED: Final = tuple(f"live?run={run}&stat=rms,nan" for run in RUNS)
SUBSCRIBED: Final[tuple[dict[str, Any], ...]] = (
    {"view": "heatmap", "kind": "output", "stat": "rms", "rows": "idx:0-1", "columns": 40},
    {"view": "latest", "kind": "output", "stats": ["rms", "nan"]},
    {"view": "scalars"},
    {"view": "events"},
    {"view": "incidents"},
)

# -- REST: write -------------------------------------------------------------------------------------------------------

WRITTEN: Final[tuple[tuple[str, str, dict[str, Any] | None], ...]] = (
    ("PATCH", "runs/two", {"name": "renamed", "notes": "because", "tags": ["good"], "group": "a sweep"}),
    ("POST", "acknowledgements", {"run": "two", "key": "nonfinite:layers.0 output"}),
    ("POST", "annotations", {"run": "two", "step": 100, "text": "learning rate halved"}),
    ("POST", "annotations", {"run": "two", "step": 101, "text": "a mistake"}),
    ("DELETE", "annotations?run=two&step=101", None),
    ("POST", "mutes", {"run": "two", "rule": "dead", "match": "layers.*"}),
    ("POST", "mutes", {"run": "two", "rule": "spike"}),
    ("DELETE", "mutes?run=two&rule=spike", None),
    ("POST", "rules", {"run": "two", "rules": {"dead": False, "spike": {"factor": 20}}}),
    ("PUT", "views", {"name": "good ones", "query": "f=tag:good"}),
    ("PUT", "views", {"name": "others", "query": "f=tag:bad"}),
    ("DELETE", "views?name=others", None),
    ("PUT", "board", {"name": "embed: norm", "path": "series", "query": "tap=embed+output&stat=norm"}),
    ("PUT", "board", {"name": "loss", "path": "scalars", "query": "name=loss"}),
    ("DELETE", "board?name=loss", None),
    ("DELETE", "runs/two", None),
    ("POST", "removed-runs/two/restore", None),
    ("POST", "runs/two/selection", {"include": ["layers.*"], "switch": {"paths": ["head"], "whole": True, "on": True}}),
)
# These need the trainer, or a file that it wrote.
REFUSED: Final[tuple[tuple[str, str, dict[str, Any] | None], ...]] = (
    ("POST", "attention-rollout?run=two", None),
    ("POST", "capsules?run=two", None),
    ("POST", "capsules/step-000000100/explain?run=two", None),
    ("POST", "hooks?run=two", None),
    ("PATCH", "settings?run=two", {"every": 10}),
    ("POST", "snapshots?run=two", {"tap": 0}),
)

# -- pages -------------------------------------------------------------------------------------------------------------

PAGES_OF_A_RUN: Final = (
    "",
    "/model",
    "/flow",
    "/layer?module=embed",
    "/histograms",
    "/differences?steps=100-200&step=150",
    "/ranks",
    "/tensors",
    "/media",
    "/board",
    "/system",
    "/hooks",
    "/events",
    "/incident?id=nonfinite-120",
    "/timeline?part=line&part=note&step=150",
    "/drawer?module=embed&part=about&part=numbers&part=happened&part=kept",
)
PAGES: Final = (
    "/",
    "/?f=tag:good+or+tag:sweep&sort=-loss&columns=lr&group=optimizer",
    "/compare?a=one&b=two",
    "/help",
)

# -- not requested -----------------------------------------------------------------------------------------------------

EXCEPTIONS: Final = {
    "POST /api/v1/ingest": "a server over ClickHouse takes no batches: collectors do (test_clickhouse_servers.py)",
    "POST /api/v1/ranks": "in memory, nothing is saved to be added up again (test_joint.py)",
    "POST /api/v1/notifications/test": "sends messages to the targets of this process",
    "POST /api/v1/login-link": "is about who may enter this server",
    "GET /login": "is about who may enter this server",
    "POST /api/v1/logout": "is about who may enter this server",
    "GET /api/v1/identity": "is about who may enter this server",
    "GET /settings": "is about this server: its settings and its memory",
    "GET /healthz": "is about this process",
    "GET /readyz": "is about this process",
    "GET /metrics": "is about this process",
    "SOCKET /mcp": "asks the reader that all other routes ask (tests of agents)",
    "GET /static/{of_version}/{name:path}": "is the same file whatever the runs are",
    "GET /docs": "is the documentation of this version, whatever the runs are",
    "GET /docs/{name:path}": "is the documentation of this version, whatever the runs are",
}
