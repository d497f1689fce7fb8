"""Queries to a dashboard from a script. Answers are records of NumPy arrays. Imports no torch and no web framework."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from hookcore.config import token_of
from hookcore.delivery.dashboard import process as dashboard
from hookcore.errors import ServerError
from hookcore.reading import answers
from hookcore.reading.answers.base import decode, library
from hookcore.reading.answers.live import FrameNews, News
from hookcore.reading.exchange import Exchange
from hookcore.reading.several import RemoteRuns
from hookcore.records import Kind


class Client(RemoteRuns):
    """A dashboard: the one at `url`, or this user's own on this machine. Can be used from several threads.

    Calls are about `run`, or the newest run if you name none. A tap is named by its number, by its label such as
    "layers.0 output", or by itself. If the server refuses a request, ServerError has its message and `status`.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout_s: float = 30.0, run: str | None = None
    ) -> None:
        if url is None:
            url, token = _own_dashboard(token)
        super().__init__(Exchange(url, token or token_of() or None, timeout_s), run)
        self.url = self._exchange.url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The next call opens a new one."""
        self._exchange.close()

    # -- runs -------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the state of the server."""
        return self._get(dict[str, Any], "/healthz")

    def runs(self, query: str = "") -> list[answers.Run]:
        """Return all runs, or those that match a query such as `lr>0.1 and tag:sweep`, newest first."""
        asked = {"query": query} if query else {}
        return [run for page in self._pages(answers.Runs, "/api/v1/runs", asked) for run in page.runs]

    def run(self, run: str) -> answers.Run:
        """Return a run by its id, without its values."""
        return self._get(answers.Run, f"/api/v1/runs/{run}")

    def delete_run(self, run: str) -> None:
        """Remove a run; `restore_run` restores it. If its trainer still sends data, the run starts again."""
        self._exchange.send("DELETE", f"/api/v1/runs/{run}")

    def views(self) -> dict[str, str]:
        """Return the saved views of the Runs page: query strings by name."""
        return {view.name: view.query for view in self._get(answers.Views, "/api/v1/views").views}

    def save_view(self, name: str, query: str) -> None:
        """Save a view of the Runs page, such as `f=tag:sweep&sort=loss`. A view of the same name is replaced."""
        self._exchange.send("PUT", "/api/v1/views", body={"name": name, "query": query})

    def delete_view(self, name: str) -> None:
        """Delete a saved view."""
        self._exchange.send("DELETE", "/api/v1/views", {"name": name})

    def board(self) -> tuple[answers.PinnedChart, ...]:
        """Return the charts that readers pinned."""
        return self._get(answers.Board, "/api/v1/board").charts

    def pin(self, name: str, path: Literal["series", "scalars"], query: str) -> None:
        """Pin a chart, such as `"series", "tap=head+output&stat=norm"`. A chart of the same name is replaced."""
        self._exchange.send("PUT", "/api/v1/board", body={"name": name, "path": path, "query": query})

    def unpin(self, name: str) -> None:
        """Remove a chart from the board."""
        self._exchange.send("DELETE", "/api/v1/board", {"name": name})

    def removed_runs(self) -> list[answers.RemovedRun]:
        """Return the removed runs, each with id, name, removed_s, why, and restorable."""
        return list(self._get(answers.RemovedRuns, "/api/v1/removed-runs").runs)

    def restore_run(self, run: str) -> answers.Run:
        """Restore a removed run."""
        return self._ask(answers.Run, "POST", f"/api/v1/removed-runs/{run}/restore")

    def notifications(self) -> answers.Notifications:
        """Return the server's notification targets, with their counters."""
        return self._get(answers.Notifications, "/api/v1/notifications")

    def test_notifications(self) -> answers.Notifications:
        """Send a test message to every notification target; `works` says whether it arrived."""
        return self._ask(answers.Notifications, "POST", "/api/v1/notifications/test")

    def capsules(self, run: str | None = None) -> list[answers.Capsule]:
        """Return the steps that the run saved on the server's machine, oldest first, with what a replay found."""
        return list(self._ask(answers.Capsules, "GET", "/api/v1/capsules", {"run": run}).capsules)

    def explain(self, capsule: str, run: str | None = None) -> answers.Capsule:
        """Let the server replay a saved step in a separate process. `capsules()` has the result once it is known."""
        return self._ask(answers.Capsule, "POST", f"/api/v1/capsules/{capsule}/explain", {"run": run})

    # -- at a glance -----------------------------------------------------------------------------------------------

    def findings(self, limit: int = 50, run: str | None = None) -> answers.Findings:
        """Return the findings, worst first, as a sequence. Its `scope` says what they are based on."""
        return self._get(answers.Findings, "/api/v1/findings", {"limit": limit, "run": run})

    def overview(self, run: str | None = None, first: int | None = None, last: int | None = None) -> answers.Overview:
        """Return the key figures: step, rate, loss, gradients, number of watched modules, and cost.

        With steps, the loss, the gradients, and the captured modules are the newest ones in these steps.
        """
        return self._get(answers.Overview, "/api/v1/overview", {"run": run, "from": first, "to": last})

    def timeline(
        self, first: int | None = None, last: int | None = None, columns: int = 600, run: str | None = None
    ) -> answers.Timeline:
        """Return a run at a glance: its loss, its incidents and events, and its captured steps."""
        asked = {"from": first, "to": last, "columns": columns, "run": run}
        return self._get(answers.Timeline, "/api/v1/timeline", asked)

    def figure(self, chart: str, **asked: Any) -> Any:
        """Return a chart as a Plotly figure: heatmap, series, histograms, profile, fan, scalars, compare, or tensor.

        The parameters have the names of the other methods' (tap, kind, stat, match, first, last, run, ...); see
        docs/http-api.md. Needs plotly, which is installed with the dashboard.
        """
        graphs = library("plotly.graph_objects")
        names = {"first": "from", "last": "to", "names": "name"}
        given = {"chart": chart, "run": None} | {names.get(name, name): value for name, value in asked.items()}
        return graphs.Figure(_arrays_of(self._get(dict[str, Any], "/api/v1/figure", given)))

    def report(
        self, run: str | None = None, first: int | None = None, last: int | None = None, at: int | None = None
    ) -> bytes:
        """Return a report of a run, or of some of its steps: an HTML file that needs no server and no network.

        Charts show the steps from `first` to `last`; numbers are those of the step `at`, by default the newest one.
        """
        asked = {"run": run or self._run, "from": first, "to": last, "at": at}
        return self._exchange.send("GET", "/api/v1/report", asked)

    # -- tensors ----------------------------------------------------------------------------------------------------

    def tiles(
        self,
        number: int,
        slice: str = "",
        rows: int = 256,
        columns: int = 256,
        pool: Literal["worst", "mean", "min", "max"] = "worst",
        after: int = 0,
        limit: int = 64,
        run: str | None = None,
    ) -> NDArray[Any]:
        """Return a snapshot as [tile, row, column]: the last two dimensions are a tile, and large tiles are pooled."""
        asked = {"slice": slice, "rows": rows, "columns": columns, "pool": pool, "after": after, "limit": limit}
        data = self._exchange.send(
            "GET", f"/api/v1/snapshots/{number}/tiles", {**asked, "run": run or self._run, "format": "npy"}
        )
        values: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return values

    def statistics(self, number: int, slice: str = "", run: str | None = None) -> dict[str, float]:
        """Return counts, moments, and quantiles of a snapshot or a part of it, in float64 over the exact values."""
        asked = {"slice": slice, "run": run}
        return {**self._get(answers.Statistics, f"/api/v1/snapshots/{number}/statistics", asked).statistics}

    def attention_rollout(
        self,
        match: str | None = None,
        step: int | None = None,
        sample: int = 0,
        fuse: Literal["mean", "max", "min"] = "mean",
        discard: float = 0.0,
        gradient: bool = False,
        run: str | None = None,
    ) -> answers.Rollout:
        """Return the attention over all layers, from the maps of one step (default: the newest with maps)."""
        asked = {"match": match, "step": step, "sample": sample, "fuse": fuse, "discard": discard}
        asked |= {"gradient": gradient, "run": run}
        return self._get(answers.Rollout, "/api/v1/attention-rollout", asked)

    # -- live -------------------------------------------------------------------------------------------------------

    def tail(
        self,
        run: str | None = None,
        kind: Kind | None = None,
        stats: Sequence[str] | Literal["all"] | None = None,
        match: str | None = None,
        hz: float | None = None,
        after: str | None = None,
    ) -> Iterator[News | FrameNews]:
        """Yield news as it arrives, until you leave the loop or the named run is removed.

        A broken connection is reopened and continues where it left off. `after` is the `id` of the last news you have.
        """
        stat = stats if stats is None or isinstance(stats, str) else ",".join(stats)
        run = run or self._run
        asked = {"run": run, "kind": kind, "stat": stat, "match": match, "hz": hz}
        for name, event_id, data in self._exchange.follow("/api/v1/live", asked, after):
            if name == "frame":
                yield replace(decode(data, FrameNews), id=event_id)
                continue
            news = News(name, event_id, msgspec.json.decode(data))
            yield news
            if run is not None and name == "state" and news.data.get("state") == "removed":
                return


def _own_dashboard(token: str | None) -> tuple[str, str | None]:
    """Return the address in HOOKCORE_URL, or this user's running dashboard."""
    url = os.environ.get("HOOKCORE_URL", "")
    if url:
        return url, token
    found = dashboard.find()
    if found is None:
        raise ServerError(
            "no dashboard is running for you on this machine: start a training that calls hookcore.watch(model), or "
            "give Client(url) the address of one"
        )
    return found.url, token or found.token


def _arrays_of(said: Any) -> Any:
    """Return a figure with its typed arrays decoded, which Plotly would leave as text."""
    if isinstance(said, list):
        return [_arrays_of(each) for each in said]
    if not isinstance(said, dict):
        return said
    if "bdata" not in said:
        return {name: _arrays_of(each) for name, each in said.items()}
    values = np.frombuffer(base64.b64decode(said["bdata"]), said["dtype"])
    return values.reshape([int(size) for size in str(said["shape"]).split(",")]) if "shape" in said else values
