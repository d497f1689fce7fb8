"""A Lightning training on two processes, the first of which starts the second. Each saves its run."""

import logging
import warnings

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hookcore


class Model(lightning.LightningModule):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss: Tensor = self.layer(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = Model()
    with hookcore.watch(model, budget=None, kinds=("output", "param_grad")):
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", enable_model_summary=False, **quiet
        )
        trainer.fit(model, DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2))
