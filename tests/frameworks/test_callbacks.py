# mypy: disable-error-code="no-untyped-call"
"""Callbacks for frameworks: a run for each training, metrics as scalars, and bit-identical results."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookcore.errors import ArgumentError
from hookcore.frameworks.watching import Watching
from tests.harness import digest, seed_all
from tests.zoo.case import mean_square, mlp

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SETTINGS: dict[str, Any] = {"budget": None, "memory": "16MB"}


class TroubleError(Exception):
    """A failure in a training."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable progress reports."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def weights_of(train: Callable[[], nn.Module]) -> str:
    seed_all()
    return digest([parameter.detach() for parameter in train().parameters()])


def scalars_of(watching: Watching) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each scalar, except hookcore's own, of a run that ended normally."""
    watcher = watching.watcher
    assert watcher is not None
    assert "closed" in repr(watcher)
    assert watcher.errors == []
    found = {name: watcher.store.scalars(name) for name in watcher.store.scalar_names() if "hookcore/" not in name}
    return {name: list(zip(each.first_step.tolist(), each.mean.tolist(), strict=True)) for name, each in found.items()}


def steps_of(points: list[tuple[int, float]]) -> list[int]:
    return [step for step, _ in points]


# -- Lightning --


def train_with_lightning(*callbacks: Any, wrong_at: int = -1, epochs: int = 2) -> nn.Module:
    lightning = import_module("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, batch: Any, index: int) -> Any:
            if self.global_step == wrong_at:
                raise TroubleError
            loss = mean_square(self.net(batch[0]))
            self.log("mine", float(self.global_step), on_step=True, on_epoch=True)
            if index == 1:
                self.log("rare", float(self.global_step))
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", mean_square(self.net(batch[0])))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    model, data = Lit(), DataLoader(TensorDataset(torch.randn(12, 6)), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=list(callbacks),
    )  # fmt: skip
    trainer.fit(model, data, data)
    return model


def test_lightning_trains_the_same_and_its_metrics_arrive_at_their_steps() -> None:
    from hookcore.frameworks.lightning import HookcoreCallback

    callback = HookcoreCallback(**SETTINGS)
    assert weights_of(train_with_lightning) == weights_of(lambda: train_with_lightning(callback))
    found = scalars_of(callback)
    assert found["mine_step"] == [(step, float(step)) for step in range(6)]
    assert found["rare"] == [(1, 1.0), (4, 4.0)]  # Lightning passes it on in the next steps, too
    assert steps_of(found["loss"]) == list(range(6))
    assert all(math.isfinite(loss) for _, loss in found["loss"])
    assert steps_of(found["val_loss"]) == [2, 5]  # logged when validation ended, and not again at every later step
    assert found["mine_epoch"] == [(2, 1.0), (5, 4.0)]
    assert callback.watcher is not None
    assert callback.watcher.current_step == 6
    assert "net.0" in {tap.module for tap in callback.watcher.store.taps().taps}


def test_lightning_ends_the_run_of_a_training_that_raises_and_starts_another() -> None:
    from hookcore.frameworks.lightning import HookcoreCallback

    callback = HookcoreCallback(**SETTINGS)
    with pytest.raises(TroubleError):
        train_with_lightning(callback, wrong_at=2)
    assert steps_of(scalars_of(callback)["loss"]) == [0, 1]
    first = callback.watcher
    train_with_lightning(callback, epochs=1)
    assert callback.watcher is not first
    assert steps_of(scalars_of(callback)["loss"]) == [0, 1, 2]


# -- transformers --


def train_with_transformers(folder: Path, *callbacks: Any, wrong: bool = False) -> nn.Module:
    transformers = import_module("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)

    class Wrong(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 2:
                raise TroubleError

    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 20, (12, 6))]
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, report_to=[], disable_tqdm=True, use_cpu=True,
        save_strategy="no", logging_steps=1, eval_strategy="steps", eval_steps=2,
    )  # fmt: skip
    given = [*callbacks, *([Wrong()] if wrong else [])]
    transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=given).train()
    return model


