"""Bridges to other tools: each step's key figures for TensorBoard and similar tools."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hookcore.config import rank
from hookcore.errors import ArgumentError
from hookcore.records import PROBE, STAT_COLUMN, Frame, Tap
from hookcore.records.vocabulary import ELAPSED, GRADIENT_NORM, NONFINITE_MODULES, ZERO_MODULES

_COUNT, _NAN, _INF, _ZERO, _NORM = (STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero", "norm"))
MAX_TENSORS: Final = 64  # of chosen layers, whose statistics are sent, too
LAYER_STATS: Final = ("rms", "mean", "std")
SENT: Final = (*LAYER_STATS, "nonfinite")
_LAYER_COLUMNS: Final = [STAT_COLUMN[name] for name in LAYER_STATS]

Step = tuple[int, float, dict[str, float]]  # its number, its time, its numbers


class Summary:
    """Collects the frames of a step; a step is over when a later one arrives.

    `layers` returns the paths of the modules whose tensors have statistics of their own; the first MAX_TENSORS of these
    do, and `left_out` hears of each other one.
    """

    def __init__(
        self, layers: Callable[[], Container[str]] = tuple, left_out: Callable[[], None] = lambda: None
    ) -> None:
        self._layers, self._left_out = layers, left_out
        self._named: dict[int, str] = {}  # the tensors of these modules
        self._taps: list[Tap] = []
        self._step, self._time_s = -1, 0.0
        self._numbers: dict[str, float] = {}
        self._squares: dict[int, float] = {}  # of each parameter's gradient; a later part replaces it
        self._nonfinite: set[str] = set()
        self._zero: set[str] = set()
        self._captured = False

    def add(self, frame: Frame) -> Iterator[Step]:
        """Add a frame; yield the previous step if it is over."""
        if frame.step > self._step:
            yield from self.end()
            self._step = frame.step
        if frame.new_taps:
            self._add_taps(frame.new_taps)
        self._time_s = frame.time_s
        self._numbers |= frame.scalars
        if math.isfinite(frame.elapsed_s):
            self._numbers[ELAPSED] = frame.elapsed_s
        if len(frame.taps):
            self._captured = True
            self._add_rows(frame.taps, frame.stats)

    def _add_taps(self, taps: Sequence[Tap]) -> None:
        chosen = self._layers()
        for number, tap in enumerate(taps, len(self._taps)):
            if tap.module in chosen and tap.kind != PROBE:
                if len(self._named) < MAX_TENSORS:
                    self._named[number] = name_of(tap)
                else:
                    self._left_out()
        self._taps += taps

    def _add_rows(self, numbers: NDArray[np.uint32], stats: NDArray[np.float64]) -> None:
        ill = (stats[:, _NAN] > 0) | (stats[:, _INF] > 0)
        zero = (stats[:, _COUNT] > 0) & (stats[:, _ZERO] == stats[:, _COUNT])
        for row, number in enumerate(numbers.tolist()):
            tap = self._taps[number] if number < len(self._taps) else None
            if tap is None:
                continue
            if ill[row]:
                self._nonfinite.add(tap.module)
            if zero[row] and tap.kind == "output":
                self._zero.add(tap.module)
            if (name := self._named.get(number)) is not None:
                values = [*stats[row, _LAYER_COLUMNS].tolist(), float(stats[row, _NAN] + stats[row, _INF])]
                self._numbers |= {f"{name}/{stat}": each for stat, each in zip(SENT, values, strict=True)}
            if tap.kind == "param_grad":
                self._squares[number] = math.nan if ill[row] else float(stats[row, _NORM]) ** 2

    def end(self) -> Iterator[Step]:
        """Yield the unfinished step, if there is one."""
        numbers = self._numbers
        if self._captured:
            numbers |= {NONFINITE_MODULES: float(len(self._nonfinite)), ZERO_MODULES: float(len(self._zero))}
        if self._squares:
            numbers[GRADIENT_NORM] = math.sqrt(math.fsum(self._squares.values()))
        if numbers:
            yield self._step, self._time_s, numbers
        self._numbers, self._squares, self._nonfinite, self._zero = {}, {}, set(), set()
        self._captured = False


def name_of(tap: Tap) -> str:
    """Return the name of a tensor in other tools, in characters that all of them accept."""
    parts = (tap.kind, tap.index, f"call{tap.call}" if tap.call else "", "" if tap.phase == "train" else tap.phase)
    return f"{tap.module or 'root'}/{'.'.join(filter(None, parts))}"


# The tools of the bridges, each with the same three methods. They are imported when needed.


class Writer(Protocol):
    """Receives the summaries of one run."""

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step."""

    def flush(self) -> None:
        """Make written data visible."""

    def close(self) -> None:
        """End the run."""


