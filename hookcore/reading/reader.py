"""The queries about one run, wherever its values are: in this process, on disk, or on a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from hookcore.reading import answers
from hookcore.reading.answers.base import TapName
from hookcore.records import Coverage, HookRecord, Kind, Severity
from hookcore.store import StepRange


class Reader(Protocol):
    """Answers questions about one run.

    `first` and `last` are inclusive steps, and None is no bound. `match` is a pattern for modules. A name that doesn't
    exist raises HookcoreError, with the nearest name that does.
    """

    def steps(self) -> StepRange:
        """Return the first and newest step, and the number of steps."""

    def nearest(self, step: int) -> answers.Nearest:
        """Return whether tensors were captured in a step, and the captured steps before and after it."""

    def samples(self, step: int) -> answers.Samples:
        """Return which samples a step had, or why that isn't known."""

    def modules(self, match: str | None = None, taps: bool = True) -> list[answers.Module]:
        """Return the modules in the model's order, with their coverage and, unless `taps` is false, their taps."""

    def taps(self, match: str | None = None, kind: Kind | None = None) -> answers.Taps:
        """Return the taps, ascending by number."""

    def coverage(self, match: str | None = None, captured: bool | None = None) -> list[Coverage]:
        """Return every module: captured, or not and why."""

    def hooks(self) -> list[HookRecord]:
        """Return the hooks of the last inventory."""

    def flow(self, step: int | None = None) -> answers.Flow:
        """Return which module calls feed which others, as known in a step, or now."""

    def model(self, step: int | None = None) -> answers.Model:
        """Return the model as boxes with sizes and connections, as known in a step, or now."""

    def series(
        self, tap: TapName, stat: str = "rms", first: int | None = None, last: int | None = None, points: int = 1000
    ) -> answers.Series:
        """Return one stat of one tap in at most `points` points; "p50" and "p99.9" are quantiles."""

    def stats(
        self, tap: TapName, stats: Sequence[str], first: int | None = None, last: int | None = None, points: int = 1000
    ) -> list[answers.Series]:
        """Return several stats of one tap; all quantiles come from one reading of its sketches."""

    def many_series(
        self,
        match: str | None = None,
        kind: Kind | None = None,
        stat: str = "rms",
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
    ) -> list[answers.Series]:
        """Return one stat of every tap that matches."""

    def heatmap(
        self,
        kind: Kind = "output",
        stat: str = "rms",
        match: str | None = None,
        first: int | None = None,
        last: int | None = None,
        columns: int = 500,
        rows: int = 1000,
    ) -> answers.Heatmap:
        """Return the worst value of each tap of a kind over time, in at most `columns` by `rows` cells."""

    def histograms(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 200, bins: int = 80
    ) -> answers.Histograms:
        """Return the distribution of a tap over time."""

    def many_histograms(
        self,
        taps: Sequence[TapName],
        first: int | None = None,
        last: int | None = None,
        columns: int = 200,
        bins: int = 80,
    ) -> list[answers.Histograms]:
        """Return the distributions of several taps; each has its own edges."""

    def precision(
        self,
        format: str = "e4m3",
        scale: str = "max",
        match: str | None = None,
        kind: Kind | None = None,
        first: int | None = None,
        last: int | None = None,
        limit: int = 100,
    ) -> answers.Precision:
        """Return what casts to fp16, bf16, and scaled e5m2, e4m3, and e2m1 would make of each tap, the worst first.

        `format` is the one to sort by. `scale` says which value becomes the largest one of a scaled format: "max", or
        "p99.9", above which 0.1 % of the values are.
        """

    def channels(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 240, rows: int = 512
    ) -> answers.Channels:
        """Return the numbers of a probe, in order, over time. Each cell has its largest value, or NaN."""

    def channel_taps(self, match: str | None = None) -> answers.ChannelTaps:
        """Return the taps of probes that return several numbers, of modules that match a pattern."""

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
    ) -> answers.Latest:
        """Return the newest values in some steps; `sort` is a stat, non-finite and largest first ("-rms": smallest).

        Of `taps`, only these are returned. A server takes at most 500.
        """

    def scalars(
        self,
        names: str | Sequence[str] = (),
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        match: str | None = None,
    ) -> answers.Scalars:
        """Return the names of the logged scalars that match, and the series of those in `names` (at most 50)."""

    def events(
        self,
        first: int | None = None,
        last: int | None = None,
        name: str | None = None,
        severity: Severity | None = None,
        after: int | None = None,
        limit: int = 200,
    ) -> answers.Events:
        """Return the newest matching events; with `after`, the oldest ones after an answer's `next`."""

    def incidents(
        self, first: int | None = None, last: int | None = None, rule: str | None = None
    ) -> answers.Incidents:
        """Return the incidents that touch these steps, oldest first, without their evidence."""

    def incident(self, id: str) -> answers.Incident:
        """Return one incident with every stat of its culprit and neighbors around the onset."""

    def media(self, name: str | None = None, first: int | None = None, last: int | None = None) -> list[answers.Media]:
        """Return the images, texts, tables, and figures that the script logged in these steps, oldest first."""

    def media_content(self, number: int) -> bytes:
        """Return the content of a logged item."""

    def snapshots(self, match: str | None = None, kind: Kind | None = None) -> list[answers.Snapshot]:
        """Return the captured tensors, oldest first, without their values."""

    def tensor(self, number: int, slice: str = "") -> NDArray[Any]:
        """Return the values of a snapshot, or a part of them as NumPy would slice it: "0,:,3:7"."""
