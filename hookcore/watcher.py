"""`hookcore.watch`: the single call in a training script."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import Never

import hookcore
from hookcore.config import NOT_GIVEN, Attach, Compiled, Pattern, Settings
from hookcore.delivery import failures
from hookcore.delivery.bridges import TeeSink, bridge_for
from hookcore.delivery.delivery import deliver, to_the_store
from hookcore.errors import ArgumentError, ClosedError, ServerError
from hookcore.hooks.compiled import guard_functions
from hookcore.recorder import Recorder
from hookcore.records import Coverage, Event, Failure, Kind, Phase, Tap
from hookcore.store import Store
from hookcore.wire import Books

if TYPE_CHECKING:
    from hookcore.reading import Client, Reader
    from hookcore.reading.notebook import Card

logger = logging.getLogger("hookcore")

CLOSE_TIMEOUT_S: Final = 2.0
CARD_S: Final = 0.5  # how long a notebook cell waits for the newest steps
_watchers: set[Watcher] = set()  # open ones; a watcher keeps running without references to it


class Watcher:
    """A running watch. Captured data is at `.url` or in `.store`, errors inside hookcore in `.errors`."""

    def __init__(self, model: nn.Module | None, settings: Settings) -> None:
        open_bridge = bridge_for(settings.bridge, settings.name)
        self._delivery = deliver(settings, _versions())
        self._recorder = Recorder(settings, self._delivery.sink)
        self._errors = self._recorder.errors
        self._tee: TeeSink | None = None
        handled = failures.handled_now()
        self._handled_before = None if handled is None else id(handled)  # the exception itself would keep frames alive
        self._cell_step = -1  # the step at the end of the newest notebook cell
        self._cell_failure: Failure | None = None
        self._unfinished = ""  # for frameworks: why the run crashed, if it closes without any other reason
        self._leave_cells = failures.follow_cells(self._end_cell)
        try:
            if open_bridge is not None:
                self._tee = TeeSink(self._delivery.sink, open_bridge, self._errors.record)
                self._recorder.send_to(self._tee)
            self._recorder.watch(model)
            self._recorder.attach()
            self._begin_delivery()
            self._recorder.report_escapes(self._delivery.run.name, self._delivery.run.script)
        except BaseException:
            self._recorder.close(0.0)
            self._leave_cells()
            raise
        _watchers.add(self)

    def _begin_delivery(self) -> None:
        try:
            self._delivery.begin(self._recorder.current_settings)
        except ArgumentError:
            raise
        except Exception as error:  # for example, no thread to send from: never a reason not to train
            why = str(error) if isinstance(error, ServerError) else f"{type(error).__name__}: {error}"
            logger.warning("hookcore: no dashboard: %s. The run stays in watcher.store.", why)
            self._delivery = to_the_store(self._delivery, self.settings)
            if self._tee is not None:
                self._tee.send_to(self._delivery.sink)
            else:
                self._recorder.send_to(self._delivery.sink)
            self._recorder.describe_models()

    def step(self) -> None:
        """End a step, in loops without an optimizer. From the first call on, only these calls end steps."""
        if not self._recorder.closed:
            self._guarded("step", self._recorder.user_step)

    def log(self, **scalars: float | Tensor) -> None:
        """Record numbers such as the loss and the learning rate for the running step. Never waits for a tensor."""
        if not self._recorder.closed:
            self._guarded("log", self._recorder.log, scalars)

    def _log_behind(self, scalars: dict[str, float | Tensor]) -> None:
        """Record numbers that a callback receives after the end of their step."""
        if not self._recorder.closed:
            self._guarded("log", self._recorder.log, scalars, True)

    def observe(self, name: str, tensor: Tensor) -> Tensor:
        """Capture an intermediate tensor of a forward, and its gradient, as taps called `name`. Return the tensor."""
        if not torch.compiler.is_compiling() and self._recorder.capturing and isinstance(tensor, Tensor):
            self._guarded("observe", self._recorder.observe, name, tensor)
        return tensor

    def _guarded(self, what: str, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._errors.record(what, error)

    def request_snapshot(self, module: str, kind: Kind = "output", index: str = "", call: int = 0) -> None:
        """Capture the raw tensor of this tap at its next call, and store it with the run's frames."""
        self._check_open()
        self._recorder.request_snapshot(Tap(module, kind, index, call))

    def pause(self) -> None:
        """Capture nothing until `resume()`. Steps are still counted."""
        self._check_open()
        self._recorder.pause()

    def resume(self) -> None:
        """Capture again."""
        self._check_open()
        self._recorder.resume()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until every finished step is in the store, or at the server. Return False if the time ran out."""
        deadline = time.monotonic() + timeout_s
        return self._recorder.flush(timeout_s) and self._delivery.flush(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Remove every hook, send the rest, end the threads, and release the model. The store stays readable.

        In an `except` or a `finally`, the exception that is being handled is recorded as the end of the run.
        """
        handled = failures.handled_now()
        self._close(None if id(handled) == self._handled_before else handled)

    def _close(self, error: BaseException | None) -> None:
        if not self._recorder.closed:
            self._guarded("close", self._say_why, error)
        self._recorder.close(CLOSE_TIMEOUT_S)
        _watchers.discard(self)

    def _expect_crash(self, why: str) -> None:
        """Set why the run crashed if it closes without any other reason, or "" for none. For frameworks."""
        self._unfinished = why

    def _say_why(self, error: BaseException | None) -> None:
        self._leave_cells()
        failure = failures.failure_of(error, self.current_step)
        if failure is None and self._cell_failure is not None and self._cell_failure.step == self.current_step:
            failure = self._cell_failure  # no training since the cell raised
        if failure is None and error is None and self._unfinished:
            failure = failures.unknown(self._unfinished, self.current_step)
        if failure is not None:
            self._delivery.fail(failure)

    def _end_cell(self, result: Any) -> None:
        """Note that a cell with training has raised. The run may still continue in another cell."""
        error = getattr(result, "error_in_exec", None)
        if error is not None and self.current_step != self._cell_step:
            self._cell_failure = failures.failure_of(error, self.current_step)
        self._cell_step = self.current_step

    def coverage(self) -> list[Coverage]:
        """Return every module: captured, or why not. Tensors refused by this process's store are not captured."""
        found, store = self._recorder.coverage(), self._delivery.store
        return found if store is None else store.without_refused(found)

    @property
    def settings(self) -> Settings:
        """The current settings. The pages can change some of them."""
        return self._recorder.settings

    @property
    def url(self) -> str | None:
        """The URL of the run's page; None if no server has it."""
        return self._delivery.url

    @property
    def store(self) -> Store:
        """The captured data, if it stays in this process: with `server=None` or `server="thread"`."""
        if self._delivery.store is None:
            raise ServerError(
                f"this run's frames go to {self.url}, not into a store of this process: read them by "
                "watcher.client(), or call watch(..., server=None)"
            )
        return self._delivery.store

    @property
    def delivery(self) -> Books | None:
        """The counters of frames on their way to the server; None if they stay in this process."""
        return self._delivery.books

    def client(self) -> Client:
        """Return a client for queries about this run and others."""
        return self._client()

    def reader(self) -> Reader:
        """Return what answers questions about this run, whether its data is in this process or on a server."""
        store = self._delivery.store
        if store is None:
            return self._client(run=self._delivery.run.id)
        reader: Reader = import_module("hookcore.reading").StoreReader(store, self._delivery.run.id)
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
        card: Card = import_module("hookcore.reading.notebook").card_of(self._delivery)
        return card

    @property
    def errors(self) -> list[Event]:
        """The first errors inside hookcore, with their tracebacks. None of them reached the training."""
        return list(self._errors.events)

    @property
    def error_count(self) -> int:
        """The number of all errors inside hookcore."""
        return self._errors.count

    @property
    def current_step(self) -> int:
        """The number of steps that have ended."""
        return self._recorder.step

    @property
    def paused(self) -> bool:
        """Whether capturing is paused."""
        return self._recorder.paused

    def _check_open(self) -> None:
        if self._recorder.closed:
            raise ClosedError("this watcher was closed; call hookcore.watch(model) for a new one")

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    def __deepcopy__(self, memo: object) -> NullWatcher:
        return NullWatcher()

    def __reduce__(self) -> tuple[type[NullWatcher], tuple[()]]:
        return NullWatcher, ()

    def __repr__(self) -> str:
        state = "closed" if self._recorder.closed else "detached" if self.paused else "watching"
        return f"<hookcore.Watcher {state}, {self._recorder.module_count} modules, step {self._recorder.step}>"


