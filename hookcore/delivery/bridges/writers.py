"""The tools of the bridges, each with the same three methods. They are imported when needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, Protocol


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
        self._run: Any = wandb.init(project=project, name=name, reinit="create_new", settings=settings)

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """Add a row to the run's history."""
        self._run.log(dict(numbers), step=step, commit=True)

    def flush(self) -> None:
        """Do nothing: the tool's own process sends continuously."""

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow:
    """A separate run in an experiment, at MLFLOW_TRACKING_URI or MLflow's default address."""

    def __init__(self, experiment: str, name: str) -> None:
        tracking = import_module("mlflow.tracking")
        self._metric: Any = import_module("mlflow.entities").Metric
        self._client: Any = tracking.MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
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
