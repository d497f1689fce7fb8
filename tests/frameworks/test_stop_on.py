# mypy: disable-error-code="no-untyped-call"
"""Callbacks of frameworks that stop a training after an incident, all ranks together."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookcore.errors import ArgumentError
from hookcore.frameworks import watching
from hookcore.frameworks.watching import AGREE_EVERY, Stopping
from tests.ranks import run_ranks
from tests.zoo.case import mean_square, mlp

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SETTINGS: dict[str, Any] = {"budget": None, "memory": "16MB"}
STEPS = 20_000  # many more than can pass before an incident is known
BAD = 3
WORLD = 2


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable progress reports."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def spoil(model: nn.Module, module: nn.Module) -> None:
    """Put NaN into the output of a module, once."""
    calls = iter(range(STEPS))

    def hook(_module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * float("nan") if next(calls, 0) == BAD else output

    module.register_forward_hook(hook)


def check(callback: Stopping, steps: int) -> None:
    """Assert that the training ended because of the incident, and that its run ended normally."""
    assert BAD < steps < STEPS
    assert callback.stopped
    watcher = callback.watcher
    assert watcher is not None
    assert "closed" in repr(watcher)
    assert watcher.errors == []
    events = {event.name: event.message for event in watcher.store.events()}
    assert "crashed" not in events
    assert re.search(rf"NaN first appeared in .*, at step {BAD}", events["training-stopped"])


def fit(stop_on: Any, steps: int = STEPS, wrong: bool = True) -> tuple[Any, Any]:
    lightning = import_module("lightning")
    from hookcore.frameworks.lightning import HookcoreCallback

    class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, batch: Any, index: int) -> Any:
            return mean_square(self.net(batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    model, callback = Lit(), HookcoreCallback(stop_on=stop_on, **SETTINGS)
    if wrong:
        spoil(model, model.net[0])
    trainer = lightning.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(400, 6)), batch_size=4))
    return trainer, callback


def test_lightning_stops_after_an_error() -> None:
    trainer, callback = fit("error")
    check(callback, trainer.global_step)


@pytest.mark.parametrize(("stop_on", "wrong"), [(None, True), ("error", False)])
def test_lightning_trains_to_the_end_without_an_incident_or_the_wish_to_stop(stop_on: Any, wrong: bool) -> None:
    trainer, callback = fit(stop_on, steps=30, wrong=wrong)
    assert trainer.global_step == 30
    assert not callback.stopped


def test_the_hugging_face_trainer_stops_after_an_error(tmp_path: Path) -> None:
    transformers = import_module("transformers")
    from hookcore.frameworks.transformers import HookcoreCallback

    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(config)
    spoil(model, model.transformer.h[0].mlp)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 20, (12, 6))]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=STEPS, per_device_train_batch_size=2, report_to=[], disable_tqdm=True, use_cpu=True,
        save_strategy="no",
    )  # fmt: skip
    callback = HookcoreCallback(stop_on="error", **SETTINGS)
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    check(callback, trainer.state.global_step)


def test_ignite_stops_after_an_error() -> None:
    from ignite.engine import Engine

    from hookcore.frameworks.ignite import HookcoreHandler

    model = mlp()
    spoil(model, model[0])  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(engine: Engine, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        mean_square(model(batch)).backward()
        optimizer.step()

    engine = Engine(step)
    handler = HookcoreHandler(model, stop_on="error", **SETTINGS)
    handler.attach(engine)
    engine.run([torch.randn(4, 6)] * 100, max_epochs=STEPS // 100)
    check(handler, engine.state.iteration)


def train_rank(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["HOOKCORE_SERVER"] = "none"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    model = mlp()
    if rank == 1:
        spoil(model, model[0])  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Stopping(stop_on="error", **SETTINGS) as callback:
        callback.begin(model)
        steps = 0
        while steps < STEPS and not callback.must_stop():
            mean_square(model(torch.randn(4, 6))).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    Path(folder, f"{rank}.json").write_text(json.dumps(steps))
    dist.destroy_process_group()


def test_all_ranks_stop_in_the_same_step_after_an_incident_on_one(tmp_path: Path) -> None:
    run_ranks(train_rank, (str(tmp_path),), WORLD)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD))
    assert first == second
    assert AGREE_EVERY - 1 <= first < STEPS


def test_a_rank_that_watches_nothing_participates_in_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged = []

    def all_reduce(stop: torch.Tensor, _op: object) -> None:
        exchanged.append(bool(stop))
        stop.fill_(len(exchanged) == 2)  # then, another rank stops

    monkeypatch.setattr(watching, "_ranks", lambda: WORLD)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    rank = Stopping(stop_on="error", **SETTINGS)
    assert [rank.must_stop() for _ in range(3 * AGREE_EVERY)].index(True) == 2 * AGREE_EVERY - 1
    assert exchanged == [False, False]
    assert rank.stopped


def test_an_invalid_severity_raises_where_the_callback_is_created() -> None:
    with pytest.raises(ArgumentError, match=r"stop_on='fatal' is invalid: use one of 'error', 'warning', 'info'"):
        Stopping(stop_on="fatal", **SETTINGS)
