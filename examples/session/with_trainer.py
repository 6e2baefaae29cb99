"""The `Trainer` of transformers: a callback tells the session of its steps."""

from typing import Any

import torch
from torch.utils.data import DataLoader
from toy import Batch, Model, batches, held_out_loss
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import diloco


class Counts(TrainerCallback):
    def __init__(self, session: diloco.Session) -> None:
        self.session = session

    def on_step_end(self, _a: TrainingArguments, _s: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop = not self.session.step()


class Fit(Trainer):
    def __init__(self, session: diloco.Session, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.session = session

    def get_train_dataloader(self) -> DataLoader[Batch]:
        return batches(self.session.seed, self.session.steps)


def train(model: Model, learning_rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    session = diloco.session(model, optimizer, evaluate=held_out_loss)
    arguments = TrainingArguments(
        per_device_train_batch_size=16,
        max_steps=10**9,  # the session says when it is over
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Fit(session, model, arguments, optimizers=(optimizer, None), callbacks=[Counts(session)])
    with session:
        trainer.train()
