"""A running watch and one without effect, and what all open watches share: they are detached and closed together."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import platform
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

import torch
from torch import Tensor, nn

import hookcore
from hookcore.capsules.keeper import CapsuleKeeper, CapsulePlan
from hookcore.config import Flat, Pattern, Settings, rank
from hookcore.delivery.bridges import Bridge, bridge_for
from hookcore.delivery.dashboard.capsules import folder_of
from hookcore.delivery.delivery import Delivery, deliver, say, to_the_store
from hookcore.delivery.facts import learn_commit
from hookcore.delivery.failures import (
    CRASHED,
    PATIENCE_S,
    Ending,
    Signals,
    event_of,
    keep_interrupted,
    stopped,
    uncaught,
)
from hookcore.delivery.notify import Notifier, note_about, note_about_event, targets_of
from hookcore.errors import ArgumentError, ClosedError, ServerError
from hookcore.findings.ownrules import OwnRules, own_rules
from hookcore.hooks.compiled import guard_functions
from hookcore.probes import representations, sharpness
from hookcore.recorder import Recorder
from hookcore.recorder.known.facts import Facts, options_of_script
from hookcore.recorder.known.place import Ranks
from hookcore.recorder.measured.probes import MAX_PROBES, probe_of
from hookcore.recorder.measured.routers import router_of
from hookcore.records import Coverage, Event, Frame, Kind, Phase, Severity, Tap
from hookcore.records.vocabulary import SIMILARITY, counted
from hookcore.records.wire import DeliveryCounters
from hookcore.store import Similarities, Store
from hookcore.store.checks import find_tap
from hookcore.watcher import callbacks
from hookcore.watcher.callbacks import At, Callback, Callbacks, Report, SelfExplainer, Terminal
from hookcore.watcher.media import Content, Squares, figure_content, image_content, table_content, text_content

if TYPE_CHECKING:
    from hookcore.reading import Client, Reader, answers
    from hookcore.reading.answers import Incident
    from hookcore.watcher.notebook import Card


class NullWatcher:
    """Takes the place of the watcher in copies, pickles, and checkpoints of a model. Its methods have no effect."""

    url: None = None

    def __enter__(self) -> NullWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _do_nothing(self, /, *_: object, **__: object) -> None:
        """Do nothing."""

    step = log = log_image = log_text = log_table = log_figure = tokens = labels = samples = _do_nothing
    request_snapshot = probe = router = capsule = pause = resume = close = _do_nothing

    def observe(self, name: str, tensor: Tensor) -> Tensor:
        return tensor

    def flush(self, timeout_s: float = 0.0) -> bool:
        """Return True, because nothing waits."""
        return True

    def sharpness(self, model: Any, loss: Callable[..., Any]) -> Tensor:
        """Return NaN, without calling the loss."""
        return torch.tensor(float("nan"))

    def cka(self, model: Any, batch: Any, include: Any, **how: Any) -> Any:
        """Return None, without calling the model."""

    def on_incident(
        self, callback: Callable[..., Any] | None = None, *, at: str = "found", severity: str = "warning"
    ) -> Any:
        """Return the callback, which is never called."""
        return (lambda given: given) if callback is None else callback


CARD_S: Final = 0.5  # how long a notebook cell waits for the newest steps


logger = logging.getLogger("hookcore")

CLOSE_TIMEOUT_S: Final = 2.0
Called = TypeVar("Called", bound=Callback)
# Numbers of the watches of this process, by the class of the model. Each number is used once.
numbers: Final[defaultdict[str, Iterator[int]]] = defaultdict(partial(itertools.count, 1))
_watchers: set[Watcher] = set()  # open ones; a watcher keeps running without references to it


class Watcher:
    """A running watch. Captured data is at `.url` or in `.store`, errors inside hookcore in `.errors`."""

    def __init__(self, model: nn.Module | None, settings: Settings, *, speaks: bool = True) -> None:
        open_bridge = bridge_for(settings.bridge, settings.name)
        targets = targets_of(settings.notify if rank() == "0" else ())
        self._own = OwnRules(own_rules(settings.rules.functions), "trainer")
        self._bridge: Bridge | None = None
        kind = "" if model is None else type(model).__name__
        ranks, self._facts = Ranks(f"{kind} {next(numbers[kind])}"), Facts()
        self._delivery = deliver(settings, _versions(), ranks.place)
        if not speaks:
            self._delivery.silence()
        self._explainer, self._jumps = SelfExplainer(settings.explain), SelfExplainer(settings.explain)
        capsules = CapsulePlan(
            settings.capsule_when,
            partial(folder_of, self._delivery.run.id),
            settings.capsule_size,
            settings.capsule_on,
            self._explainer.saw_error,
            self._jumps.saw_error,
        )
        keeper = partial(CapsuleKeeper, capsules)
        self._recorder = Recorder(
            settings,
            self._delivery.sink,
            make_keeper=keeper,
            examine=self._examine if self._own or open_bridge is not None else None,
            ranks=ranks,
            facts=self._facts,
        )
        self._explainer.emit = self._jumps.emit = self._recorder.context.add_events
        self._errors = self._recorder.context.errors
        self._ending = Ending(lambda: self.current_step, self._recorder.capture.models.path_of)
        report = Report(self._errors.record, self._recorder.context.emit)
        self._callbacks = Callbacks(
            lambda: self._delivery.sink.incidents_version,
            self.incidents,
            self._recorder.steps.clock.boundary,
            report,
        )
        delivery = self._delivery  # the watcher itself would be in a circle
        self._terminal = Terminal(say, lambda: delivery.page or "")
        self._notifier = Notifier(targets, report.not_notified)
        try:
            if open_bridge is not None:
                models, layers = self._recorder.capture.models, settings.bridge_layers
                chosen = partial(models.chosen, layers) if layers else tuple[str, ...]
                self._bridge = Bridge(open_bridge, self._errors.record, self._errors.count_loss, chosen)
            self._recorder.capture.models.watch(model)
            self._recorder.capture.models.check_patterns((*settings.channels, *settings.bridge_layers))
            self._recorder.attach()
            self._begin_delivery()
            self._recorder.shipper.report_escapes(self._delivery.run.name, self._delivery.run.script)
            self._begin_notifying()
            self._begin_speaking()
            if self._delivery.describes:
                self._facts.hear(self._delivery.run.facts)
                learn_commit(self._facts.hear)
        except BaseException:
            self._recorder.close(0.0)
            self._close_bridge()
            self._ending.unfollow()
            raise
        _watchers.add(self)
        weakref.finalize(self, self._recorder.dismantle)
        _signals.follow()

    def _examine(self, frame: Frame, taps: Sequence[Tap]) -> Frame:
        """Show a frame to the bridge and to the user's rules, on the recorder's thread."""
        if self._bridge is not None:
            self._bridge.take(frame)
        return self._own.examine(frame, taps)

    def _close_bridge(self) -> None:
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.close()

    def _begin_delivery(self) -> None:
        try:
            self._delivery.begin(self._recorder.capture.control.current_settings)
        except ArgumentError:
            raise
        except Exception as error:  # for example, no thread to send from: never a reason not to train
            why = str(error) if isinstance(error, ServerError) else f"{type(error).__name__}: {error}"
            logger.warning("hookcore: no dashboard: %s. The run stays in watcher.store.", why)
            self._delivery = to_the_store(self._delivery, self.settings)
            self._delivery.sink.subscribe(self._recorder.on_command)
            self._recorder.send_to(self._delivery.sink)
            self._recorder.capture.models.send()

    def _begin_notifying(self) -> None:
        if self._notifier.targets:
            self._callbacks.add(self._note, "found", "warning")
            self._notifier.start()

    def _begin_speaking(self) -> None:
        if self._delivery.leads_terminal:
            with contextlib.suppress(RuntimeError):  # no thread can be started
                self._callbacks.add(
                    self._terminal.begin,
                    "found",
                    callbacks.LEVEL,
                    callbacks.TERMINAL_POLL_S,
                    callbacks.TERMINAL_PAUSE_S,
                )

    def _note(self, incident: Incident) -> None:
        run = self._delivery.run
        self._notifier.put(note_about(incident, run.id, run.name, self.url or ""))

    def step(self) -> None:
        """End a step, in loops without an optimizer. From the first call on, only these calls end steps."""
        if not self._recorder.closed:
            self._guarded("step", self._recorder.steps.end_by_user)
            self._recorder.steps.clock.boundary.run()

    def sharpness(self, model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Tensor:
        """Log the curvature of a loss along its gradient as the scalar "sharpness", and return it.

        `loss` gets a copy of the model, as in `watcher.sharpness(model, lambda copy: criterion(copy(x), y))`. Neither
        training nor capture see that; `hookcore.probes.sharpness` says what it costs.
        """
        self._check_open()
        with detached():
            value = sharpness(model, loss)
        self.log(sharpness=value)
        return value

    def cka(
        self, model: nn.Module, batch: Any, include: Pattern | Sequence[Pattern], *, tokens: bool = False
    ) -> answers.Cka:
        """Measure how alike the representations of a fixed batch are in the modules that match (linear CKA).

        A copy of the model in evaluation mode is called with the batch. Neither training nor capture see that;
        `hookcore.probes.representations` says what it does. The result is logged as the figure "cka". With the same
        batch in another step or run, `client.cka` compares them.
        """
        self._check_open()
        with detached():
            hashed, found = representations(model, batch, include, tokens=tokens)
        layers = {path: values.cpu().numpy() for path, values in found.items()}
        taps = {Tap(path, "output", f"{SIMILARITY} {hashed}"): values for path, values in layers.items()}
        step = self._recorder.given.add_values("cka", taps, "float32", next(iter(layers.values())).shape)
        measured, run = Similarities(step, hashed, layers), self._delivery.run.id
        answer: answers.Cka = import_module("hookcore.reading").answers.Cka.of((run, run), (measured, measured))
        self.log_figure("cka", Squares(answer.values, answer.layers[0], answer.layers[1], "CKA", (0.0, 1.0)))
        return answer

    def close(self) -> None:
        """Remove every hook, send the rest, end the threads, and release the model. The store stays readable.

        In an `except` or a `finally`, the exception that is being handled is recorded as the end of the run.
        """
        self._close(self._ending.handled())

    def _close(self, error: BaseException | None) -> None:
        self._guarded("close", self._say_why, error)
        self._end_explaining()
        self._recorder.close(CLOSE_TIMEOUT_S)
        self._close_bridge()
        self._callbacks.close()
        if self._delivery.leads_terminal:
            self._terminal.sum_up(self._callbacks.newest)
        self._notifier.close()
        self._ending.let_go()
        _watchers.discard(self)
        if not _watchers:
            _signals.leave()
            if _watchers:  # another thread has opened one meanwhile
                _signals.follow()

    def _end_explaining(self) -> None:
        """Save a step that a device has only just found to be bad, and wait for the replay of the run's first error."""
        self._guarded("close", self._recorder.settle_late, CLOSE_TIMEOUT_S)
        self._explainer.wait()
        self._jumps.wait()

    def _stop(self, number: int, deadline: float) -> None:
        """Send the rest, because a signal ends this process."""
        if self._recorder.closed:  # it is being closed, by a thread that must be given the time
            while self in _watchers and time.monotonic() < deadline:
                time.sleep(0.01)
            return
        sink = self._delivery.sink
        self._recorder.stop(deadline - time.monotonic())
        self._guarded("stop", sink.fail, stopped(number, self.current_step))
        sink.limit_close_time(deadline - time.monotonic())
        sink.close()
        self._close_bridge()

    def _ask_script(self) -> None:
        """Look for the script's options once it trains, unless it gives its configuration. For `hookcore run`."""
        if self.settings.config == Flat():
            self._facts.ask(partial(options_of_script, self._delivery.run.config))

    def _expect_crash(self, why: str) -> None:
        """Set why the run crashed if it closes without any other reason, or "" for none. For frameworks."""
        self._ending.expect_crash(why)

    def _note_stop(self, message: str) -> None:
        """Add an event that says that the training was stopped. For frameworks."""
        self._recorder.context.emit("training-stopped", message)

    def _say_why(self, error: BaseException | None) -> None:
        self._ending.unfollow()
        failure = self._ending.failure(error)
        if failure is not None and isinstance(error, Exception):  # Ctrl+C and exits say nothing about the step
            self._recorder.capture.keeping.fail(failure.error)
        if failure is not None:
            self._delivery.sink.fail(failure)
            if failure.outcome == CRASHED:  # not if the user interrupted it
                run, event = self._delivery.run, event_of(failure)
                self._terminal.crash = event.message
                self._notifier.put(note_about_event(event, run.id, run.name, self.url or ""))

    @overload
    def on_incident(self, callback: Called, *, at: At = ..., severity: Severity = ...) -> Called: ...
    @overload
    def on_incident(self, *, at: At = ..., severity: Severity = ...) -> Callable[[Called], Called]: ...
    def on_incident(
        self, callback: Callback | None = None, *, at: At = "found", severity: Severity = "warning"
    ) -> object:
        """Call `callback(incident)` once for each incident of this severity or worse, including past ones.

        Incidents that are muted on the server when this process learns of them are left out.

        Also works as a decorator, with and without arguments. With `at="found"`, a thread calls the callback as soon as
        the incident is known here. With `at="step"`, the training thread calls it when the next step ends, and it may
        raise `hookcore.StopTraining`. All other exceptions are recorded in `.errors`.
        """
        if callback is None:
            return partial(self.on_incident, at=at, severity=severity)
        self._check_open()
        self._callbacks.add(callback, at, severity)
        return callback

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

    # The readable side of a watch

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
        return self._recorder.context.settings

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
        return list(self._recorder.context.errors.events)

    @property
    def error_count(self) -> int:
        """The number of all errors inside hookcore."""
        return self._recorder.context.errors.count

    @property
    def current_step(self) -> int:
        """The number of steps that have ended."""
        return self._recorder.context.step

    @property
    def paused(self) -> bool:
        return self._recorder.context.paused

    def __repr__(self) -> str:
        state = "closed" if self._recorder.closed else "paused" if self.paused else "watching"
        modules = len(self._recorder.context.plans.by_id)
        return f"<hookcore.Watcher {state}, {counted(modules, 'module')}, step {self.current_step}>"

    # The side of a watch that a script fills. None of it raises, or does anything once the watch is closed

    def log(self, /, **scalars: float | Tensor) -> None:
        """Record numbers such as the loss and the learning rate for the running step. Never waits for a tensor.

        Between two steps, they are recorded for the one that ended (docs/how-it-works.md has the rule).
        """
        self._guarded("log", self._recorder.given.log, scalars)

    def log_image(self, name: str, image: Any) -> None:
        """Log an image with the step: an array or a tensor (0 to 255, or floats from 0 to 1), or a Pillow image."""
        self._log_media(name, image_content, image)

    def log_text(self, name: str, text: str) -> None:
        """Log a string with the step, at most 1 MiB of it."""
        self._log_media(name, text_content, text)

    def log_table(self, name: str, table: Any) -> None:
        """Log up to 1,000 rows of a table with the step: a mapping of columns, mappings, or a DataFrame."""
        self._log_media(name, table_content, table)

    def log_figure(self, name: str, figure: Any) -> None:
        """Log a Plotly or Matplotlib figure with the step."""
        self._log_media(name, figure_content, figure)

    def tokens(self, tokens: Iterable[Any]) -> None:
        """Name the positions of the batch that runs next: a list for each sample, or one list for all of them.

        Snapshots of its activations and gradients then carry them: attention maps and rollouts show the tokens.
        """
        self._guarded("tokens", self._recorder.given.give_tokens, tokens)

    def labels(self, labels: Iterable[Any]) -> None:
        """Name the samples of the batch that runs next, in snapshots of its activations and gradients."""
        self._guarded("labels", self._recorder.given.give_labels, labels)

    def samples(self, ids: Iterable[Any]) -> None:
        """Name the samples of the batch that runs next: numbers or texts, or a list for each row that has several.

        Of torch's `DataLoader`, hookcore knows them. This is for data that comes from elsewhere (docs/samples.md).
        """
        self._guarded("samples", self._recorder.given.give_samples, ids)

    def _log_media(self, name: str, content_of: Callable[[Any], Content], value: Any) -> None:
        self._guarded("log", self._recorder.given.add_media, str(name), lambda: astuple(content_of(value)))

    def _log_behind(self, scalars: dict[str, float | Tensor]) -> None:
        """Record numbers that a callback receives after their step has ended."""
        self._guarded("log", self._recorder.given.log, scalars, True)

    def observe(self, name: str, tensor: Tensor) -> Tensor:
        """Capture an intermediate tensor of a forward, and its gradient, as taps called `name`. Return the tensor."""
        if not torch.compiler.is_compiling() and self._recorder.context.current.captured and isinstance(tensor, Tensor):
            self._guarded("observe", self._recorder.given.observe, name, tensor)
        return tensor

    def _guarded(self, what: str, call: Callable[..., None], *arguments: Any) -> None:
        if not self._recorder.closed:
            try:
                call(*arguments)
            except Exception as error:
                self._recorder.context.errors.record(what, error)

    # The side of a watch that a script steers. It raises if the watch is closed, or for a wrong request

    def request_snapshot(
        self,
        module: str | None = None,
        kind: Kind = "output",
        index: str = "",
        call: int = 0,
        phase: Phase = "train",
        *,
        tap: str | None = None,
    ) -> None:
        """Capture a raw tensor at its next call, and store it with the run's frames.

        Name a tap that was captured before by its label, such as `tap="0 output_grad"`, or any by its module and kind.
        """
        self._check_open()
        if (tap is None) == (module is None):
            raise ArgumentError('give either a module, or the label of a tap, such as tap="0 output"')
        requests, named = self._recorder.requests, Tap(str(module), kind, index, call, phase)
        if tap is not None:
            _, named = find_tap(enumerate(requests.taps), tap)
        requests.take_snapshot(named)

    def probe(
        self,
        name: str,
        function: Callable[..., Any] | type,
        *,
        include: Pattern | Iterable[Pattern] | None = None,
        kinds: Kind | Iterable[Kind] = "output",
        every: int = 100,
    ) -> None:
        """Add a probe: `function(tensor)` returns a number, a 1-D tensor of numbers, or several of these by name.

        It is called for tensors of these kinds ("output", "output_grad", "param", "param_grad") of the modules that
        `include` matches, in the first captured step of every `every` steps. Its results are taps of the kind "probe".
        If `function` is a class, each tensor gets its own object, which remembers a few steps (docs/probes.md). With
        `hookcore.probes.attention`, it looks at fused attention inside of these modules instead of their tensors.
        """
        self._check_open()
        probe = probe_of(name, function, include, kinds, every)
        self._recorder.capture.models.check_patterns(probe.include)
        if not self._recorder.requests.add_probe(probe):
            raise ArgumentError(f"a watcher has at most {MAX_PROBES} probes: remove one")

    def router(self, module: nn.Module, *, experts: int | None = None, top_k: int | None = None) -> None:
        """Count which experts a module chooses, if hookcore doesn't recognize it as a router by itself.

        Its output must have the numbers of the chosen experts, or a mask with a column for each expert. If it has only
        logits, say how many of the largest ones are chosen: `top_k`. `experts` is the number of experts, if the rows of
        the module's weights don't say it. The numbers are described in docs/probes.md.
        """
        self._check_open()
        if not isinstance(module, nn.Module):
            raise ArgumentError(f"module={module!r} is invalid: use a module of the watched model, such as model.gate")
        router = router_of(module, experts, top_k)
        if not self._recorder.requests.add_router(module, router):
            raise ArgumentError(f"this {type(module).__name__} is part of no watched model: pass one of its modules")

    def capsule(self) -> None:
        """Save the next step to a capsule, for `hookcore replay`. An event says where it is, or why not."""
        self._check_open()
        self._recorder.capture.keeping.ask()

    def pause(self) -> None:
        """Stop capturing until `resume()`. Steps are still counted."""
        self._check_open()
        self._recorder.requests.pause()

    def resume(self) -> None:
        """Resume capturing."""
        self._check_open()
        self._recorder.requests.resume()

    def _check_open(self) -> None:
        if self._recorder.closed:
            raise ClosedError("this watcher was closed; call hookcore.watch(model) for a new one")


