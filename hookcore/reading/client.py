"""Queries to a dashboard from a script. Answers are records of NumPy arrays. Imports no torch and no web framework."""

from __future__ import annotations

import base64
import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from hookcore.config import token_of
from hookcore.delivery.dashboard import process as dashboard
from hookcore.errors import ServerError
from hookcore.reading import answers
from hookcore.reading.answers.base import TapName, Wanted, decode, library
from hookcore.reading.answers.live import News
from hookcore.reading.answers.series import MAX_HISTOGRAMS, MAX_NUMBERS, MAX_SERIES
from hookcore.reading.exchange import Carry, Exchange
from hookcore.reading.reader import Reader
from hookcore.records import Coverage, HookRecord, Kind, Names, Phase, Severity, Snapshot, Tap
from hookcore.store import StepRange

POLL_S: Final = 0.05


AnyPage = TypeVar(
    "AnyPage",
    answers.Runs,
    answers.Modules,
    answers.Taps,
    answers.CoverageList,
    answers.Hooks,
    answers.SeriesList,
    answers.Snapshots,
    answers.MediaList,
)


class Client(Reader):
    """A dashboard: the one at `url`, or this user's own on this machine. Can be used from several threads.

    Calls are about `run`, or the newest run if you name none. A tap is named by its number, by its label such as
    "layers.0 output", or by itself. If the server refuses a request, ServerError has its message and `status`.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout_s: float = 30.0, run: str | None = None
    ) -> None:
        if url is None:
            url, token = _own_dashboard(token)
        self._exchange, self._run = Exchange(url, token or token_of() or None, timeout_s), run
        self.url = self._exchange.url

    @classmethod
    def inside(cls, carry: Carry, url: str = "") -> Client:
        """Return a client of a server in this process. `url` is the address of its pages, if anyone can open them."""
        client = cls("http://127.0.0.1", "-")
        client._exchange, client.url = Exchange("http://127.0.0.1", None, 0.0, carry), url
        return client

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The next call opens a new one."""
        self._exchange.close()

    def _ask(
        self, kind: type[Wanted], method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Wanted:
        """Ask the server. A query without a run is about this reader's run."""
        query = dict(query or {})
        if "run" in query:
            query["run"] = query["run"] or self._run
        return self._exchange.ask(kind, method, path, query, body)

    def _get(self, kind: type[Wanted], path: str, query: Mapping[str, Any] | None = None) -> Wanted:
        return self._ask(kind, "GET", path, query)

    def _pages(
        self, kind: type[AnyPage], path: str, query: dict[str, Any], limit: int | None = None
    ) -> Iterator[AnyPage]:
        after: int | str | None = None
        while True:
            page = self._get(kind, path, {**query, "after": after, "limit": limit})
            yield page
            after = page.next
            if after is None:
                return
            if "run" in query and not isinstance(page, answers.Runs):
                query = {**query, "run": page.run}  # the newest run may have changed since the first page

    def _named(self, run: str | None) -> str:
        """Return the id of the named run, of this reader's run, or of the newest run."""
        if run or self._run:
            return str(run or self._run)
        newest = self._get(answers.Runs, "/api/v1/runs", {"limit": 1}).runs
        if not newest:
            raise ServerError(f"the server at {self._exchange.url} shows no run yet", 404)
        return newest[0].id

    # -- runs -------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the state of the server."""
        return self._get(dict[str, Any], "/healthz")

    def runs(self, query: str = "", limit: int | None = None) -> list[answers.Run]:
        """Return all runs or the newest `limit`, or those that match a query such as `lr>0.1 and tag:sweep`."""
        which = {"query": query} if query else {}
        if limit is not None:
            return list(self._get(answers.Runs, "/api/v1/runs", {**which, "limit": limit}).runs)
        return [run for page in self._pages(answers.Runs, "/api/v1/runs", which) for run in page.runs]

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
        query = {"from": first, "to": last, "columns": columns, "run": run}
        return self._get(answers.Timeline, "/api/v1/timeline", query)

    def figure(self, chart: str, **parameters: Any) -> Any:
        """Return a chart as a Plotly figure: heatmap, series, histograms, profile, fan, scalars, compare, or tensor.

        The parameters have the names of the other methods' (tap, kind, stat, match, first, last, run, ...); see
        docs/http-api.md. Needs plotly, which is installed with the dashboard.
        """
        graphs = library("plotly.graph_objects")
        names = {"first": "from", "last": "to", "names": "name"}
        query = {"chart": chart, "run": None} | {names.get(name, name): value for name, value in parameters.items()}
        return graphs.Figure(_arrays_of(self._get(dict[str, Any], "/api/v1/figure", query)))

    def report(
        self, run: str | None = None, first: int | None = None, last: int | None = None, at: int | None = None
    ) -> bytes:
        """Return a report of a run, or of some of its steps: an HTML file that needs no server and no network.

        Charts show the steps from `first` to `last`; numbers are those of the step `at`, by default the newest one.
        """
        query = {"run": run or self._run, "from": first, "to": last, "at": at}
        return self._exchange.send("GET", "/api/v1/report", query)

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
        query = {"slice": slice, "rows": rows, "columns": columns, "pool": pool, "after": after, "limit": limit}
        data = self._exchange.send(
            "GET", f"/api/v1/snapshots/{number}/tiles", {**query, "run": run or self._run, "format": "npy"}
        )
        values: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return values

    def statistics(self, number: int, slice: str = "", run: str | None = None) -> dict[str, float]:
        """Return counts, moments, and quantiles of a snapshot or a part of it, in float64 over the exact values."""
        query = {"slice": slice, "run": run}
        return {**self._get(answers.Statistics, f"/api/v1/snapshots/{number}/statistics", query).statistics}

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
        query = {"match": match, "step": step, "sample": sample, "fuse": fuse, "discard": discard}
        query |= {"gradient": gradient, "run": run}
        return self._get(answers.Rollout, "/api/v1/attention-rollout", query)

    # -- live -------------------------------------------------------------------------------------------------------

    def tail(
        self,
        run: str | None = None,
        kind: Kind | None = None,
        stats: Sequence[str] | Literal["all"] | None = None,
        match: str | None = None,
        hz: float | None = None,
        after: str | None = None,
    ) -> Iterator[News]:
        """Yield news as it arrives, until you leave the loop or the named run is removed.

        A broken connection is reopened and continues where it left off. `after` is the `id` of the last news you have.
        """
        stat = stats if stats is None or isinstance(stats, str) else ",".join(stats)
        run = run or self._run
        query = {"run": run, "kind": kind, "stat": stat, "match": match, "hz": hz}
        for event_id, data in self._exchange.follow("/api/v1/live", query, after):
            news = replace(decode(data, News), id=event_id)
            yield news
            if run is not None and news.state is not None and news.state.state == "removed":
                return

    # A reader that can also change the run, and send commands to its trainer

    def rename(self, run: str, name: str | None = None, notes: str | None = None) -> answers.Run:
        """Change the name or the notes of a run."""
        changes = {key: value for key, value in (("name", name), ("notes", notes)) if value is not None}
        return self._ask(answers.Run, "PATCH", f"/api/v1/runs/{run}", body=changes)

    def look_for_hooks(self, run: str | None = None) -> answers.Accepted:
        """Ask the trainer to search for hooks at its next step."""
        return self._ask(answers.Accepted, "POST", "/api/v1/hooks", {"run": run})

    def save_step(self, run: str | None = None) -> answers.Accepted:
        """Ask the trainer to save its next step to a capsule."""
        return self._ask(answers.Accepted, "POST", "/api/v1/capsules", {"run": run})

    def acknowledge(self, key: str, acknowledged: bool = True, run: str | None = None) -> None:
        """Acknowledge a finding or an event by its `key`, or undo that."""
        body = self._about(run, key=key, acknowledged=acknowledged)
        self._exchange.send("POST", "/api/v1/acknowledgements", body=body)

    def annotations(self, run: str | None = None) -> list[answers.Annotation]:
        """Return the annotations of a run, by step."""
        return list(self._get(answers.Annotations, "/api/v1/annotations", {"run": run}).annotations)

    def annotate(self, step: int, text: str, run: str | None = None) -> list[answers.Annotation]:
        """Annotate a step; an earlier annotation of the step is replaced. Returns the annotations of the run."""
        body = self._about(run, step=step, text=text)
        return list(self._ask(answers.Annotations, "POST", "/api/v1/annotations", body=body).annotations)

    def remove_annotation(self, step: int, run: str | None = None) -> list[answers.Annotation]:
        """Remove the annotation of a step. Returns the remaining annotations."""
        query = {"step": step, "run": run}
        return list(self._ask(answers.Annotations, "DELETE", "/api/v1/annotations", query).annotations)

    def rules(self, run: str | None = None) -> answers.RunRules:
        """Return the rules of a run, each with its thresholds."""
        return self._get(answers.RunRules, "/api/v1/rules", {"run": run})

    def change_rules(
        self, rules: Mapping[str, Mapping[str, float] | bool | None], run: str | None = None, *, later: bool = False
    ) -> answers.RunRules:
        """Change thresholds, as in `{"spike": {"factor": 20}}`; False switches a rule off, True restores its defaults.

        A change applies to future steps, or, with `later`, to runs that begin from now on. Returns the run's rules.
        """
        return self._ask(
            answers.RunRules, "POST", "/api/v1/rules", body=self._about(run, rules=dict(rules), later=later)
        )

    def mutes(self, run: str | None = None) -> list[answers.Mute]:
        """Return the mutes of a run, each with the number of findings, incidents, and events that it covers."""
        return list(self._get(answers.Mutes, "/api/v1/mutes", {"run": run}).mutes)

    def mute(self, rule: str, match: str = "", run: str | None = None) -> list[answers.Mute]:
        """Mute a rule, or events with a name, in the modules that match a pattern. Returns the mutes of the run.

        Muted findings are still found and listed, but raise no alert.
        """
        body = self._about(run, rule=rule, match=match)
        return list(self._ask(answers.Mutes, "POST", "/api/v1/mutes", body=body).mutes)

    def unmute(self, rule: str, match: str = "", run: str | None = None) -> list[answers.Mute]:
        """Remove a mute, given as it was made. Returns the remaining mutes."""
        query = {"rule": rule, "match": match, "run": run}
        return list(self._ask(answers.Mutes, "DELETE", "/api/v1/mutes", query).mutes)

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
            body: dict[str, Any] = {"tap": name_of(tap)}
        else:
            body = {"module": module, "kind": kind, "index": index, "call": call, "phase": phase}
        return self._ask(answers.Accepted, "POST", "/api/v1/snapshots", {"run": run}, body)

    def request_attention_maps(self, match: str | None = None, run: str | None = None) -> tuple[int, ...]:
        """Request every output that may be attention, with its gradient, in one step. Returns their future numbers."""
        query = {"match": match, "run": run}
        requested = self._ask(answers.RequestedMaps, "POST", "/api/v1/attention-rollout", query)
        return tuple(snapshot.number for snapshot in requested.asked)

    def snapshot(self, tap: TapName | None = None, timeout_s: float = 30.0, **wanted: Any) -> Snapshot:
        """Request a tensor (like `request_snapshot`) and wait for it. Its values are at `.values`."""
        requested = self.request_snapshot(tap, **wanted)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                values = self.tensor(requested.number, run=requested.run)
                break
            except ServerError as error:
                if error.status != 404:
                    raise
            fate = self.outcome(requested.number, run=requested.run)
            if fate.outcome in ("refused", "dropped"):
                raise ServerError(
                    f"snapshot {requested.number} of the run {requested.run} was {fate.outcome}: {fate.reason}"
                )
            if time.monotonic() > deadline:
                raise ServerError(
                    f"snapshot {requested.number} of the run {requested.run} did not arrive within {timeout_s:g} s: "
                    "is the training running, and does it call this module? It may still arrive: see snapshots()"
                )
            time.sleep(POLL_S)
        entry = next(listed for listed in self.snapshots(run=requested.run) if listed.number == requested.number)
        about = entry.tap.record, entry.step, entry.time_s, entry.dtype, entry.shape
        names = None
        if entry.named:
            texts = self.snapshot_names(entry.number, run=requested.run)
            names = Names(texts.tokens, texts.shared, texts.labels, texts.origin)
        return Snapshot(*about, values, entry.truncated, entry.number, names)

    def settings(self, run: str | None = None) -> answers.Settings:
        """Return the current settings of the trainer, and the commands that are waiting for it."""
        return self._get(answers.Settings, "/api/v1/settings", {"run": run})

    def change_settings(self, run: str | None = None, **changes: Any) -> answers.Accepted:
        """Change live settings of the trainer (docs/settings.md), or `paused`, at its next step.

        `outcome` says what became of it.
        """
        sent = {name: sorted(value) if isinstance(value, set | frozenset) else value for name, value in changes.items()}
        return self._ask(answers.Accepted, "PATCH", "/api/v1/settings", {"run": run}, sent)

    def outcome(self, number: int, timeout_s: float = 0.0, run: str | None = None) -> answers.Outcome:
        """Return what became of a command, by its `number`. Waits up to `timeout_s` until that is final."""
        deadline = time.monotonic() + timeout_s
        while True:
            query = {"numbers": number, "run": run}
            (outcome,) = self._get(answers.Outcomes, "/api/v1/commands", query).outcomes
            if outcome.is_final or time.monotonic() > deadline:
                return outcome
            time.sleep(POLL_S)

    def pause(self, run: str | None = None) -> answers.Accepted:
        """Stop capturing until `resume`."""
        return self.change_settings(run, paused=True)

    def resume(self, run: str | None = None) -> answers.Accepted:
        """Resume capturing."""
        return self.change_settings(run, paused=False)

    def _about(self, run: str | None, **body: Any) -> dict[str, Any]:
        """Return a request body about the given run, else the reader's run, else the newest one."""
        run = run or self._run
        return body if run is None else {**body, "run": run}

    # A reader that can also compare runs and ranks

    def overlay(
        self,
        runs: Sequence[str],
        scalar: str | None = None,
        *,
        tap: TapName | None = None,
        stat: str = "rms",
        group_by: str | None = None,
        band: bool = False,
        first: int | None = None,
        last: int | None = None,
        points: int = 500,
    ) -> answers.Overlay:
        """Return the same values of many runs: a scalar such as "loss" or "gradient norm", or a stat of a tap.

        With `group_by`, a value of the runs such as "lr", each line has its group. With `band`, there is a line for
        each group: the mean of its runs, with their smallest and largest value.
        """
        label = None if tap is None else name_of(tap)
        query = {"runs": ",".join(runs), "scalar": scalar, "tap": label, "stat": stat, "group_by": group_by}
        return self._get(
            answers.Overlay, "/api/v1/overlay", {**query, "from": first, "to": last, "band": band, "points": points}
        )

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
        query = {"runs": f"{one},{two}", "kind": kind, "stat": stat, "match": match, "from": first, "to": last}
        judged = {"rename": rename, "tolerance": tolerance, "points": points, "limit": limit, "sort": sort}
        return self._get(answers.Comparison, "/api/v1/compare", {**query, **judged})

    def resume_check(self, run: str | None = None, earlier: str | None = None) -> answers.ResumeCheck:
        """Compare the first steps of a run with the state that an earlier run saved.

        Without `earlier`, it is the run before it whose saved state is most like its beginning.
        """
        return self._get(answers.ResumeCheck, "/api/v1/resume", {"run": run or self._run, "earlier": earlier})

    def cka(
        self, run: str | None = None, other: str | None = None, step: int | None = None, other_step: int | None = None
    ) -> answers.Cka:
        """Return how alike the representations of a fixed batch are in the layers of one run, or of two.

        They are those that `watcher.cka` measured in a step or before it, by default the newest ones.
        """
        asked = {"run": run or self._run, "other": other, "step": step, "other_step": other_step}
        return self._get(answers.Cka, "/api/v1/cka", asked)

    def compare_heatmap(
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
    ) -> answers.ComparisonHeatmap:
        """Return the differences of two runs, layer by step, in at most `columns` by `rows` cells."""
        query = {"runs": f"{one},{two}", "kind": kind, "stat": stat, "match": match, "from": first, "to": last}
        sizes = {"rename": rename, "columns": columns, "rows": rows}
        return self._get(answers.ComparisonHeatmap, "/api/v1/compare/heatmap", {**query, **sizes})

    def differences(
        self,
        first: int | None = None,
        last: int | None = None,
        other: str | None = None,
        other_first: int | None = None,
        other_last: int | None = None,
        kind: Kind | None = None,
        match: str | None = None,
        limit: int = 20,
        bins: int = 60,
        run: str | None = None,
    ) -> answers.Differences:
        """Return what differs most between some steps and all others, or other steps, or another run."""
        query = {"run": run, "from": first, "to": last, "kind": kind, "match": match, "limit": limit, "bins": bins}
        query |= {"other": other, "other_from": other_first, "other_to": other_last}
        return self._get(answers.Differences, "/api/v1/differences", query)

    def ranks(self, run: str | None = None) -> answers.Ranks:
        """Return each rank of a run, with its state, progress, speed, and the number of frames too late for the sum."""
        return self._get(answers.Ranks, "/api/v1/ranks", {"run": run})

    def sum_again(self, run: str | None = None) -> answers.Ranks:
        """Add up the saved runs of all ranks again, with the frames that came too late for the sum."""
        return self._ask(answers.Ranks, "POST", "/api/v1/ranks", {"run": run})

    def rank_map(
        self,
        tap: TapName | None = None,
        stat: str = "rms",
        name: str | None = None,
        first: int | None = None,
        last: int | None = None,
        columns: int = 200,
        run: str | None = None,
    ) -> answers.RankMap:
        """Return a tap's stat, a logged value, or the seconds per step: the mean by rank and column of steps."""
        label = None if tap is None else name_of(tap)
        query = {"run": run, "tap": label, "stat": stat, "name": name, "from": first, "to": last, "columns": columns}
        return self._get(answers.RankMap, "/api/v1/ranks/map", query)

    def rank_spread(
        self,
        kind: str,
        stat: str = "rms",
        match: str | None = None,
        step: int | None = None,
        sort: str = "model",
        limit: int = 1000,
        run: str | None = None,
    ) -> answers.LayerSpreads:
        """Return how far apart the ranks are in one step, layer by layer. `sort="apart"`: the largest spread first."""
        query = {"run": run, "kind": kind, "stat": stat, "match": match, "step": step, "sort": sort, "limit": limit}
        return self._get(answers.LayerSpreads, "/api/v1/ranks/spread", query)

    # -- numbers of a run ------------------------------------------------------------------------------------------

    def steps(self, run: str | None = None) -> StepRange:
        about = self._get(answers.Run, f"/api/v1/runs/{self._named(run)}")
        return StepRange(about.first_step, about.newest_step, about.steps)

    def nearest(self, step: int, run: str | None = None) -> answers.Nearest:
        return self._get(answers.Nearest, "/api/v1/nearest", {"step": step, "run": run})

    def samples(self, step: int, run: str | None = None) -> answers.Samples:
        """Return which samples a step had, or why that isn't known."""
        return self._get(answers.Samples, "/api/v1/samples", {"step": step, "run": run})

    def modules(self, match: str | None = None, taps: bool = True, run: str | None = None) -> list[answers.Module]:
        path = f"/api/v1/runs/{self._named(run)}/modules"
        pages = self._pages(answers.Modules, path, {"match": match, "taps": taps})
        return [module for page in pages for module in page.modules]

    def taps(self, match: str | None = None, kind: Kind | None = None, run: str | None = None) -> answers.Taps:
        query = {"match": match, "kind": kind, "run": run}
        pages = list(self._pages(answers.Taps, "/api/v1/taps", query))
        return replace(pages[-1], taps=tuple(tap for page in pages for tap in page.taps))

    def coverage(
        self, match: str | None = None, captured: bool | None = None, run: str | None = None
    ) -> list[Coverage]:
        query = {"match": match, "captured": captured, "run": run}
        pages = self._pages(answers.CoverageList, "/api/v1/coverage", query)
        return [covered for page in pages for covered in page.coverage]

    def hooks(self, run: str | None = None) -> list[HookRecord]:
        pages = self._pages(answers.Hooks, "/api/v1/hooks", {"run": run})
        return [hook for page in pages for hook in page.hooks]

    def flow(self, step: int | None = None, run: str | None = None) -> answers.Flow:
        return self._get(answers.Flow, "/api/v1/flow", {"step": step, "run": run})

    def model(self, step: int | None = None, run: str | None = None) -> answers.Model:
        return self._get(answers.Model, "/api/v1/model", {"step": step, "run": run})

    def series(
        self,
        tap: TapName,
        stat: str = "rms",
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        run: str | None = None,
    ) -> answers.Series:
        return self.stats(tap, (stat,), first, last, points, run)[0]

    def stats(
        self,
        tap: TapName,
        stats: Sequence[str],
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        run: str | None = None,
    ) -> list[answers.Series]:
        query = {"tap": name_of(tap), "stat": ",".join(stats), "from": first, "to": last, "points": points, "run": run}
        return list(self._get(answers.SeriesList, "/api/v1/series", query).series)

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
        query = {"match": match or "*", "kind": kind, "stat": stat, "from": first, "to": last, "points": points}
        limit = min(MAX_SERIES, MAX_NUMBERS // max(points, 1))
        pages = self._pages(answers.SeriesList, "/api/v1/series", {**query, "run": run}, limit)
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
        query = {"kind": kind, "stat": stat, "match": match, "from": first, "to": last, "columns": columns}
        return self._get(answers.Heatmap, "/api/v1/heatmap", {**query, "rows": rows, "run": run})

    def histograms(
        self,
        tap: TapName,
        first: int | None = None,
        last: int | None = None,
        columns: int = 200,
        bins: int = 80,
        run: str | None = None,
    ) -> answers.Histograms:
        query = {"tap": name_of(tap), "from": first, "to": last, "columns": columns, "bins": bins, "run": run}
        return self._get(answers.Histograms, "/api/v1/histograms", query)

    def many_histograms(
        self,
        taps: Sequence[TapName],
        first: int | None = None,
        last: int | None = None,
        columns: int = 200,
        bins: int = 80,
        run: str | None = None,
    ) -> list[answers.Histograms]:
        histograms: list[answers.Histograms] = []
        for start in range(0, len(taps), MAX_HISTOGRAMS):
            some = taps[start : start + MAX_HISTOGRAMS]
            if len(some) == 1:
                return [*histograms, replace(self.histograms(some[0], first, last, columns, bins, run), run="")]
            query = {"tap": list(map(name_of, some)), "from": first, "to": last, "columns": columns, "bins": bins}
            answer = self._get(answers.HistogramsList, "/api/v1/histograms", {**query, "run": run})
            histograms, run = [*histograms, *answer.histograms], answer.run  # the newest run may change in the meantime
        return histograms

    def channels(
        self,
        tap: TapName,
        first: int | None = None,
        last: int | None = None,
        columns: int = 240,
        rows: int = 512,
        run: str | None = None,
    ) -> answers.Channels:
        query = {"tap": name_of(tap), "from": first, "to": last, "columns": columns, "rows": rows, "run": run}
        return self._get(answers.Channels, "/api/v1/channels", query)

    def channel_taps(self, match: str | None = None, run: str | None = None) -> answers.ChannelTaps:
        return self._get(answers.ChannelTaps, "/api/v1/channels", {"match": match, "run": run})

    def precision(
        self,
        format: str = "e4m3",
        scale: str = "max",
        match: str | None = None,
        kind: Kind | None = None,
        first: int | None = None,
        last: int | None = None,
        limit: int = 100,
        run: str | None = None,
    ) -> answers.Precision:
        query = {"format": format, "scale": scale, "match": match, "kind": kind, "from": first, "to": last}
        return self._get(answers.Precision, "/api/v1/precision", {**query, "limit": limit, "run": run})

    def latest(
        self,
        match: str | None = None,
        kind: Kind | None = None,
        stat: str | None = None,
        sort: str | None = None,
        limit: int = 1000,
        first: int | None = None,
        last: int | None = None,
        taps: Sequence[TapName] | None = None,
        run: str | None = None,
    ) -> answers.Latest:
        query = {"match": match, "kind": kind, "stat": stat, "sort": sort, "limit": limit, "from": first, "to": last}
        names = list(map(name_of, taps or ()))
        if taps is not None and not names:  # which a query can't say
            return replace(self.latest(match, kind, stat, sort, 1, first, last, run=run), taps=(), total=0)
        return self._get(answers.Latest, "/api/v1/latest", {**query, "tap": names, "run": run})

    def scalars(
        self,
        names: str | Sequence[str] = (),
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        match: str | None = None,
        run: str | None = None,
    ) -> answers.Scalars:
        chosen = [names] if isinstance(names, str) else list(names)
        query = {"name": chosen, "from": first, "to": last, "points": points, "match": match, "run": run}
        scalars = self._get(answers.Scalars, "/api/v1/scalars", query)
        while scalars.next is not None:
            query = {"match": match, "run": scalars.run, "after": scalars.next}
            more = self._get(answers.Scalars, "/api/v1/scalars", query)
            scalars = replace(scalars, names=scalars.names + more.names, next=more.next)
        return scalars

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
        query = {"from": first, "to": last, "name": name, "severity": severity, "after": after, "limit": limit}
        return self._get(answers.Events, "/api/v1/events", {**query, "run": run})

    def incidents(
        self, first: int | None = None, last: int | None = None, rule: str | None = None, run: str | None = None
    ) -> answers.Incidents:
        query = {"from": first, "to": last, "rule": rule, "run": run}
        return self._get(answers.Incidents, "/api/v1/incidents", query)

    def incident(self, id: str, run: str | None = None) -> answers.Incident:
        return self._get(answers.Incident, f"/api/v1/incidents/{id}", {"run": run})

    def media(
        self, name: str | None = None, first: int | None = None, last: int | None = None, run: str | None = None
    ) -> list[answers.Media]:
        query = {"name": name, "from": first, "to": last, "run": run}
        pages = self._pages(answers.MediaList, "/api/v1/media", query)
        return [media for page in pages for media in page.media]

    def media_content(self, number: int, run: str | None = None) -> bytes:
        return self._exchange.send("GET", f"/api/v1/media/{number}", {"run": run or self._run})

    def snapshots(
        self, match: str | None = None, kind: Kind | None = None, run: str | None = None
    ) -> list[answers.Snapshot]:
        pages = self._pages(answers.Snapshots, "/api/v1/snapshots", {"match": match, "kind": kind, "run": run})
        return [snapshot for page in pages for snapshot in page.snapshots]

    def tensor(self, number: int, slice: str = "", run: str | None = None) -> NDArray[Any]:
        query = {"slice": slice, "run": run or self._run, "format": "npy"}
        data = self._exchange.send("GET", f"/api/v1/snapshots/{number}", query)
        values: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return values

    def snapshot_names(self, number: int, run: str | None = None) -> answers.SnapshotNames:
        """Return the script's names for the tokens and samples of a snapshot, as far as they fit the tensor."""
        return self._get(answers.SnapshotNames, f"/api/v1/snapshots/{number}/names", {"run": run})

    def snapshot_casts(self, number: int, slice: str = "", run: str | None = None) -> answers.BlockCasts:
        """Return what casts to MXFP8, MXFP4, and NVFP4 would make of a snapshot, or of a part of it."""
        return self._get(answers.BlockCasts, f"/api/v1/snapshots/{number}/casts", {"slice": slice, "run": run})


def _own_dashboard(token: str | None) -> tuple[str, str | None]:
    """Return the address in HOOKCORE_URL, or this user's running dashboard."""
    url = os.environ.get("HOOKCORE_URL", "")
    if url:
        return url, token
    running = dashboard.find()
    if running is None:
        raise ServerError(
            "no dashboard is running for you on this machine: start a training that calls hookcore.watch(model), or "
            "give Client(url) the address of one"
        )
    return running.url, token or running.token


def _arrays_of(value: Any) -> Any:
    """Return a figure with its typed arrays decoded, which Plotly would leave as text."""
    if isinstance(value, list):
        return [_arrays_of(part) for part in value]
    if not isinstance(value, dict):
        return value
    if "bdata" not in value:
        return {name: _arrays_of(part) for name, part in value.items()}
    values = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    return values.reshape([int(size) for size in str(value["shape"]).split(",")]) if "shape" in value else values


def name_of(tap: TapName) -> int | str:
    """Return the number or label that identifies a tap in a request."""
    return tap.label if isinstance(tap, Tap | answers.Tap) else tap
