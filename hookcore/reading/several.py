"""Queries to a dashboard that are about several runs, or several ranks of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hookcore.reading import answers
from hookcore.reading.answers.base import TapName
from hookcore.reading.remote import name_of
from hookcore.reading.steering import RemoteRun
from hookcore.records import Kind


class RemoteRuns(RemoteRun):
    """A reader that can also compare runs and ranks."""

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
        asked = {"runs": ",".join(runs), "scalar": scalar, "tap": label, "stat": stat, "group_by": group_by}
        return self._get(
            answers.Overlay, "/api/v1/overlay", {**asked, "from": first, "to": last, "band": band, "points": points}
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
        asked = {"runs": f"{one},{two}", "kind": kind, "stat": stat, "match": match, "from": first, "to": last}
        judged = {"rename": rename, "tolerance": tolerance, "points": points, "limit": limit, "sort": sort}
        return self._get(answers.Comparison, "/api/v1/compare", {**asked, **judged})

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
        asked = {"runs": f"{one},{two}", "kind": kind, "stat": stat, "match": match, "from": first, "to": last}
        sizes = {"rename": rename, "columns": columns, "rows": rows}
        return self._get(answers.ComparisonHeatmap, "/api/v1/compare/heatmap", {**asked, **sizes})

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
        asked = {"run": run, "from": first, "to": last, "kind": kind, "match": match, "limit": limit, "bins": bins}
        asked |= {"other": other, "other_from": other_first, "other_to": other_last}
        return self._get(answers.Differences, "/api/v1/differences", asked)

    def ranks(self, run: str | None = None) -> answers.Ranks:
        """Return each rank of a run, with its state, progress, speed, and the number of frames too late for the sum."""
        return self._get(answers.Ranks, "/api/v1/ranks", {"run": run})

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
        asked = {"run": run, "tap": label, "stat": stat, "name": name, "from": first, "to": last, "columns": columns}
        return self._get(answers.RankMap, "/api/v1/ranks/map", asked)

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
        asked = {"run": run, "kind": kind, "stat": stat, "match": match, "step": step, "sort": sort, "limit": limit}
        return self._get(answers.LayerSpreads, "/api/v1/ranks/spread", asked)