def test_the_hugging_face_trainer_trains_the_same_and_its_logs_arrive(tmp_path: Path) -> None:
    from hookcore.frameworks.transformers import HookcoreCallback

    callback = HookcoreCallback(**SETTINGS)
    plain = weights_of(lambda: train_with_transformers(tmp_path))
    assert plain == weights_of(lambda: train_with_transformers(tmp_path, callback))
    found = scalars_of(callback)
    assert steps_of(found["loss"]) == steps_of(found["learning_rate"]) == [0, 1, 2, 3]
    assert steps_of(found["eval_loss"]) == [1, 3]
    assert callback.watcher is not None
    assert not [event for event in callback.watcher.store.events() if event.name == "crashed"]


def test_a_hugging_face_trainer_that_raises_ends_the_run_by_the_context(tmp_path: Path) -> None:
    from hookcore.frameworks.transformers import HookcoreCallback

    with pytest.raises(TroubleError), HookcoreCallback(**SETTINGS) as callback:
        train_with_transformers(tmp_path, callback, wrong=True)
    assert steps_of(scalars_of(callback)["loss"]) == [0, 1]


def test_an_open_run_ends_when_the_callback_is_discarded_or_trains_again(tmp_path: Path) -> None:
    from hookcore.frameworks.transformers import HookcoreCallback

    callback = HookcoreCallback(**SETTINGS)
    with pytest.raises(TroubleError):
        train_with_transformers(tmp_path, callback, wrong=True)
    first = callback.watcher
    assert first is not None
    callback.begin(mlp())
    (crash,) = (event for event in first.store.events() if event.name == "crashed")
    assert "hookcore did not see the exception" in crash.message
    second = callback.watcher
    assert "closed" in repr(first)
    assert "watching" in repr(second)
    del callback
    assert "closed" in repr(second)


# -- accelerate and ignite --


def train_with_accelerate(tracker_of: Callable[[nn.Module], Any] | None = None, wrong: bool = False) -> nn.Module:
    accelerate = import_module("accelerate")
    model, data = mlp(), DataLoader(TensorDataset(torch.randn(16, 6)), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = accelerate.Accelerator(cpu=True, log_with=tracker_of(model) if tracker_of else None)
    accelerator.init_trackers("digits", config={"lr": 0.1})
    prepared, optimizer, data = accelerator.prepare(model, optimizer, data)
    for (batch,) in data:
        loss = mean_square(prepared(batch))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss.item(), "note": "a text is no scalar"}, step=7)
        if wrong:
            raise TroubleError
    accelerator.end_training()
    return model


def test_accelerate_trains_the_same_and_its_logs_arrive() -> None:
    from hookcore.frameworks.accelerate import HookcoreTracker

    made: list[HookcoreTracker] = []

    def tracker_of(model: nn.Module) -> HookcoreTracker:
        made.append(HookcoreTracker(model, **SETTINGS))
        return made[-1]

    assert weights_of(train_with_accelerate) == weights_of(lambda: train_with_accelerate(tracker_of))
    assert {name: steps_of(points) for name, points in scalars_of(made[0]).items()} == {"loss": [0, 1, 2, 3]}


def test_a_loop_of_accelerate_that_raises_ends_the_run_by_the_context() -> None:
    from hookcore.frameworks.accelerate import HookcoreTracker

    with HookcoreTracker(**SETTINGS) as tracker:
        with pytest.raises(TroubleError):
            train_with_accelerate(lambda model: tracker, wrong=True)
        assert "watching" in repr(tracker.tracker)
    assert steps_of(scalars_of(tracker)["loss"]) == [0]


