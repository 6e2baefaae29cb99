"""The `Trainer` of transformers: a callback counts its steps."""

from typing import Any

import torch
from toy import Model, Points, held_out_loss
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import diloco


class Counts(TrainerCallback):
    def __init__(self, session: diloco.Session) -> None:
        self.session = session

    def on_step_end(self, _a: TrainingArguments, _s: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop = not self.session.step()


def train(model: Model, learning_rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    session = diloco.session(model, optimizer, evaluate=held_out_loss)
    points = session.saved["points"] = Points(session.seed)
    arguments = TrainingArguments(
        per_device_train_batch_size=16,
        max_steps=10**9,  # the session says when it is over
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=points, optimizers=(optimizer, None), callbacks=[Counts(session)])
    with session:
        trainer.train()
