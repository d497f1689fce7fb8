"""Cuts segments: decides what of the spool is inserted next, and makes the blocks."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..clickhouse.client import Cluster, Shard, UnreachableError
from ..clickhouse.cluster.sharing import commands_after
from ..clickhouse.questions import portions
from ..clickhouse.schema import DESCRIPTIONS, LANES, ROWS, RUNS, Inlet, Table, rank_shards
from ..clickhouse.writing import (
    Names,
    Piece,
    Sign,
    blocks_of,
    descriptions_block,
    is_stored,
    names_block,
    signs_block,
    stored_numbers,
    without_key,
)
from .feed import SILENT_S, Cut, Cuts, Feed, Homes, Share, hear_signs
from .lanes import Lanes

MIN_ROWS: Final = 100_000  # of a segment, unless what waits is too old
HEAR_S: Final = 1.0  # between two looks for commands, and for runs that were started again
MAX_BYTES: Final = 64 * 2**20  # of a segment, in memory, about
MAX_NAMES: Final = 100_000  # of lanes, modules, and hooks, in a block

Block = tuple[Table | Inlet, bytes]


@dataclass(slots=True, eq=False)
class Job:
    """A set of blocks that are inserted together: names first, then a segment, then signs of life."""

    names: list[Block] = field(default_factory=list)
    cut: Cut | None = None
    blocks: list[Block] = field(default_factory=list)
    signs: list[Block] = field(default_factory=list)
    rows: int = 0
    is_repeated: bool = False  # blocks may be stored
    is_begun: bool = False  # a block is stored


class Cutter:
    """The feeds of one spool, and the segments that are cut from them. One thread uses it."""

    def __init__(self, lanes: Lanes, cluster: Cluster, insert_s: float, clock: Callable[[], float]) -> None:
        self.cuts = Cuts(lanes.spool.folder)
        self.homes = Homes(self.cuts.id)
        self._lanes, self._cluster, self._insert_s, self.clock = lanes, cluster, insert_s, clock
        self.feeds = {lane.info.id: Feed(lane, recovered=lane.acknowledged) for lane in lanes.all()}
        self._unfinished = self.cuts.unfinished()
        self._lock = threading.Lock()  # of the feeds' numbers of segments, which inserting threads lower
        self._noted_at = float("-inf")
        self._signed_at = [float("-inf")] * len(cluster.shards)
        self._heard_at = [float("-inf")] * len(cluster.shards)

    # -- which runs -------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Follow the lanes: new ones, and those that are forgotten."""
        self._lanes.forget_finished()
        lanes = {lane.info.id: lane for lane in self._lanes.all()}
        for run_id in [run_id for run_id, feed in self.feeds.items() if lanes.get(run_id) is not feed.lane]:
            del self.feeds[run_id]
        for run_id, lane in lanes.items():
            if run_id not in self.feeds:
                self.feeds[run_id] = Feed(lane)
        if self.clock() - self._noted_at >= HEAR_S:
            self._noted_at = self.clock()
            self._note_replaced()

    def _note_replaced(self) -> None:
        """Note which runs of a rank are followed by another one, because the training was started again."""
        newest: dict[tuple[str, int], float] = {}
        placed = [(feed, feed.lane.info, place) for feed in self.feeds.values() if (place := feed.lane.info.place)]
        for _, info, place in placed:
            newest[place.job, place.rank] = max(newest.get((place.job, place.rank), 0.0), info.started_s)
        for feed, info, place in placed:
            feed.is_replaced = info.started_s < newest[place.job, place.rank]

    def locate(self) -> None:
        """Find the shards of runs. Raises UnreachableError if that of some run can't be asked."""
        trouble: UnreachableError | None = None
        for feed in list(self.feeds.values()):
            if feed.shard < 0 and (records := feed.lane.records()):
                feed.began_here = records[0].first == 0
                try:
                    feed.shard = self._shard_of(feed, records[0].first)
                except UnreachableError as error:  # the other runs don't wait
                    trouble = error
        if trouble is not None:
            raise trouble

    def _shard_of(self, feed: Feed, first: int) -> int:
        """Return the shard that has something of a run, or else the one that its name chooses."""
        order = rank_shards(feed.lane.info.id, len(self._cluster.shards))
        home = None
        if feed.recovered >= 0 or not feed.began_here:
            home = self.homes.find([self._cluster.shards[number] for number in order], feed, first)
        return order[0] if home is None else home

    # -- segments ---------------------------------------------------------------------------------------------------

    def repeat(self, shard: Shard) -> Iterator[Job]:
        """Yield the segments that an earlier process has inserted in part. The others are cut again."""
        mine = [cut for cut in self._unfinished if cut.shard == shard.number]
        if mine:
            shard.settle(self.cuts.id)
        for cut in mine:
            shares = [share for share in cut.shares if share.run in self.feeds]
            if shares and is_stored(shard, ROWS, self.cuts.id, cut.number):
                with self._lock:
                    pieces = [self.feeds[share.run].repeat(share) for share in shares]
                yield self._job(cut, pieces, is_repeated=True)
            else:
                self.cuts.finish(cut)
            self._unfinished.remove(cut)

    def next(self, shard: Shard) -> Job | None:
        """Return what a shard should insert now, if there is enough, or if it has waited for too long."""
        now = self.clock()
        feeds = [feed for feed in self.feeds.values() if feed.shard == shard.number]
        self._hear(shard, feeds, now)
        room = max(0, MAX_BYTES - sum(feed.ready()[1] for feed in feeds))
        for feed in feeds:
            # Runs that another process has claimed may take all the room. So the others have some of their own.
            if room > 0 or (room > -MAX_BYTES and not feed.complete()):
                room -= feed.fill(max(room, 1))
        by_day: defaultdict[int, list[Feed]] = defaultdict(list)
        ages_s: defaultdict[int, float] = defaultdict(float)
        for feed in feeds:
            if (age_s := feed.age_s(now)) is not None:
                by_day[feed.day].append(feed)
                ages_s[feed.day] = max(ages_s[feed.day], age_s)
        for day, ready in sorted(by_day.items()):
            if ages_s[day] >= self._insert_s or sum(feed.ready()[0] for feed in ready) >= MIN_ROWS or room <= 0:
                job = self._cut(shard, ready)
                if job is not None:
                    return job
        if now - self._signed_at[shard.number] < self._insert_s:
            return None
        self._signed_at[shard.number] = now
        signs = self._signs(feeds)
        return Job(signs=signs) if signs else None

    def _cut(self, shard: Shard, ready: Sequence[Feed]) -> Job | None:
        taken: list[tuple[Feed, int, Share, Piece]] = []
        for feed in self.homes.ours(shard, ready):
            count = feed.complete()
            may_be_stored = feed.is_contested or feed.items[0].number <= feed.recovered
            stored = stored_numbers(shard, feed.run, feed.items[:count]) if may_be_stored else ()
            taken.append((feed, count, *feed.share(count, stored)))
        shares = [share for _, _, share, piece in taken if piece.items]
        cut = self.cuts.cut(shard.number, ready[0].day, shares) if shares else None
        # Only now: if ClickHouse or the disk had refused, the feeds would have lost their data.
        for feed, count, share, piece in taken:
            with self._lock:
                feed.commit(count, is_cut=bool(piece.items))
            if not feed.jobs:
                feed.lane.on_stored(share.through)
        return None if cut is None else self._job(cut, [piece for *_, piece in taken if piece.items])

    def _job(self, cut: Cut, pieces: Sequence[Piece], is_repeated: bool = False) -> Job:
        feeds = [self.feeds[share.run] for share in cut.shares if share.run in self.feeds]
        return Job(
            list(_names_of(feeds, pieces)),
            cut,
            list(blocks_of(self.cuts.id, cut.number, pieces).items()),
            self._signs(feeds),
            sum(piece.rows for piece in pieces),
            is_repeated,
            is_repeated,
        )

    def on_stored(self, cut: Cut) -> None:
        """Release the items of a segment."""
        self.cuts.finish(cut)
        for share in cut.shares:
            feed = self.feeds.get(share.run)
            if feed is not None:
                feed.lane.on_stored(share.through)
                with self._lock:
                    feed.jobs -= 1

    def give_up(self, cuts: Sequence[Cut]) -> None:
        """Cut the items of segments again of which nothing was inserted: all that wait for a shard, oldest first."""
        restarted = set()
        for cut in cuts:
            self.cuts.finish(cut)
            for share in cut.shares:
                feed = self.feeds.get(share.run)
                if feed is not None and share.run not in restarted:
                    restarted.add(share.run)
                    feed.restart(share.before)

    # -- commands ---------------------------------------------------------------------------------------------------

    def _hear(self, shard: Shard, feeds: Sequence[Feed], now: float) -> None:
        """Take what servers ask of trainers, which get it with the answer to their next batch, and others' signs."""
        if now - self._heard_at[shard.number] < HEAR_S:
            return
        self._heard_at[shard.number] = now
        lanes = {feed.run: feed.lane for feed in feeds if feed.lane.silent_s <= SILENT_S}
        commands = commands_after(shard, {run: lane.commands_done for run, lane in lanes.items()})
        for run, lane in lanes.items():
            lane.commands = commands.get(run, ())
        hear_signs(shard, [feed for feed in feeds if feed.is_contested or not feed.began_here])

    # -- signs of life ----------------------------------------------------------------------------------------------

    def _signs(self, feeds: Sequence[Feed]) -> list[Block]:
        signs = []
        for feed in feeds:
            lane = feed.lane
            news = lane.progress
            if news != feed.signed:
                feed.signed = news
                # Clocks may go back, and those of other processes differ, but a later sign must count more.
                feed.version = max(time.time_ns() // 1_000_000, feed.version + 1)
                signs.append((feed.run, feed.day, feed.version, self._sign(feed)))
        return [(RUNS, signs_block(signs))] if signs else []

    def _sign(self, feed: Feed) -> Sign:
        lane = feed.lane
        return Sign(
            without_key(lane.info),
            lane.whole_counters(),
            self.cuts.id,
            lane.silent_s,
            lane.acknowledged,
            lane.delivered,
            lane.commands_done,
            lane.has_ended,
            feed.end,
            feed.first_step,
            feed.before,
            feed.steps,
            self._insert_s,
        )


def _names_of(feeds: Sequence[Feed], pieces: Sequence[Piece]) -> Iterator[Block]:
    """Yield the names and descriptions that ClickHouse doesn't have yet, those of many runs in a block."""
    scalars = {piece.run: piece.scalars for piece in pieces}
    names, described = [], []
    for feed in feeds:
        taps, description = feed.lane.taps, feed.lane.description
        new_taps = dict(enumerate(taps[feed.named_taps :], feed.named_taps))
        new_scalars = set(scalars.get(feed.run, ())) - feed.named_scalars
        if new_taps or new_scalars:
            names.append(Names(feed.run, feed.day, new_taps, sorted(new_scalars)))
            feed.named_taps, feed.named_scalars = len(taps), feed.named_scalars | new_scalars
        if description is not None and description.version > feed.described:
            described.append((feed.run, feed.day, description))
            feed.described = description.version
    for some in portions(names, lambda each: (each.size,), (MAX_NAMES,)):
        yield LANES, names_block(some)
    for several in portions(described, lambda each: (1 + len(each[2].modules) + len(each[2].hooks),), (MAX_NAMES,)):
        yield DESCRIPTIONS, descriptions_block(several)