class TensorBoard:
    """An event file in a folder."""

    def __init__(self, folder: str, name: str) -> None:
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(folder)

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """Add a point to each scalar's curve."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step, time_s)

    def flush(self) -> None:
        """Write to disk."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A separate run in a project; the script's own run is not touched."""

    def __init__(self, project: str, name: str) -> None:
        wandb = import_module("wandb")
        # Don't capture the script's output.
        settings = wandb.Settings(console="off", silent=True)
        self.run: Any = wandb.init(project=project, name=name, reinit="create_new", settings=settings)

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """Add a row to the run's history."""
        self.run.log(dict(numbers), step=step, commit=True)

    def flush(self) -> None:
        """Do nothing: the tool's own process sends continuously."""

    def close(self) -> None:
        """End the run."""
        self.run.finish()


class MLflow:
    """A separate run in an experiment, at MLFLOW_TRACKING_URI or MLflow's default address."""

    def __init__(self, experiment: str, name: str) -> None:
        tracking = import_module("mlflow.tracking")
        self._metric: Any = import_module("mlflow.entities").Metric
        self._client: Any = tracking.MlflowClient()
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        self._run: str = self._client.create_run(number, run_name=name).info.run_id

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """Send the step's metrics."""
        moment = int(time_s * 1000)
        metrics = [self._metric(name, value, moment, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def flush(self) -> None:
        """Do nothing: each step is sent immediately."""

    def close(self) -> None:
        """End the run."""
        with contextlib.suppress(Exception):  # a missing server was already reported
            self._client.set_terminated(self._run)


# By prefix: the required module, the package to install, and the writer.
WRITERS: Final[dict[str, tuple[str, str, Callable[[str, str], Writer]]]] = {
    "tensorboard": ("tensorboard", "tensorboard", TensorBoard),
    "wandb": ("wandb", "wandb", WeightsAndBiases),
    "mlflow": ("mlflow", "mlflow", MLflow),
}


# A bridge of one run: what it writes for each step, from its own thread.

logger = logging.getLogger("hookcore")

THREAD: Final = "hookcore-bridge"
MAX_WAITING: Final = 1000  # steps; later ones are dropped and counted
FLUSH_S: Final = 2.0
CLOSE_S: Final = 2.0

Failed = Callable[[str, Exception], None]
Lost = Callable[[str, str, str], None]  # the name of an event, what was lost, and why


class Bridge:
    """Writes a summary of each step. Its failures are reported, and stop neither the training nor the run."""

    def __init__(
        self,
        open_writer: Callable[[], Writer],
        failed: Failed,
        lost: Lost,
        layers: Callable[[], Container[str]] = tuple,
    ) -> None:
        self._open, self._failed, self._lost = open_writer, failed, lost
        self._warned = False
        why = f"not sent to the bridge, which takes {MAX_TENSORS}: choose fewer with bridge_layers"
        self._summary = Summary(layers, partial(lost, "bridge-capped", "tensor", why))
        self._steps: queue.Queue[Step | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def take(self, frame: Frame) -> None:
        """Take a frame; never wait for the tool."""
        if self._thread.is_alive():
            self._guarded(lambda: self._put(self._summary.add(frame)))

    def _put(self, steps: Iterable[Step]) -> None:
        for step in steps:
            try:
                self._steps.put_nowait(step)
            except queue.Full:
                self._lost("bridge-dropped", "step", "dropped: too many were waiting for the bridge")

    def close(self) -> None:
        """End the thread, which has a few seconds to write waiting data."""
        if self._thread.is_alive():
            self._guarded(lambda: self._put(self._summary.end()))
            with contextlib.suppress(queue.Full):
                self._steps.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)

    # -- on the bridge's own thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            writer = self._open()
        except Exception as error:
            self._report(error)
            return
        flushed = time.monotonic()
        while (step := self._steps.get()) is not None:
            self._guarded(partial(writer.write, *step))
            if time.monotonic() - flushed > FLUSH_S:
                self._guarded(writer.flush)
                flushed = time.monotonic()
        self._guarded(writer.close)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        self._failed("bridge", error)
        if not self._warned:
            self._warned = True
            logger.warning("hookcore: the bridge failed: %s. Training and the run continue.", error)


def bridge_for(bridge: str | None, name: str) -> Callable[[], Writer] | None:
    """Return a function that opens the bridge in a setting such as "tensorboard:runs/x", or None.

    Raises ArgumentError if the tool is not installed. In a distributed training, only rank 0 has a bridge.
    """
    if bridge is None or rank() != "0":
        return None
    tool, _, target = bridge.partition(":")
    module, package, make = WRITERS[tool]
    if find_spec(module) is None:
        raise ArgumentError(f"bridge={bridge!r} needs {package}, which is not installed: pip install {package}")
    return lambda: make(target, name)