class WatcherParts(NamedTuple):
    """What a watcher is made of."""

    recorder: Recorder
    delivery: Delivery
    callbacks: Callbacks
    explainer: SelfExplainer


def parts_of(watcher: Watcher) -> WatcherParts:
    """Return the parts of a watcher: the seam for tests and benchmarks, which reach from it all that they see."""
    return WatcherParts(watcher._recorder, watcher._delivery, watcher._callbacks, watcher._explainer)


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": str(torch.__version__), "hookcore": hookcore.__version__}


@contextmanager
def detached() -> Iterator[None]:
    """Remove all of hookcore's hooks in this block. `torch.export.export(..., strict=True)` needs that."""
    attached = [
        (watcher, watcher._recorder.context.current.captured)
        for watcher in list(_watchers)
        if watcher._recorder.capture.placement.attached
    ]
    for watcher, _ in attached:
        watcher._recorder.capture.placement.detach()
    try:
        yield
    finally:
        for watcher, captured in attached:
            if watcher in _watchers and not watcher._recorder.closed:  # else it was taken apart meanwhile
                watcher._recorder.attach(captured)


def close_all() -> None:
    """Close every open watcher, as at the end of the process."""
    for watcher in list(_watchers):
        watcher._end_explaining()
    deadline, error = time.monotonic() + CLOSE_TIMEOUT_S, uncaught()
    for watcher in list(_watchers):
        watcher._delivery.sink.limit_close_time(deadline - time.monotonic())
        watcher._close(error)
    keep_interrupted()


def _stop_all(number: int) -> None:
    deadline = time.monotonic() + PATIENCE_S - 1.0
    for watcher in list(_watchers):
        watcher._stop(number, deadline)


_signals: Final = Signals(_stop_all)


def _abandon_all() -> None:
    _signals.abandon()
    for watcher in list(_watchers):
        watcher._recorder.abandon()
        watcher._delivery.abandon()
    _watchers.clear()


guard_functions(Watcher.step, Watcher.log, Watcher.observe)
atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
