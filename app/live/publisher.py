"""Notification of followers: when to look, at which taps, how far each is, and each message once for all of them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter, to_thread
from msgspec import Meta
from starlette.datastructures import State
from starlette.types import Scope

from hookcore.reading import answers
from hookcore.store import Store, TapList

from ..runs import Changes, Run, Runs
from ..serving.guard.access import Places
from ..serving.guard.security import is_owner
from ..settings import ServerSettings

# The progress of a run, and of a follower: numbers and words, which are compared.

ALL: Final = 2**62
Count = Annotated[int, Meta(ge=-1, lt=2**53)]  # also in the ids that a reader sends back
_tokens: WeakKeyDictionary[Store, str] = WeakKeyDictionary()


class Steps(NamedTuple):
    """The newest step, the number of different steps, and the number of their frames."""

    newest: Count = -1
    different: Count = 0
    frames: Count = 0


class Mark(NamedTuple):
    """The progress of a run."""

    steps: Steps
    events: Count
    taps: Count  # -1: a reader has no rows yet
    state: str
    incidents: Count = 0
    edits: int = 0  # of name, notes, acknowledgements, and mutes
    paused: bool = False  # capture
    flow_step: int | None = None  # in which the data flow was learned last
    snapshots: int = 0
    waiting: tuple[int, ...] = ()  # the commands that the trainer hasn't received
    time_s: float | None = None  # when the newest step ended, by the trainer's clock
    store: str = ""  # names the store to which the counts refer; empty if the run is on disk only


def mark_of(run: Run, present: bool = True) -> Mark:
    """Return the progress of a run. `present` says whether the server still has it."""
    # In this order, because a run that has ended then has its last step, and a step has its taps.
    state = run.state if present else "removed"
    known = run.store.steps()
    steps = Steps(-1 if known.newest is None else known.newest, known.count, known.frames)
    taken, _ = run.store.events_after(ALL)
    flows = run.store.flows()
    return Mark(
        steps,
        taken,
        run.store.taps_announced,
        state,
        run.store.incidents_version,
        run.edits.count,
        run.is_paused,
        flows[-1].step if flows else None,
        run.store.snapshots_after(ALL)[0],
        run.commands.waiting,
        known.time_s,
        token_of(run.store) if run.loaded else "",
    )


def token_of(store: Store) -> str:
    """Return a name for this store. Counts of another store, even of the same run, don't apply to it."""
    return _tokens.setdefault(store, secrets.token_hex(4))


def events_between(run: Run, sent: int, now: int) -> tuple[answers.Event, ...]:
    """Return the events after one cursor up to another; later ones are sent next time."""
    taken, events = run.store.events_after(sent)
    return run.reader.events_of(events[: max(0, len(events) - max(0, taken - now))])


def new_steps(sent: Steps, now: Steps) -> tuple[int, int] | None:
    """Return the first and last step that are new to a follower.

    If more frames than steps arrived, the newest sent step may have another part, so it is sent again.
    """
    if now.frames == sent.frames or now.newest < 0:
        return None
    again = sent.newest >= 0 and now.frames - sent.frames > now.different - sent.different
    first = sent.newest if again else sent.newest + 1
    return (first, now.newest) if first <= now.newest else None


IDLE_S: Final = 0.5  # how long an unannounced state, such as "lost", may go unnoticed
EARLY: Final = 2  # looks
SOONER: Final = 0.9
MAKERS: Final = 2  # threads that make messages
MAX_MADE: Final = 64  # messages kept for other followers that request the same
MAX_MADE_BYTES: Final = 32 * 2**20
MAX_SELECTIONS: Final = 256

_log = logging.getLogger("hookcore.live")


class ChangeTicker:
    """The progress of something, read whenever it changes but about `hz` times a second at most, for all followers.

    A few looks may be early, and all come slightly sooner than necessary, so that steps at the same rate as the looks
    don't wait for one.

    Followers of one ticker see the same `now` at the same moment, so they request the same messages.
    """

    def __init__(self, changes: Changes, look: Callable[[], Any], hz: float) -> None:
        self.now: Any = look()
        self.wakes: set[asyncio.Event] = set()
        self._changes, self._look, self._period_s = changes, look, SOONER / hz
        self._due = 0.0  # when all looks so far would have happened at an even rate
        self.task: asyncio.Task[None] | None = None

    def join(self, wake: asyncio.Event) -> None:
        """Set `wake` whenever `now` has changed, from now on."""
        self.wakes.add(wake)
        if self.task is None:
            self.task = asyncio.create_task(self._beat())

    def leave(self, wake: asyncio.Event) -> None:
        """End what `join` began."""
        self.wakes.discard(wake)
        if not self.wakes and self.task is not None:
            self.task.cancel()
            self.task = None

    async def _beat(self) -> None:
        version = -1
        while True:
            version = await self._changes.wait_beyond(version, IDLE_S)
            try:
                now = self._look()
            except Exception:
                _log.exception("reading the data of a live stream failed")
                await asyncio.sleep(IDLE_S)
                continue
            if now != self.now:
                self.now = now
                for wake in self.wakes:
                    wake.set()
                await asyncio.sleep(self.rest_s(asyncio.get_running_loop().time()))

    def rest_s(self, now: float) -> float:
        """Return how long to wait after a look at this time."""
        self._due = max(self._due, now) + self._period_s
        return max(0.0, self._due - now - EARLY * self._period_s)