class NullWatcher:
    """Takes the place of the watcher in copies, pickles, and checkpoints of a model. Its methods have no effect."""

    def step(self) -> None:
        """Do nothing."""

    def log(self, **scalars: float | Tensor) -> None:
        """Do nothing."""

    def observe(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    def close(self) -> None:
        """Do nothing."""


def watch(
    model: nn.Module | None = None,
    *,
    include: Pattern | Iterable[Pattern] | None = NOT_GIVEN,
    exclude: Pattern | Iterable[Pattern] | None = NOT_GIVEN,
    kinds: Kind | Iterable[Kind] = NOT_GIVEN,
    every: int = NOT_GIVEN,
    budget: float | None = NOT_GIVEN,
    memory: int | str = NOT_GIVEN,
    attach: Attach = NOT_GIVEN,
    compiled: Compiled = NOT_GIVEN,
    phases: Phase | Iterable[Phase] = NOT_GIVEN,
    calls: int = NOT_GIVEN,
    sketch_values: int | None = NOT_GIVEN,
    server: str | None = NOT_GIVEN,
    keep: str | os.PathLike[str] | None = NOT_GIVEN,
    bridge: str | None = NOT_GIVEN,
    name: str | None = NOT_GIVEN,
    **unknown: Never,
) -> Watcher:
    """Watch a model as it trains: start a dashboard process, or join the one that is running, and print its address.

    Without a model, watch every model that runs in this process. The watch lasts until `close()`, or until the end of
    a `with`. `server=None` starts no process.

    An argument that you leave out is taken from its environment variable, such as HOOKCORE_EVERY, and otherwise has
    the default below. docs/settings.md lists what is allowed and says more about each setting.

    include=None: The modules to watch.
    exclude=(): The modules to leave out, among those that `include` matches.
    kinds=('output', 'output_grad', 'param_grad'): The tensors to capture for each module: activations, gradients,
        parameters, and parameter updates.
    every=1: Capture every n-th step.
    budget=0.05: The share of a step's time that watching may cost, as measured in the run.
    memory='512MB': The memory limit of the store.
    attach='global': Where hooks are registered. `global`: on the process, so the model stays untouched. `module`: on
        the watched modules, for processes that run many other modules. The model's copies and pickles then contain the
        hooks.
    compiled='boundary': What to capture of compiled regions. `boundary`: the region's output and its gradient; results
        stay bit for bit the same. `inside`: every module in the region; this costs more and changes results within
        rounding.
    phases=('train',): Which calls to capture: with gradients (`train`), without (`eval`), or both.
    calls=8: How many calls of a module in one step are recorded separately.
    sketch_values=65536: How many values of a tensor its histogram counts.
    server='auto': Where captured data goes. `auto`: to this user's dashboard on this machine, which is started if none
        is running. An address: to that server, with the token in `HOOKCORE_TOKEN`. `thread`: to a dashboard in this
        process. None: only to `watcher.store`.
    keep='auto': The folder for the run's Parquet files, which are written during the run.
    bridge=None: Another tool that also gets each step's scalars, the norm of all gradients, and the counts of modules
        with non-finite or all-zero output.
    name=None: The name of the run in the dashboard.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise ArgumentError(
            f"watch() was given a {type(model).__name__}; it takes a torch.nn.Module, or nothing to watch every model"
        )
    settings = Settings.of(
        include=include,
        exclude=exclude,
        kinds=kinds,
        every=every,
        budget=budget,
        memory=memory,
        attach=attach,
        compiled=compiled,
        phases=phases,
        calls=calls,
        sketch_values=sketch_values,
        server=server,
        keep=keep,
        bridge=bridge,
        name=name,
        **unknown,  # raises an error that suggests the correct setting
    )
    return Watcher(model, settings)


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": str(torch.__version__), "hookcore": hookcore.__version__}


@contextmanager
def detached() -> Iterator[None]:
    """Remove all of hookcore's hooks in this block. `torch.export.export(..., strict=True)` needs that."""
    attached = [watcher for watcher in _watchers if watcher._recorder.attached]
    for watcher in attached:
        watcher._recorder.detach()
    try:
        yield
    finally:
        for watcher in attached:
            if not watcher._recorder.closed:
                watcher._recorder.attach()


def _close_all() -> None:
    deadline, error = time.monotonic() + CLOSE_TIMEOUT_S, failures.uncaught()
    for watcher in list(_watchers):
        watcher._delivery.limit_close_time(deadline - time.monotonic())
        watcher._close(error)
    failures.keep_interrupted()


def _abandon_all() -> None:
    for watcher in list(_watchers):
        watcher._recorder.abandon()
        watcher._delivery.abandon()
    _watchers.clear()


guard_functions(Watcher.step, Watcher.log, Watcher.observe)
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)

__all__ = ["Watcher", "detached", "watch"]
