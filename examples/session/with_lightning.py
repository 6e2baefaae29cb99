"""Lightning: a callback tells the session of each batch, which counts the optimizer's steps."""

from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor
from toy import Batch, Model, batches, held_out_loss

import diloco


class Fit(LightningModule):
    def __init__(self, model: Model, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def training_step(self, batch: Batch, _: int) -> Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer


class Counts(Callback):
    def __init__(self, session: diloco.Session) -> None:
        self.session = session

    def on_train_batch_end(self, trainer: Trainer, _: LightningModule, outputs: Any, *_more: Any) -> None:
        trainer.should_stop = not self.session.step(outputs["loss"])


def train(model: Model, learning_rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    session = diloco.session(model, optimizer, evaluate=held_out_loss)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(max_epochs=-1, devices=1, callbacks=[Counts(session)], **quiet)
    with session:
        trainer.fit(Fit(model, optimizer), batches(session.seed, session.steps))