class MessageCache:
    """Messages by their content: a second request gets the bytes of the first. Limited; the oldest are dropped.

    They have a few threads of their own: in those of batches, a message would wait until the batches of all ranks of a
    training are stored.
    """

    def __init__(self) -> None:
        self.made = 0
        self._makers = CapacityLimiter(MAKERS)
        self.kept: OrderedDict[Hashable, tuple[asyncio.Future[Any], int]] = OrderedDict()
        self.nbytes = 0

    async def get(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """Return the result of `make`, computed in a thread, once for all requests with the same key."""
        return await asyncio.shield(self.begin(key, make, size))

    def begin(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> asyncio.Future[Any]:
        """Return a future of the result of `make`. It is computed even if it is no longer needed: don't cancel it."""
        found = self.kept.get(key)
        if found is not None:
            return found[0]
        self.made += 1
        future = asyncio.ensure_future(to_thread.run_sync(make, limiter=self._makers))
        self.kept[key] = future, 0
        future.add_done_callback(lambda done: self._weigh(key, done, size))
        return future

    def _weigh(self, key: Hashable, done: asyncio.Future[Any], size: Callable[[Any], int]) -> None:
        kept = self.kept.pop(key, None)
        if kept is None or done.cancelled() or done.exception() is not None:
            return  # waiters get the exception
        nbytes = size(done.result())
        self.kept[key] = done, nbytes
        self.nbytes += nbytes
        while self.kept and (len(self.kept) > MAX_MADE or self.nbytes > MAX_MADE_BYTES):
            _, (_, gone) = self.kept.popitem(last=False)
            self.nbytes -= gone


class TapCache:
    """The taps that a follower requested, searched once until new ones are announced. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.kept: OrderedDict[Hashable, tuple[tuple[int, int], TapList]] = OrderedDict()

    def get(self, store: Store, kind: str | None, match: str | None) -> TapList:
        key = token_of(store), kind, match
        known = store.taps_announced, store.modules_known
        with self._lock:
            found = self.kept.get(key)
        if found is not None and found[0] == known:
            return found[1]
        taps = store.taps(match, kind)
        with self._lock:
            self.kept[key] = known, taps
            self.kept.move_to_end(key)
            while len(self.kept) > MAX_SELECTIONS:
                self.kept.popitem(last=False)
        return taps


class Publisher:
    """The live streams of a server."""

    def __init__(self, runs: Runs, settings: ServerSettings) -> None:
        self.runs = runs
        self.settings = settings
        self.refused = 0
        self._places = Places(settings.max_clients)
        self.stopping = False
        self.shared = MessageCache()
        self.selections = TapCache()
        self._tickers: dict[Hashable, ChangeTicker] = {}
        self._wakes: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @contextmanager
    def client(self, reader: str | None = None) -> Generator[bool, None, None]:
        """Count a client while it is connected; yield False if there is no room for it.

        `reader` is the address of a reader; an owner has none. A quarter of the places is reserved for owners, and one
        address of readers gets at most half of all.
        """
        if self.stopping or self._places.is_full(reader):
            self.refused += 1
            yield False
            return
        with self._places.hold(reader):
            yield True

    @property
    def clients(self) -> int:
        """The number of connected clients."""
        return self._places.taken

    def why_full(self) -> str:
        """Return the message for a client without a place."""
        if self.stopping:
            return "this server is stopping: connect again in a moment"
        most = self.settings.max_clients
        return (
            f"{self.clients} live streams are open, and this client has used its share of max_clients={most}: close one"
        )

    @contextmanager
    def hearing(self) -> Iterator[asyncio.Event]:
        """Return an event that is also set when the server stops."""
        wake = asyncio.Event()
        self._wakes[wake] = asyncio.get_running_loop()
        try:
            yield wake
        finally:
            del self._wakes[wake]

    @contextmanager
    def following(self, run: Run | None, hz: float, wake: asyncio.Event, rank: str = "") -> Iterator[ChangeTicker]:
        """Return the ticker of a run, or of the list of runs and the run of one rank, with an event attached."""
        key = (token_of(run.store) if run else rank, hz)
        ticker = self._tickers.get(key)
        if ticker is None:
            ticker = self._tickers[key] = self._ticker_of(run, hz, rank)
        ticker.join(wake)
        try:
            yield ticker
        finally:
            ticker.leave(wake)
            if not ticker.wakes:
                self._tickers.pop(key, None)

    def _ticker_of(self, run: Run | None, hz: float, rank: str) -> ChangeTicker:
        if run is None:
            return ChangeTicker(self.runs.changes, lambda: self._look_at_runs(rank), hz)

        def look() -> Mark:
            run.signs.follow()
            return mark_of(run, self.runs.get(run.id) is run)

        return ChangeTicker(run.changes, look, hz)

    def _look_at_runs(self, rank: str) -> tuple[Any, ...]:
        one = self.runs.get(rank)
        shown = [*self.runs.all(), *([] if one is None else [one])]
        for run in shown:
            run.signs.follow()
        return tuple((run.id, run.name, mark_of(run)) for run in shown)

    def find(self, run_id: str | None) -> Run | None:
        """Return a run by its id, or the newest one without an id."""
        if run_id is not None:
            run = self.runs.get(run_id)
            if run is not None:
                run.signs.look()
            return run
        return next(iter(self.runs.all()), None)

    def stop(self) -> None:
        """End every stream. From any thread."""
        self.stopping = True
        for wake, loop in list(self._wakes.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(wake.set)


def reader_of(scope: Scope, state: State) -> str | None:
    """Return the address of the reader of a request; None for an owner."""
    if not hasattr(state, "access") or is_owner(scope, state.access):
        return None
    return str((scope.get("client") or ("somewhere",))[0])


def publisher_of(state: Any) -> Publisher:
    """Return the publisher of an application, created on first use."""
    given: State = getattr(state, "state", state)
    if not hasattr(given, "live"):
        given.live = Publisher(given.runs, given.settings)
    found: Publisher = given.live
    return found
