"""The page Ranks: how far each rank of a distributed training is, how long it waits, and what sets one apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Final

import numpy as np
from fastapi import Query

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.records import KINDS, Kind, Tap
from hookcore.records.vocabulary import DESYNC, ELAPSED, GRADIENT_WAIT, OWN, REDUCTION_WAIT
from hookcore.store import STAT_NAMES, TapList

from ..analysis.distributed import (
    SORTS,
    Layers,
    Map,
    SpreadSort,
    every_store_of,
    layers_of,
    map_of,
    ranks_of,
    spreads_of,
    stores_at,
)
from ..analysis.modules import finder_of
from ..formats import words_of as words_of_steps
from ..runs import Joint
from ..runs.answering import tap_list
from ..runs.joint import joint_of
from ..runs.ranks import words_of
from .page import FindText, RowNumber, RunPage, Short, TablePage
from .views.layer import nothing_in
from .views.overview import layer_address

COLUMNS: Final = 8  # of the map: the table shows the newest values only
MAX_ROWS: Final = 256  # of the table of ranks
LAYERS_A_PAGE: Final = 100
SLOW_STEPS: Final = 2  # a live rank that is further behind than this is named


@dataclass(frozen=True, kw_only=True)
class RanksPage(RunPage):
    """The ranks of a run, one value by rank and step, and the spread of each layer over the ranks."""

    name = "ranks"
    parts = ("summary", "newest", "table", "layers")

    value: Annotated[str, Query(max_length=2100, description="a logged value, or the label of a tap")] = ""
    stat: Short = "rms"
    kind: Short = ""
    sort: Short = "apart"
    row: RowNumber = 0
    f: FindText = ""

    @cached_property
    def joint(self) -> Joint | None:
        """The run of all ranks; None for a single process."""
        try:
            return joint_of(self.run)
        except ArgumentError:
            return None

    @property
    def stat_name(self) -> str:
        """The chosen statistic."""
        return self.stat if self.stat in STAT_NAMES else "rms"

    @cached_property
    def shown_kind(self) -> Kind | None:
        """The kind of the layers in the list: the chosen one, or the first of which there is something."""
        found = {tap.kind for tap in self.joint.run.reader.taps().taps} if self.joint is not None else set()
        usual = next((kind for kind in KINDS if kind in found), None)
        return next((kind for kind in KINDS if kind == self.kind), usual)

    def values(self) -> dict[str, Any]:
        """Return what can be chosen."""
        joint = self.joint
        if joint is None:
            return {"joint": None}
        self.runs.read_ranks(joint)
        return {
            "joint": joint,
            "seconds": SECONDS,
            "logged": logged_values(joint),
            "taps": suggested_taps(joint),
            "stat_name": self.stat_name,
            "shown_kind": self.shown_kind,
            "usual_kind": replace(self, kind="").shown_kind,
            "kept": [*self.shared.parts, ("sort", self.sort), ("f", self.f)],
        }

    def part_summary(self) -> dict[str, Any]:
        """Return how complete the sum of all ranks is, and who is late."""
        joint = self.joint
        if joint is None or self._ranks is None:
            return {"ranks": None, "desync": [], "apart_steps": 0, "troubled": []}
        ranks = self._ranks
        by_state = {
            "lost": [rank.rank for rank in ranks.ranks if rank.state == "lost"],
            "crashed": [rank.rank for rank in ranks.ranks if rank.state == "crashed"],
            "trained, but sent no values": [rank.rank for rank in joint.sum.assembly.ranks.values() if rank.is_silent],
            "behind": [rank.rank for rank in ranks.ranks if rank.state == "live" and (rank.behind or 0) > SLOW_STEPS],
        }
        return {
            "ranks": ranks,
            "desync": [incident for incident in joint.run.store.incidents() if incident.rule == DESYNC],
            "apart_steps": joint.sum.assembly.apart,
            "desync_is_off": joint.run.rules.get(DESYNC) is False,
            "troubled": [(word, words_of(some, -1)) for word, some in by_state.items() if some],
            "late": sum(rank.late for rank in ranks.ranks),
            "can_sum_again": self.runs.can_sum_again(joint),
            "wait_words": WAITS,
            "about_waits": ABOUT_WAITS,
        }

    def part_newest(self) -> dict[str, Any]:
        """Return the spread of the chosen value at the end of the steps shown."""
        found, problem = self._found
        spread = None if found is None else found.newest()
        return {
            "spread": spread,
            "world": 0 if self.joint is None or spread is None else self._world_at(spread.last_step),
            "problem": problem,
        }

    def _world_at(self, step: int) -> int:
        """Return how many ranks the training had at a step: another attempt may have more or fewer."""
        assert self.joint is not None
        return max((member.place.world for member in self.joint.members_at(step)[0]), default=self.joint.rounds.world)

    def part_table(self) -> dict[str, Any]:
        """Return each rank with its newest value."""
        if self.joint is None:
            return {}
        found = self._found[0]
        return {
            "ranks": self._ranks,
            "rank_rows": MAX_ROWS,
            "rates": [] if self._ranks is None else known_rates(self._ranks.ranks),
            "newest": {} if found is None else _newest_of(found),
            "logged": logged_values(self.joint),
            "stat_name": self.stat_name,
            "seconds": SECONDS,
            "about_waits": ABOUT_WAITS,
        }

    def part_layers(self) -> dict[str, Any]:
        """Return how far the ranks are apart, layer by layer."""
        found = self._layers
        sort: SpreadSort = next((each for each in SORTS if each == self.sort), "apart")
        places = [] if found is None else found.order(sort)
        table = TablePage.at(self.row, LAYERS_A_PAGE, len(places))
        return {
            "spread_steps": "" if found is None else words_of_steps(found.first_step, found.step),
            "no_layers": self._why_no_layers(),
            "layers": () if found is None else spreads_of(found, table.cut(places)),
            "table": table,
            "sort_name": sort,
            "stat_name": self.stat_name,
            "shown_kind": self.shown_kind,
            "layer_address": partial(layer_address, self.run),
        }

    @cached_property
    def _ranks(self) -> answers.Ranks | None:
        return None if self.joint is None else ranks_of(self.joint, *self.values_in)

    @cached_property
    def _wanted(self) -> TapList | None:
        """The taps of the list of layers."""
        if self.joint is None or self.shown_kind is None:
            return None
        fits = finder_of(self.run, self.f).fits
        every = self.joint.run.reader.taps().taps
        return tap_list(tap for tap in every if tap.kind == self.shown_kind and fits(tap.module))

    @cached_property
    def _layers(self) -> Layers | None:
        joint, wanted = self.joint, self._wanted
        if joint is None or wanted is None or self.span is None:
            return None
        return layers_of(joint.run.store, partial(stores_at, joint), wanted, self.stat_name, *self.values_in)

    def _why_no_layers(self) -> str:
        """Return what to say in place of an empty list of layers."""
        joint, span = self.joint, self.span
        if self.f and self._wanted is not None and not self._wanted.taps:
            return "No layer matches the filter."
        if joint is not None and span is not None and span.held:
            return nothing_in(joint.run.reader, span, "No rank has a value of this kind in")
        return "No step of this kind was captured by all ranks."

    @cached_property
    def _found(self) -> tuple[Map | None, str]:
        """The chosen value by rank and step, or what is wrong with the choice."""
        if self.joint is None or self.span is None:
            return None, ""
        try:
            what = chosen_value(self.joint, self.value)
        except ArgumentError as error:
            return None, str(error)
        try:
            first, last = self.values_in
            last = self.span.last if last is None else last
            first = last - COLUMNS + 1 if first is None else max(first, last - COLUMNS + 1)
            found = map_of(every_store_of(self.joint), what, self.stat_name, first, last, COLUMNS)
        except ArgumentError:
            return None, ""
        return (found, "") if len(found.first) else (None, "")


def _newest_of(found: Map) -> dict[int, float]:
    """Return the newest value of each rank that has one near the end of the steps shown."""
    newest = {}
    for row, rank in enumerate(found.ranks):
        known = np.flatnonzero(~np.isnan(found.values[row]))
        if len(known):
            newest[rank] = float(found.values[row, known[-1]])
    return newest


SECONDS: Final = "seconds per step"
WAITS: Final[dict[str, str]] = {
    REDUCTION_WAIT: "seconds of waiting for the reduction",
    GRADIENT_WAIT: "seconds from the last local gradient to the optimizer step",
}
ABOUT_WAITS: Final[dict[str, str]] = {
    REDUCTION_WAIT: (
        "From the moment when a rank's last bucket of gradients was ready until all its reductions had ended, measured "
        "by the communication hook. It includes waiting for slower ranks and the communication itself."
    ),
    GRADIENT_WAIT: (
        "From a rank's last local activation gradient to the optimizer step. It includes waiting for slower "
        "ranks, the communication itself, the gradients of the first layer's weights, and your own code in between."
    ),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """A throughput of each rank in the table: a field of `answers.Rank`."""

    field: str
    words: str
    about: str


RATES: Final = (
    Rate("samples_per_second", "Samples/s", "Samples per second that the rank's model received, as last measured"),
    Rate("tokens_per_second", "Tokens/s", "Tokens per second that the rank's model received, as last measured"),
)
MAX_TAPS: Final = 500  # that the box suggests


def logged_values(joint: Joint) -> dict[str, str]:
    """Return the logged values that can be chosen: words, and the name of each."""
    names = joint.run.reader.scalars().names
    own = {SECONDS: ELAPSED} | {WAITS[name]: name for name in WAITS if name in names}
    return own | {name: name for name in names if not name.startswith(OWN)}


def known_rates(ranks: Sequence[answers.Rank]) -> list[Rate]:
    """Return the throughputs that are known of some rank."""
    return [rate for rate in RATES if any(getattr(rank, rate.field) is not None for rank in ranks)]


def suggested_taps(joint: Joint) -> list[str]:
    """Return the labels of taps that the box suggests."""
    return [tap.label for tap in joint.run.reader.taps().taps[:MAX_TAPS]]


def chosen_value(joint: Joint, value: str) -> Tap | str:
    """Return the logged value or the tap that words mean. Raises ArgumentError if there is neither."""
    name = logged_values(joint).get(value or SECONDS)
    if name is not None:
        return name
    try:
        return joint.run.reader.find(value).record
    except ArgumentError as error:
        raise ArgumentError(f"{error}; or name a logged value, such as {SECONDS!r}") from None