def train_with_ignite(handler_of: Callable[[nn.Module], Any] | None, *handlers: Any, wrong: bool = False) -> nn.Module:
    engines = import_module("ignite.engine")
    model, data = mlp(), DataLoader(TensorDataset(torch.randn(12, 6)), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(engine: Any, batch: Any) -> dict[str, float]:
        if wrong and engine.state.iteration == 2:
            raise TroubleError
        optimizer.zero_grad()
        loss = mean_square(model(batch[0]))
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}

    engine = engines.Engine(step)
    for handler in handlers:
        engine.add_event_handler(engines.Events.EXCEPTION_RAISED, handler)
    if handler_of is not None:
        handler_of(model).attach(engine)
    engine.run(data, max_epochs=1)
    return model


def test_ignite_trains_the_same_and_its_outputs_arrive() -> None:
    from hookcore.frameworks.ignite import HookcoreHandler

    made: list[HookcoreHandler] = []

    def handler_of(model: nn.Module) -> HookcoreHandler:
        made.append(HookcoreHandler(model, **SETTINGS))
        return made[-1]

    assert weights_of(lambda: train_with_ignite(None)) == weights_of(lambda: train_with_ignite(handler_of))
    assert steps_of(scalars_of(made[0])["loss"]) == [0, 1, 2]


def test_a_terminated_ignite_engine_did_not_crash() -> None:
    from ignite.engine import Engine, Events

    from hookcore.frameworks.ignite import HookcoreHandler

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(engine: Engine, batch: torch.Tensor) -> None:
        mean_square(model(batch)).backward()
        optimizer.step()

    engine = Engine(step)
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), engine.terminate)  # as EarlyStopping does
    handler = HookcoreHandler(model, **SETTINGS)
    handler.attach(engine)
    engine.run([torch.randn(4, 6)] * 5, max_epochs=2)
    assert handler.watcher is not None
    assert "closed" in repr(handler.watcher)
    assert handler.watcher.store.steps().count == 2
    assert not [event for event in handler.watcher.store.events() if event.name == "crashed"]


def test_an_ignite_engine_raises_the_same_errors_and_the_run_ends() -> None:
    from hookcore.frameworks.ignite import HookcoreHandler

    made: list[HookcoreHandler] = []
    seen: list[BaseException] = []

    def handler_of(model: nn.Module) -> HookcoreHandler:
        made.append(HookcoreHandler(model, **SETTINGS))
        return made[-1]

    with pytest.raises(TroubleError):
        train_with_ignite(handler_of, wrong=True)
    # also if the exception is swallowed
    train_with_ignite(handler_of, lambda engine, error: seen.append(error), wrong=True)
    assert [type(error) for error in seen] == [TroubleError]
    for handler in made:
        assert steps_of(scalars_of(handler)["loss"]) == [0]


# -- all of them --


def test_an_invalid_setting_raises_where_the_callback_is_created() -> None:
    with pytest.raises(ArgumentError, match="budget"):
        Watching(budget="much")
    with pytest.raises(ArgumentError, match="not a setting"):
        Watching(evry=2)


def test_only_single_numbers_are_logged() -> None:
    with Watching(**SETTINGS) as watching:
        model = mlp()
        watching.log_numbers({"early": 1.0})  # before the run exists
        watching.begin(model)
        values = {"a": 1, "b": torch.tensor([2.0]), "text": "c", "many": torch.ones(2), "none": None, "self": 3.0}
        watching.log_numbers(values)
        mean_square(model(torch.randn(2, 6))).backward()
        assert watching.watcher is not None
        watching.watcher.step()
    logged = {name: values for name, values in scalars_of(watching).items() if name != "backward/loss"}
    assert logged == {"a": [(0, 1.0)], "b": [(0, 2.0)]}


def test_no_framework_is_imported_before_its_callback() -> None:
    names = {"lightning", "pytorch_lightning", "transformers", "accelerate", "ignite", "tensorboard", "wandb", "mlflow"}
    code = (
        "import sys, hookcore.frameworks.watching, hookcore.delivery.bridges\n"
        f"sys.exit(' '.join(sorted({names!r} & set(sys.modules))) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
