"""Which steps the ranks of one training have stored, on their shards and over all its attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hookcore.store.past import Span
from hookcore.store.segments import Steps

from .attempts import Attempt, Progress, RankRun, by_shard, frames_of
from .past import StoredPast
from .runpast import MAX_CAPTURED
from .tables import FRAME


class RanksSteps(StoredPast):
    """The past of all ranks as far as it is about steps."""

    def __init__(self, attempts: Callable[[], Sequence[Attempt]]) -> None:
        super().__init__("old steps of all ranks")
        self._attempts = attempts
        self._known: dict[int, Progress] = {}  # by run

    def _look(self) -> None:
        stored = -1
        for attempt in self._attempts():
            for shard, ranks in by_shard(attempt.ranks):
                runs = " OR ".join(f"(run = {each.run} AND number >= {self.progress_of(each).after})" for each in ranks)
                found = shard.read(
                    "SELECT run, max(number) AS newest, max(step) AS until, countIf(rows > 0) AS captured, "
                    f"groupUniqArray(spool) AS spools FROM items WHERE ({runs}) AND kind = {FRAME} GROUP BY run"
                )
                columns = (found.numbers(name).tolist() for name in ("run", "newest", "until", "captured"))
                spools = found.lists("spools")
                for place, (run, number, until, captured) in enumerate(zip(*columns, strict=True)):
                    known = self._known[run]
                    known.spools |= {*spools.values[spools.starts[place] : spools.starts[place + 1]].tolist()}
                    known.after, known.newest = number + 1, max(known.newest, until)
                    known.captured += captured
            waited = [self.progress_of(each).newest for each in attempt.ranks if not each.is_over]
            every = [self.progress_of(each).newest for each in attempt.ranks]
            here = attempt.shift + (min(waited) if waited else max(every, default=-1))
            stored = max(stored, here if attempt.end is None else min(here, attempt.end - 1))
        self._stored = stored

    def progress_of(self, rank: RankRun) -> Progress:
        """Return how far a rank's run is stored, as far as it was seen."""
        return self._known.setdefault(rank.run, Progress())

    def frames(self, span: Span) -> tuple[Steps, Steps]:
        """Return the steps for which any rank has a frame, and those for which any has tensor values."""
        every, captured = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for attempt, steps in self._within(span):
            for shard, where in frames_of(attempt, steps):
                found = shard.read(f"SELECT step, toUInt8(max(rows > 0)) AS captured FROM items {where} GROUP BY step")
                here = found.numbers("step").astype(np.int64) + attempt.shift
                every.append(here)
                captured.append(here[found.numbers("captured").astype(bool)])
        return np.unique(np.concatenate(every)), np.unique(np.concatenate(captured))

    def ends(self, span: Span) -> tuple[int, int] | None:
        return self._troubles.attempt("ends", lambda: self._ends(span))

    def _ends(self, span: Span) -> tuple[int, int] | None:
        ends: list[int] = []
        for attempt, steps in self._within(span):
            for shard, where in frames_of(attempt, steps):
                found = shard.read(f"SELECT min(step) AS first, max(step) AS last, count() AS found FROM items {where}")
                if found.one("found"):
                    ends += (found.one(name) + attempt.shift for name in ("first", "last"))
        return (min(ends), max(ends)) if ends else None

    def captured(self, span: Span) -> Steps | None:
        return self._troubles.attempt("captured", lambda: self._captured(span))

    def _captured(self, span: Span) -> Steps:
        captured = [np.empty(0, np.int64)]
        for attempt, steps in self._within(span):
            width = (steps[1] - steps[0]) // MAX_CAPTURED + 1
            for shard, where in frames_of(attempt, steps):
                found = shard.read(
                    f"SELECT max(step) AS newest FROM items {where} AND rows > 0 "
                    f"GROUP BY intDiv(step - {steps[0]}, {width})"
                )
                captured.append(found.numbers("newest").astype(np.int64) + attempt.shift)
        return np.unique(np.concatenate(captured))

    def _within(self, span: Span) -> Iterator[tuple[Attempt, tuple[int, int]]]:
        """Yield the attempts that have steps of a span, with their own steps in it."""
        first, last = span[0] or 0, self._stored if span[1] is None else span[1]
        for attempt in self._attempts():
            steps = attempt.within(first, last)
            if steps is None:
                continue
            missing = attempt.world - len(attempt.ranks)
            if missing > 0:
                told = f"{missing:,} of {attempt.world:,} ranks aren't in ClickHouse, so old steps don't include them"
                self._troubles.note(("ranks", attempt.shift), told)
            if attempt.ranks:
                yield attempt, steps
