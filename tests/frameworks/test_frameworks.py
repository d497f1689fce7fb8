# mypy: disable-error-code="no-untyped-call"
"""Training loops of other frameworks: watching doesn't change a bit, and their steps are the steps of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookcore
from hookcore.records.vocabulary import TIME_LOADING
from tests.harness import digest, read_step, seed_all, watch
from tests.zoo.case import mean_square, mlp

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable progress reports."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def compare(train: Callable[[], nn.Module]) -> hookcore.Watcher:
    """Train unwatched and watched, compare, and return the closed watcher, which has seen a torch loader."""

    def weights() -> str:
        seed_all()
        return digest([parameter.detach() for parameter in train().parameters()])

    expected = weights()
    with watch() as watcher:
        assert weights() == expected
        assert watcher.flush()
        assert watcher.errors == []
    assert TIME_LOADING in watcher.store.scalar_names()
    return watcher


def parts_of(watcher: hookcore.Watcher, module: str, kind: str) -> list[float]:
    """Return the number of micro-batches merged into each step."""
    return [read_step(watcher, number)[module, kind, "", 0]["parts"] for number in range(watcher.current_step)]


def test_lightning_with_accumulation_and_validation() -> None:
    lightning = import_module("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, batch: Any, index: int) -> Any:
            return mean_square(self.net(batch[0]))

        def validation_step(self, batch: Any, index: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    def train() -> nn.Module:
        model, data = Lit(), DataLoader(TensorDataset(torch.randn(16, 6)), batch_size=4)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, accumulate_grad_batches=2,
        )  # fmt: skip
        trainer.fit(model, data, data)
        return model

    watcher = compare(train)
    assert watcher.current_step == 4
    assert parts_of(watcher, "Lit/net.0", "output") == [2, 2, 2, 2]
    assert parts_of(watcher, "Lit/net.0", "output_grad") == [2, 2, 2, 2]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_hugging_face_trainer_with_accumulation_and_evaluation(tmp_path: Path, checkpointing: bool) -> None:
    transformers = import_module("transformers")

    def train() -> nn.Module:
        config = transformers.GPT2Config(
            n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=16, bos_token_id=1, eos_token_id=2
        )
        model: nn.Module = transformers.GPT2LMHeadModel(config)
        tokens = [torch.randint(0, 20, (6,)) for _ in range(12)]
        data = [{"input_ids": row, "labels": row} for row in tokens]
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[],
            disable_tqdm=True, use_cpu=True, save_strategy="no", eval_strategy="steps", eval_steps=1,
            gradient_checkpointing=checkpointing,
        )  # fmt: skip
        transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data).train()
        return model

    watcher = compare(train)
    assert watcher.current_step == 3
    assert {tap.module.partition("/")[0] for tap in watcher.store.taps().taps} == {"GPT2LMHeadModel"}
    for module in ("lm_head", "transformer.h.0.mlp.c_fc"):
        assert parts_of(watcher, f"GPT2LMHeadModel/{module}", "output") == [2, 2, 2]
        assert parts_of(watcher, f"GPT2LMHeadModel/{module}", "output_grad") == [2, 2, 2]


def test_a_loop_of_accelerate_with_accumulation() -> None:
    accelerate = import_module("accelerate")

    def train() -> nn.Module:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, data = mlp(), DataLoader(TensorDataset(torch.randn(16, 6)), batch_size=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        for (batch,) in data:
            with accelerator.accumulate(model):
                accelerator.backward(mean_square(model(batch)))
                optimizer.step()
                optimizer.zero_grad()
        trained: nn.Module = model
        return trained

    watcher = compare(train)
    assert watcher.current_step == 2
    assert parts_of(watcher, "Sequential/0", "output_grad") == [2, 2]
