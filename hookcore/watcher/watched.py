"""The readable side of a watch: the run's data, where it goes, and errors."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Final

from hookcore.config import Settings
from hookcore.delivery.delivery import Delivery
from hookcore.errors import ServerError
from hookcore.recorder import Recorder
from hookcore.records import Coverage, Event
from hookcore.records.vocabulary import counted
from hookcore.records.wire import DeliveryCounters
from hookcore.store import Store

if TYPE_CHECKING:
    from hookcore.reading import Client, Reader, answers
    from hookcore.watcher.notebook import Card

CARD_S: Final = 0.5  # how long a notebook cell waits for the newest steps


class WatchedRun:
    """The readable side of a watch."""

    _recorder: Recorder
    _delivery: Delivery

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until every finished step is in the store or on the server. Return False if the time ran out."""
        deadline = time.monotonic() + timeout_s
        shipped = self._recorder.worker.flush(timeout_s)
        return shipped and self._delivery.sink.flush(max(0.0, deadline - time.monotonic()))

    def coverage(self) -> list[Coverage]:
        """Return every module: captured, or why not. Tensors that this process's store refused aren't captured."""
        found, store = self._recorder.coverage(), self._delivery.store
        return found if store is None else store.without_refused(found)

    def incidents(self) -> answers.Incidents:
        """Return what went wrong so far: what was NaN or infinite first, in which step, and what followed.

        With a server, this asks the server, so call `flush()` first if the newest steps matter.
        """
        return self.reader().incidents()

    @property
    def settings(self) -> Settings:
        """The current settings. The pages can change some of them."""
        return self._recorder.control.settings

    @property
    def url(self) -> str | None:
        """The URL of the run's page; None if no server has it."""
        return self._delivery.url

    @property
    def store(self) -> Store:
        """The captured data, if it stays in this process: with `server=None` or `server="thread"`."""
        if self._delivery.store is None:
            raise ServerError(
                f"this run's frames go to {self.url}, not into a store of this process: read them with "
                "watcher.client(), or call watch(..., server=None)"
            )
        return self._delivery.store

    @property
    def delivery(self) -> DeliveryCounters | None:
        """The counters of frames on their way to the server; None if they stay in this process."""
        return self._delivery.sink.counters

    def client(self) -> Client:
        """Return a client for queries about this run and others."""
        return self._client()

    def reader(self) -> Reader:
        """Return a reader of this run, whether its data is in this process or on a server."""
        store = self._delivery.store
        if store is None:
            return self._client(run=self._delivery.run.id)
        of_server = self._delivery.reader
        reader: Reader = (
            import_module("hookcore.reading").StoreReader(store, self._delivery.run.id)
            if of_server is None
            else of_server()
        )
        return reader

    def _client(self, **given: str) -> Client:
        address = self._delivery.address
        if address is None:
            raise ServerError("this run has no server: read watcher.store, or call watch() with another `server`")
        client: Client = import_module("hookcore.reading").Client(address.url, address.token or None, **given)
        return client

    def _repr_html_(self) -> str:
        """Render the live page and a current picture, for a notebook."""
        return self._card().html()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Render the same for a notebook, and only the picture for front ends without HTML."""
        return self._card().bundle(repr(self))

    def _card(self) -> Card:
        if not self._recorder.closed:
            self.flush(CARD_S)
        card: Card = import_module("hookcore.watcher.notebook").card_of(self._delivery)
        return card

    @property
    def errors(self) -> list[Event]:
        """The first errors inside hookcore, with their tracebacks. None of them reached the training."""
        return list(self._recorder.errors.events)

    @property
    def error_count(self) -> int:
        """The number of all errors inside hookcore."""
        return self._recorder.errors.count

    @property
    def current_step(self) -> int:
        """The number of steps that have ended."""
        return self._recorder.step

    @property
    def paused(self) -> bool:
        return self._recorder.control.paused

    def __repr__(self) -> str:
        state = "closed" if self._recorder.closed else "paused" if self.paused else "watching"
        modules = len(self._recorder.models.plans.by_id)
        return f"<hookcore.Watcher {state}, {counted(modules, 'module')}, step {self.current_step}>"
