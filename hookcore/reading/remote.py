"""A reader of a run on a server."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from hookcore.errors import ServerError
from hookcore.reading import answers
from hookcore.reading.answers.base import TapName, Wanted
from hookcore.reading.answers.series import MAX_HISTOGRAMS, MAX_NUMBERS, MAX_SERIES
from hookcore.reading.exchange import Exchange
from hookcore.reading.reader import Reader
from hookcore.records import Coverage, HookRecord, Kind, Severity, Tap
from hookcore.store import StepRange

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


class RemoteReader(Reader):
    """Answers questions about a run on a server: `run`, or the newest one."""

    def __init__(self, exchange: Exchange, run: str | None = None) -> None:
        self._exchange, self._run = exchange, run

    def _ask(
        self, kind: type[Wanted], method: str, path: str, asked: Mapping[str, Any] | None = None, body: Any = None
    ) -> Wanted:
        """Ask the server. A query without a run is about this reader's run."""
        asked = dict(asked or {})
        if "run" in asked:
            asked["run"] = asked["run"] or self._run
        return self._exchange.ask(kind, method, path, asked, body)

    def _get(self, kind: type[Wanted], path: str, asked: Mapping[str, Any] | None = None) -> Wanted:
        return self._ask(kind, "GET", path, asked)

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
            if "run" in asked and not isinstance(page, answers.Runs):
                asked = {**asked, "run": page.run}  # the newest run may have changed since the first page

    def _named(self, run: str | None) -> str:
        """Return the id of the named run, of this reader's run, or of the newest run."""
        if run or self._run:
            return str(run or self._run)
        found = self._get(answers.Runs, "/api/v1/runs", {"limit": 1}).runs
        if not found:
            raise ServerError(f"the server at {self._exchange.url} shows no run yet", 404)
        return found[0].id

    def steps(self, run: str | None = None) -> StepRange:
        found = self._get(answers.Run, f"/api/v1/runs/{self._named(run)}")
        return StepRange(found.first_step, found.newest_step, found.steps)

    def nearest(self, step: int, run: str | None = None) -> answers.Nearest:
        return self._get(answers.Nearest, "/api/v1/nearest", {"step": step, "run": run})

    def modules(self, match: str | None = None, taps: bool = True, run: str | None = None) -> list[answers.Module]:
        path = f"/api/v1/runs/{self._named(run)}/modules"
        pages = self._pages(answers.Modules, path, {"match": match, "taps": taps})
        return [module for page in pages for module in page.modules]

    def taps(self, match: str | None = None, kind: Kind | None = None, run: str | None = None) -> answers.Taps:
        asked = {"match": match, "kind": kind, "run": run}
        pages = list(self._pages(answers.Taps, "/api/v1/taps", asked))
        return replace(pages[-1], taps=tuple(tap for page in pages for tap in page.taps))

    def coverage(
        self, match: str | None = None, captured: bool | None = None, run: str | None = None
    ) -> list[Coverage]:
        asked = {"match": match, "captured": captured, "run": run}
        pages = self._pages(answers.CoverageList, "/api/v1/coverage", asked)
        return [each for page in pages for each in page.coverage]

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
        asked = {"tap": name_of(tap), "stat": ",".join(stats), "from": first, "to": last, "points": points, "run": run}
        return list(self._get(answers.SeriesList, "/api/v1/series", asked).series)

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
        asked = {"match": match or "*", "kind": kind, "stat": stat, "from": first, "to": last, "points": points}
        limit = min(MAX_SERIES, MAX_NUMBERS // max(points, 1))
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
        asked = {"tap": name_of(tap), "from": first, "to": last, "columns": columns, "bins": bins, "run": run}
        return self._get(answers.Histograms, "/api/v1/histograms", asked)

    def many_histograms(
        self,
        taps: Sequence[TapName],
        first: int | None = None,
        last: int | None = None,
        columns: int = 200,
        bins: int = 80,
        run: str | None = None,
    ) -> list[answers.Histograms]:
        found: list[answers.Histograms] = []
        for start in range(0, len(taps), MAX_HISTOGRAMS):
            some = taps[start : start + MAX_HISTOGRAMS]
            if len(some) == 1:
                return [*found, replace(self.histograms(some[0], first, last, columns, bins, run), run="")]
            asked = {"tap": list(map(name_of, some)), "from": first, "to": last, "columns": columns, "bins": bins}
            answer = self._get(answers.HistogramsList, "/api/v1/histograms", {**asked, "run": run})
            found, run = [*found, *answer.histograms], answer.run  # the newest run may change in the meantime
        return found

    def channels(
        self,
        tap: TapName,
        first: int | None = None,
        last: int | None = None,
        columns: int = 240,
        rows: int = 512,
        run: str | None = None,
    ) -> answers.Channels:
        asked = {"tap": name_of(tap), "from": first, "to": last, "columns": columns, "rows": rows, "run": run}
        return self._get(answers.Channels, "/api/v1/channels", asked)

    def channel_taps(self, match: str | None = None, run: str | None = None) -> answers.ChannelTaps:
        return self._get(answers.ChannelTaps, "/api/v1/channels", {"match": match, "run": run})

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
        asked = {"match": match, "kind": kind, "stat": stat, "sort": sort, "limit": limit, "from": first, "to": last}
        names = list(map(name_of, taps or ()))
        if taps is not None and not names:  # which a query can't say
            return replace(self.latest(match, kind, stat, sort, 1, first, last, run=run), taps=(), total=0)
        return self._get(answers.Latest, "/api/v1/latest", {**asked, "tap": names, "run": run})

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
        asked = {"name": chosen, "from": first, "to": last, "points": points, "match": match, "run": run}
        found = self._get(answers.Scalars, "/api/v1/scalars", asked)
        while found.next is not None:
            asked = {"match": match, "run": found.run, "after": found.next}
            more = self._get(answers.Scalars, "/api/v1/scalars", asked)
            found = replace(found, names=found.names + more.names, next=more.next)
        return found

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
        asked = {"from": first, "to": last, "name": name, "severity": severity, "after": after, "limit": limit}
        return self._get(answers.Events, "/api/v1/events", {**asked, "run": run})

    def incidents(
        self, first: int | None = None, last: int | None = None, rule: str | None = None, run: str | None = None
    ) -> answers.Incidents:
        asked = {"from": first, "to": last, "rule": rule, "run": run}
        return self._get(answers.Incidents, "/api/v1/incidents", asked)

    def incident(self, id: str, run: str | None = None) -> answers.IncidentDetail:
        return self._get(answers.IncidentDetail, f"/api/v1/incidents/{quote(id, safe='')}", {"run": run})

    def media(
        self, name: str | None = None, first: int | None = None, last: int | None = None, run: str | None = None
    ) -> list[answers.Media]:
        asked = {"name": name, "from": first, "to": last, "run": run}
        pages = self._pages(answers.MediaList, "/api/v1/media", asked)
        return [media for page in pages for media in page.media]

    def media_content(self, number: int, run: str | None = None) -> bytes:
        return self._exchange.send("GET", f"/api/v1/media/{number}", {"run": run or self._run})

    def snapshots(
        self, match: str | None = None, kind: Kind | None = None, run: str | None = None
    ) -> list[answers.Snapshot]:
        pages = self._pages(answers.Snapshots, "/api/v1/snapshots", {"match": match, "kind": kind, "run": run})
        return [snapshot for page in pages for snapshot in page.snapshots]

    def tensor(self, number: int, slice: str = "", run: str | None = None) -> NDArray[Any]:
        asked = {"slice": slice, "run": run or self._run, "format": "npy"}
        data = self._exchange.send("GET", f"/api/v1/snapshots/{number}", asked)
        values: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return values

    def snapshot_names(self, number: int, run: str | None = None) -> answers.SnapshotNames:
        """Return the script's names for the tokens and samples of a snapshot, as far as they fit the tensor."""
        return self._get(answers.SnapshotNames, f"/api/v1/snapshots/{number}/names", {"run": run})


def name_of(tap: TapName) -> int | str:
    """Return the number or label that identifies a tap in a request."""
    return tap.label if isinstance(tap, Tap | answers.Tap) else tap
