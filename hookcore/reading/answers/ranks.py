"""The ranks of a distributed training."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from hookcore.reading.answers.base import Answer, FloatMatrix, Integers, Number, Page, Tabular, Tap, tap_columns
from hookcore.reading.answers.runs import RankSummary, State


class Rank(Answer, frozen=True):
    """One rank of the newest attempt."""

    rank: int
    run: Annotated[str, Meta(description="the id of its own run")]
    state: State
    host: str
    device: str
    local_rank: int
    axes: Annotated[dict[str, tuple[int, int]], Meta(description="coordinate and size on each axis of the mesh")]
    newest_step: Annotated[int | None, Meta(description="as the run of all ranks counts steps")]
    behind: Annotated[int | None, Meta(description="steps behind the farthest rank")]
    seconds_per_step: Annotated[Number, Meta(description="mean of the newest captured steps; NaN if unknown")]
    wait_s: Annotated[Number, Meta(description="mean seconds of waiting in a step (see `waits`); NaN if unknown")]
    wait_share: Annotated[Number, Meta(description="as a share of a step's time")]
    after_first_s: Annotated[Number, Meta(description="mean seconds from the first rank's last gradient to this one's")]
    was_last: Annotated[int, Meta(description="in how many of these steps it was the last rank")]
    late: Annotated[int, Meta(description="frames that came too late for the sum")]
    missed: Annotated[int, Meta(description="steps that were added up without this rank")]
    unknown_rows: Annotated[int, Meta(description="rows of its newest frame whose owner is unknown")]
    samples_per_second: Annotated[
        Number | None, Meta(description="that its model received, as last measured; null if unknown")
    ] = None
    tokens_per_second: Annotated[Number | None, Meta(description="null if its batches aren't rows of tokens")] = None


class RankWaits(Answer, frozen=True):
    """How ranks wait for each other at the end of backward passes, in the newest steps that all have captured."""

    name: Annotated[str, Meta(description="the logged value that it is from")]
    steps: int
    first_step: int
    last_step: int
    seconds_per_step: Number
    latest: Annotated[int | None, Meta(description="the rank that is noticeably last in most steps")]


class Ranks(Tabular, frozen=True):
    """The ranks of a run, and how complete their sum is."""

    run: str
    summary: RankSummary
    steps: Annotated[int, Meta(description="steps that were added up")]
    incomplete: Annotated[int, Meta(description="those that lack a rank")]
    partial: Annotated[
        int, Meta(description="those that some rank didn't capture; values that would be incomplete are left out")
    ]
    waiting: Annotated[int, Meta(description="steps that are waiting for a rank")]
    compared: Annotated[int, Meta(description="rows that were compared with the same row of another rank")]
    unread: Annotated[
        tuple[int, ...], Meta(description="ranks whose saved runs can't be read, so the sum doesn't include them")
    ]
    unlisted: Annotated[int, Meta(description="folders with its name that can't be read, if ranks are missing")]
    waits: Annotated[RankWaits | None, Meta(description="null if fewer than two ranks measure how long they wait")]
    ranks: tuple[Rank, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each rank. Unknown values are NaN."""
        texts, counts = ("run", "state", "host", "device"), ("was_last", "late", "missed")
        rates = ("seconds_per_step", "samples_per_second", "tokens_per_second")
        numbers = ("newest_step", *rates, "wait_s", "after_first_s")
        return {
            "rank": np.array([each.rank for each in self.ranks], np.int64),
            **{name: [getattr(each, name) for each in self.ranks] for name in texts},
            **{name: np.array([getattr(each, name) for each in self.ranks], np.float64) for name in numbers},
            **{name: np.array([getattr(each, name) for each in self.ranks], np.int64) for name in counts},
        }


class RankSpread(Answer, frozen=True):
    """The values of the ranks in one column of a map."""

    first_step: int
    last_step: int
    low: Number
    median: Number
    high: Number
    odd: Annotated[int | None, Meta(description="the rank twice as far from the median as all others; null if none is")]
    ranks: Annotated[int, Meta(description="how many have a finite value")]


class RankMap(Tabular, frozen=True, eq=False):
    """A value by rank and step: values[i][j] is the mean of rank i in column j.

    It is NaN where there is no value, and infinite where none is finite.
    """

    run: str
    tap: Annotated[Tap | None, Meta(description="null for a logged value")]
    name: Annotated[str, Meta(description="the logged value, or the stat of the tap")]
    ranks: tuple[int, ...]
    first_step: Integers
    last_step: Integers
    values: FloatMatrix
    newest: Annotated[RankSpread | None, Meta(description="of the last column in which all live ranks have a value")]

    def columns(self) -> dict[str, Any]:
        """Return a row for each column of the map, with a column for each rank."""
        found: dict[str, Any] = {"first_step": self.first_step, "last_step": self.last_step}
        values = np.asarray(self.values)
        return found | {f"rank_{rank}": values[row] for row, rank in enumerate(self.ranks)}


class LayerSpread(Answer, frozen=True):
    """The values of one tap on all ranks in one step: statistics of the finite ones, NaN if there are none."""

    tap: Tap
    low: Number
    median: Number
    high: Number
    apart: Annotated[Number, Meta(description="high less low, relative to the median; infinite if some aren't finite")]
    odd: Annotated[int | None, Meta(description="the rank twice as far from the median as all others; null if none is")]
    odd_value: Annotated[Number, Meta(description="its value: infinite if it isn't finite, NaN without such a rank")]
    finite: Annotated[int, Meta(description="how many ranks have a finite value")]
    present: Annotated[int, Meta(description="how many have any")]


class LayerSpreads(Page, Tabular, frozen=True):
    """How far apart the ranks are, layer by layer."""

    run: str
    kind: str
    stat: str
    first_step: Annotated[int | None, Meta(description="before `step` if values are means of merged steps")]
    step: Annotated[int | None, Meta(description="the newest step that all ranks have sent; null if there is none")]
    layers: tuple[LayerSpread, ...]

    def columns(self) -> dict[str, Any]:
        """Return a row for each layer."""
        kinds: dict[str, Any] = dict.fromkeys(("low", "median", "high", "apart", "odd_value"), np.float64)
        kinds |= dict.fromkeys(("finite", "present"), np.int64)
        found = {name: np.array([getattr(each, name) for each in self.layers], kind) for name, kind in kinds.items()}
        odd = np.array([-1 if each.odd is None else each.odd for each in self.layers], np.int64)  # -1: none
        return tap_columns([each.tap for each in self.layers]) | found | {"odd": odd}
