"""Queries to a dashboard from a script. Answers are records of NumPy arrays. Imports no torch and no web framework."""

from __future__ import annotations

import base64
import io
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from hookcore import answers
from hookcore.answers.base import Wanted, decode, library
from hookcore.answers.live import FrameNews, News
from hookcore.client.exchange import Exchange
from hookcore.dashboard import process as dashboard
from hookcore.errors import ServerError
from hookcore.records import Coverage, HookRecord, Kind, Phase, Severity, Snapshot, Tap

TapName = int | str | Tap | answers.Tap  # by its number, its label, or itself
AnyPage = TypeVar(
    "AnyPage",
    answers.Runs,
    answers.Modules,
    answers.Taps,
    answers.CoverageList,
    answers.Hooks,
    answers.SeriesList,
    answers.Snapshots,
)
POLL_S: Final = 0.05
_MAX_SERIES: Final = 100  # limit of one answer
_MAX_POINTS: Final = 500_000
_MAX_HISTOGRAMS: Final = 50


class Client:
    """A dashboard: the one at `url`, or this user's own on this machine. Can be used from several threads.

    Without `run`, a method uses the newest run. A tap is given by its number, by its label such as "layers.0 output",
    or as a tap itself. A refusal of the server raises ServerError with the server's message and `status`.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        if url is None:
            url, token = _own_dashboard(token)
        self._exchange = Exchange(url, token or os.environ.get("HOOKCORE_TOKEN") or None, timeout_s)
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

    def runs(self) -> list[answers.Run]:
        """Return every run, newest first."""
        return [run for page in self._pages(answers.Runs, "/api/v1/runs", {}) for run in page.runs]

    def run(self, run: str) -> answers.Run:
        """Return a run."""
        return self._get(answers.Run, f"/api/v1/runs/{run}")

    def delete_run(self, run: str) -> None:
        """Remove a run; `restore_run` brings it back. A trainer that still sends starts it again."""
        self._exchange.send("DELETE", f"/api/v1/runs/{run}")

    def removed_runs(self) -> list[answers.RemovedRun]:
        """Return the removed runs, each with id, name, removed_s, why, and restorable."""
        return list(self._get(answers.RemovedRuns, "/api/v1/removed-runs").runs)

    def restore_run(self, run: str) -> answers.Run:
        """Restore a removed run."""
        return self._exchange.ask(answers.Run, "POST", f"/api/v1/removed-runs/{run}/restore")

    def rename(self, run: str, name: str | None = None, notes: str | None = None) -> answers.Run:
        """Change the name or the notes of a run."""
        changes = {key: value for key, value in (("name", name), ("notes", notes)) if value is not None}
        return self._exchange.ask(answers.Run, "PATCH", f"/api/v1/runs/{run}", body=changes)

    def modules(self, run: str | None = None, match: str | None = None) -> list[answers.Module]:
        """Return the tree of modules, in the model's order."""
        path = f"/api/v1/runs/{run or self._newest()}/modules"
        pages = self._pages(answers.Modules, path, {"match": match})
        return [module for page in pages for module in page.modules]

    def taps(
        self, match: str | None = None, kind: Kind | None = None, type: str | None = None, run: str | None = None
    ) -> answers.Taps:
        """Return the matching taps; `type` is a glob on the module's class."""
        asked = {"match": match, "kind": kind, "type": type, "run": run}
        pages = list(self._pages(answers.Taps, "/api/v1/taps", asked))
        return replace(pages[-1], taps=tuple(tap for page in pages for tap in page.taps))

    def coverage(
        self, match: str | None = None, captured: bool | None = None, run: str | None = None
    ) -> list[Coverage]:
        """Return every module: captured, or why not."""
        asked = {"match": match, "captured": captured, "run": run}
        pages = self._pages(answers.CoverageList, "/api/v1/coverage", asked)
        return [each for page in pages for each in page.coverage]

    def hooks(self, run: str | None = None) -> list[HookRecord]:
        """Return the hooks on the model and the process at the last inventory."""
        pages = self._pages(answers.Hooks, "/api/v1/hooks", {"run": run})
        return [hook for page in pages for hook in page.hooks]

    def look_for_hooks(self, run: str | None = None) -> answers.Accepted:
        """Ask the trainer to take inventory of the hooks at its next step."""
        return self._exchange.ask(answers.Accepted, "POST", "/api/v1/hooks", {"run": run})

    # -- numbers ----------------------------------------------------------------------------------------------------

    def series(
        self,
        tap: TapName,
        stat: str = "rms",
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        run: str | None = None,
    ) -> answers.Series:
        """Return one stat of one tap in at most `points` points; "p50" and "p99.9" are quantiles."""
        asked = {"tap": _name_of(tap), "stat": stat, "from": first, "to": last, "points": points, "run": run}
        return self._get(answers.SeriesList, "/api/v1/series", asked).series[0]

    def many_series(
        self,
        match: str | None = None,
        kind: Kind | None = None,
        stat: str = "rms",
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        run: str | None = None,
    ) -> list[answers.Series]:
        """Return one stat of every matching tap."""
        asked = {"match": match or "*", "kind": kind, "stat": stat, "from": first, "to": last, "points": points}
        limit = min(_MAX_SERIES, _MAX_POINTS // max(points, 1))
        pages = self._pages(answers.SeriesList, "/api/v1/series", {**asked, "run": run}, limit)
        return [series for page in pages for series in page.series]

    def heatmap(
        self,
        kind: Kind = "output",
        stat: str = "rms",
        match: str | None = None,
        first: int | None = None,
        last: int | None = None,
        columns: int = 500,
        rows: int = 1000,
        run: str | None = None,
    ) -> answers.Heatmap:
        """Return the worst value of each tap of a kind over time, in at most `columns` by `rows` cells."""
        asked = {"kind": kind, "stat": stat, "match": match, "from": first, "to": last, "columns": columns}
        return self._get(answers.Heatmap, "/api/v1/heatmap", {**asked, "rows": rows, "run": run})

    def histograms(
        self,
        tap: TapName,
        first: int | None = None,
        last: int | None = None,
        columns: int = 200,
        bins: int = 80,
        run: str | None = None,
    ) -> answers.Histograms:
        """Return the distribution of a tap over time."""
        asked = {"tap": _name_of(tap), "from": first, "to": last, "columns": columns, "bins": bins, "run": run}
        return self._get(answers.Histograms, "/api/v1/histograms", asked)

    def many_histograms(
        self,
        taps: Sequence[int],
        first: int | None = None,
        last: int | None = None,
        columns: int = 200,
        bins: int = 80,
        run: str | None = None,
    ) -> list[answers.Histograms]:
        """Return the distributions of several taps over time, by their numbers; each has its own edges."""
        found: list[answers.Histograms] = []
        for start in range(0, len(taps), _MAX_HISTOGRAMS):
            some = ",".join(str(tap) for tap in taps[start : start + _MAX_HISTOGRAMS])
            asked = {"taps": some, "from": first, "to": last, "columns": columns, "bins": bins, "run": run}
            found += self._get(answers.HistogramsList, "/api/v1/histograms", asked).histograms
        return found

    def latest(
        self,
        match: str | None = None,
        kind: Kind | None = None,
        stat: str | None = None,
        sort: str | None = None,
        limit: int = 1000,
        run: str | None = None,
    ) -> answers.Latest:
        """Return the newest values. `sort` is a stat, non-finite first, then largest ("-rms": smallest)."""
        asked = {"match": match, "kind": kind, "stat": stat, "sort": sort, "limit": limit, "run": run}
        return self._get(answers.Latest, "/api/v1/latest", asked)

    def scalars(
        self,
        names: str | Sequence[str] = (),
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        match: str | None = None,
        run: str | None = None,
    ) -> answers.Scalars:
        """Return the names of the logged scalars, and the series of the given ones (at most 50)."""
        chosen = [names] if isinstance(names, str) else list(names)
        asked = {"name": chosen, "from": first, "to": last, "points": points, "match": match, "run": run}
        found = self._get(answers.Scalars, "/api/v1/scalars", asked)
        while found.next is not None:
            more = self._get(answers.Scalars, "/api/v1/scalars", {"match": match, "run": run, "after": found.next})
            found = replace(found, names=found.names + more.names, next=more.next)
        return found

    def compare(
        self,
        one: str,
        two: str,
        kind: Kind | None = None,
        stat: str = "rms",
        match: str | None = None,
        first: int | None = None,
        last: int | None = None,
        tolerance: float = 0.0,
        points: int = 200,
        limit: int = 1000,
        sort: Literal["model", "share", "step"] = "model",
        rename: str | None = None,
    ) -> answers.Comparison:
        """Compare two runs layer by layer, and by the values that both logged.

        `tolerance` is a share of the larger magnitude: differences up to it don't count.

        `rename` is "expression -> replacement" for the modules of the second run.
        """
        asked = _asked_of_two((one, two), kind, stat, match, (first, last), rename)
        asked |= {"tolerance": tolerance, "points": points, "limit": limit, "sort": sort}
        return self._get(answers.Comparison, "/api/v1/compare", asked)

    def differences(
        self,
        one: str,
        two: str,
        kind: Kind | None = None,
        stat: str = "rms",
        match: str | None = None,
        first: int | None = None,
        last: int | None = None,
        columns: int = 500,
        rows: int = 600,
        rename: str | None = None,
    ) -> answers.Differences:
        """Return the differences of two runs, layer by step, in at most `columns` by `rows` cells."""
        asked = _asked_of_two((one, two), kind, stat, match, (first, last), rename)
        asked |= {"columns": columns, "rows": rows}
        return self._get(answers.Differences, "/api/v1/compare/heatmap", asked)

    # -- at a glance -----------------------------------------------------------------------------------------------

    def findings(self, limit: int = 50, run: str | None = None) -> answers.Findings:
        """Return the findings, worst first, as a sequence. Its `scope` says how much they are based on."""
        return self._get(answers.Findings, "/api/v1/findings", {"limit": limit, "run": run})

    def overview(self, run: str | None = None) -> answers.Overview:
        """Return the key figures: step and rate, loss, gradients, what is watched, and what that costs."""
        return self._get(answers.Overview, "/api/v1/overview", {"run": run})

    def acknowledge(self, key: str, acknowledged: bool = True, run: str | None = None) -> None:
        """Acknowledge a finding or an event by its `key`, or take that back."""
        body = {"key": key, "acknowledged": acknowledged, **({} if run is None else {"run": run})}
        self._exchange.send("POST", "/api/v1/acknowledgements", body=body)

    def figure(self, chart: str, **asked: Any) -> Any:
        """Return a chart as a Plotly figure: heatmap, series, histograms, profile, fan, scalars, compare, or tensor.

        The parameters have the names of the other methods' (tap, kind, stat, match, first, last, run, ...); see
        docs/http-api.md. Needs plotly, which is installed with the dashboard.
        """
        graphs = library("plotly.graph_objects")
        names = {"first": "from", "last": "to", "names": "name"}
        given = {names.get(name, name): value for name, value in asked.items()}
        return graphs.Figure(_arrays_of(self._get(dict[str, Any], "/api/v1/figure", {"chart": chart, **given})))

    def report(self, run: str | None = None) -> bytes:
        """Return a report of a run: an HTML file that needs no server and no network."""
        return self._exchange.send("GET", "/api/v1/report", {"run": run})

    # -- tensors ----------------------------------------------------------------------------------------------------

    def snapshots(
        self, match: str | None = None, kind: Kind | None = None, run: str | None = None
    ) -> list[answers.Snapshot]:
        """Return the captured tensors, oldest first, without their values."""
        pages = self._pages(answers.Snapshots, "/api/v1/snapshots", {"match": match, "kind": kind, "run": run})
        return [snapshot for page in pages for snapshot in page.snapshots]

    def request_snapshot(
        self,
        tap: TapName | None = None,
        *,
        module: str | None = None,
        kind: Kind = "output",
        index: str = "",
        call: int = 0,
        phase: Phase = "train",
        run: str | None = None,
    ) -> answers.Accepted:
        """Ask the trainer to capture a tensor of a tap or of a module."""
        if tap is not None:
            body: dict[str, Any] = {"tap": _name_of(tap)}
        else:
            body = {"module": module, "kind": kind, "index": index, "call": call, "phase": phase}
        return self._exchange.ask(answers.Accepted, "POST", "/api/v1/snapshots", {"run": run}, body)

    def tensor(self, number: int, slice: str = "", run: str | None = None) -> NDArray[Any]:
        """Return the values of a snapshot, or a part of them: `slice` is as in NumPy, such as "0,:,3:7"."""
        asked = {"slice": slice, "run": run, "format": "npy"}
        data = self._exchange.send("GET", f"/api/v1/snapshots/{number}", asked)
        values: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return values

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
        data = self._exchange.send("GET", f"/api/v1/snapshots/{number}/tiles", {**asked, "run": run, "format": "npy"})
        values: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return values

    def statistics(self, number: int, slice: str = "", run: str | None = None) -> dict[str, float]:
        """Return counts, moments, and quantiles of a snapshot or a part of it, in float64 over the exact values."""
        asked = {"slice": slice, "run": run}
        return {**self._get(answers.Statistics, f"/api/v1/snapshots/{number}/statistics", asked).statistics}

    def request_attention_maps(self, match: str | None = None, run: str | None = None) -> tuple[int, ...]:
        """Request every output that may be attention, and its gradient, of one step. Return their future numbers."""
        asked = {"match": match, "run": run}
        said = self._exchange.ask(answers.RequestedMaps, "POST", "/api/v1/attention-rollout", asked)
        return tuple(each.number for each in said.asked)

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
        """Return attention over all layers, from the captured maps of one step (default: the newest with maps)."""
        asked = {"match": match, "step": step, "sample": sample, "fuse": fuse, "discard": discard}
        asked |= {"gradient": gradient, "run": run}
        return self._get(answers.Rollout, "/api/v1/attention-rollout", asked)

    def snapshot(self, tap: TapName | None = None, timeout_s: float = 30.0, **wanted: Any) -> Snapshot:
        """Request a tensor (like `request_snapshot`) and wait for it. Its values are at `.values`."""
        asked = self.request_snapshot(tap, **wanted)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                values = self.tensor(asked.number, run=asked.run)
                break
            except ServerError as error:
                if error.status != 404:
                    raise
            if time.monotonic() > deadline:
                raise ServerError(
                    f"snapshot {asked.number} of the run {asked.run} did not come within {timeout_s:g} s: does the "
                    "training go on, and does it pass this module? It may still come: see snapshots()"
                )
            time.sleep(POLL_S)
        entry = next(each for each in self.snapshots(run=asked.run) if each.number == asked.number)
        about = entry.tap.record, entry.step, entry.time_s, entry.dtype, entry.shape
        return Snapshot(*about, values, entry.truncated, entry.number)

    # -- the trainer ------------------------------------------------------------------------------------------------

    def events(
        self,
        first: int | None = None,
        last: int | None = None,
        name: str | None = None,
        severity: Severity | None = None,
        after: int | None = None,
        limit: int = 200,
        run: str | None = None,
    ) -> answers.Events:
        """Return the newest matching events; with `after`, the oldest ones after an answer's `next`."""
        asked = {"from": first, "to": last, "name": name, "severity": severity, "after": after, "limit": limit}
        return self._get(answers.Events, "/api/v1/events", {**asked, "run": run})

    def settings(self, run: str | None = None) -> answers.Settings:
        """Return the current settings of the trainer, and the commands that wait for it."""
        return self._get(answers.Settings, "/api/v1/settings", {"run": run})

    def change_settings(self, run: str | None = None, **changes: Any) -> answers.Accepted:
        """Change every, budget, include, exclude, kinds, or paused in the trainer, at its next step."""
        given = {
            name: sorted(value) if isinstance(value, set | frozenset) else value for name, value in changes.items()
        }
        return self._exchange.ask(answers.Accepted, "PATCH", "/api/v1/settings", {"run": run}, given)

    def pause(self, run: str | None = None) -> answers.Accepted:
        """Stop capturing until `resume`."""
        return self.change_settings(run, paused=True)

    def resume(self, run: str | None = None) -> answers.Accepted:
        """Resume capturing."""
        return self.change_settings(run, paused=False)

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

        A broken connection is reopened and continues where it was. `after` is the `id` of the last news you have.
        """
        stat = stats if stats is None or isinstance(stats, str) else ",".join(stats)
        asked = {"run": run, "kind": kind, "stat": stat, "match": match, "hz": hz}
        for name, event_id, data in self._exchange.follow("/api/v1/live", asked, after):
            if name == "frame":
                yield replace(decode(data, FrameNews), id=event_id)
                continue
            news = News(name, event_id, msgspec.json.decode(data))
            yield news
            if run is not None and name == "state" and news.data.get("state") == "removed":
                return

    # -- below ------------------------------------------------------------------------------------------------------

    def _get(self, kind: type[Wanted], path: str, asked: dict[str, Any] | None = None) -> Wanted:
        return self._exchange.ask(kind, "GET", path, asked)

    def _pages(
        self, kind: type[AnyPage], path: str, asked: dict[str, Any], limit: int | None = None
    ) -> Iterator[AnyPage]:
        after: int | str | None = None
        while True:
            page = self._get(kind, path, {**asked, "after": after, "limit": limit})
            yield page
            after = page.next
            if after is None:
                return

    def _newest(self) -> str:
        found = self._get(answers.Runs, "/api/v1/runs", {"limit": 1}).runs
        if not found:
            raise ServerError(f"the server at {self.url} shows no run yet", 404)
        return found[0].id


def _own_dashboard(token: str | None) -> tuple[str, str | None]:
    """Return the address in HOOKCORE_URL, or this user's running dashboard."""
    url = os.environ.get("HOOKCORE_URL", "")
    if url:
        return url, token
    found = dashboard.find()
    if found is None:
        raise ServerError(
            "no dashboard runs for this user on this machine: start a training that calls hookcore.watch(model), or "
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


def _asked_of_two(
    runs: tuple[str, str],
    kind: Kind | None,
    stat: str,
    match: str | None,
    steps: tuple[int | None, int | None],
    rename: str | None,
) -> dict[str, Any]:
    """Return the parameters of both comparisons."""
    first, last = steps
    asked = {"runs": ",".join(runs), "kind": kind, "stat": stat, "match": match, "rename": rename}
    return {**asked, "from": first, "to": last}


def _name_of(tap: TapName) -> int | str:
    return tap.label if isinstance(tap, Tap | answers.Tap) else tap
